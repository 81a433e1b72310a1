#!/usr/bin/env bash
# Installs what is needed to build and test and is not there: compilers of C and C++ and make (for zstd and
# librdkafka), git, curl, python3 and Rust with rustfmt and clippy. Says nothing and changes nothing where all of it exists.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"

# Whether `cargo` and `rustc` exist and are new enough.
rust_is_enough() {
  local found
  command -v cargo >/dev/null || return 1
  found=$(rustc --version 2>/dev/null | cut -d' ' -f2) || return 1
  [ "$(printf '%s\n%s\n' "$rust_version" "$found" | sort -V | head -n 1)" = "$rust_version" ]
}

install_rust() {
  # The very version that the checks were made with: a newer one may know more warnings.
  say "installing Rust $rust_version"
  if ! command -v rustup >/dev/null; then
    if apt-cache show rustup >/dev/null 2>&1; then
      apt_install rustup
    else
      curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal --default-toolchain none
    fi
  fi
  rustup toolchain install "$rust_version" --profile minimal --component rustfmt --component clippy
  rustup default "$rust_version"
  hash -r
  rust_is_enough || die "Rust $rust_version or newer is needed, found $(rustc --version)"
}

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
command -v git >/dev/null || missing+=(git)
command -v curl >/dev/null || missing+=(curl ca-certificates)
command -v python3 >/dev/null || missing+=(python3)
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"

rust_is_enough || install_rust
for tool in rustfmt clippy; do
  case $tool in
    rustfmt) cargo fmt --version >/dev/null 2>&1 && continue ;;
    clippy) cargo clippy --version >/dev/null 2>&1 && continue ;;
  esac
  command -v rustup >/dev/null || die "please install $tool for $(rustc --version)"
  rustup component add "$tool"
done
