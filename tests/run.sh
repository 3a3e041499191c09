#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs named as arguments, one after the other, each under a time limit, and adds up what they report.
# A program passes if it exits 0 and ran at least one test. CUnit programs print a summary table whose
# "tests" and "asserts" rows are read; a plain "N passed, N failed[, N skipped]" line counts as well.
set -u
build=${GPUMEM_BUILD:-build}
# Sanitizers slow programs down several times.
case "$build" in *san-*) limit=900 ;; *) limit=180 ;; esac
limit=${GPUMEM_TEST_LIMIT:-$limit}
logs="$build/tests/logs"
mkdir -p "$logs"
export GPUMEM_BUILD="$build"
export ASAN_OPTIONS="${ASAN_OPTIONS:-abort_on_error=0:detect_leaks=1:allow_user_segv_handler=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=0:exitcode=66}"

passed=0 failed=0 skipped=0 broken=""
for program in "$@"; do
        name=$(basename "$program")
        log="$logs/$name.log"
        start=$(date +%s)
        timeout -k 5 "$limit" "$program" >"$log" 2>&1 </dev/null
        status=$?
        took=$(($(date +%s) - start))
        # CUnit:   "   tests     12     12     11      1        0"
        set -- $(awk '$1 == "tests" && NF == 6 { p += $4; f += $5 }
                      /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5 }
                      END { printf "%d %d %d", p, f, s }' "$log")
        p=$1 f=$2 s=$3
        grep -i '^ *skipped\?:' "$log" | sed "s/^/  /" || true
        if [ $status = 0 ] && [ "$f" = 0 ] && [ "$((p + s))" -gt 0 ]; then
                printf 'ok    %-34s %4d passed  %3ds\n' "$name" "$p" "$took"
        else
                [ "$f" -gt 0 ] || f=1
                printf 'FAIL  %-34s exit %d, %d passed, %d failed  %3ds  (%s)\n' "$name" $status "$p" "$f" "$took" "$log"
                tail -n 60 "$log" | sed 's/^/  | /'
                broken="$broken $name"
        fi
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
[ -z "$broken" ] || echo "failed:$broken"
if [ $skipped -gt 0 ]; then
        echo "$passed passed, $failed failed, $skipped skipped"
else
        echo "$passed passed, $failed failed"
fi
[ $failed = 0 ] && [ $passed -gt 0 ]
