//! Checkpoints: what the workers of a job keep of a round, and what they begin with after a
//! restart.
//!
//! A worker keeps a [`WorkerSnapshot`] of each round that is saved, and hands it to a
//! [`CheckpointTarget`], which encodes and stores it on another thread. Nothing here knows files.
//! State is kept as rows that know their operator and part, and not the worker, the exchange or the
//! layout they came from: after a restart each worker takes those rows of a [`Restored`] job that
//! belong to it now.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::record_batch::RecordBatch;

pub use crate::connector::sink::RunId;
use crate::connector::sink::UnsyncedOutput;
use crate::connector::source::Position;
use crate::error::DataflowError;

/// Rows of one part of an operator's state. Their meaning is the operator's.
#[derive(Debug, Clone)]
pub struct SavedRows {
    /// The part, as the operator numbers them.
    pub part: u32,
    /// The rows. Their arrays are shared with the state, and never change.
    pub rows: RecordBatch,
}

/// Rows that are read when a checkpoint is stored: in memory, on a disk where they were spilled to,
/// or in a store. What is read there never changes.
pub trait UnreadRows: Send + Sync {
    /// Reads them, in their order. It may take long, and is called on any thread, any number of
    /// times.
    ///
    /// # Errors
    /// When they cannot be read, or are not those that were written.
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError>;

    /// About how many bytes they have where they lie.
    fn bytes(&self) -> usize;

    /// A number that no other rows of the operator have on this worker, in any checkpoint of this
    /// run: rows that are stored under it need not be stored again. `None` for rows that are saved
    /// once.
    fn id(&self) -> Option<RowsId> {
        None
    }

    /// Whether the rows of a number are to be stored apart from those of others, so that they can
    /// be taken from a checkpoint alone, when they [are recorded](Self::is_recorded).
    fn is_apart(&self) -> bool {
        false
    }

    /// Whether the rows are only in a checkpoint that is in the chain, under their number
    /// ([`CheckpointTarget::recorded`]): then they cannot be read here.
    fn is_recorded(&self) -> bool {
        false
    }
}

/// The number of rows that never change.
pub type RowsId = (u64, u32);

/// Rows of one part of an operator's state that are read when they are needed.
#[derive(Clone)]
pub struct StoredRows {
    /// The part, as the operator numbers them.
    pub part: u32,
    /// Where the rows lie.
    pub rows: Arc<dyn UnreadRows>,
}

impl StoredRows {
    /// Reads the rows.
    ///
    /// # Errors
    /// As [`UnreadRows::read`].
    pub fn read(&self) -> Result<impl Iterator<Item = SavedRows>, DataflowError> {
        let part = self.part;
        Ok(self.rows.read()?.into_iter().map(move |rows| SavedRows { part, rows }))
    }
}

impl fmt::Debug for StoredRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRows").field("part", &self.part).finish_non_exhaustive()
    }
}

/// The state of an operator on one worker.
#[derive(Debug, Clone)]
pub struct OperatorSnapshot {
    /// Its number in the job.
    pub operator: u32,
    /// The version of the form of its parts.
    pub version: u32,
    /// The watermark up to which its results were emitted.
    pub watermark: i64,
    /// Its state in memory.
    pub parts: Vec<SavedRows>,
    /// The rest of its state, which comes behind that.
    pub stored: Vec<StoredRows>,
}

/// Bytes of copies that checkpoints hold of an operator's state. They are a part of what the
/// operator may hold until the checkpoints are stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateCopies(Arc<AtomicUsize>);

/// Bytes of a copy. They are given back when this is dropped, with the copy.
#[derive(Debug)]
pub(crate) struct CopiedBytes {
    of: StateCopies,
    bytes: usize,
}

impl StateCopies {
    /// Bytes that there are now. A sum alone: nothing else is ordered by it.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds those of a copy.
    pub(crate) fn add(&self, bytes: usize) -> CopiedBytes {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        CopiedBytes { of: self.clone(), bytes }
    }
}

impl Drop for CopiedBytes {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl OperatorSnapshot {
    /// Gives all rows in their order. Rows that are not in memory come a few at a time.
    ///
    /// # Errors
    /// As [`UnreadRows::read`]; those of `each`.
    pub fn each<E: From<DataflowError>>(
        &self,
        mut each: impl FnMut(SavedRows) -> Result<(), E>,
    ) -> Result<(), E> {
        self.parts.iter().cloned().try_for_each(&mut each)?;
        self.stored.iter().try_for_each(|stored| stored.read()?.try_for_each(&mut each))
    }
}

/// How far a split of a source was read.
#[derive(Debug, Clone)]
pub struct SplitSnapshot {
    /// The source, by its number in the job.
    pub operator: u32,
    /// Behind the last row that was emitted before the marker.
    pub position: Position,
    /// The greatest event time of its rows.
    pub greatest: Option<i64>,
    /// Whether it was read to its end.
    pub ended: bool,
    /// For how many readers the table was cut into splits when the job began. It stays cut so,
    /// however many there are later.
    pub readers: u32,
}

/// The rows of a round that a sink's writer has staged. They are not visible yet.
#[derive(Debug, Clone)]
pub struct SinkSnapshot {
    /// The sink, by its number in the job.
    pub operator: u32,
    /// The bytes by which its connector publishes them.
    pub staged: Vec<u8>,
    /// The rest of the work until they are durable. It is done before a checkpoint names them.
    pub unsynced: Option<Arc<dyn UnsyncedOutput>>,
}

/// The part of one worker in the checkpoint of a round.
#[derive(Debug, Clone, Default)]
pub struct WorkerSnapshot {
    /// The worker.
    pub worker: u32,
    /// The round: everything that was read before its marker, and nothing else.
    pub round: u64,
    /// Its operators with state.
    pub operators: Vec<OperatorSnapshot>,
    /// The splits that it reads, or has read.
    pub splits: Vec<SplitSnapshot>,
    /// The staged output of its sinks.
    pub sinks: Vec<SinkSnapshot>,
    /// Rows that came late, since this run of the job began.
    pub late: u64,
    /// Bad rows, since this run of the job began.
    pub bad: u64,
    /// Whether it has ended: it keeps no later round, and counts as saved in each.
    pub last: bool,
}

/// Takes what the workers of a process keep. It is called on a worker's thread and waits for
/// nothing.
pub trait CheckpointTarget: Send + Sync {
    /// The run, for the names of what sinks stage.
    fn run(&self) -> RunId;

    /// A worker has kept its part of a round.
    fn saved(&self, snapshot: WorkerSnapshot);

    /// The last round of which the checkpoint is known to be in the chain. Rows with a number that
    /// were kept in it, or before it and in each round since, need not be kept again: see
    /// [`UnreadRows::is_recorded`].
    fn recorded(&self) -> Option<u64> {
        None
    }
}

/// What the workers of a job begin with: the snapshots of all workers of the job that went before,
/// however many those were. State is read while it is loaded.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// The round that was saved. The job goes on in the one behind it.
    pub round: u64,
    /// The snapshots, in no order.
    pub workers: Vec<WorkerSnapshot>,
}

impl Restored {
    /// How far the splits of a source were read.
    pub(crate) fn splits(&self, operator: u32) -> impl Iterator<Item = &SplitSnapshot> {
        let splits = self.workers.iter().flat_map(|worker| &worker.splits);
        splits.filter(move |split| split.operator == operator)
    }
}
