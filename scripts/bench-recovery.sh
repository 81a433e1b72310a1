#!/usr/bin/env bash
# Measures checkpoints and failures against their targets. Usage: scripts/bench-recovery.sh [OPTION…], the options of
# `millstream bench recovery`; without any, those of the targets.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

# The workspace as a whole, so that the build is that of the tests.
cargo build --release --workspace --bin millstream
[ $# -gt 0 ] || set -- --scale 1 --seconds 5 --pairs 21 --checkpoints 100 --every 0.5 --loads 5
"$CARGO_TARGET_DIR/release/millstream" bench recovery "$@"
