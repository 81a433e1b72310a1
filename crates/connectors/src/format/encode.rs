//! Rows one after the other: CSV and newline JSON, for the terminal and for files, and records of
//! fixed length.

use arrow::csv;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::fixed::Layout;

/// A point in time as text; the fraction only where there is one.
pub(crate) const TIMESTAMP_FORMAT: &str = "%Y-%m-%d %H:%M:%S%.f";

/// How CSV is written.
#[derive(Debug, Clone)]
pub(crate) struct CsvStyle {
    pub(crate) header: bool,
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
    pub(crate) null: String,
}

impl Default for CsvStyle {
    fn default() -> Self {
        Self { header: true, delimiter: b',', quote: b'"', null: String::new() }
    }
}

/// A format in which each row is written by itself.
#[derive(Debug, Clone)]
pub(crate) enum RowFormat {
    Csv(CsvStyle),
    /// One object a line. Nulls are written out, so that every line has every key.
    Json,
    Fixed(Layout),
}

impl RowFormat {
    /// What stands before the first row, so that a result without rows still names its columns.
    pub(crate) fn prologue(&self, schema: SchemaRef) -> Result<Vec<u8>, ArrowError> {
        let mut out = Vec::new();
        match self {
            Self::Csv(style) => {
                let mut writer = style.builder().with_header(style.header).build(&mut out);
                writer.write(&RecordBatch::new_empty(schema))?;
            }
            Self::Json | Self::Fixed(_) => {}
        }
        Ok(out)
    }

    /// Appends the rows of `batch` to `out`.
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(crate) fn encode(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), String> {
        let written = match self {
            Self::Csv(style) => style.builder().with_header(false).build(out).write(batch),
            Self::Json => {
                let builder = json::WriterBuilder::new().with_explicit_nulls(true);
                let mut writer = builder.build::<_, json::writer::LineDelimited>(out);
                writer.write(batch).and_then(|()| writer.finish())
            }
            Self::Fixed(layout) => return layout.encode(batch.columns(), batch.num_rows(), out),
        };
        written.map_err(|error| error.to_string())
    }
}

impl CsvStyle {
    fn builder(&self) -> csv::WriterBuilder {
        csv::WriterBuilder::new()
            .with_delimiter(self.delimiter)
            .with_quote(self.quote)
            .with_null(self.null.clone())
            .with_timestamp_format(TIMESTAMP_FORMAT.to_owned())
    }
}

/// Refuses columns that CSV has no text for.
pub(crate) fn check_csv_columns(schema: &Schema) -> Result<(), ConnectorError> {
    match schema.fields().iter().find(|field| field.data_type().is_nested()) {
        None => Ok(()),
        Some(field) => Err(ConnectorError::Column {
            column: field.name().clone(),
            message: format!("CSV cannot carry {}", field.data_type()),
            hint: Some("write 'format' = 'json' or 'parquet'".into()),
        }),
    }
}
