//! Columns of lists, maps and rows as texts of JSON, for CSV, which has one text a value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::record_batch::RecordBatch;

/// The name that a value has in the object around it.
const NAME: &str = "v";

/// Makes texts of such columns.
pub(super) struct Flat {
    schema: SchemaRef,
}

impl Flat {
    /// For batches of a schema; `None` if it has no such column.
    pub(super) fn new(schema: &Schema) -> Option<Self> {
        schema.fields().iter().find(|field| field.data_type().is_nested())?;
        let fields = schema.fields().iter().map(|field| match field.data_type().is_nested() {
            true => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
            false => Arc::clone(field),
        });
        Some(Self { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())) })
    }

    /// The columns that it gives.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The same rows; NULL stays NULL.
    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns = batch.columns().iter().map(|column| match column.data_type().is_nested() {
            true => texts(column),
            false => Ok(Arc::clone(column)),
        });
        RecordBatch::try_new(self.schema(), columns.collect::<Result<_, _>>()?)
    }
}

/// The values of a column, each as JSON.
fn texts(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let field = Field::new(NAME, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::clone(column)])?;
    let mut lines = Vec::new();
    let builder = json::WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, json::writer::LineDelimited>(&mut lines);
    writer.write(&batch)?;
    writer.finish()?;
    drop(writer);
    let lines = String::from_utf8(lines).map_err(|e| ArrowError::JsonError(e.to_string()))?;
    let before = format!("{{\"{NAME}\":");
    let mut texts = StringBuilder::new();
    for (row, line) in lines.lines().enumerate() {
        let value = line.strip_prefix(&before).and_then(|rest| rest.strip_suffix('}'));
        texts.append_option(value.filter(|_| column.is_valid(row)));
    }
    Ok(Arc::new(texts.finish()))
}
