#!/usr/bin/env bash
# Times the innermost loops, 8,192 units of each. Usage: scripts/bench-loops.sh [OPTION…], those of divan: a name, or
# --sample-count 1000 for more samples.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

exec cargo run --release --quiet -p millstream-dataflow --example hot_loops -- "$@"
