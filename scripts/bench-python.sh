#!/usr/bin/env bash
# Measures the Python package against its targets, beside DuckDB: builds the wheel for glibc 2.28, installs it into the
# environment of scripts/test-python.sh, and runs scripts/bench-python.py with the arguments. Without any it
# measures at the scale of the targets: 100 million rows, 10 GB. Its status is 1 where one is not reached.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/venv-python.sh"
cd "$root"
what="the measurements of the Python package"

python_environment
install_wheel 2.28
# In another directory, where `millstream` is the package that is installed and not the folder of this one.
cd "$CARGO_TARGET_DIR"
"$python" "$root/scripts/bench-python.py" --wheel "$(echo "$CARGO_TARGET_DIR"/wheels/millstream-*.whl)" "$@"
