# shellcheck shell=bash disable=SC2034
# Sourced by the other scripts: where the checkout, the target directory and cargo are.
#
# Cargo builds into $CARGO_TARGET_DIR; where that is unset, into `target` beside the checkout if such a
# directory exists (it then outlives the checkout), else into `target` inside it.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${CARGO_TARGET_DIR:-}" ]; then
  if [ -d "$root/../target" ]; then
    CARGO_TARGET_DIR=$(cd "$root/../target" && pwd)
  else
    CARGO_TARGET_DIR=$root/target
  fi
fi
export CARGO_TARGET_DIR

# rustup installs there, and a shell that was open before does not know it.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
case ":$PATH:" in
  *":$cargo_home/bin:"*) ;;
  *) PATH=$cargo_home/bin:$PATH ;;
esac
export PATH

# The oldest compiler that builds the workspace, as Cargo.toml states it.
rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

say() { printf '\n== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
