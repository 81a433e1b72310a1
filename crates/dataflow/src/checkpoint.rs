//! Checkpoints: what the workers of a job keep of a round, and what they begin with after a
//! restart.
//!
//! A worker keeps a [`WorkerSnapshot`] of each round that is saved, and hands it to a
//! [`CheckpointTarget`], which encodes and stores it on another thread. Nothing here knows files.
//! State is kept as rows that know their operator and part, and not the worker, the exchange or the
//! layout they came from: after a restart each worker takes those rows of a [`Restored`] job that
//! belong to it now.

use arrow::record_batch::RecordBatch;

pub use crate::connector::sink::RunId;
use crate::connector::source::Position;

/// Rows of one part of an operator's state. Their meaning is the operator's.
#[derive(Debug, Clone)]
pub struct SavedRows {
    /// The part, as the operator numbers them.
    pub part: u32,
    /// The rows. Their arrays are shared with the state, and never change.
    pub rows: RecordBatch,
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
    /// Its state.
    pub parts: Vec<SavedRows>,
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

/// The rows of a round that a sink's writer has staged: they are durable, and not visible yet.
#[derive(Debug, Clone)]
pub struct SinkSnapshot {
    /// The sink, by its number in the job.
    pub operator: u32,
    /// The bytes by which its connector publishes them.
    pub staged: Vec<u8>,
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
    /// Rows that came late, since the job began.
    pub late: u64,
    /// Bad rows, since the job began.
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
}

/// What the workers of a job begin with: the snapshots of all workers of the job that went before,
/// however many those were.
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
