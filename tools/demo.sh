#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job, shown and checked: two inference engines on one simulated GPU that is too small for the
# static reservation of either, both producing exactly what an engine without paging produces; then one of two
# is killed half-way, its memory comes back, and the other finishes untouched; then the daemon itself is killed under
# both, again and again, and they write the same text. Exit 0 only if all of it held.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${GPUMEM_BUILD:-build}
model=tests/data/tinylm-f16.gguf
prompts=tests/data/prompts.txt
device_memory=48M
max_sequences=16
max_sequence_tokens=2048
new_tokens=${GPUMEM_DEMO_TOKENS:-48}

work=$(mktemp -d "${TMPDIR:-/tmp}/gpumem-demo.XXXXXX")
export GPUMEM_SOCKET="$work/client.sock" GPUMEM_ADMIN_SOCKET="$work/admin.sock" GPUMEM_DRIVER=simulated
export GPUMEM_SIM_DIR="/dev/shm/gpumem-demo.$$" GPUMEM_SIM_MEMORY=$device_memory
daemon=""
engines=()
held=0 failed=0

cleanup() {
        for pid in ${engines[@]+"${engines[@]}"}; do kill -KILL "$pid" 2>/dev/null || true; done
        [ -z "$daemon" ] || { kill -TERM "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
        rm -rf "$work" "$GPUMEM_SIM_DIR"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '%s\n' "$*"; }
bold="" dim="" plain=""
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then
        bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
fi
title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
# check DESCRIPTION COMMAND...: one claim of the demo.
check() {
        local what=$1
        shift
        if "$@" >"$work/check.log" 2>&1; then
                held=$((held + 1))
                say "  [held]   $what"
        else
                failed=$((failed + 1))
                say "  [FAILED] $what"
                sed 's/^/           /' "$work/check.log"
        fi
}
mib() { awk -v b="$1" 'BEGIN { printf "%.1f MiB", b / 1048576 }'; }
ctl() { "$build/gpumemctl" "$@"; }
# What engines hold now, those included whose connection is closed and whose process may still live.
granted() { ctl meminfo --json | jq '[.devices[].bytes | .granted + .draining] | add'; }
sessions() { ctl ps --json | jq '.sessions | length'; }
total() { jq ".totals.$2" "$work/$1.json"; } # total ENGINE KEY
# wait_until SECONDS COMMAND...: polls every 20 ms.
wait_until() {
        local end=$(($(date +%s%N) + $1 * 1000000000))
        shift
        until "$@"; do
                [ "$(date +%s%N)" -lt "$end" ] || return 1
                sleep 0.02
        done
}
engine() { # engine NAME ARGUMENTS...: in the background
        local name=$1
        shift
        "$build/gpumem-gen" --model "$model" --prompts "$prompts" --name "$name" --max-sequences $max_sequences \
                --max-sequence-tokens $max_sequence_tokens --max-new-tokens "$new_tokens" --threads 1 \
                --json "$work/$name.json" "$@" >"$work/$name.txt" 2>"$work/$name.log" &
        engines+=($!)
}
test_nothing_granted() { [ "$(granted)" = 0 ]; }
reap() { wait "$1" 2>/dev/null || return $?; }

# --- the machine ----------------------------------------------------------------------------------
title "A simulated GPU of $device_memory, and gpumemd on it"
cat >"$work/gpumemd.conf" <<EOF
[gpumemd]
client_socket = $GPUMEM_SOCKET
admin_socket = $GPUMEM_ADMIN_SOCKET
driver = simulated
[device *]
frame_size = 2M
watermark_low = 2
watermark_high = 4
[simulator]
directory = $GPUMEM_SIM_DIR
memory = $device_memory
EOF
"$build/gpumemd" --config "$work/gpumemd.conf" 2>"$work/gpumemd.log" &
daemon=$!
is_up() { ctl status >/dev/null 2>&1; }
# What was started is the keeper; the daemon is its child, this one or another.
daemon_process() { awk '{ print $1 }' "/proc/$daemon/task/$daemon/children"; }
if ! wait_until 20 is_up; then
        say "gpumemd did not start:"
        cat "$work/gpumemd.log"
        exit 1
fi
ctl status
first_daemon=$(daemon_process)
managed=$(ctl status --json | jq '.devices[0].managed_bytes')

# --- what is right --------------------------------------------------------------------------------
title "The reference: one prompt at a time on a plain contiguous cache, no daemon, no pages"
engine reference --reference --quiet
check "the reference run finished" reap "${engines[0]}"
engines=()
count=$(jq '.prompts | length' "$work/reference.json")
say "  $count prompts of $(jq '[.prompts[].prompt_tokens] | min' "$work/reference.json") to" \
        "$(jq '[.prompts[].prompt_tokens] | max' "$work/reference.json") tokens, $(total reference generated_tokens) tokens generated"

# --- two engines at once ---------------------------------------------------------------------------
title "Two engines, one GPU, at the same time"
engine north --expect "$work/reference.json"
engine south --expect "$work/reference.json"
peak=0 together=0
while kill -0 "${engines[0]}" 2>/dev/null || kill -0 "${engines[1]}" 2>/dev/null; do
        now=$(granted 2>/dev/null || echo 0)
        [ "$now" -le "$peak" ] || peak=$now
        [ "$together" -ge 2 ] || together=$(sessions 2>/dev/null || echo 0)
        if [ "$together" -ge 2 ] && [ ! -e "$work/ps" ]; then ctl ps >"$work/ps"; fi
        sleep 0.1
done
check "engine north: every token equals the reference's" reap "${engines[0]}"
check "engine south: every token equals the reference's" reap "${engines[1]}"
engines=()
cp "$work/north.txt" "$work/before.txt"
check "both were connected at the same time" test "$together" -ge 2
[ ! -e "$work/ps" ] || { say; sed 's/^/  /' "$work/ps"; }

static=$(total north static_reservation_bytes)
used=$(($(total north granted_bytes_peak) + $(total south granted_bytes_peak)))
title "The arithmetic"
say "  $(total north token_bytes) bytes of keys and values a token; $max_sequences sequences of at most $max_sequence_tokens tokens an engine"
say "  static reservation   $(mib "$static") an engine, $(mib $((2 * static))) for both"
say "  the device           $(mib "$managed") managed by gpumemd, weights and activations included"
say "  used for KV          $(mib "$used") at the peaks of both ($(awk -v a=$((2 * static)) -v b="$used" 'BEGIN { printf "%.1f", a / b }') times less)"
say "  granted in all       $(mib "$peak") at most, seen while both ran"
say "  at the peak north held $(total north tokens_peak) tokens of $(total north sequences_peak) sequences in $(total north pages_used_peak) pages; preemptions: $(total north preemptions) north, $(total south preemptions) south"
check "not even one static reservation would fit" test "$static" -gt "$managed"
check "both engines together stayed within the device" test "$peak" -le "$managed"

title "What they wrote (engine north)"
jq -r --arg dim "$dim" --arg plain "$plain" '.prompts[] | select(.prompt_tokens < 30) | "  \(.prompt)\($dim)\(.text | gsub("\n"; " "))\($plain)"' "$work/north.json" | sed -n 1,6p

# --- a crash ---------------------------------------------------------------------------------------
title "One engine is killed half-way"
check "nothing is held before" wait_until 5 test_nothing_granted
half=$(($(total north generated_tokens) / 2))
engine victim --progress 32 --step-delay-ms 5
engine survivor --expect "$work/reference.json" --step-delay-ms 5
is_half_way() { [ "$(sed -n 's/.*progress: \([0-9]*\) tokens.*/\1/p' "$work/victim.log" | tail -n 1)" -ge "$half" ] 2>/dev/null; }
check "the victim got half-way ($half tokens)" wait_until 120 is_half_way
ctl ps | sed 's/^/  /'
victim_bytes=$(ctl ps --json | jq '[.sessions[] | select(.engine == "victim") | .bytes] | add // 0')
start=$(date +%s%N)
kill -KILL "${engines[0]}"
victim_gone() { [ "$(ctl ps --json | jq '[.sessions[] | select(.engine == "victim")] | length')" = 0 ]; }
check "the victim's $(mib "$victim_bytes") are the daemon's again" wait_until 5 victim_gone
say "           after $((($(date +%s%N) - start) / 1000000)) ms, the asking included"
check "the victim held memory when it died" test "$victim_bytes" -gt 0
reap "${engines[0]}" || true
ctl ps | sed 's/^/  /'
check "the survivor finished, every token equal to the reference's" reap "${engines[1]}"
engines=()
check "all memory is back" wait_until 5 test_nothing_granted
check "gpumemctl debug check: everything adds up" ctl debug check
is_same() { [ "$(daemon_process)" = "$first_daemon" ]; }
check "the daemon is still the same process" is_same

# --- the daemon itself -----------------------------------------------------------------------------
title "The daemon is killed under both engines"
engine north --expect "$work/reference.json" --step-delay-ms 5
engine south --expect "$work/reference.json" --step-delay-ms 5
two_at_work() { [ "$(sessions 2>/dev/null || echo 0)" -ge 2 ] && [ "$(granted 2>/dev/null || echo 0)" -gt 0 ]; }
check "both engines are at work" wait_until 30 two_at_work
kills=0
while [ "$kills" -lt 5 ]; do
        last=$(daemon_process)
        kill -KILL "$last"
        is_another() { [ -n "$(daemon_process)" ] && [ "$(daemon_process)" != "$last" ] && is_up; }
        start=$(date +%s%N)
        wait_until 10 is_another || break
        kills=$((kills + 1))
        say "           process $last killed, process $(daemon_process) answers after $((($(date +%s%N) - start) / 1000000)) ms, the asking included"
        kill -0 "${engines[0]}" 2>/dev/null && kill -0 "${engines[1]}" 2>/dev/null || break
        sleep 0.3
done
check "five daemons were killed and five took over" test "$kills" -eq 5
check "both engines are still at work" kill -0 "${engines[@]}"
ctl ps | sed 's/^/  /'
check "engine north: every token equals the reference's" reap "${engines[0]}"
check "engine south: every token equals the reference's" reap "${engines[1]}"
engines=()
is_same_text() { cmp "$work/north.txt" "$work/before.txt" && cmp "$work/south.txt" "$work/before.txt"; }
check "the text of both is, byte for byte, the one from before" is_same_text
check "all memory is back" wait_until 5 test_nothing_granted
check "gpumemctl debug check: everything adds up" ctl debug check
kill -TERM "$daemon"
check "the daemon stopped cleanly" reap "$daemon"
daemon=""

title "Summary"
say "  $held claims held, $failed failed"
[ "$failed" = 0 ]
