//! The state of a grouping as rows: see [`Aggregation::saved_parts`](crate::job::Aggregation).
//!
//! Groups are those that this worker leads, when all that travels has arrived. What is left of
//! others would go to their leaders when it is loaded: nothing depends on who saved a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::datatypes::SchemaRef;
use state::{CopiedGroups, GroupColumns, SaveRound, SavedGroups, SpilledBatch, Windowed};

use crate::checkpoint::{CopiedBytes, RowsId, SavedRows, StateCopies, StoredRows, UnreadRows};
use crate::error::DataflowError;
use crate::job::SavedParts;

/// The parts.
const GROUPS: u32 = 0;
const EARLY: u32 = 1;
const EMITTED: u32 = 2;

/// Groups on a disk, to be saved as they are: whoever stores the checkpoint reads them.
struct SpilledGroups {
    batch: SpilledBatch,
    /// The slice that they are of.
    slice: i64,
    schema: SchemaRef,
}

impl UnreadRows for SpilledGroups {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let groups = self.batch.read()?.columns().to_vec();
        Ok(vec![rows_of(Some(self.slice), groups, &self.schema)?])
    }

    fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    fn id(&self) -> Option<RowsId> {
        Some(self.batch.id())
    }
}

/// A copy of groups. Their columns are made when they are stored, and not on the worker's thread.
struct HeldGroups {
    slice: Option<i64>,
    groups: CopiedGroups,
    schema: SchemaRef,
    /// Where the copy counts as state.
    _bytes: Option<CopiedBytes>,
}

impl UnreadRows for HeldGroups {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let GroupColumns { keys, states } = self.groups.columns()?;
        let columns = keys.into_iter().chain(states).collect();
        Ok(vec![rows_of(self.slice, columns, &self.schema)?])
    }

    fn bytes(&self) -> usize {
        self.groups.bytes()
    }

    fn id(&self) -> Option<RowsId> {
        self.groups.id()
    }

    fn is_apart(&self) -> bool {
        true
    }
}

/// Groups that have not changed since a checkpoint that is in the chain.
struct UnchangedGroups {
    id: RowsId,
    bytes: usize,
}

impl UnreadRows for UnchangedGroups {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        let message = "groups of an earlier checkpoint are read from there".to_owned();
        Err(DataflowError::Recovery(message))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn id(&self) -> Option<RowsId> {
        Some(self.id)
    }

    fn is_recorded(&self) -> bool {
        true
    }
}

/// Groups with their slice.
fn rows_of(
    slice: Option<i64>,
    groups: Vec<ArrayRef>,
    schema: &SchemaRef,
) -> Result<RecordBatch, DataflowError> {
    let rows = groups.first().map_or(0, |column| column.len());
    let slices: ArrayRef = match slice {
        Some(slice) => Arc::new(Int64Array::from_value(slice, rows)),
        None => Arc::new(Int64Array::new_null(rows)),
    };
    let columns = std::iter::once(slices).chain(groups).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// The rows that a grouping keeps.
#[derive(Default)]
pub(super) struct KeptGroups {
    /// Rows in memory.
    pub(super) parts: Vec<SavedRows>,
    /// Copies of groups, and groups on the disk.
    pub(super) stored: Vec<StoredRows>,
}

/// All groups, and of which windows an early result is the latest, where there are such. Copies of
/// groups are counted in `copies`; groups that have not changed since a round was recorded are not
/// copied.
pub(super) fn save(
    merged: &mut Windowed,
    round: SaveRound,
    form: &SavedParts,
    emits_early: bool,
    copies: Option<&StateCopies>,
) -> Result<KeptGroups, DataflowError> {
    let mut kept = KeptGroups::default();
    let schema = |part: u32| form.parts[part as usize].schema.clone();
    merged.save(round, |slice, groups| {
        let counted = matches!(groups, SavedGroups::Held(_));
        let bytes = copies.filter(|_| counted).map(|copies| copies.add(groups.bytes()));
        let schema = schema(GROUPS);
        let rows: Arc<dyn UnreadRows> = match (groups, slice) {
            (SavedGroups::Held(groups), slice) => {
                Arc::new(HeldGroups { slice, groups, schema, _bytes: bytes })
            }
            (SavedGroups::Unchanged { id, bytes }, _) => Arc::new(UnchangedGroups { id, bytes }),
            (SavedGroups::Spilled(batch), Some(slice)) => {
                Arc::new(SpilledGroups { batch, slice, schema })
            }
            (SavedGroups::Spilled(_), None) => {
                let message = "sessions that may go on lie on a disk".to_owned();
                return Err(DataflowError::Recovery(message));
            }
        };
        kept.stored.push(StoredRows { part: GROUPS, rows });
        Ok::<_, DataflowError>(())
    })?;
    let (ends, latest): (Vec<i64>, Vec<bool>) =
        if emits_early { merged.early_emitted().into_iter().unzip() } else { Default::default() };
    if !ends.is_empty() {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(ends)), Arc::new(BooleanArray::from(latest))];
        let rows = RecordBatch::try_new(schema(EARLY), columns)?;
        kept.parts.push(SavedRows { part: EARLY, rows });
    }
    Ok(kept)
}

/// That a grouping without keys and windows has emitted its row.
pub(super) fn save_emitted(form: &SavedParts) -> Result<SavedRows, DataflowError> {
    let columns: Vec<ArrayRef> = vec![Arc::new(BooleanArray::from(vec![true]))];
    let rows = RecordBatch::try_new(form.parts[EMITTED as usize].schema.clone(), columns)?;
    Ok(SavedRows { part: EMITTED, rows })
}

/// The loaded state of a grouping.
#[derive(Default)]
pub(super) struct RestoredGroups {
    early: BTreeMap<i64, bool>,
    /// Whether its row was emitted.
    pub(super) emitted: bool,
}

impl RestoredGroups {
    /// Takes saved rows that belong to this worker; there are `keys` keys.
    pub(super) fn take(
        &mut self,
        merged: &mut Windowed,
        keys: usize,
        SavedRows { part, rows }: &SavedRows,
    ) -> Result<(), DataflowError> {
        match *part {
            GROUPS => groups(merged, keys, rows),
            EARLY => {
                let ends = rows.column(0).as_primitive::<Int64Type>().values();
                // Each worker had some groups of a window.
                for (&end, latest) in ends.iter().zip(rows.column(1).as_boolean().values()) {
                    *self.early.entry(end).or_insert(true) &= latest;
                }
                Ok(())
            }
            _ => {
                self.emitted |= rows.column(0).as_boolean().true_count() > 0;
                Ok(())
            }
        }
    }

    /// All has been taken that was saved at `watermark`.
    pub(super) fn finish(&self, merged: &mut Windowed, watermark: i64) {
        merged.resume_at(watermark);
        merged.load_early(&self.early);
    }
}

/// Merges groups, those of a slice together.
fn groups(merged: &mut Windowed, keys: usize, rows: &RecordBatch) -> Result<(), DataflowError> {
    let slices = rows.column(0).as_primitive::<Int64Type>();
    let slice_of = |at: usize| slices.is_valid(at).then(|| slices.value(at));
    let mut from = 0;
    while from < rows.num_rows() {
        let slice = slice_of(from);
        let to = (from..rows.num_rows()).find(|at| slice_of(*at) != slice);
        let run = to.unwrap_or(rows.num_rows()) - from;
        let columns = rows.columns()[1..].iter().map(|column| column.slice(from, run));
        let mut columns: Vec<ArrayRef> = columns.collect();
        let states = columns.split_off(keys);
        merged.load(slice, &GroupColumns { keys: columns, states })?;
        from += run;
    }
    Ok(())
}
