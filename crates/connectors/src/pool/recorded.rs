//! Loads of jobs that keep checkpoints and load a table once, at their end: each row once, whatever
//! fails.
//!
//! ```text
//! workers 1 …  all rows ─▶ committed        leader  ─▶ recorded ─▶ commit of worker 0:
//! worker 0     all rows ─▶ kept until then          (rows, mark)  a version appears
//! ```
//!
//! A version appears with the commit of the last writer. That of worker 0, in the process of the
//! leader, waits until the record of the job's end has the rows of the load, with the version and
//! the rows of the table before. So a run that finds the record and a table that is as it was knows
//! that the version never appeared, and begins anew; one that finds the next version with these
//! rows knows that it did.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::peers::PeerCheck;
use dataflow::sink::{Room, SinkWriter, StagedOutput};
use pool::PoolError;
use pool::access::{LoadMode, TableLoad};

use super::errors::{damaged, refused};
use super::sink::{PoolSink, PoolWriter};
use super::staged::patiently;

/// The first bytes of what a writer has staged; its rows follow, a `u64`.
const MAGIC: &[u8; 4] = b"MSL1";
/// The worker whose writer commits last.
const LAST: u32 = 0;

/// The writer that commits last, from when it has all of its rows.
#[derive(Clone, Default)]
pub(super) struct LastWriter(Arc<Mutex<Option<Box<PoolWriter>>>>);

impl LastWriter {
    fn keep(&self, writer: Option<Box<PoolWriter>>) -> Option<Box<PoolWriter>> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), writer)
    }

    /// Lets the version appear; nothing where another process had the writer.
    pub(super) fn commit(&self) -> Result<(), ConnectorError> {
        self.keep(None).map_or(Ok(()), |writer| writer.commit())
    }
}

/// The writer of a worker whose load appears when the end of its job is recorded.
pub(super) struct RecordedWriter {
    /// Until it has all rows.
    writer: Option<Box<PoolWriter>>,
    worker: u32,
    rows: u64,
    last: LastWriter,
}

impl RecordedWriter {
    pub(super) fn new(writer: PoolWriter, worker: u32, last: &LastWriter) -> Self {
        Self { writer: Some(Box::new(writer)), worker, rows: 0, last: last.clone() }
    }
}

impl SinkWriter for RecordedWriter {
    fn room(&mut self) -> Room {
        self.writer.as_mut().map_or(Room::Ready, |writer| writer.room())
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.rows += batch.num_rows() as u64;
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write(batch))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.flush())
    }

    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        self.writer.as_ref().and_then(|writer| writer.peer_check())
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.writer.as_mut().map_or(Ok(Room::Ready), |writer| writer.drain())
    }

    /// A job with such a load has no checkpoint before its end.
    fn stage(&mut self, _: u64, last: bool) -> Result<StagedOutput, ConnectorError> {
        let Some(writer) = self.writer.take_if(|_| last) else {
            return Ok(StagedOutput::default());
        };
        if self.worker == LAST {
            self.last.keep(Some(writer));
        } else {
            writer.commit()?;
        }
        Ok([&MAGIC[..], &self.rows.to_le_bytes()].concat().into())
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        let table = self.writer.as_ref().map_or("", |writer| &writer.table);
        Err(damaged(table, "a load that is recorded is published by its job"))
    }
}

impl PoolSink {
    /// Whether the version of a job that has ended did not appear: its rows are gone.
    pub(super) fn has_lost_load(
        &self,
        staged: &[Vec<u8>],
        mark: Option<[u64; 2]>,
    ) -> Result<bool, ConnectorError> {
        // Releases that did not record loads committed them before.
        let (Some(before), false) = (mark, staged.is_empty()) else { return Ok(false) };
        let table = &self.load().table;
        let rows = staged.iter().map(|staged| {
            let rows = staged.strip_prefix(MAGIC).and_then(|rows| rows.try_into().ok());
            let rows = rows.map(u64::from_le_bytes);
            rows.ok_or_else(|| damaged(table, "the checkpoint does not say what was loaded"))
        });
        let rows = rows.sum::<Result<u64, _>>()?;
        self.await_end_of_loads()?;
        let now = self.version_and_rows()?;
        let has = match self.load().mode {
            LoadMode::Overwrite => rows,
            LoadMode::Create | LoadMode::Append => before[1].saturating_add(rows),
        };
        // The first version of a table has the number 1 only if none of its name went before.
        let is_next = now[0] == before[0].saturating_add(1) || before[0] == 0 && now[0] > 0;
        if is_next && now[1] == has {
            return Ok(false);
        }
        if now == before { Ok(true) } else { Err(self.changed(before, now)) }
    }

    /// Waits until nobody loads the table: the pool may not have noticed that a run before has
    /// ended, or may still save its version. It is asked for a load that it has to refuse, by a
    /// reason of its own when no other load is under way.
    fn await_end_of_loads(&self) -> Result<(), ConnectorError> {
        let asked = patiently(true, || {
            let tables = self.access().tables()?;
            let is_there = tables.iter().any(|table| table.name == self.load().table);
            let mode = if is_there { LoadMode::Create } else { LoadMode::Append };
            self.access().begin_alone(&TableLoad { mode, ..self.load().clone() }, 1).map(drop)
        });
        match asked {
            Err(PoolError::Mismatch { .. } | PoolError::NoTable { .. }) => Ok(()),
            // Somebody has made it, or dropped it, just now.
            Ok(()) => Err(self.changed([0; 2], self.version_and_rows()?)),
            Err(error) => Err(refused(error)),
        }
    }
}
