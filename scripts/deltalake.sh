#!/usr/bin/env bash
# delta-rs, a program for tables of Delta Lake that is not ours, from PyPI, for tests.
#
#   deltalake.sh fetch   installs it into $DELTALAKE_HOME, once; prints its Python
#
# Environment: DELTALAKE_HOME (default ~/.cache/millstream-deltalake), DELTALAKE_VERSION.
set -euo pipefail
version=${DELTALAKE_VERSION:-1.6.6}
home=${DELTALAKE_HOME:-$HOME/.cache/millstream-deltalake}/$version

case ${1:-} in
fetch)
  if [ ! -f "$home/installed" ]; then
    rm -rf "$home"
    python3 -m venv "$home"
    "$home/bin/pip" install -q --disable-pip-version-check "deltalake==$version" pyarrow >&2
    touch "$home/installed"
  fi
  echo "$home/bin/python"
  ;;
*)
  sed -n '2,6p' "$0" >&2
  exit 2
  ;;
esac
