#!/usr/bin/env bash
# Measures Millstream and other engines over the same rows, in turns. Usage: scripts/bench-peers.sh [OPTION…],
# the options of bench/peers/run.py, or `suites` and those of suites.py. PEERS="duckdb timely" installs and runs only some.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$root/scripts/apt.sh"
cd "$root"

peers=${PEERS:-duckdb polars datafusion clickhouse timely timely-numbers flink flink-combine}
built=$CARGO_TARGET_DIR/peers
mkdir -p "$built"

need_command python3 python3
if ! python3 -c 'import ensurepip' 2>/dev/null; then apt_install python3-venv; fi
if [ ! -e "$built/venv/installed" ] || [ bench/peers/requirements.txt -nt "$built/venv/installed" ]; then
  say "installing the engines that Python has"
  python3 -m venv "$built/venv"
  "$built/venv/bin/pip" install --quiet --requirement bench/peers/requirements.txt
  touch "$built/venv/installed"
fi

say "building"
cargo build --release --workspace --bin millstream
case " $peers " in *' timely'*)
  cargo build --release --locked --manifest-path bench/peers/timely/Cargo.toml --target-dir "$built/timely"
  ;;
esac
case " $peers " in *' flink'*)
  need_command javac default-jdk-headless
  need_command mvn maven
  mvn --quiet --batch-mode --file bench/peers/flink/pom.xml -Dpeer.directory="$built/flink" package
  ;;
esac

# Flink's own requirement: modules that it opens by reflection.
opens="--add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED"
export MILLSTREAM=$CARGO_TARGET_DIR/release/millstream
export PEERS_PYTHON=$built/venv/bin/python
export PEERS_TIMELY=$built/timely/release/millstream-peer-timely
PEERS_TIMELY_VERSION=$(sed -n '/^name = "timely"$/{n;s/version = "\(.*\)"/\1/p}' bench/peers/timely/Cargo.lock)
export PEERS_TIMELY_VERSION
# Ten million windows of keys are as many objects, several times over.
heap=$(awk '/^MemTotal/ {print int($2 / 2097152)}' /proc/meminfo)
export PEERS_FLINK="java -Xmx${heap}g $opens -cp $built/flink/peer-flink-0.1.0.jar:$built/flink/lib/*"
# The suites are for batch engines; `bench-peers.sh suites [OPTION…]` runs them alone, with the options of suites.py.
if [ "${1:-}" = suites ]; then
  exec "$PEERS_PYTHON" bench/peers/suites.py --directory "$built" "${@:2}"
fi
"$PEERS_PYTHON" bench/peers/run.py --peers "${peers// /,}" --directory "$built" "$@"
if [ $# -eq 0 ]; then "$PEERS_PYTHON" bench/peers/suites.py --directory "$built"; fi
