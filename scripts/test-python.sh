#!/usr/bin/env bash
# Tests the Python package: builds the wheel, installs it into an environment of its own beside pinned
# versions of the libraries that it exchanges rows with, and runs the tests, the types (mypy --strict,
# stubtest) and the examples of docs/python.md. Where Python or these libraries cannot be had it says
# NOT RUN and why, and its status is 77. `scripts/test-python.sh -k name` runs some tests.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
source "$(dirname "$0")/venv-python.sh"
cd "$root"
what="the tests of the Python package"

python_environment

# Some tests need packages that are large or cannot be had: then they are skipped, and counted. A test
# that is skipped for anything else fails: python/tests/conftest.py.
MILLSTREAM_MAY_MISS=
for optional in notebooks ray; do
  wanted=python/requirements-$optional.txt
  installed=$environment/$optional.txt
  if ! cmp -s "$wanted" "$installed"; then
    if timeout 240 "$python" -m pip install -q --disable-pip-version-check -r "$wanted"; then
      cp "$wanted" "$installed"
    else
      say "the tests of $optional do not run: pip cannot install $wanted"
      MILLSTREAM_MAY_MISS+=" jupyter_client $(sed -n 's/==.*//p' "$wanted" | tr '\n' ' ')"
    fi
  fi
done

if ! command -v mpirun.openmpi >/dev/null; then
  say "the tests of mpirun do not run: there is no mpirun.openmpi (on Debian: openmpi-bin)"
  MILLSTREAM_MAY_MISS+=" mpirun"
fi
export MILLSTREAM_MAY_MISS

# The memory servers of the tests are processes of the command.
build_millstream
export MILLSTREAM=$millstream
install_wheel

# In another directory, where `millstream` is the package that is installed and not the folder of this one.
cd "$CARGO_TARGET_DIR"
say "types"
"$python" -m mypy --config-file "$root/python/mypy.ini" --cache-dir "$CARGO_TARGET_DIR/mypy" -p millstream
MYPY_CACHE_DIR=$CARGO_TARGET_DIR/mypy "$python" -m mypy.stubtest millstream._millstream
say "tests"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
code=0
"$python" -m pytest -p no:cacheprovider -rPs -q "$root/python/tests" "$@" 2>&1 | tee "$said" || code=$?
# The last line, as `1 failed, 8 passed in 2.00s`, is printed in the form of cargo's tests, which are summed.
count() { tail -n 1 "$said" | grep -oP "[0-9]+(?= $1)" || echo 0; }
result=ok
[ "$code" = 0 ] || result=FAILED
printf 'test result: %s. %d passed; %d failed; %d ignored;\n' \
  "$result" "$(count passed)" "$(($(count failed) + $(count error)))" "$(count skipped)"
exit "$code"
