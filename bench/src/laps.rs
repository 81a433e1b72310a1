//! The connector `generator` for measurements: the rows of a lap are made once and kept from run to
//! run, and a [`LapInput`] decides how its readers give them out, lap after lap.
//!
//! ```text
//! table ─▶ LapConnector ─ splits ─▶ open: the rows that are kept ─▶ a reader of the input
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef, TimestampMillisecondType};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use connectors::Generator;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};

/// An input of measurements: how readers give out the rows that are kept.
pub trait LapInput: Default + Send + Sync + 'static {
    /// Rows of a batch that is kept. The last one of a lap may have fewer.
    const BATCH_ROWS: usize;
    /// Whether the planner knows the bounds of columns, as it does those of the generator.
    const TELLS_BOUNDS: bool;

    /// Opens a reader of a split at a position.
    ///
    /// # Errors
    /// A position that is none of this split.
    fn open(
        self: &Arc<Self>,
        lap: Lap,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError>;
}

/// The rows of a table that are read again and again.
#[derive(Debug, Clone)]
pub struct Lap {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Arc<[RecordBatch]>,
    /// The number of times that they are read.
    pub(crate) laps: u64,
    /// Milliseconds of event time by which a lap is later than the one before.
    pub(crate) lap_ms: i64,
    /// The number of splits that share them.
    pub(crate) splits: usize,
}

impl Lap {
    /// The number of rows of some batches.
    pub(crate) fn rows(batches: &[RecordBatch]) -> u64 {
        batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    /// Rows of the first lap as lap `lap` has them.
    pub(crate) fn moved(
        &self,
        batch: RecordBatch,
        lap: u64,
    ) -> Result<RecordBatch, ConnectorError> {
        if lap == 0 {
            return Ok(batch);
        }
        let by_ms = self.lap_ms.saturating_mul(lap as i64);
        let moved = |column: &ArrayRef| match column.data_type() {
            DataType::Timestamp(..) => {
                let times = column.as_primitive::<TimestampMillisecondType>();
                Arc::new(times.unary::<_, TimestampMillisecondType>(|time| time + by_ms))
            }
            _ => Arc::clone(column),
        };
        let columns = batch.columns().iter().map(moved).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| unfit(&error))
    }
}

/// Milliseconds of event time by which a lap of this many rows is later than the one before.
pub fn lap_ms(rows: u64, interval_ns: u64) -> i64 {
    rows.saturating_mul(interval_ns).div_ceil(1_000_000) as i64
}

/// The connector. Clones share the input and the rows.
#[derive(Debug, Default)]
pub struct LapConnector<I> {
    pub(crate) input: Arc<I>,
    kept: Arc<KeptLaps>,
}

/// The batches of a lap by table, options and columns.
type KeptLaps = Mutex<HashMap<String, Arc<[RecordBatch]>>>;

impl<I> LapConnector<I> {
    /// Keeps the rows no longer.
    pub fn forget(&self) {
        locked(&self.kept).clear();
    }
}

impl<I> Clone for LapConnector<I> {
    fn clone(&self) -> Self {
        Self { input: Arc::clone(&self.input), kept: Arc::clone(&self.kept) }
    }
}

impl<I: LapInput> Connector for LapConnector<I> {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn options(&self) -> &'static [OptionSpec] {
        Generator.options()
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Generator.infer(options)
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let mut once = table.clone();
        let laps = once.options.remove("repeat").and_then(|laps| laps.parse().ok()).unwrap_or(1);
        once.options.remove("preload");
        let source = Generator.source(&once, projection)?;
        let Some(interval) = once.options.get("interval") else {
            // A table that is no stream is there from the first.
            return Ok(source);
        };
        let interval_ns = interval.strip_suffix("ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let name = format!("{}{:?}{projection:?}", once.name, once.options);
        Ok(Arc::new(LapSource { name, source, laps, interval_ns, connector: self.clone() }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Generator.sink(table)
    }
}

struct LapSource<I> {
    name: String,
    /// The rows of one lap.
    source: Arc<dyn Source>,
    laps: u64,
    /// Nanoseconds of event time between two rows.
    interval_ns: u64,
    connector: LapConnector<I>,
}

impl<I: LapInput> LapSource<I> {
    /// The rows of a lap. The first caller makes them.
    fn kept(&self, context: &ReaderContext) -> Result<Arc<[RecordBatch]>, ConnectorError> {
        let mut kept = locked(&self.connector.kept);
        if let Some(batches) = kept.get(&self.name) {
            return Ok(Arc::clone(batches));
        }
        let splits = self.source.splits(1, None)?;
        let mut reader = self.source.open(&splits[0], None, context)?;
        let (mut batches, mut parts, mut rows) = (Vec::new(), Vec::new(), 0);
        let schema = self.source.schema();
        let joined =
            |parts: &[RecordBatch]| concat_batches(&schema, parts).map_err(|error| unfit(&error));
        while let Next::Batch(batch) = reader.next(I::BATCH_ROWS - rows)? {
            rows += batch.num_rows();
            parts.push(batch);
            if rows == I::BATCH_ROWS {
                batches.push(joined(&std::mem::take(&mut parts))?);
                rows = 0;
            }
        }
        if rows > 0 {
            batches.push(joined(&parts)?);
        }
        let batches: Arc<[RecordBatch]> = batches.into();
        kept.insert(self.name.clone(), Arc::clone(&batches));
        Ok(batches)
    }
}

impl<I: LapInput> Source for LapSource<I> {
    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn bounded(&self) -> bool {
        self.source.bounded()
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let all = workers.max(1);
        let named = |number| Split { name: split_name(number, all), ..Split::default() };
        Ok((0..all).map(named).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        match self.schema().field(column).data_type() {
            // Laps are later than the first one, and the generator makes that one alone.
            DataType::Timestamp(..) => ColumnBounds::default(),
            _ if I::TELLS_BOUNDS => self.source.bounds(column),
            _ => ColumnBounds::default(),
        }
    }

    fn distinct(&self, column: usize) -> Option<u64> {
        self.source.distinct(column).filter(|_| I::TELLS_BOUNDS)
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let batches = self.kept(context)?;
        let lap = Lap {
            schema: self.schema(),
            lap_ms: lap_ms(Lap::rows(&batches), self.interval_ns),
            batches,
            laps: self.laps,
            splits: splits_of(&split.name),
        };
        self.connector.input.open(lap, split, from, context)
    }
}

fn split_name(number: u32, all: u32) -> String {
    format!("laps {number} of {all}")
}

/// The number of splits that a name tells; 1 for a split by itself.
fn splits_of(name: &str) -> usize {
    name.rsplit(' ').next().and_then(|all| all.parse().ok()).unwrap_or(1)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unfit(error: &ArrowError) -> ConnectorError {
    ConnectorError::Io { place: "generator".into(), message: error.to_string(), hint: None }
}

#[cfg(test)]
pub(crate) mod testing {
    use arrow::datatypes::Int64Type;
    use fabric::clock::MonotonicClock;

    use super::*;

    /// A table of the connector with these options.
    pub(crate) fn table(options: &[(&str, &str)]) -> TableDef {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let options: Options = options.collect();
        let schema = Generator.infer(&options).unwrap().unwrap();
        let metadata = Default::default();
        TableDef { name: "t".into(), schema, options, metadata, buckets: vec![] }
    }

    /// Keys and times of `rows` rows, one each millisecond of event time, in laps.
    pub(crate) fn source(connector: &dyn Connector, rows: u64, laps: u64) -> Arc<dyn Source> {
        let (rows, laps) = (rows.to_string(), laps.to_string());
        let options = [
            ("kind", "ro"),
            ("keys", "1000000"),
            ("rows", &*rows),
            ("interval", "1000000ns"),
            ("repeat", &*laps),
        ];
        connector.source(&table(&options), &[0, 1]).unwrap()
    }

    pub(crate) fn open(
        source: &dyn Source,
        split: &Split,
        from: Option<&Position>,
    ) -> Box<dyn SplitReader> {
        let context = ReaderContext::new(Arc::new(MonotonicClock::new()), Arc::default());
        source.open(split, from, &context).unwrap()
    }

    /// The keys and times that a reader still has.
    pub(crate) fn rest(reader: &mut dyn SplitReader, rows_max: usize) -> Vec<(i64, i64)> {
        let mut rows = Vec::new();
        while let Next::Batch(batch) = reader.next(rows_max).unwrap() {
            let keys = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            let times = batch.column(1).as_primitive::<TimestampMillisecondType>();
            rows.extend(keys.into_iter().zip(times.values().to_vec()));
        }
        rows
    }
}
