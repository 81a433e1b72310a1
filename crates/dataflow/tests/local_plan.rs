//! A plan of another library on two workers: the distribution of its rows, the end of its inputs,
//! and its results.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{
    Description, Distribution, Edge, Exchange, JobGraph, LocalInput, LocalMemory, LocalOperator,
    LocalPlan, LocalRun, Operator, OperatorKind, Scan, Settings, SinkSpec, StopCheck,
};
use dataflow::process::Process;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, Source, SplitReader};
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};

use crate::flows::Flows;

pub const WORKERS: u32 = 2;

/// Keys of a flow.
const KEYS: std::ops::Range<i64> = 0..1_000;

pub fn schema(columns: &[&str]) -> SchemaRef {
    let field = |name: &&str| Field::new(*name, DataType::Int64, true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

pub fn batch(columns: &[&str], values: Vec<Vec<i64>>) -> RecordBatch {
    let arrays = values.into_iter().map(|values| Arc::new(Int64Array::from(values)) as _);
    RecordBatch::try_new(schema(columns), arrays.collect()).unwrap()
}

/// Reads keys, the last ones first.
#[derive(Clone)]
struct Keys(Vec<i64>);

/// A source that gives these keys to each worker.
pub fn source_of(keys: Vec<i64>) -> Arc<dyn Source> {
    let (schema, reader) = (schema(&["k"]), Keys(keys));
    Arc::new(Flows { schema, bounded: true, splits: WORKERS, reader })
}

impl SplitReader for Keys {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let few = self.0.split_off(self.0.len().saturating_sub(300));
        Ok(if few.is_empty() { Next::End } else { Next::Batch(batch(&["k"], vec![few])) })
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// The rows that came, in any order.
#[derive(Clone, Default)]
pub struct Collected(pub Arc<Mutex<Vec<[i64; 3]>>>);

impl Sink for Collected {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Collected {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let of = |at: usize| batch.column(at).as_primitive::<Int64Type>().values();
        let rows = (0..batch.num_rows()).map(|row| [of(0)[row], of(1)[row], of(2)[row]]);
        self.0.lock().unwrap().extend(rows);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// Counts the rows of each key by input. When both inputs have ended, it emits a row for the run
/// itself, and then one for each key; it is pending once before each row.
#[derive(Clone, Default)]
struct Counts {
    fails: bool,
    /// Whether the rows of the left input may come only when the right one has ended.
    is_ordered: bool,
}

#[derive(Default)]
struct CountsRun {
    of: Counts,
    by_key: BTreeMap<i64, [i64; 2]>,
    ended: [bool; 2],
    waker: Option<Waker>,
    began: bool,
    was_pending: bool,
}

const COLUMNS: [&str; 3] = ["k", "left", "right"];

/// The key of the row of a run.
const RUN: i64 = -1;

impl LocalPlan for Counts {
    fn schema(&self) -> SchemaRef {
        schema(&COLUMNS)
    }

    fn open(&self, memory: LocalMemory, _: StopCheck) -> Result<Box<dyn LocalRun>, DataflowError> {
        assert!(memory.bytes_max > 0 && memory.disk.is_none());
        Ok(Box::new(CountsRun { of: self.clone(), ..CountsRun::default() }))
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Counts", properties: vec![] }
    }
}

impl LocalRun for CountsRun {
    fn push(&mut self, input: usize, rows: RecordBatch) {
        assert!(!self.ended[input], "rows come behind the end of an input");
        let waits = self.of.is_ordered && input == 0;
        assert!(!waits || self.ended[1], "a row that should have waited");
        for &key in rows.column(0).as_primitive::<Int64Type>().values() {
            self.by_key.entry(key).or_default()[input] += 1;
        }
    }

    fn end(&mut self, input: usize) {
        self.ended[input] = true;
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<Option<Result<RecordBatch, DataflowError>>> {
        assert!(bytes_max > 0);
        if self.ended != [true; 2] {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.was_pending = !self.was_pending;
        if self.was_pending {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.of.fails {
            return Poll::Ready(Some(Err(DataflowError::Expression("it fails".into()))));
        }
        let next = if self.began {
            self.by_key.pop_first()
        } else {
            self.began = true;
            Some((RUN, [1, 1]))
        };
        let row = |(key, [left, right]): (i64, [i64; 2])| {
            batch(&COLUMNS, vec![vec![key], vec![left], vec![right]])
        };
        Poll::Ready(next.map(|next| Ok(row(next))))
    }

    fn bytes(&self) -> usize {
        self.by_key.len() * 24
    }

    fn unread_bytes(&self, _: usize) -> usize {
        0
    }
}

/// Never emits a row, and stops the query when it has been polled [`POLLS`] times. It is pending
/// then, or fails.
#[derive(Clone, Default)]
struct Endless {
    fails: bool,
    signals: Arc<Signals>,
    polls: Arc<AtomicUsize>,
}

const POLLS: usize = 100;

impl LocalPlan for Endless {
    fn schema(&self) -> SchemaRef {
        schema(&COLUMNS)
    }

    fn open(&self, _: LocalMemory, _: StopCheck) -> Result<Box<dyn LocalRun>, DataflowError> {
        Ok(Box::new(self.clone()))
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Endless", properties: vec![] }
    }
}

impl LocalRun for Endless {
    fn push(&mut self, _: usize, _: RecordBatch) {}

    fn end(&mut self, _: usize) {}

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        _: usize,
    ) -> Poll<Option<Result<RecordBatch, DataflowError>>> {
        let polls = 1 + self.polls.fetch_add(1, Ordering::Relaxed);
        assert!(polls <= POLLS, "it is polled after the query was stopped");
        if polls == POLLS {
            self.signals.stop();
            if self.fails {
                return Poll::Ready(Some(Err(DataflowError::Expression("it is stopped".into()))));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn bytes(&self) -> usize {
        0
    }

    fn unread_bytes(&self, _: usize) -> usize {
        0
    }
}

/// Runs the plan over two tables with these distributions; gives its rows.
fn run(
    plan: Counts,
    tables: [Vec<i64>; 2],
    keys: Vec<usize>,
    distributions: [Distribution; 2],
) -> Result<Vec<[i64; 3]>, DataflowError> {
    run_until(Arc::new(plan), tables, keys, distributions, &Arc::default())
}

/// The same, where others may stop it.
fn run_until(
    plan: Arc<dyn LocalPlan>,
    tables: [Vec<i64>; 2],
    keys: Vec<usize>,
    distributions: [Distribution; 2],
    signals: &Arc<Signals>,
) -> Result<Vec<[i64; 3]>, DataflowError> {
    let collected = Collected::default();
    let input =
        |distribution| LocalInput { schema: schema(&["k"]), keys: keys.clone(), distribution };
    let local = LocalOperator {
        inputs: distributions.map(input).into(),
        exchange: Exchange::Shuffle,
        plan,
    };
    let edge = |from| vec![Edge { from, step: None, timed: false, lateness: 0 }];
    let scan = |of: Vec<i64>| OperatorKind::Source(Scan::new("t", source_of(of)));
    let [left, right] = tables.map(scan);
    let sink = SinkSpec { sink: Arc::new(collected.clone()), schema: schema(&COLUMNS) };
    let operators = vec![
        Operator::new("l", vec![], left),
        Operator::new("r", vec![], right),
        Operator::new("p", vec![edge(0), edge(1)], OperatorKind::Local(local)),
        Operator::new("s", vec![edge(2)], OperatorKind::Sink(sink)),
    ];
    run_job(operators, signals)?;
    let mut rows = std::mem::take(&mut *collected.0.lock().unwrap());
    rows.sort_unstable();
    Ok(rows)
}

/// Runs a job on the workers of a process to its end.
pub fn run_job(operators: Vec<Operator>, signals: &Arc<Signals>) -> Result<(), DataflowError> {
    let job = Arc::new(JobGraph { operators, settings: Settings::default() });
    let process = Process::new(0, WORKERS).unwrap();
    let clock = SimNet::new(SimOptions::default()).clock();
    let worker = |worker: u32| {
        let (job, process) = (job.clone(), process.clone());
        let links = vec![None, None];
        let config = WorkerConfig::new(worker, WORKERS, process, job, links, clock.clone());
        Worker::new(WorkerConfig { signals: signals.clone(), ..config }).unwrap()
    };
    let mut workers: Vec<Option<Worker>> = (0..WORKERS).map(|at| Some(worker(at))).collect();
    while workers.iter().any(Option::is_some) {
        let mut moved = false;
        for worker in &mut workers {
            let Some(running) = worker else { continue };
            match running.step()? {
                Status::Done => (*worker, moved) = (None, true),
                Status::Busy => moved = true,
                Status::Idle { .. } => {}
            }
        }
        assert!(moved, "nothing moves any more");
    }
    Ok(())
}

fn all() -> Vec<i64> {
    KEYS.collect()
}

/// The rows of a number of runs, and of the keys.
fn expected(runs: usize, keys: impl Iterator<Item = i64>, counts: [i64; 2]) -> Vec<[i64; 3]> {
    let runs = (0..runs).map(|_| [RUN, 1, 1]);
    runs.chain(keys.map(|key| [key, counts[0], counts[1]])).collect()
}

#[test]
fn rows_of_equal_keys_meet_on_one_worker() {
    let rows = run(Counts::default(), [all(), all()], vec![0], [Distribution::Hash; 2]);
    assert!(rows.unwrap() == expected(2, KEYS, [2, 2]));
}

#[test]
fn a_side_that_every_worker_has_meets_rows_that_stay() {
    let distributions = [Distribution::Local, Distribution::Broadcast];
    let counts = Counts { is_ordered: true, ..Counts::default() };
    let rows = run(counts, [all(), vec![7]], vec![], distributions).unwrap();
    let mut wanted = expected(2, KEYS.flat_map(|key| [key, key]), [1, 0]);
    let of_seven = wanted.iter_mut().filter(|row| row[0] == 7);
    // There is one row on each worker.
    of_seven.for_each(|row| row[2] = 2);
    assert!(rows == wanted);
}

#[test]
fn without_keys_one_worker_alone_runs_the_plan() {
    for keys in [all(), vec![]] {
        let wanted = expected(1, keys.clone().into_iter(), [2, 2]);
        let tables = [keys.clone(), keys];
        let rows = run(Counts::default(), tables, vec![], [Distribution::Hash; 2]).unwrap();
        assert!(rows == wanted);
    }
}

#[test]
fn a_plan_that_emits_nothing_is_not_polled_after_a_stop() {
    for fails in [false, true] {
        let plan = Endless { fails, ..Endless::default() };
        let (signals, gathered) = (plan.signals.clone(), [Distribution::Hash; 2]);
        let rows = run_until(Arc::new(plan.clone()), [all(), all()], vec![], gathered, &signals);
        assert!(rows.unwrap().is_empty());
        assert_eq!(plan.polls.load(Ordering::Relaxed), POLLS);
    }
}

#[test]
fn a_failure_of_the_plan_ends_the_job() {
    let failed = run(
        Counts { fails: true, ..Counts::default() },
        [all(), all()],
        vec![0],
        [Distribution::Hash; 2],
    );
    assert_eq!(failed.unwrap_err().to_string(), "it fails");
}
