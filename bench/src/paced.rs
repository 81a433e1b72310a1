//! The connector `generator` for runs by the clock: rows are made once, kept from run to run, and
//! emitted at a rate.
//!
//! ```text
//! rows      0 … s−1   s … 2s−1   2s … 3s−1   …      s rows make a stripe
//! flows     0         1          0           …      (two flows)
//! due at    start + last row of the stripe / rate, by the clock of the machine
//! ```
//!
//! Stripes are short, so that no flow is behind the others by more than [`STRIPE`]: what waits for
//! the watermark of all flows waits no longer for that. A row is never emitted before it is due.
//! A job that cannot keep up gets stripe after stripe without a pause.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, SchemaRef, TimestampMillisecondType};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use connectors::Generator;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use fabric::Clock;

/// Rows that come within so long a time make a stripe.
pub const STRIPE: Duration = Duration::from_micros(10);

/// Rows of a batch that is kept.
const BATCH_ROWS: usize = 8192;

/// When rows are due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// When the first row is, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Rows a second of all flows; infinite for all at once.
    pub rate: f64,
}

impl Schedule {
    /// When the row of this number is due, in nanoseconds since 1970.
    pub fn due_ns(&self, row: u64) -> u64 {
        self.start_ns.saturating_add((row as f64 / self.rate * 1e9) as u64)
    }

    /// Rows of a stripe: a power of two.
    fn stripe(&self) -> usize {
        let rows = (self.rate * STRIPE.as_secs_f64()).clamp(1.0, BATCH_ROWS as f64) as usize;
        1 << rows.ilog2()
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// The connector. Clones share the rows and the pace.
#[derive(Debug, Clone, Default)]
pub struct Paced(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    schedule: Mutex<Option<Schedule>>,
    /// By table, options and columns.
    retained: Mutex<HashMap<String, Arc<[RecordBatch]>>>,
}

impl Paced {
    /// At which pace rows come in the next run.
    pub fn set(&self, schedule: Schedule) {
        *locked(&self.0.schedule) = Some(schedule);
    }

    /// Keeps the rows no longer.
    pub fn forget(&self) {
        locked(&self.0.retained).clear();
    }
}

impl Connector for Paced {
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
        let name = format!("{}{:?}{projection:?}", once.name, once.options);
        let source = Generator.source(&once, projection)?;
        if !once.options.contains_key("interval") {
            // A table that is no stream is there from the first.
            return Ok(source);
        }
        let interval = once.options.get("interval").and_then(|text| text.strip_suffix("ns"));
        Ok(Arc::new(PacedSource {
            name,
            source,
            laps,
            interval_ns: interval.and_then(|ns| ns.parse().ok()).unwrap_or(0),
            flows: AtomicU32::new(1),
            shared: Arc::clone(&self.0),
        }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Generator.sink(table)
    }
}

struct PacedSource {
    name: String,
    /// The rows of one lap.
    source: Arc<dyn Source>,
    laps: u64,
    /// Nanoseconds of event time between two rows.
    interval_ns: u64,
    /// The flows that the last call of [`Source::splits`] cut. Relaxed: it is written before
    /// anything is opened, by the thread that hands the flows on.
    flows: AtomicU32,
    shared: Arc<Shared>,
}

impl PacedSource {
    /// The rows of a lap, made by who asks first.
    fn retained(&self, context: &ReaderContext) -> Result<Arc<[RecordBatch]>, ConnectorError> {
        let mut retained = locked(&self.shared.retained);
        if let Some(rows) = retained.get(&self.name) {
            return Ok(Arc::clone(rows));
        }
        let splits = self.source.splits(1, None)?;
        let mut flow = self.source.open(&splits[0], None, context)?;
        let mut rows = Vec::new();
        while let Next::Batch(batch) = flow.next(BATCH_ROWS)? {
            rows.push(batch);
        }
        let rows: Arc<[RecordBatch]> = rows.into();
        retained.insert(self.name.clone(), Arc::clone(&rows));
        Ok(rows)
    }
}

impl Source for PacedSource {
    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn bounded(&self) -> bool {
        self.source.bounded()
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let named = |flow| Split {
            name: format!("paced generator {flow} of {workers}"),
            ..Split::default()
        };
        self.flows.store(workers.max(1), Ordering::Relaxed);
        Ok((0..workers.max(1)).map(named).collect())
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let retained = self.retained(context)?;
        let rows: u64 = retained.iter().map(|batch| batch.num_rows() as u64).sum();
        let schedule = *locked(&self.shared.schedule);
        let schedule = schedule.unwrap_or(Schedule { start_ns: 0, rate: f64::INFINITY });
        let stripes_of_lap = rows.div_ceil(schedule.stripe() as u64);
        Ok(Box::new(PacedFlow {
            schema: self.schema(),
            retained,
            rows,
            lap_ms: lap_ms(rows, self.interval_ns),
            stripe: schedule.stripe(),
            stripes_of_lap,
            stripes: stripes_of_lap * self.laps,
            schedule,
            next: split.number as u64,
            flows: self.flows.load(Ordering::Relaxed).into(),
            clock: Arc::clone(&context.clock),
        }))
    }
}

/// Milliseconds of event time by which a lap of this many rows is later than the one before.
pub fn lap_ms(rows: u64, interval_ns: u64) -> i64 {
    rows.saturating_mul(interval_ns).div_ceil(1_000_000) as i64
}

struct PacedFlow {
    schema: SchemaRef,
    retained: Arc<[RecordBatch]>,
    /// Rows of a lap.
    rows: u64,
    lap_ms: i64,
    stripe: usize,
    stripes_of_lap: u64,
    stripes: u64,
    schedule: Schedule,
    /// The next stripe.
    next: u64,
    flows: u64,
    clock: Arc<dyn Clock>,
}

impl SplitReader for PacedFlow {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        if self.next >= self.stripes {
            return Ok(Next::End);
        }
        let (lap, stripe) = (self.next / self.stripes_of_lap, self.next % self.stripes_of_lap);
        let first = stripe * self.stripe as u64;
        let rows = (self.stripe as u64).min(self.rows - first);
        let due_ns = self.schedule.due_ns(lap * self.rows + first + rows - 1);
        let early_ns = due_ns.saturating_sub(now_ns());
        if early_ns > 0 {
            return Ok(Next::Wait { until_ns: self.clock.now_ns().saturating_add(early_ns) });
        }
        self.next += self.flows;
        let batch = &self.retained[first as usize / BATCH_ROWS];
        let batch = batch.slice(first as usize % BATCH_ROWS, rows as usize);
        Ok(Next::Batch(self.moved(batch, lap)?))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

impl PacedFlow {
    /// The rows as a later lap has them.
    fn moved(&self, batch: RecordBatch, lap: u64) -> Result<RecordBatch, ConnectorError> {
        if lap == 0 {
            return Ok(batch);
        }
        let by_ms = self.lap_ms * lap as i64;
        let moved = |column: &ArrayRef| match column.data_type() {
            DataType::Timestamp(..) => {
                let times = column.as_primitive::<TimestampMillisecondType>();
                Arc::new(times.unary::<_, TimestampMillisecondType>(|time| time + by_ms))
            }
            _ => Arc::clone(column),
        };
        let columns = batch.columns().iter().map(moved).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(
            |e| ConnectorError::Io {
                place: "generator".into(),
                message: e.to_string(),
                hint: None,
            },
        )
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Int64Type;
    use fabric::clock::MonotonicClock;

    use super::*;

    /// Keys and times of all rows, of each flow by itself.
    fn rows(flows: u32, laps: u64, rate: f64) -> Vec<Vec<(i64, i64)>> {
        let options = [
            ("kind", "ro".to_owned()),
            ("keys", "1000000".to_owned()),
            ("rows", "10000".to_owned()),
            ("interval", "1000000ns".to_owned()),
            ("repeat", laps.to_string()),
        ];
        let options: Options = options.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let schema = Generator.infer(&options).unwrap().unwrap();
        let metadata = Default::default();
        let table = TableDef { name: "t".into(), schema, options, metadata, buckets: vec![] };
        let paced = Paced::default();
        paced.set(Schedule { start_ns: 0, rate });
        let source = paced.source(&table, &[0, 1]).unwrap();
        let mut splits = source.splits(flows, None).unwrap();
        assert_eq!(splits.len(), flows as usize);
        // As the reader does, which asks for them.
        splits.iter_mut().enumerate().for_each(|(number, split)| split.number = number);
        let clock = Arc::new(MonotonicClock::new());
        let context = ReaderContext::new(clock, Arc::default());
        let of = |split: &Split| {
            let mut flow = source.open(split, None, &context).unwrap();
            let mut rows = vec![];
            while let Next::Batch(batch) = flow.next(1 << 20).unwrap() {
                let keys = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
                let times = batch.column(1).as_primitive::<TimestampMillisecondType>();
                rows.extend(keys.into_iter().zip(times.values().to_vec()));
            }
            rows
        };
        splits.iter().map(of).collect()
    }

    #[test]
    fn flows_share_the_rows_of_the_stream_in_stripes() {
        let one = rows(1, 1, f64::INFINITY).remove(0);
        assert_eq!(one.len(), 10_000);
        // 12.8 million rows a second: 128 in a stripe.
        let three = rows(3, 1, 12.8e6);
        let mut together = vec![];
        for stripe in 0..10_000usize.div_ceil(128) {
            let from = stripe / 3 * 128;
            let flow = &three[stripe % 3];
            together.extend_from_slice(&flow[from..flow.len().min(from + 128)]);
        }
        assert_eq!(together, one);
    }

    #[test]
    fn a_second_lap_is_later_and_else_the_same() {
        let (one, two) = (rows(1, 1, 1e9).remove(0), rows(1, 2, 1e9).remove(0));
        assert_eq!(two[..10_000], one);
        let later = one.iter().map(|(key, time)| (*key, time + lap_ms(10_000, 1_000_000)));
        assert_eq!(two[10_000..], later.collect::<Vec<_>>());
    }

    #[test]
    fn a_row_is_not_given_out_before_it_is_due() {
        let schedule = Schedule { start_ns: 5_000, rate: 2e9 };
        assert_eq!((schedule.due_ns(0), schedule.due_ns(100)), (5_000, 5_050));
        let paced = Paced::default();
        paced.set(Schedule { start_ns: now_ns() + 3_600_000_000_000, rate: 1.0 });
        let next = |options: [(&str, &str); 3]| {
            let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let options: Options = options.into_iter().collect();
            let schema = Generator.infer(&options).unwrap().unwrap();
            let table = TableDef {
                name: "t".into(),
                schema,
                options,
                metadata: Default::default(),
                buckets: vec![],
            };
            let source = paced.source(&table, &[0]).unwrap();
            let clock = Arc::new(MonotonicClock::new());
            let context = ReaderContext::new(clock, Arc::default());
            source.open(&Split::default(), None, &context).unwrap().next(100).unwrap()
        };
        let stream = next([("kind", "ro"), ("rows", "10"), ("interval", "1000ns")]);
        assert!(matches!(stream, Next::Wait { .. }));
        let no_stream = next([("kind", "ysb"), ("table", "ad"), ("rows", "10")]);
        assert!(matches!(no_stream, Next::Batch(batch) if batch.num_rows() == 10));
    }
}
