//! Rows as a file of Avro.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::SinkWriter;

use super::encoder::{BUFFER_BYTES, FormatWriter, Output, unfit};
use super::paths::io_error;
use crate::format::avro::{AvroEncoder, BlockCodec, BlockWriter};
use crate::options::refuse;

/// A file that is being written.
pub(super) struct AvroWriter {
    path: PathBuf,
    to: Box<dyn Output>,
    encoder: Arc<AvroEncoder>,
    blocks: BlockWriter,
    /// Bytes of the file that are to be written.
    buffer: Vec<u8>,
}

impl AvroWriter {
    /// A file with rows of a schema, whose blocks are packed.
    pub(super) fn begin(
        path: &Path,
        to: Box<dyn Output>,
        encoder: Arc<AvroEncoder>,
        (schema, codec): (&str, BlockCodec),
    ) -> Self {
        let mut buffer = vec![];
        let blocks = BlockWriter::begin(codec, schema, &path.to_string_lossy(), &mut buffer);
        Self { path: path.to_owned(), to, encoder, blocks, buffer }
    }

    fn send(&mut self) -> Result<(), ConnectorError> {
        let sent = self.to.write_all(&self.buffer);
        sent.map_err(|error| io_error(&self.path, &error))?;
        self.buffer.clear();
        Ok(())
    }
}

impl FormatWriter for AvroWriter {
    fn finish(mut self: Box<Self>) -> Result<Box<dyn Output>, ConnectorError> {
        let ended = self.blocks.end_block(&mut self.buffer);
        ended.map_err(|error| io_error(&self.path, &error))?;
        self.send()?;
        Ok(self.to)
    }

    fn unwritten(&self) -> u64 {
        (self.buffer.len() + self.blocks.unwritten()) as u64
    }
}

impl SinkWriter for AvroWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let encoded = self.encoder.encode_blocks(batch, &mut self.blocks, &mut self.buffer);
        encoded.map_err(|error| unfit(&self.path, &error))?;
        if self.buffer.len() >= BUFFER_BYTES { self.send() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.finish()?.commit()
    }
}

/// The error that a file of Avro is packed as a whole.
pub(super) fn avro_not_packed() -> ConnectorError {
    refuse(
        "compression",
        "a file of Avro is not packed as a whole: its blocks are",
        Some("leave it out: 'avro.codec' packs the blocks".into()),
    )
}
