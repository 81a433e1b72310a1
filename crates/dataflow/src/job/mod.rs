//! What a worker is told to do: a graph of operators as data, made by a planner or by hand.
//!
//! ```text
//! Source ─▶ Aggregate ─▶ Sink          ─▶ is an edge: rows go along it, through a step
//! Source ─▶ Keyed ─▶ Aggregate ─▶ Sink    (filter, project) that knows no state
//! Source ─▶
//! ```
//!
//! Every worker of every node runs the same job (A1): nobody hands out work while it runs.

mod casting;
mod description;
pub(crate) mod fault;
pub mod fragment;
mod fusion;
pub(crate) mod halves;
mod join_kind;
pub mod lookup;
pub mod step;
mod waits;
pub mod wires;
pub mod worker_set;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use state::epoch::LengthBounds;
use state::{GroupBy, Windows};

pub use self::casting::{Casting, Multicast, TreeChoice};
pub use self::description::{Cost, Description, InputLabels, Labels, Property, Reason, Strategy};
pub use self::fusion::{FusedColumns, FusedLookup, Fusion, NotFused};
pub(crate) use self::join_kind::list;
pub use self::join_kind::{FILTER, JoinKind, PROJECT};
pub use self::lookup::Lookup;
pub use self::waits::{Given, Waits};
use crate::connector::sink::Sink;
use crate::connector::source::Source;
use crate::error::DataflowError;
pub(crate) use crate::job::step::RawColumns;
pub use crate::job::step::{RawBatch, Step, Stepped};
use crate::job::wires::Wires;
use crate::job::worker_set::WorkerSet;
pub use crate::rows::origin::Origin;

/// Operators and how rows go from one to the next.
#[derive(Clone)]
pub struct Job {
    /// The operators; the index is the operator's id on the wire. An edge leads from a lower index
    /// to a higher one.
    pub operators: Vec<Operator>,
    /// Sizes and limits.
    pub settings: Settings,
}

/// A place where rows come into being, meet, or leave.
#[derive(Clone)]
pub struct Operator {
    /// For messages and metrics.
    pub name: String,
    /// The inputs: none for a source, one for an aggregate, a lookup or a sink, as many as it has
    /// for a keyed operator. All edges of one input bring rows of the same columns, in any order (a
    /// union).
    pub inputs: Vec<Vec<Edge>>,
    /// What it does.
    pub kind: OperatorKind,
    /// Of a scan: what one loop does with its rows, or why there is none
    /// ([`fuse`](crate::fusion::fuse)).
    pub fusion: Result<Fusion, NotFused>,
    /// Facts for EXPLAIN that its kind does not contain.
    pub labels: Labels,
}

impl Operator {
    /// An operator without labels.
    pub fn new(name: impl Into<String>, inputs: Vec<Vec<Edge>>, kind: OperatorKind) -> Self {
        let fusion = Err(NotFused::Unplanned);
        Self { name: name.into(), inputs, kind, fusion, labels: Labels::default() }
    }

    /// The same operator with labels.
    pub fn labelled(self, labels: Labels) -> Self {
        Self { labels, ..self }
    }
}

/// What an operator does.
#[derive(Clone)]
pub enum OperatorKind {
    /// Reads a table.
    Source(Input),
    /// Brings rows together by late merge.
    Aggregate(Box<Aggregation>),
    /// Keeps rows by key until time has passed them.
    Keyed(Keyed),
    /// Joins rows with a table that every process has whole.
    Lookup(Box<Lookup>),
    /// Writes a table.
    Sink {
        /// The table.
        sink: Arc<dyn Sink>,
        /// Columns of what reaches it.
        schema: SchemaRef,
    },
}

impl OperatorKind {
    /// Whether it may give rows to every worker.
    pub fn broadcasts(&self) -> bool {
        match self {
            OperatorKind::Keyed(keyed) => keyed.inputs.iter().any(|i| i.lead == Lead::ToAll),
            OperatorKind::Lookup(_) => true,
            _ => false,
        }
    }
}

/// The way of rows from one operator to an input of another.
#[derive(Clone)]
pub struct Edge {
    /// The index of the operator that gives them out.
    pub from: usize,
    /// What is done with each row on its way.
    pub step: Option<Arc<dyn Step>>,
    /// Whether watermarks go along, because the operator reads the time that they speak of; else it
    /// learns of the end alone, and no row is late.
    pub timed: bool,
    /// Ticks by which watermarks are behind on this edge, so that what waits for them waits longer,
    /// and rows are late later. Not negative.
    pub lateness: i64,
}

impl Job {
    /// The sources.
    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Source(input) => Some(input),
            _ => None,
        })
    }

    /// A worker's number among the [`readers`], if it is one.
    pub(crate) fn reader(&self, worker: u32, workers: u32) -> Option<u32> {
        match parts_workers(&self.operators) {
            true => halves::reader(worker, workers),
            false => Some(worker),
        }
    }
}

/// How many of so many workers read the tables: all, but with [`Exchange::UpPar`].
pub fn readers(operators: &[Operator], workers: u32) -> u32 {
    if parts_workers(operators) { halves::readers(workers) } else { workers }
}

fn parts_workers(operators: &[Operator]) -> bool {
    operators.iter().any(|operator| match &operator.kind {
        OperatorKind::Aggregate(spec) => spec.exchange == Exchange::UpPar,
        OperatorKind::Keyed(spec) => spec.exchange == Exchange::UpPar,
        _ => false,
    })
}

/// A source with its event time.
#[derive(Clone)]
pub struct Input {
    /// The table's name.
    pub table: String,
    /// Its reader.
    pub source: Arc<dyn Source>,
    /// Its event time, whether or not anything goes by it.
    pub time: Option<TimeColumn>,
    /// How its event time goes on, where something goes by it.
    pub watermark: Option<Watermark>,
}

/// A column without which a row is a bad row, in every query alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeColumn {
    /// Which column of the source's schema it is.
    pub column: usize,
    /// What becomes of such a row.
    pub on_bad: OnBad,
}

/// What becomes of a row that is a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// It is counted, and shown with its place.
    Show,
    /// It is counted: its source has told of it.
    Count,
    /// It ends the job.
    Fail,
}

/// How far a flow's rows may be out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The time column of the source's schema: an Arrow timestamp of any unit.
    pub column: usize,
    /// Ticks of the column's unit that rows may lag behind the latest.
    pub delay: i64,
    /// Nanoseconds of silence after which a flow no longer holds the watermark back; `None` for
    /// never.
    pub idle_timeout_ns: Option<u64>,
}

/// Grouping by keys and, mostly, a window of event time.
#[derive(Clone)]
pub struct Aggregation {
    /// Columns that reach the grouping.
    pub input_schema: SchemaRef,
    /// Types of the keys, and the aggregates; not both empty.
    pub group_by: Arc<GroupBy>,
    /// The key columns of the input.
    pub keys: Vec<usize>,
    /// The argument columns of each aggregate in the input.
    pub args: Vec<Vec<usize>>,
    /// The window; without one there is a single group per key, given out when the (bounded) input
    /// has ended.
    pub window: Option<Window>,
    /// How the partial states of the workers meet.
    pub exchange: Exchange,
    /// Nanoseconds between two looks at windows that have not ended: each that has changed since
    /// is given out early, with what it has come to so far. `None` where windows are given out
    /// once, as sessions always are.
    pub early_ns: Option<NonZeroU64>,
    /// Columns given out: keys, aggregates, then `window_start`, `window_end`, `window_time` if
    /// there is a window, then a string if windows are given out early: [`EARLY`] or [`FINAL`].
    pub schema: SchemaRef,
}

impl Aggregation {
    /// Whether each group has a window of its own.
    pub fn has_sessions(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.windows.gap().is_some())
    }
}

/// What is said of rows of a window that may change.
pub const EARLY: &str = "early";

/// What is said of rows of a window that has ended.
pub const FINAL: &str = "final";

/// A window over a time column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The time column of the input.
    pub column: usize,
    /// Its type: a timestamp; ticks below are of its unit.
    pub time_type: DataType,
    /// Sizes in ticks. Sessions are those of the grouping's keys.
    pub windows: Windows,
    /// Whether these stand for the windows that rows belong to already, and the column is the
    /// rows' `window_time`: then a window is one tick, and its start is the time of what is given
    /// out.
    pub attached: bool,
}

/// An operator that keeps rows by key: a join, a ranking, sessions.
#[derive(Clone)]
pub struct Keyed {
    /// What is known of each input.
    pub inputs: Vec<KeyedInput>,
    /// How rows of one key meet: [`Exchange::Shuffle`] or [`Exchange::UpPar`], or
    /// [`Exchange::Forward`] where they are together already (A5).
    pub exchange: Exchange,
    /// Ticks of event time between two looks at what has become complete, at least one: how
    /// often workers tell each other their watermarks.
    pub granularity: i64,
    /// What it makes of them.
    pub operator: Arc<dyn KeyedOperator>,
}

/// An input of a keyed operator.
#[derive(Clone)]
pub struct KeyedInput {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns by which rows are led to a worker, of the same types on all inputs; without any
    /// all rows meet on worker 0.
    pub keys: Vec<usize>,
    /// Where its rows go, if not to the leader of their key.
    pub lead: Lead,
    /// A column of time by which rows are late, if they can be: those whose time, and
    /// [`grace`](Self::grace) ticks more, the watermark had reached before they came.
    pub time: Option<usize>,
    /// Zero for the end of a window, one for a time of the row itself.
    pub grace: i64,
}

/// Where the rows of an input go (W2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lead {
    /// To the leader of their key: by a hash of it, or by the operator's [`Route`]. Without keys
    /// all rows go to worker 0 (Whale's key and global grouping).
    #[default]
    ByKey,
    /// To every worker (W1; Whale's all grouping). Such rows meet the rows of another input where
    /// those are.
    ToAll,
    /// One to each worker in turn (Whale's shuffle grouping).
    InTurn,
    /// Nowhere: they stay on the worker that has them.
    Here,
}

/// A keyed operator as data: makes the state of a worker.
pub trait KeyedOperator: Send + Sync {
    /// Columns that it gives out.
    fn schema(&self) -> SchemaRef;

    /// The state of one worker: of the keys that it leads.
    fn create(&self) -> Box<dyn KeyedState>;

    /// How rows of an input are led, if not by a hash of its keys (A4). The function of an operator
    /// that brings rows together sends those of one key to one worker.
    fn route(&self, input: usize) -> Option<Arc<dyn Route>> {
        let _ = input;
        None
    }

    /// How rows of an input are led to several workers each, if they are. This goes before
    /// [`route`](Self::route).
    fn spread(&self, input: usize) -> Option<Arc<dyn Spread>> {
        let _ = input;
        None
    }

    /// Which rows of an input it holds, for an estimate of its state; `None` where nothing is
    /// known of that.
    fn keeps(&self, input: usize) -> Option<Kept> {
        let _ = input;
        None
    }

    /// Until when the rows of an input are of no use to it, if that is known of each: then they may
    /// wait on a disk.
    fn waits(&self, input: usize) -> Option<Waits> {
        let _ = input;
        None
    }

    /// The column of its output that is `column` of `input`, if there is one.
    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        let _ = (input, column);
        None
    }

    /// Whether each row of its output contains a row of `input`. If not, the columns of that input
    /// are NULL, and the row contains a row of another input with the same key.
    fn always_has(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// For EXPLAIN; `columns` are those of each input, as a user knows them.
    fn describe(&self, columns: &[Vec<String>]) -> Description;
}

/// Which rows of an input a keyed operator holds. Besides them, those whose time has not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kept {
    /// None longer than until they can be handed on.
    Passing,
    /// Those whose time has not come.
    Waiting,
    /// So many of each key.
    PerKey(u64),
    /// Those of so many ticks of event time before the watermark.
    Span(i64),
    /// Those of windows that have not ended.
    Window,
    /// Those of sessions that may go on.
    Session,
}

/// Leads rows to workers (A4): any function that is the same on all of them.
pub trait Route: Send + Sync {
    /// Puts the worker of each row, below `workers`, into `to`, which is empty.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be led.
    fn route(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError>;
}

/// Leads rows to several workers each (W1): any function that is the same on all of them.
pub trait Spread: Send + Sync {
    /// Puts the workers of each row, below `workers`, into `to`, which is empty. A row for nobody
    /// is gone.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be led.
    fn spread(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError>;
}

/// The rows and groups that a keyed operator keeps on one worker.
pub trait KeyedState {
    /// Takes rows of an input. Their arrays are the state's to keep.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be taken.
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError>;

    /// All rows before `watermark` have come: gives some of what can be given out now, of at most
    /// about `rows_max` rows; `None` when there is nothing more. `i64::MAX` at the end of complete
    /// inputs.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be made.
    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError>;

    /// Whether [`advance`](Self::advance) has something to give that does not wait for time.
    fn ready(&self) -> bool {
        false
    }

    /// Gives back what it holds of rows that [wait](KeyedOperator::waits), by input, as if they had
    /// not come.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be copied.
    fn give_back(&mut self) -> Result<Given, DataflowError> {
        Ok(vec![])
    }

    /// Gives out all that it keeps, by input, and keeps nothing: rows that it can
    /// [take up](Self::take_up) again, with the columns of their input first. `None`, and nothing
    /// has happened, if it never can, or not before [`advance`](Self::advance) has given out all.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be copied.
    fn lay_down(&mut self) -> Result<Option<Given>, DataflowError> {
        Ok(None)
    }

    /// Keeps rows again that it [laid down](Self::lay_down).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    fn take_up(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        self.push(input, batch)
    }

    /// Windows of which all was given out since this was asked last, if it works window by window.
    fn windows_over(&mut self) -> usize {
        0
    }

    /// Up to where results are complete when [`advance`](Self::advance) has nothing more to give at
    /// `watermark`: the watermark of what it gives out.
    fn complete(&self, watermark: i64) -> i64 {
        watermark
    }

    /// Bytes held.
    fn bytes(&self) -> usize;
}

/// How rows of different workers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// They meet on their own worker: one worker in all, or a partitioning that fits (A5).
    Forward,
    /// Each worker keeps partial state and ships deltas per epoch to the leaders of the keys (S3,
    /// S9).
    Merge,
    /// Each row goes to the leader of its key (Q).
    Shuffle,
    /// As [`Exchange::Shuffle`], with workers of two kinds: half of them read tables and send each
    /// row to the leader of its key, the others lead (S13). For comparisons.
    UpPar,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exchange::Forward => "forward",
            Exchange::Merge => "merge",
            Exchange::Shuffle => "shuffle",
            Exchange::UpPar => "uppar",
        })
    }
}

/// Sizes and limits of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows of a batch at most.
    pub batch_rows_max: usize,
    /// After how much input an epoch ends (S9), and how far that may move.
    pub epoch: LengthBounds,
    /// Epochs that a helper may close before the oldest was acknowledged.
    pub epochs_kept_max: usize,
    /// Bytes of state per worker.
    pub state_bytes_max: usize,
    /// Where groups go that do not fit, by a name that whoever starts the workers makes a
    /// [`Disk`](state::Disk) of; if there is none, the job fails.
    pub spill: Option<String>,
    /// Bytes of rows for one worker that a shuffle sends together (Q5).
    pub shuffle_bytes: usize,
    /// How long such rows may wait for others, in nanoseconds (W4).
    pub shuffle_wait_ns: u64,
    /// Whether rows of frequent keys are folded in front of a shuffle.
    pub frequent_keys: FrequentKeys,
    /// Rings between workers of different processes (S1); queues between those of one hold as much.
    pub ring: channel::RingConfig,
    /// What an idle worker does.
    pub idle: Idle,
    /// How processes are connected.
    pub wires: Wires,
    /// How long a connection between two processes that broke may take to be made anew, in
    /// nanoseconds; with 0 it is not, and the job fails.
    pub reconnect_ns: u64,
    /// How rows for every worker travel.
    pub casting: Casting,
    /// Whether who runs a worker asks what its processor counts.
    pub hardware_counters: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_rows_max: 16_384,
            epoch: LengthBounds { bytes: 64 << 20, stretch: 16, latency_ns: 1_000_000_000 },
            epochs_kept_max: 4,
            state_bytes_max: 4 << 30,
            spill: None,
            shuffle_bytes: 16 << 10,
            shuffle_wait_ns: 10_000_000,
            frequent_keys: FrequentKeys::Auto,
            ring: channel::RingConfig::default(),
            idle: Idle::Block,
            wires: Wires::default(),
            reconnect_ns: 30_000_000_000,
            casting: Casting::default(),
            hardware_counters: false,
        }
    }
}

/// What happens to rows of frequent keys that would be shuffled to be grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrequentKeys {
    /// They are folded where they are read, if a sample says that it pays; groups travel.
    Auto,
    /// They are, and any key is frequent that came just before.
    On,
    /// They are shuffled as all others.
    Off,
}

/// What a worker does when nothing is ready (S4, Q4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Idle {
    /// Polls on: lowest latency, one core busy.
    Spin,
    /// Polls a little, then sleeps until a link or a timer wakes it.
    Block,
}
