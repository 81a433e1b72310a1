//! Avro: files, which carry the schema of their rows, and messages, which name it or do not.
//!
//! ```text
//! file      "Obj" 1 │ schema, codec │ mark │ ( rows, bytes │ packed values │ mark )*
//! message   values
//!           0 │ number of the schema in a registry │ values
//! ```
//!
//! Values are read by the schema by which they were written. Its fields become the columns of the
//! table by their names and by the rule of all formats, so that a table outlives changes of the
//! schema: fields that were added are passed over, those that are not there are NULL.
//!
//! The values are read here and not by `arrow-avro`, whose reader neither checks the marks of a
//! file nor bounds what a block unpacks to, takes a file that was cut off for a whole one, and
//! after a bad message has columns of different lengths. Tests compare with it.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::cells::GrowingRows;
use super::rows::TargetColumns;
use super::typed::Mapping;

mod container;
mod datum;
mod encode;
mod options;
mod pack;
mod schema;
#[cfg(test)]
mod tests;

pub(crate) use container::{AvroDecoder, infer};
pub(crate) use encode::{AvroEncoder, schema_of};
pub(crate) use options::{CODEC, OPTIONS, codec, schema_for};
pub(crate) use pack::{BlockCodec, BlockWriter};
pub(crate) use schema::AvroSchema;

use datum::{Cursor, Reading, may_be_null};

/// Rows of one schema.
pub(crate) struct AvroRows {
    schema: Arc<AvroSchema>,
    /// Whether each field is read.
    reads: Vec<bool>,
    rows: GrowingRows,
}

impl AvroRows {
    /// For values of `schema`, which `place` has.
    ///
    /// # Errors
    /// When it does not fit the table.
    pub(crate) fn new(
        target: &TargetColumns,
        schema: Arc<AvroSchema>,
        place: &str,
    ) -> Result<Self, ConnectorError> {
        let found = target.match_columns(&schema.names(), place)?;
        let mut kept: Vec<usize> = found.into_iter().flatten().collect();
        kept.sort_unstable();
        kept.dedup();
        let columns = kept.iter().map(|field| column(&schema, *field, place));
        let columns = Schema::new(columns.collect::<Result<Vec<_>, _>>()?);
        let rows = GrowingRows::new(target, &columns, place)?;
        let mut reads = vec![false; schema.fields().len()];
        rows.mapping.columns_read().into_iter().for_each(|column| reads[kept[column]] = true);
        Ok(Self { schema, reads, rows })
    }

    /// Reads the next row, behind which nothing may follow where it is `alone`.
    fn read(&mut self, from: &mut Cursor<'_>, alone: bool) -> Result<(), String> {
        let (schema, reads) = (&self.schema, &self.reads);
        let reading = Reading(schema);
        self.rows.push(|columns| {
            let mut columns = columns.iter_mut();
            from.value(|from| {
                for ((name, of), read) in schema.fields().iter().zip(reads) {
                    let column = if *read { columns.next() } else { None };
                    let read = match column {
                        Some(column) => reading.read(of, from, column),
                        None => reading.pass(of, from, 0),
                    };
                    read.map_err(|reason| format!("field '{name}': {reason}"))?;
                }
                match from.left() {
                    1.. if alone => Err(format!("{} bytes follow its values", from.left())),
                    _ => Ok(()),
                }
            })
        })
    }

    /// Passes over the next row.
    fn pass(&self, from: &mut Cursor<'_>) -> Result<(), String> {
        let reading = Reading(&self.schema);
        let fields = self.schema.fields();
        from.value(|from| fields.iter().try_for_each(|(_, of)| reading.pass(of, from, 0)))
    }

    /// Reads a row that is all of a message.
    ///
    /// # Errors
    /// Why it is none; then nothing was added.
    pub(crate) fn push(&mut self, message: &[u8]) -> Result<(), String> {
        self.read(&mut Cursor::new(message), true)
    }

    /// The rows as the data have them, which are none afterwards.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows.finish()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.rows.mapping
    }

    /// How many fields the schema has.
    pub(crate) fn fields(&self) -> usize {
        self.reads.len()
    }
}

/// The columns that the fields of a schema can be.
pub(crate) fn readable(schema: &AvroSchema) -> Schema {
    let columns = (0..schema.fields().len()).filter_map(|field| column(schema, field, "").ok());
    Schema::new(columns.map(|column| column.with_nullable(true)).collect::<Vec<_>>())
}

/// A field as a column.
fn column(schema: &AvroSchema, field: usize, place: &str) -> Result<Field, ConnectorError> {
    let (name, of) = &schema.fields()[field];
    let data_type = schema.data_type(of).map_err(|reason| ConnectorError::Column {
        column: name.clone(),
        message: format!("it is not read from {place}: {reason}"),
        hint: Some("declare the other columns".into()),
    })?;
    Ok(Field::new(name, data_type, may_be_null(of)))
}
