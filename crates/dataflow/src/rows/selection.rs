//! Late materialization: rows that are selected by number from one or several [parts](Part), and
//! whose columns are copied when they are asked for.
//!
//! A join emits pairs of a row of its probe side and a row of its build, as numbers. If its result
//! is the probe side of another join on the same worker, that one copies only the columns of its
//! own key, and adds the numbers of its own build. The columns of all joins are copied once, behind
//! the last of them; those that nobody needs there are not copied at all.
//!
//! ```text
//! batch ─▶ join ─▶ (row of batch, row of build 1) ─▶ join ─▶ (…, row of build 2) ─▶ columns
//! ```

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;

use crate::error::DataflowError;
use crate::rows::chunks::Chunks;

/// Selected rows, whose columns are copied when they are asked for.
#[derive(Clone)]
pub(crate) struct Selection {
    schema: SchemaRef,
    len: usize,
    parts: Vec<Part>,
    columns: Vec<ColumnOf>,
}

/// Where some of the columns are.
#[derive(Clone)]
enum Part {
    /// In a batch of exactly these rows.
    Batch(RecordBatch),
    /// By row the number of a row of other batches.
    Numbers(Arc<Chunks>, UInt32Array),
}

/// A column of a part.
#[derive(Clone, Copy)]
struct ColumnOf {
    part: usize,
    column: usize,
}

impl Selection {
    /// The rows of a batch.
    pub(crate) fn of(batch: RecordBatch) -> Self {
        let (schema, len) = (batch.schema(), batch.num_rows());
        let columns = columns_of(0, batch.num_columns());
        Self { schema, len, parts: vec![Part::Batch(batch)], columns }
    }

    /// Rows by their numbers in some batches.
    pub(crate) fn by_number(schema: SchemaRef, of: Arc<Chunks>, numbers: UInt32Array) -> Self {
        let (len, columns) = (numbers.len(), columns_of(0, of.columns()));
        Self { schema, len, parts: vec![Part::Numbers(of, numbers)], columns }
    }

    /// The names and types of the columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many columns they have.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }

    /// The rows of these numbers, in this order.
    ///
    /// # Errors
    /// When there is no such row.
    pub(crate) fn take(&self, rows: &UInt32Array) -> Result<Self, DataflowError> {
        let numbers = rows.values();
        // Where each row has one partner, as in a table of dates, nothing is copied.
        let in_turn = numbers.windows(2).all(|rows| rows[0].checked_add(1) == Some(rows[1]));
        let run = numbers.first().map(|&first| first as usize).filter(|_| in_turn);
        let part = |part: &Part| match (part, run) {
            (Part::Batch(batch), Some(first)) => Ok(Part::Batch(batch.slice(first, rows.len()))),
            (Part::Batch(batch), None) => {
                let of = Arc::new(Chunks::new(vec![batch.clone()]));
                Ok(Part::Numbers(of, rows.clone()))
            }
            (Part::Numbers(of, numbers), Some(first)) => {
                Ok(Part::Numbers(of.clone(), numbers.slice(first, rows.len())))
            }
            (Part::Numbers(of, numbers), None) => {
                let numbers = take(numbers, rows, None)?.as_primitive().clone();
                Ok(Part::Numbers(of.clone(), numbers))
            }
        };
        let parts = self.parts.iter().map(part).collect::<Result<_, DataflowError>>()?;
        Ok(Self { parts, len: rows.len(), ..self.clone() })
    }

    /// These rows with the columns of as many others behind their own; `schema` has both.
    pub(crate) fn beside(mut self, others: Self, schema: SchemaRef) -> Self {
        let first = self.parts.len();
        let behind = |of: ColumnOf| ColumnOf { part: first + of.part, ..of };
        self.columns.extend(others.columns.into_iter().map(behind));
        self.parts.extend(others.parts);
        Self { schema, ..self }
    }

    /// The same rows under another schema, which has as many columns.
    pub(crate) fn with_schema(self, schema: SchemaRef) -> Self {
        Self { schema, ..self }
    }

    /// Some of the columns, whose names and types are in `schema`. Parts that have none of them are
    /// left out.
    pub(crate) fn project(&self, columns: &[usize], schema: SchemaRef) -> Self {
        let mut places = vec![None; self.parts.len()];
        let mut parts: Vec<Part> = vec![];
        let mut moved = |of: ColumnOf| {
            let part = *places[of.part].get_or_insert_with(|| {
                parts.push(self.parts[of.part].clone());
                parts.len() - 1
            });
            ColumnOf { part, ..of }
        };
        let columns = columns.iter().map(|&column| moved(self.columns[column])).collect();
        Self { schema, len: self.len, parts, columns }
    }

    /// Some of the columns, copied.
    ///
    /// # Errors
    /// When a column would be larger than Arrow's may be.
    pub(crate) fn columns(&self, wanted: &[usize]) -> Result<Vec<ArrayRef>, DataflowError> {
        let mut copied: Vec<Option<ArrayRef>> = vec![None; wanted.len()];
        for (number, part) in self.parts.iter().enumerate() {
            let of_part = |(_, column): &(usize, &usize)| self.columns[**column].part == number;
            let (places, columns): (Vec<usize>, Vec<usize>) = (wanted.iter().enumerate())
                .filter(of_part)
                .map(|(place, &column)| (place, self.columns[column].column))
                .unzip();
            for (place, array) in places.into_iter().zip(part.columns(&columns)?) {
                copied[place] = Some(array);
            }
        }
        Ok(copied.into_iter().flatten().collect())
    }

    /// All columns, copied.
    ///
    /// # Errors
    /// As [`Selection::columns`]; and when a column is not of the type that the schema says.
    pub(crate) fn materialized(&self) -> Result<RecordBatch, DataflowError> {
        let columns = self.columns(&(0..self.columns.len()).collect::<Vec<_>>())?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.len));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

impl Part {
    fn columns(&self, wanted: &[usize]) -> Result<Vec<ArrayRef>, DataflowError> {
        match self {
            Self::Batch(batch) => {
                Ok(wanted.iter().map(|&column| batch.column(column).clone()).collect())
            }
            Self::Numbers(of, numbers) => of.take(numbers, wanted),
        }
    }
}

fn columns_of(part: usize, columns: usize) -> Vec<ColumnOf> {
    (0..columns).map(|column| ColumnOf { part, column }).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
        let texts: StringArray = rows.clone().map(|row| Some(format!("row {row}"))).collect();
        let numbers: Int64Array = rows.map(|row| (row % 3 != 0).then_some(row)).collect();
        RecordBatch::try_from_iter([
            ("text", Arc::new(texts) as ArrayRef),
            ("number", Arc::new(numbers) as ArrayRef),
        ])
        .expect("a batch")
    }

    fn numbers(rows: &Selection, column: usize) -> Vec<Option<i64>> {
        let column = rows.columns(&[column]).expect("a column").remove(0);
        column.as_primitive::<arrow::datatypes::Int64Type>().iter().collect()
    }

    fn four() -> SchemaRef {
        let of = |name: &str, of: DataType| Field::new(name, of, true);
        Arc::new(Schema::new(vec![
            of("text", DataType::Utf8),
            of("number", DataType::Int64),
            of("other text", DataType::Utf8),
            of("other number", DataType::Int64),
        ]))
    }

    /// Rows 10 to 15 beside rows 3, 0, 5, 5, 1, 2 of a build of two batches.
    fn pairs() -> Selection {
        let build = Arc::new(Chunks::new(vec![batch(0..4), batch(4..7)]));
        let of_build = vec![3, 0, 5, 5, 1, 2].into();
        let others = Selection::by_number(batch(0..0).schema(), build, of_build);
        Selection::of(batch(10..16)).beside(others, four())
    }

    #[test]
    fn numbers_of_numbers_are_those_of_the_rows() {
        for (taken, own, other) in [
            (vec![], vec![], vec![]),
            (vec![2], vec![None], vec![Some(5)]),
            (vec![3, 4], vec![Some(13), Some(14)], vec![Some(5), Some(1)]),
            (vec![5, 1, 1], vec![None, Some(11), Some(11)], vec![Some(2), None, None]),
        ] {
            let taken = pairs().take(&taken.into()).expect("rows");
            assert_eq!((numbers(&taken, 1), numbers(&taken, 3)), (own, other));
            assert_eq!(taken.materialized().expect("rows").num_rows(), taken.len());
        }
        let twice = pairs().take(&vec![5, 1, 4].into()).expect("rows");
        let twice = twice.take(&vec![2, 0].into()).expect("rows");
        assert_eq!(numbers(&twice, 1), [Some(14), None]);
        assert_eq!(numbers(&twice, 3), [Some(1), Some(2)]);
    }

    #[test]
    fn a_part_without_columns_is_left_out_and_rows_without_columns_are_counted() {
        let pairs = pairs();
        let schema = |columns: &[usize]| Arc::new(four().project(columns).expect("columns"));
        let one = pairs.project(&[3], schema(&[3]));
        assert_eq!((one.parts.len(), numbers(&one, 0)), (1, numbers(&pairs, 3)));
        let none = pairs.project(&[], schema(&[])).take(&vec![1, 5].into()).expect("rows");
        let none = none.materialized().expect("rows");
        assert_eq!((none.num_rows(), none.num_columns()), (2, 0));
    }
}
