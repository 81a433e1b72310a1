//! A sink without room holds back its rows, and those who give rows to it, and nobody else.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::job::{Edge, JobGraph, Operator, OperatorKind, Scan, Settings, SinkSpec};
use dataflow::metrics::Metrics;
use dataflow::process::Process;
use dataflow::sink::{Placement, Room, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, SplitReader};
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::Clock;

use crate::flows::Flows;

const WORKERS: u32 = 2;
const BATCHES: i64 = 100;
const BATCH_ROWS: i64 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
}

/// Reads numbers from a batch on.
#[derive(Clone)]
struct Numbers(i64);

impl SplitReader for Numbers {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        if self.0 == BATCHES {
            return Ok(Next::End);
        }
        let numbers = Int64Array::from_iter_values(self.0 * BATCH_ROWS..(self.0 + 1) * BATCH_ROWS);
        self.0 += 1;
        Ok(Next::Batch(RecordBatch::try_new(schema(), vec![Arc::new(numbers)]).unwrap()))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// A sink whose reader reads as long as it `flows`.
#[derive(Clone, Default)]
struct Pipe {
    flows: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<i64>>>,
    committed: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Pipe {
    fn flow(&self) {
        self.flows.store(true, Ordering::Relaxed);
        if let Some(waker) = &*self.waker.lock().unwrap() {
            waker.wake_by_ref();
        }
    }

    fn taken(&self) -> Vec<i64> {
        let mut taken = self.taken.lock().unwrap().clone();
        taken.sort_unstable();
        taken
    }
}

impl Sink for Pipe {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        *self.waker.lock().unwrap() = Some(context.waker.clone());
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Pipe {
    fn room(&mut self) -> Room {
        if self.flows.load(Ordering::Relaxed) { Room::Ready } else { Room::Full }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        assert_eq!(self.room(), Room::Ready, "it has no room");
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        self.taken.lock().unwrap().extend(numbers);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        assert_eq!(self.room(), Room::Ready, "it has no room");
        Ok(())
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        Ok(self.room())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.committed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Two workers with two sinks: rows go from a source of its own to each.
struct Set {
    workers: Vec<Option<Worker>>,
    metrics: Vec<Arc<Metrics>>,
    signals: Arc<Signals>,
    clock: Arc<ManualClock>,
    stuck: Pipe,
    free: Pipe,
}

impl Set {
    fn new() -> Self {
        let (stuck, free) = (Pipe::default(), Pipe::default());
        free.flow();
        let operators = [&stuck, &free].into_iter().enumerate().flat_map(|(at, pipe)| {
            // Sinks of a source without an end are published one by one.
            let (schema, reader) = (schema(), Numbers(0));
            let source = Flows { schema: schema.clone(), bounded: false, splits: WORKERS, reader };
            let input = Scan::new("t", Arc::new(source));
            let sink = OperatorKind::Sink(SinkSpec { sink: Arc::new(pipe.clone()), schema });
            let edge = Edge { from: 2 * at, step: None, timed: false, lateness: 0 };
            [
                Operator::new("t", vec![], OperatorKind::Source(input)),
                Operator::new("s", vec![vec![edge]], sink),
            ]
        });
        let job = JobGraph { operators: operators.collect(), settings: Settings::default() };
        let (job, process) = (Arc::new(job), Process::new(0, WORKERS).unwrap());
        let metrics: Vec<Arc<Metrics>> = (0..WORKERS).map(|_| Arc::default()).collect();
        let (signals, clock) = (Arc::<Signals>::default(), Arc::<ManualClock>::default());
        let worker = |worker: u32| {
            let config = WorkerConfig {
                metrics: metrics[worker as usize].clone(),
                signals: signals.clone(),
                ..WorkerConfig::new(
                    worker,
                    WORKERS,
                    process.clone(),
                    job.clone(),
                    vec![None, None],
                    clock.clone(),
                )
            };
            Some(Worker::new(config).unwrap())
        };
        let workers = (0..WORKERS).map(worker).collect();
        Self { workers, metrics, signals, clock, stuck, free }
    }

    /// Gives turns until nobody has anything to do.
    fn rest(&mut self) {
        let mut moves = true;
        while moves {
            moves = false;
            for running in &mut self.workers {
                match running.as_mut().map(|worker| worker.step().unwrap()) {
                    Some(Status::Done) => *running = None,
                    Some(Status::Busy) => moves = true,
                    Some(Status::Idle { .. }) | None => {}
                }
            }
        }
    }

    fn read(&self, operator: usize) -> u64 {
        let of =
            |metrics: &Arc<Metrics>| metrics.operators()[operator].rows_in.load(Ordering::Relaxed);
        self.metrics.iter().map(of).sum()
    }
}

/// The rows of both workers.
fn all() -> Vec<i64> {
    (0..2 * BATCHES * BATCH_ROWS).map(|at| at / 2).collect()
}

#[test]
fn one_that_is_stuck_has_its_rows_later_and_the_other_at_once() {
    let mut set = Set::new();
    set.rest();
    assert!(set.free.taken() == all(), "all rows have come");
    assert!(set.free.committed.load(Ordering::Relaxed));
    assert!(set.stuck.taken().is_empty());
    // Of worker 0 a batch; of worker 1 what may be on its way, and a batch more.
    let ahead = (32_768_u64.div_ceil(BATCH_ROWS as u64) + 2) * BATCH_ROWS as u64;
    let read = set.read(0);
    assert!(read <= ahead, "{read} rows are held in front of the sink");
    assert!(set.metrics[0].read().backpressured_ns == 0, "no time has passed");
    set.stuck.flow();
    set.rest();
    assert!(set.workers.iter().all(Option::is_none), "both are done");
    assert!(set.stuck.taken() == all());
    assert!(set.stuck.committed.load(Ordering::Relaxed));
}

#[test]
fn after_a_stop_a_reader_that_takes_nothing_is_waited_for_only_so_long() {
    let mut set = Set::new();
    set.rest();
    set.signals.stop();
    set.clock.0.fetch_add(SECOND_NS, Ordering::Relaxed);
    set.rest();
    assert!(set.workers.iter().any(Option::is_some), "the reader may still come");
    for _ in 0..4 {
        set.clock.0.fetch_add(SECOND_NS, Ordering::Relaxed);
        set.rest();
    }
    assert!(set.workers.iter().all(Option::is_none), "both are done");
    assert!(set.stuck.taken().is_empty());
    assert!(!set.stuck.committed.load(Ordering::Relaxed));
    assert!(set.free.committed.load(Ordering::Relaxed));
}
