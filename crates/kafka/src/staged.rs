//! Messages that are part of a checkpoint until they are published.

use std::sync::Arc;
use std::task::Waker;

use arrow::array::{Array, AsArray, BinaryBuilder, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use connectors::{StagedFormat, StagedStream};
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter, StagedOutput};

use crate::errors::failed;
use crate::headers;
use crate::writer::{Chooser, KafkaEncoder, MessageParts, OutMessage};

/// The format of the messages that are staged for a table.
pub(crate) fn staged_format(table: &str, parts: MessageParts) -> StagedFormat {
    let mut fields = vec![
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, parts.null_values),
        Field::new("timestamp", DataType::Int64, true),
        Field::new("partition", DataType::Int64, true),
    ];
    if parts.headers {
        fields.push(headers::field("headers"));
    }
    let (schema, place) = (Arc::new(Schema::new(fields)), table.to_owned());
    StagedFormat { magic: *b"MSK1", schema, what: "messages", place }
}

/// Keeps the messages of a worker until they are part of a checkpoint.
pub(crate) struct StagingWriter {
    pub(crate) encoder: KafkaEncoder,
    pub(crate) chooser: Chooser,
    pub(crate) rows: StagedStream,
    pub(crate) waker: Waker,
}

impl StagingWriter {
    fn batch(&mut self, messages: &[OutMessage]) -> Result<RecordBatch, ConnectorError> {
        let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
        messages.iter().for_each(|message| keys.append_option(message.key.as_deref()));
        messages.iter().for_each(|message| values.append_option(message.value.as_deref()));
        let times: Int64Array = messages.iter().map(|message| message.timestamp).collect();
        let partitions = messages.iter().map(|_| self.chooser.next().map(i64::from));
        let partitions: Int64Array = partitions.collect();
        let (keys, values) = (Arc::new(keys.finish()), Arc::new(values.finish()));
        let mut columns: Vec<Arc<dyn Array>> =
            vec![keys, values, Arc::new(times), Arc::new(partitions)];
        let format = self.rows.format();
        if format.schema.fields().len() > columns.len() {
            columns.push(headers::array(messages.iter().map(|message| &*message.headers)));
        }
        RecordBatch::try_new(Arc::clone(&format.schema), columns)
            .map_err(|error| failed(&format.place, error.to_string(), "report this"))
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
        let batch = self.batch(&messages)?;
        self.rows.push(&batch)
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        self.rows.stage().map(Into::into)
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(self.rows.format().committed())
    }
}

/// Messages, each with its partition.
pub(crate) type Addressed = Vec<(OutMessage, Option<i32>)>;

/// The messages of a batch that a [`StagingWriter`] has staged.
pub(crate) fn messages_of(batch: &RecordBatch) -> Addressed {
    let [keys, values] = [0, 1].map(|column: usize| batch.column(column).as_binary::<i32>());
    let [times, partitions] =
        [2, 3].map(|column: usize| batch.column(column).as_primitive::<Int64Type>());
    let headers = batch.columns().get(4).map(|column| column.as_map());
    let message = |row: usize| {
        let optional = |of: &Int64Array| of.is_valid(row).then(|| of.value(row));
        let key = keys.is_valid(row).then(|| keys.value(row).to_vec());
        let value = values.is_valid(row).then(|| values.value(row).to_vec());
        let timestamp = optional(times);
        let partition = optional(partitions).and_then(|of| i32::try_from(of).ok());
        let headers = headers.map(|of| headers::of_row(of, row)).unwrap_or_default();
        (OutMessage { key, value, timestamp, headers }, partition)
    };
    (0..batch.num_rows()).map(message).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use arrow::array::StringArray;
    use dataflow::connector::TableDef;

    use super::*;
    use crate::late_registry::{Answer, LONG, registry, table, unparks};

    /// A writer whose registry has answered, and for which nobody has waited before.
    fn answered(answer: Answer) -> (StagingWriter, RecordBatch) {
        let (url, answers) = registry();
        let table = table(&url);
        let column: Arc<dyn Array> = Arc::new(Int64Array::from(vec![5, 6]));
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), vec![column]).unwrap();
        let mut writer = StagingWriter {
            encoder: KafkaEncoder::new(&table).unwrap(),
            chooser: Chooser::Client,
            rows: StagedStream::new(staged_format(&table.name, MessageParts::default()), 7),
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
        let (job, batches) = staged_format("t", MessageParts::default()).read(&staged).unwrap();
        assert_eq!(job, 7);
        let messages = batches.flat_map(|batch| messages_of(&batch.unwrap()));
        let messages = messages.filter_map(|(message, _)| message.value);
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

    #[test]
    fn a_message_without_a_value_is_staged_as_one() {
        let value = Field::new("v", DataType::Utf8, true);
        let table = TableDef {
            name: "t".into(),
            schema: Arc::new(Schema::new(vec![value])),
            options: [("format".to_owned(), "raw".to_owned())].into(),
            metadata: Default::default(),
            buckets: vec![],
        };
        let texts = [Some("x"), None, Some(""), Some("two\r\nlines\n"), None];
        let column: Arc<dyn Array> = Arc::new(StringArray::from(texts.to_vec()));
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), vec![column]).unwrap();
        let encoder = KafkaEncoder::new(&table).unwrap();
        let format = staged_format("t", encoder.parts());
        let mut writer = StagingWriter {
            encoder,
            chooser: Chooser::Client,
            rows: StagedStream::new(format.clone(), 7),
            waker: Waker::noop().clone(),
        };
        writer.write(&batch).unwrap();
        let StagedOutput { staged, .. } = writer.stage(0, false).unwrap();
        let messages = format.read(&staged).unwrap().1.flat_map(|read| messages_of(&read.unwrap()));
        let values: Vec<_> = messages.map(|(message, _)| message.value).collect();
        assert_eq!(values, texts.map(|text| text.map(|text| text.as_bytes().to_vec())));
    }
}
