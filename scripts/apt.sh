# shellcheck shell=bash
# Sourced by scripts that install packages, after env.sh: apt-get as root or through sudo; on other
# systems it names what is missing.

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "'$*' needs root: run it as root, or install sudo"
  fi
}

apt_updated=
apt_install() {
  command -v apt-get >/dev/null || die "please install: $*"
  if [ -z "$apt_updated" ]; then
    as_root apt-get update -qq
    apt_updated=yes
  fi
  say "installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
}

# Installs a package if the command that it brings is missing: need_command COMMAND PACKAGE
need_command() {
  command -v "$1" >/dev/null || apt_install "$2"
}

# For tests that need what cannot be had everywhere: says so, and ends with status 77. Needs `what`.
not_run() {
  printf '\nNOT RUN: %s: %s\n' "$what" "$*"
  exit 77
}

# Installs Debian packages that are missing, or ends with `not_run`.
packages_or_not_run() {
  local package missing=() said
  command -v apt-get >/dev/null || not_run "they need the Debian packages $*, and there is no apt-get"
  for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} != 0 ] || return 0
  say "installing ${missing[*]}"
  # A shell of its own: `apt_install` may end it.
  said=$( (apt_install "${missing[@]}") 2>&1 ) ||
    not_run "cannot install ${missing[*]}: $(tail -n 1 <<<"$said")"
}
