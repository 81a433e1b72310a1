#!/usr/bin/env bash
# Prints the figures of every workload, one worker and two nodes. Usage: scripts/bench.sh [WORKLOAD…]
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

cargo build --release -p millstream-cli
[ $# -gt 0 ] || set -- limits ysb ro cm nb7
for workload in "$@"; do
  say "$workload"
  "$CARGO_TARGET_DIR/release/millstream" bench "$workload" --workers 1
  if [ "$workload" != limits ]; then
    "$CARGO_TARGET_DIR/release/millstream" bench "$workload" --nodes 2 --workers 1
  fi
done
