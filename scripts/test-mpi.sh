#!/usr/bin/env bash
# Starts jobs with the real mpirun of Open MPI and of MPICH: `mpirun -n 4 millstream run …` gives the rows
# that one process gives; a job with --state goes on when a rank of it is killed. `scripts/test-mpi.sh --pool`
# starts those with a memory server alone. Where neither can be had the script says NOT RUN and why, and its
# status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the tests with mpirun"
only_pool=
[ "${1:-}" != --pool ] || only_pool=1

packages_or_not_run openmpi-bin mpich
build_millstream
one_process
trap 'rm -rf "$recovery"' EXIT

tried=0
if [ -z "$only_pool" ]; then
  recovery_begins
  say "building the tests of the transport"
  transport=$(cargo test --release --workspace --test mpi --no-run \
    --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made.get("target", {}).get("name") == "mpi":
        print(made["executable"])')
  [ -x "$transport" ] || die "the tests of the transport do not build"

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
    for exchange in merge shuffle uppar broadcast; do
      job_by "$exchange" >"$recovery/job.sql"
      one_process "$recovery/job.sql"
      for nodes in 2 3 4; do
        say "mpirun.$flavour, mpi, $nodes processes by $exchange"
        compare "$mpirun" "${options[@]/4/$nodes}" "$millstream" run "$query" --workers 1 --format csv --fabric mpi
        tried=$((tried + 1))
      done
    done
    one_process
    say "mpirun.$flavour, the conformance suite"
    MPI_TEST_DIRECTORY=$(mktemp -d)
    export MPI_TEST_DIRECTORY
    timeout -s KILL 600 "$mpirun" "${two[@]}" "$transport"
    rm -r "$MPI_TEST_DIRECTORY"
    say "mpirun.$flavour, SQL from standard input"
    compare "$mpirun" "${options[@]}" "$millstream" run - --format csv <"$query"
    say "mpirun.$flavour, wrong number of nodes"
    refuse "--nodes 3, but " "$mpirun" "${options[@]}" "$millstream" run "$query" --nodes 3
    run=("$millstream" run "$recovery/windows.sql" --state "$recovery/state" --workers 1)
    for fabric in shm tcp; do
      say "mpirun.$flavour, $fabric, a rank is killed and started again"
      recovers inside "$mpirun" "${options[@]}" "${run[@]}" --fabric "$fabric"
      tried=$((tried + 1))
    done
    say "mpirun.$flavour, mpi, a rank is killed and the job is run again"
    recovers again "$mpirun" "${options[@]}" "${run[@]}" --fabric mpi
    tried=$((tried + 1))
  done
fi

# --- a pool, whose server is outside of the world of MPI ------------------------------------------------
dir=$(mktemp -d)
export XDG_RUNTIME_DIR=$dir
"$millstream" memory --bytes 256MiB --listen 127.0.0.1:0 >"$dir/said" &
memory=$!
trap 'kill $memory 2>/dev/null || true; rm -rf "$dir" "$recovery"' EXIT
address=
for _ in $(seq 100); do
  address=$(sed -n 's/^memory server m0 at \([^ ]*\): .*/\1/p' "$dir/said")
  [ -z "$address" ] || break
  sleep 0.1
done
[ -n "$address" ] || die "the memory server does not start"
groups='SELECT k, count(*) AS c, sum(n) AS s FROM'
cat >"$dir/numbers.sql" <<'SQL'
CREATE TABLE numbers (n BIGINT)
WITH ('connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence');
SQL
{
  cat "$dir/numbers.sql"
  echo "$groups (SELECT n, n % 3000 AS k FROM numbers) GROUP BY k;"
} >"$dir/plain.sql"
one_process "$dir/plain.sql"
for flavour in openmpi mpich; do
  mpirun=$(command -v "mpirun.$flavour") || continue
  options=(-n 4)
  [ "$flavour" = mpich ] || options+=(--oversubscribe --bind-to none)
  [ "$flavour" = mpich ] || [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
  {
    cat "$dir/numbers.sql"
    echo "CREATE TABLE $flavour WITH ('connector' = 'pool') AS SELECT n, n % 3000 AS k FROM numbers;"
    echo "$groups $flavour GROUP BY k;"
  } >"$dir/load.sql"
  {
    echo "CREATE TABLE $flavour WITH ('connector' = 'pool');"
    echo "$groups $flavour GROUP BY k;"
  } >"$dir/pooled.sql"
  say "mpirun.$flavour, a pool is loaded, and read"
  timeout -s KILL 120 "$mpirun" "${options[@]}" "$millstream" run "$dir/load.sql" --fabric mpi \
    --pool "$address" --quiet >"$dir/loaded" || die "not loaded: $(cat "$dir/loaded")"
  for fabric in mpi tcp; do
    compare "$mpirun" "${options[@]}" "$millstream" run "$dir/pooled.sql" --format csv \
      --fabric "$fabric" --pool "$address"
    tried=$((tried + 1))
  done
  said=$("$mpirun" "${options[@]}" "$millstream" run "$dir/pooled.sql" --fabric mpi --pool "$address" \
    --pool-fabric mpi 2>&1) && die "the pool is read by mpi"
  grep -q 'memory servers are not read by mpi' <<<"$said" || die "mpi is refused otherwise: $said"
done
printf '\nmpirun: %s jobs gave the rows of one process\n' "$tried"
