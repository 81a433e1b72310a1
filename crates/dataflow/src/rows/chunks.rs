//! Rows gathered by their numbers, from one batch or from several.
//!
//! Rows of a side of a join are wanted in any order. To put their batches together first would copy
//! all of them once more, into memory that was never touched, and needs room for both; so they stay
//! where they are and are numbered through ([`Chunks`]).

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use state::gather;

use crate::error::DataflowError;
use crate::rows::wire::bytes_of;

/// The batch of a row, and its number there.
type Place = (usize, usize);

/// The batch of every row whose number is a multiple of this is known.
const BLOCK: usize = 1 << 10;

/// Batches of the same columns, whose rows are numbered through.
#[derive(Debug)]
pub(crate) struct Chunks {
    batches: Vec<RecordBatch>,
    /// The number of the first row of each, and of the row behind the last.
    firsts: Vec<usize>,
    /// Of every [`BLOCK`]th row its batch.
    blocks: Vec<usize>,
}

impl Chunks {
    pub(crate) fn new(batches: Vec<RecordBatch>) -> Self {
        let (mut firsts, mut blocks, mut rows) = (vec![0], vec![], 0);
        for (at, batch) in batches.iter().enumerate() {
            rows += batch.num_rows();
            blocks.resize(rows.div_ceil(BLOCK), at);
            firsts.push(rows);
        }
        Self { batches, firsts, blocks }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.firsts.last().copied().unwrap_or(0)
    }

    pub(crate) fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// How many columns they have.
    pub(crate) fn columns(&self) -> usize {
        self.batches.first().map_or(0, RecordBatch::num_columns)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = (self.firsts.len() + self.blocks.len()) * size_of::<usize>();
        self.batches.iter().map(bytes_of).sum::<usize>() + numbers
    }

    /// Some columns of the rows of these numbers.
    ///
    /// # Errors
    /// When a column of theirs would be larger than Arrow's may be.
    pub(crate) fn take(
        &self,
        rows: &UInt32Array,
        columns: &[usize],
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        if columns.is_empty() {
            return Ok(vec![]);
        }
        if let [batch] = &self.batches[..] {
            return taken(batch, rows, columns);
        }
        let places: Vec<Place> = rows.values().iter().map(|&row| self.place(row)).collect();
        let column = |&at: &usize| {
            let parts: Vec<&dyn Array> =
                self.batches.iter().map(|batch| batch.column(at).as_ref()).collect();
            gather(&parts, &places)
        };
        Ok(columns.iter().map(column).collect::<Result<_, _>>()?)
    }

    #[inline]
    fn place(&self, row: u32) -> Place {
        let row = row as usize;
        let mut batch = self.blocks[row / BLOCK];
        while self.firsts[batch + 1] <= row {
            batch += 1;
        }
        (batch, row - self.firsts[batch])
    }
}

/// Some columns of rows of a batch.
fn taken(
    batch: &RecordBatch,
    rows: &UInt32Array,
    columns: &[usize],
) -> Result<Vec<ArrayRef>, DataflowError> {
    let mut places: Option<Vec<Place>> = None;
    let mut column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8 | DataType::Binary => {
            let of = || rows.values().iter().map(|&row| (0, row as usize)).collect();
            gather(&[column.as_ref()], places.get_or_insert_with(of))
        }
        _ => take(column, rows, None),
    };
    Ok(columns.iter().map(|&at| column(batch.column(at))).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::compute::concat_batches;

    use super::*;

    fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
        let texts: StringArray = rows.clone().map(|row| Some(format!("row {row}"))).collect();
        let numbers: Int64Array = rows.map(|row| (row % 5 != 0).then_some(row)).collect();
        RecordBatch::try_from_iter([
            ("text", Arc::new(texts) as ArrayRef),
            ("number", Arc::new(numbers) as ArrayRef),
        ])
        .expect("a batch")
    }

    #[test]
    fn rows_are_those_of_all_batches_put_together() {
        let block = BLOCK as i64;
        let lengths = [3, 1, 0, block - 4, block, 5 * block + 7, 0, 1, 2, 1];
        let ends = lengths.iter().scan(0, |end, rows| {
            *end += rows;
            Some((*end - rows, *end))
        });
        let batches: Vec<RecordBatch> = ends.map(|(from, to)| batch(from..to)).collect();
        let whole = concat_batches(&batches[0].schema(), &batches).expect("one batch");
        let rows = whole.num_rows() as u32;
        let wanted = UInt32Array::from_iter_values((0..rows).rev().chain([0, 0, 3, 4, rows - 1]));
        for batches in [batches, vec![whole.clone()]] {
            let chunks = Chunks::new(batches);
            assert_eq!(chunks.rows(), whole.num_rows());
            let taken = chunks.take(&wanted, &[0, 1]).expect("rows");
            for (taken, column) in taken.iter().zip(whole.columns()) {
                assert_eq!(taken, &take(column, &wanted, None).expect("rows"));
            }
        }
    }
}
