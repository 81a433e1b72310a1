//! Rows for some workers, against a function of the test that says whom each pair should meet at.

use dataflow::job::{Description, KeyedState, MultiPartitioner, RowPartitioner, SavedParts};
use dataflow::worker_set::WorkerSet;

use super::*;

/// Rows of so many numbers on end are led to one worker.
const STRIPE: i64 = 5;

/// How far a row of the right side reaches beyond its number.
const REACH: i64 = 2;

/// The worker of a left row.
fn owner(number: i64, workers: u32) -> u32 {
    ((number.div_euclid(STRIPE) * 7).rem_euclid(i64::from(workers))) as u32
}

/// The workers of a right row: of all left ones that it reaches; some reach nobody.
fn reached(number: i64, workers: u32) -> WorkerSet {
    let reach = number - REACH..=number + REACH;
    match number % 11 {
        3 => WorkerSet::default(),
        7 => WorkerSet::all(0..workers),
        _ => reach.map(|number| owner(number, workers)).collect(),
    }
}

/// A join whose left rows are led by their number, and whose right ones to all that they reach.
pub(super) struct ByReach(pub(super) WindowJoin);

impl KeyedOperator for ByReach {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        self.0.create()
    }

    fn saved(&self) -> Option<SavedParts> {
        self.0.saved()
    }

    fn partitioner(&self, input: usize) -> Option<Arc<dyn RowPartitioner>> {
        (input == 0).then(|| Arc::new(ByNumber) as Arc<dyn RowPartitioner>)
    }

    fn multi_partitioner(&self, input: usize) -> Option<Arc<dyn MultiPartitioner>> {
        (input == 1).then(|| Arc::new(ByNumber) as Arc<dyn MultiPartitioner>)
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Near", properties: vec![] }
    }
}

struct ByNumber;

fn numbers(batch: &RecordBatch) -> &[i64] {
    batch.column(0).as_primitive::<Int64Type>().values()
}

impl RowPartitioner for ByNumber {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        to.extend(numbers(batch).iter().map(|&number| owner(number, workers)));
        Ok(())
    }
}

impl MultiPartitioner for ByNumber {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        to.extend(numbers(batch).iter().map(|&number| reached(number, workers)));
        Ok(())
    }
}

/// Pairs of one window whose left row is where the right one goes.
fn pairs_that_meet(bed: &Bed) -> Vec<(i64, i64)> {
    let workers = bed.nodes * bed.workers;
    let meets = |&(left, right): &(i64, i64)| {
        reached(right, workers).iter().any(|worker| worker == owner(left, workers))
    };
    bed.expected().into_iter().filter(meets).collect()
}

#[test]
fn each_row_meets_those_of_its_workers_once() {
    let mut seed = 300;
    for (nodes, workers) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (2, 4), (4, 2), (5, 1)] {
        for (text_bytes, queue_frames) in [(5, 64), (5, 1), (5_000, 2)] {
            seed += 1;
            let casting = Casting { queue_frames, ..Casting::default() };
            let some = (nodes, workers, seed, casting, text_bytes);
            let (nodes, workers, seed, casting, text_bytes) = some;
            let (distribution, rows) = (Distribution::Hash, 24);
            let bed = Bed { some: true, ..Bed::default() };
            let bed = Bed { nodes, workers, seed, distribution, casting, text_bytes, rows, ..bed };
            let ran = bed.run().unwrap_or_else(|error| panic!("{nodes}x{workers}: {error}"));
            let expected = pairs_that_meet(&bed);
            assert!(!expected.is_empty());
            assert!(ran.pairs == expected, "{nodes}x{workers}, {text_bytes} bytes, {queue_frames}");
        }
    }
}

#[test]
fn a_row_is_sent_once_to_each_process_that_has_one_of_its_workers() {
    // One flow: one worker sends all. Two rows of three go to the workers of two stripes at most.
    let bytes = |nodes: u32, workers: u32| {
        let bed =
            Bed { nodes, workers, distribution: Distribution::Hash, some: true, ..Bed::default() };
        let bed = Bed { flows: 1, rows: 400, text_bytes: 2_000, slot_bytes: 64 << 10, ..bed };
        let ran = bed.run().unwrap();
        assert!(ran.pairs == pairs_that_meet(&bed), "{nodes}x{workers}");
        let total = nodes * workers;
        let source = 0;
        let processes = |number: i64| {
            let ranks: std::collections::BTreeSet<u32> =
                reached(number, total).iter().map(|worker| worker / workers).collect();
            ranks.into_iter().filter(|&rank| rank != source).count() as u64
        };
        let rows: u64 = (0..400).map(processes).sum();
        (ran.sum(|metrics| &metrics.broadcast_bytes), rows)
    };
    for (nodes, workers) in [(2, 1), (2, 4), (4, 2), (8, 1)] {
        let (sent, rows) = bytes(nodes, workers);
        // A row is its text, number and time; what a frame has besides is little of it.
        let row = sent as f64 / rows as f64;
        assert!(
            (2_000.0..2_500.0).contains(&row),
            "{nodes}x{workers}: {sent} bytes of {rows} rows"
        );
    }
    assert_eq!(bytes(1, 4).0, 0, "within a process rows are handed over");
}

#[test]
fn a_worker_that_takes_nothing_is_named() {
    let casting = Casting { stall_ns: 1_000_000_000, ..Casting::default() };
    let bed = Bed { nodes: 3, workers: 1, casting, rows: 4_000, some: true, ..Bed::default() };
    let bed = Bed { distribution: Distribution::Hash, stops: Some((1, 50)), ..bed };
    let error = bed.run().err().expect("it cannot end");
    assert!(matches!(error, DataflowError::Stalled { worker: 1, after_ms: 1_000 }), "{error}");
}
