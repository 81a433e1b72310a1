//! Rows as the bytes of a connection.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;

use crate::format::Format;
use crate::format::avro::{AvroEncoder, BlockCodec, BlockWriter, codec, schema_for};
use crate::format::encode::RowEncoding;
use crate::options::OptionReader;
use crate::remote::row_encoding;

/// How the rows of a table are sent.
#[derive(Debug, Clone)]
pub(super) enum SentFormat {
    Rows(RowEncoding, SchemaRef),
    /// A file of Avro, with its schema as JSON.
    Avro(Arc<AvroEncoder>, Arc<str>, BlockCodec),
}

impl SentFormat {
    /// For the columns and the format of a table.
    ///
    /// # Errors
    /// When they do not fit.
    pub(super) fn new(table: &TableDef, format: &Format) -> Result<Self, ConnectorError> {
        let (schema, options) = (&table.schema, OptionReader(&table.options));
        if let Format::Avro = format {
            let of = schema_for(schema, options)?;
            let encoder = AvroEncoder::new(schema, of.schema)?;
            return Ok(Self::Avro(Arc::new(encoder), of.json.into(), codec(options)?));
        }
        row_encoding(format, schema).map(|rows| Self::Rows(rows, Arc::clone(schema)))
    }

    /// Begins a connection to `place`; its first bytes are appended to `out`.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(super) fn begin(&self, place: &str, out: &mut Vec<u8>) -> Result<SentRows, String> {
        Ok(match self {
            Self::Rows(rows, schema) => {
                let first = rows.prologue(Arc::clone(schema)).map_err(|error| error.to_string())?;
                out.extend(first);
                SentRows::Rows(rows.clone())
            }
            Self::Avro(encoder, json, codec) => {
                SentRows::Avro(Arc::clone(encoder), BlockWriter::begin(*codec, json, place, out))
            }
        })
    }
}

/// Rows of a connection that is open.
pub(super) enum SentRows {
    Rows(RowEncoding),
    Avro(Arc<AvroEncoder>, BlockWriter),
}

impl SentRows {
    /// Appends rows to `out`; some may be held back until they are [ended](Self::end).
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(super) fn encode(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Rows(rows) => rows.encode(batch, out),
            Self::Avro(encoder, blocks) => encoder.encode_blocks(batch, blocks, out),
        }
    }

    /// Appends the rows that were held back.
    ///
    /// # Errors
    /// When they cannot be packed.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Rows(_) => Ok(()),
            Self::Avro(_, blocks) => blocks.end_block(out).map_err(|error| error.to_string()),
        }
    }
}
