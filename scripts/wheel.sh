#!/usr/bin/env bash
# Builds the wheel of the Python package into $CARGO_TARGET_DIR/wheels.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

# With the rest of the workspace: dependencies have the features of all, and are compiled once.
cargo build --release --workspace --lib
library=$(mktemp)
trap 'rm -f "$library"' EXIT
strip --strip-unneeded -o "$library" "$CARGO_TARGET_DIR/release/lib_millstream.so"
rm -rf "$CARGO_TARGET_DIR/wheels"
python3 scripts/wheel.py "$library" "$CARGO_TARGET_DIR/wheels"
