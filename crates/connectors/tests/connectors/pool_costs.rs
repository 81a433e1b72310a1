//! Tables of a pool whose partitions cost different amounts by byte: readers share them by what a
//! statement before has measured.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use dataflow::connector::{Connector, HashBuckets, TableDef, WriteMode};
use dataflow::costs::PartCost;
use dataflow::sink::{Room, WriterContext};
use dataflow::source::{Next, ReaderContext, Source, Split};

use crate::bed::{BIGINT, ManualClock, columns, put, table};

const READERS: u32 = 4;
const ROWS: u64 = 60_000;
/// Work of the slowest reader at most, of the mean.
const UNEVEN_MAX: f64 = 1.1;

/// A table with the skew of Zipf 1.0 over a thousand keys, in 64 partitions.
fn zipf() -> (PoolConnector, TableDef) {
    let connector = PoolConnector::new(InMemoryPool::new(1));
    let mut def = table(&columns(&[("k", BIGINT), ("v", BIGINT)]), &[("strip.rows", "256")]);
    def.buckets = vec![HashBuckets { column: "k".into(), count: 64 }];
    let harmonic: f64 = (1..=1000).map(|key| 1.0 / f64::from(key)).sum();
    let keys = (1..=1000_i64).flat_map(|key| {
        let rows = (ROWS as f64 / harmonic / key as f64).ceil() as usize;
        std::iter::repeat_n(key, rows)
    });
    // In the order of a hash: rows of a key lie anywhere.
    let mut keys: Vec<(u64, i64)> =
        (1..).map(|row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15)).zip(keys).collect();
    keys.sort_unstable();
    let keys: Vec<i64> = keys.into_iter().map(|(_, key)| key).collect();
    let values = Int64Array::from_iter_values(0..keys.len() as i64);
    let all: [ArrayRef; 2] = [Arc::new(Int64Array::from(keys)), Arc::new(values)];
    let batch = RecordBatch::try_new(Arc::clone(&def.schema), all.to_vec()).unwrap();
    let sink = connector.sink_for(&def, WriteMode::Create).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    put(&mut *writer, &batch).unwrap();
    while writer.drain().unwrap() == Room::Full {
        std::thread::yield_now();
    }
    writer.commit().unwrap();
    (connector, def)
}

/// Nanoseconds of a row: those of some keys find many partners.
fn work_of(key: i64) -> u64 {
    if key % 40 == 3 { 20_000 } else { 1_000 }
}

/// Reads splits as workers do that process their rows; gives the values and the work of each.
fn read(source: &dyn Source, splits: &[Split]) -> Vec<(Vec<i64>, u64)> {
    let read = |split: &Split| {
        let clock = Arc::new(ManualClock::default());
        let context = ReaderContext::new(Arc::clone(&clock) as _, Arc::default());
        let mut reader = source.open(split, None, &context).unwrap();
        let (mut values, mut all) = (vec![], 0);
        loop {
            match reader.next(100).unwrap() {
                Next::Batch(batch) => {
                    let keys = batch.column(0).as_primitive::<Int64Type>().values().iter();
                    let work: u64 = keys.map(|key| work_of(*key)).sum();
                    all += work;
                    clock.set(all);
                    values.extend(batch.column(1).as_primitive::<Int64Type>().values());
                }
                Next::Pending | Next::Wait { .. } => std::thread::yield_now(),
                Next::End => return (values, all),
            }
        }
    };
    splits.iter().map(read).collect()
}

/// The work of the slowest reader, in parts of the mean. Each row is read once.
fn uneven(read: &[(Vec<i64>, u64)]) -> f64 {
    let mut values: Vec<i64> = read.iter().flat_map(|(values, _)| values).copied().collect();
    values.sort_unstable();
    assert!(values.iter().copied().eq(0..values.len() as i64), "each once");
    assert!(values.len() >= ROWS as usize);
    let work = read.iter().map(|(_, work)| *work);
    let (most, all) = (work.clone().max().unwrap(), work.sum::<u64>());
    most as f64 * f64::from(READERS) / all as f64
}

#[test]
fn readers_share_a_skewed_table_by_what_was_measured() {
    let (connector, def) = zipf();
    let first = connector.source(&def, &[0, 1]).unwrap();
    let costs = first.costs().unwrap();
    assert_eq!(costs.fix(), 0, "nothing is known");
    let by_size = first.splits(READERS, None).unwrap();
    assert_eq!(first.splits_by_cost(READERS).unwrap(), by_size);
    let of_first = uneven(&read(&*first, &by_size));
    assert!(of_first > UNEVEN_MAX, "the bar fails by sizes alone: {of_first}");
    costs.keep(&costs.take());
    assert_eq!(first.splits_by_cost(READERS).unwrap(), by_size, "what is fixed stays");

    // The next statement, and another process that knows the same.
    let sources = [0, 1].map(|_| connector.source(&def, &[0, 1]).unwrap());
    let numbers = sources.each_ref().map(|source| source.costs().unwrap().fix());
    assert!(numbers[0] != 0 && numbers[0] == numbers[1]);
    let splits = sources.each_ref().map(|source| source.splits_by_cost(READERS).unwrap());
    assert_eq!(splits[0], splits[1]);
    let of_second = uneven(&read(&*sources[1], &splits[0]));
    assert!(of_second <= UNEVEN_MAX, "{of_second}, {of_first} by sizes");
    // A job that may go on from positions is cut as before.
    assert_eq!(sources[0].splits(READERS, None).unwrap(), by_size);
    assert_eq!(uneven(&read(&*sources[0], &by_size)), of_first);
    // Other columns cost something else.
    assert_eq!(connector.source(&def, &[0]).unwrap().costs().unwrap().fix(), 0);
}

#[test]
fn costs_of_partitions_that_are_not_there_harm_nobody() {
    let (connector, def) = zipf();
    let wild = (0..2000).map(|part| PartCost {
        part: part * 7,
        size: u64::from(part % 3),
        work_ns: u64::MAX - u64::from(part),
    });
    connector.source(&def, &[0, 1]).unwrap().costs().unwrap().keep(&wild.collect::<Vec<_>>());
    let source = connector.source(&def, &[0, 1]).unwrap();
    assert_ne!(source.costs().unwrap().fix(), 0);
    for readers in [1, 3, READERS] {
        let splits = source.splits_by_cost(readers).unwrap();
        assert!(splits.len() <= readers as usize);
        uneven(&read(&*source, &splits));
    }
}
