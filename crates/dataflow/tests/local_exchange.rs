//! Workers of one process: rows go from one to the other by reference, and no more than a bound.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use channel::{Link, LinkError, RingConfig};
use dataflow::error::ConnectorError;
use dataflow::job::{
    Aggregation, Edge, Exchange, JobGraph, Operator, OperatorKind, Scan, Settings, SinkSpec,
};
use dataflow::metrics::Metrics;
use dataflow::process::Process;
use dataflow::reconnect::{LinkEvent, Reconnector};
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, SplitReader};
use dataflow::worker::{Status, Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};
use state::{GroupBy, Partitioner, StateOptions};

use crate::flows::Flows;

const WORKERS: u32 = 2;
const BATCH_ROWS: i64 = 1_000;

fn schema(columns: &[&str]) -> SchemaRef {
    let field = |name: &&str| Field::new(*name, DataType::Int64, true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn keys(rows: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(rows.map(|row| row % 700)))
}

/// Reads this number of batches.
#[derive(Clone)]
struct Numbers(i64);

impl SplitReader for Numbers {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        if self.0 == 0 {
            return Ok(Next::End);
        }
        self.0 -= 1;
        let keys = keys(self.0 * BATCH_ROWS..(self.0 + 1) * BATCH_ROWS);
        Ok(Next::Batch(RecordBatch::try_new(schema(&["k"]), vec![keys]).unwrap()))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// The count of each key.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<BTreeMap<i64, i64>>>);

impl Sink for Counts {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Counts {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let numbers = |at: usize| batch.column(at).as_primitive::<Int64Type>().values();
        for (key, count) in numbers(0).iter().zip(numbers(1)) {
            assert_eq!(self.0.lock().unwrap().insert(*key, *count), None, "key {key} comes twice");
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// Between workers of a process there is nothing to reconnect.
struct NoReconnector;

impl Reconnector for NoReconnector {
    fn set_waker(&mut self, _: Waker) {}

    fn reconnect(&mut self, worker: u32, _: Link, cause: LinkError) {
        panic!("the link with worker {worker}, {cause}");
    }

    fn decline(&mut self, _: u32) {}

    fn next_event(&mut self) -> Option<LinkEvent> {
        None
    }
}

/// Two workers of one process that count by key.
struct Pair {
    workers: Vec<Option<Worker>>,
    metrics: Vec<Arc<Metrics>>,
    counts: Counts,
    batches: i64,
}

impl Pair {
    fn new(batches: i64, exchange: Exchange, ring: RingConfig) -> Self {
        let counts = Counts::default();
        let settings = Settings { ring, ..Settings::default() };
        let operators = operators(Numbers(batches), exchange, &counts);
        let job = Arc::new(JobGraph { operators, settings });
        let process = Process::new(0, WORKERS).unwrap();
        let metrics: Vec<Arc<Metrics>> = (0..WORKERS).map(|_| Arc::default()).collect();
        let worker = |worker: u32| {
            let config = WorkerConfig {
                metrics: metrics[worker as usize].clone(),
                reconnector: Some(Box::new(NoReconnector)),
                ..WorkerConfig::new(
                    worker,
                    WORKERS,
                    process.clone(),
                    job.clone(),
                    vec![None, None],
                    SimNet::new(SimOptions::default()).clock(),
                )
            };
            Some(Worker::new(config).unwrap())
        };
        Self { workers: (0..WORKERS).map(worker).collect(), metrics, counts, batches }
    }

    /// Gives a worker a turn; false when it had nothing to do.
    fn turn(&mut self, worker: usize) -> bool {
        let Some(running) = &mut self.workers[worker] else { return false };
        match running.step().unwrap() {
            Status::Done => self.workers[worker] = None,
            Status::Busy => {}
            Status::Idle { .. } => return false,
        }
        true
    }

    fn run(&mut self) {
        while self.workers.iter().any(Option::is_some) {
            let moved = [0, 1].map(|worker| self.turn(worker));
            assert!(moved.contains(&true), "nothing moves any more");
        }
        let mut expected = BTreeMap::new();
        for key in keys(0..self.batches * BATCH_ROWS).as_primitive::<Int64Type>().values() {
            *expected.entry(*key).or_insert(0) += i64::from(WORKERS);
        }
        assert!(*self.counts.0.lock().unwrap() == expected);
    }

    fn of(&self, worker: usize, counter: impl Fn(&Metrics) -> &AtomicU64) -> u64 {
        counter(&self.metrics[worker]).load(Ordering::Relaxed)
    }

    fn sum(&self, counter: impl Fn(&Metrics) -> &AtomicU64) -> u64 {
        (0..WORKERS as usize).map(|worker| self.of(worker, &counter)).sum()
    }
}

fn operators(reader: Numbers, exchange: Exchange, counts: &Counts) -> Vec<Operator> {
    let aggregate = Aggregation {
        input_schema: schema(&["k"]),
        group_by: Arc::new(GroupBy {
            keys: vec![DataType::Int64],
            aggregates: vec![state::aggregates::count()],
            options: StateOptions::default(),
        }),
        keys: vec![0],
        args: vec![vec![]],
        window: None,
        exchange,
        early_ns: None,
        schema: schema(&["k", "count"]),
    };
    let schema_of_source = schema(&["k"]);
    let source = Flows { schema: schema_of_source, bounded: true, splits: WORKERS, reader };
    let input = Scan::new("t", Arc::new(source));
    let (sink, schema) = (Arc::new(counts.clone()), schema(&["k", "count"]));
    let kinds = [
        OperatorKind::Source(input),
        OperatorKind::Aggregate(Box::new(aggregate)),
        OperatorKind::Sink(SinkSpec { sink, schema }),
    ];
    let edge = |from| vec![Edge { from, step: None, timed: true, lateness: 0 }];
    let operators = kinds.into_iter().enumerate().map(|(at, kind)| {
        let inputs = at.checked_sub(1).map(edge).into_iter().collect();
        Operator::new("q", inputs, kind)
    });
    operators.collect()
}

/// The rows of a batch that worker 0 does not lead.
fn led_by_the_other(rows: std::ops::Range<i64>) -> u64 {
    let mut owners = vec![];
    Partitioner::new(WORKERS).owners_of(&[keys(rows)], &mut owners).unwrap();
    owners.iter().map(|&owner| u64::from(owner)).sum()
}

#[test]
fn nothing_is_encoded_between_workers_of_a_process() {
    let batches = 50;
    let mut pair = Pair::new(batches, Exchange::Shuffle, RingConfig::default());
    pair.run();
    let rows = (batches * BATCH_ROWS) as u64;
    let other = led_by_the_other(0..rows as i64);
    assert!(other > 0 && other < rows);
    // Worker 1 hands over what worker 0 leads, and its results.
    let results = led_by_the_other(0..700);
    assert_eq!(pair.of(0, |metrics| &metrics.local_rows), other);
    assert_eq!(pair.of(1, |metrics| &metrics.local_rows), rows - other + results);
    assert_eq!(pair.of(0, |metrics| &metrics.local_bytes), 8 * other);
    // Partial states go by reference too; the rows are results alone.
    let mut merging = Pair::new(batches, Exchange::Merge, RingConfig::default());
    merging.run();
    assert!(merging.sum(|metrics| &metrics.local_rows) < 700);
    assert!(merging.of(0, |metrics| &metrics.local_bytes) > 0);
    for pair in [pair, merging] {
        assert_eq!(pair.sum(|metrics| &metrics.frames_sent), 0);
        assert_eq!(pair.sum(|metrics| &metrics.bytes_sent), 0);
    }
}

#[test]
fn who_takes_nothing_holds_back_who_hands_over() {
    for exchange in [Exchange::Shuffle, Exchange::UpPar] {
        let ring = RingConfig { slots: 4, slot_bytes: 4_096, ..RingConfig::default() };
        let mut pair = Pair::new(200, exchange, ring);
        // With `uppar` worker 1 reads and worker 0 leads.
        let (gives, takes) = if exchange == Exchange::UpPar { (1, 0) } else { (0, 1) };
        while pair.turn(gives) {}
        let exchanged = |pair: &Pair| pair.of(gives, |metrics| &metrics.local_bytes);
        let (read, held) = (pair.of(gives, |metrics| &metrics.rows_in), exchanged(&pair));
        let bound = ring.memory_bytes().ring as u64;
        // Rows leave when there are 16 KiB of them, and those of a batch more.
        let frame_max = (16 << 10) + 8 * BATCH_ROWS as u64;
        assert!(held >= bound && held < bound + frame_max, "{exchange}: {held} bytes are held");
        assert!(read < 200 * BATCH_ROWS as u64 / 10, "{exchange}: {read} rows were read");
        assert!(!pair.turn(gives), "it waits");
        pair.turn(takes);
        assert!(pair.turn(gives), "there is room again");
        pair.run();
        assert!(exchanged(&pair) > held);
    }
}

#[test]
fn a_worker_that_fails_ends_the_others_of_its_process() {
    let mut pair = Pair::new(200, Exchange::Shuffle, RingConfig::default());
    for _ in 0..5 {
        pair.turn(0);
        pair.turn(1);
    }
    pair.workers[1] = None;
    let mut worker = pair.workers[0].take().unwrap();
    let error = loop {
        match worker.step() {
            Ok(status) => assert_ne!(status, Status::Done),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("worker 1"), "{error}");
}
