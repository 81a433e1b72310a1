//! Formats that know their types: Arrow and Parquet.
//!
//! Columns are found by name and cast where that loses nothing; a value that the declared type
//! cannot hold makes a bad row.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::panics::{Panicked, caught};

use super::rows::{
    Refuser, RowOrigin, TargetColumns, check_castable, convert, is_text, names_of, shown, unfit,
};
use crate::options::sql_type;

/// Which column of the data is which of the table.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    /// The declared columns that are read.
    declared: Vec<usize>,
    /// The data's column of each, where it has one.
    data: Vec<Option<usize>>,
}

impl Mapping {
    /// Every declared column must be there, whether it is read or not, unless files of the table
    /// may [lack](TargetColumns::of_several) some.
    ///
    /// # Errors
    /// When one is missing or cannot become what is declared. `place` has the columns of `schema`.
    pub(crate) fn new(
        target: &TargetColumns,
        schema: &Schema,
        place: &str,
    ) -> Result<Self, ConnectorError> {
        let all = target.match_columns(&names_of(schema), place)?;
        for (field, column) in target.declared.fields().iter().zip(&all) {
            if let Some(column) = column {
                check_type(field, schema.field(*column).data_type(), place)?;
            }
        }
        let declared = target.columns_read();
        let data = declared.iter().map(|index| all[*index]).collect();
        Ok(Self { declared, data })
    }

    /// The data's columns that are read, each once, in the data's order.
    pub(crate) fn columns_read(&self) -> Vec<usize> {
        let mut read: Vec<usize> = self.data.iter().flatten().copied().collect();
        read.sort_unstable();
        read.dedup();
        read
    }

    /// The data's column of a declared one that is read.
    pub(crate) fn column_of(&self, declared: usize) -> Option<usize> {
        let index = self.declared.binary_search(&declared).ok()?;
        self.data.get(index).copied().flatten()
    }

    /// The rows of a batch of [`columns_read`](Self::columns_read). `records` are the numbers of
    /// its rows in the file or stream called `name`.
    pub(crate) fn rows(
        &self,
        refuser: &Refuser,
        batch: &RecordBatch,
        name: &str,
        records: &dyn RecordNumbers,
    ) -> Result<RecordBatch, ConnectorError> {
        let read = self.columns_read();
        let mut refused = Vec::new();
        let columns: Result<Vec<ArrayRef>, ArrowError> = self
            .declared
            .iter()
            .zip(&self.data)
            .map(|(declared, data)| {
                let field = refuser.target.declared.field(*declared);
                let Some(data) = data else {
                    return Ok(new_null_array(field.data_type(), batch.num_rows()));
                };
                let position = read.partition_point(|column| column < data);
                convert(batch.column(position), field, &mut refused)
            })
            .collect();
        let columns = columns.map_err(|error| unfit(name, &error))?;
        let column = |declared: usize| {
            Arc::clone(&columns[self.declared.partition_point(|index| *index < declared)])
        };
        refuser.rows(&column, batch.num_rows(), refused, &Typed { batch, name, records })
    }
}

/// Rows that never were text.
struct Typed<'a> {
    batch: &'a RecordBatch,
    name: &'a str,
    records: &'a dyn RecordNumbers,
}

/// The numbers of rows in a file, counted from 1.
pub(crate) trait RecordNumbers {
    fn number(&self, row: usize) -> u64;
}

/// The number of the first of consecutive rows.
impl RecordNumbers for u64 {
    fn number(&self, row: usize) -> u64 {
        self + row as u64
    }
}

/// The number of each row.
impl RecordNumbers for Vec<u64> {
    fn number(&self, row: usize) -> u64 {
        self.get(row).copied().unwrap_or_default()
    }
}

impl RowOrigin for Typed<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn record(&self, row: usize) -> u64 {
        self.records.number(row)
    }

    fn text(&self, row: usize) -> Cow<'_, [u8]> {
        shown(self.batch, row).unwrap_or_default().into_bytes().into()
    }
}

/// Text in the data becomes a number or a time by a CAST only.
fn check_type(field: &Field, from: &DataType, place: &str) -> Result<(), ConnectorError> {
    if is_text(from) && !is_text(field.data_type()) {
        return Err(ConnectorError::Column {
            column: field.name().clone(),
            message: format!("{place} has it as {}", sql_type(from)),
            hint: Some(format!("declare it as {}, and CAST it in the query", sql_type(from))),
        });
    }
    check_castable(field, from, place)
}

/// Runs a reader of damaged bytes. The libraries check most of what they read and stop with a panic
/// at some of the rest: that is said to be the bug that it is, and the other queries of the process
/// go on.
pub(crate) fn guarded<T, E: std::fmt::Display>(
    read: impl FnOnce() -> Result<T, E>,
) -> Result<T, String> {
    match caught(read) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(Panicked { message, .. }) => {
            Err(format!("its reader gave up ({message}): this is a bug, please report it"))
        }
    }
}

/// The columns of `schema` as tables have them: every kind of text is VARCHAR.
pub(crate) fn plain(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let data_type =
            if is_text(field.data_type()) { &DataType::Utf8 } else { field.data_type() };
        Field::new(field.name(), data_type.clone(), field.is_nullable())
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// Bytes of a bad record that are shown.
const SHOWN_BYTES_MAX: usize = 200;

/// A record that is no text, as it is shown where it is bad.
pub(crate) fn shown_bytes(value: &[u8]) -> Vec<u8> {
    let shown = &value[..value.len().min(SHOWN_BYTES_MAX)];
    let mut text = String::from("0x");
    shown.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
    if shown.len() < value.len() {
        text.push('…');
    }
    text.into_bytes()
}
