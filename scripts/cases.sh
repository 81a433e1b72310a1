#!/usr/bin/env bash
# Runs the suites of random streams and queries: CASES of each (1,000 unless said), or the one case SEED. TEST is
# a part of a suite's name; without it all run. A case that fails says how to run it alone.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

if [ -n "${SEED:-}" ]; then
  export MILLSTREAM_SEED=$SEED
else
  export MILLSTREAM_CASES=${CASES:-1000}
fi
suites=$(grep -lE '= cases\(' tests/tests/*.rs | xargs -n 1 basename -s .rs)
args=()
for suite in $suites; do args+=(--test "$suite"); done
cargo test --release --workspace --no-fail-fast "${args[@]}" -- ${TEST:+"$TEST"}
