//! Columns of lists, maps and rows as texts of JSON, for CSV, which has one text a value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringBuilder, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::RowEncoding;

/// Makes texts of such columns.
pub(super) struct Flat {
    schema: SchemaRef,
}

impl Flat {
    /// For batches of a schema; `None` if it has no such column.
    pub(super) fn new(schema: &Schema) -> Option<Self> {
        schema.fields().iter().find(|field| field.data_type().is_nested())?;
        let fields = schema.fields().iter().map(|field| {
            if field.data_type().is_nested() {
                Arc::new(Field::new(field.name(), DataType::Utf8, true))
            } else {
                Arc::clone(field)
            }
        });
        Some(Self { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())) })
    }

    /// The columns that it gives.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The same rows; NULL stays NULL.
    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns = self.schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            if column.data_type().is_nested() {
                texts(field.name(), column)
            } else {
                Ok(Arc::clone(column))
            }
        });
        RecordBatch::try_new(self.schema(), columns.collect::<Result<_, _>>()?)
    }
}

/// The values of a column, each as JSON.
fn texts(name: &str, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let field = Field::new(name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let lines = |column: ArrayRef| {
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column])?;
        let mut lines = Vec::new();
        RowEncoding::Json.encode(&batch, &mut lines).map_err(ArrowError::JsonError)?;
        String::from_utf8(lines).map_err(|error| ArrowError::JsonError(error.to_string()))
    };
    // A NULL shows the text before each value.
    let before = lines(new_null_array(column.data_type(), 1))?;
    let lines = lines(Arc::clone(column))?;
    let before = before.strip_suffix("null}\n").unwrap_or_default();
    let mut texts = StringBuilder::new();
    for (row, line) in lines.lines().enumerate() {
        let value = line.strip_prefix(before).and_then(|rest| rest.strip_suffix('}'));
        texts.append_option(value.filter(|_| column.is_valid(row)));
    }
    Ok(Arc::new(texts.finish()))
}
