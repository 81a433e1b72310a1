//! Rows as messages, and the writer that sends them as they come: each at least once.
//!
//! The client numbers what it sends, so that a message that it sends again, since nobody has told
//! it that the first arrived, is there once. What comes twice after a failure is what a job reads
//! again: the rows since its last checkpoint.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use connectors::messages::MessageEncoder;
use connectors::refuse;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};

use crate::client::Listener;
use crate::columns::{MessageColumn, metadata};
use crate::errors::{code_of, failed, final_error, is_unknown_topic, unexpected};
use crate::headers::{self, OutHeader};
use crate::keys::{KeyFields, value_table};
use crate::settings::Topic;

/// A message of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutMessage {
    pub(crate) key: Option<Vec<u8>>,
    /// None for a tombstone.
    pub(crate) value: Option<Vec<u8>>,
    /// Milliseconds since 1970; the client's time where there is none.
    pub(crate) timestamp: Option<i64>,
    pub(crate) headers: Vec<OutHeader>,
}

/// Parts of the messages of a table that those of other tables do not have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageParts {
    pub(crate) headers: bool,
    /// Messages without a value.
    pub(crate) null_values: bool,
}

/// How the rows of a table become messages.
#[derive(Debug, Clone)]
pub(crate) struct KafkaEncoder {
    table: String,
    value: MessageEncoder,
    /// The columns of the value.
    value_columns: Vec<usize>,
    key: Option<Key>,
    /// The column with the time of a message.
    timestamp: Option<usize>,
    /// The column with its headers.
    headers: Option<usize>,
}

#[derive(Debug, Clone)]
enum Key {
    /// The text or the bytes of a column.
    Raw(usize),
    /// These columns, as they are called in the key.
    Encoded(MessageEncoder, Vec<usize>, SchemaRef),
}

impl KafkaEncoder {
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let (mut timestamp, mut metadata_key, mut headers) = (None, None, None);
        for (&column, key) in &table.metadata {
            let field = table.schema.field(column);
            match metadata(field, key)? {
                MessageColumn::Timestamp => timestamp = Some(column),
                MessageColumn::Key(_) => metadata_key = Some(column),
                MessageColumn::Headers(true) => headers = Some(column),
                _ => return Err(not_written(field, key)),
            }
        }
        let keys = KeyFields::of(table)?;
        let is_value =
            |column: &usize| !(table.metadata.contains_key(column) || keys.is_left_out(*column));
        let value_columns: Vec<usize> = (0..table.schema.fields().len()).filter(is_value).collect();
        let values = projected(table, &value_columns)?;
        let value = MessageEncoder::new(&value_table(table), &values)?;
        let key = match (metadata_key, keys.columns.as_slice()) {
            (Some(_), [_, ..]) => {
                let hint = "leave one of them out";
                let message = "there is a column of metadata 'key', too";
                return Err(refuse("key.fields", message, Some(hint.into())));
            }
            (Some(column), []) => Some(Key::Raw(column)),
            (None, []) => None,
            (None, [column]) if keys.is_raw => Some(Key::Raw(*column)),
            (None, _) => {
                let schema = keys.schema(table);
                let encoder = MessageEncoder::new(&keys.table(table), &schema)?;
                Some(Key::Encoded(encoder, keys.columns, Arc::new(schema)))
            }
        };
        let table = table.name.clone();
        Ok(Self { table, value, value_columns, key, timestamp, headers })
    }

    /// The parts that messages may have.
    pub(crate) fn parts(&self) -> MessageParts {
        MessageParts { headers: self.headers.is_some(), null_values: self.value.has_nulls() }
    }

    /// Whether rows become messages without a wait; else `waker` is called when they may.
    ///
    /// # Errors
    /// When a registry does not take the schema of the rows.
    pub(crate) fn is_ready(&self, waker: &Waker) -> Result<bool, ConnectorError> {
        // Keys have no format that a registry knows.
        self.value.is_ready(waker)
    }

    /// The messages of rows.
    ///
    /// # Errors
    /// When a value cannot be written.
    pub(crate) fn encode(&self, batch: &RecordBatch) -> Result<Vec<OutMessage>, ConnectorError> {
        let unfit = |error: arrow::error::ArrowError| {
            failed(&self.table, error.to_string(), "check the columns of the table")
        };
        let mut messages = Vec::with_capacity(batch.num_rows());
        let values = batch.project(&self.value_columns).map_err(unfit)?;
        self.value.encode(&self.table, &values, |value| {
            let value = value.map(<[u8]>::to_vec);
            messages.push(OutMessage { value, ..OutMessage::default() });
        })?;
        match &self.key {
            None => {}
            Some(Key::Raw(column)) => {
                let column = cast(batch.column(*column), &DataType::Binary)
                    .or_else(|_| {
                        let text = cast(batch.column(*column), &DataType::Utf8)?;
                        cast(&text, &DataType::Binary)
                    })
                    .map_err(unfit)?;
                let keys = column.as_binary::<i32>().iter();
                for (message, key) in messages.iter_mut().zip(keys) {
                    message.key = key.map(<[u8]>::to_vec);
                }
            }
            Some(Key::Encoded(encoder, columns, schema)) => {
                let columns = columns.iter().map(|column| Arc::clone(batch.column(*column)));
                let keys = RecordBatch::try_new(Arc::clone(schema), columns.collect());
                let keys = keys.map_err(unfit)?;
                let mut messages = messages.iter_mut();
                encoder.encode(&self.table, &keys, |key| {
                    if let Some(message) = messages.next() {
                        message.key = key.map(<[u8]>::to_vec);
                    }
                })?;
            }
        }
        if let Some(column) = self.timestamp {
            let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
            let times = cast(batch.column(column), &millis).map_err(unfit)?;
            let times = times.as_primitive::<TimestampMillisecondType>().iter();
            for (message, time) in messages.iter_mut().zip(times) {
                // The client takes 0 as no time, and brokers refuse what is before it.
                if time.is_some_and(|time| time <= 0) {
                    let hint = "give NULL for the time of sending";
                    let message = "a message has no time in 1970 or before: metadata 'timestamp'";
                    return Err(failed(&self.table, message, hint));
                }
                message.timestamp = time;
            }
        }
        if let Some(column) = self.headers {
            let column = cast(batch.column(column), headers::field("headers").data_type());
            let column = column.map_err(unfit)?;
            for (row, message) in messages.iter_mut().enumerate() {
                message.headers = headers::of_row(column.as_map(), row);
            }
        }
        Ok(messages)
    }
}

/// The error of a column of metadata that is read alone.
fn not_written(field: &Field, key: &str) -> ConnectorError {
    ConnectorError::Column {
        column: field.name().clone(),
        message: format!("metadata '{key}' is not written as it is declared"),
        hint: Some(
            "a sink writes TIMESTAMP(3) METADATA FROM 'timestamp', STRING or BYTES METADATA FROM \
             'key', and MAP<STRING, BYTES> METADATA FROM 'headers'; others are VIRTUAL"
                .into(),
        ),
    }
}

fn projected(table: &TableDef, columns: &[usize]) -> Result<Schema, ConnectorError> {
    table.schema.project(columns).map_err(|error| ConnectorError::Column {
        column: table.name.clone(),
        message: error.to_string(),
        hint: None,
    })
}

/// The outcomes of messages that were sent.
#[derive(Debug)]
pub(crate) struct Deliveries {
    pub(crate) listener: Listener,
    in_flight: AtomicUsize,
    /// Whether the writer waits for room.
    waits: AtomicBool,
    failed: Mutex<Option<(KafkaError, i32)>>,
    waker: Waker,
}

impl Deliveries {
    pub(crate) fn new(listener: Listener, waker: Waker) -> Self {
        let (in_flight, waits, failed) = (0.into(), false.into(), Mutex::default());
        Self { listener, in_flight, waits, failed, waker }
    }

    pub(crate) fn in_flight(&self) -> usize {
        // Acquire: what the callback wrote before is seen.
        self.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn failure(&self, topic: &Topic) -> Option<ConnectorError> {
        if let Some(error) = self.listener.health.failed() {
            return Some(error);
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let (error, partition) = failed.as_ref()?;
        let place = if *partition < 0 { topic.name.clone() } else { topic.partition(*partition) };
        Some(match code_of(error) {
            Some(Code::MessageTimedOut) => {
                crate::errors::unreachable(&topic.servers, &self.listener.health.last())
            }
            _ => unexpected(&place, error),
        })
    }

    /// The error that another producer would meet again, if `error` or a message has failed by one.
    pub(crate) fn final_error(&self, topic: &Topic, error: &KafkaError) -> Option<ConnectorError> {
        if let Some(error) = self.listener.health.failed() {
            return Some(error);
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let message = failed.as_ref().map(|(error, _)| error);
        [Some(error), message].into_iter().flatten().find_map(|error| {
            // A broker that has just started may not know its topics yet.
            let code = code_of(error).filter(|code| !is_unknown_topic(*code))?;
            final_error(&topic.name, code, &error.to_string())
        })
    }

    /// Sends a message; `false` if there is no room.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub(crate) fn try_send<S>(
        &self,
        topic: &Topic,
        message: &OutMessage,
        partition: Option<i32>,
        send: S,
    ) -> Result<bool, KafkaError>
    where
        S: for<'a> FnOnce(BaseRecord<'a, [u8], [u8]>) -> Result<(), KafkaError>,
    {
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&topic.name);
        if let Some(value) = &message.value {
            record = record.payload(value.as_slice());
        }
        if let Some(key) = &message.key {
            record = record.key(key.as_slice());
        }
        if !message.headers.is_empty() {
            record = record.headers(headers::sent(&message.headers));
        }
        (record.timestamp, record.partition) = (message.timestamp, partition);
        // It counts before it is sent, since its callback may come first.
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let sent = send(record);
        if sent.is_err() {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
        match sent {
            Err(error) if code_of(&error) == Some(Code::QueueFull) => Ok(false),
            sent => sent.map(|()| true),
        }
    }
}

/// Takes the events of a producer.
#[derive(Debug, Clone)]
pub(crate) struct ProducerListener(pub(crate) Arc<Deliveries>);

impl ClientContext for ProducerListener {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, text: &str) {
        self.0.listener.log(level, fac, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if code_of(&error) == Some(Code::AllBrokersDown) && self.0.in_flight() > 0 {
            self.0.listener.health.is_lost(&self.0.listener.place);
        }
        self.0.listener.error(error, reason);
        if self.0.listener.health.failed().is_some() {
            self.0.waker.wake_by_ref();
        }
    }
}

impl ProducerContext for ProducerListener {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        use rdkafka::Message;
        let own = &self.0;
        if let Err((error, message)) = result {
            let mut failed = own.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert((error.clone(), message.partition()));
        } else {
            own.listener.health.is_reached(&own.listener.place);
        }
        let left = own.in_flight.fetch_sub(1, Ordering::AcqRel) - 1;
        if left == 0 || result.is_err() || own.waits.swap(false, Ordering::AcqRel) {
            own.waker.wake_by_ref();
        }
    }
}

/// Which partition each message goes to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chooser {
    /// The client's.
    Client,
    Fixed(i32),
    /// The next one, and how many there are.
    RoundRobin(i32, i32),
}

impl Chooser {
    pub(crate) fn next(&mut self) -> Option<i32> {
        match self {
            Self::Client => None,
            Self::Fixed(partition) => Some(*partition),
            Self::RoundRobin(next, count) => {
                let partition = *next;
                *next = (partition + 1) % *count;
                Some(partition)
            }
        }
    }
}

/// Sends rows as they come.
pub(crate) struct StreamingWriter {
    pub(crate) topic: Topic,
    pub(crate) encoder: KafkaEncoder,
    pub(crate) chooser: Chooser,
    pub(crate) producer: ThreadedProducer<ProducerListener>,
    pub(crate) deliveries: Arc<Deliveries>,
    /// Messages for which the client has no room, each with its partition.
    pub(crate) waiting: VecDeque<(OutMessage, Option<i32>)>,
    pub(crate) failed: Option<ConnectorError>,
}

impl StreamingWriter {
    /// Gives the client the messages for which it has room.
    fn hand_on(&mut self) {
        // Set first: room that comes while the last message is refused wakes the worker.
        self.deliveries.waits.store(!self.waiting.is_empty(), Ordering::Release);
        while self.failed.is_none()
            && let Some((message, partition)) = self.waiting.front()
        {
            let producer = &self.producer;
            let sent = self.deliveries.try_send(&self.topic, message, *partition, |record| {
                producer.send(record).map_err(|(error, _)| error)
            });
            match sent {
                Ok(true) => drop(self.waiting.pop_front()),
                Ok(false) => return,
                Err(error) => {
                    let known = self.deliveries.failure(&self.topic);
                    self.failed =
                        Some(known.unwrap_or_else(|| unexpected(&self.topic.name, &error)));
                }
            }
        }
        if self.failed.is_none() {
            self.failed = self.deliveries.failure(&self.topic);
        }
    }

    fn check(&self) -> Result<(), ConnectorError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn is_sent(&mut self) -> Result<Room, ConnectorError> {
        self.hand_on();
        self.check()?;
        let is_sent = self.waiting.is_empty() && self.deliveries.in_flight() == 0;
        // A message may have failed meanwhile.
        self.failed = self.deliveries.failure(&self.topic);
        self.check()?;
        Ok(if is_sent { Room::Ready } else { Room::Full })
    }
}

impl SinkWriter for StreamingWriter {
    fn room(&mut self) -> Room {
        self.hand_on();
        let is_ready = self.encoder.is_ready(&self.deliveries.waker).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            true
        });
        let has_room = is_ready && self.waiting.is_empty() || self.failed.is_some();
        if has_room { Room::Ready } else { Room::Full }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.check()?;
        for message in self.encoder.encode(batch)? {
            let partition = self.chooser.next();
            self.waiting.push_back((message, partition));
        }
        self.hand_on();
        self.check()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.hand_on();
        self.check()
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.is_sent()
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.is_sent()
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        match self.is_sent()? {
            Room::Ready => Ok(()),
            Room::Full => Err(failed(&self.topic.name, "not all rows are sent", "report this")),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMillisecondArray};

    use super::*;

    /// A table of a number and of metadata columns, each with its key.
    fn table(metadata: &[(&str, DataType)], options: &[(&str, &str)]) -> TableDef {
        let mut fields = vec![Field::new("n", DataType::Int64, true)];
        fields.extend(metadata.iter().map(|(key, of)| Field::new(*key, of.clone(), true)));
        let keys = metadata.iter().enumerate();
        let options = [&[("format", "json")], options].concat();
        let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        TableDef {
            name: "t".into(),
            schema: Arc::new(Schema::new(fields)),
            options: options.into_iter().map(text).collect(),
            metadata: keys.map(|(at, (key, _))| (at + 1, (*key).to_owned())).collect(),
            buckets: vec![],
        }
    }

    fn time() -> DataType {
        DataType::Timestamp(TimeUnit::Millisecond, None)
    }

    #[test]
    fn columns_of_metadata_are_parts_of_the_message_and_not_of_its_value() {
        let of_headers = headers::field("headers").data_type().clone();
        let metadata = [("key", DataType::Utf8), ("timestamp", time()), ("headers", of_headers)];
        let table = table(&metadata, &[]);
        let own: Vec<OutHeader> = vec![("trace".into(), Some(b"x".to_vec()))];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![1, 2])),
            Arc::new(StringArray::from(vec![Some("k"), None])),
            Arc::new(TimestampMillisecondArray::from(vec![Some(1_700_000_000_123), None])),
            headers::array([own.as_slice(), &[]].into_iter()),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), columns).unwrap();
        let messages = KafkaEncoder::new(&table).unwrap().encode(&batch).unwrap();
        let first = OutMessage {
            key: Some(b"k".to_vec()),
            value: Some(br#"{"n":1}"#.to_vec()),
            timestamp: Some(1_700_000_000_123),
            headers: own,
        };
        let second = OutMessage { value: Some(br#"{"n":2}"#.to_vec()), ..OutMessage::default() };
        assert_eq!(messages, [first, second]);
        assert_eq!(KafkaEncoder::new(&table).unwrap().encode(&batch.slice(0, 0)).unwrap(), []);
    }

    #[test]
    fn a_time_that_no_message_can_have_is_an_error() {
        let table = table(&[("timestamp", time())], &[]);
        for millis in [0, -1, i64::MIN] {
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from(vec![1])),
                Arc::new(TimestampMillisecondArray::from(vec![millis])),
            ];
            let batch = RecordBatch::try_new(Arc::clone(&table.schema), columns).unwrap();
            let error = KafkaEncoder::new(&table).unwrap().encode(&batch).unwrap_err();
            assert!(error.to_string().contains("'timestamp'"), "{error}");
        }
    }

    #[test]
    fn columns_that_cannot_be_written_say_what_can() {
        let refused = |metadata: &[(&str, DataType)], options: &[(&str, &str)]| {
            let ConnectorError::Column { hint, .. } =
                KafkaEncoder::new(&table(metadata, options)).unwrap_err()
            else {
                panic!("another error");
            };
            hint.unwrap()
        };
        assert!(refused(&[("timestamp", DataType::Utf8)], &[]).contains("TIMESTAMP(3)"));
        assert!(refused(&[("key", DataType::Int64)], &[]).contains("BYTES"));
        assert!(refused(&[("headers", DataType::Utf8)], &[]).contains("MAP<STRING, BYTES>"));
        let both = table(&[("key", DataType::Utf8)], &[("key.fields", "n")]);
        let error = KafkaEncoder::new(&both).unwrap_err().to_string();
        assert!(error.contains("metadata 'key'"), "{error}");
    }

    #[test]
    fn a_prefix_is_no_part_of_the_names_in_a_key() {
        let prefix = ("key.fields-prefix", "k_");
        let except = ("value.fields-include", "EXCEPT_KEY");
        let named = |options: &[(&str, &str)]| {
            let mut table = table(&[], options);
            let column = |name| Field::new(name, DataType::Int64, true);
            table.schema = Arc::new(Schema::new(["k_n", "n", "k_m"].map(column).to_vec()));
            table
        };
        let of_both = [("key.fields", "k_n;k_m"), ("key.format", "json"), prefix, except];
        let own = named(&of_both);
        let columns: Vec<ArrayRef> =
            [1, 2, 3].map(|n| Arc::new(Int64Array::from(vec![n])) as ArrayRef).to_vec();
        let batch = RecordBatch::try_new(Arc::clone(&own.schema), columns).unwrap();
        let messages = KafkaEncoder::new(&own).unwrap().encode(&batch).unwrap();
        let key = Some(br#"{"n":1,"m":3}"#.to_vec());
        assert_eq!(
            messages,
            [OutMessage { key, value: Some(br#"{"n":2}"#.to_vec()), ..OutMessage::default() }]
        );
        let refused = |options: &[(&str, &str)], words: &str| {
            let error = KafkaEncoder::new(&named(options)).unwrap_err().to_string();
            assert!(error.contains("key.fields-prefix") && error.contains(words), "{error}");
        };
        refused(&of_both[..3], "in the value, too");
        refused(&[("key.fields", "n"), prefix, except], "'n' does not begin with 'k_'");
    }
}
