# shellcheck shell=bash disable=SC2034,SC2154
# Functions of the tests with real launchers. Sourced behind env.sh and apt.sh; needs `what`.

# The directory of the recovery cases, which the sourcing script removes at its end.
recovery=

build_millstream() {
  millstream=$CARGO_TARGET_DIR/release/millstream
  [ -n "${MILLSTREAM_BUILT:-}" ] || cargo build --release --workspace --bin millstream "$@"
  [ -x "$millstream" ] || die "$millstream was not built"
}

# Sets $query, and $expected to the rows that one process gives for it: `one_process [QUERY]`.
one_process() {
  query=${1:-examples/flights.sql}
  expected=$("$millstream" run "$query" --nodes 1 --workers 1 --format csv --quiet | sort)
  [ "$(wc -l <<<"$expected")" -gt 1000 ] || die "$query gives too few rows"
}

# The job whose rows are the same by every exchange: `job_by merge|shuffle|uppar|broadcast`.
job_by() {
  local job=tests/exchanges/exchanges.sql
  # The groups of a broadcast join are shuffled.
  echo "SET millstream.exchange = '${1/broadcast/shuffle}';"
  if [ "$1" = broadcast ]; then cat "$job"; else sed 's|/[*]+[^*]*[*]/||' "$job"; fi
}

# Runs a command whose rows have to be those of one process.
compare() {
  local rows
  rows=$(timeout -s KILL 120 "$@" | sort) || die "failed: $*"
  [ "$rows" = "$expected" ] ||
    die "$(wc -l <<<"$rows") other rows than those of one process: $*"
}

# Runs a command that has to fail with a message, said once.
refuse() {
  local message=$1 said
  shift
  if said=$(timeout -s KILL 120 "$@" </dev/null 2>&1); then die "did not fail: $*"; fi
  [ "$(grep -c -F -- "error: $message" <<<"$said")" = 1 ] || die "not '$message' once, but: $said"
}

# Writes the query of the recovery cases, windows of rows at a rate: `recovery_query DIR RATE`. RATE is an option
# with its comma, or empty. The job publishes into DIR/out.
recovery_query() {
  cat >"$1/windows.sql" <<SQL
SET 'millstream.checkpoint' = '100 ms';
CREATE TABLE bids (
  ts TIMESTAMP(3), auction BIGINT, price BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator', 'rows' = '60000', $2 'interval' = '10ms',
  'fields.auction.max' = '99', 'fields.price.max' = '1000000');
CREATE TABLE written (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT)
  WITH ('connector' = 'file', 'path' = '$1/out/', 'format' = 'csv');
INSERT INTO written SELECT window_start, auction, count(*), sum(price)
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction;
SQL
}

# The rows of the files of a directory, sorted, without their headers.
written_rows() {
  local file
  for file in "$1"/out/*; do tail -n +2 "$file"; done | sort
}

# Whether the job has published rows.
has_rows() { [ -n "$(ls "$recovery/out" 2>/dev/null)" ]; }

# Waits until a command succeeds, for some five minutes: `await_job WHAT COMMAND...`.
await_job() {
  local awaited=$1 tries
  shift
  for tries in $(seq 3000); do
    ! "$@" || return 0
    sleep 0.1
  done
  die "no $awaited: $(cat "$recovery/log")"
}

# Compares the rows of a job that has gone on from a checkpoint with those of one process: `went_on JOB`.
went_on() {
  grep -q 'goes on from checkpoint' "$recovery/log" || die "it began anew: $(cat "$recovery/log")"
  [ "$(written_rows "$recovery")" = "$undisturbed" ] || die "other rows than those of one process: $1"
}

# Kills a node of a job with the state $recovery/state once it has published rows, and compares its rows with those
# of one process: `recovers inside|again COMMAND...`. `inside`: the node is started again, and the command succeeds.
# `again`: the command fails, and goes on when it is run once more.
recovers() {
  local how=$1 code=0 victim
  shift
  rm -rf "$recovery/out" "$recovery/state"
  timeout -s KILL 300 "$@" >"$recovery/log" 2>&1 &
  local launcher=$!
  rows_or_end() { has_rows || ! kill -0 "$launcher" 2>/dev/null; }
  await_job "rows of the job" rows_or_end
  # The last process that has this state among its arguments: a node, where supervisors have started nodes.
  victim=$(pgrep -f -- "--state $recovery/state" | tail -n 1)
  [ -n "$victim" ] || die "no node runs: $(cat "$recovery/log")"
  kill -9 "$victim"
  wait "$launcher" || code=$?
  if [ "$how" = again ]; then
    [ "$code" != 0 ] || die "the launcher does not tell that a node was lost: $(cat "$recovery/log")"
    timeout -s KILL 300 "$@" >>"$recovery/log" 2>&1 || die "it does not go on: $(cat "$recovery/log")"
  else
    [ "$code" = 0 ] || die "code $code: $(cat "$recovery/log")"
    grep -q 'was killed by signal 9' "$recovery/log" || die "nobody was killed: $(cat "$recovery/log")"
  fi
  went_on "$*"
}

# Makes $recovery, and sets $undisturbed to the rows of the recovery cases without failures.
recovery_begins() {
  recovery=$(mktemp -d)
  recovery_query "$recovery" ""
  "$millstream" run "$recovery/windows.sql" --workers 2 --quiet
  undisturbed=$(written_rows "$recovery")
  [ "$(wc -l <<<"$undisturbed")" -gt 1000 ] || die "too few rows without a failure"
  recovery_query "$recovery" "'rate' = '20000',"
}
