#!/usr/bin/env bash
# Starts jobs with the real mpirun of Open MPI and of MPICH: `mpirun -n 4 millstream run …` gives the rows
# that one process gives. Where neither can be had the script says NOT RUN and why, and its status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the tests with mpirun"

packages_or_not_run openmpi-bin mpich
build_millstream
one_process

say "building the tests of the transport"
transport=$(cargo test --release --workspace --test mpi --no-run \
  --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made.get("target", {}).get("name") == "mpi":
        print(made["executable"])')
[ -x "$transport" ] || die "the tests of the transport do not build"

tried=0
for flavour in openmpi mpich; do
  mpirun=$(command -v "mpirun.$flavour") || continue
  options=(-n 4)
  # It refuses root, and more processes than cores, unless asked.
  [ "$flavour" = mpich ] || options+=(--oversubscribe --bind-to none)
  [ "$flavour" = mpich ] || [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
  two=("${options[@]/4/2}")
  for fabric in shm tcp mpi; do
    say "mpirun.$flavour, $fabric"
    compare "$mpirun" "${options[@]}" "$millstream" run "$query" --format csv --fabric "$fabric"
    tried=$((tried + 1))
  done
  say "mpirun.$flavour, the conformance suite"
  MPI_TEST_DIRECTORY=$(mktemp -d)
  export MPI_TEST_DIRECTORY
  timeout -s KILL 600 "$mpirun" "${two[@]}" "$transport"
  rm -r "$MPI_TEST_DIRECTORY"
  say "mpirun.$flavour, SQL from standard input"
  compare "$mpirun" "${options[@]}" "$millstream" run - --format csv <"$query"
  say "mpirun.$flavour, wrong number of nodes"
  refuse "--nodes 3, but " "$mpirun" "${options[@]}" "$millstream" run "$query" --nodes 3
done
printf '\nmpirun: %s jobs gave the rows of one process\n' "$tried"
