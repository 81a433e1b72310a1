//! The columns of a table: those of the values, and those that come from where a message stands.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, Int64Builder, StringBuilder, TimestampMillisecondBuilder, UInt32Array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use connectors::messages::MessageRows;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use rdkafka::Message;
use rdkafka::message::Headers;

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// A column of the values, by its position among those that are read.
    Value(usize),
    Topic,
    Partition,
    Offset,
    Timestamp,
    /// The key as text or, where the flag is set, as bytes.
    Key(bool),
    Headers,
}

/// The columns that are read.
#[derive(Debug, Clone)]
pub(crate) struct TopicColumns {
    outputs: Vec<Output>,
    pub(crate) schema: SchemaRef,
    topic: String,
}

/// The table without its metadata, and which of its columns are read.
pub(crate) struct ValueTable {
    pub(crate) table: TableDef,
    pub(crate) projection: Vec<usize>,
}

/// The table of the values of messages, without the columns that come from elsewhere.
pub(crate) fn value_table(table: &TableDef) -> TableDef {
    let fields = table.schema.fields().iter().enumerate();
    let values = fields.filter(|(at, _)| !table.metadata.contains_key(at));
    let values: Vec<_> = values.map(|(_, field)| Arc::clone(field)).collect();
    let mut own = table.clone();
    (own.schema, own.metadata) = (Arc::new(Schema::new(values)), Default::default());
    own
}

impl TopicColumns {
    pub(crate) fn new(
        table: &TableDef,
        projection: &[usize],
        topic: &str,
    ) -> Result<(Self, ValueTable), ConnectorError> {
        let unfit = |error: ArrowError| ConnectorError::Column {
            column: table.name.clone(),
            message: error.to_string(),
            hint: None,
        };
        let schema = Arc::new(table.schema.project(projection).map_err(unfit)?);
        let (mut outputs, mut values) = (vec![], vec![]);
        for &column in projection {
            outputs.push(match table.metadata.get(&column) {
                Some(key) => metadata(table.schema.field(column), key)?,
                None => {
                    let before = (0..column).filter(|at| !table.metadata.contains_key(at));
                    values.push(before.count());
                    Output::Value(values.len() - 1)
                }
            });
        }
        let own = Self { outputs, schema, topic: topic.to_owned() };
        Ok((own, ValueTable { table: value_table(table), projection: values }))
    }

    /// Collects what the columns need of messages.
    pub(crate) fn collector(&self) -> Collector {
        let has = |output| self.outputs.contains(&output);
        Collector {
            offset: has(Output::Offset).then(Int64Builder::new),
            timestamp: has(Output::Timestamp).then(TimestampMillisecondBuilder::new),
            text_key: has(Output::Key(false)).then(StringBuilder::new),
            bytes_key: has(Output::Key(true)).then(BinaryBuilder::new),
            headers: has(Output::Headers).then(StringBuilder::new),
        }
    }

    /// The rows with all columns.
    ///
    /// # Errors
    /// When a column cannot be made.
    pub(crate) fn rows(
        &self,
        partition: i32,
        MessageRows { rows, messages }: MessageRows,
        collected: &mut Collector,
    ) -> Result<RecordBatch, ArrowError> {
        let count = messages.len();
        let all = messages.iter().copied().eq(0..count as u32);
        let messages = UInt32Array::from(messages);
        let fields = self.schema.fields().iter();
        let columns = self.outputs.iter().zip(fields).map(|(output, field)| {
            let column: ArrayRef = match output {
                Output::Value(column) => return Ok(Arc::clone(rows.column(*column))),
                Output::Topic => {
                    let topic = std::iter::repeat_n(&self.topic, count);
                    Arc::new(arrow::array::StringArray::from_iter_values(topic))
                }
                Output::Partition => {
                    Arc::new(arrow::array::Int64Array::from_value(i64::from(partition), count))
                }
                from => {
                    let column = collected.column(*from);
                    if all && column.len() == count {
                        column
                    } else {
                        take(&column, &messages, None)?
                    }
                }
            };
            cast(&column, field.data_type())
        });
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }
}

/// What columns need of the messages of a batch.
pub(crate) struct Collector {
    offset: Option<Int64Builder>,
    timestamp: Option<TimestampMillisecondBuilder>,
    text_key: Option<StringBuilder>,
    bytes_key: Option<BinaryBuilder>,
    headers: Option<StringBuilder>,
}

impl Collector {
    /// Takes the next message. Gives why it is no row, if it is none.
    pub(crate) fn push(&mut self, message: &impl Message) -> Option<&'static str> {
        let mut fault = None;
        if let Some(offset) = &mut self.offset {
            offset.append_value(message.offset());
        }
        if let Some(timestamp) = &mut self.timestamp {
            timestamp.append_option(message.timestamp().to_millis());
        }
        if let Some(key) = &mut self.text_key {
            let text = message.key().map(std::str::from_utf8).transpose();
            if text.is_err() {
                fault = Some("its key is no text of UTF-8: declare it as BYTES");
            }
            key.append_option(text.unwrap_or_default());
        }
        if let Some(key) = &mut self.bytes_key {
            key.append_option(message.key());
        }
        if let Some(headers) = &mut self.headers {
            let text = message.headers().map(|headers| {
                let pairs = headers.iter().map(|header| {
                    let value = header.value.map(|value| String::from_utf8_lossy(value).into());
                    (header.key.to_owned(), value.unwrap_or(serde_json::Value::Null))
                });
                serde_json::Value::Object(pairs.collect()).to_string()
            });
            headers.append_option(text);
        }
        fault
    }

    /// The column of an output, which is begun anew.
    fn column(&mut self, output: Output) -> ArrayRef {
        fn taken<B: arrow::array::ArrayBuilder>(builder: &mut Option<B>) -> Option<ArrayRef> {
            Some(builder.as_mut()?.finish_cloned())
        }
        let column = match output {
            Output::Offset => taken(&mut self.offset),
            Output::Timestamp => taken(&mut self.timestamp),
            Output::Key(false) => taken(&mut self.text_key),
            Output::Key(true) => taken(&mut self.bytes_key),
            Output::Headers => taken(&mut self.headers),
            Output::Value(_) | Output::Topic | Output::Partition => None,
        };
        column.unwrap_or_else(|| Arc::new(arrow::array::NullArray::new(0)))
    }
}

/// The metadata of a key, as the type of `field`.
fn metadata(field: &Field, key: &str) -> Result<Output, ConnectorError> {
    let of = field.data_type();
    let is_text = matches!(of, DataType::Utf8);
    let (output, fits, name) = match key {
        "topic" => (Output::Topic, is_text, "STRING"),
        "partition" => {
            (Output::Partition, matches!(of, DataType::Int32 | DataType::Int64), "INT or BIGINT")
        }
        "offset" => (Output::Offset, matches!(of, DataType::Int64), "BIGINT"),
        "timestamp" => (Output::Timestamp, matches!(of, DataType::Timestamp(..)), "TIMESTAMP(3)"),
        "key" => {
            let is_bytes = matches!(of, DataType::Binary);
            (Output::Key(is_bytes), is_text || is_bytes, "STRING or BYTES")
        }
        "headers" => (Output::Headers, is_text, "STRING, a JSON object"),
        _ => {
            return Err(ConnectorError::Column {
                column: field.name().clone(),
                message: format!("there is no metadata '{key}'"),
                hint: Some("there are topic, partition, offset, timestamp, key and headers".into()),
            });
        }
    };
    if fits {
        return Ok(output);
    }
    Err(ConnectorError::Column {
        column: field.name().clone(),
        message: format!("metadata '{key}' is {name}"),
        hint: Some(format!("declare it as {name}")),
    })
}
