//! Rows that are part of a checkpoint until a sink publishes them: batches of one schema, packed,
//! behind a name of their encoding and the number of the job.
//!
//! Equal rows of two jobs are two publications, since the number of the job is a part of them.

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

/// Bytes of the number of a job.
const JOB_BYTES: usize = 8;
/// Bytes that a worker stages for a checkpoint at most, packed.
const STAGED_BYTES_MAX: usize = 256 << 20;

/// The bytes in which a sink stages rows until they are published.
#[derive(Debug, Clone)]
pub struct StagedFormat {
    /// The first bytes.
    pub magic: [u8; 4],
    /// The columns of the batches.
    pub schema: SchemaRef,
    /// The noun of messages for what is staged, in the plural: rows, or messages.
    pub what: &'static str,
    /// The table.
    pub place: String,
}

impl StagedFormat {
    fn error(&self, message: String, hint: &str) -> ConnectorError {
        let (place, hint) = (self.place.clone(), Some(hint.to_owned()));
        ConnectorError::Io { place, message, hint }
    }

    fn damaged(&self, message: String) -> ConnectorError {
        self.error(message, "the checkpoint is of another sink: begin anew, --from none")
    }

    fn unfit(&self, error: &ArrowError) -> ConnectorError {
        self.damaged(format!("the checkpoint's {}: {error}", self.what))
    }

    /// The error of a commit: a writer that stages is dropped in place of that.
    pub fn committed(&self) -> ConnectorError {
        self.damaged(format!("{} of checkpoints are published by their job", self.what))
    }

    /// The number of the job that has staged these bytes, and its batches, read one after another:
    /// a publication has no more than one of them in memory. No batches if there are none.
    ///
    /// # Errors
    /// When nobody has staged these bytes, or they are damaged.
    pub fn read<'a>(&self, staged: &'a [u8]) -> Result<(u64, StagedBatches<'a>), ConnectorError> {
        let head = staged.strip_prefix(&self.magic);
        let Some((job, bytes)) = head.and_then(<[u8]>::split_first_chunk::<JOB_BYTES>) else {
            return Err(self.damaged(format!("the checkpoint has other {} for it", self.what)));
        };
        let format = self.clone();
        let reader = match bytes {
            [] => None,
            bytes => Some(StreamReader::try_new(bytes, None).map_err(|error| self.unfit(&error))?),
        };
        if reader.as_ref().is_some_and(|reader| reader.schema() != self.schema) {
            let message = format!("the checkpoint's {} have other columns", self.what);
            return Err(self.damaged(message));
        }
        Ok((u64::from_le_bytes(*job), StagedBatches { format, reader }))
    }
}

/// The batches that were staged.
pub struct StagedBatches<'a> {
    format: StagedFormat,
    /// `None` if nothing was.
    reader: Option<StreamReader<&'a [u8]>>,
}

impl StagedBatches<'_> {
    /// Whether nothing was staged.
    pub fn is_empty(&self) -> bool {
        self.reader.is_none()
    }
}

impl Iterator for StagedBatches<'_> {
    type Item = Result<RecordBatch, ConnectorError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.as_mut()?.next()?;
        Some(batch.map_err(|error| self.format.unfit(&error)))
    }
}

/// The rows of a worker since the last round.
pub struct StagedStream {
    format: StagedFormat,
    job: u64,
    /// The stream of this round, from its first row on.
    open: Option<StreamWriter<Vec<u8>>>,
}

impl StagedStream {
    /// None, of a job with this number.
    pub fn new(format: StagedFormat, job: u64) -> Self {
        Self { format, job, open: None }
    }

    /// The format of its bytes.
    pub fn format(&self) -> &StagedFormat {
        &self.format
    }

    fn head(&self) -> Vec<u8> {
        [&self.format.magic[..], &self.job.to_le_bytes()].concat()
    }

    fn append(&mut self, batch: &RecordBatch) -> Result<usize, ArrowError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let packed = Some(CompressionType::LZ4_FRAME);
                let options = IpcWriteOptions::default().try_with_compression(packed)?;
                StreamWriter::try_new_with_options(self.head(), &batch.schema(), options)?
            }
        };
        open.write(batch)?;
        let bytes = open.get_ref().len();
        self.open = Some(open);
        Ok(bytes)
    }

    /// Adds rows to the round.
    ///
    /// # Errors
    /// When it has too many, or they have other columns.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let bytes = self.append(batch).map_err(|error| self.format.unfit(&error))?;
        if bytes > STAGED_BYTES_MAX {
            let message = format!(
                "a worker has more than {STAGED_BYTES_MAX} bytes of {} since the last checkpoint",
                self.format.what
            );
            let hint = "take them more often: SET 'millstream.checkpoint' = '1 s'";
            return Err(self.format.error(message, hint));
        }
        Ok(())
    }

    /// The bytes of the round, which ends.
    ///
    /// # Errors
    /// When they cannot be ended.
    pub fn stage(&mut self) -> Result<Vec<u8>, ConnectorError> {
        match self.open.take() {
            None => Ok(self.head()),
            Some(open) => open.into_inner().map_err(|error| self.format.unfit(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn format(magic: [u8; 4], column: &str) -> StagedFormat {
        let schema = Arc::new(Schema::new(vec![Field::new(column, DataType::Int64, true)]));
        StagedFormat { magic, schema, what: "rows", place: "t".into() }
    }

    #[test]
    fn batches_are_read_as_they_were_staged_and_by_nobody_else() {
        let own = format(*b"TST1", "n");
        let batch = |n: i64| {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![n, n + 1]));
            RecordBatch::try_new(Arc::clone(&own.schema), vec![column]).unwrap()
        };
        let mut rows = StagedStream::new(own.clone(), 7);
        let none = rows.stage().unwrap();
        rows.push(&batch(1)).unwrap();
        rows.push(&batch(5)).unwrap();
        let some = rows.stage().unwrap();
        assert_eq!(rows.stage().unwrap(), none, "a round has its own rows");
        let (job, batches) = own.read(&none).unwrap();
        assert!(job == 7 && batches.is_empty() && batches.count() == 0);
        let (job, batches) = own.read(&some).unwrap();
        assert!(job == 7 && !batches.is_empty());
        assert_eq!(batches.collect::<Result<Vec<_>, _>>().unwrap(), [batch(1), batch(5)]);
        for other in [format(*b"TST2", "n"), format(*b"TST1", "m")] {
            let error = other.read(&some).map(drop).unwrap_err().to_string();
            assert!(error.contains("the checkpoint"), "{error}");
        }
        assert!(own.read(b"TST1").is_err() && own.read(&some[..20]).is_err());
        let torn = own
            .read(&some[..some.len() - 200])
            .and_then(|(_, batches)| batches.collect::<Result<Vec<_>, _>>());
        assert!(torn.is_err() || torn.is_ok_and(|batches| batches.len() < 2));
    }
}
