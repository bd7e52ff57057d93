#!/bin/sh
# Test the members FIRST to FIRST + NUMBER - 1 with a command that reads parameters from stdin and prints a reward, and log the
# rewards: writer.sh RUN VERSION KEY0 KEY1 SIGMA THETA FIRST NUMBER LOG COMMAND…
set -eu
run=$1 version=$2 key0=$3 key1=$4 sigma=$5 theta=$6 first=$7 number=$8 log=$9
shift 9
member=$first
while [ "$member" -lt $((first + number)) ]; do
  reward=$("$(dirname "$0")/member" "$key0" "$key1" "$sigma" "$member" "$theta" | "$@")
  printf '{"run": "%s", "version": %s, "member": %s, "fitness": %s, "id": "%s"}\n' \
    "$run" "$version" "$member" "$reward" "shell-$$-$member" >> "$log"
  member=$((member + 1))
done
