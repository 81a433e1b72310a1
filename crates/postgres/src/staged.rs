//! Rows that are part of a checkpoint until they are published.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BinaryArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{SinkWriter, StagedOutput};

use crate::errors::failed;
use crate::write::RowStatements;

/// The first bytes of staged rows: their encoding. The number of the job is behind them.
const MAGIC: &[u8; 4] = b"MSQ1";
/// Bytes of the number of a job. It makes the same rows of two jobs two publications.
const JOB_BYTES: usize = 8;
/// Bytes that a worker stages for a checkpoint at most, packed.
const STAGED_BYTES_MAX: usize = 256 << 20;
/// Bytes of rows that are packed together, about.
const PIECE_BYTES: usize = 1 << 20;

fn damaged(place: &str, message: impl Into<String>) -> ConnectorError {
    failed(place, message, "the checkpoint is of another sink: begin anew, --from none")
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("rows", DataType::Binary, false)]))
}

/// Keeps the rows of a worker, as text, until they are part of a checkpoint.
pub(crate) struct PgStagingWriter {
    place: String,
    job: u64,
    statements: RowStatements,
    /// That of the next row. It grows from round to round, since rounds that were given up are
    /// published together with the next one, where the newest row of a key has to win.
    number: u64,
    /// Rows that are not packed yet.
    text: Vec<u8>,
    /// From the first packed rows of a round on.
    open: Option<StreamWriter<Vec<u8>>>,
}

impl PgStagingWriter {
    pub(crate) fn new(place: String, job: u64, statements: RowStatements) -> Self {
        Self { place, job, statements, number: 0, text: vec![], open: None }
    }

    /// The header of everything that it stages.
    fn head(&self) -> Vec<u8> {
        [&MAGIC[..], &self.job.to_le_bytes()].concat()
    }

    /// Packs the rows that wait; gives the bytes that are packed.
    fn pack(&mut self) -> Result<usize, ArrowError> {
        let rows = BinaryArray::from_vec(vec![self.text.as_slice()]);
        let batch = RecordBatch::try_new(schema(), vec![Arc::new(rows)])?;
        self.text.clear();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let packed = Some(CompressionType::LZ4_FRAME);
                let options = IpcWriteOptions::default().try_with_compression(packed)?;
                StreamWriter::try_new_with_options(self.head(), &batch.schema(), options)?
            }
        };
        open.write(&batch)?;
        let bytes = open.get_ref().len();
        self.open = Some(open);
        Ok(bytes)
    }
}

impl SinkWriter for PgStagingWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.statements.encode(batch, &mut self.number, &mut self.text)?;
        if self.text.len() < PIECE_BYTES {
            return Ok(());
        }
        let bytes = self.pack().map_err(|error| damaged(&self.place, error.to_string()))?;
        if bytes > STAGED_BYTES_MAX {
            let message = format!(
                "a worker has more than {STAGED_BYTES_MAX} bytes of rows since the last checkpoint"
            );
            let hint = "take them more often: SET 'millstream.checkpoint' = '1 s'";
            return Err(failed(&self.place, message, hint));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        if !self.text.is_empty() {
            self.pack().map_err(|error| damaged(&self.place, error.to_string()))?;
        }
        let Some(open) = self.open.take() else { return Ok(self.head().into()) };
        let staged = open.into_inner();
        staged.map(Into::into).map_err(|error| damaged(&self.place, error.to_string()))
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(damaged(&self.place, "rows of checkpoints are published by their job"))
    }
}

/// Rows that a [`PgStagingWriter`] has staged.
#[derive(Debug)]
pub(crate) struct StagedText {
    pub(crate) job: u64,
    /// The text of the rows, in pieces.
    pieces: Vec<BinaryArray>,
}

impl StagedText {
    /// # Errors
    /// When nobody has staged these bytes.
    pub(crate) fn of(place: &str, staged: &[u8]) -> Result<Self, ConnectorError> {
        let parts = staged.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk::<JOB_BYTES>);
        let Some((job, bytes)) = parts else {
            return Err(damaged(place, "the checkpoint has other rows for it"));
        };
        let job = u64::from_le_bytes(*job);
        if bytes.is_empty() {
            return Ok(Self { job, pieces: vec![] });
        }
        let unfit = |error: ArrowError| damaged(place, format!("the checkpoint's rows: {error}"));
        let reader = StreamReader::try_new(bytes, None).map_err(unfit)?;
        if reader.schema() != schema() {
            return Err(damaged(place, "the checkpoint's rows have other columns"));
        }
        let piece = |batch: Result<RecordBatch, ArrowError>| {
            Ok(batch.map_err(unfit)?.column(0).as_binary::<i32>().clone())
        };
        Ok(Self { job, pieces: reader.map(piece).collect::<Result<_, ConnectorError>>()? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| piece.is_empty())
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().flat_map(|piece| piece.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use connectors::OptionReader;

    use super::*;
    use crate::table::PgTable;

    #[test]
    fn rows_of_a_later_round_have_greater_numbers() {
        let options = [("url", "postgresql://u@127.0.0.1/d"), ("table-name", "t")];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let options = options.into_iter().collect();
        let table = PgTable::new(OptionReader(&options)).unwrap();
        let rows = |keys: Vec<i64>| {
            let keys: ArrayRef = Arc::new(Int64Array::from(keys));
            RecordBatch::try_from_iter([("k", keys)]).unwrap()
        };
        let statements = RowStatements::new(&table, &rows(vec![]).schema(), &["k".into()]).unwrap();
        let mut writer = PgStagingWriter::new("t".into(), 1, statements);
        let mut round = |number: u64, keys: Vec<i64>| {
            writer.write(&rows(keys)).unwrap();
            let staged = writer.stage(number, false).unwrap();
            let text = StagedText::of("t", &staged.staged).unwrap();
            String::from_utf8(text.pieces().collect::<Vec<_>>().concat()).unwrap()
        };
        assert_eq!(round(1, vec![7, 8, 9]), "0\t7\n1\t8\n2\t9\n");
        // It is published in one statement with the round before, if that was given up.
        assert_eq!(round(2, vec![9]), "3\t9\n");
    }
}
