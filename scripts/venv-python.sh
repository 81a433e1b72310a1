# shellcheck shell=bash disable=SC2034,SC2154
# Functions for what runs the Python package. Sourced behind env.sh and apt.sh; needs `what`.

# Makes an environment with the libraries that the package exchanges rows with, of pinned versions. Sets $python, its
# interpreter, and $environment.
python_environment() {
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
}

# Builds the wheel, for a glibc of the version $1 if that is given, and installs it there.
install_wheel() {
  scripts/wheel.sh "$@"
  "$python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
    "$CARGO_TARGET_DIR"/wheels/millstream-*.whl
}
