//! Rows one by one, for functions that are easier to write so. Functions of whole batches are
//! faster: these look a column up by its name for each row.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int64Type, UInt64Type};
use dataflow::error::DataflowError;

use crate::error::sql_type;

/// A row of a batch.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    batch: &'a RecordBatch,
    at: usize,
}

impl<'a> Row<'a> {
    pub(crate) fn all(batch: &'a RecordBatch) -> impl Iterator<Item = Row<'a>> {
        (0..batch.num_rows()).map(move |at| Row { batch, at })
    }

    /// The value of a column; `None` for NULL.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when there is no such column, or it is of another type.
    pub fn get<T: Value<'a>>(&self, column: &str) -> Result<Option<T>, DataflowError> {
        let Some(array) = self.batch.column_by_name(column) else {
            let names = self.batch.schema();
            let names: Vec<_> = names.fields().iter().map(|field| field.name().clone()).collect();
            let names = names.join(", ");
            let message = format!("there is no column '{column}'; the columns are: {names}");
            return Err(DataflowError::Expression(message));
        };
        let (array, at) = match array.as_any_dictionary_opt() {
            Some(words) if array.is_valid(self.at) => {
                (words.values(), words.normalized_keys()[self.at])
            }
            _ => (array, self.at),
        };
        if array.is_null(at) {
            return Ok(None);
        }
        T::read(array, at).map(Some).ok_or_else(|| {
            let (found, asked) = (sql_type(array.data_type()), T::NAME);
            let message = format!("column '{column}' is {found} and was asked for as {asked}");
            DataflowError::Expression(message)
        })
    }
}

/// A Rust type that values of columns can be read as.
pub trait Value<'a>: Sized {
    /// Its name, for messages.
    const NAME: &'static str;

    /// The value, which is not NULL; `None` if the array is of a type that does not fit.
    fn read(array: &'a ArrayRef, at: usize) -> Option<Self>;
}

/// Signed integers of any width, and the ticks of timestamps.
impl<'a> Value<'a> for i64 {
    const NAME: &'static str = "i64";

    fn read(array: &'a ArrayRef, at: usize) -> Option<Self> {
        use arrow::datatypes::{Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type, UInt32Type};
        Some(match array.data_type() {
            DataType::Int64 => array.as_primitive::<Int64Type>().value(at),
            DataType::Int32 => array.as_primitive::<Int32Type>().value(at).into(),
            DataType::Int16 => array.as_primitive::<Int16Type>().value(at).into(),
            DataType::Int8 => array.as_primitive::<Int8Type>().value(at).into(),
            DataType::UInt32 => array.as_primitive::<UInt32Type>().value(at).into(),
            DataType::UInt16 => array.as_primitive::<UInt16Type>().value(at).into(),
            DataType::UInt8 => array.as_primitive::<UInt8Type>().value(at).into(),
            _ => dataflow::time::ticks(array)?[at],
        })
    }
}

impl<'a> Value<'a> for u64 {
    const NAME: &'static str = "u64";

    fn read(array: &'a ArrayRef, at: usize) -> Option<Self> {
        Some(array.as_primitive_opt::<UInt64Type>()?.value(at))
    }
}

impl<'a> Value<'a> for f64 {
    const NAME: &'static str = "f64";

    fn read(array: &'a ArrayRef, at: usize) -> Option<Self> {
        match array.data_type() {
            DataType::Float32 => Some(array.as_primitive::<Float32Type>().value(at).into()),
            _ => Some(array.as_primitive_opt::<Float64Type>()?.value(at)),
        }
    }
}

impl<'a> Value<'a> for bool {
    const NAME: &'static str = "bool";

    fn read(array: &'a ArrayRef, at: usize) -> Option<Self> {
        Some(array.as_boolean_opt()?.value(at))
    }
}

impl<'a> Value<'a> for &'a str {
    const NAME: &'static str = "&str";

    fn read(array: &'a ArrayRef, at: usize) -> Option<Self> {
        match array.data_type() {
            DataType::LargeUtf8 => Some(array.as_string::<i64>().value(at)),
            DataType::Utf8View => Some(array.as_string_view().value(at)),
            _ => Some(array.as_string_opt::<i32>()?.value(at)),
        }
    }
}

/// A value that a function of rows gives for a new column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// None.
    Null,
    /// For `Boolean`.
    Bool(bool),
    /// For integers, and as ticks for timestamps.
    Int(i64),
    /// For floats.
    Float(f64),
    /// For strings.
    Text(String),
}

macro_rules! cell_from {
    ($($of:ty => $cell:ident),*) => {
        $(impl From<$of> for Cell {
            fn from(value: $of) -> Self {
                Cell::$cell(value.into())
            }
        })*
    };
}
cell_from!(bool => Bool, i64 => Int, i32 => Int, u32 => Int, f64 => Float);
cell_from!(&str => Text, String => Text);

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Whether a column can be made of cells.
pub(crate) fn takes_cells(of: &DataType) -> bool {
    of.is_integer()
        || of.is_floating()
        || matches!(of, DataType::Boolean | DataType::Utf8 | DataType::Timestamp(..))
}

/// Columns of rows of cells.
pub(crate) fn columns_of(
    fields: &[Field],
    rows: Vec<Vec<Cell>>,
) -> Result<Vec<ArrayRef>, DataflowError> {
    if let Some(row) = rows.iter().find(|row| row.len() != fields.len()) {
        let (got, wanted) = (row.len(), fields.len());
        let message = format!("a function gave {got} values for {wanted} columns");
        return Err(DataflowError::Expression(message));
    }
    let mut columns: Vec<Vec<Cell>> = vec![Vec::with_capacity(rows.len()); fields.len()];
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
    }
    fields.iter().zip(columns).map(|(field, cells)| column_of(field, cells)).collect()
}

fn column_of(field: &Field, cells: Vec<Cell>) -> Result<ArrayRef, DataflowError> {
    fn each<T>(
        field: &Field,
        cells: Vec<Cell>,
        of: impl Fn(&Cell) -> Option<T>,
    ) -> Result<Vec<Option<T>>, DataflowError> {
        let value = |cell: Cell| match (of(&cell), cell) {
            (None, Cell::Null) => Ok(None),
            (Some(value), _) => Ok(Some(value)),
            (None, cell) => {
                let (name, wanted) = (field.name(), sql_type(field.data_type()));
                let message = format!("column '{name}' is {wanted}, and a function gave {cell:?}");
                Err(DataflowError::Expression(message))
            }
        };
        cells.into_iter().map(value).collect()
    }
    let array: ArrayRef = match field.data_type() {
        DataType::Boolean => {
            let of = |cell: &Cell| if let Cell::Bool(value) = cell { Some(*value) } else { None };
            Arc::new(BooleanArray::from(each(field, cells, of)?))
        }
        DataType::Utf8 => {
            let of = |cell: &Cell| match cell {
                Cell::Text(value) => Some(value.clone()),
                _ => None,
            };
            Arc::new(StringArray::from(each(field, cells, of)?))
        }
        of if of.is_floating() => {
            let of = |cell: &Cell| if let Cell::Float(value) = cell { Some(*value) } else { None };
            Arc::new(Float64Array::from(each(field, cells, of)?))
        }
        _ => {
            let of = |cell: &Cell| if let Cell::Int(value) = cell { Some(*value) } else { None };
            Arc::new(Int64Array::from(each(field, cells, of)?))
        }
    };
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(&array, field.data_type(), &options)?)
}
