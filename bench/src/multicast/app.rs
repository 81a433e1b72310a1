//! Ride hailing as Whale measures it (W11, W12): one source broadcasts requests, and each instance
//! matches them with the drivers that it knows.
//!
//! An *instance* is a state of the matching operator with drivers of its own. A worker hosts
//! several of them on its thread: rows that come to it once are handed to all by reference (W1),
//! and a copy for one of them comes on an input of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::checkpoint::SavedRows;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::{Description, KeyedOperator, KeyedState, SavedParts};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use super::arrivals::{Arrivals, DueTimes, mixed};

/// Every this many requests one is followed on its way.
pub(super) const FOLLOWED_EVERY: u64 = 64;

/// How long a paced source sleeps when nothing is due.
const PAUSE_NS: u64 = 200_000;

/// Requests of a batch where nothing holds the source back.
const ROWS_MAX: usize = 1_024;

/// A time in which requests come at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// Its length.
    pub seconds: f64,
    /// Requests a second; `None` for as many as are taken.
    pub per_second: Option<f64>,
}

/// Counts of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RequestCounts {
    pub(super) rows: u64,
    /// Requests that did not come in their turn.
    pub(super) astray: u64,
}

/// A request that was followed, as the instances of a process saw it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seen {
    /// When it was due at the source, in nanoseconds since 1970.
    pub(super) at_ns: u64,
    /// When the last instance had it.
    pub(super) here_ns: u64,
    /// When the last instance had matched it.
    pub(super) done_ns: u64,
    /// The least distance to a driver, squared.
    pub(super) apart: f64,
}

impl Seen {
    /// The request as two processes saw it.
    pub(super) fn with(self, other: &Self) -> Self {
        Self {
            at_ns: self.at_ns.max(other.at_ns),
            here_ns: self.here_ns.max(other.here_ns),
            done_ns: self.done_ns.max(other.done_ns),
            apart: self.apart.min(other.apart),
        }
    }
}

/// The record of a process at the end of a run.
#[derive(Debug, Default)]
pub(super) struct RunRecord {
    pub(super) counts_of_instances: Vec<RequestCounts>,
    pub(super) seen: Vec<Seen>,
    /// Nanoseconds in which instances took batches, and how often one did.
    pub(super) taken: [u64; 2],
}

/// State that the workers of a process share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Requests that the source has emitted, if it is here.
    pub(super) emitted: AtomicU64,
    workers: AtomicU32,
    record: Mutex<RunRecord>,
}

impl Shared {
    pub(super) fn record(&self) -> MutexGuard<'_, RunRecord> {
        self.record.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Nanoseconds since 1970: processes of one machine agree on them.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A place in a city of 50 by 50 kilometres, in metres.
pub(super) fn place(seed: u64) -> (f64, f64) {
    let at = |n: u64| (mixed(n) >> 11) as f64 / (1_u64 << 53) as f64 * 50_000.0;
    (at(2 * seed + 1), at(2 * seed + 2))
}

/// Where driver number `driver` of an instance is.
pub(super) fn driver(instance: u32, driver: u32) -> (f64, f64) {
    place(1 << 62 | u64::from(instance) << 24 | u64::from(driver))
}

/// The squared distance of two places.
pub(super) fn apart(a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.0 - b.0) * (a.0 - b.0) + (a.1 - b.1) * (a.1 - b.1)
}

/// Columns of requests: event time, number, when it was due in nanoseconds, where.
fn requests_schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new("ts", time, false),
        Field::new("request", DataType::Int64, false),
        Field::new("due", DataType::Int64, false),
        Field::new("x", DataType::Float64, false),
        Field::new("y", DataType::Float64, false),
    ]))
}

/// Emits requests, phase by phase.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) phases: Vec<Phase>,
    pub(super) arrivals: Arrivals,
    pub(super) shared: Arc<Shared>,
}

struct RequestFlow {
    requests: Requests,
    context: ReaderContext,
    phase: usize,
    /// When the phase began, when its requests are due if they come at a rate, and the requests
    /// emitted so far.
    since_ns: Option<u64>,
    due: Option<DueTimes>,
    emitted: u64,
}

impl Source for Requests {
    fn schema(&self) -> SchemaRef {
        requests_schema()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
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
        let (requests, context) = (self.clone(), context.clone());
        let (phase, since_ns, emitted) = (0, None, 0);
        let due = requests.due(phase);
        Ok(Box::new(RequestFlow { requests, context, phase, since_ns, due, emitted }))
    }
}

impl Requests {
    /// When the requests of a phase are due, if it has a rate.
    fn due(&self, phase: usize) -> Option<DueTimes> {
        let rate = self.phases.get(phase)?.per_second?;
        Some(DueTimes::new(self.arrivals, rate, phase))
    }
}

impl SplitReader for RequestFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let Some(&Phase { seconds, .. }) = self.requests.phases.get(self.phase) else {
                self.requests.shared.emitted.store(self.emitted, Ordering::Relaxed);
                return Ok(Next::End);
            };
            let now = now_ns();
            let since = *self.since_ns.get_or_insert(now);
            let length_ns = (seconds * 1e9) as u64;
            let passed = now.saturating_sub(since).min(length_ns);
            let due: Vec<u64> = match &mut self.due {
                None if passed < length_ns => vec![now; ROWS_MAX.min(rows_max)],
                None => vec![],
                Some(due) => {
                    let next = std::iter::from_fn(|| due.next_until(passed));
                    next.take(rows_max).map(|at| since + at).collect()
                }
            };
            if !due.is_empty() {
                let first = self.emitted;
                self.emitted += due.len() as u64;
                return Ok(Next::Batch(batch_of(first, due.into_iter())));
            }
            if passed < length_ns {
                return Ok(Next::Wait { until_ns: self.context.clock.now_ns() + PAUSE_NS });
            }
            self.phase += 1;
            self.since_ns = Some(since + length_ns);
            self.due = self.requests.due(self.phase);
        }
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

/// Requests from number `first` on that are due at these times.
fn batch_of(first: u64, due: impl Iterator<Item = u64>) -> RecordBatch {
    let due: Vec<i64> = due.map(|at| at as i64).collect();
    let numbers = first as i64..;
    let places = (first..).take(due.len()).map(place);
    let (xs, ys): (Vec<f64>, Vec<f64>) = places.unzip();
    let times = due.iter().map(|at| at / 1_000_000);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        Arc::new(Int64Array::from_iter_values(numbers.take(due.len()))),
        Arc::new(Int64Array::from(due)),
        Arc::new(Float64Array::from(xs)),
        Arc::new(Float64Array::from(ys)),
    ];
    RecordBatch::try_new(requests_schema(), columns).expect("columns of the schema, equally long")
}

/// The matching operator.
pub(super) struct Matching {
    pub(super) shared: Arc<Shared>,
    /// The first worker of this process.
    pub(super) first_worker: u32,
    /// Instances of each worker, and drivers of each.
    pub(super) instances: u32,
    pub(super) drivers: u32,
    /// Whether input number *i* is for instance *i* alone.
    pub(super) copies: bool,
}

struct Instance {
    counts: RequestCounts,
    drivers: Vec<(f64, f64)>,
}

/// The instances of a worker.
struct Hosted {
    shared: Arc<Shared>,
    instances: Vec<Instance>,
    copies: bool,
    seen: Vec<Seen>,
    taken: [u64; 2],
}

impl KeyedOperator for Matching {
    fn schema(&self) -> SchemaRef {
        requests_schema()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        // Workers are alike: which of them has which drivers is of no account.
        let worker = self.first_worker + self.shared.workers.fetch_add(1, Ordering::Relaxed);
        let numbers = worker * self.instances..(worker + 1) * self.instances;
        let instance = |number: u32| Instance {
            counts: RequestCounts::default(),
            drivers: (0..self.drivers).map(|at| driver(number, at)).collect(),
        };
        Box::new(Hosted {
            shared: self.shared.clone(),
            instances: numbers.map(instance).collect(),
            copies: self.copies,
            seen: vec![],
            taken: [0; 2],
        })
    }

    /// A measurement that fails is begun anew.
    fn saved(&self) -> Option<SavedParts> {
        None
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        let properties = vec![
            ("instances", self.instances.to_string()),
            ("drivers of each", self.drivers.to_string()),
        ];
        Description { name: "Matching", properties }
    }
}

impl KeyedState for Hosted {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let here_ns = now_ns();
        let mut nearest: Vec<f64> = vec![];
        let addressed = if self.copies { input..input + 1 } else { 0..self.instances.len() };
        let count = addressed.len() as u64;
        for instance in &mut self.instances[addressed] {
            instance.take(batch.clone(), &mut nearest);
        }
        let done_ns = now_ns();
        self.taken[0] += done_ns.saturating_sub(here_ns);
        self.taken[1] += count;
        let [numbers, due] = [1, 2].map(|at| batch.column(at).as_primitive::<Int64Type>().values());
        for ((&number, &due), apart) in numbers.iter().zip(due).zip(nearest) {
            if (number as u64).is_multiple_of(FOLLOWED_EVERY) {
                let seen = Seen { at_ns: due as u64, here_ns, done_ns, apart };
                let at = (number as u64 / FOLLOWED_EVERY) as usize;
                match self.seen.get_mut(at) {
                    Some(before) => *before = before.with(&seen),
                    None => self.seen.push(seen),
                }
            }
        }
        Ok(())
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        Ok(vec![])
    }

    fn load(&mut self, _: SavedRows) -> Result<(), DataflowError> {
        Ok(())
    }

    fn advance(&mut self, watermark: i64, _: usize) -> Result<Option<RecordBatch>, DataflowError> {
        if watermark == i64::MAX {
            let mut record = self.shared.record();
            record
                .counts_of_instances
                .extend(self.instances.drain(..).map(|instance| instance.counts));
            merge(&mut record.seen, &std::mem::take(&mut self.seen));
            let taken = std::mem::take(&mut self.taken);
            record.taken.iter_mut().zip(taken).for_each(|(sum, own)| *sum += own);
        }
        Ok(None)
    }

    fn bytes(&self) -> usize {
        self.seen.capacity() * size_of::<Seen>()
    }
}

/// Adds what others saw of the same requests.
pub(super) fn merge(seen: &mut Vec<Seen>, others: &[Seen]) {
    for (at, other) in others.iter().enumerate() {
        match seen.get_mut(at) {
            Some(own) => *own = own.with(other),
            None => seen.push(*other),
        }
    }
}

impl Instance {
    /// Takes requests, and notes the nearest of the drivers that this and other instances know.
    fn take(&mut self, batch: RecordBatch, nearest: &mut Vec<f64>) {
        let numbers = batch.column(1).as_primitive::<Int64Type>().values();
        let astray = numbers.iter().zip(self.counts.rows..).filter(|(n, turn)| **n as u64 != *turn);
        self.counts.astray += astray.count() as u64;
        self.counts.rows += numbers.len() as u64;
        let [xs, ys] = [3, 4].map(|at| batch.column(at).as_primitive::<Float64Type>().values());
        nearest.resize(numbers.len(), f64::INFINITY);
        for ((&x, &y), nearest) in xs.iter().zip(ys).zip(nearest) {
            for &driver in &self.drivers {
                *nearest = nearest.min(apart((x, y), driver));
            }
        }
    }
}
