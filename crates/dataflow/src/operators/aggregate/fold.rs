//! Folds the rows of a batch into the slices that they belong to.

use arrow::array::{ArrayRef, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::take;
use arrow::record_batch::RecordBatch;
use state::{Selections, SliceAssignment, Slices};

use crate::error::DataflowError;
use crate::job::Aggregation;
use crate::rows::time::ticks;

/// The key of rows that have no window.
pub(super) const NO_WINDOW: i64 = 0;

/// Splits batches by slice. Holds memory that is used again for each batch.
pub(super) struct Folder {
    spec: Aggregation,
    selections: Selections,
    keys: Vec<ArrayRef>,
    args: Vec<Vec<ArrayRef>>,
}

impl Folder {
    pub(super) fn new(spec: &Aggregation) -> Self {
        Self {
            selections: Selections::default(),
            keys: Vec::with_capacity(spec.keys.len()),
            args: spec.args.iter().map(|args| Vec::with_capacity(args.len())).collect(),
            spec: spec.clone(),
        }
    }

    /// Adds every row to its slice: to what has this key, if that is known.
    ///
    /// # Errors
    /// When the state cannot be updated.
    pub(super) fn fold(
        &mut self,
        batch: &RecordBatch,
        key: Option<i64>,
        slices: &mut Slices,
    ) -> Result<(), DataflowError> {
        let folded = self.fold_columns(batch, key, slices);
        // What is kept for the next batch are the vectors, not this batch's arrays: they may lie in
        // a ring's slot, and its sender would wait for it forever.
        self.keys.clear();
        self.args.iter_mut().for_each(Vec::clear);
        folded
    }

    fn fold_columns(
        &mut self,
        batch: &RecordBatch,
        key: Option<i64>,
        slices: &mut Slices,
    ) -> Result<(), DataflowError> {
        let rows = batch.num_rows();
        let Some(window) = &self.spec.window else {
            select(&self.spec, batch, &mut self.keys, &mut self.args, |column| Ok(column.clone()))?;
            return Ok(slices.update(NO_WINDOW, rows, &self.keys, &self.args)?);
        };
        let Some(times) = ticks(batch.column(window.column)) else {
            let message = "the window's time column is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let windows = &window.windows;
        let one = key.or_else(|| match windows.assign(times) {
            SliceAssignment::OneSlice(start) => Some(windows.slice_key(start)),
            SliceAssignment::Mixed => None,
        });
        if let Some(key) = one {
            let whole = |column: &ArrayRef| Ok(column.clone());
            select(&self.spec, batch, &mut self.keys, &mut self.args, whole)?;
            return Ok(slices.update(key, rows, &self.keys, &self.args)?);
        }
        windows.split(times, &mut self.selections);
        for (start, rows) in self.selections.iter() {
            let part = part_of(rows);
            select(&self.spec, batch, &mut self.keys, &mut self.args, |c| part.of(c))?;
            slices.update(windows.slice_key(start), rows.len(), &self.keys, &self.args)?;
        }
        Ok(())
    }
}

/// Some rows of a batch.
enum Part {
    /// Neighbours, which need no copy.
    Run(usize, usize),
    /// Any.
    Rows(UInt32Array),
}

fn part_of(rows: &[u32]) -> Part {
    let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else { return Part::Run(0, 0) };
    if (last - first) as usize + 1 == rows.len() {
        Part::Run(first as usize, rows.len())
    } else {
        Part::Rows(UInt32Array::new(ScalarBuffer::from(rows.to_vec()), None))
    }
}

impl Part {
    fn of(&self, column: &ArrayRef) -> Result<ArrayRef, DataflowError> {
        match self {
            Part::Run(first, rows) => Ok(column.slice(*first, *rows)),
            Part::Rows(rows) => Ok(take(column, rows, None)?),
        }
    }
}

/// Fills `keys` and `args` with the columns that the aggregation names.
fn select(
    spec: &Aggregation,
    batch: &RecordBatch,
    keys: &mut Vec<ArrayRef>,
    args: &mut [Vec<ArrayRef>],
    of: impl Fn(&ArrayRef) -> Result<ArrayRef, DataflowError>,
) -> Result<(), DataflowError> {
    keys.clear();
    for &key in &spec.keys {
        keys.push(of(batch.column(key))?);
    }
    for (columns, indices) in args.iter_mut().zip(&spec.args) {
        columns.clear();
        for &index in indices {
            columns.push(of(batch.column(index))?);
        }
    }
    Ok(())
}
