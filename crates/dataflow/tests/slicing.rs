//! Rows for other workers leave when enough are together, or when the oldest has waited for so long
//! (W4): two workers of one process, in virtual time.
#![allow(missing_docs)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{
    Distribution, Edge, Exchange, JobGraph, Keyed, KeyedInput, MultiPartitioner, Operator,
    OperatorKind, RowPartitioner, Scan, Settings, ShuffleSettings, SinkSpec,
};
use dataflow::keyed::{Reroute, To};
use dataflow::process::Process;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use dataflow::worker::{Status, Worker, WorkerConfig};
use dataflow::worker_set::WorkerSet;
use fabric::Clock;
use fabric::sim::{SimNet, SimOptions};

const WORKERS: u32 = 2;
const MS: u64 = 1_000_000;

/// When the flow of worker 0 ends, in milliseconds.
const END_MS: u64 = 2_000;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
}

/// Numbers and the milliseconds at which they come, to worker 0.
#[derive(Clone)]
struct Script(Vec<(u64, Vec<i64>)>);

struct Played(VecDeque<(u64, Vec<i64>)>, ReaderContext);

impl Source for Script {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn bounded(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split::default()])
    }

    fn open(
        &self,
        _: &Split,
        _: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(Played(self.0.clone().into(), context.clone())))
    }
}

impl SplitReader for Played {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let at_ns = MS * self.0.front().map_or(END_MS, |(at_ms, _)| *at_ms);
        if self.1.clock.now_ns() < at_ns {
            return Ok(Next::Wait { until_ns: at_ns });
        }
        let Some((_, numbers)) = self.0.pop_front() else { return Ok(Next::End) };
        let numbers = Arc::new(Int64Array::from(numbers));
        Ok(Next::Batch(RecordBatch::try_new(schema(), vec![numbers]).unwrap()))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// The worker and the millisecond at which each number was given out.
#[derive(Clone)]
struct Arrivals {
    clock: Arc<dyn Clock>,
    worker: u32,
    seen: Arc<Mutex<Vec<(u32, u64, i64)>>>,
}

impl Sink for Arrivals {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Self { worker: context.worker, ..self.clone() }))
    }
}

impl SinkWriter for Arrivals {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let at_ms = self.clock.now_ns() / MS;
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        let arrived = numbers.iter().map(|&number| (self.worker, at_ms, number));
        self.seen.lock().unwrap().extend(arrived);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// Leads all rows to worker 1.
struct ToTheOther;

impl RowPartitioner for ToTheOther {
    fn partition(
        &self,
        batch: &RecordBatch,
        _: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        to.resize(batch.num_rows(), 1);
        Ok(())
    }
}

impl MultiPartitioner for ToTheOther {
    fn partition(
        &self,
        batch: &RecordBatch,
        _: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        to.resize(batch.num_rows(), WorkerSet::all(1..2));
        Ok(())
    }
}

/// What worker 1 gives out, and at which millisecond, when rows are led so.
fn arrivals(distribution: Distribution, to: To, wait_ns: u64) -> Vec<(u64, i64)> {
    let net = SimNet::new(SimOptions::default());
    let seen = Arc::new(Mutex::new(vec![]));
    let sink = Arrivals { clock: net.clock(), worker: 0, seen: seen.clone() };
    let script =
        Script(vec![(0, vec![1]), (3, vec![2]), (1_000, vec![3, 4, 5, 6]), (1_001, vec![7])]);
    let input = Scan::new("t", Arc::new(script));
    let led = KeyedInput { schema: schema(), keys: vec![], distribution, time: None, grace: 1 };
    let operator = Arc::new(Reroute { schema: schema(), to });
    let keyed = Keyed { inputs: vec![led], exchange: Exchange::Shuffle, granularity: 1, operator };
    let kinds = [
        OperatorKind::Source(input),
        OperatorKind::Keyed(keyed),
        OperatorKind::Sink(SinkSpec { sink: Arc::new(sink), schema: schema() }),
    ];
    let edge = |from| vec![Edge { from, step: None, timed: false, lateness: 0 }];
    let operators = kinds.into_iter().enumerate().map(|(at, kind)| {
        let inputs = at.checked_sub(1).map(edge).into_iter().collect();
        // Four numbers leave at once.
        let shuffle = ShuffleSettings { bytes: 32, wait_ns, ..ShuffleSettings::default() };
        Operator { shuffle, ..Operator::new("q", inputs, kind) }
    });
    let job = Arc::new(JobGraph { operators: operators.collect(), settings: Settings::default() });
    let process = Process::new(0, WORKERS).unwrap();
    let worker = |worker: u32| {
        let config = WorkerConfig::new(
            worker,
            WORKERS,
            process.clone(),
            job.clone(),
            vec![None, None],
            net.clock(),
        );
        Worker::new(config).unwrap()
    };
    run(&net, (0..WORKERS).map(worker).collect());
    let seen = seen.lock().unwrap();
    seen.iter().filter(|(worker, ..)| *worker == 1).map(|(_, at, number)| (*at, *number)).collect()
}

fn run(net: &SimNet, mut workers: Vec<Worker>) {
    while !workers.is_empty() {
        let mut wakes = Some(u64::MAX);
        workers.retain_mut(|worker| match worker.step().unwrap() {
            Status::Done => false,
            Status::Busy => {
                wakes = None;
                true
            }
            Status::Idle { wake_ns } => {
                wakes = wakes.map(|wake| wake.min(wake_ns.unwrap_or(u64::MAX)));
                true
            }
        });
        if let Some(wake_ns) = wakes.filter(|_| !workers.is_empty()) {
            assert!(wake_ns < u64::MAX, "nobody moves any more");
            net.advance_to(wake_ns.max(net.now_ns() + 1));
        }
    }
}

#[test]
fn rows_leave_when_enough_are_together_or_the_oldest_has_waited_long_enough() {
    let cases = [
        (0, [(0, 1), (3, 2), (1_001, 7)]),
        (MS, [(1, 1), (4, 2), (1_002, 7)]),
        // The second goes with the first.
        (10 * MS, [(10, 1), (10, 2), (1_011, 7)]),
        (3_600_000 * MS, [(1_000, 1), (1_000, 2), (END_MS, 7)]),
    ];
    for (wait_ns, single) in cases {
        let ways = [
            (Distribution::Hash, To::One(Arc::new(ToTheOther))),
            (Distribution::Hash, To::Several(Arc::new(ToTheOther))),
            (Distribution::Broadcast, To::One(Arc::new(ToTheOther))),
        ];
        let together = [3, 4, 5, 6].map(|number| (1_000, number));
        let mut expected = [&single[..], &together[..]].concat();
        expected.sort_unstable();
        for (distribution, to) in ways {
            let several = matches!(to, To::Several(_));
            let seen = arrivals(distribution, to, wait_ns);
            assert_eq!(seen, expected, "{distribution:?}, several: {several}, {wait_ns} ns");
        }
    }
}
