#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what was built into a minimal root, boots systemd in it (the host's /usr, read-only, and an /etc of its own),
# and runs a test program there as a service. Shows the program's output; exits with its status.
# Usage: container.sh PROGRAM. The program is run with --inside. GPUMEM_BUILD says where the build is.
# Where no container can be booted: "skipped: REASON", exit 0.
set -u
build=${GPUMEM_BUILD:-build}
program=$1
limit=${GPUMEM_CONTAINER_LIMIT:-150}

skip()
{
        echo "skipped: booted container: $*"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
}

# (Sanitizers need what the units forbid, ptrace for one; what runs in the units is tested with them elsewhere.)
if ldd "$program" | grep -Eq 'lib(asan|tsan|ubsan)'; then
        skip "sanitizers do not go together with the units' sandbox"
fi
[ "$(id -u)" = 0 ] || skip "this needs root"
if ! command -v systemd-nspawn >/dev/null 2>&1; then
        tools/deps.sh container >&2 || true
        command -v systemd-nspawn >/dev/null 2>&1 || skip "systemd-nspawn is not installed"
fi
init=/usr/lib/systemd/systemd
[ -x $init ] || init=/lib/systemd/systemd
[ -x $init ] || skip "systemd is not installed"
[ -L /bin ] || skip "/bin is not merged into /usr here"

root=$(mktemp -d "$(realpath "$build")/container-XXXXXX") || exit 1
chmod 755 "$root"
machine=gpumem-test-$$
# shellcheck disable=SC2317
cleanup()
{
        rm -rf "$root"
        rmdir "/run/systemd/nspawn/propagate/$machine" "/run/systemd/nspawn/unix-export/$machine" 2>/dev/null
}
trap cleanup EXIT
trap 'exit 1' INT TERM

cd "$root" && mkdir -p etc/systemd/system etc/gpumem usr var proc sys dev run tmp root test && cd - >/dev/null || exit 1
for name in bin sbin lib lib32 lib64 libx32; do
        [ ! -L /$name ] || cp -P /$name "$root/$name"
done
cp -L /etc/os-release "$root/etc/os-release"
: >"$root/etc/machine-id"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache "$root/etc/"
cp "$program" "$root/test/program"

make --no-print-directory -s install BUILD="$build" DESTDIR="$root/installed" PREFIX=/usr/local >"$root/install.log" 2>&1 || {
        cat "$root/install.log"
        echo "0 passed, 1 failed"
        exit 1
}
cat >"$root/etc/gpumem/gpumemd.conf" <<'END'
[gpumemd]
driver = simulated
driver_library = /usr/local/lib/libcuda-sim.so
log_level = debug
[device *]
watermark_low = 2
watermark_high = 4
[simulator]
memory = 64M
END

# Impatient, so that the test is short.
mkdir -p "$root/etc/systemd/system/gpumemd.service.d"
cat >"$root/etc/systemd/system/gpumemd.service.d/test.conf" <<'END'
[Service]
WatchdogSec=4s
TimeoutAbortSec=5s
LimitCORE=0
END
cat >"$root/etc/systemd/system/gpumem-test.target" <<'END'
[Unit]
Requires=basic.target
After=basic.target
Wants=gpumem-test.service
END
cat >"$root/etc/systemd/system/gpumem-test.service" <<'END'
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStartPre=/bin/touch /test/booted
ExecStart=/test/program --inside
StandardOutput=file:/test/output
StandardError=file:/test/output
ExecStopPost=/bin/sh -c 'journalctl --no-pager -o short-precise >/test/journal; [ "$EXIT_STATUS" = 0 ] && touch /test/succeeded; systemctl --no-block exit 0'
END

# (Which devices a service may open is decided by a BPF program that systemd loads.)
nspawn()
{
        timeout -k 10 "$limit" systemd-nspawn --quiet --register=no --keep-unit --private-network --capability=CAP_BPF --system-call-filter=bpf --machine="$machine" \
                --directory="$root" --bind-ro=/usr --bind-ro="$root/installed/usr/local:/usr/local" "$@" </dev/null >"$root/console" 2>&1
}

# One cgroup hierarchy, as systemd has it by itself today, also where the host still has several.
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
nspawn /bin/true || unset SYSTEMD_NSPAWN_UNIFIED_HIERARCHY
nspawn /bin/true || skip "systemd-nspawn does not work here: $(tail -n 1 "$root/console")"
nspawn --boot -- systemd.unit=gpumem-test.target
[ -e "$root/test/booted" ] || skip "systemd does not boot here: $(tail -n 1 "$root/console")"
cat "$root/test/output"
[ ! -e "$root/test/succeeded" ] || exit 0
echo "--- the container's journal:"
tail -n "${GPUMEM_CONTAINER_JOURNAL:-150}" "$root/test/journal"
exit 1
