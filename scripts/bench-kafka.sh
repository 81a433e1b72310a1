#!/usr/bin/env bash
# Measures Kafka -> windows -> Kafka against its targets, with Flink on the same topics: docs/benchmarks.md "Topics of
# Kafka" tells what is measured. The job that is measured has one core, and the broker the others.
#
# Usage: scripts/bench-kafka.sh [ROWS [RUNS [RATE [SECONDS]]]]: messages in the topic for throughput, and runs over
# them; messages a second for latency, and for how many seconds after a first window. PARTS="throughput flink latency"
# measures only some.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"
what="the benchmark of Kafka"
rows=${1:-10000000} runs=${2:-3} rate=${3:-500000} seconds=${4:-64}
parts=" ${PARTS:-throughput flink latency} "
measured() { [[ $parts == *" $1 "* ]]; }

cores=$(nproc)
[ "$cores" -ge 2 ] || not_run "it needs a core for the broker and one for the job"
others=1-$((cores - 1))
need_command javac openjdk-17-jdk-headless
need_command mvn maven
need_command taskset util-linux
scripts/kafka.sh fetch
build_millstream
dir=$(mktemp -d)
export KAFKA_DATA=$dir/broker KAFKA_AUTO_CREATE=true KAFKA_JAVA="-Xmx1g -Xms1g"
job= reader=
trap '[ -z "$job$reader" ] || kill -KILL $job $reader 2>/dev/null || true; scripts/kafka.sh kill; rm -rf "$dir"' EXIT

# Starts the broker, without what it had before: $broker.
fresh_broker() {
  scripts/kafka.sh kill
  broker=$(taskset -c "$others" scripts/kafka.sh start "${KAFKA_PORT:-19192}")
}

# table NAME TOPIC COLUMNS [OPTIONS]: declares a table of a topic, as Flink takes it, too.
table() {
  echo "CREATE TABLE $1 ($3) WITH ('connector' = 'kafka', 'topic' = '$2', 'format' = 'json',
    'json.timestamp-format.standard' = 'ISO-8601', 'properties.bootstrap.servers' = '$broker'${4:-});"
}
columns="id BIGINT, ts TIMESTAMP(3), \`user\` BIGINT, type STRING, amount DOUBLE, url STRING"
bounded=", 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset'"
results="ws TIMESTAMP(3), type STRING, n BIGINT, s DOUBLE"
# Options of a sink: delivery GUARANTEE NAME. Flink's own timeout of a transaction is longer than brokers allow.
delivery() {
  echo ", 'sink.delivery-guarantee' = '$1', 'sink.transactional-id-prefix' = '$2',
    'properties.transaction.timeout.ms' = '600000'"
}

# Lines "NAME FIGURE" of all runs, and the median of a name's.
figures=$dir/figures
median() {
  awk -v name="$1" '$1 == name {print $2}' "$figures" | sort -g | awk '{of[NR] = $1} END {print of[int((NR + 1) / 2)]}'
}

# job_of NAME GUARANTEE: the statements of a job into a topic of its own.
job_of() {
  table "events_of_${1//-/_}" events "$columns, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND" "$bounded"
  table "counts_of_${1//-/_}" "$1" "$results" "$(delivery "$2" "$1")"
  echo "INSERT INTO counts_of_${1//-/_} SELECT window_start, type, count(*), sum(amount) FROM TABLE(TUMBLE(
    TABLE events_of_${1//-/_}, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, type;"
}

# The counts in a topic of results have to be of all messages.
all_counted() {
  local sum
  { table counts "$1" "$results" "$bounded"; echo "SELECT sum(n) FROM counts;"; } >"$dir/sum.sql"
  sum=$("$millstream" run "$dir/sum.sql" --format csv --quiet | tail -n 1)
  [ "$sum" = "$rows" ] || die "$1 counts $sum rows of $rows"
}

# A line of a run: report_run RUN GUARANTEE SECONDS PROCESSOR; both are kept for the median.
report_run() {
  echo "$1-elapsed-$2 $3" >>"$figures"
  echo "$1-processor-$2 $4" >>"$figures"
  awk -v rows="$rows" -v of="$1 $2" -v e="$3" -v p="$4" 'BEGIN {
    printf "%-40s %6.2f s, %5.2f M records/s, %5.2f M records for each second of processor\n",
      of, e, rows / e / 1e6, rows / p / 1e6 }'
}

TIMEFORMAT='%R %U %S'
# One run from start to end: ours GUARANTEE RUN.
ours() {
  local name=ours-$1-$2 elapsed user system
  { echo "SET 'millstream.checkpoint' = '1 s';"; job_of "$name" "$1"; } >"$dir/$name.sql"
  read -r elapsed user system < <({ time taskset -c 0 "$millstream" run "$dir/$name.sql" --workers 1 --quiet \
    --state "$dir/state-$name" >"$dir/$name.out" 2>&1 || echo failed >>"$dir/$name.out"; } 2>&1)
  ! grep -q '^failed$' "$dir/$name.out" || die "$name: $(cat "$dir/$name.out")"
  all_counted "$name"
  report_run ours "$1" "$elapsed" "$(awk -v u="$user" -v s="$system" 'BEGIN {print u + s}')"
}

# Two jobs of Flink in one process, one behind the other: the second finds a warm machine of Java. flink GUARANTEE RUN.
flink() {
  local name=flink-$1-$2 mode=AT_LEAST_ONCE elapsed user system times=() first=() second=()
  [ "$1" = at-least-once ] || mode=EXACTLY_ONCE
  cat >"$dir/$name.sql" <<SQL
SET 'parallelism.default' = '1';
SET 'pipeline.object-reuse' = 'true';
SET 'execution.checkpointing.interval' = '1 s';
SET 'execution.checkpointing.mode' = '$mode';
SET 'execution.checkpointing.dir' = 'file://$dir/state-$name';
$(job_of "$name-cold" "$1")
$(job_of "$name-warm" "$1")
SQL
  read -r elapsed user system < <({ time taskset -c 0 java -Xmx2g --add-opens=java.base/java.util=ALL-UNNAMED \
    --add-opens=java.base/java.lang=ALL-UNNAMED -cp "$flink/peer-flink-sql-0.1.0.jar:$flink/lib/*" \
    peer.Sql "$dir/$name.sql" >"$dir/$name.out" 2>"$dir/$name.err" || true; } 2>&1)
  [ "$(wc -l <"$dir/$name.out")" = 2 ] || die "$name: $(tail -n 20 "$dir/$name.err")"
  all_counted "$name-cold"
  all_counted "$name-warm"
  mapfile -t times <"$dir/$name.out"
  read -r -a first <<<"${times[0]}"
  read -r -a second <<<"${times[1]}"
  # Seconds, net runtime, processor time, version. What the process takes for its first job: all but the second one.
  report_run flink-from-its-start "$1" \
    "$(awk -v e="$elapsed" -v s="${second[0]}" 'BEGIN {print e - s}')" \
    "$(awk -v u="$user" -v s="$system" -v p="${second[2]}" 'BEGIN {print u + s - p}')"
  report_run flink-warm "$1" "${second[1]}" "${second[2]}"
  flink_version=${first[3]}
}

flink=$CARGO_TARGET_DIR/peers/flink-sql
no_flink=
build_flink() {
  mvn --quiet --batch-mode --file bench/peers/flink-sql/pom.xml -Dpeer.directory="$flink" package
}
if ! measured flink; then
  no_flink="it was not asked for"
elif ! (build_flink); then
  no_flink="the lines above say what could not be installed or built"
fi

# The messages of throughput, in a topic.
fill() {
  fresh_broker
  cat >"$dir/fill.sql" <<SQL
CREATE TABLE made ($columns) WITH ('connector' = 'generator', 'rows' = '$rows', 'flows' = '4', 'interval' = '1ms',
  'fields.id.kind' = 'sequence', 'fields.id.max' = '99999999999', 'fields.user.max' = '99999',
  'fields.type.kind' = 'choice', 'fields.type.values' = 'view,click,purchase,cart', 'fields.amount.max' = '500',
  'fields.url.kind' = 'constant', 'fields.url.value' = 'https://shop.example/item/12345');
$(table events events "$columns" ", 'sink.partitioner' = 'fixed'")
INSERT INTO events SELECT * FROM made;
SQL
  "$millstream" run "$dir/fill.sql" --workers 4 --quiet
}

flink_version=
throughput() {
  local run guarantee
  say "throughput: $rows messages, $runs runs, checkpoints each second"
  fill
  for run in $(seq "$runs"); do
    for guarantee in at-least-once exactly-once; do
      ours "$guarantee" "$run"
      if [ -z "$no_flink" ]; then flink "$guarantee" "$run"; fi
    done
  done
}

# Makes a topic without messages, all of whose partitions are there.
empty_topic() {
  cat >"$dir/make.sql" <<SQL
CREATE TABLE none (id BIGINT) WITH ('connector' = 'generator', 'rows' = '0');
$(table made "$1" "id BIGINT")
INSERT INTO made SELECT * FROM none;
SQL
  { table made "$1" "id BIGINT" "$bounded"; echo "SELECT count(*) FROM made;"; } >"$dir/look.sql"
  "$millstream" run "$dir/make.sql" --quiet
  [ "$("$millstream" run "$dir/look.sql" --quiet --format csv | tail -n 1)" = 0 ] || die "topic $1 is not empty"
}

# Windows of 10 s, of which one closes each 1.25 s, so that closings have four places between two checkpoints.
# latency NAME GUARANTEE [OPTION...]: $windows of them, and lines of $figures.
latency() {
  local name=$1 options sent_to
  options=$(delivery "$2" "$1")
  shift 2
  fresh_broker
  empty_topic live
  empty_topic counts
  local of_results="ws TIMESTAMP(3), we TIMESTAMP(3), \`user\` BIGINT, n BIGINT, s DOUBLE"
  cat >"$dir/$name.sql" <<SQL
SET 'millstream.checkpoint' = '1 s';
$(table events live "$columns, WATERMARK FOR ts AS ts" ", 'scan.startup.mode' = 'latest-offset'")
$(table counts counts "$of_results" "$options")
INSERT INTO counts SELECT window_start, window_end, \`user\`, count(*), sum(amount)
  FROM TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '1.25' SECOND, INTERVAL '10' SECOND))
  GROUP BY window_start, window_end, \`user\`;
SQL
  # A reader passes on what it has read, with the time at which the result was sent; the message's own is the reader's.
  cat >"$dir/reader.sql" <<SQL
$(table counts counts "$of_results, sent TIMESTAMP(3) METADATA FROM 'timestamp' VIRTUAL" \
  ", 'properties.isolation.level' = 'read_committed'")
$(table seen seen "we TIMESTAMP(3), n BIGINT, sent TIMESTAMP(3)")
INSERT INTO seen SELECT we, n, sent FROM counts;
SQL
  taskset -c 0 "$millstream" run "$dir/$name.sql" --workers 1 "$@" >"$dir/$name.out" 2>&1 &
  job=$!
  taskset -c "$others" "$millstream" run "$dir/reader.sql" --workers 1 >"$dir/reader.out" 2>&1 &
  reader=$!
  runs_now() { grep -q 'rows in' "$dir/$name.out" && grep -q 'rows in' "$dir/reader.out"; }
  recovery=$dir
  : >"$dir/log"
  await_job "line of progress of $name" runs_now
  sent_to=$(taskset -c "$others" java -Xmx512m -XX:+UseSerialGC bench/kafka/Events.java "$broker" live 4 "$rate" \
    $((seconds + 11)))
  # Queries of the topics now would take the processor from the job: latencies are computed from times in messages.
  sleep 3
  kill -0 "$job" 2>/dev/null || die "$name has ended: $(cat "$dir/$name.out")"
  figures_of_latency "$name" "${sent_to#* }"
  # The shell says that they were killed.
  { kill -KILL "$job" "$reader" && wait "$job" "$reader"; } 2>/dev/null || true
  job= reader=
}

# Events of a partition are in order, and so the first one behind the end of a window, of the partition whose is last,
# has closed it. figures_of_latency NAME BEHIND.
figures_of_latency() {
  local line all right
  cat >"$dir/buckets.sql" <<SQL
$(table events live "ts TIMESTAMP(3), partition BIGINT METADATA VIRTUAL,
  made TIMESTAMP(3) METADATA FROM 'timestamp' VIRTUAL, WATERMARK FOR ts AS ts" "$bounded")
CREATE TABLE buckets (ws TIMESTAMP(3), partition BIGINT, n BIGINT, made TIMESTAMP(3))
  WITH ('connector' = 'file', 'path' = '$dir/buckets-$1.csv', 'format' = 'csv');
INSERT INTO buckets SELECT window_start, partition, count(*), min(made)
  FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1.25' SECOND)) GROUP BY window_start, window_end, partition;
SQL
  "$millstream" run "$dir/buckets.sql" --quiet
  cat >"$dir/latency.sql" <<SQL
CREATE TABLE buckets (ws TIMESTAMP(3), partition BIGINT, n BIGINT, made TIMESTAMP(3))
  WITH ('connector' = 'file', 'path' = '$dir/buckets-$1.csv', 'format' = 'csv');
$(table seen seen "we TIMESTAMP(3), n BIGINT, sent TIMESTAMP(3), seen TIMESTAMP(3) METADATA FROM 'timestamp' VIRTUAL" \
  "$bounded")
CREATE VIEW parts AS SELECT ws, sum(n) AS n, max(made) AS closed FROM buckets GROUP BY ws HAVING count(*) = 4;
CREATE VIEW windows AS SELECT c.ws AS we, c.closed, sum(p.n) AS n FROM parts AS c JOIN parts AS p
  ON p.ws < c.ws AND p.ws >= c.ws - INTERVAL '10' SECOND GROUP BY c.ws, c.closed HAVING count(*) = 8;
CREATE VIEW counted AS SELECT we, sum(n) AS n FROM seen GROUP BY we;
CREATE VIEW late AS SELECT (extract(epoch FROM s.sent) - extract(epoch FROM w.closed)) * 1000 AS sent,
  (extract(epoch FROM s.seen) - extract(epoch FROM w.closed)) * 1000 AS seen
  FROM seen AS s JOIN windows AS w ON s.we = w.we;
SELECT a.all_windows, b.right_windows, l.* FROM
  (SELECT count(*) AS all_windows FROM windows) AS a,
  (SELECT count(*) AS right_windows FROM windows AS w JOIN counted AS c ON w.we = c.we AND w.n = c.n) AS b,
  (SELECT count(*),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY sent), percentile_cont(0.99) WITHIN GROUP (ORDER BY sent), max(sent),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY seen), percentile_cont(0.99) WITHIN GROUP (ORDER BY seen), max(seen)
    FROM late) AS l;
SQL
  for _ in $(seq 30); do
    line=$("$millstream" run "$dir/latency.sql" --format csv --quiet | tail -n 1)
    IFS=, read -r all right _ <<<"$line"
    [ "$all" != "$right" ] || break # Also where there is none.
    sleep 1
  done
  [ "$all" != 0 ] || die "$1: no window has events all the time: they were behind their schedule by $2 ms at most"
  [ "$all" = "$right" ] || die "$1: $right of $all windows have all rows"
  awk -F, -v of="$1" -v behind="$2" -v figures="$figures" '{
    printf "%-34s %d windows, %d results; ms until sent: p50 %.0f, p99 %.0f, most %.0f; ", of, $1, $3, $4, $5, $6
    printf "until read: p50 %.0f, p99 %.0f, most %.0f; events behind by %d ms at most\n", $7, $8, $9, behind
    print of "-p99", $8 >>figures
    print of "-behind", behind >>figures }' <<<"$line"
}

# report_target WHAT TARGET MEASURED UNIT at-least|at-most: a line of the table.
report_target() {
  awk -v what="$1" -v target="$2" -v measured="$3" -v unit="$4" -v how="$5" 'BEGIN {
    met = how == "at-least" ? measured >= target : measured <= target
    printf "%-62s %s %-18s %8.2f  %s\n", what, how == "at-least" ? ">=" : "<=", target " " unit, measured,
      met ? "met" : "NOT MET" }'
}
rate_of() { awk -v rows="$rows" -v e="$(median "$1")" 'BEGIN {print rows / e / 1e6}'; }
ratio() { awk -v a="$(median "$1")" -v b="$(median "$2")" 'BEGIN {print a / b}'; }
# report_latency NAME WHAT TARGET
report_latency() {
  local behind
  report_target "p99 at $rate/s, $2" "$3" "$(median "latency-$1-p99")" ms at-most
  behind=$(median "latency-$1-behind")
  [ "$behind" -le 100 ] || echo "  not at that rate: the events were behind their schedule by $behind ms at most"
}

if measured throughput || measured flink; then throughput; fi
if measured latency; then
  say "latency: $rate messages a second, for $((seconds + 11)) s"
  latency latency-at-least-once at-least-once
  latency latency-at-least-once-checkpoints at-least-once --state "$dir/state-latency-1"
  latency latency-exactly-once exactly-once --state "$dir/state-latency-2"
fi

say "asked, measured: medians of $runs runs${flink_version:+, Flink $flink_version}"
if measured throughput || measured flink; then
  for guarantee in at-least-once exactly-once; do
    report_target "throughput, $guarantee, checkpoints of 1 s" 1 "$(rate_of "ours-elapsed-$guarantee")" \
      "M records/s" at-least
  done
fi
if measured latency; then
  report_latency at-least-once "at-least-once, no checkpoints" 50
  report_latency at-least-once-checkpoints "at-least-once, checkpoints of 1 s" 50
  report_latency exactly-once "exactly-once, checkpoints of 1 s" 1200
fi
if [ -n "$no_flink" ]; then
  echo "NOT RUN: Flink: $no_flink"
else
  for guarantee in at-least-once exactly-once; do
    report_target "records for a second of processor, warm Flink's, $guarantee" 5 \
      "$(ratio "flink-warm-processor-$guarantee" "ours-processor-$guarantee")" "times" at-least
    report_target "the same with the start of both processes, $guarantee" 5 \
      "$(ratio "flink-from-its-start-processor-$guarantee" "ours-processor-$guarantee")" "times" at-least
  done
fi
