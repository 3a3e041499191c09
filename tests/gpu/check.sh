#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a GPU can say, in under three minutes: how the real driver differs from the simulator, how long its memory
# calls take, whether exported memory outlives its exporter, when a killed process's memory is back, and the daemon
# with clients on it. One JSON, to $OUT/gpu-check.json where OUT is set, else to tests/gpu/results/DATE-CARD.json.
#
#   tests/gpu/check.sh [--driver cuda|simulated|PATH] [--bin DIR] [--out FILE] [--quick]
#
# --quick measures few sizes, few times: for trying out the script.
# Needs the built programs: --bin, or bin/ beside this script (tests/gpu/bundle.sh makes that), or $GPUMEM_BUILD (build).
# With --driver simulated it tries itself out; the JSON says so, and no file of results is written.
set -u
here=$(cd "$(dirname "$0")" && pwd)
driver=cuda bin="" out="" quick=""
while [ $# -gt 0 ]; do
        case $1 in
        --driver) driver=$2 && shift 2 ;;
        --bin) bin=$2 && shift 2 ;;
        --out) out=$2 && shift 2 ;;
        --quick) quick=quick && shift ;;
        *) sed -n '3,12s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
        esac
done
if [ -z "$bin" ]; then
        if [ -d "$here/bin" ]; then bin=$here/bin; else bin=${GPUMEM_BUILD:-build}; fi
fi
bin=$(cd "$bin" && pwd) || exit 2
for program in cuda-conformance gpu-check gpumemd gpumemctl; do
        [ -x "$bin/$program" ] || { echo "check.sh: there is no $bin/$program: make build tests" >&2 && exit 2; }
done
[ ! -d "$bin/../lib" ] || export LD_LIBRARY_PATH="$bin/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export GPUMEM_SIM_LIBRARY="$bin/libcuda-sim.so"
unset GPUMEM_BUILD GPUMEM_SIM_DIR

work=$(mktemp -d "${TMPDIR:-/tmp}/gpumem-gpu-check.XXXXXX") || exit 2
machine=$(mktemp -d /dev/shm/gpumem-gpu-check.XXXXXX) || exit 2
daemon="" clients="" failed=""
# Processes of ours by program name: those that name our directory.
pids_of() {
        for file in $(grep -la "$work/" /proc/[0-9]*/cmdline 2>/dev/null); do
                case $(tr '\0' ' ' 2>/dev/null <"$file") in
                */gpumemd-keeper\ *) [ "$1" != gpumemd-keeper ] || basename "${file%/cmdline}" ;;
                */"$1 "*) basename "${file%/cmdline}" ;;
                esac
        done
}
cleanup() {
        for pid in $clients; do kill -KILL "$pid" 2>/dev/null; done
        [ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null
        for pid in $(pids_of gpumemd) $(pids_of gpumemd-keeper); do kill -TERM "$pid" 2>/dev/null; done
        rm -rf "$work" "$machine"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
trap '' PIPE # a client that is gone is a finding, not our end
start=$(date +%s)
say() { printf '%3ds  %s\n' $(($(date +%s) - start)) "$*" >&2; }
fail() {
        failed="$failed $1"
        say "FAILED: $1"
}
quoted() { printf '"%s"' "$(printf '%s' "$1" | tr -d '"\\' | tr '\n\t' '  ')"; }

# part NAME SECONDS COMMAND...: its JSON goes to work/NAME.json
part() {
        name=$1 limit=$2
        shift 2
        say "$name"
        timeout -k 5 "$limit" "$@" >"$work/$name.json" 2>"$work/$name.err" || fail "$name"
        [ -s "$work/$name.json" ] || echo '{"error":"no answer"}' >"$work/$name.json"
}

# The machine that gpu-check and the daemon use when the driver is simulated.
export GPUMEM_SIM_DIR="$machine" GPUMEM_SIM_MEMORY=1G
part device 30 "$bin/gpu-check" "$driver" device
card=$(sed -n 's/.*"card":"\([^"]*\)".*/\1/p' "$work/device.json")
if [ -z "$card" ]; then
        echo "check.sh: no device: $(cat "$work/device.err" "$work/device.json")" >&2
        exit 1
fi
simulated=$(sed -n 's/.*"simulated":\([a-z]*\).*/\1/p' "$work/device.json")

# --- conformance, and every difference from the simulator -----------------------------------------------------------
# Each suite on a machine of its own.
say "conformance"
(unset GPUMEM_SIM_DIR && timeout -k 5 30 "$bin/cuda-conformance" --driver simulated --notes) >"$work/simulator.notes" ||
        fail conformance-simulator
(unset GPUMEM_SIM_DIR && timeout -k 5 90 "$bin/cuda-conformance" --driver "$driver" --json) >"$work/conformance.json" ||
        fail conformance
[ -s "$work/conformance.json" ] || echo '{"error":"no answer"}' >"$work/conformance.json"
# The steps back out of the JSON, one test a line: test TAB step TAB seen.
awk '/^ \{"test":/ {
        match($0, /"test":"[^"]*"/); test = substr($0, RSTART + 8, RLENGTH - 9)
        match($0, /"steps":\[.*\],"complaints"/); rest = substr($0, RSTART + 9, RLENGTH - 22)
        while (match(rest, /\["([^"\\]|\\.)*","([^"\\]|\\.)*"\]/)) {
                pair = substr(rest, RSTART + 2, RLENGTH - 4); rest = substr(rest, RSTART + RLENGTH)
                split(pair, part, "\",\""); printf "%s\t%s\t%s\n", test, part[1], part[2]
        } }' "$work/conformance.json" >"$work/driver.notes"
awk -F '\t' '
        function out(test, step, simulator, other) {
                printf "%s\n  {\"test\":\"%s\",\"step\":\"%s\",\"simulator\":\"%s\",\"driver\":\"%s\"}", n++ ? "," : "",
                       test, step, simulator, other
        }
        { count[FILENAME, $1, $2]++; key = $1 SUBSEP $2 SUBSEP count[FILENAME, $1, $2] }
        FILENAME == first { seen[key] = $3; order[++steps] = key; next }
        { other[key] = $3; if (!(key in seen)) order[++steps] = key }
        END {
                printf "["
                for (i = 1; i <= steps; i++) {
                        split(order[i], k, SUBSEP)
                        a = order[i] in seen ? seen[order[i]] : "(not reached)"
                        b = order[i] in other ? other[order[i]] : "(not reached)"
                        if (a != b) out(k[1], k[2], a, b)
                }
                printf "]\n"
        }' first="$work/simulator.notes" "$work/simulator.notes" "$work/driver.notes" >"$work/differences.json"

# --- latency, processes ---------------------------------------------------------------------------------------------
part latency 60 "$bin/gpu-check" "$driver" latency $quick
part outlive 60 "$bin/gpu-check" "$driver" outlive
part kill 120 "$bin/gpu-check" "$driver" kill $quick
part kernels 30 "$bin/gpu-check" "$driver" kernels

# --- the daemon with two processes ----------------------------------------------------------------------------------
say "daemon"
mib=512
kind=$driver extra=""
case $driver in
cuda) ;;
simulated) mib=64 ;;
*) if [ "$simulated" = true ]; then kind=simulated mib=64; else kind=cuda; fi
   extra="driver_library = $(realpath "$driver")" ;;
esac
cat >"$work/gpumemd.conf" <<EOF
[gpumemd]
client_socket = $work/client.sock
admin_socket = $work/admin.sock
driver = $kind
$extra
debug = yes
EOF
ctl() { timeout 20 "$bin/gpumemctl" --socket "$work/admin.sock" "$@"; }
wait_for() { # SECONDS COMMAND...
        end=$(($(date +%s) + $1))
        shift
        until "$@" >/dev/null 2>&1; do
                [ "$(date +%s)" -lt $end ] || return 1
                sleep 0.05
        done
}
# start_client NAME: a client that answers on work/NAME.json, line by line, to lines on descriptor $2
start_client() {
        mkfifo "$work/$1.in"
        "$bin/gpu-check" "$driver" client "$work/client.sock" "$mib" <"$work/$1.in" >"$work/$1.out" 2>"$work/$1.err" &
        clients="$clients $!"
        eval "pid_$1=$!"
}
lines() { [ "$(wc -l <"$work/$1.out")" -ge "$2" ]; }
good() { lines "$1" "$2" && [ "$(grep -c '"wrong_bytes":0,' "$work/$1.out")" -ge "$2" ]; }
# client_says NAME N: it answered N times that its bytes are right; false as soon as it is gone without.
client_says() {
        eval "client=\$pid_$1"
        end=$(($(date +%s) + 40))
        while [ -e "/proc/$client/exe" ] && [ "$(date +%s)" -lt $end ]; do
                good "$1" "$2" && return 0
                sleep 0.05
        done
        good "$1" "$2"
}
step() { # NAME WORD: a step of the daemon's part, into its JSON
        steps="$steps${steps:+,}\"$1\":$2"
        [ "$2" = true ] || fail "daemon:$1"
}
held() { if "$@"; then echo true; else echo false; fi; }
daemon_pid() { pids_of gpumemd | head -n 1; }

steps="" status_json='{}' meminfo_json='{}'
setsid "$bin/gpumemd" --config "$work/gpumemd.conf" 2>"$work/gpumemd.log" </dev/null &
daemon=$!
step started "$(held wait_for 30 ctl status)"
status_json=$(ctl status --json 2>/dev/null) || status_json='{}'
start_client a && exec 3>"$work/a.in"
start_client b && exec 4>"$work/b.in"
step two_clients_filled "$(held client_says a 1)"
step second_filled "$(held client_says b 1)"
meminfo_json=$(ctl meminfo --json 2>/dev/null) || meminfo_json='{}'
kill -KILL "$pid_a" 2>/dev/null
before_ms=$(date +%s%3N)
free_again() { ctl ps --json 2>/dev/null | grep -q '"sessions"' && [ "$(ctl ps --json 2>/dev/null | grep -o '"pid"' | wc -l)" -le 1 ]; }
step killed_client_gone "$(held wait_for 20 free_again)"
gone_ms=$(($(date +%s%3N) - before_ms))
{ echo check >&4; } 2>/dev/null
step neighbour_unharmed "$(held client_says b 2)"
start_client c && exec 5>"$work/c.in"
step its_memory_given_again "$(held client_says c 1)"
step books_balance "$(held wait_for 20 ctl debug check)"
# The daemon is killed: its keeper starts another, clients keep what they have.
old=$(daemon_pid)
kill -KILL "$old" 2>/dev/null
another_daemon() { ctl status && new=$(daemon_pid) && [ -n "$old" ] && [ -n "$new" ] && [ "$new" != "$old" ]; }
step daemon_restarted "$(held wait_for 40 another_daemon)"
{ echo check >&4; } 2>/dev/null
step memory_outlives_the_daemon "$(held client_says b 3)"
step books_balance_again "$(held wait_for 20 ctl debug check)"
exec 3>&- 4>&- 5>&-
last=$(daemon_pid)
for pid in $clients; do wait "$pid" 2>/dev/null; done
clients=""
for pid in $last; do kill -TERM "$pid" 2>/dev/null; done
[ -z "$last" ] || wait_for 10 sh -c "! kill -0 $last" || true
keeper=$(pids_of gpumemd-keeper)
for pid in $keeper; do kill -TERM "$pid" 2>/dev/null; done
daemon=""
errors=$(tail -n 3 "$work/gpumemd.log" 2>/dev/null)

# --- one JSON -------------------------------------------------------------------------------------------------------
seconds=$(($(date +%s) - start))
if [ -z "$out" ]; then
        name=$(printf '%s' "$card" | tr -c 'A-Za-z0-9\n' '-' | tr -s '-' | sed 's/-$//')
        if [ -n "${OUT:-}" ]; then
                out=$OUT/gpu-check.json
        elif [ "$simulated" = true ]; then
                out=$work/simulated.json
        else
                mkdir -p "$here/results"
                out=$here/results/$(date -u +%Y-%m-%d)-$name.json
        fi
fi
{
        printf '{"check":"gpu","date":"%s","driver":' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        quoted "$driver"
        printf ',"simulated":%s,\n"device":%s,\n"nvidia_smi":' "$simulated" "$(cat "$work/device.json")"
        quoted "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)"
        printf ',"nvcc":'
        quoted "$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
        printf ',"kernel":'
        quoted "$(uname -r)"
        printf ',\n"seconds":%d,"failed":[' "$seconds"
        comma=""
        for name in $failed; do printf '%s"%s"' "$comma" "$name" && comma=,; done
        printf '],\n"differences":%s,\n"latency":%s,\n"outlive":%s,\n"kill":%s,\n"kernels":%s,\n' "$(cat "$work/differences.json")" \
                "$(cat "$work/latency.json")" "$(cat "$work/outlive.json")" "$(cat "$work/kill.json")" "$(cat "$work/kernels.json")"
        printf '"daemon":{"steps":{%s},"mib_each":%d,"killed_client_gone_ms":%d,"status":%s,"meminfo":%s,"log":' "$steps" \
                "$mib" "$gone_ms" "$status_json" "$meminfo_json"
        quoted "$errors"
        printf '},\n"conformance":%s}\n' "$(cat "$work/conformance.json")"
} >"$out"
if [ "$simulated" = true ] && [ "$out" = "$work/simulated.json" ]; then
        cat "$out"
else
        say "$out"
fi
differences=$(grep -c '"simulator":' "$work/differences.json")
say "$card: ${failed:-nothing} failed, $differences differences from the simulator, $seconds s"
[ -z "$failed" ]
