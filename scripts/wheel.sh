#!/usr/bin/env bash
# Builds the wheel of the Python package into $CARGO_TARGET_DIR/wheels. `scripts/wheel.sh 2.28` makes it for
# systems with a glibc of that version or a newer one: the library is linked by zig, which knows the symbols of
# each glibc, and comes from PyPI. Without a version it is for a glibc as new as this machine's.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"
glibc=${1:-}

if [ -n "$glibc" ]; then
  zig=$CARGO_TARGET_DIR/venv-zig
  [ -x "$zig/bin/cargo-zigbuild" ] || python3 -m venv "$zig"
  "$zig/bin/python" -m pip install -q --disable-pip-version-check -r python/requirements-wheel.txt
  export ZIG_GLOBAL_CACHE_DIR=$CARGO_TARGET_DIR/zig ZIG_LOCAL_CACHE_DIR=$CARGO_TARGET_DIR/zig
  mkdir -p "$CARGO_TARGET_DIR/zig"
  linker=$CARGO_TARGET_DIR/zig/cc
  printf '#!/bin/sh\nPATH="%s:$PATH" exec cargo-zigbuild zig cc -- -g -target %s-linux-gnu.%s "$@"\n' \
    "$zig/bin" "$(uname -m)" "$glibc" >"$linker"
  # Of all crates the library alone is linked so: another linker for all would compile all of them again.
  RUSTC_WRAPPER=$CARGO_TARGET_DIR/zig/rustc
  cat >"$RUSTC_WRAPPER" <<END
#!/bin/sh
case " \$* " in
  *" --crate-name _millstream "*) exec "\$@" -C linker="$linker" ;;
  *) exec "\$@" ;;
esac
END
  chmod +x "$linker" "$RUSTC_WRAPPER"
  export RUSTC_WRAPPER
  touch crates/python/src/lib.rs
fi

# With the rest of the workspace: dependencies have the features of all, and are compiled once.
cargo build --release --workspace --lib
library=$(mktemp)
trap 'rm -f "$library"' EXIT
strip --strip-unneeded -o "$library" "$CARGO_TARGET_DIR/release/lib_millstream.so"
rm -rf "$CARGO_TARGET_DIR/wheels"
python3 scripts/wheel.py "$library" "$CARGO_TARGET_DIR/wheels" ${glibc:+"$glibc"}
