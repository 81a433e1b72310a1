//! Rows that are part of a checkpoint and are read when it is stored: batch by batch from a disk,
//! or in memory, where only batches are written that no earlier checkpoint has.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use state::SpilledBatch;

use super::no_part;
use crate::checkpoint::{RowsId, SavedRows, StoredRows, UnreadRows};
use crate::error::DataflowError;
use crate::job::{Keyed, SavedPart};
use crate::operators::restoring::{is_saved_by_first, saved_here};
use crate::rows::wire::bytes_of;

/// A batch on the disk, of which a worker saves the rows that no other worker saves too.
struct SpilledRows {
    batch: SpilledBatch,
    spec: Arc<Keyed>,
    /// The parts of the operator's state.
    parts: Arc<[SavedPart]>,
    /// The worker, and how many there are.
    place: (u32, u32),
}

impl UnreadRows for SpilledRows {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let Some(part) = self.parts.get(self.batch.input()) else { return Ok(vec![]) };
        let rows = saved_here(&self.spec, self.place, &part.owner, self.batch.read()?)?;
        Ok(rows.into_iter().collect())
    }

    fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    fn id(&self) -> Option<RowsId> {
        Some(self.batch.id())
    }
}

/// A batch in memory, of which a worker saves the rows that no other worker saves too.
struct HeldRows {
    rows: RecordBatch,
    id: RowsId,
    /// The part of the operator's state.
    part: SavedPart,
    spec: Arc<Keyed>,
    /// The worker, and how many there are.
    place: (u32, u32),
}

impl UnreadRows for HeldRows {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let rows = saved_here(&self.spec, self.place, &self.part.owner, self.rows.clone())?;
        Ok(rows.into_iter().collect())
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.rows)
    }

    fn id(&self) -> Option<RowsId> {
        Some(self.id)
    }
}

/// A batch in memory as rows of a part, under its number; `None` if another worker saves all of its
/// rows.
pub(super) fn held_rows(
    spec: &Arc<Keyed>,
    place: (u32, u32),
    parts: &Arc<[SavedPart]>,
    (SavedRows { part, rows }, id): (SavedRows, RowsId),
) -> Result<Option<StoredRows>, DataflowError> {
    let Some(of) = parts.get(part as usize) else { return Err(no_part(part)) };
    if is_saved_by_first(spec, place.0, &of.owner) {
        return Ok(None);
    }
    let spec = Arc::clone(spec);
    let rows = HeldRows { rows, id, part: of.clone(), spec, place };
    Ok(Some(StoredRows { part, rows: Arc::new(rows) }))
}

/// A batch on the disk as rows of a part; `None` if another worker saves all of its rows: it has no
/// section then, and would be read again for each checkpoint.
pub(super) fn stored_rows(
    spec: &Arc<Keyed>,
    place: (u32, u32),
    parts: &Arc<[SavedPart]>,
    batch: SpilledBatch,
) -> Result<Option<StoredRows>, DataflowError> {
    let part = batch.input() as u32;
    let Some(of) = parts.get(batch.input()) else { return Err(no_part(part)) };
    if is_saved_by_first(spec, place.0, &of.owner) {
        return Ok(None);
    }
    let rows = SpilledRows { batch, spec: Arc::clone(spec), parts: Arc::clone(parts), place };
    Ok(Some(StoredRows { part, rows: Arc::new(rows) }))
}
