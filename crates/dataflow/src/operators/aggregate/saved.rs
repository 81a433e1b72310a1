//! The state of a grouping as rows: see [`Aggregation::saved_parts`](crate::job::Aggregation).
//!
//! Groups are those that this worker leads, when all that travels has arrived. What is left of
//! others would go to their leaders when it is loaded: nothing depends on who saved a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use state::{GroupColumns, Windowed};

use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::SavedParts;

/// The parts.
const GROUPS: u32 = 0;
const EARLY: u32 = 1;
const EMITTED: u32 = 2;

/// All groups, and of which windows an early result is the latest, where there are such.
pub(super) fn save(
    merged: &mut Windowed,
    form: &SavedParts,
    emits_early: bool,
) -> Result<Vec<SavedRows>, DataflowError> {
    let mut all = vec![];
    let schema = |part: u32| form.parts[part as usize].schema.clone();
    merged.save(|slice, GroupColumns { keys, states }| {
        let rows = keys.first().or(states.first()).map_or(0, |column| column.len());
        let slices: ArrayRef = Arc::new(Int64Array::from(vec![slice; rows]));
        let columns = std::iter::once(slices).chain(keys).chain(states).collect();
        let rows = RecordBatch::try_new(schema(GROUPS), columns)?;
        all.push(SavedRows { part: GROUPS, rows });
        Ok::<_, DataflowError>(())
    })?;
    let (ends, latest): (Vec<i64>, Vec<bool>) =
        if emits_early { merged.early_emitted().into_iter().unzip() } else { Default::default() };
    if !ends.is_empty() {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(ends)), Arc::new(BooleanArray::from(latest))];
        let rows = RecordBatch::try_new(schema(EARLY), columns)?;
        all.push(SavedRows { part: EARLY, rows });
    }
    Ok(all)
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
    let slices: Vec<Option<i64>> = rows.column(0).as_primitive::<Int64Type>().iter().collect();
    let mut from = 0;
    for run in slices.chunk_by(|a, b| a == b) {
        let columns = rows.columns()[1..].iter().map(|column| column.slice(from, run.len()));
        let mut columns: Vec<ArrayRef> = columns.collect();
        let states = columns.split_off(keys);
        merged.load(run[0], &GroupColumns { keys: columns, states })?;
        from += run.len();
    }
    Ok(())
}
