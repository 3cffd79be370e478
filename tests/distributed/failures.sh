#!/bin/sh
# failures.sh <start> -- <sash_failing_rank>: fails one rank of two in each way, with `start` as the
# command that starts two processes. Checks that all end within 15 s, with a status other than 0 and
# one line of sash that names the rank.
set -u
start=""
while [ "$1" != "--" ]; do start="$start $1"; shift; done
program=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for rank in 0 1; do
  for how in throw status kill stop leave; do
    begin=$(date +%s)
    # shellcheck disable=SC2086  # a command with arguments
    SASH_TIMEOUT=3 timeout -s KILL 30 $start "$program" "$how" "$rank" >"$log" 2>&1
    status=$?
    seconds=$(($(date +%s) - begin))
    lines=$(grep -c "^sash: rank $rank of 2 " "$log")
    printf '%s of rank %s: status %s after %s s: %s\n' "$how" "$rank" "$status" "$seconds" \
      "$(grep "^sash: rank" "$log")"
    if [ "$status" -eq 0 ] || [ "$seconds" -gt 15 ] || [ "$lines" -ne 1 ]; then
      cat "$log"
      failed=1
    fi
  done
done
exit $failed
