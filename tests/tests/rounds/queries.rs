//! The queries of jobs that keep checkpoints: every kind of operator with state, over streams that
//! never end, one that may, and a table.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::record_batch::RecordBatch;
use tests::memory::{Event, Table};
use tests::random::{Random, Stream, schema, stream};

/// A query and the tables that it is asked of.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) text: String,
    pub(super) t: Table,
    pub(super) u: Table,
    /// Whether flows that are silent do not hold the watermark back.
    pub(super) idle: bool,
    /// Whether a window joins all pairs of its rows.
    pub(super) pairs: bool,
    /// Whether the state is larger than its budget.
    pub(super) spills: bool,
    pub(super) state_bytes: &'static str,
    pub(super) promise: Promise,
}

/// The relation of the rows to those of a run that nothing happens to.
#[derive(Clone)]
pub(super) enum Promise {
    /// They are the same.
    Equal,
    /// As many rows, each one a row of this query.
    SomeOf(String),
    /// The final ones are the same; others may come before, with lower counts.
    EarlyToo,
    /// A group counts at most these rows, and the others were late.
    Accounted(BTreeMap<String, u64>),
}

/// The distance of seeds whose state is larger than its budget.
const SPILLS_EVERY: u64 = 25;

/// The query of a seed over the streams `t` and `u` and the table `b`.
pub(super) fn asked(seed: u64, random: &mut Random) -> Asked {
    if seed % SPILLS_EVERY == SPILLS_EVERY - 1 {
        return spilling(random);
    }
    let (idle, silent) = (random.chance(8), random.chance(30));
    if idle {
        return accounted(random);
    }
    let early = random.chance(8);
    let [t, mut u] = [(); 2].map(|()| streaming(random, silent || early).table);
    // A stream that ends may be joined with one that does not.
    u.bounded = random.chance(25);
    let (text, promise) = if early { early_rows(random) } else { query(random) };
    let pairs = text.contains(" AS l ");
    Asked { text, t, u, idle, pairs, spills: false, state_bytes: "64 MiB", promise }
}

/// A stream that never ends, with or without silences.
fn streaming(random: &mut Random, silent: bool) -> Stream {
    loop {
        let mut stream = stream(random);
        if stream.idle == silent {
            stream.table.bounded = false;
            return stream;
        }
    }
}

fn early_rows(random: &mut Random) -> (String, Promise) {
    let size = *random.one_of(&[7, 60]);
    let window = *random.one_of(&["TUMBLE", "HOP", "CUMULATE"]);
    let slide = if window == "TUMBLE" { String::new() } else { seconds(size) + ", " };
    let size = if window == "TUMBLE" { size } else { 3 * size };
    let text = format!(
        "SELECT window_start, window_end, k, count(*) AS n, EMIT_KIND() AS kind FROM
           {window}(TABLE t, DESCRIPTOR(ts), {slide}{}) GROUP BY window_start, window_end, k
         EMIT EVERY INTERVAL '1' SECOND",
        seconds(size)
    );
    (text, Promise::EarlyToo)
}

fn seconds(count: i64) -> String {
    format!("INTERVAL '{count}' SECOND")
}

/// Counts by windows of streams whose flows may be idle.
fn accounted(random: &mut Random) -> Asked {
    let [t, u] = [(); 2].map(|()| streaming(random, true));
    let size = *random.one_of(&[1, 7, 60]);
    let mut rows = BTreeMap::new();
    for row in t.flows.iter().flatten() {
        let start = row.ts.div_euclid(size * 1_000) * size * 1_000;
        *rows.entry(format!("{start}|{}", row.k)).or_insert(0) += 1;
    }
    let text = format!(
        "SELECT CAST(window_start AS BIGINT), k, count(*)
         FROM TUMBLE(TABLE t, DESCRIPTOR(ts), {}) GROUP BY window_start, window_end, k",
        seconds(size)
    );
    let promise = Promise::Accounted(rows);
    let (t, u) = (t.table, u.table);
    Asked { text, t, u, idle: true, pairs: false, spills: false, state_bytes: "64 MiB", promise }
}

/// The query of a kind whose text has no random numbers.
fn fixed(kind: u64) -> Option<&'static str> {
    Some(match kind {
        5 => "SELECT t.v, t.ts, g FROM t JOIN b ON t.k = id",
        8 => "SELECT k, s, v, ts FROM t WHERE v > 0",
        11 => {
            "SELECT k, ts, v, count(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN
                 INTERVAL '3' SECOND PRECEDING AND CURRENT ROW) AS near FROM t"
        }
        12 => {
            "SELECT k, ts, v, sum(v) OVER (PARTITION BY k ORDER BY ts
                 ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS four FROM t"
        }
        14 => {
            "SELECT t.k, t.ts, t.v, u.ts AS since, u.v AS other
               FROM t JOIN u FOR SYSTEM_TIME AS OF t.ts ON t.k = u.k"
        }
        15 => {
            "SELECT t.k, t.ts, t.v, u.ts AS since, u.v AS other
               FROM t ASOF LEFT JOIN u ON t.k = u.k AND t.ts > u.ts"
        }
        16 => "SELECT k, ts, watermark FROM t__late",
        17 => "SELECT k, ts, CURRENT_WATERMARK(ts) AS met FROM t",
        _ => return None,
    })
}

fn query(random: &mut Random) -> (String, Promise) {
    let size = *random.one_of(&[1, 7, 60]);
    let kind = random.below(20);
    if let Some(text) = fixed(kind) {
        return (text.into(), Promise::Equal);
    }
    let window = format!("TABLE t, DESCRIPTOR(ts), {}", seconds(size));
    let by = "GROUP BY window_start, window_end, k";
    let near = "t.ts BETWEEN u.ts - INTERVAL '3' SECOND AND u.ts + INTERVAL '4' SECOND";
    let of_both = |table: &str| {
        format!("(SELECT * FROM TUMBLE(TABLE {table}, DESCRIPTOR(ts), {}))", seconds(size))
    };
    let same_window = "l.window_start = r.window_start AND l.window_end = r.window_end";
    let text = match kind {
        0 => format!("SELECT window_start, k, count(*), sum(v) FROM TUMBLE({window}) {by}"),
        1 => format!(
            "SELECT window_end, k, count(*), min(v) FROM HOP({window}, {}) {by}",
            seconds(3 * size)
        ),
        2 => format!(
            "SELECT window_start, window_end, k, count(*), sum(w) FROM
               SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), {}) {by}",
            seconds(size)
        ),
        3 => format!("SELECT t.k, t.ts, t.v, u.v AS other FROM t JOIN u ON t.k = u.k AND {near}"),
        4 => format!("SELECT t.ts, t.v, u.v AS other FROM t LEFT JOIN u ON t.k = u.k AND {near}"),
        6 => format!(
            "SELECT window_start, g, count(*) FROM TUMBLE({window}) AS t JOIN b ON t.k = id
             GROUP BY window_start, window_end, g"
        ),
        7 => format!(
            "SELECT k, max(v), min(ts), count(*) FROM CUMULATE({window}, {}) {by}",
            seconds(4 * size)
        ),
        9 => format!(
            "SELECT l.window_start, l.k, l.v, r.v AS other FROM {} AS l {} JOIN {} AS r
               ON {same_window} AND l.k = r.k",
            of_both("t"),
            random.one_of(&["", "LEFT", "FULL"]),
            of_both("u")
        ),
        10 => format!(
            "SELECT /*+ BROADCAST(r) */ l.window_start, l.k, l.v, r.v AS other
             FROM {} AS l JOIN {} AS r ON {same_window} AND l.k = r.k",
            of_both("t"),
            of_both("u")
        ),
        13 => format!(
            "SELECT window_start, k, v, ts, nth FROM (SELECT *, ROW_NUMBER() OVER (
               PARTITION BY window_start, window_end, k ORDER BY v DESC) AS nth
             FROM TUMBLE({window})) WHERE nth <= 3"
        ),
        18 => format!(
            "CREATE TABLE x (window_start TIMESTAMP(3), k BIGINT, n BIGINT, most BIGINT)
               WITH ('connector' = 'memory');
             CREATE TABLE y (k BIGINT, s STRING, v BIGINT, ts TIMESTAMP(3))
               WITH ('connector' = 'memory');
             BEGIN STATEMENT SET;
             INSERT INTO x SELECT window_start, k, count(*), max(v) FROM TUMBLE({window}) {by};
             INSERT INTO y SELECT k, s, v, ts FROM t WHERE v > 0;
             END"
        ),
        _ => {
            let all =
                format!("SELECT window_start, k, count(*), sum(v) FROM TUMBLE({window}) {by}");
            let text = format!("{all} LIMIT {}", 1 + random.below(40));
            return (text, Promise::SomeOf(all));
        }
    };
    (text, Promise::Equal)
}

const FLOWS: i64 = 4;
const BATCHES: i64 = 16;
const ROWS: i64 = 400;
/// Keys of all flows.
const KEYS: i64 = 12_000;

/// A stream with more keys than the budget of state has room for.
fn spilling(random: &mut Random) -> Asked {
    let batch = |flow: i64, number: i64| {
        let at: Vec<i64> = (0..ROWS).map(|row| (number * ROWS + row) * FLOWS + flow).collect();
        let of = |by: fn(i64) -> i64| at.iter().map(|&at| by(at)).collect::<Int64Array>();
        let times = at.iter().map(|at| at * 60);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(of(|at| at * 7_919 % KEYS * 1_000_003)),
            Arc::new(StringArray::from_iter_values(at.iter().map(|at| format!("{:030}", at % 7)))),
            Arc::new(of(|at| at % 101)),
            Arc::new(of(|at| at % 7).unary::<_, arrow::datatypes::Float64Type>(|v| v as f64)),
            Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        ];
        Event::Rows(RecordBatch::try_new(schema(), columns).expect("the columns fit"))
    };
    let flow = |flow| (0..BATCHES).map(|number| batch(flow, number)).collect();
    let table = Table { schema: schema(), bounded: false, flows: (0..FLOWS).map(flow).collect() };
    let text = match random.below(3) {
        0 => {
            "SELECT window_start, k, count(*), min(v) FROM TUMBLE(TABLE t, DESCRIPTOR(ts),
                INTERVAL '20' MINUTE) GROUP BY window_start, window_end, k"
        }
        1 => {
            "SELECT window_start, k, count(*), avg(w) FROM HOP(TABLE t, DESCRIPTOR(ts),
                INTERVAL '10' MINUTE, INTERVAL '20' MINUTE) GROUP BY window_start, window_end, k"
        }
        _ => {
            "SELECT window_end, k, count(*), sum(v) FROM CUMULATE(TABLE t, DESCRIPTOR(ts),
                INTERVAL '15' MINUTE, INTERVAL '30' MINUTE) GROUP BY window_start, window_end, k"
        }
    };
    let (t, u) = (table.clone(), table);
    let (text, promise) = (text.into(), Promise::Equal);
    Asked { text, t, u, idle: false, pairs: false, spills: true, state_bytes: "448 KiB", promise }
}
