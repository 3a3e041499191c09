#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Format check, cppcheck and clang-tidy over the tracked C sources. Says every finding; exits 1 if there is one.
set -u
tools/deps.sh build lint || exit 1

status=0
files=$(git ls-files '*.c' '*.h')

echo "lint: clang-format"
# shellcheck disable=SC2086
clang-format --dry-run -Werror $files || status=1

defines="-D_GNU_SOURCE -DGPUMEM_VERSION=\"lint\" -DGPUMEM_SYSCONFDIR=\"/etc\""
echo "lint: cppcheck"
# shellcheck disable=SC2086
cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr -j 2 \
        --suppress=missingInclude --suppress=missingIncludeSystem --suppressions-list=tools/cppcheck.supp \
        $defines -Iinclude -I. $(git ls-files 'daemon/*.c' 'libclient/*.c' 'kernels/*.c' 'tools/*.c') || status=1

echo "lint: clang-tidy"
flags="-std=gnu11 -Iinclude -I. $defines $(pkg-config --cflags libsystemd json-c inih)"
# One process per file, two at a time; kernels get the instruction set that their name promises.
# shellcheck disable=SC2086
git ls-files 'daemon/*.c' 'libclient/*.c' 'kernels/*.c' 'tools/*.c' | xargs -P 2 -n 4 sh -c '
        flags=$0
        for file; do
                isa=""
                case "$file" in
                *_avx512.c) isa="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c" ;;
                *_avx2.c) isa="-mavx2 -mfma -mf16c" ;;
                esac
                clang-tidy --quiet "$file" -- $flags $isa 2>/tmp/lint-tidy.$$ || { cat /tmp/lint-tidy.$$; rm -f /tmp/lint-tidy.$$; exit 1; }
                rm -f /tmp/lint-tidy.$$
        done' "$flags" || status=1

[ $status = 0 ] && echo "lint: clean"
exit $status
