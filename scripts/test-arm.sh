#!/usr/bin/env bash
# Builds the lower layers for 64-bit ARM and runs their tests; on another machine by an emulator, QEMU's of
# single programs. What is checked is that all compiles, that NEON's hashes and the transports' layouts are
# what they are elsewhere. An emulator orders memory as the machine does on which it runs, so a barrier that
# is missing does not show here: those are loom's.
#
#   scripts/test-arm.sh            all of them
#   scripts/test-arm.sh NAME       those whose name contains NAME
#
# What is built is kept in $CARGO_TARGET_DIR/aarch64-unknown-linux-gnu. Where a compiler or the emulator
# cannot be had the script says NOT RUN and why, and its status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
cd "$root"

target=aarch64-unknown-linux-gnu
what="the tests on 64-bit ARM"
packages=(-p millstream-fabric -p millstream-channel -p millstream-state -p millstream-verbs-sim)

[ "$(uname -s)" = Linux ] || not_run "they need Linux"
if [ "$(uname -m)" != aarch64 ]; then
  packages_or_not_run gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
  if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    command -v rustup >/dev/null || not_run "this Rust has no $target, and there is no rustup"
    said=$(rustup target add "$target" 2>&1) || not_run "no Rust for $target: $(tail -n 1 <<<"$said")"
  fi
  export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  # Tests that start a second process start it by the same words.
  export MILLSTREAM_TEST_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$MILLSTREAM_TEST_RUNNER
fi

tests() { cargo test --release --target "$target" "${packages[@]}" --lib --tests "$@"; }
say "64-bit ARM"
tests --no-fail-fast -- "$@"
# As a processor that is given the hashes of NEON.
say "Neoverse N1"
QEMU_CPU=neoverse-n1 tests --lib -p millstream-state -- vector::
