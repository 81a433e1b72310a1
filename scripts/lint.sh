#!/usr/bin/env bash
# Format, clippy, documentation and, where cargo-deny is installed, licences and bans; each warning
# is an error.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/parts.sh"
cd "$root"

clippy() { cargo clippy --release --workspace "$@" -- -D warnings -D clippy::too_many_lines; }
part format cargo fmt --all --check
part clippy clippy --all-targets
# Tests that a script starts are no part of all targets.
part "clippy of other tests" clippy --test mpi --test verbs --test world
RUSTDOCFLAGS="-D warnings" part documentation cargo doc --release --no-deps --workspace
if cargo deny --version >/dev/null 2>&1; then
  part dependencies cargo deny --all-features check bans licenses sources
else
  not_run_part dependencies \
    "NOT RUN: licences and bans: cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
