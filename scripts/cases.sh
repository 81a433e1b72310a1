#!/usr/bin/env bash
# Runs the suites of random streams and queries: CASES of each (1,000 unless said), or the one case SEED. TEST is
# a part of a test's name, as `joins::`; without it all run. A case that fails says how to run it alone. KILLS is the
# number of nodes of jobs with checkpoints that are killed (1,000 unless said). BROKER_KILLS is that of kills of jobs
# that copy a topic of Kafka into another one or into a table of Postgres, a file into such a table, and a table into
# files, and of the broker and the server, in turns (200 of each by default; TEST=kafka for those alone). REPLACED is how
# many seconds a table of a pool is replaced beside its readers (60 unless said; TEST=replaced for that alone). At the end the
# queries of TPC-DS run (scripts/bench-tpcds.sh).
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

if [ -n "${SEED:-}" ]; then
  export MILLSTREAM_SEED=$SEED
else
  export MILLSTREAM_CASES=${CASES:-1000}
fi
# Of a broker that cannot be had the script says why.
kafka() { MILLSTREAM_KILLS=${BROKER_KILLS:-200} scripts/test-world.sh nothing_is_lost || [ $? = 77 ]; }
if [ "${TEST:-}" = kafka ]; then
  kafka
  exit
fi
tests=${TEST:-}
if [ -z "$tests" ]; then
  # The modules that ask for cases.
  tests=$(cd tests/tests && grep -rlE '\bcases\(' --include='*.rs' . | sed -E 's#^\./##; s#\.rs$#::#; s#/#::#g')
fi
# shellcheck disable=SC2086
cargo test --release --workspace --no-fail-fast --test engine -- $tests
# A kill of a node takes seconds: these have a number of their own.
case ${TEST:-kills::} in
kills::*)
  export MILLSTREAM_KILLS=${KILLS:-1000}
  cargo test --release --workspace --test program -- "${TEST:-kills::}"
  ;;
esac
# A table of a pool is replaced beside its readers, for REPLACED seconds (60 unless said).
case ${TEST:-replaced} in
*replaced*)
  MILLSTREAM_REPLACED_SECONDS=${REPLACED:-60} cargo test --release --workspace --test program -- "${TEST:-replaced}"
  ;;
esac
[ -n "${TEST:-}" ] || kafka
# Queries that others wrote, held to DuckDB's results.
[ -n "${TEST:-}" ] || scripts/bench-tpcds.sh
