//! The reader of a split whose rows are in memory.

use arrow::record_batch::RecordBatch;

use crate::connector::position::refused;
use crate::connector::source::{Next, Position, SplitReader};
use crate::error::ConnectorError;

/// The format of positions: the number of rows that were read.
const FORMAT: &str = "rows";
const VERSION: u32 = 1;

/// Reads a split whose rows are in memory. None of them is copied.
#[derive(Debug)]
pub struct RowsReader {
    split: String,
    /// The rows that were not read, in batches, of which the last one is the next.
    rest: Vec<RecordBatch>,
    /// The number of rows that were read.
    read: u64,
}

impl RowsReader {
    /// Reads the rows of a split from a position on, or all of them.
    ///
    /// # Errors
    /// When the position is of another split, or behind the last row.
    pub fn open(
        split: &str,
        mut batches: Vec<RecordBatch>,
        from: Option<&Position>,
    ) -> Result<Self, ConnectorError> {
        let numbers = from.map(|from| from.numbers(FORMAT, VERSION, split)).transpose()?;
        let [before] = numbers.unwrap_or_default();
        batches.reverse();
        let mut reader = Self { split: split.to_owned(), rest: batches, read: 0 };
        while reader.read < before {
            let left = usize::try_from(before - reader.read).unwrap_or(usize::MAX);
            if reader.take(left).is_none() {
                return Err(refused(split, "the position is behind the end".into()));
            }
        }
        Ok(reader)
    }

    /// The next rows, `rows_max` at most.
    fn take(&mut self, rows_max: usize) -> Option<RecordBatch> {
        while let Some(batch) = self.rest.pop() {
            let rows = batch.num_rows().min(rows_max);
            if rows < batch.num_rows() {
                self.rest.push(batch.slice(rows, batch.num_rows() - rows));
            }
            if rows > 0 {
                self.read += rows as u64;
                return Some(batch.slice(0, rows));
            }
        }
        None
    }
}

impl SplitReader for RowsReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        Ok(self.take(rows_max.max(1)).map_or(Next::End, Next::Batch))
    }

    fn position(&self) -> Position {
        Position::new(FORMAT, VERSION, &self.split, &[self.read])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn batches() -> Vec<RecordBatch> {
        let batch = |numbers: std::ops::Range<i64>| {
            let column = Arc::new(Int64Array::from_iter_values(numbers)) as ArrayRef;
            RecordBatch::try_from_iter([("n", column)]).unwrap()
        };
        vec![batch(0..0), batch(0..5), batch(5..5), batch(5..12)]
    }

    fn rest(mut reader: RowsReader, rows_max: usize) -> Vec<i64> {
        let mut all = vec![];
        while let Next::Batch(batch) = reader.next(rows_max).unwrap() {
            assert!((1..=rows_max).contains(&batch.num_rows()));
            all.extend(batch.column(0).as_primitive::<Int64Type>().values());
        }
        all
    }

    #[test]
    fn rows_are_read_on_from_every_position() {
        for given in 0..=12 {
            let mut first = RowsReader::open("s", batches(), None).unwrap();
            for _ in 0..given {
                assert!(matches!(first.next(1), Ok(Next::Batch(_))));
            }
            let position = first.position();
            for rows_max in [1, 3, 100] {
                let reader = RowsReader::open("s", batches(), Some(&position)).unwrap();
                assert_eq!(rest(reader, rows_max), (given..12).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_position_behind_the_end_or_of_another_split_is_refused() {
        let behind = Position::new(FORMAT, VERSION, "s", &[13]);
        let error = RowsReader::open("s", batches(), Some(&behind)).unwrap_err();
        assert!(error.to_string().contains("behind the end"), "{error}");
        let other = Position::new(FORMAT, VERSION, "t", &[1]);
        assert!(RowsReader::open("s", batches(), Some(&other)).is_err());
    }
}
