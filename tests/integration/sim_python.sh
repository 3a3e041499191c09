#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs sim_python.py with NVIDIA's bindings for Python on the simulated driver. The bindings are installed once, below
# build/, from PyPI; where that is not possible the test says so and is skipped.
set -u
version=13.5.0
build=$(realpath "${GPUMEM_BUILD:-build}")
top=$(dirname "$0")
python="$build/python/bindings-$version"

skip() {
        echo "skipped: $1"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
}

command -v python3 >/dev/null || skip "there is no python3"
if [ ! -e "$python/complete" ]; then
        rm -rf "$python"
        mkdir -p "$python"
        timeout 40 python3 -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 5 --only-binary :all: \
                --target "$python" "cuda-bindings==$version" >"$python.log" 2>&1 ||
                skip "cuda-bindings $version cannot be installed from PyPI: $(tail -n 1 "$python.log")"
        touch "$python/complete"
fi
PYTHONPATH="$python" python3 -c 'import cuda.bindings.driver' 2>"$python.log" ||
        skip "cuda-bindings $version does not load: $(tail -n 1 "$python.log")"

# The name by which any program looks for the driver.
mkdir -p "$build/python/driver"
ln -sf "$build/libcuda-sim.so" "$build/python/driver/libcuda.so.1"
machine=$(mktemp -d /dev/shm/gpumem-test-python-XXXXXX) || exit 1
trap 'rm -rf "$machine"' EXIT
export LD_LIBRARY_PATH="$build/python/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$python" PYTHONDONTWRITEBYTECODE=1
export GPUMEM_SIM_DIR="$machine" GPUMEM_SIM_MEMORY=16M GPUMEM_SIM_GRANULARITY=64K
timeout 60 python3 "$top/sim_python.py"
