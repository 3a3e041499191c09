#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Collects what tests/gpu/check.sh needs into a folder that works on another machine: the built programs (without
# symbols) and the shared libraries they need, the C library's aside. Build first: make build tests.
#
#   tests/gpu/bundle.sh DIR       then, over there: DIR/check.sh
set -eu
[ $# = 1 ] || { echo "usage: $0 DIR" >&2 && exit 2; }
out=$1 build=${GPUMEM_BUILD:-build}
mkdir -p "$out/bin" "$out/lib"
for program in cuda-conformance gpu-check gpumemd gpumemd-keeper gpumemctl gpumem-bench libgpumem.so.0 libcuda-sim.so; do
        [ -e "$build/$program" ] || { echo "$0: there is no $build/$program: make build tests" >&2 && exit 1; }
        cp -fL "$build/$program" "$out/bin/$program"
        strip --strip-debug "$out/bin/$program" 2>/dev/null || true
        # The loader and the parts of the C library have to be that machine's own.
        ldd "$build/$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | grep -Ev '/(libc|libm|libdl|librt|libpthread|libgpumem|libcuda-sim|ld-linux[^/]*)\.so[^/]*$' | sort -u |
        while read -r library; do cp -fL "$library" "$out/lib/"; done
mkdir -p "$out/bin/profiles"
cp -f libclient/simcuda/profiles/*.profile "$out/bin/profiles/"
cp -f "$(dirname "$0")/check.sh" "$out/"
du -sh "$out" | sed 's/\t/ in /'
