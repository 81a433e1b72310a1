//! Sinks: where rows leave.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use crate::connector::gauge::SinkGauge;
use crate::error::ConnectorError;

/// A table that can be written.
pub trait Sink: Send + Sync {
    /// Who writes.
    fn placement(&self) -> Placement;

    /// What is replaced as a whole when its writer commits, so that the rows of another writer of
    /// the same would be lost: a name that is the same however the place is spelled. `None` where
    /// rows are added.
    fn replaces(&self) -> Option<String> {
        None
    }

    /// Opens the writer of one worker; it is opened before the first row is read, so that a sink
    /// that cannot be written fails early.
    ///
    /// # Errors
    /// When the output cannot be created.
    fn open(&self, worker: u32) -> Result<Box<dyn SinkWriter>, ConnectorError>;
}

/// Which workers write a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Worker 0 alone: all rows are gathered there (Q8).
    Gather,
    /// Every worker writes what it has.
    Everywhere,
}

/// An open sink, whose calls are measured by a [`SinkGauge`]. Dropping it without
/// [`commit`](SinkWriter::commit) leaves no trace of what was written.
pub trait SinkWriter: Send {
    /// Takes rows; may keep them in memory. The arrays may lie in a ring's slot: who keeps rows
    /// beyond the call copies them.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError>;

    /// Makes rows visible that a reader should see now, where the sink is a stream (a terminal).
    /// Called when the worker has nothing better to do.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn flush(&mut self) -> Result<(), ConnectorError>;

    /// Whether it only hands rows on, later and others than it is given, to another sink: it does
    /// that by `gauge` then, and its own calls are not measured. Asked once, before the first row.
    fn hands_on(&mut self, gauge: &Arc<SinkGauge>) -> bool {
        let _ = gauge;
        false
    }

    /// Publishes everything: the query has ended well.
    ///
    /// # Errors
    /// When the output cannot be written; then nothing of it is visible.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError>;
}
