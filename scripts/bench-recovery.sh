#!/usr/bin/env bash
# Measures checkpoints and failures against their targets, and Flink on a similar job. Usage:
# scripts/bench-recovery.sh [OPTION…], with the options of `millstream bench recovery`; without any it measures
# at the scale of the targets.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$root/scripts/apt.sh"
cd "$root"

# The workspace as a whole, so that the build is that of the tests.
cargo build --release --workspace --bin millstream

# Flink is a comparison: without it the rest is measured.
built=$CARGO_TARGET_DIR/peers/flink
flink=()
build_flink() {
  need_command javac default-jdk-headless && need_command mvn maven &&
    mvn --quiet --batch-mode --file bench/peers/flink/pom.xml -Dpeer.directory="$built" package
}
if (build_flink); then
  # Flink reads private fields of these packages by reflection.
  opens="--add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED"
  flink=(--flink "java -Xmx2g $opens -cp $built/peer-flink-0.1.0.jar:$built/lib/*")
else
  say "Flink is skipped: the lines above say what could not be installed or built"
fi

[ $# -gt 0 ] || set -- --scale 1 --seconds 5 --pairs 21 --checkpoints 100 --every 0.5 --loads 5 \
  --kills 100 --silences 20 --rescales 5
"$CARGO_TARGET_DIR/release/millstream" bench recovery "${flink[@]}" "$@"
