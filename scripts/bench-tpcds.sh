#!/usr/bin/env bash
# Runs the 99 queries of TPC-DS and compares their results with DuckDB's. Usage: scripts/bench-tpcds.sh [OPTION…],
# the options of bench/peers/tpcds.py, as `--scale 1 --layouts 1x1,2x2:tcp`. Tables and queries come from a package.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$root/scripts/apt.sh"
cd "$root"

built=$CARGO_TARGET_DIR/peers/tpcds
mkdir -p "$built"
need_command python3 python3
if ! python3 -c 'import ensurepip' 2>/dev/null; then apt_install python3-venv; fi
requirements=bench/peers/tpcds-requirements.txt
if [ ! -e "$built/venv/installed" ] || [ $requirements -nt "$built/venv/installed" ]; then
  say "installing DuckDB with its extension tpcds"
  python3 -m venv "$built/venv"
  "$built/venv/bin/pip" install --quiet --requirement $requirements
  touch "$built/venv/installed"
fi
cargo build --release --workspace --bin millstream
"$built/venv/bin/python" bench/peers/tpcds.py --millstream "$CARGO_TARGET_DIR/release/millstream" --directory "$built" "$@"
