# For scripts in the guest: a daemon with both devices, and workers that train digits through it.
# The script that sources this file sets $test to its name.
say() { echo "$test: $*"; }
fail() {
  echo "$test: $*" >&2
  tail -n 40 phubd.log ./*.err >&2
  exit 1
}
data=/usr/bin/digits.csv.gz
# Under emulation everything takes about twenty times as long, so the deadlines are longer too.
say "deadlines are 20 times those of a real host"

# Digits per worker and iteration. Emulated arithmetic takes most of the time of a training. The
# messages have the same size with any batch.
batch=${LONG:+16}
batch=${batch:-2}

# until_true SECONDS WHAT COMMAND...: waits until the command is true.
until_true() {
  local left=$(($1 * 10)) what=$2
  shift 2
  until "$@"; do
    left=$((left - 1))
    [ $left -gt 0 ] || fail "timed out waiting until $what"
    sleep .1
  done
}

# start_daemon OPTION...: sets phubd and endpoint.
devices=rxe0,rxe1
listen_port=0
start_daemon() {
  rm -f port
  phubd --listen "10.77.0.1:$listen_port" --data-listen 10.77.0.1:0 --insecure --cores 2 --pin off \
    --wait block --verbs on --verbs-devices $devices --liveness-timeout 40s --port-file port \
    "$@" 2>phubd.log &
  phubd=$!
  until_true 20 "phubd serves" test -s port
  endpoint="10.77.0.1:$(cat port)"
  export PHUB_ENDPOINT="$endpoint" PHUB_TIMEOUT=60s
}
stop_daemon() {
  kill -TERM $phubd
  wait $phubd || fail "phubd ended with status $?"
}

train() { phub-digits --quiet --data "$data" --world-size "$workers" --batch "$batch" "$@"; }
# start_workers JOB OPTION...: sets pids, in the order of ranks. The workers use $transport.
transport=verbs
start_workers() {
  local job=$1 rank=0
  shift
  pids=
  while [ $rank -lt "$workers" ]; do
    # Not through train(): $! must be the program's own pid, so that it can be killed.
    phub-digits --quiet --data "$data" --world-size "$workers" --endpoint "$endpoint" \
      --batch "$batch" --job "$job" --rank $rank --transport $transport --save "rank-$rank" "$@" \
      >"rank-$rank.out" 2>"rank-$rank.err" &
    pids="$pids $!"
    rank=$((rank + 1))
  done
}
wait_for_workers() {
  for pid in $pids; do wait "$pid" || fail "a worker failed"; done
}
# Checks that all ranks have the same parameters as a run without phub, bit by bit.
expect_identical() {
  local rank=0
  train --serial --save serial "$@" >serial.out || fail "the serial run failed"
  while [ $rank -lt "$workers" ]; do
    phub-digits compare "rank-$rank" serial || fail "rank $rank has other bits than the serial run"
    rank=$((rank + 1))
  done
}

# Asks for the daemon's counters. phubd closes connections that take seconds to send a request, as
# phubctl may in a guest on a busy host. Then the call is repeated.
ask_counters() {
  phubctl stats --all >stats.txt || phubctl stats --all >stats.txt
}
# known_counter NAME: prints the sum over all core loops, from the last answer.
known_counter() {
  awk -v name="phub_$1_total" '$1 == name { sum += $5 } END { print sum + 0 }' stats.txt
}
counter() {
  ask_counters && known_counter "$1"
}
rounds_are() {
  local rounds
  rounds=$(counter rounds) && [ "$rounds" -ge "$1" ]
}
