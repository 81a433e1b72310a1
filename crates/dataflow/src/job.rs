//! What a worker is told to do: queries as data, made by a planner or by hand.
//!
//! ```text
//! Source ─▶ Step (filter, project) ─▶ [ window aggregate ─exchange─▶ Step ] ─▶ gather ─▶ Sink
//! ```
//!
//! Every worker of every node runs the same job (A1): nobody hands out work while it runs.

use std::fmt;
use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use state::{GroupBy, Windows};

use crate::error::DataflowError;
use crate::sink::Sink;
use crate::source::Source;

/// Queries that run side by side.
#[derive(Clone)]
pub struct Job {
    /// The queries; their order is their id on the wire.
    pub queries: Vec<Query>,
    /// Sizes and limits.
    pub settings: Settings,
}

/// One `INSERT INTO … SELECT …` or `SELECT …`.
#[derive(Clone)]
pub struct Query {
    /// For messages and metrics.
    pub name: String,
    /// Where rows come from.
    pub input: Input,
    /// What is done with each row.
    pub step: Option<Arc<dyn Step>>,
    /// Where rows are brought together, if they are.
    pub aggregate: Option<Aggregation>,
    /// Columns of what reaches the sink.
    pub schema: SchemaRef,
    /// Where rows go.
    pub sink: Arc<dyn Sink>,
}

/// A source with its event time.
#[derive(Clone)]
pub struct Input {
    /// The table's name.
    pub table: String,
    /// Its reader.
    pub source: Arc<dyn Source>,
    /// Its event time, if it has one.
    pub watermark: Option<Watermark>,
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

/// Stateless work on a batch: filter, then project.
pub trait Step: Send + Sync {
    /// Columns of the result.
    fn schema(&self) -> SchemaRef;

    /// Does the work.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when an expression fails on a row.
    fn apply(&self, batch: &RecordBatch) -> Result<Stepped, DataflowError> {
        self.apply_for(batch, None)
    }

    /// Does the work for who does not look at the column `unread` of the result: its values may be
    /// any.
    ///
    /// # Errors
    /// As [`Step::apply`].
    fn apply_for(
        &self,
        batch: &RecordBatch,
        unread: Option<usize>,
    ) -> Result<Stepped, DataflowError>;

    /// The column that the step is given which column `output` of the result is, row by row.
    fn passes_on(&self, output: usize) -> Option<usize>;

    /// For EXPLAIN.
    fn describe(&self) -> String;
}

/// What a step made of a batch.
pub struct Stepped {
    /// The rows that remain.
    pub batch: RecordBatch,
    /// Which rows of the input remain, if not all.
    pub kept: Option<BooleanArray>,
}

/// Grouping by keys and, mostly, a window of event time.
#[derive(Clone)]
pub struct Aggregation {
    /// Columns that reach the grouping: the output of the query's step, or of its source.
    pub input_schema: SchemaRef,
    /// Types of the keys, and the aggregates; not both empty.
    pub group_by: Arc<GroupBy>,
    /// The key columns in the step's output.
    pub keys: Vec<usize>,
    /// The argument columns of each aggregate in the step's output.
    pub args: Vec<Vec<usize>>,
    /// The window; without one there is a single group per key, given out when the (bounded) input
    /// has ended.
    pub window: Option<Window>,
    /// How the partial states of the workers meet.
    pub exchange: Exchange,
    /// Columns given out: keys, aggregates, then `window_start`, `window_end`, `window_time` if
    /// there is a window.
    pub schema: SchemaRef,
    /// What is done with each result row: HAVING, projection.
    pub step: Option<Arc<dyn Step>>,
}

/// A window over a time column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The time column in the step's output.
    pub column: usize,
    /// Its type: a timestamp; ticks below are of its unit.
    pub time_type: DataType,
    /// Sizes in ticks.
    pub windows: Windows,
}

/// How rows of different workers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// They meet on their own worker: one worker in all, or a partitioning that fits (A5).
    Forward,
    /// Each worker keeps partial state and ships deltas per epoch to the leaders of the keys (S3,
    /// S9).
    Merge,
    /// Each row goes to the leader of its key (S13, Q).
    Shuffle,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exchange::Forward => "forward",
            Exchange::Merge => "merge",
            Exchange::Shuffle => "shuffle",
        })
    }
}

/// Sizes and limits of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows of a batch at most.
    pub batch_rows_max: usize,
    /// Bytes of input after which an epoch ends (S9).
    pub epoch_bytes: u64,
    /// Epochs that a helper may close before the oldest was acknowledged.
    pub epochs_kept_max: usize,
    /// Bytes of window state per worker.
    pub state_bytes_max: usize,
    /// Rings between workers (S1).
    pub ring: channel::RingConfig,
    /// What an idle worker does.
    pub idle: Idle,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_rows_max: 8192,
            epoch_bytes: 64 << 20,
            epochs_kept_max: 4,
            state_bytes_max: 4 << 30,
            ring: channel::RingConfig::default(),
            idle: Idle::Block,
        }
    }
}

/// What a worker does when nothing is ready (S4, Q4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Idle {
    /// Polls on: lowest latency, one core busy.
    Spin,
    /// Polls a little, then sleeps until a link or a timer wakes it.
    Block,
}
