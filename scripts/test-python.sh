#!/usr/bin/env bash
# Tests the Python package: builds the wheel, installs it into an environment of its own beside pinned
# versions of the libraries that it exchanges rows with, and runs the tests, the types (mypy --strict,
# stubtest) and the examples of docs/python.md. Where Python or these libraries cannot be had it says
# NOT RUN and why, and its status is 77. `scripts/test-python.sh -k name` runs some tests.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

not_run() {
  printf 'NOT RUN: the tests of the Python package: %s\n' "$1"
  exit 77
}

command -v python3 >/dev/null || not_run "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || not_run "python3 is older than 3.11"
environment=$CARGO_TARGET_DIR/venv-python
if ! "$environment/bin/python" -c '' 2>/dev/null; then
  rm -rf "$environment"
  python3 -m venv "$environment" || not_run "python3 has no venv (on Debian: python3-venv)"
fi
python=$environment/bin/python
installed=$environment/installed.txt
if ! cmp -s python/requirements-test.txt "$installed"; then
  "$python" -m pip install -q --disable-pip-version-check -r python/requirements-test.txt ||
    not_run "pip cannot install python/requirements-test.txt"
  cp python/requirements-test.txt "$installed"
fi

scripts/wheel.sh
"$python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
  "$CARGO_TARGET_DIR"/wheels/millstream-*.whl

# From elsewhere: `millstream` is what is installed, and not the folder here.
cd "$CARGO_TARGET_DIR"
say "types"
"$python" -m mypy --config-file "$root/python/mypy.ini" --cache-dir "$CARGO_TARGET_DIR/mypy" -p millstream
MYPY_CACHE_DIR=$CARGO_TARGET_DIR/mypy "$python" -m mypy.stubtest millstream._millstream
say "tests"
passed() { awk '/ (passed|failed|error)/ { for (i = 2; i <= NF; i++) {
  if ($i ~ /^passed/) p = $(i - 1); if ($i ~ /^(failed|error)/) f = $(i - 1) } }
  END { printf "test result: %s. %d passed; %d failed; 0 ignored;\n", f ? "FAILED" : "ok", p, f }' "$1"; }
said=$(mktemp)
trap 'rm -f "$said"' EXIT
code=0
"$python" -m pytest -p no:cacheprovider -rP -q "$root/python/tests" "$@" 2>&1 | tee "$said" || code=$?
# In the form of cargo's tests, which the sum of all tests reads.
passed "$said"
exit "$code"
