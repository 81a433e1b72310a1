#!/usr/bin/env bash
# Runs tests of unsafe code under Miri, which finds undefined behaviour: the inner loops of state, and what
# lies in a slot of a ring. Needs a nightly toolchain:
#   rustup toolchain install nightly --component miri,rust-src
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

cargo +nightly miri --version >/dev/null 2>&1 ||
  die "there is no Miri: rustup toolchain install nightly --component miri,rust-src"
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/miri MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
say "state"
cargo +nightly miri test -p millstream-state --lib -- kernel::
say "channel"
cargo +nightly miri test -p millstream-channel --lib -- trailer:: descriptor::
