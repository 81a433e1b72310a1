#!/usr/bin/env bash
# Format, clippy, documentation and, where cargo-deny is installed, licences and bans; each warning
# is an error.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

say "format"
cargo fmt --all --check
say "clippy"
cargo clippy --release --workspace --all-targets -- -D warnings -D clippy::too_many_lines
# Tests that a script starts are no part of all targets.
cargo clippy --release --workspace --test mpi --test verbs -- -D warnings -D clippy::too_many_lines
say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --workspace
say "dependencies"
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --all-features check bans licenses sources
else
  echo "cargo-deny is not installed: not checked (cargo install --locked cargo-deny)"
fi
