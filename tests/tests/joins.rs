//! Joins and rankings of endless streams, on clusters of several sizes and by every exchange,
//! against DataFusion over the rows that are not late.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::metrics::Metrics;
use tests::asked::{Asked, check, endless, in_sessions, in_windows, on_time, same, sessions_of};
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::memory::{Event, Memory, Table};
use tests::random::{COLUMNS, Random, Row, Stream, batch};
use tests::scenario::plan;

/// Rows of the small table: several of one key, some of none; or no rows, or one, or no key at all.
fn small(random: &mut Random) -> RecordBatch {
    let rows = match random.below(10) {
        few @ 0..2 => few,
        _ => random.below(40),
    };
    let without_key = *random.one_of(&[10, 10, 10, 10, 10, 10, 10, 100]);
    let fields = [("k", DataType::Int64), ("most", DataType::Int64), ("name", DataType::Utf8)];
    let fields = fields.map(|(name, of)| Field::new(name, of, true));
    let keys = (0..rows).map(|_| (!random.chance(without_key)).then(|| random.below(12) as i64));
    let keys: Int64Array = keys.collect();
    let most: Int64Array = (0..rows).map(|_| Some(random.below(200) as i64 - 100)).collect();
    let names: StringArray = (0..rows).map(|row| Some(format!("name {}", row % 7))).collect();
    let schema = Arc::new(Schema::new(fields.to_vec()));
    RecordBatch::try_new(schema, vec![Arc::new(keys), Arc::new(most), Arc::new(names)])
        .expect("the columns fit")
}

/// A table that ends, in some flows.
fn table_of(batch: &RecordBatch) -> Table {
    let half = batch.num_rows() / 2;
    let rest = batch.num_rows() - half;
    let flows = vec![
        vec![Event::Rows(batch.slice(0, half))],
        vec![],
        vec![Event::Silence(3_000_000), Event::Rows(batch.slice(half, rest))],
    ];
    Table { schema: batch.schema(), bounded: true, flows }
}

fn lookups(random: &mut Random) -> Asked {
    let on = random.one_of(&[
        "t.k = d.k",
        "d.k = t.k AND t.v < d.most",
        "t.k + 1 = d.k AND (d.name <> 'name 3' OR t.s = 'a')",
        "t.k = d.k AND t.k = d.most AND t.w > 10",
        "t.v > d.most AND d.name = 'name 1'",
    ]);
    match random.below(6) {
        0 => same(format!("SELECT t.*, d.most, d.name FROM t JOIN d ON {on}")),
        1 => same(format!("SELECT t.k, t.v, d.* FROM t LEFT JOIN d ON {on} WHERE t.k < 9")),
        2 => same(format!("SELECT d.name, t.v FROM d RIGHT JOIN t ON {on} AND d.most > 0")),
        3 => same(format!("SELECT t.v, t.s FROM t WHERE EXISTS (SELECT 1 FROM d WHERE {on})")),
        4 => same(format!("SELECT t.v, t.ts FROM t WHERE NOT EXISTS (SELECT * FROM d WHERE {on})")),
        _ => same(
            "SELECT t.k, a.name, b.most FROM t JOIN d AS a ON t.k = a.k
             LEFT JOIN (SELECT k, max_of AS most FROM (SELECT k, most + 1 AS max_of FROM d
                        WHERE most > 5)) AS b ON a.most = b.most OR b.k = t.k",
        ),
    }
}

#[test]
fn a_stream_meets_a_table_that_every_worker_has() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 70_000);
        let (stream, table) = (endless(&mut random), small(&mut random));
        let asked = lookups(&mut random);
        let all: Vec<Row> = stream.flows.concat();
        let tables = [("t", &stream.table), ("d", &table_of(&table))];
        rows += check(&asked, &tables, &[("t", batch(&all)), ("d", table.clone())], seed);
    }
    cases.met(rows > 10_000, &format!("{rows} rows"));
}

#[test]
fn a_table_is_joined_in_front_of_windows_and_behind_them() {
    let mut rows = 0;
    let mut cases = cases(45);
    for seed in &mut cases {
        let mut random = Random::new(seed + 71_000);
        let (stream, table) = (endless(&mut random), small(&mut random));
        let size = *random.one_of(&[1, 10, 60]);
        let kind = random.one_of(&["JOIN", "LEFT JOIN"]);
        let window = format!("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)");
        let start = format!("date_bin(INTERVAL '{size} second', ts)");
        let asked = match seed % 3 {
            0 => Asked {
                ours: format!(
                    "SELECT window_start, name, count(*), sum(v) FROM {window} AS t
                     {kind} d ON t.k = d.k GROUP BY window_start, window_end, name"
                ),
                batch: format!(
                    "SELECT {start}, name, count(*), sum(v) FROM t {kind} d ON t.k = d.k
                     GROUP BY {start}, name"
                ),
            },
            1 => Asked {
                ours: format!(
                    "CREATE VIEW named AS SELECT t.v, t.ts AS at, d.name FROM t {kind} d
                       ON t.k = d.k AND d.most < t.v;
                     SELECT window_end, name, min(v) FROM
                       TUMBLE(TABLE named, DESCRIPTOR(at), INTERVAL '{size}' SECOND)
                     GROUP BY window_start, window_end, name"
                ),
                batch: format!(
                    "SELECT {start} + INTERVAL '{size} second', name, min(v) FROM t {kind} d
                       ON t.k = d.k AND d.most < t.v GROUP BY {start}, name"
                ),
            },
            _ => Asked {
                ours: format!(
                    "SELECT g.window_start, g.k, g.n, d.name FROM (
                       SELECT window_start, window_end, k, count(*) AS n FROM {window}
                       GROUP BY window_start, window_end, k) AS g {kind} d ON g.n = d.k"
                ),
                batch: format!(
                    "SELECT g.at, g.k, g.n, d.name FROM (
                       SELECT {start} AS at, k, count(*) AS n FROM t GROUP BY {start}, k) AS g
                     {kind} d ON g.n = d.k"
                ),
            },
        };
        let all = batch(&in_windows(&stream, size));
        let tables = [("t", &stream.table), ("d", &table_of(&table))];
        rows += check(&asked, &tables, &[("t", all), ("d", table.clone())], seed);
    }
    cases.met(rows > 3_000, &format!("{rows} rows"));
}

#[test]
fn a_table_is_read_once_and_its_rows_are_sent_once_to_each_process() {
    let names: StringArray = (0..2_000).map(|row| Some(format!("name {row}"))).collect();
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8, true)]));
    let table = RecordBatch::try_new(schema, vec![Arc::new(names)]).expect("the column fits");
    let stream = endless(&mut Random::new(3));
    let bytes = |nodes: u32, workers: u32| {
        let memory = Memory::new(None);
        memory.add("t", stream.table.clone());
        memory.add("d", table_of(&table));
        let script = format!(
            "SET millstream.multicast = 'tree';
             CREATE TABLE t ({COLUMNS}) WITH ('connector' = 'memory');
             CREATE TABLE d (name STRING) WITH ('connector' = 'memory');
             SELECT t.v FROM t LEFT JOIN d ON t.s = d.name"
        );
        let job = plan(&memory, &script, nodes, workers).job;
        let run = Cluster::seeded(nodes, workers, 1).run(&Arc::new(job)).expect("it runs");
        assert_eq!(memory.opened("d"), 3, "each of the three flows once on {nodes}x{workers}");
        // Of the workers of a process each has a part of the one table.
        let held = |metrics: &Metrics| metrics.state_bytes.load(Ordering::Relaxed);
        let node = |node: u32| &run.metrics[(node * workers) as usize..][..workers as usize];
        let held = (0..nodes).map(|of| node(of).iter().map(|metrics| held(metrics)).sum::<u64>());
        let held: Vec<u64> = held.collect();
        assert!(held.iter().all(|bytes| bytes.abs_diff(held[0]) <= held[0] / 20), "{held:?}");
        (run.sum(|metrics| &metrics.broadcast_bytes), held[0])
    };
    let (once, held) = bytes(2, 1);
    assert!(once > 20_000 && held > 20_000, "{once} bytes sent, {held} held");
    for (nodes, workers) in [(1, 1), (1, 4), (2, 3), (4, 1), (4, 2)] {
        let (sent, kept) = bytes(nodes, workers);
        // Several workers send what is left over of their batches, and so a few headers more.
        let expected = once * u64::from(nodes - 1);
        assert!(sent.abs_diff(expected) <= expected / 5, "{nodes}x{workers}: {sent}, {expected}");
        assert!(kept.abs_diff(held) <= held / 5, "{nodes}x{workers}: {kept} held, {held}");
    }
}

#[test]
fn a_table_that_is_too_large_is_refused() {
    let table: StringArray = (0..1_000).map(|row| Some(format!("name {row}"))).collect();
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8, true)]));
    let table = RecordBatch::try_new(schema, vec![Arc::new(table)]).expect("the column fits");
    let stream = endless(&mut Random::new(1));
    for (bytes, fits) in [(16 << 10, true), (8 << 10, false)] {
        let memory = Memory::new(None);
        memory.add("t", stream.table.clone());
        memory.add("d", table_of(&table));
        let script = format!(
            "SET millstream.table_bytes = {bytes};
             CREATE TABLE t ({COLUMNS}) WITH ('connector' = 'memory');
             CREATE TABLE d (name STRING) WITH ('connector' = 'memory');
             SELECT t.v FROM t JOIN d ON t.s = d.name"
        );
        let stage = plan(&memory, &script, 2, 1);
        let run = Cluster::seeded(2, 1, 1).run(&Arc::new(stage.job));
        match run {
            Ok(_) => assert!(fits),
            Err(error) => {
                assert!(
                    !fits && error.to_string().starts_with("table 'd' is too large"),
                    "{error}"
                );
            }
        }
    }
}

/// Rows that are not late by their own time.
fn by_time(stream: &Stream) -> RecordBatch {
    batch(&on_time(stream, |row, met| row.ts < met))
}

/// How far apart two times may be, in our dialect and in batch.
fn bounds(random: &mut Random) -> String {
    let seconds = |random: &mut Random, most: u64| random.below(most);
    let (back, ahead) = (seconds(random, 20), seconds(random, 20));
    match random.below(5) {
        0 => format!(
            "a.ts BETWEEN b.ts - INTERVAL '{back}' SECOND AND b.ts + INTERVAL '{ahead}' SECOND"
        ),
        1 => format!("a.ts >= b.ts AND a.ts - INTERVAL '{ahead}' SECOND < b.ts"),
        2 => format!(
            "b.ts > a.ts + INTERVAL '{back}' SECOND
             AND b.ts <= a.ts + INTERVAL '{}' SECOND",
            back + ahead
        ),
        3 => format!(
            "a.ts + INTERVAL '{back}' SECOND <= b.ts AND b.ts < INTERVAL '{}' SECOND + a.ts",
            back + 1
        ),
        _ => format!("b.ts = a.ts - INTERVAL '{back}' SECOND"),
    }
}

fn nearby(random: &mut Random) -> Asked {
    let near = bounds(random);
    let more = random.one_of(&["a.k = b.k", "a.k = b.k AND a.v < b.v", "a.k = b.k AND a.s = b.s"]);
    let on = format!("{more} AND {near}");
    let columns = "a.k, a.v, a.ts, b.k, b.w, b.ts";
    match random.below(7) {
        0 => same(format!("SELECT {columns} FROM a JOIN b ON {on} WHERE a.k > 0")),
        1 => same(format!("SELECT {columns} FROM a, b WHERE a.k > 0 AND b.k > 0 AND {on}")),
        2 => same(format!("SELECT {columns} FROM a LEFT JOIN b ON {on} WHERE a.k > 0")),
        3 => same(format!("SELECT {columns} FROM a RIGHT JOIN b ON {on} WHERE b.k > 0")),
        4 => same(format!(
            "SELECT {columns} FROM (SELECT * FROM a WHERE k > 0) AS a
             FULL JOIN (SELECT * FROM b WHERE k > 0) AS b ON {on}"
        )),
        5 => same(format!("SELECT a.v, a.ts FROM a WHERE EXISTS (SELECT 1 FROM b WHERE {on})")),
        _ => same(format!("SELECT a.v, a.ts FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE {on})")),
    }
}

#[test]
fn rows_of_two_streams_meet_if_their_times_are_near() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 72_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let asked = nearby(&mut random);
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [("a", by_time(&left)), ("b", by_time(&right))];
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 10_000, &format!("{rows} rows"));
}

/// A chain of joins of windows on one key, grouped by what says of that where a row is, or not.
fn chained(random: &mut Random, size: u64) -> Asked {
    let [key, other] = *random.one_of(&[["k", "s"], ["s", "v"], ["v", "k"]]);
    let first = *random.one_of(&["", "", "LEFT", "RIGHT"]);
    let second = *random.one_of(&["", "", "LEFT"]);
    // The side whose rows are in all that the first join gives out.
    let always = if first == "RIGHT" { "b" } else { "a" };
    let second_on = if first.is_empty() { *random.one_of(&["a", "b"]) } else { always };
    let on = |left: &str, right: &str| {
        let same = |column: &str| format!("{left}.{column} = {right}.{column}");
        format!("{} AND {} AND {}", same("ws"), same("we"), same(key))
    };
    let by = *random.one_of(&["a", "b", "c"]);
    let mut groups = vec![format!("{by}.{key}"), format!("{always}.we")];
    match random.below(5) {
        0 => groups[0] = format!("{by}.{other}"),
        1 | 2 => groups.push(format!("b.{other}")),
        _ => {}
    }
    let groups = groups.join(", ");
    let query = |side: &dyn Fn(&str) -> String| {
        let [a, b, c] = ["a", "b", "c"].map(side);
        let (ab, bc) = (on("a", "b"), on(second_on, "c"));
        format!(
            "SELECT {groups}, count(*), sum(b.v), min(a.k) FROM {a} {first} JOIN {b} ON {ab}
             {second} JOIN {c} ON {bc} GROUP BY {groups}"
        )
    };
    let few = "v IS NULL OR v % 4 = 0";
    let start = format!("date_bin(INTERVAL '{size} second', ts)");
    Asked {
        ours: query(&|name| {
            let window = format!("TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)");
            let bounds = "window_start AS ws, window_end AS we";
            format!("(SELECT k, s, v, {bounds} FROM {window} WHERE {few}) {name}")
        }),
        batch: query(&|name| {
            let bounds = format!("{start} AS ws, {start} + INTERVAL '{size} second' AS we");
            format!("(SELECT k, s, v, {bounds} FROM {name} WHERE {few}) {name}")
        }),
    }
}

#[test]
fn rows_are_joined_and_grouped_where_a_join_has_led_them() {
    let mut rows = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 80_000);
        let streams = [(); 3].map(|()| endless(&mut random));
        let size = *random.one_of(&[1, 3]);
        let asked = chained(&mut random, size);
        let names = ["a", "b", "c"];
        let tables: Vec<_> =
            names.into_iter().zip(&streams).map(|(name, stream)| (name, &stream.table)).collect();
        let all = names.into_iter().zip(&streams);
        let all: Vec<_> =
            all.map(|(name, of)| (name, batch(&in_windows(of, size as i64)))).collect();
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 1_000, &format!("{rows} rows"));
}

#[test]
fn windows_are_over_either_time_of_rows_that_met() {
    let mut rows = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 73_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let size = *random.one_of(&[1, 10, 60]);
        let near = bounds(&mut random);
        let (kind, time) = *random.one_of(&[
            ("JOIN", "a.ts"),
            ("JOIN", "b.ts"),
            ("LEFT JOIN", "a.ts"),
            ("RIGHT JOIN", "b.ts"),
        ]);
        let met = format!(
            "{time} AS at, a.k AS l, b.k AS r, b.v FROM a {kind} b
                           ON a.k = b.k AND a.k > 0 AND b.k > 0 AND {near}"
        );
        let start = format!("date_bin(INTERVAL '{size} second', at)");
        let asked = Asked {
            ours: format!(
                "CREATE VIEW met AS SELECT {met};
                 SELECT window_start, l, r, count(*), sum(v) FROM
                   TUMBLE(TABLE met, DESCRIPTOR(at), INTERVAL '{size}' SECOND)
                 GROUP BY window_start, window_end, l, r"
            ),
            batch: format!(
                "SELECT {start}, l, r, count(*), sum(v) FROM (SELECT {met}) AS met
                 GROUP BY {start}, l, r"
            ),
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [("a", by_time(&left)), ("b", by_time(&right))];
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 2_000, &format!("{rows} rows"));
}

#[test]
fn the_first_rows_of_each_window() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 74_000);
        let stream = endless(&mut random);
        let size = *random.one_of(&[1, 10, 60]);
        let window = format!("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)");
        let start = format!("date_bin(INTERVAL '{size} second', ts)");
        let (ours, theirs) = match random.chance(50) {
            // All columns order the rows: those that are equal are equal in all.
            true => (format!("SELECT * FROM {window}"), format!("SELECT *, {start} AS at FROM t")),
            false => (
                format!(
                    "SELECT window_start, window_end, k, s, count(*) AS v, max(w) AS w,
                       max(ts) AS ts FROM {window} GROUP BY window_start, window_end, k, s"
                ),
                format!(
                    "SELECT {start} AS at, k, s, count(*) AS v, max(w) AS w, max(ts) AS ts
                     FROM t GROUP BY {start}, k, s"
                ),
            ),
        };
        let key = random.one_of(&["", ", k", ", s", ", k % 3"]);
        let first = random.one_of(&["v DESC", "v", "w DESC NULLS LAST", "ts", "ts DESC"]);
        let order = format!("{first}, k, s, v, w, ts");
        let number = |bounds: &str| {
            format!("ROW_NUMBER() OVER (PARTITION BY {bounds}{key} ORDER BY {order}) AS rn")
        };
        let wanted =
            random.one_of(&["rn <= 3", "rn = 1", "rn < 2 AND k >= 0", "5 >= rn", "rn > 1", "true"]);
        let asked = Asked {
            ours: format!(
                "SELECT window_start, k, s, v, w, ts, rn FROM (
                   SELECT *, {} FROM ({ours}) AS g) AS r WHERE {wanted}",
                number("window_start, window_end")
            ),
            batch: format!(
                "SELECT at, k, s, v, w, ts, rn FROM (SELECT *, {} FROM ({theirs}) AS g) AS r
                 WHERE {wanted}",
                number("at")
            ),
        };
        let all = batch(&in_windows(&stream, size));
        rows += check(&asked, &[("t", &stream.table)], &[("t", all)], seed);
    }
    cases.met(rows > 5_000, &format!("{rows} rows"));
}

#[test]
fn rows_meet_the_version_of_their_time() {
    let mut rows = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 75_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let kind = random.one_of(&["JOIN", "LEFT JOIN"]);
        let wanted = random.one_of(&["true", "a.k > 0", "r.v > 0", "a.v < r.v AND r.k < 9"]);
        let columns = "a.k, a.v, a.ts, r.v AS other, r.ts AS since";
        // Of versions of one time the one with the greatest columns counts, NULL being least: of
        // the columns that are read, which differ in `v`.
        let versions = "SELECT *, ROW_NUMBER() OVER (PARTITION BY k, ts
                          ORDER BY v DESC NULLS LAST) AS n FROM b";
        let earlier = random.chance(40);
        let than = if earlier { ">" } else { ">=" };
        let (kind, join) = match random.below(4) {
            0 if !earlier => {
                (*kind, format!("{kind} b FOR SYSTEM_TIME AS OF a.ts AS r ON a.k = r.k"))
            }
            1 => {
                let join = format!("ASOF JOIN b r MATCH_CONDITION (a.ts {than} r.ts) ON a.k = r.k");
                ("LEFT JOIN", join)
            }
            _ => (*kind, format!("ASOF {kind} b AS r ON a.k = r.k AND a.ts {than} r.ts")),
        };
        let (since, until) = if earlier { ("<", "<=") } else { ("<=", "<") };
        // Versions meet rows by key, or go to every worker.
        let hint = if random.chance(50) { "/*+ BROADCAST(r) */" } else { "" };
        let asked = Asked {
            ours: format!("SELECT {hint} {columns} FROM a {join} WHERE {wanted}"),
            batch: format!(
                "WITH v AS (SELECT *, lead(ts) OVER (PARTITION BY k ORDER BY ts) AS until
                   FROM ({versions}) WHERE n = 1)
                 SELECT {columns} FROM a {kind} v AS r
                   ON a.k = r.k AND r.ts {since} a.ts AND (r.until IS NULL OR a.ts {until} r.until)
                 WHERE {wanted}"
            ),
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [("a", by_time(&left)), ("b", by_time(&right))];
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 5_000, &format!("{rows} rows"));
}

/// A join of what is in the same session, of sides `l` and `r`, whose bounds have these names.
fn in_one_session(random: &mut Random, l: &str, r: &str, (start, end): (&str, &str)) -> String {
    let more = random.one_of(&["", "AND l.v < r.v", "AND l.s = r.s"]);
    let on = format!("l.k = r.k AND l.{start} = r.{start} AND l.{end} = r.{end} {more}");
    let columns = format!("l.k, l.{start}, l.{end}, l.v, l.ts, r.k, r.v, r.ts");
    match random.below(6) {
        0 => format!("SELECT {columns} FROM {l} AS l JOIN {r} AS r ON {on}"),
        1 => format!("SELECT {columns} FROM {l} AS l LEFT JOIN {r} AS r ON {on}"),
        2 => format!("SELECT {columns} FROM {l} AS l RIGHT JOIN {r} AS r ON {on}"),
        3 => format!("SELECT {columns} FROM {l} AS l FULL JOIN {r} AS r ON {on}"),
        4 => format!(
            "SELECT k, v, {start}, {end} FROM {l} AS l
             WHERE EXISTS (SELECT 1 FROM {r} AS r WHERE {on})"
        ),
        _ => format!(
            "SELECT k, v, {start}, {end} FROM {l} AS l
             WHERE NOT EXISTS (SELECT 1 FROM {r} AS r WHERE {on})"
        ),
    }
}

/// The rows of streams meet in the sessions of both together (NB11): a session is one of all rows
/// of its key, whichever stream they are of.
#[test]
fn rows_of_two_streams_meet_in_a_session_of_both() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 78_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let gap = 1 + random.below(8) as i64;
        let both = "SELECT k, s, v, ts, 'a' AS side FROM a WHERE k > 0
                    UNION ALL SELECT k, s, v, ts, 'b' AS side FROM b WHERE k > 0";
        let mut same = random.clone();
        let side = |side: &str| {
            format!(
                "(SELECT * FROM SESSION(TABLE u PARTITION BY k, DESCRIPTOR(ts),
                   INTERVAL '{gap}' SECOND) WHERE side = '{side}')"
            )
        };
        let bounds = ("window_start", "window_end");
        let ours = in_one_session(&mut random, &side("a"), &side("b"), bounds);
        let batch = in_one_session(
            &mut same,
            "(SELECT * FROM m WHERE side = 'a')",
            "(SELECT * FROM m WHERE side = 'b')",
            ("ws", "we"),
        );
        let asked = Asked {
            ours: format!("CREATE VIEW u AS {both}; {ours}"),
            batch: format!("WITH u AS ({both}), m AS ({}) {batch}", sessions_of("u", gap)),
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [("a", in_sessions(&left, gap)), ("b", in_sessions(&right, gap))];
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 5_000, &format!("{rows} rows"));
}

/// Windows that are sessions are equal if both their bounds are: sides that each have sessions of
/// their own, as rows and grouped.
#[test]
fn equal_sessions_meet() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 79_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let gap = 1 + random.below(8) as i64;
        // Streams that have nothing to do with each other have few sessions in common; one stream
        // has all, of which a side may lack some.
        let other = if random.chance(70) { "a" } else { "b" };
        let wanted = random.one_of(&["v > 0", "s <> 'a'", "v IS NULL OR v < 50"]).to_owned();
        let grouped = random.chance(50);
        let side = |wanted: &str, bounds: (&str, &str), rows: &str| {
            let (start, end) = bounds;
            match grouped {
                true => format!(
                    "(SELECT k, {start}, {end}, max(s) AS s, sum(v) AS v, max(ts) AS ts FROM {rows}
                      GROUP BY k, {start}, {end})"
                ),
                false => format!("(SELECT * FROM {rows} WHERE {wanted})"),
            }
        };
        let session = |table: &str| {
            format!(
                "SESSION(TABLE {table} PARTITION BY k, DESCRIPTOR(ts), INTERVAL '{gap}' SECOND)"
            )
        };
        let mut same = random.clone();
        let bounds = ("window_start", "window_end");
        let ours = in_one_session(
            &mut random,
            &side(wanted, bounds, &session("x")),
            &side("true", bounds, &session("y")),
            bounds,
        );
        let bounds = ("ws", "we");
        let batch = in_one_session(
            &mut same,
            &side(wanted, bounds, "p"),
            &side("true", bounds, "q"),
            bounds,
        );
        let view = |of: &str| format!("SELECT k, s, v, ts, '' AS side FROM {of} WHERE k > 0");
        let (x, y) = (view("a"), view(other));
        let asked = Asked {
            ours: format!("CREATE VIEW x AS {x}; CREATE VIEW y AS {y}; {ours}"),
            batch: format!(
                "WITH x AS ({x}), y AS ({y}), p AS ({}), q AS ({}) {batch}",
                sessions_of("x", gap),
                sessions_of("y", gap)
            ),
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [("a", in_sessions(&left, gap)), ("b", in_sessions(&right, gap))];
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 5_000, &format!("{rows} rows"));
}
