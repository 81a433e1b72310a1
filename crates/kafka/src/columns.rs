//! The columns of a table: those of the values, and those that come from where a message stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, Int64Builder, StringBuilder, TimestampMillisecondBuilder, UInt32Array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use connectors::messages::{MessageFormat, MessageRows};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;

use crate::headers::{self, HeaderMap};
use crate::keys::{KeyFields, is_raw_type, value_table};
use crate::queue::TopicMessage;

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageColumn {
    /// A column of the values, by its position among those that are read.
    Value(usize),
    /// A column of the key, by its position among those that are read.
    KeyField(usize),
    Topic,
    Partition,
    Offset,
    Timestamp,
    /// The key as text or, where the flag is set, as bytes.
    Key(bool),
    /// The headers as text or, where the flag is set, as a map.
    Headers(bool),
}

/// The columns that are read.
#[derive(Debug, Clone)]
pub(crate) struct TopicColumns {
    outputs: Vec<MessageColumn>,
    pub(crate) schema: SchemaRef,
    topic: String,
}

/// The table without its metadata, and which of its columns are read.
pub(crate) struct ValueTable {
    pub(crate) table: TableDef,
    pub(crate) projection: Vec<usize>,
    /// How the columns of the key are read, where some are.
    pub(crate) key: Option<MessageFormat>,
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
        let fields = KeyFields::of(table)?;
        // The columns of the values, whether they are read or not.
        let is_value = |at: &usize| !(table.metadata.contains_key(at) || fields.is_left_out(*at));
        let (mut outputs, mut values, mut keys) = (vec![], vec![], vec![]);
        for &column in projection {
            let field = table.schema.field(column);
            outputs.push(match table.metadata.get(&column) {
                Some(key) => metadata(field, key)?,
                None if !fields.is_left_out(column) => {
                    values.push((0..column).filter(is_value).count());
                    MessageColumn::Value(values.len() - 1)
                }
                None if fields.is_raw && is_raw_type(field.data_type()) => {
                    MessageColumn::Key(matches!(field.data_type(), DataType::Binary))
                }
                None if fields.is_raw => {
                    return Err(ConnectorError::Column {
                        column: field.name().clone(),
                        message: "a raw key is read as STRING or BYTES".into(),
                        hint: Some("declare it so, or write 'key.format' = 'json'".into()),
                    });
                }
                None => {
                    keys.push(column);
                    MessageColumn::KeyField(keys.len() - 1)
                }
            });
        }
        let key = if keys.is_empty() { None } else { Some(fields.reading(table, &keys)?) };
        let left: Vec<usize> = (0..table.schema.fields().len()).filter(is_value).collect();
        let mut own = value_table(table);
        own.schema = Arc::new(table.schema.project(&left).map_err(unfit)?);
        let columns = Self { outputs, schema, topic: topic.to_owned() };
        Ok((columns, ValueTable { table: own, projection: values, key }))
    }

    /// The same of another topic.
    pub(crate) fn of_topic(&self, topic: &str) -> Self {
        Self { topic: topic.to_owned(), ..self.clone() }
    }

    /// Collects what the columns need of messages.
    pub(crate) fn collector(&self) -> Collector {
        let has = |output| self.outputs.contains(&output);
        let of_schema = self.outputs.iter().zip(self.schema.fields());
        let must_have = of_schema.filter(|(_, field)| !field.is_nullable());
        Collector {
            must_have: must_have.map(|(output, _)| *output).collect(),
            offset: has(MessageColumn::Offset).then(Int64Builder::new),
            timestamp: has(MessageColumn::Timestamp).then(TimestampMillisecondBuilder::new),
            text_key: has(MessageColumn::Key(false)).then(StringBuilder::new),
            bytes_key: has(MessageColumn::Key(true)).then(BinaryBuilder::new),
            headers: has(MessageColumn::Headers(false)).then(StringBuilder::new),
            header_map: has(MessageColumn::Headers(true)).then(HeaderMap::default),
            keys: (self.outputs.iter().any(|of| matches!(of, MessageColumn::KeyField(_))))
                .then(Vec::new),
        }
    }

    /// The rows with all columns; `keys` are those of the key.
    ///
    /// # Errors
    /// When a column cannot be made.
    pub(crate) fn rows(
        &self,
        partition: i32,
        (MessageRows { rows, messages }, keys): (MessageRows, Option<RecordBatch>),
        collected: &mut Collector,
    ) -> Result<RecordBatch, ArrowError> {
        let count = messages.len();
        let all = messages.iter().copied().eq(0..count as u32);
        let messages = UInt32Array::from(messages);
        let fields = self.schema.fields().iter();
        let columns = self.outputs.iter().zip(fields).map(|(output, field)| {
            let column: ArrayRef = match output {
                MessageColumn::Value(column) => return Ok(Arc::clone(rows.column(*column))),
                MessageColumn::KeyField(column) => match &keys {
                    Some(keys) => return Ok(Arc::clone(keys.column(*column))),
                    None => return Err(ArrowError::SchemaError("the keys are not read".into())),
                },
                MessageColumn::Topic => {
                    let topic = std::iter::repeat_n(&self.topic, count);
                    Arc::new(arrow::array::StringArray::from_iter_values(topic))
                }
                MessageColumn::Partition => {
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
    /// The columns that are `NOT NULL`.
    must_have: Vec<MessageColumn>,
    offset: Option<Int64Builder>,
    timestamp: Option<TimestampMillisecondBuilder>,
    text_key: Option<StringBuilder>,
    bytes_key: Option<BinaryBuilder>,
    headers: Option<StringBuilder>,
    header_map: Option<HeaderMap>,
    /// The keys, for columns of theirs.
    pub(crate) keys: Option<Vec<Option<Vec<u8>>>>,
}

impl Collector {
    /// Takes the next message. Gives why it is no row, if it is none.
    pub(crate) fn push(&mut self, message: &impl TopicMessage) -> Option<&'static str> {
        let mut fault = self.must_have.iter().find_map(|output| match output {
            MessageColumn::Key(_) | MessageColumn::KeyField(_) if message.key().is_none() => {
                Some("it has no key, and a column of it is NOT NULL")
            }
            MessageColumn::Headers(_) if message.headers().is_none() => {
                Some("it has no headers, and their column is NOT NULL")
            }
            MessageColumn::Timestamp if message.millis().is_none() => {
                Some("it has no timestamp, and its column is NOT NULL")
            }
            _ => None,
        });
        if let Some(offset) = &mut self.offset {
            offset.append_value(message.offset());
        }
        if let Some(timestamp) = &mut self.timestamp {
            timestamp.append_option(message.millis());
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
        if let Some(keys) = &mut self.keys {
            keys.push(message.key().map(<[u8]>::to_vec));
        }
        if let Some(headers) = &mut self.headers {
            let text = message.headers().map(|headers| {
                let pairs = headers.into_iter().map(|(name, value)| {
                    let value = value.map(|value| String::from_utf8_lossy(value).into());
                    (name.into_owned(), value.unwrap_or(serde_json::Value::Null))
                });
                serde_json::Value::Object(pairs.collect()).to_string()
            });
            headers.append_option(text);
        }
        if let Some(map) = &mut self.header_map {
            // Of several with one name the last counts.
            let headers = message.headers();
            map.append(headers.map(|headers| headers.into_iter().collect::<BTreeMap<_, _>>()));
        }
        fault
    }

    /// The column of an output, which is begun anew.
    fn column(&mut self, output: MessageColumn) -> ArrayRef {
        fn taken<B: arrow::array::ArrayBuilder>(builder: &mut Option<B>) -> Option<ArrayRef> {
            Some(builder.as_mut()?.finish_cloned())
        }
        let column = match output {
            MessageColumn::Offset => taken(&mut self.offset),
            MessageColumn::Timestamp => taken(&mut self.timestamp),
            MessageColumn::Key(false) => taken(&mut self.text_key),
            MessageColumn::Key(true) => taken(&mut self.bytes_key),
            MessageColumn::Headers(false) => taken(&mut self.headers),
            MessageColumn::Headers(true) => self.header_map.as_mut().map(HeaderMap::finish),
            MessageColumn::Value(_)
            | MessageColumn::KeyField(_)
            | MessageColumn::Topic
            | MessageColumn::Partition => None,
        };
        column.unwrap_or_else(|| Arc::new(arrow::array::NullArray::new(0)))
    }
}

/// The metadata of a key, as the type of `field`.
pub(crate) fn metadata(field: &Field, key: &str) -> Result<MessageColumn, ConnectorError> {
    let of = field.data_type();
    let is_text = matches!(of, DataType::Utf8);
    let (output, fits, name) = match key {
        "topic" => (MessageColumn::Topic, is_text, "STRING"),
        "partition" => (
            MessageColumn::Partition,
            matches!(of, DataType::Int32 | DataType::Int64),
            "INT or BIGINT",
        ),
        "offset" => (MessageColumn::Offset, matches!(of, DataType::Int64), "BIGINT"),
        "timestamp" => {
            (MessageColumn::Timestamp, matches!(of, DataType::Timestamp(..)), "TIMESTAMP(3)")
        }
        "key" => {
            let is_bytes = matches!(of, DataType::Binary);
            (MessageColumn::Key(is_bytes), is_text || is_bytes, "STRING or BYTES")
        }
        "headers" => {
            let is_map = headers::is_map(of);
            (
                MessageColumn::Headers(is_map),
                is_text || is_map,
                "MAP<STRING, BYTES>, or STRING, a JSON object",
            )
        }
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
