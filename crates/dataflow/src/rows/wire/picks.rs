//! Rows picked from several batches, which stay where they are until the rows leave.

use std::ops::Range;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::{concat_batches, take_arrays};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use state::gather;

use super::memory::own_views;
use super::rows::{Numbers, Part, Rows};
use crate::error::DataflowError;

/// Rows of some batches of the same columns, in an order.
#[derive(Debug, Default)]
pub(crate) struct Picks {
    picked: Vec<Picked>,
    /// The numbers of all rows that are picked by number.
    numbers: Vec<u32>,
    rows: usize,
}

/// Rows of a batch.
#[derive(Debug)]
struct Picked {
    batch: RecordBatch,
    /// How many rows are before them.
    before: usize,
    rows: Of,
}

/// Which rows of a batch.
#[derive(Debug)]
enum Of {
    /// All.
    Whole,
    /// Those with numbers, which are a range of all numbers.
    Numbers(Range<usize>),
}

impl Picks {
    /// All rows of a batch.
    pub(crate) fn of(batch: RecordBatch) -> Self {
        let rows = batch.num_rows();
        let picked = vec![Picked { batch, before: 0, rows: Of::Whole }];
        Self { picked, numbers: vec![], rows }
    }

    /// Adds rows of a batch by their numbers.
    pub(crate) fn add(&mut self, batch: RecordBatch, numbers: &[u32]) {
        if numbers.is_empty() {
            return;
        }
        if is_all(&batch, numbers) {
            return self.add_all(batch);
        }
        let first = self.numbers.len();
        self.numbers.extend_from_slice(numbers);
        let rows = Of::Numbers(first..self.numbers.len());
        self.picked.push(Picked { batch, before: self.rows, rows });
        self.rows += numbers.len();
    }

    /// Adds all rows of a batch.
    pub(crate) fn add_all(&mut self, batch: RecordBatch) {
        let (before, rows) = (self.rows, batch.num_rows());
        self.picked.push(Picked { batch, before, rows: Of::Whole });
        self.rows += rows;
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the rows.
    pub(super) fn columns(&self) -> usize {
        self.picked.first().map_or(0, |picked| picked.batch.num_columns())
    }

    /// Some of the rows of a column, by batch. There is a batch where there are no rows.
    pub(super) fn column(&self, at: usize, rows: &Range<usize>) -> Vec<Part<'_>> {
        let is_in = |picked: &&Picked| {
            picked.before < rows.end && picked.before + picked.len() > rows.start
        };
        let part = |picked| self.part(picked, at, rows);
        let parts: Vec<Part<'_>> = self.picked.iter().filter(is_in).map(part).collect();
        match self.picked.first() {
            Some(first) if parts.is_empty() => vec![self.part(first, at, &(0..0))],
            _ => parts,
        }
    }

    fn part<'a>(&'a self, picked: &'a Picked, at: usize, rows: &Range<usize>) -> Part<'a> {
        let within = |row: usize| row.saturating_sub(picked.before).min(picked.len());
        let range = within(rows.start)..within(rows.end);
        let rows = match &picked.rows {
            Of::Whole => Rows::Range(range),
            Of::Numbers(numbers) => {
                Rows::Numbers(Numbers::Borrowed(&self.numbers[numbers.clone()][range]))
            }
        };
        Part { array: picked.batch.column(at).as_ref(), rows, absent: false }
    }

    /// The rows as a batch in memory of its own, or as the batch that they all are.
    ///
    /// # Errors
    /// When a column would be larger than Arrow's may be.
    pub(crate) fn batch(&self) -> Result<Option<RecordBatch>, DataflowError> {
        match &self.picked[..] {
            [] => Ok(None),
            [Picked { batch, rows: Of::Whole, .. }] => Ok(Some(batch.clone())),
            [Picked { batch, .. }] => Ok(Some(take_rows(batch, &self.numbers)?)),
            [Picked { batch, .. }, ..] if self.numbers.is_empty() => {
                let batches = self.picked.iter().map(|picked| &picked.batch);
                Ok(Some(copied(concat_batches(&batch.schema(), batches)?)))
            }
            [Picked { batch, .. }, ..] => {
                let places: Vec<(usize, usize)> = (0..)
                    .zip(&self.picked)
                    .flat_map(|(part, picked)| {
                        picked.numbers(&self.numbers).map(move |row| (part, row))
                    })
                    .collect();
                let column = |at: usize| {
                    let parts: Vec<_> =
                        self.picked.iter().map(|picked| picked.batch.column(at).as_ref()).collect();
                    gather(&parts, &places)
                };
                let columns = (0..batch.num_columns()).map(column).collect::<Result<_, _>>()?;
                let batch = batch_of(batch.schema(), columns, self.rows)?;
                Ok(Some(copied(own_views(batch))))
            }
        }
    }
}

impl Picked {
    fn len(&self) -> usize {
        match &self.rows {
            Of::Whole => self.batch.num_rows(),
            Of::Numbers(numbers) => numbers.len(),
        }
    }

    fn numbers(&self, all: &[u32]) -> impl Iterator<Item = usize> {
        let (range, numbers) = match &self.rows {
            Of::Whole => (0..self.batch.num_rows(), &[][..]),
            Of::Numbers(numbers) => (0..0, &all[numbers.clone()]),
        };
        range.chain(numbers.iter().map(|&row| row as usize))
    }
}

/// Rows of a batch in memory of their own, or the batch if they are all of it.
///
/// # Errors
/// When a column would be larger than Arrow's may be.
pub(crate) fn take_rows(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, DataflowError> {
    if is_all(batch, rows) {
        return Ok(batch.clone());
    }
    let numbers = UInt32Array::from(rows.to_vec());
    let columns = take_arrays(batch.columns(), &numbers, None)?;
    Ok(copied(own_views(batch_of(batch.schema(), columns, rows.len())?)))
}

/// A batch whose rows were copied: tests count their bytes.
fn copied(batch: RecordBatch) -> RecordBatch {
    #[cfg(test)]
    super::passes::count_elsewhere(super::bytes_of(&batch));
    batch
}

/// Whether these are all rows of a batch, in their order.
fn is_all(batch: &RecordBatch, numbers: &[u32]) -> bool {
    numbers.len() == batch.num_rows() && (0..).zip(numbers).all(|(row, &number)| row == number)
}

fn batch_of(
    schema: SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, DataflowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}
