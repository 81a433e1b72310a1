//! What is around each row of endless streams, on clusters of several sizes and by every exchange,
//! against DataFusion over the rows that are not late.

use std::sync::Arc;

use arrow::array::{ArrayRef, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;
use tests::asked::{Asked, check, endless, in_windows, on_time};
use tests::cases::cases;
use tests::random::{DELAY_MS, Random, Stream, batch};

/// Rows that are not late by their own time.
fn by_time(stream: &Stream) -> RecordBatch {
    batch(&on_time(stream, |row, met| row.ts < met))
}

/// A function over rows in the order of `ts`, in our dialect and in batch. There, rows of one time
/// are in the order of the columns `ties` where that matters; where it does not, the function says
/// the same of all of them.
struct Over {
    ours: String,
    batch: String,
    peers: bool,
}

fn over(random: &mut Random, partition: &str, ties: &str) -> Over {
    let values = [
        "count(*)",
        "count(v)",
        "sum(v)",
        "min(v)",
        "max(v)",
        "avg(v)",
        "sum(v) FILTER (WHERE k % 2 = 0)",
        "sum(v * 2 - k)",
        "sum(w)",
        "count(s)",
        "max(w) FILTER (WHERE v < -90)",
        // Of no row at all.
        "sum(v) FILTER (WHERE k < 0)",
        "max(w) FILTER (WHERE v IS NULL AND v = 0)",
    ];
    let by_rows = random.chance(50);
    let length = |count: u64| match by_rows {
        true => format!("{count} PRECEDING"),
        false => format!("INTERVAL '{count}' SECOND PRECEDING"),
    };
    let most = *random.one_of(&[2, 10, 60]);
    let most = random.below(most);
    let from = match random.below(4) {
        0 => "UNBOUNDED PRECEDING".into(),
        1 => "CURRENT ROW".into(),
        _ => length(most),
    };
    let to = match random.below(3) {
        0 if from != "CURRENT ROW" => length(random.below(most + 1)),
        _ => "CURRENT ROW".into(),
    };
    let unit = if by_rows { "ROWS" } else { "RANGE" };
    let framed = format!("{unit} BETWEEN {from} AND {to}");
    let one_row = ["lag(v)", "lag(v, 2, -1)", "lag(k, 5)", "lag(v) IGNORE NULLS"];
    let in_order = [
        "first_value(v)",
        "last_value(v)",
        "nth_value(v, 2)",
        "nth_value(v, 7)",
        "first_value(v) IGNORE NULLS",
    ];
    let (function, frame, peers) = match random.below(10) {
        0 => ("row_number()", String::new(), false),
        1 => (*random.one_of(&["rank()", "dense_rank()"]), String::new(), true),
        2 => (*random.one_of(&one_row), String::new(), false),
        3 if by_rows => (*random.one_of(&in_order), framed, false),
        4 => (*random.one_of(&values), String::new(), true),
        _ => (*random.one_of(&values), framed, !by_rows),
    };
    let text = |order: &str| format!("{function} OVER ({partition} ORDER BY {order} {frame})");
    Over { ours: text("ts"), batch: text(if peers { "ts" } else { ties }), peers }
}

/// The columns of random rows in the order in which they tell rows of one time apart.
const TIES: &str = "ts, k NULLS FIRST, s NULLS FIRST, v NULLS FIRST, w NULLS FIRST";

#[test]
fn each_row_has_what_is_around_it() {
    let mut rows = 0;
    let mut cases = cases(80);
    for seed in &mut cases {
        let mut random = Random::new(seed + 76_000);
        let stream = endless(&mut random);
        let partitions =
            ["", "PARTITION BY k", "PARTITION BY s", "PARTITION BY k % 3, s", "PARTITION BY k"];
        let main = random.one_of(&partitions);
        let (mut ours, mut theirs) = (vec![], vec![]);
        for call in 0..1 + random.below(4) {
            let partition = if random.chance(60) { main } else { random.one_of(&partitions) };
            // Rows that are equal in all columns may be told apart by one order, not by two.
            let found = loop {
                let found = over(&mut random, partition, TIES);
                if found.peers || partition == main {
                    break found;
                }
            };
            ours.push(format!("{} AS f{call}", found.ours));
            theirs.push(format!("{} AS f{call}", found.batch));
        }
        let inner = random.one_of(&["", "WHERE k > 0", "WHERE v IS NOT NULL AND w < 200"]);
        let outer = random.one_of(&["", "WHERE f0 > 1", "WHERE f0 = 1 OR f0 IS NULL"]);
        let query = |calls: &[String]| {
            let calls = calls.join(", ");
            format!("SELECT * FROM (SELECT k, s, v, w, ts, {calls} FROM t {inner}) {outer}")
        };
        let asked = Asked { ours: query(&ours), batch: query(&theirs) };
        rows += check(&asked, &[("t", &stream.table)], &[("t", by_time(&stream))], seed);
    }
    cases.met(rows > 15_000, &format!("{rows} rows"));
}

/// Functions over the windows of a stream, in their order.
fn around_windows(tumble: &str, start: &str) -> Asked {
    Asked {
        ours: format!(
            "SELECT window_start, n, n - lag(n) OVER (ORDER BY window_time),
               sum(n) OVER (ORDER BY window_time RANGE INTERVAL '9' SECOND PRECEDING)
             FROM (SELECT window_start, window_time, count(*) AS n FROM {}
                   GROUP BY window_start, window_end, window_time)",
            tumble
        ),
        batch: format!(
            "SELECT at, n, n - lag(n) OVER (ORDER BY at),
               sum(n) OVER (ORDER BY at RANGE INTERVAL '9' SECOND PRECEDING)
             FROM (SELECT {start} AS at, count(*) AS n FROM t GROUP BY {start})"
        ),
    }
}

#[test]
fn windows_are_over_what_is_around_rows_and_around_windows() {
    let mut rows = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 77_000);
        let stream = endless(&mut random);
        let size = *random.one_of(&[1, 10, 60]);
        let start = format!("date_bin(INTERVAL '{size} second', ts)");
        let tumble = |table: &str| {
            format!("TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)")
        };
        let ties = "ts, k NULLS FIRST, v NULLS FIRST";
        let asked = match seed % 3 {
            0 => {
                let Over { ours: our, batch: their, .. } =
                    over(&mut random, "PARTITION BY k", ties);
                Asked {
                    ours: format!(
                        "CREATE VIEW o AS SELECT ts, k, v, {our} AS x FROM t;
                         SELECT window_start, k, max(x), count(*) FROM {}
                         GROUP BY window_start, window_end, k",
                        tumble("o")
                    ),
                    batch: format!(
                        "SELECT {start}, k, max(x), count(*) FROM (
                           SELECT ts, k, v, {their} AS x FROM t) GROUP BY {start}, k"
                    ),
                }
            }
            1 => {
                let bounds = "PARTITION BY window_start, window_end, k";
                let in_batch = format!("PARTITION BY {start}, k");
                // Numbers of a window wait for its end, and are for rows that are late for less.
                let (our, their) = loop {
                    let mut same = random.clone();
                    let our = over(&mut random, bounds, ties).ours;
                    if !our.starts_with("row_number") {
                        break (our, over(&mut same, &in_batch, ties).batch);
                    }
                };
                Asked {
                    ours: format!(
                        "SELECT window_start, window_end, k, max(x), count(*) FROM (
                           SELECT window_start, window_end, k, v, ts, {our} AS x FROM {})
                         GROUP BY window_start, window_end, k",
                        tumble("t")
                    ),
                    batch: format!(
                        "SELECT {start}, {start} + INTERVAL '{size} second', k, max(x), count(*)
                         FROM (SELECT ts, k, v, {their} AS x FROM t) GROUP BY {start}, k"
                    ),
                }
            }
            _ => around_windows(&tumble("t"), &start),
        };
        let all = match seed % 3 {
            2 => batch(&in_windows(&stream, size)),
            _ => by_time(&stream),
        };
        rows += check(&asked, &[("t", &stream.table)], &[("t", all)], seed);
    }
    cases.met(rows > 2_000, &format!("{rows} rows"));
}

/// The rows of a stream with the watermark that each met, as the column `wm`.
fn with_watermarks(stream: &Stream) -> RecordBatch {
    let (mut rows, mut met) = (vec![], vec![]);
    for flow in &stream.flows {
        let mut watermark = None;
        for row in flow {
            rows.push(row.clone());
            met.push(watermark);
            watermark = watermark.max(Some(row.ts - DELAY_MS));
        }
    }
    let rows = batch(&rows);
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let field = Arc::new(Field::new("wm", time, true));
    let fields: Vec<_> = rows.schema().fields().iter().cloned().chain([field]).collect();
    let met: ArrayRef = Arc::new(TimestampMillisecondArray::from(met));
    let columns = rows.columns().iter().cloned().chain([met]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("the columns fit")
}

/// A query about the watermark that rows met.
fn about_watermarks(random: &mut Random) -> Asked {
    const CALL: &str = "CURRENT_WATERMARK(ts)";
    let size = *random.one_of(&[1, 10, 60]);
    let start = format!("date_bin(INTERVAL '{size} second', ts)");
    let counts = format!("(wm IS NULL OR {start} + INTERVAL '{size} second' > wm)");
    let over = "count(*) OVER (PARTITION BY k ORDER BY ts)";
    let (ours, batch) = match random.below(6) {
        0 => (
            format!("SELECT k, v, ts, {CALL} AS wm FROM t WHERE v > 0"),
            "SELECT k, v, ts, wm FROM t WHERE v > 0".into(),
        ),
        1 => (
            format!("SELECT k, v, s FROM t WHERE ts < {CALL}"),
            "SELECT k, v, s FROM t WHERE ts < wm".into(),
        ),
        2 => (
            format!(
                "CREATE VIEW met AS SELECT k, v, ts AS at, {CALL} AS wm FROM t WHERE k > 0;
                 SELECT k, at, wm + INTERVAL '3' SECOND FROM met WHERE wm IS NULL OR wm < at"
            ),
            "SELECT k, ts, wm + INTERVAL '3' SECOND FROM t
             WHERE k > 0 AND (wm IS NULL OR wm < ts)"
                .into(),
        ),
        3 => (
            format!(
                "SELECT window_start, k, min({CALL}), max({CALL}), count({CALL})
                 FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)
                 GROUP BY window_start, window_end, k"
            ),
            format!(
                "SELECT {start}, k, min(wm), max(wm), count(wm) FROM t WHERE {counts}
                 GROUP BY {start}, k"
            ),
        ),
        4 => (
            format!(
                "CREATE VIEW met AS SELECT k, ts, {CALL} AS wm FROM t;
                 SELECT k, ts, wm, {over} AS n FROM met"
            ),
            format!("SELECT k, ts, wm, {over} AS n FROM t WHERE wm IS NULL OR ts >= wm"),
        ),
        _ => (
            format!("SELECT {CALL} AS wm, k FROM t UNION ALL SELECT ts, v FROM t WHERE v > 90"),
            "SELECT wm, k FROM t UNION ALL SELECT ts, v FROM t WHERE v > 90".into(),
        ),
    };
    Asked { ours, batch }
}

#[test]
fn each_row_has_the_watermark_that_it_met() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 80_000);
        let stream = endless(&mut random);
        let asked = about_watermarks(&mut random);
        rows += check(&asked, &[("t", &stream.table)], &[("t", with_watermarks(&stream))], seed);
    }
    cases.met(rows > 5_000, &format!("{rows} rows"));
}
