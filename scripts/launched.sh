# shellcheck shell=bash disable=SC2034,SC2154
# What the tests with real launchers share. Sourced behind env.sh and apt.sh; needs `what`.

build_millstream() {
  millstream=$CARGO_TARGET_DIR/release/millstream
  [ -n "${MILLSTREAM_BUILT:-}" ] || cargo build --release --workspace --bin millstream "$@"
  [ -x "$millstream" ] || die "$millstream was not built"
}

# The rows that each job has to give, and the query that gives them: `one_process [QUERY]`.
one_process() {
  query=${1:-examples/flights.sql}
  expected=$("$millstream" run "$query" --nodes 1 --workers 1 --format csv --quiet | sort)
  [ "$(wc -l <<<"$expected")" -gt 1000 ] || die "$query gives too few rows"
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
