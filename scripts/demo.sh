#!/usr/bin/env bash
# Runs the flights of New York 2013 in one process and in four, compares, shows and draws the result.
# Leaves target/demo/flights.csv and target/demo/flights.svg in the checkout.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

millstream=$CARGO_TARGET_DIR/release/millstream
expected=examples/expected/flights.csv
demo=target/demo
mkdir -p "$demo"

say "building"
# By workspace, as the tests do: other features would compile DataFusion a second time.
cargo build --release --workspace --bin millstream

# Runs a command and leaves its wall-clock milliseconds in $ms.
timed() {
  local begin end
  begin=$(date +%s%N)
  "$@"
  end=$(date +%s%N)
  ms=$(((end - begin) / 1000000 + 1))
}

rate() { python3 -c "print(f'{336776 * 1000 // $1:,}')"; }
seconds() { printf '%d.%02d' $(($1 / 1000)) $(($1 % 1000 / 10)); }

say "millstream run examples/flights.sql"
timed "$millstream" run examples/flights.sql
one=$ms

say "millstream run examples/flights-csv.sql --nodes 4 --workers 1 --fabric shm"
rm -f "$demo/flights.csv"
timed "$millstream" run examples/flights-csv.sql --nodes 4 --workers 1 --fabric shm
four=$ms

if ! diff <(LC_ALL=C sort "$expected") <(LC_ALL=C sort "$demo/flights.csv") >"$demo/difference"; then
  head -n 10 "$demo/difference" >&2
  die "the rows differ from $expected: see $demo/difference"
fi
rm "$demo/difference"

note="Millstream, four processes over shared memory: $(seconds "$four") s."
python3 scripts/draw-flights.py "$demo/flights.csv" "$demo/flights.svg" --note "$note"

say "done"
cat <<END
  one process      $(seconds "$one") s, $(rate "$one") flights/s, start included
  four processes   $(seconds "$four") s, $(rate "$four") flights/s, start included
  rows             $(($(wc -l <"$demo/flights.csv") - 1)), equal to $expected,
                   which was computed without Millstream
  picture          $root/$demo/flights.svg
END
