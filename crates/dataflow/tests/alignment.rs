//! Sources of one worker whose rows meet are read in step: two of different speed, in virtual time.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};

use arrow::array::TimestampMillisecondArray;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::job::{
    Aggregation, Edge, Exchange, JobGraph, Operator, OperatorKind, Scan, Settings, SinkSpec,
    TimeWindow, Watermark,
};
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use state::{GroupBy, StateOptions, Windows};

use crate::alone;

const TIME: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);
const END: i64 = 1_000;

/// Which source gave a row, and of what time, in the order of reading.
type Log = Arc<Mutex<Vec<(usize, i64)>>>;

/// A row each `step` ms of event time, up to [`END`]; the first ones not before `from_ms` of the
/// clock.
#[derive(Clone)]
struct Steps {
    number: usize,
    step: i64,
    from_ms: u64,
    log: Log,
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("ts", TIME, true)]))
}

impl Source for Steps {
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
        Ok(Box::new(Walk { steps: self.clone(), at: 0, context: context.clone() }))
    }
}

struct Walk {
    steps: Steps,
    at: i64,
    context: ReaderContext,
}

impl SplitReader for Walk {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let until_ns = self.steps.from_ms * 1_000_000;
        if self.context.clock.now_ns() < until_ns {
            return Ok(Next::Wait { until_ns });
        }
        self.at += self.steps.step;
        if self.at > END {
            return Ok(Next::End);
        }
        self.steps.log.lock().unwrap().push((self.steps.number, self.at));
        let times = TimestampMillisecondArray::from(vec![self.at]);
        Ok(Next::Batch(RecordBatch::try_new(schema(), vec![Arc::new(times)]).unwrap()))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

struct Nowhere;

impl Sink for Nowhere {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Self))
    }
}

impl SinkWriter for Nowhere {
    fn write(&mut self, _: &RecordBatch) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

fn counts() -> (OperatorKind, SchemaRef) {
    let columns = [
        ("count", DataType::Int64),
        ("window_start", TIME),
        ("window_end", TIME),
        ("window_time", TIME),
    ];
    let fields = columns.map(|(name, of)| Field::new(name, of, true));
    let counted: SchemaRef = Arc::new(Schema::new(fields.to_vec()));
    let windows = Windows::tumbling(10, 0).unwrap();
    let aggregate = Aggregation {
        input_schema: schema(),
        group_by: Arc::new(GroupBy {
            keys: vec![],
            aggregates: vec![state::aggregates::count()],
            options: StateOptions::default(),
        }),
        keys: vec![],
        args: vec![vec![]],
        window: Some(TimeWindow { column: 0, time_type: TIME, windows, attached: false }),
        exchange: Exchange::Forward,
        early_ns: None,
        schema: counted.clone(),
    };
    (OperatorKind::Aggregate(Box::new(aggregate)), counted)
}

/// Reads the two sources, whose rows all go to an aggregate, or to a sink; gives what was read.
fn read(steps: [(i64, u64); 2], aggregated: bool) -> Vec<(usize, i64)> {
    let log = Log::default();
    let source = |number: usize| {
        let (step, from_ms) = steps[number];
        let source = Arc::new(Steps { number, step, from_ms, log: log.clone() });
        let watermark = Some(Watermark { column: 0, delay: 0, idle_timeout_ns: None });
        OperatorKind::Source(Scan { watermark, ..Scan::new(format!("t{number}"), source) })
    };
    let edge = |from| Edge { from, step: None, timed: true, lateness: 0 };
    let operator = |kind, inputs| Operator::new("q", inputs, kind);
    let both = vec![vec![edge(0), edge(1)]];
    let mut operators = vec![operator(source(0), vec![]), operator(source(1), vec![])];
    let nowhere = |schema| OperatorKind::Sink(SinkSpec { sink: Arc::new(Nowhere), schema });
    if aggregated {
        let (counts, schema) = counts();
        operators.push(operator(counts, both));
        operators.push(operator(nowhere(schema), vec![vec![edge(2)]]));
    } else {
        operators.push(operator(nowhere(schema()), both));
    }
    alone::run(JobGraph { operators, settings: Settings::default() });
    std::mem::take(&mut *log.lock().unwrap())
}

/// By how much one was ahead of the other, while both had rows.
fn ahead(log: &[(usize, i64)]) -> i64 {
    let mut reached = [0, 0];
    let apart = log.iter().map(|&(number, at)| {
        reached[number] = at;
        (reached[0] - reached[1]).abs()
    });
    apart.max().unwrap_or_default()
}

#[test]
fn the_slower_one_is_waited_for() {
    let log = read([(50, 0), (1, 0)], true);
    assert_eq!(log.len(), 20 + 1_000);
    assert!(ahead(&log) <= 50, "{log:?}");
    let log = read([(1, 0), (50, 0)], true);
    assert!(ahead(&log) <= 50, "{log:?}");
}

#[test]
fn one_without_rows_is_not_waited_for() {
    let log = read([(50, 0), (1, 100)], true);
    let (first, rest) = log.split_at(20);
    assert!(first.iter().all(|(number, _)| *number == 0), "{first:?}");
    assert_eq!(rest.len(), 1_000);
}

/// Where no row waits for another, no source does.
#[test]
fn rows_that_go_to_a_sink_do_not_wait() {
    let log = read([(50, 0), (1, 0)], false);
    assert!(ahead(&log) > 500, "{log:?}");
}
