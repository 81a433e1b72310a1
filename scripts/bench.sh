#!/usr/bin/env bash
# Prints the figures of every workload: one worker, two unrelated processes, and two that work together, in turns,
# with what is asked of them. Usage: scripts/bench.sh [WORKLOAD…], of limits, ysb, ysb-keys, ysb-star, ro, cm, nb7, nb8, nb11 and swa.
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
    ysb-keys) arguments=(ysb --keys 10000000 --nodes 2 --against-one --against-two) ;;
    *) arguments=("$workload" --nodes 2 --against-one --against-two) ;;
  esac
  "$CARGO_TARGET_DIR/release/millstream" bench "${arguments[@]}"
done
