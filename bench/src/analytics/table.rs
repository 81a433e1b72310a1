//! Tables whose rows are functions of their number, so that any part can be generated alone.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

/// Rows of a batch, approximately.
pub(super) const BATCH_ROWS: usize = 8_192;

/// Generates the columns of a range of units.
type Make = Box<dyn Fn(Range<u64>) -> Vec<ArrayRef>>;

/// A table at a scale.
pub(super) struct Table {
    columns: Vec<Column>,
    /// The number of rows, or of orders whose lines are the rows.
    units: u64,
    /// Rows of a unit, on average.
    unit_rows: u64,
    make: Option<Make>,
}

/// A column: its type and range, and a function of its values unless the table generates them.
pub(super) struct Column {
    field: Field,
    range: Option<[i64; 2]>,
    fill: Option<Box<dyn Fn(Range<u64>) -> ArrayRef>>,
}

impl Column {
    /// A column of whole numbers in a range.
    pub(super) fn int(name: String, range: [i64; 2], of: impl Fn(u64) -> i32 + 'static) -> Self {
        let fill = move |rows: Range<u64>| {
            Arc::new(Int32Array::from_iter_values(rows.map(&of))) as ArrayRef
        };
        Self { fill: Some(Box::new(fill)), ..Self::declared_int(&name, Some(range)) }
    }

    /// A column of texts.
    pub(super) fn text(name: String, of: impl Fn(u64) -> String + 'static) -> Self {
        let fill = move |rows: Range<u64>| {
            Arc::new(StringArray::from_iter_values(rows.map(&of))) as ArrayRef
        };
        Self { fill: Some(Box::new(fill)), ..Self::declared_text(&name) }
    }

    /// A column of values of another type.
    pub(super) fn of(
        name: &str,
        data_type: DataType,
        fill: impl Fn(Range<u64>) -> ArrayRef + 'static,
    ) -> Self {
        Self { fill: Some(Box::new(fill)), ..Self::declared(name, data_type, None) }
    }

    /// A column of whole numbers that the table generates together with other columns.
    pub(super) fn declared_int(name: &str, range: Option<[i64; 2]>) -> Self {
        Self::declared(name, DataType::Int32, range)
    }

    /// A column of texts that the table generates together with other columns.
    pub(super) fn declared_text(name: &str) -> Self {
        Self::declared(name, DataType::Utf8, None)
    }

    /// A column of values that the table generates together with other columns.
    pub(super) fn declared(name: &str, data_type: DataType, range: Option<[i64; 2]>) -> Self {
        Self { field: Field::new(name, data_type, true), range, fill: None }
    }
}

impl Table {
    /// A table whose columns are generated one by one.
    pub(super) fn rows(rows: u64, columns: Vec<Column>) -> Self {
        Self { columns, units: rows, unit_rows: 1, make: None }
    }

    /// A table whose rows are generated unit by unit, all columns together.
    pub(super) fn units(
        units: u64,
        unit_rows: u64,
        columns: Vec<Column>,
        make: impl Fn(Range<u64>) -> Vec<ArrayRef> + 'static,
    ) -> Self {
        Self { columns, units, unit_rows, make: Some(Box::new(make)) }
    }

    pub(super) fn schema(&self) -> SchemaRef {
        let fields = self.columns.iter().map(|column| column.field.clone());
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// The number of rows; about that if units differ.
    pub(super) fn count(&self) -> u64 {
        self.units * self.unit_rows
    }

    /// The least and the greatest value of a column, and its distinct values at most.
    pub(super) fn range(&self, column: &str) -> Option<([i64; 2], u64)> {
        let column = self.columns.iter().find(|of| of.field.name() == column)?;
        let [least, most] = column.range?;
        Some(([least, most], (most - least + 1) as u64))
    }

    /// The rows of part number `part`, from 0 on, of `parts`.
    pub(super) fn batches(&self, part: u32, parts: u32) -> Result<Vec<RecordBatch>, ArrowError> {
        let border = |part: u32| {
            (u128::from(self.units) * u128::from(part) / u128::from(parts.max(1))) as u64
        };
        let (begin, end) = (border(part), border(part + 1));
        let schema = self.schema();
        let step = (BATCH_ROWS as u64 / self.unit_rows).max(1);
        let batch = |first: u64| {
            let units = first..end.min(first + step);
            let columns = match &self.make {
                Some(make) => make(units),
                None => self.filled(&units),
            };
            RecordBatch::try_new(Arc::clone(&schema), columns)
        };
        (begin..end).step_by(step as usize).map(batch).collect()
    }

    fn filled(&self, rows: &Range<u64>) -> Vec<ArrayRef> {
        let fills = self.columns.iter().filter_map(|column| column.fill.as_ref());
        fills.map(|fill| fill(rows.clone())).collect()
    }
}
