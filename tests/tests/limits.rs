//! `LIMIT` ends the sources that it alone reads, and `ORDER BY` gives one order, on every layout.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use fabric::sim::SimOptions;
use state::sim::{SimDisk, SimDiskOptions};
use tests::cluster::{Cluster, Run};
use tests::memory::{Event, Memory, Table};
use tests::scenario::plan;

const FLOWS: i64 = 5;
const BATCHES: i64 = 40;
const ROWS: i64 = 500;
/// The bound on the state of a worker, if it may spill.
const BUDGET: &str = "448 KiB";

/// Numbers that are all different, in no order. The flows of an unbounded table then fall silent
/// for years, and have more rows after that.
fn table(bounded: bool) -> Table {
    let schema = Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("third", DataType::Int64, false),
    ]));
    let batch = |flow: i64, number: i64| {
        let at = (0..ROWS).map(|row| (number * ROWS + row) * FLOWS + flow);
        let n: Int64Array = at.map(|at| at * 7_919 % (FLOWS * BATCHES * ROWS)).collect();
        let third = n.unary::<_, Int64Type>(|n| n / 3);
        let columns: Vec<arrow::array::ArrayRef> = vec![Arc::new(n), Arc::new(third)];
        RecordBatch::try_new(schema.clone(), columns).expect("the columns fit")
    };
    let flow = |flow| {
        let rows = (0..BATCHES).map(|number| Event::Rows(batch(flow, number)));
        let later = [Event::Silence(u64::MAX / 4), Event::Rows(batch(flow, BATCHES))];
        rows.chain(later.into_iter().filter(|_| !bounded)).collect()
    };
    Table { schema: schema.clone(), bounded, flows: (0..FLOWS).map(flow).collect() }
}

/// Runs a query in the simulator; gives the first column of its rows.
fn answer(
    query: &str,
    (nodes, workers): (u32, u32),
    bounded: bool,
    disk: Option<Arc<SimDisk>>,
) -> (Vec<i64>, Run) {
    let memory = Memory::new(None);
    memory.add("t", table(bounded));
    let budget = if disk.is_some() { BUDGET } else { "1 GiB" };
    let script = format!(
        "SET millstream.batch_rows = 512;
         SET millstream.state_bytes = '{budget}';
         CREATE TABLE t (n BIGINT, third BIGINT) WITH ('connector' = 'memory');
         {query};"
    );
    let job = Arc::new(plan(&memory, &script, nodes, workers).job);
    let network = SimOptions::seeded(11);
    let run = Cluster { nodes, workers, network, kill: None, breaks: None, disk }.run(&job);
    let run = run.unwrap_or_else(|error| panic!("{query}: {error}"));
    let numbers =
        |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
    (memory.all_committed().iter().flat_map(numbers).collect(), run)
}

const LAYOUTS: [(u32, u32); 4] = [(1, 1), (1, 4), (2, 2), (3, 1)];

#[test]
fn rows_that_never_end_are_read_until_the_limit_is_full() {
    for layout in LAYOUTS {
        // More than one worker has read when its flows fall silent.
        for (limit, offset) in [(1, 0), (700, 0), (30_000, 5_000), (FLOWS * BATCHES * ROWS, 0)] {
            let query = format!("SELECT n FROM t WHERE n >= 0 LIMIT {limit} OFFSET {offset}");
            let (mut rows, run) = answer(&query, layout, false, None);
            assert_eq!(rows.len() as i64, limit, "{layout:?}: {query}");
            let read = run.sum(|metrics| &metrics.rows_in) as i64;
            assert!(read <= FLOWS * BATCHES * ROWS, "{layout:?}: {query}: it waited for years");
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len() as i64, limit, "{layout:?}: {query}: a row came twice");
            if layout == (1, 1) {
                // At any speed, a worker reads no batch behind the one that fills the limit.
                let read = run.metrics[0].rows_in.load(Ordering::Relaxed) as i64;
                assert!(read < limit + offset + 512, "{query}: {read} rows");
            }
        }
    }
}

#[test]
fn a_limit_in_a_query_ends_what_it_alone_reads() {
    let query = "SELECT count(*) FROM (SELECT n FROM t LIMIT 20) AS few";
    for layout in LAYOUTS {
        let (rows, run) = answer(query, layout, true, None);
        assert_eq!(rows, [20], "{layout:?}");
        if layout == (1, 1) {
            let read = run.metrics[0].rows_in.load(Ordering::Relaxed);
            assert!(read <= 512, "{read} rows");
        }
    }
    let both =
        "SELECT max(n) FROM (SELECT n FROM t UNION ALL (SELECT -n FROM t LIMIT 20)) AS all_of";
    for layout in LAYOUTS {
        let (rows, _) = answer(both, layout, true, None);
        assert_eq!(rows, [FLOWS * BATCHES * ROWS - 1], "{layout:?}: the other side is read whole");
    }
}

#[test]
fn rows_are_in_one_order_on_every_layout_with_a_disk_and_without() {
    // Rows of the same third are in the order of their other column.
    let all = "SELECT n FROM t ORDER BY third DESC";
    let some = "SELECT n FROM t ORDER BY third DESC LIMIT 70000 OFFSET 5";
    let few = "SELECT n FROM t ORDER BY third DESC LIMIT 10 OFFSET 4";
    let last = FLOWS * BATCHES * ROWS - 1;
    let mut expected: Vec<i64> = (0..=last).collect();
    expected.sort_by_key(|n| (-(n / 3), *n));
    for layout in LAYOUTS {
        for disk in [false, true] {
            let disk = disk.then(|| SimDisk::new(SimDiskOptions::default()));
            for (query, range) in [(all, 0..last as usize + 1), (some, 5..70_005), (few, 4..14)] {
                let (rows, run) = answer(query, layout, true, disk.clone());
                assert!(rows == expected[range], "{layout:?}: {query}");
                let spilled = run.sum(|metrics| &metrics.spilled_bytes);
                assert_eq!(spilled > 0, disk.is_some() && query != few, "{layout:?}: {query}");
            }
            assert_eq!(disk.map_or(0, |disk| disk.files()), 0, "{layout:?}");
        }
    }
}
