//! The stream, dealt out to flows and paced.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowTimestampType, DataType, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};
use fabric::Clock;

use super::columns::{Column, Timeline};
use super::preloaded::{BlockRows, Preload, Preloaded};
use super::{BLOCK_ROWS, Model};
use crate::options::{OptionReader, refuse};

/// How long the rows of a paced block take at most: what a row may wait for the rest of its block.
const BLOCK_NS_MAX: u64 = 10_000_000;

/// A generated table.
pub(super) struct GeneratorSource {
    stream: Arc<Stream>,
    flows: Option<u32>,
    /// How rows are kept that are made in advance, if they are.
    keep: Option<Preload>,
}

/// The rows and when they are due.
struct Stream {
    model: Model,
    schema: SchemaRef,
    timeline: Timeline,
    /// Rows of a lap; `None` for one lap without end.
    rows: Option<u64>,
    laps: u64,
    /// Event time by which a lap is later than the one before.
    lap_ms: i64,
    rate: Option<u64>,
    block_rows: u64,
}

impl GeneratorSource {
    pub(super) fn new(
        options: OptionReader<'_>,
        timeline: Timeline,
        model: Model,
    ) -> Result<Self, ConnectorError> {
        let asked = options.integer("rows", 0)?;
        let rows = asked.into_iter().chain(model.rows_max).min();
        let laps = options.integer("repeat", 1)?;
        let fields: Vec<_> = model.columns.iter().map(|column| column.field.clone()).collect();
        let schema = Arc::new(Schema::new(fields));
        let keep = Preload::new(options)?;
        for (key, used) in [("preload", keep.is_some()), ("repeat", laps.is_some())] {
            if used && rows.is_none() {
                let hint = Some("write 'rows' = '1000000'".to_owned());
                return Err(refuse(key, "needs the number of rows", hint));
            }
        }
        let rate = options.integer("rate", 1)?;
        let flows = options.integer("flows", 1)?;
        let flows = flows
            .map(u32::try_from)
            .transpose()
            .map_err(|_| refuse("flows", "are too many", Some("write 'flows' = '8'".into())))?;
        let events = rows.map_or(0, |rows| (model.event)(rows));
        let stream = Stream {
            schema,
            model,
            timeline,
            rows,
            laps: laps.unwrap_or(1),
            lap_ms: (events.saturating_mul(timeline.interval_ns).div_ceil(1_000_000)) as i64,
            rate,
            block_rows: block_rows(rate),
        };
        Ok(Self { stream: Arc::new(stream), flows, keep })
    }
}

/// Rows of a block: fewer where 8192 would be long in coming, so that no flow waits for its turn.
fn block_rows(rate: Option<u64>) -> u64 {
    let Some(rate) = rate else { return BLOCK_ROWS as u64 };
    let due = (u128::from(rate) * u128::from(BLOCK_NS_MAX) / 1_000_000_000) as u64;
    // A power of two, at most.
    (1 << due.max(1).ilog2()).min(BLOCK_ROWS as u64)
}

impl Source for GeneratorSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.stream.schema)
    }

    fn replays(&self) -> bool {
        true
    }

    fn bounded(&self) -> bool {
        self.stream.rows.is_some()
    }

    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let flows = self.flows.unwrap_or(workers).max(1);
        let info = |flow: u32| {
            let deal = Deal { flow: u64::from(flow), flows: u64::from(flows) };
            Split {
                number: flow as usize,
                of: flows,
                name: format!("generator {flow} of {flows}"),
                rows: self.stream.rows.map(|rows| self.stream.rows_of(deal, rows)),
                event_time_min: time_column.and_then(|column| self.stream.time_min(deal, column)),
                ..Split::default()
            }
        };
        Ok((0..flows).map(info).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        let Some(of) = self.stream.model.columns.get(column) else { return Default::default() };
        match self.stream.time_range(of) {
            Some([least, greatest]) => ColumnBounds::between(least, greatest),
            None => ColumnBounds { range: None, distinct_max: of.distinct_max },
        }
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let deal = Deal { flow: split.number as u64, flows: split.of.max(1).into() };
        let stream = Arc::clone(&self.stream);
        let kept = self.keep.as_ref().map(|keep| stream.kept(keep, deal)).transpose()?;
        let begin = Begin { lap: 0, block: deal.flow, rows: 0 };
        let mut reader = GeneratorReader {
            stream,
            deal,
            kept,
            split: split.name.clone(),
            opened_ns: context.clock.now_ns(),
            began_ns: 0,
            clock: Arc::clone(&context.clock),
            lap: 0,
            block: deal.flow,
            begin,
            pass: 0,
            rest: None,
        };
        if let Some(from) = from {
            reader.go_to(from)?;
        }
        Ok(Box::new(reader))
    }
}

/// Which blocks are a flow's: `flow`, `flow + flows`, ….
#[derive(Debug, Clone, Copy)]
struct Deal {
    flow: u64,
    flows: u64,
}

impl Stream {
    /// The block, if the lap has it.
    fn block(&self, block: u64) -> Result<Option<RecordBatch>, ArrowError> {
        let first = block.saturating_mul(self.block_rows);
        let end = first.saturating_add(self.block_rows).min(self.rows.unwrap_or(u64::MAX));
        if first >= end {
            return Ok(None);
        }
        let columns = self.model.columns.iter().map(|column| (column.fill)(first..end)).collect();
        self.batch(columns, (end - first) as usize).map(Some)
    }

    /// The blocks of a flow, made in advance.
    fn kept(&self, keep: &Preload, deal: Deal) -> Result<Preloaded, ConnectorError> {
        let blocks = (deal.flow..).step_by(deal.flows as usize);
        let blocks = blocks.map_while(|block| self.block(block).transpose());
        let rows = self.rows.map_or(0, |rows| self.rows_of(deal, rows) / self.laps.max(1));
        let rows = BlockRows { each: self.block_rows as usize, all: rows };
        Preloaded::new(keep, &self.schema, rows, blocks)
    }

    fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }

    /// The batch as lap `lap` has it: later.
    fn moved(&self, batch: RecordBatch, lap: u64) -> Result<RecordBatch, ArrowError> {
        if lap == 0 {
            return Ok(batch);
        }
        let by_ms = self.lap_ms.saturating_mul(lap as i64);
        let columns = self.model.columns.iter().zip(batch.columns()).map(|(column, values)| {
            if column.is_time { later(values, by_ms) } else { Arc::clone(values) }
        });
        self.batch(columns.collect(), batch.num_rows())
    }

    /// Rows of a flow over all laps.
    fn rows_of(&self, deal: Deal, rows: u64) -> u64 {
        let blocks = rows.div_ceil(self.block_rows);
        let own = (blocks + deal.flows - 1 - deal.flow) / deal.flows;
        let short = blocks * self.block_rows - rows;
        let has_last = own > 0 && (blocks - 1) % deal.flows == deal.flow;
        (own * self.block_rows - if has_last { short } else { 0 }) * self.laps
    }

    /// A lower bound of a flow's event time, in ticks of the column.
    fn time_min(&self, deal: Deal, column: usize) -> Option<i64> {
        let column = self.model.columns.get(column).filter(|column| column.is_time)?;
        let first = deal.flow.saturating_mul(self.block_rows);
        ticks(self.timeline.least_ms((self.model.event)(first)), column)
    }

    /// The range of a column of event time over all laps.
    fn time_range(&self, column: &Column) -> Option<[i64; 2]> {
        let last = self.rows.filter(|&rows| rows > 0 && column.is_time)? - 1;
        let least = self.timeline.least_ms((self.model.event)(0));
        let later = self.lap_ms.saturating_mul(self.laps.saturating_sub(1) as i64);
        let greatest = self.timeline.nominal_ms((self.model.event)(last)).saturating_add(later);
        let greatest = greatest.saturating_add(column.ahead_ms);
        Some([ticks(least, column)?, ticks(greatest, column)?])
    }

    /// When the last row of a block is due, in nanoseconds after the opening.
    fn due_ns(&self, lap: u64, block: u64, rate: u64) -> u64 {
        let rows = self.rows.unwrap_or(u64::MAX);
        let end = (block + 1).saturating_mul(self.block_rows).min(rows);
        let before = u128::from(lap) * u128::from(self.rows.unwrap_or(0));
        ((before + u128::from(end)) * 1_000_000_000 / u128::from(rate)) as u64
    }
}

/// A point in time in ticks of a column's type.
fn ticks(ms: i64, column: &Column) -> Option<i64> {
    let time = TimestampMillisecondArray::from(vec![ms]);
    let ticks = cast(&cast(&time, column.field.data_type()).ok()?, &DataType::Int64).ok()?;
    ticks.is_valid(0).then(|| ticks.as_primitive::<Int64Type>().value(0))
}

/// Points in time, later. A column of another type stays as it is: there is none, for a column of
/// event time is declared as TIMESTAMP.
fn later(values: &ArrayRef, by_ms: i64) -> ArrayRef {
    fn add<T: ArrowTimestampType>(values: &ArrayRef, by: i64) -> ArrayRef {
        let ticks = values.as_primitive::<T>();
        let moved = ticks.unary::<_, T>(|tick| tick.wrapping_add(by));
        Arc::new(moved.with_data_type(values.data_type().clone()))
    }
    match values.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => {
            add::<TimestampSecondType>(values, by_ms / 1_000)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            add::<TimestampMillisecondType>(values, by_ms)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            add::<TimestampMicrosecondType>(values, by_ms.saturating_mul(1_000))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            add::<TimestampNanosecondType>(values, by_ms.saturating_mul(1_000_000))
        }
        _ => Arc::clone(values),
    }
}

struct GeneratorReader {
    stream: Arc<Stream>,
    deal: Deal,
    /// This flow's blocks, if they were made in advance.
    kept: Option<Preloaded>,
    split: String,
    clock: Arc<dyn Clock>,
    opened_ns: u64,
    /// When, after the opening of a reader that began at the beginning, this one goes on.
    began_ns: u64,
    lap: u64,
    /// The block to be made next.
    block: u64,
    /// Where the rows in hand begin, and how many of them were given.
    begin: Begin,
    /// Rows of the next block that were given before.
    pass: u64,
    /// Rows that did not fit into the last batch asked for.
    rest: Option<RecordBatch>,
}

/// A block of a lap, and a number of its rows.
#[derive(Debug, Clone, Copy)]
struct Begin {
    lap: u64,
    block: u64,
    rows: u64,
}

/// The name of positions in a generated stream.
const FORMAT: &str = "generator";
const POSITION_VERSION: u32 = 1;

impl GeneratorReader {
    /// The next block; of kept ones as many as `rows_max` allows, unless each has its time.
    fn next_block(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            if self.lap == self.stream.laps {
                return Ok(Next::End);
            }
            if let Some(rate) = self.stream.rate {
                let due_ns = self.stream.due_ns(self.lap, self.block, rate);
                let until_ns = self.opened_ns.saturating_add(due_ns.saturating_sub(self.began_ns));
                if self.exists() && self.clock.now_ns() < until_ns {
                    return Ok(Next::Wait { until_ns });
                }
            }
            let block = match &self.kept {
                Some(kept) => {
                    let index = (self.block - self.deal.flow) / self.deal.flows;
                    let blocks = match self.stream.rate {
                        Some(_) => 1,
                        None => (rows_max / self.stream.block_rows as usize).max(1),
                    };
                    kept.get(index as usize, blocks).map_err(unfit)?
                }
                None => self.stream.block(self.block).map_err(unfit)?,
            };
            match block {
                Some(batch) => {
                    let blocks = (batch.num_rows() as u64).div_ceil(self.stream.block_rows);
                    self.begin = Begin { lap: self.lap, block: self.block, rows: 0 };
                    self.block += blocks * self.deal.flows;
                    let batch = self.stream.moved(batch, self.lap).map_err(unfit)?;
                    return Ok(Next::Batch(batch));
                }
                None => {
                    self.block = self.deal.flow;
                    self.lap += 1;
                }
            }
        }
    }

    /// Goes on at a position.
    fn go_to(&mut self, from: &Position) -> Result<(), ConnectorError> {
        let numbers = from.numbers(FORMAT, POSITION_VERSION, &self.split)?;
        let [lap, block, rows, block_rows] = numbers;
        let (stream, deal) = (&self.stream, self.deal);
        let outside = |message: &str| Err(refused(&self.split, message.into()));
        if block_rows != stream.block_rows {
            return outside("the position is of a stream of another rate");
        }
        if block % deal.flows != deal.flow || lap > stream.laps {
            return outside("the position is in a block of another split");
        }
        // Rows that were kept are given by several blocks at a time.
        let whole = rows / block_rows;
        let next = whole.checked_mul(deal.flows).and_then(|blocks| block.checked_add(blocks));
        let Some(next) = next else { return outside("the position is behind the end") };
        (self.lap, self.block, self.pass) = (lap, next, rows % block_rows);
        self.begin = Begin { lap, block: next, rows: self.pass };
        let behind = |rows: u64| next.saturating_mul(block_rows).saturating_add(self.pass) > rows;
        if self.pass > 0 && stream.rows.is_some_and(behind) {
            return outside("the position is behind the end");
        }
        if let Some(rate) = stream.rate {
            self.began_ns = stream.due_ns(lap, next, rate);
        }
        Ok(())
    }

    /// Whether the lap has the next block.
    fn exists(&self) -> bool {
        let first = self.block.saturating_mul(self.stream.block_rows);
        self.stream.rows.is_none_or(|rows| first < rows)
    }
}

impl SplitReader for GeneratorReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.next_block(rows_max)? {
                Next::Batch(batch) => {
                    let rows = batch.num_rows();
                    let pass = (std::mem::take(&mut self.pass) as usize).min(rows);
                    self.begin.rows = pass as u64;
                    batch.slice(pass, rows - pass)
                }
                other => return Ok(other),
            },
        };
        let rows = batch.num_rows().min(rows_max);
        self.begin.rows += rows as u64;
        if rows < batch.num_rows() {
            self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        match rows {
            0 => self.next(rows_max),
            _ => Ok(Next::Batch(batch.slice(0, rows))),
        }
    }

    fn position(&self) -> Position {
        let Begin { lap, block, rows } = self.begin;
        let numbers = [lap, block, rows, self.stream.block_rows];
        Position::new(FORMAT, POSITION_VERSION, &self.split, &numbers)
    }
}

pub(super) fn unfit(error: ArrowError) -> ConnectorError {
    ConnectorError::Io { place: "generator".into(), message: error.to_string(), hint: None }
}
