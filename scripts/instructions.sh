#!/usr/bin/env bash
# Counts the instructions of the innermost loops with callgrind, which no other work on the machine
# disturbs, and holds them to scripts/instructions.txt. Usage:
# scripts/instructions.sh            fails where a loop takes over 5 % more than is written there
# scripts/instructions.sh --accept   writes what is counted there
# Valgrind knows no AVX-512: what is counted is the code for AVX2.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

tolerance=5
known=scripts/instructions.txt
command -v valgrind > /dev/null || { echo "valgrind is missing: apt-get install valgrind" >&2; exit 1; }
cargo build --release -p millstream-dataflow --example hot_loops
program=$CARGO_TARGET_DIR/release/examples/hot_loops

# Instructions of COUNT times of loop NAME; what makes it ready is not counted.
count() {
  local out
  out=$(mktemp)
  valgrind --tool=callgrind --collect-atstart=no --toggle-collect='hot_loops::measured' \
    --callgrind-out-file="$out" "$program" "$1" "$2" > "$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
  sed -n 's/^summary: \([0-9]*\).*/\1/p' "$out"
  rm -f "$out" "$out.log"
}

failed=0
table="# Instructions of each of the innermost loops, by scripts/instructions.sh: for one frame, record, group or turn."
for loop in ring:16384 dense:1048576 fused:1048576 looked:1048576 hashed:1048576 hashed-large:1048576 merge:262144 \
  gather:1048576 gather-long:1048576 switch:65536; do
  name=${loop%%:*} times=${loop##*:}
  all=$(count "$name" "$times")
  each=$(awk -v all="$all" -v times="$times" 'BEGIN { printf "%.2f", all / times }')
  table+=$'\n'"$name $each"
  [ "${1:-}" = --accept ] && { echo "$name $each"; continue; }
  before=$(awk -v name="$name" '$1 == name { print $2 }' "$known")
  if awk -v now="$each" -v before="${before:-0}" -v by="$tolerance" \
    'BEGIN { exit !(now > before * (1 + by / 100)) }'; then
    echo "$name: $each instructions, $before before: over $tolerance % more" >&2
    failed=1
  else
    echo "$name: $each instructions, $before before"
  fi
done
[ "${1:-}" = --accept ] && printf '%s\n' "$table" > "$known"
exit $failed
