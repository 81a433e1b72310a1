//! Epochs end by length whatever tells time: a grouping without a watermark is merged as often as
//! one with it, whether its rows are folded as they were read or batch by batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use dataflow::metrics::Metrics;
use tests::cluster::Cluster;
use tests::memory::{Event, Memory, Table};
use tests::scenario::plan;

/// Rows of a batch, and batches of a flow.
const ROWS: i64 = 1_000;
const BATCHES: i64 = 40;
const KEYS: i64 = 8;

/// Bytes of an epoch: a batch has some times as many.
const EPOCH_BYTES: i64 = 4_096;

fn rows(from: i64) -> RecordBatch {
    let numbers = from..from + ROWS;
    let key: ArrayRef = Arc::new(numbers.clone().map(|i| i % KEYS).collect::<Int64Array>());
    let names = numbers.map(|i| Some(format!("name {}", i % KEYS)));
    let name: ArrayRef = Arc::new(names.collect::<StringArray>());
    let columns = [("key", key), ("name", name)].map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// The epochs of all workers of a query that groups so, whose counts are what they should be.
fn epochs(query: &str) -> u64 {
    let memory = Memory::new(None);
    let flow = |flow: i64| {
        (0..BATCHES).map(|at| Event::Rows(rows((flow * BATCHES + at) * ROWS))).collect()
    };
    let flows = vec![flow(0), flow(1)];
    memory.add("t", Table { schema: rows(0).schema(), bounded: true, flows });
    let script = format!(
        "SET millstream.exchange = 'merge';
         SET millstream.epoch_bytes = {EPOCH_BYTES};
         SET millstream.epoch_stretch = 1;
         CREATE TABLE t (key BIGINT, name STRING) WITH ('connector' = 'memory');
         {query};"
    );
    let stage = plan(&memory, &script, 2, 1);
    let run = Cluster::seeded(2, 1, 7).run(&Arc::new(stage.job)).unwrap();
    let counted: i64 = memory
        .all_committed()
        .iter()
        .map(|batch| {
            let counts = batch.column_by_name("n").unwrap();
            arrow::compute::sum(counts.as_any().downcast_ref::<Int64Array>().unwrap()).unwrap()
        })
        .sum();
    assert_eq!(counted, 2 * BATCHES * ROWS, "{query}");
    run.metrics.iter().map(|metrics: &Arc<Metrics>| metrics.epochs.load(Ordering::Relaxed)).sum()
}

#[test]
fn a_grouping_without_a_watermark_ends_epochs_by_length() {
    for query in [
        // Folded as they were read, and then not.
        "SELECT key, count(*) AS n FROM t GROUP BY key",
        "SELECT key, count(*) AS n, max(name) FROM t GROUP BY key",
        "SELECT name, count(*) AS n FROM t GROUP BY name",
        "SELECT count(*) AS n FROM t",
    ] {
        // Each batch is longer than an epoch, and ends one.
        let batches = 2 * BATCHES as u64;
        let epochs = epochs(query);
        assert!((batches..=batches + 4).contains(&epochs), "{epochs} epochs: {query}");
    }
}
