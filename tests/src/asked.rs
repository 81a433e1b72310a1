//! Queries over endless streams, on clusters of several sizes and by every exchange, against
//! DataFusion over the rows that are not late.

use std::sync::Arc;

use arrow::array::{ArrayRef, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;

use crate::cluster::Cluster;
use crate::memory::{Memory, Table};
use crate::random::{COLUMNS, DELAY_MS, Random, Row, Stream, batch, schema, stream};
use crate::rows::sorted;
use crate::scenario::plan;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 6] = [(1, 1), (2, 1), (1, 3), (3, 1), (2, 2), (4, 1)];

/// A query in our dialect, and what it means in batch.
pub struct Asked {
    /// In our dialect.
    pub ours: String,
    /// In batch.
    pub batch: String,
}

/// The same text in both.
pub fn same(sql: impl Into<String>) -> Asked {
    let sql = sql.into();
    Asked { ours: sql.clone(), batch: sql }
}

/// A stream that never ends, and is never idle.
pub fn endless(random: &mut Random) -> Stream {
    loop {
        let mut stream = stream(random);
        if !stream.idle {
            stream.table.bounded = false;
            return stream;
        }
    }
}

/// Rows whose time, and `grace` more, the watermark of their flow had not reached before them.
pub fn on_time(stream: &Stream, late: impl Fn(&Row, i64) -> bool) -> Vec<Row> {
    let mut rows = vec![];
    for flow in &stream.flows {
        let mut met = i64::MIN;
        for row in flow {
            if !late(row, met) {
                rows.push(row.clone());
            }
            met = met.max(row.ts - DELAY_MS);
        }
    }
    rows
}

/// Rows that are not late for a window of so many seconds.
pub fn in_windows(stream: &Stream, size_s: i64) -> Vec<Row> {
    let size = size_s * 1_000;
    on_time(stream, |row, met| (row.ts.div_euclid(size) + 1) * size <= met)
}

/// Our rows, on a cluster.
fn by_us(
    sql: &str,
    tables: &[(&str, &Table)],
    (nodes, workers): (u32, u32),
    exchange: &str,
    seed: u64,
) -> Vec<String> {
    let memory = Memory::new(None);
    let mut script = format!(
        "SET millstream.exchange = {exchange}; SET millstream.epoch_bytes = 4096;
         SET millstream.batch_rows = {}; SET millstream.multicast = {};
         SET millstream.receive_bytes = {};",
        [7, 100, 8_192][seed as usize % 3],
        ["tree", "hardware"][seed as usize / 3 % 2],
        [8 << 10, 256 << 10][seed as usize / 6 % 2],
    );
    for (name, table) in tables {
        memory.add(name, (*table).clone());
        let columns = match table.schema == schema() {
            true => format!(
                "{COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '{}' SECOND",
                DELAY_MS / 1_000
            ),
            false => "k BIGINT, most BIGINT, name STRING".into(),
        };
        script += &format!("CREATE TABLE {name} ({columns}) WITH ('connector' = 'memory');");
    }
    script += sql;
    let stage = plan(&memory, &script, nodes, workers);
    assert!(!stage.explain.text().contains("Batch"), "{sql}");
    let cluster = Cluster::seeded(nodes, workers, seed);
    let run = cluster.run(&Arc::new(stage.job));
    run.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}: {sql}"));
    sorted(&memory.all_committed())
}

/// Asks on one worker and on several; gives how many rows there were.
pub fn check(
    asked: &Asked,
    ours: &[(&str, &Table)],
    rows: &[(&str, RecordBatch)],
    seed: u64,
) -> usize {
    let expected = sorted(&oracle::rows(&asked.batch, rows));
    let many = SIZES[1 + seed as usize % (SIZES.len() - 1)];
    for (size, exchange) in
        [(SIZES[0], "auto"), (many, "auto"), (many, "merge"), (many, "shuffle"), (many, "uppar")]
    {
        let got = by_us(&asked.ours, ours, size, exchange, seed);
        let at = format!("seed {seed}, {size:?}, {exchange}: {}", asked.ours);
        let beside = |these: &[String], others: &[String]| -> Vec<String> {
            let missing = these.iter().filter(|row| !others.contains(row));
            missing.take(10).cloned().collect()
        };
        let apart = (beside(&got, &expected), beside(&expected, &got));
        assert_eq!(got.len(), expected.len(), "{at}: only ours and only theirs {apart:?}");
        assert_eq!(got, expected, "{at}");
    }
    expected.len()
}

/// The rows of a table with the session that each is in, in batch: `ws` and `we`.
pub fn sessions_of(table: &str, gap: i64) -> String {
    format!(
        "SELECT k, s, v, ts, side, min(ts) OVER (PARTITION BY k, number) AS ws,
           max(ts) OVER (PARTITION BY k, number) + INTERVAL '{gap}' SECOND AS we
         FROM (SELECT *, sum(fresh) OVER (PARTITION BY k ORDER BY ts) AS number
               FROM (SELECT *, CASE WHEN ts - INTERVAL '{gap}' SECOND
                                 <= lag(ts) OVER (PARTITION BY k ORDER BY ts)
                               THEN 0 ELSE 1 END AS fresh FROM {table}))"
    )
}

/// The rows of a stream that are not late for sessions with gaps of so many seconds.
pub fn in_sessions(stream: &Stream, gap: i64) -> RecordBatch {
    batch(&on_time(stream, |row, met| row.ts + gap * 1_000 <= met))
}

/// The rows of a stream once for each window of `size` every `slide`, in seconds, that had not
/// ended when they came: with the columns `ws` and `we`.
pub fn once_in_windows(stream: &Stream, slide_s: i64, size_s: i64) -> RecordBatch {
    let (slide, size) = (slide_s * 1_000, size_s * 1_000);
    once_in(stream, |ts| {
        let last = ts.div_euclid(slide) * slide;
        let starts = (0..).map(|back| last - back * slide).take_while(|start| start + size > ts);
        starts.map(|start| (start, start + size)).collect()
    })
}

/// The same for windows that grow by `step` up to `size`.
pub fn once_in_cumulated(stream: &Stream, step_s: i64, size_s: i64) -> RecordBatch {
    let (step, size) = (step_s * 1_000, size_s * 1_000);
    once_in(stream, |ts| {
        let start = ts.div_euclid(size) * size;
        let ends = (1..=size / step).map(|steps| start + steps * step).filter(|end| *end > ts);
        ends.map(|end| (start, end)).collect()
    })
}

/// The rows of a stream once for each of `windows` of their time that had not ended when they
/// came.
fn once_in(stream: &Stream, windows: impl Fn(i64) -> Vec<(i64, i64)>) -> RecordBatch {
    let (mut rows, mut starts, mut ends) = (vec![], vec![], vec![]);
    for flow in &stream.flows {
        let mut met = i64::MIN;
        for row in flow {
            for (start, end) in windows(row.ts).into_iter().filter(|(_, end)| *end > met) {
                rows.push(row.clone());
                starts.push(start);
                ends.push(end);
            }
            met = met.max(row.ts - DELAY_MS);
        }
    }
    let rows = batch(&rows);
    let time = |of: Vec<i64>| Arc::new(TimestampMillisecondArray::from(of)) as ArrayRef;
    let time_type = DataType::Timestamp(TimeUnit::Millisecond, None);
    let bounds = ["ws", "we"].map(|name| Field::new(name, time_type.clone(), true));
    let fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    let fields = fields.into_iter().chain(bounds.map(Arc::new));
    let columns = rows.columns().iter().cloned().chain([time(starts), time(ends)]);
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns.collect())
        .expect("the columns fit")
}
