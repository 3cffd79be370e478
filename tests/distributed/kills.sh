#!/bin/sh
# kills.sh <kills> <start> -- <sash_killed_training> <device>: trains on two ranks, with `start` as the
# command that starts them, kills one rank at a random moment, and goes on from the last checkpoint,
# <kills> times. Checks that all ranks end within 10 s, and that losses and the last checkpoint have
# the bits of a training that nobody killed.
set -u
kills=$1
shift
start=""
while [ "$1" != "--" ]; do start="$start $1"; shift; done
program=$2
device=$3
steps=120
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# train <run> <log>
train() {
  # shellcheck disable=SC2086  # a command with arguments
  $start "$program" "$folder/$1" $steps "$folder/$2" "$device"
}

# The ranks of the run.
ranks() {
  for process in /proc/[0-9]*; do
    words=$({ tr "\\0" " " <"$process/cmdline"; } 2>/dev/null)
    case $words in "$program $folder/run "*) echo "${process#/proc/}" ;; esac
  done
}

begin=$(date +%s%N)
train whole whole.log || exit 1
span=$((($(date +%s%N) - begin) / 1000000))
done=0
while [ "$done" -lt "$kills" ]; do
  rm -rf "$folder/run"
  train run run.log 2>"$folder/errors" &
  running=$!
  wait_ms=$((span / 5 + $(od -An -N2 -tu2 /dev/urandom) % (span * 4 / 5 + 1)))
  sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
  victim=$(ranks | shuf -n 1)
  if [ -z "$victim" ]; then
    span=$((span / 2))  # the first run was slow, as on a busy machine
  elif kill -9 "$victim"; then
    done=$((done + 1))
  fi
  seconds=0
  while [ "$seconds" -lt 100 ] && [ -n "$(ranks)" ]; do
    sleep 0.1
    seconds=$((seconds + 1))
  done
  if [ "$seconds" -ge 100 ]; then
    echo "kills: a rank still runs 10 s after the kill"
    exit 1
  fi
  wait "$running"
  train run run.log || exit 1
  if ! cmp "$folder/whole/best.safetensors" "$folder/run/best.safetensors" ||
    ! cmp "$folder"/whole/step-*$steps.safetensors "$folder"/run/step-*$steps.safetensors; then
    echo "kills: other bits after kill $done"
    exit 1
  fi
done
sort -u "$folder/whole.log" >"$folder/a"
sort -u "$folder/run.log" >"$folder/b"
cmp "$folder/a" "$folder/b" || exit 1
echo "kills: $done of $kills, the same bits"
