#!/usr/bin/env bash
# Measures Kafka -> windows -> Kafka: JSON messages of six fields, of which a query reads three, into windows of 10 s,
# whose counts and sums go to another topic. The job has one core, and the broker the others; each figure is of a whole
# run from its start to its end, with the messages in the topic before. Usage: scripts/bench-kafka.sh [ROWS [RUNS]]
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the benchmark of Kafka"
rows=${1:-10000000} runs=${2:-3}

cores=$(nproc)
[ "$cores" -ge 2 ] || not_run "it needs a core for the broker and one for the job"
need_command java openjdk-17-jre-headless
need_command mvn maven
need_command taskset util-linux
scripts/kafka.sh fetch
build_millstream
dir=$(mktemp -d)
export KAFKA_DATA=$dir/broker KAFKA_AUTO_CREATE=true KAFKA_JAVA="-Xmx1g -Xms1g"
trap 'scripts/kafka.sh kill; rm -rf "$dir"' EXIT
broker=$(taskset -c "1-$((cores - 1))" scripts/kafka.sh start "${KAFKA_PORT:-19192}")

# table NAME TOPIC COLUMNS [OPTIONS]: declares a table of a topic.
table() {
  echo "CREATE TABLE $1 ($3) WITH ('connector' = 'kafka', 'topic' = '$2', 'format' = 'json',
    'properties.bootstrap.servers' = '$broker'${4:-});"
}
columns="id BIGINT, ts TIMESTAMP(3), user BIGINT, type STRING, amount DOUBLE, url STRING"
bounded=", 'scan.bounded.mode' = 'latest-offset'"
results="ws TIMESTAMP(3), type STRING, n BIGINT, s DOUBLE"

cat >"$dir/fill.sql" <<SQL
CREATE TABLE made ($columns) WITH ('connector' = 'generator', 'rows' = '$rows', 'flows' = '4', 'interval' = '1ms',
  'fields.id.kind' = 'sequence', 'fields.id.max' = '99999999999', 'fields.user.max' = '99999',
  'fields.type.kind' = 'choice', 'fields.type.values' = 'view,click,purchase,cart', 'fields.amount.max' = '500',
  'fields.url.kind' = 'constant', 'fields.url.value' = 'https://shop.example/item/12345');
$(table events events "$columns" ", 'sink.partitioner' = 'fixed'")
INSERT INTO events SELECT * FROM made;
SQL
say "filling the topic with $rows messages"
"$millstream" run "$dir/fill.sql" --workers 4 --quiet

# measure NAME OPTIONS COMMAND...: runs the query into a topic of its own, and tells the figures.
measure() {
  local name=$1 options=$2 figures elapsed user system sum
  shift 2
  cat >"$dir/$name.sql" <<SQL
SET 'millstream.checkpoint' = '1 s';
$(table events events "$columns, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND" "$bounded")
$(table counts "$name" "$results" "$options")
INSERT INTO counts SELECT window_start, type, count(*), sum(amount)
  FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, type;
SQL
  TIMEFORMAT='%R %U %S'
  figures=$({ time taskset -c 0 "$millstream" run "$dir/$name.sql" --workers 1 --quiet "$@" >"$dir/$name.out" 2>&1; } \
    2>&1) || die "failed: $(cat "$dir/$name.out")"
  read -r elapsed user system <<<"$figures"
  cat >"$dir/sum.sql" <<SQL
$(table counts "$name" "$results" "$bounded")
SELECT sum(n) FROM counts;
SQL
  sum=$("$millstream" run "$dir/sum.sql" --format csv --quiet | tail -n 1)
  [ "$sum" = "$rows" ] || die "$name counts $sum rows of $rows"
  awk -v rows="$rows" -v e="$elapsed" -v u="$user" -v s="$system" -v name="$name" 'BEGIN {
    printf "%-18s %6.2f s, %5.2f M records/s, %5.2f M records for each second of processor\n",
      name, e, rows / e / 1e6, rows / (u + s) / 1e6 }'
}
for run in $(seq "$runs"); do
  measure "at-least-once-$run" ""
  measure "exactly-once-$run" \
    ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'bench-$run'" --state "$dir/state-$run"
done
