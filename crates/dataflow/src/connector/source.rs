//! Sources: where rows enter.
//!
//! A source is cut into *flows*. A flow is read in order, by one worker, from beginning to end; its
//! rows carry its own watermark. The cut must not depend on the node that asks: every node computes
//! the same list and takes its share.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use fabric::Clock;

use crate::connector::bad::BadRows;
use crate::connector::origins::Origins;
use crate::error::ConnectorError;

/// A table that can be read.
pub trait Source: Send + Sync {
    /// Columns of the batches, already projected.
    fn schema(&self) -> SchemaRef;

    /// Whether every flow ends by itself.
    fn bounded(&self) -> bool;

    /// Whether it gives the same rows whenever it is read; else each goes to one reader alone.
    fn repeats(&self) -> bool {
        self.bounded()
    }

    /// The flows, equal on every node. `workers` is the number of workers of the whole job, for
    /// sources that can be cut at will; `time_column` asks for [`FlowInfo::event_time_min`] of that
    /// column.
    ///
    /// # Errors
    /// When the input is missing or cannot be read.
    fn flows(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<FlowInfo>, ConnectorError>;

    /// What is known of a column's values before they are read. It estimates the state of a job
    /// for EXPLAIN; no result depends on it.
    fn bounds(&self, column: usize) -> ColumnBounds {
        let _ = column;
        ColumnBounds::default()
    }

    /// Opens a flow of the list for reading.
    ///
    /// # Errors
    /// When the input is missing or cannot be read.
    fn open(&self, flow: usize, context: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError>;
}

/// What is known of a flow before it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowInfo {
    /// For messages and EXPLAIN: a file and row group, a generator's shard.
    pub name: String,
    /// Rows, where known: for the progress bar.
    pub rows: Option<u64>,
    /// Bytes to be read, where known.
    pub bytes: Option<u64>,
    /// A lower bound of the time column in the column's own ticks, where known. A bounded flow that
    /// has not been opened yet holds the watermark back to here, or altogether where this is
    /// unknown.
    pub event_time_min: Option<i64>,
}

/// Bounds of a column's values over all flows. NULL does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColumnBounds {
    /// Of whole numbers and points in time: none is less or greater, in the column's own ticks.
    pub range: Option<[i64; 2]>,
    /// How many different ones there are at most.
    pub distinct_max: Option<u64>,
}

impl ColumnBounds {
    /// Of whole numbers from `least` to `greatest`.
    pub fn between(least: i64, greatest: i64) -> Self {
        let distinct = greatest.checked_sub(least).map_or(u64::MAX, |span| span.max(-1) as u64 + 1);
        Self { range: Some([least, greatest]), distinct_max: Some(distinct) }
    }

    /// Of so many different values.
    pub fn distinct(most: u64) -> Self {
        Self { range: None, distinct_max: Some(most) }
    }

    /// Of the values of either.
    pub fn or(self, other: Self) -> Self {
        let range = self.range.zip(other.range);
        let distinct = self.distinct_max.zip(other.distinct_max);
        Self {
            range: range.map(|([a, b], [c, d])| [a.min(c), b.max(d)]),
            distinct_max: distinct.map(|(a, b)| a.saturating_add(b)),
        }
    }
}

/// What a flow may use of its surroundings.
#[derive(Clone)]
pub struct FlowContext {
    /// Time, for paced generators and polling.
    pub clock: Arc<dyn Clock>,
    /// Where rows go that cannot be read.
    pub bad: Arc<BadRows>,
    /// Where a flow tells from where its rows are, for messages; each flow has its own. One that
    /// tells nothing is named by its name.
    pub origins: Arc<Origins>,
}

/// One physical data flow, being read.
pub trait Flow: Send {
    /// The next batch of at most `rows_max` rows. Must not block for long: a flow without rows
    /// answers [`Next::Wait`].
    ///
    /// # Errors
    /// When the input cannot be read any further. A single bad row is no error: it goes to
    /// [`BadRows`].
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError>;

    /// Whether rows are known to come, though the last answer was [`Next::Wait`]: a file that was
    /// found and not read yet. Such a flow is not idle: it holds the watermark back.
    fn owes(&self) -> bool {
        false
    }
}

/// What a flow has to give.
#[derive(Debug, Clone)]
pub enum Next {
    /// Rows, in order. Not empty.
    Batch(RecordBatch),
    /// Nothing before this time of the context's clock.
    Wait {
        /// Nanoseconds of the context's clock.
        until_ns: u64,
    },
    /// No more rows, ever.
    End,
}
