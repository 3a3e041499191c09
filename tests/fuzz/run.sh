#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets built by `make fuzz-build`, one after the other, on one core. Usage: tests/fuzz/run.sh SECONDS TARGET...
# Exits 1 if something was found. Prints executions and findings of each target.
set -u
: "${FUZZ_OPTIONS:=}" # more options for libFuzzer
seconds=$1
shift
build=build/fuzz
export GPUMEM_BUILD=$build
# The simulator has a handler of its own for faults in its windows; libFuzzer must not install one above it.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:allow_user_segv_handler=1:handle_segv=1:allocator_may_return_null=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
status=0 total=0
for target in "$@"; do
        new=$build/corpus/$target findings=$build/findings/$target log=$build/$target.log
        mkdir -p "$new" "$findings"
        dictionary=""
        [ ! -f "tests/fuzz/$target.dict" ] || dictionary="-dict=tests/fuzz/$target.dict"
        # shellcheck disable=SC2086
        "$build/fuzz/$target" "$new" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
                -max_len=16384 -artifact_prefix="$findings/" -print_final_stats=1 -verbosity=1 $dictionary $FUZZ_OPTIONS >"$log" 2>&1
        code=$?
        runs=$(awk '/^stat::number_of_executed_units/ { n = $2 } /^#[0-9]+/ { m = substr($1, 2) } END { print n ? n : m + 0 }' "$log")
        total=$((total + runs))
        printf '%-12s %10d inputs, %s inputs/s, %s\n' "$target" "$runs" "$((runs / (seconds > 0 ? seconds : 1)))" \
                "$([ $code = 0 ] && echo 'no finding' || echo "FOUND something, exit $code: $log")"
        if [ $code != 0 ]; then
                status=1
                tail -n 40 "$log" | sed 's/^/  | /'
        fi
done
echo "$total inputs in all"
exit $status
