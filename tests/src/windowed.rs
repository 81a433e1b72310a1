//! Jobs of a windowed grouping over a random stream, made by hand: windows are a matter of the
//! dataflow, whatever SQL calls them.

use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use dataflow::connector::{Connector, TableDef};
use dataflow::fusion::fuse;
use dataflow::job::{
    Aggregation, Edge, Exchange, JobGraph, OnBad, Operator, OperatorKind, Scan, Settings, SinkSpec,
    TimeColumn, TimeWindow, Watermark,
};
use state::epoch::LengthBounds;
use state::{GroupBy, StateOptions, Windows};

use crate::memory::Memory;
use crate::random::{DELAY_MS, Random, Stream};

/// The columns of random streams that have sums.
pub const V: usize = 2;
/// See [`V`].
pub const W: usize = 3;

const K: usize = 0;
/// Jobs are planned for more workers than one, and run on any number.
const WORKERS_MAX: u32 = u32::MAX;
const TS: usize = 4;

/// Random windows that tumble, hop or cumulate; with slides that do not divide the size, and with
/// gaps between them.
pub fn windows(random: &mut Random) -> Windows {
    let seconds = |random: &mut Random, n: u64| 1_000 * (1 + random.below(n) as i64);
    let offset = random.below(20_000) as i64 - 10_000;
    if random.chance(30) {
        return Windows::tumbling(seconds(random, 20), offset).expect("it is positive");
    }
    if random.chance(40) {
        let (step, steps) = (seconds(random, 20), 1 + random.below(8) as i64);
        return Windows::cumulating(step * steps, step, offset).expect("a step divides the size");
    }
    let (size, slide) = (seconds(random, 60), 500 * (1 + random.below(60) as i64));
    Windows::hopping(size, slide, offset).expect("both are positive")
}

/// A count and sums by `k` and window.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The windows of `ts`.
    pub windows: Windows,
    /// How rows of different workers meet.
    pub exchange: Exchange,
    /// The columns of which there are sums, [`V`] or [`W`].
    pub sums: Vec<usize>,
    /// Milliseconds that windows wait behind the watermark.
    pub lateness: i64,
    /// How often windows are looked at before they end.
    pub early_ns: Option<NonZeroU64>,
}

impl Asked {
    /// Over the stream as the table `t`, whose flows are never idle. The columns are `k`, the
    /// count, the sums, the window's start, end and time, and the kind if there are early rows.
    ///
    /// # Panics
    /// When `memory` has no such table.
    pub fn job(&self, memory: &Memory, stream: &Stream) -> JobGraph {
        let input_schema = stream.table.schema.clone();
        let (options, metadata) = Default::default();
        let table = TableDef {
            name: "t".into(),
            schema: input_schema.clone(),
            options,
            metadata,
            buckets: vec![],
        };
        let time = DataType::Timestamp(TimeUnit::Millisecond, None);
        let of = |column: usize| input_schema.field(column).data_type();
        let sum = |&column: &usize| state::aggregates::sum(of(column)).expect("there is a sum");
        let sums: Vec<_> = self.sums.iter().map(sum).collect();
        let named = |at: usize| format!("sum_{at}");
        let mut columns =
            vec![("k".to_string(), DataType::Int64), ("count".into(), DataType::Int64)];
        columns.extend(sums.iter().enumerate().map(|(at, sum)| (named(at), sum.output_type())));
        let bounds = ["window_start", "window_end", "window_time"];
        columns.extend(bounds.map(|name| (name.into(), time.clone())));
        columns.extend(self.early_ns.map(|_| ("kind".into(), DataType::Utf8)));
        let fields = columns.into_iter().map(|(name, of)| Field::new(name, of, true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let count = state::aggregates::count();
        let aggregation = Aggregation {
            input_schema: input_schema.clone(),
            group_by: Arc::new(GroupBy {
                keys: vec![DataType::Int64],
                aggregates: [count].into_iter().chain(sums).collect(),
                options: StateOptions::default(),
            }),
            keys: vec![K],
            args: [vec![]].into_iter().chain(self.sums.iter().map(|&sum| vec![sum])).collect(),
            window: Some(TimeWindow {
                column: TS,
                time_type: time,
                windows: self.windows,
                attached: false,
            }),
            exchange: self.exchange,
            early_ns: self.early_ns,
            schema: schema.clone(),
        };
        let all: Vec<usize> = (0..input_schema.fields().len()).collect();
        let source = memory.source(&table, &all).expect("the table is there");
        let watermark = Watermark { column: TS, delay: DELAY_MS, idle_timeout_ns: None };
        let time = Some(TimeColumn { column: watermark.column, on_bad: OnBad::Show });
        let input = Scan { time, watermark: Some(watermark), ..Scan::new("t", source) };
        let sink = memory.sink(&table).expect("a sink");
        let kinds = [
            OperatorKind::Source(input),
            OperatorKind::Aggregate(Box::new(aggregation)),
            OperatorKind::Sink(SinkSpec { sink, schema }),
        ];
        let edge = |from| vec![Edge { from, step: None, timed: true, lateness: self.lateness }];
        let operators = kinds.into_iter().enumerate().map(|(at, kind)| {
            let inputs = at.checked_sub(1).map(edge).into_iter().collect();
            Operator::new("windows", inputs, kind)
        });
        let epoch = LengthBounds { bytes: 4_096, ..Settings::default().epoch };
        let settings = Settings { epoch, ..Settings::default() };
        let mut job = JobGraph { operators: operators.collect(), settings };
        fuse(&mut job, WORKERS_MAX);
        job
    }
}
