//! Sinks: where rows leave.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use arrow::record_batch::RecordBatch;

use crate::connector::gauge::SinkGauge;
use crate::connector::peers::PeerCheck;
use crate::error::ConnectorError;

/// A target that one writer alone can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExclusiveTarget {
    /// A name that is the same however the place is spelled.
    pub place: String,
    /// The option that has it, where no rows would be replaced.
    pub option: Option<&'static str>,
}

impl ExclusiveTarget {
    /// A target that is replaced as a whole.
    pub fn whole(place: String) -> Self {
        Self { place, option: None }
    }
}

/// A table that can be written.
pub trait Sink: Send + Sync {
    /// Who writes.
    fn placement(&self) -> Placement;

    /// The target, if one writer alone can have it: it is replaced as a whole when the writer
    /// commits, so that the rows of another one would be lost, or it is a name. `None` where rows
    /// are added.
    fn replaces(&self) -> Option<ExclusiveTarget> {
        None
    }

    /// When its rows are seen, in a job that keeps checkpoints.
    fn staging(&self) -> SinkVisibility {
        SinkVisibility::AtEnd
    }

    /// Whether rows that are seen [at the end](SinkVisibility::AtEnd) are published by a call, when
    /// the end of the job is recorded: then writers stage what they have done, once, at the end.
    fn publishes_end(&self) -> bool {
        false
    }

    /// Whether the rows of a job that has ended were not published, and are gone with its
    /// processes: then the job begins anew. It is asked before the second publication.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn has_lost(&self, staged: &[Vec<u8>], mark: Option<[u64; 2]>) -> Result<bool, ConnectorError> {
        let _ = (staged, mark);
        Ok(false)
    }

    /// Makes visible what writers have staged for a checkpoint. It may be called again with the
    /// same, by another process, when nobody knows how far the first call came: what is visible
    /// already stays as it is.
    ///
    /// # Errors
    /// When that cannot be made visible; the call may be repeated.
    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        let _ = (staged, how);
        Ok(())
    }

    /// Two numbers that the next publication changes. The record of a checkpoint keeps them, and a
    /// [publication](Self::publish) is given them: by them it knows whether the same was published
    /// before. It is asked when everything before is published; `None` where names tell that.
    ///
    /// # Errors
    /// When nobody can tell them now.
    fn mark(&self) -> Result<Option<[u64; 2]>, ConnectorError> {
        Ok(None)
    }

    /// Whether what its writers stage has the rows themselves. Nothing of it lies elsewhere, so
    /// that there is nothing to sweep, and the record of a checkpoint does not have it.
    fn stages_rows(&self) -> bool {
        false
    }

    /// Removes what earlier runs of this job have staged and no checkpoint names: `kept` is what
    /// writers had staged in the one that this run goes on from.
    ///
    /// # Errors
    /// When the place cannot be listed.
    fn sweep(&self, run: RunId, kept: &[Vec<u8>]) -> Result<(), ConnectorError> {
        let _ = (run, kept);
        Ok(())
    }

    /// Refuses a place that has rows of others. A job that keeps checkpoints asks before it begins
    /// anew, so that one that is refused can still go on from the checkpoints that it has.
    ///
    /// # Errors
    /// When there are such rows, or the place cannot be listed.
    fn check_new(&self) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// Opens the writer of one worker; it is opened before the first row is read, so that a sink
    /// that cannot be written fails early.
    ///
    /// # Errors
    /// When the output cannot be created.
    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError>;
}

/// When rows are seen that a sink has taken, in a job that keeps checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkVisibility {
    /// As they come: after a failure those since the last checkpoint come again.
    AsTheyCome,
    /// When the job has ended. Until then they are kept by nobody else, so that a job with such a
    /// sink begins anew after a failure.
    AtEnd,
    /// With the checkpoint that they are part of: each row once, whatever fails.
    ByCheckpoint,
    /// When the job has ended. Until then checkpoints keep them.
    Retained,
}

/// How output is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publishing {
    /// The job has ended: all that remains becomes visible.
    pub last: bool,
    /// It may have been published before. What is not there any more was, and somebody has taken
    /// it since.
    pub again: bool,
    /// The [mark](Sink::mark) of the sink when its checkpoint was recorded.
    pub mark: Option<[u64; 2]>,
}

/// One run of a job that keeps checkpoints, unlike every other run of every job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The job: a hash of its name and of the place of its state.
    pub job: u64,
    /// The run: greater than those of all earlier runs of the job.
    pub generation: u64,
}

/// The run for which a writer stages rows.
#[derive(Debug, Clone)]
pub struct StagingContext {
    /// The run. It is part of the names of what is staged.
    pub run: RunId,
    /// Whether it goes on from a checkpoint, and does not begin the job.
    pub goes_on: bool,
    /// The part of this worker in the output that the writers of the run before had staged and not
    /// published.
    pub before: Vec<Vec<u8>>,
}

/// Output that a writer has staged.
#[derive(Debug, Clone, Default)]
pub struct StagedOutput {
    /// The bytes by which [`Sink::publish`] finds it.
    pub staged: Vec<u8>,
    /// The rest of the work until it is durable; `None` if it is.
    pub unsynced: Option<Arc<dyn UnsyncedOutput>>,
}

impl From<Vec<u8>> for StagedOutput {
    fn from(staged: Vec<u8>) -> Self {
        Self { staged, unsynced: None }
    }
}

/// Output that is written, and not durable yet.
pub trait UnsyncedOutput: Debug + Send + Sync {
    /// Makes it durable. It is called once, on a thread that may wait for a disk, before a
    /// checkpoint names the output. Output that is dropped instead leaves no trace.
    ///
    /// # Errors
    /// When it is not durable. The job fails, for the rows cannot be written again.
    fn sync(&self) -> Result<(), ConnectorError>;
}

/// The services of the runtime that a writer may use.
#[derive(Debug, Clone)]
pub struct WriterContext {
    /// The worker that writes.
    pub worker: u32,
    /// Wakes that worker, from any thread: a writer that answered [`Room::Full`] calls it when the
    /// answer would be another.
    pub waker: Waker,
    /// Where the job keeps checkpoints, or publishes by another process: the writer stages then.
    pub staging: Option<StagingContext>,
}

impl WriterContext {
    /// Of a worker that nobody has to wake: for tests, and for writers that always have room.
    pub fn of(worker: u32) -> Self {
        Self { worker, waker: Waker::noop().clone(), staging: None }
    }
}

/// Whether a writer takes rows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It takes rows without waiting for anybody.
    Ready,
    /// It waits for its reader. It wakes the worker when it has room again.
    Full,
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
///
/// A call never waits for the reader of what is written: the worker has links to serve, timers, and
/// other sinks. A writer with a slow reader says so by [`room`](SinkWriter::room). The worker then
/// holds back the rows of this sink, and what gives rows to it, and goes on with everything else.
pub trait SinkWriter: Send {
    /// Whether [`write`](Self::write) and [`flush`](Self::flush) may be called. By default always:
    /// for writers that wait for no more than a disk.
    fn room(&mut self) -> Room {
        Room::Ready
    }

    /// Takes rows while there is [room](Self::room); may keep them in memory. The arrays may lie in
    /// a ring's slot: a writer that keeps rows beyond the call copies them.
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

    /// The rows that were written so far are about to be part of a checkpoint, though nobody stages
    /// them: hands them on to their reader, so that none is lost. [`Room::Full`] while it waits for
    /// its reader: it is asked again when it has woken the worker. More rows follow.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.flush()?;
        Ok(Room::Ready)
    }

    /// All rows are written: hands on what the writer still holds. [`Room::Full`] while it waits
    /// for its reader: it is asked again when it has woken the worker. [`commit`](Self::commit)
    /// follows when it is [`Room::Ready`], and has to wait for nobody.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn drain(&mut self) -> Result<Room, ConnectorError> {
        Ok(Room::Ready)
    }

    /// Whether it only hands rows on, later and others than it is given, to another sink: it does
    /// that by `gauge` then, and its own calls are not measured. Asked once, before the first row.
    fn hands_on(&mut self, gauge: &Arc<SinkGauge>) -> bool {
        let _ = gauge;
        false
    }

    /// Tells whether the peer that it writes to is still there, where that can be lost while nobody
    /// writes. Asked once, before the first row.
    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        None
    }

    /// Stages what was written since the last call: it is to be durable, and not yet visible. With
    /// `last` the query has ended well, and the writer is dropped afterwards in place of a commit.
    /// Work that waits for a disk is left to [`UnsyncedOutput::sync`]. Rows of writers that do not
    /// stage stay with them. Only called where the writer was opened with a [`StagingContext`].
    ///
    /// # Errors
    /// When the output cannot be written.
    fn stage(&mut self, round: u64, last: bool) -> Result<StagedOutput, ConnectorError> {
        let _ = (round, last);
        Ok(StagedOutput::default())
    }

    /// Publishes everything: the query has ended well.
    ///
    /// # Errors
    /// When the output cannot be written; then nothing of it is visible.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError>;
}
