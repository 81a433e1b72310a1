#!/usr/bin/env bash
# Prints the figures of every workload: one worker, and two processes in turns with one. Usage:
# scripts/bench.sh [WORKLOAD…], of limits, ysb, ysb-keys, ysb-star, ro, cm, nb7, nb8, nb11 and swa.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

# The workspace as a whole, so that the build is that of the tests.
cargo build --release --workspace --bin millstream
[ $# -gt 0 ] || set -- limits ysb ysb-keys ysb-star ro cm nb7 nb8 nb11 swa
for workload in "$@"; do
  say "$workload"
  case $workload in
    limits) arguments=(limits) ;;
    ysb-keys) arguments=(ysb --keys 10000000 --nodes 2 --against-one) ;;
    *) arguments=("$workload" --nodes 2 --against-one) ;;
  esac
  "$CARGO_TARGET_DIR/release/millstream" bench "${arguments[@]}"
done
