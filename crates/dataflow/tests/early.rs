//! When the rows of a window are given out, before it ends and when it does: one worker, in virtual
//! time, against rows by hand.
#![allow(missing_docs)]

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::TimestampMillisecondType;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{
    Aggregation, Edge, Exchange, JobGraph, Operator, OperatorKind, Origin, Property, Scan,
    Settings, SinkSpec, Step, Stepped, TimeWindow, Watermark,
};
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use dataflow::worker::Signals;
use state::{GroupBy, StateOptions, Windows};

use crate::alone;

const TIME: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

/// The clock's milliseconds at which rows come, and each row's key and time.
#[derive(Clone)]
struct Script(Vec<(u64, Vec<(i64, i64)>)>);

impl Source for Script {
    fn schema(&self) -> SchemaRef {
        let fields = [("k", DataType::Int64), ("ts", TIME)];
        Arc::new(Schema::new(fields.map(|(name, of)| Field::new(name, of, true)).to_vec()))
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
        let (events, schema) = (self.0.clone().into(), self.schema());
        Ok(Box::new(Played { events, schema, context: context.clone() }))
    }
}

struct Played {
    events: VecDeque<(u64, Vec<(i64, i64)>)>,
    schema: SchemaRef,
    context: ReaderContext,
}

impl SplitReader for Played {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let Some((at_ms, _)) = self.events.front() else { return Ok(Next::End) };
        let until_ns = at_ms * 1_000_000;
        if self.context.clock.now_ns() < until_ns {
            return Ok(Next::Wait { until_ns });
        }
        let rows = self.events.pop_front().map_or(vec![], |(_, rows)| rows);
        let keys: Int64Array = rows.iter().map(|(k, _)| *k).collect();
        let times: TimestampMillisecondArray = rows.iter().map(|(_, ts)| Some(*ts)).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(times)];
        Ok(Next::Batch(RecordBatch::try_new(self.schema.clone(), columns).unwrap()))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// Rows as they were written: `key count start kind`.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<String>>>);

impl Sink for Written {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Written {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let number = |at: usize, row| batch.column(at).as_primitive::<Int64Type>().value(row);
        let start = batch.column(2).as_primitive::<TimestampMillisecondType>();
        let kind = batch.column(5).as_string::<i32>();
        let row = |row| {
            let (key, count) = (number(0, row), number(1, row));
            format!("{key} {count} {} {}", start.value(row), kind.value(row))
        };
        let mut rows: Vec<String> = (0..batch.num_rows()).map(row).collect();
        rows.sort();
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

fn job(script: &Script, windows: Windows, every_ms: u64, written: &Written) -> JobGraph {
    let columns = [
        ("k", DataType::Int64),
        ("count", DataType::Int64),
        ("window_start", TIME),
        ("window_end", TIME),
        ("window_time", TIME),
        ("kind", DataType::Utf8),
    ];
    let fields = columns.map(|(name, of)| Field::new(name, of, true));
    let schema: SchemaRef = Arc::new(Schema::new(fields.to_vec()));
    let aggregate = Aggregation {
        input_schema: script.schema(),
        group_by: Arc::new(GroupBy {
            keys: vec![DataType::Int64],
            aggregates: vec![state::aggregates::count()],
            options: StateOptions::default(),
        }),
        keys: vec![0],
        args: vec![vec![]],
        window: Some(TimeWindow { column: 1, time_type: TIME, windows, attached: false }),
        exchange: Exchange::Forward,
        early_ns: NonZeroU64::new(every_ms * 1_000_000),
        schema: schema.clone(),
    };
    let watermark = Some(Watermark { column: 1, delay: 0, idle_timeout_ns: None });
    let input = Scan { watermark, ..Scan::new("t", Arc::new(script.clone())) };
    let kinds = [
        OperatorKind::Source(input),
        OperatorKind::Aggregate(Box::new(aggregate)),
        OperatorKind::Sink(SinkSpec { sink: Arc::new(written.clone()), schema }),
    ];
    let edge = |from| vec![Edge { from, step: None, timed: true, lateness: 0 }];
    let operators = kinds.into_iter().enumerate().map(|(at, kind)| {
        let inputs = at.checked_sub(1).map(edge).into_iter().collect();
        Operator::new("q", inputs, kind)
    });
    JobGraph { operators: operators.collect(), settings: Settings::default() }
}

/// What a worker writes, in order, and how long it ran in milliseconds.
fn run(script: &Script, windows: Windows, every_ms: u64) -> (Vec<String>, u64) {
    let written = Written::default();
    let ns = alone::run(job(script, windows, every_ms, &written));
    (std::mem::take(&mut *written.0.lock().unwrap()), ns / 1_000_000)
}

#[test]
fn what_has_changed_is_told_each_interval_and_once_more_at_the_end() {
    let script = Script(vec![
        (5, vec![(1, 0), (2, 3)]),
        (25, vec![(1, 4)]),
        // Within an interval a window may come and go: only its end is told.
        (41, vec![(3, 12), (3, 25)]),
    ]);
    let (rows, ms) = run(&script, Windows::tumbling(10, 0).unwrap(), 10);
    let expected = [
        "1 1 0 early",
        "2 1 0 early",
        "1 2 0 early",
        "2 1 0 early",
        "1 2 0 final",
        "2 1 0 final",
        "3 1 10 final",
        "3 1 20 final",
    ];
    assert_eq!(rows, expected);
    assert!(ms < 50, "the end does not wait for the next interval: {ms} ms");
}

#[test]
fn every_open_window_of_a_row_is_told() {
    let script = Script(vec![(5, vec![(1, 7)]), (15, vec![(1, 12)]), (35, vec![(1, 13)])]);
    let (rows, _) = run(&script, Windows::hopping(10, 5, 0).unwrap(), 10);
    let expected = [
        "1 1 0 early",
        "1 1 5 early",
        "1 1 0 final",
        "1 1 10 early",
        "1 2 5 early",
        "1 2 10 final",
        "1 3 5 final",
    ];
    assert_eq!(rows, expected);
    let (rows, _) = run(&script, Windows::cumulating(20, 10, 0).unwrap(), 10);
    let expected = ["1 1 0 early", "1 1 0 early", "1 1 0 final", "1 2 0 early", "1 3 0 final"];
    assert_eq!(rows, expected);
}

#[test]
fn a_window_that_does_not_change_is_told_once() {
    let script = Script(vec![(5, vec![(1, 7)]), (995, vec![(1, 8)])]);
    let (rows, _) = run(&script, Windows::tumbling(10, 0).unwrap(), 10);
    assert_eq!(rows, ["1 1 0 early", "1 2 0 final"]);
}

/// Asks for the end with the first rows, and counts all.
#[derive(Clone, Default)]
struct Stopping(Arc<Signals>, Arc<AtomicUsize>);

impl Sink for Stopping {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Stopping {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.0.stop();
        self.1.fetch_add(batch.num_rows(), Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

#[test]
fn a_stop_ends_a_row_of_a_million_windows_and_few_windows_are_finished() {
    let script = Script(vec![(5, vec![(1, 7)])]);
    for (windows, all) in [(20_000, true), (1_500_000, false)] {
        let hops = Windows::hopping(windows, 1, 0).unwrap();
        let mut job = job(&script, hops, 1 << 40, &Written::default());
        let stopping = Stopping::default();
        let OperatorKind::Sink(SinkSpec { sink, .. }) = &mut job.operators[2].kind else {
            panic!("a sink")
        };
        *sink = Arc::new(stopping.clone());
        alone::run_until(job, stopping.0);
        let written = stopping.1.load(Ordering::Relaxed) as i64;
        assert_eq!(written == windows, all, "{written} of {windows}");
        assert!(written >= windows.min(1 << 20), "{written} of {windows}");
    }
}

/// Writes down that rows are on their way to the windows.
struct Passing(SchemaRef, Written);

impl Step for Passing {
    fn schema(&self) -> SchemaRef {
        self.0.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let times = batch.column(1).as_primitive::<TimestampMillisecondType>();
        self.1.0.lock().unwrap().push(format!("rows from {} on", times.value(0)));
        Ok(Stepped { batch: batch.clone(), origin: Origin::All })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![]
    }
}

#[test]
fn a_window_does_not_wait_for_the_rows_that_end_it() {
    let script = Script(vec![
        (5, vec![(1, 0), (2, 3)]),
        (6, vec![(1, 12), (1, 13)]),
        // Not in order: until it was folded nobody knows what it holds.
        (7, vec![(1, 25), (1, 24), (1, 31)]),
        (8, vec![(1, 32), (1, 38), (1, 41), (1, 52)]),
    ]);
    let written = Written::default();
    let mut job = job(&script, Windows::tumbling(10, 0).unwrap(), 1_000, &written);
    let passing = Passing(script.schema(), written.clone());
    job.operators[1].inputs[0][0].step = Some(Arc::new(passing));
    alone::run(job);
    let expected = [
        "rows from 0 on",
        "1 1 0 final",
        "2 1 0 final",
        "rows from 12 on",
        "rows from 25 on",
        "1 2 10 final",
        "1 2 20 final",
        "rows from 32 on",
        "1 3 30 final",
        "rows from 41 on",
        "1 1 40 final",
        "1 1 50 final",
    ];
    assert_eq!(*written.0.lock().unwrap(), expected);
}
