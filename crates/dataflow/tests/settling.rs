//! A round is saved when the readers of sinks that stage nothing have its rows.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::checkpoint::{CheckpointTarget, RunId, WorkerSnapshot};
use dataflow::error::ConnectorError;
use dataflow::job::{Edge, JobGraph, Operator, OperatorKind, Scan, Settings, SinkSpec};
use dataflow::process::Process;
use dataflow::sink::{Placement, Room, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, SplitReader};
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::Clock;

use crate::flows::Flows;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
}

/// Gives one row, and waits for more.
#[derive(Clone)]
struct OneRow(bool);

impl SplitReader for OneRow {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        if std::mem::replace(&mut self.0, true) {
            return Ok(Next::Pending);
        }
        let rows = RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(vec![7]))]);
        Ok(Next::Batch(rows.unwrap()))
    }

    fn position(&self) -> Position {
        Position::new("one", 1, "t", &[u64::from(self.0)])
    }
}

/// Keeps rows until its reader takes them.
#[derive(Clone, Default)]
struct Slow {
    takes: Arc<AtomicBool>,
    pending: Arc<Mutex<Vec<i64>>>,
    taken: Arc<Mutex<Vec<i64>>>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Sink for Slow {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        *self.waker.lock().unwrap() = Some(context.waker.clone());
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Slow {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.pending.lock().unwrap().extend(batch.column(0).as_primitive::<Int64Type>().values());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        if !self.takes.load(Ordering::Relaxed) {
            return Ok(Room::Full);
        }
        self.taken.lock().unwrap().append(&mut self.pending.lock().unwrap());
        Ok(Room::Ready)
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// Notes what the reader had when a round was saved.
struct Noted(Slow, Mutex<Vec<(u64, Vec<i64>)>>);

impl CheckpointTarget for Noted {
    fn run(&self) -> RunId {
        RunId { job: 1, generation: 1 }
    }

    fn saved(&self, snapshot: WorkerSnapshot) {
        let taken = self.0.taken.lock().unwrap().clone();
        self.1.lock().unwrap().push((snapshot.round, taken));
    }
}

#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn rest(worker: &mut Worker) {
    while matches!(worker.step().unwrap(), Status::Busy) {}
}

#[test]
fn a_round_waits_for_the_reader_of_its_rows() {
    let slow = Slow::default();
    let edge = Edge { from: 0, step: None, timed: false, lateness: 0 };
    let sink = OperatorKind::Sink(SinkSpec { sink: Arc::new(slow.clone()), schema: schema() });
    let (schema, reader) = (schema(), OneRow(false));
    let source = Flows { schema, bounded: false, splits: 1, reader };
    let operators = vec![
        Operator::new("t", vec![], OperatorKind::Source(Scan::new("t", Arc::new(source)))),
        Operator::new("s", vec![vec![edge]], sink),
    ];
    let job = Arc::new(JobGraph { operators, settings: Settings::default() });
    let noted = Arc::new(Noted(slow.clone(), Mutex::default()));
    let (signals, process) = (Arc::<Signals>::default(), Process::new(0, 1).unwrap());
    let clock = Arc::new(ManualClock::default());
    let mut worker = Worker::new(WorkerConfig {
        signals: signals.clone(),
        checkpoints: Some(noted.clone()),
        ..WorkerConfig::new(0, 1, process, job, vec![None], clock)
    })
    .unwrap();
    rest(&mut worker);
    assert_eq!(*slow.pending.lock().unwrap(), [7], "the row is written, and its reader waits");
    signals.end_round(0);
    rest(&mut worker);
    assert!(noted.1.lock().unwrap().is_empty(), "the row would be lost");
    slow.takes.store(true, Ordering::Relaxed);
    slow.waker.lock().unwrap().as_ref().unwrap().wake_by_ref();
    rest(&mut worker);
    assert_eq!(*noted.1.lock().unwrap(), [(0, vec![7])]);
}
