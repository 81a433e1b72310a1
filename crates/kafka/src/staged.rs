//! Messages that are part of a checkpoint until they are published.

use std::sync::Arc;
use std::task::Waker;

use arrow::array::{Array, AsArray, BinaryBuilder, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter, StagedOutput};

use crate::errors::failed;
use crate::writer::{Chooser, KafkaEncoder, OutMessage};

/// The first bytes of staged messages: their encoding. The number of the job is behind them.
const MAGIC: &[u8; 4] = b"MSK1";
/// Bytes of the number of a job, by which equal messages of two jobs are two publications.
const JOB_BYTES: usize = 8;
/// Bytes that a worker stages for a checkpoint at most, compressed.
const STAGED_BYTES_MAX: usize = 256 << 20;

fn damaged(table: &str, message: impl Into<String>) -> ConnectorError {
    failed(table, message, "the checkpoint is of another sink: begin anew, --from none")
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, false),
        Field::new("timestamp", DataType::Int64, true),
        Field::new("partition", DataType::Int64, true),
    ]))
}

/// Keeps the messages of a worker until they are part of a checkpoint.
pub(crate) struct StagingWriter {
    pub(crate) table: String,
    pub(crate) job: u64,
    pub(crate) encoder: KafkaEncoder,
    pub(crate) chooser: Chooser,
    /// The stream of this round, from its first row on.
    pub(crate) open: Option<StreamWriter<Vec<u8>>>,
    pub(crate) waker: Waker,
}

impl StagingWriter {
    /// The first bytes of all that it stages.
    fn head(&self) -> Vec<u8> {
        [&MAGIC[..], &self.job.to_le_bytes()].concat()
    }

    fn append(&mut self, messages: Vec<OutMessage>) -> Result<usize, ArrowError> {
        let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
        messages.iter().for_each(|message| keys.append_option(message.key.as_deref()));
        messages.iter().for_each(|message| values.append_value(&message.value));
        let times: Int64Array = messages.iter().map(|message| message.timestamp).collect();
        let partitions = messages.iter().map(|_| self.chooser.next().map(i64::from));
        let partitions: Int64Array = partitions.collect();
        let (keys, values) = (Arc::new(keys.finish()), Arc::new(values.finish()));
        let columns: Vec<Arc<dyn Array>> =
            vec![keys, values, Arc::new(times), Arc::new(partitions)];
        let batch = RecordBatch::try_new(schema(), columns)?;
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

impl SinkWriter for StagingWriter {
    /// There is none until a registry knows the schema of the rows. What is wrong with it is an
    /// error of [`write`](Self::write).
    fn room(&mut self) -> Room {
        if self.encoder.is_ready(&self.waker).unwrap_or(true) { Room::Ready } else { Room::Full }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.encoder.is_ready(&self.waker)?;
        let messages = self.encoder.encode(batch)?;
        let bytes = self.append(messages);
        let bytes = bytes.map_err(|error| damaged(&self.table, error.to_string()))?;
        if bytes > STAGED_BYTES_MAX {
            let message = format!(
                "a worker has more than {STAGED_BYTES_MAX} bytes of messages since the last \
                 checkpoint"
            );
            let hint = "take them more often: SET 'millstream.checkpoint' = '1 s'";
            return Err(failed(&self.table, message, hint));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let Some(open) = self.open.take() else { return Ok(self.head().into()) };
        let staged = open.into_inner();
        staged.map(Into::into).map_err(|error| damaged(&self.table, error.to_string()))
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(damaged(&self.table, "messages of checkpoints are published by their job"))
    }
}

/// Messages, each with its partition.
pub(crate) type Addressed = Vec<(OutMessage, Option<i32>)>;

/// The messages that a [`StagingWriter`] has staged, one batch after another: a publication has no
/// more than that of them in memory. `None` if there are none.
///
/// # Errors
/// When nobody has staged these bytes.
pub(crate) fn staged_messages(
    table: &str,
    staged: &[u8],
) -> Result<Option<impl Iterator<Item = Result<Addressed, ConnectorError>>>, ConnectorError> {
    let behind = staged.strip_prefix(MAGIC).and_then(|bytes| bytes.get(JOB_BYTES..));
    let Some(bytes) = behind else {
        return Err(damaged(table, "the checkpoint has other messages for it"));
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let unfit =
        move |error: ArrowError| damaged(table, format!("the checkpoint's messages: {error}"));
    let reader = StreamReader::try_new(bytes, None).map_err(unfit)?;
    if reader.schema() != schema() {
        return Err(damaged(table, "the checkpoint's messages have other columns"));
    }
    Ok(Some(reader.map(move |batch| batch.map(|batch| messages_of(&batch)).map_err(unfit))))
}

fn messages_of(batch: &RecordBatch) -> Addressed {
    let [keys, values] = [0, 1].map(|column: usize| batch.column(column).as_binary::<i32>());
    let [times, partitions] =
        [2, 3].map(|column: usize| batch.column(column).as_primitive::<Int64Type>());
    let message = |row: usize| {
        let optional = |of: &Int64Array| of.is_valid(row).then(|| of.value(row));
        let key = keys.is_valid(row).then(|| keys.value(row).to_vec());
        let (value, timestamp) = (values.value(row).to_vec(), optional(times));
        let partition = optional(partitions).and_then(|of| i32::try_from(of).ok());
        (OutMessage { key, value, timestamp }, partition)
    };
    (0..batch.num_rows()).map(message).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::late_registry::{Answer, LONG, registry, table, unparks};

    /// A writer whose registry has answered, and for which nobody has waited before.
    fn answered(answer: Answer) -> (StagingWriter, RecordBatch) {
        let (url, answers) = registry();
        let table = table(&url);
        let column: Arc<dyn Array> = Arc::new(Int64Array::from(vec![5, 6]));
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), vec![column]).unwrap();
        let mut writer = StagingWriter {
            table: table.name.clone(),
            job: 7,
            encoder: KafkaEncoder::new(&table).unwrap(),
            chooser: Chooser::Client,
            open: None,
            waker: unparks(),
        };
        for _ in 0..3 {
            assert_eq!(writer.room(), Room::Full, "nobody has answered");
        }
        answers.send(answer).unwrap();
        let since = Instant::now();
        while writer.room() == Room::Full {
            thread::park_timeout(LONG);
            assert!(since.elapsed() < LONG, "nobody wakes the writer");
        }
        (writer, batch)
    }

    #[test]
    fn rows_wait_for_the_number_of_their_schema_and_no_worker_does() {
        let (mut writer, batch) = answered((200, r#"{"id": 258}"#.into()));
        writer.write(&batch).unwrap();
        let StagedOutput { staged, .. } = writer.stage(0, false).unwrap();
        let messages = staged_messages("t", &staged).unwrap().unwrap();
        let messages = messages.flat_map(Result::unwrap).map(|(message, _)| message.value);
        // A union of which the value is the second; zigzag.
        let expected = [10, 12].map(|n| vec![0, 0, 0, 1, 2, 2, n]);
        assert_eq!(messages.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_registry_that_refuses_the_schema_is_an_error_of_the_first_row() {
        let (mut writer, batch) = answered((409, r#"{"message": "too narrow"}"#.into()));
        let error = writer.write(&batch).unwrap_err().to_string();
        assert!(error.contains("too narrow"), "{error}");
        assert_eq!(writer.room(), Room::Ready);
    }
}
