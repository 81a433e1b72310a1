//! Topics that are read by the connector.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::util::display::array_value_to_string;
use dataflow::backlog::SourceBacklog;
use dataflow::bad::BadRows;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Source, SplitReader};
use fabric::clock::MonotonicClock;
use kafka::KafkaConnector;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::broker::{TIMEOUT, address, config, send, topic, wait_until};

/// A table of this topic with a number and a text.
pub fn table(topic: &str, options: &[(&str, &str)]) -> TableDef {
    let fields =
        vec![Field::new("n", DataType::Int64, true), Field::new("text", DataType::Utf8, true)];
    let own = [("topic", topic), ("properties.bootstrap.servers", &address()), ("format", "json")];
    let options = own.iter().chain(options);
    TableDef {
        name: "t".into(),
        schema: Arc::new(Schema::new(fields)),
        options: options.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        metadata: Default::default(),
        buckets: vec![],
    }
}

pub const BOUNDED: (&str, &str) = ("scan.bounded.mode", "latest-offset");

pub fn source(table: &TableDef) -> Arc<dyn Source> {
    let all: Vec<usize> = (0..table.schema.fields().len()).collect();
    KafkaConnector.source(table, &all).unwrap()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub struct OpenSplit {
    pub reader: Box<dyn SplitReader>,
    bad: Arc<BadRows>,
    pub backlog: Arc<SourceBacklog>,
}

/// What a reader gets, which wakes this thread.
pub fn context() -> (ReaderContext, Arc<BadRows>) {
    let bad = Arc::new(BadRows::collecting());
    let mut context = ReaderContext::new(Arc::new(MonotonicClock::default()), Arc::clone(&bad));
    context.waker = Waker::from(Arc::new(Unpark(thread::current())));
    (context, bad)
}

pub fn open(source: &dyn Source, split: usize, from: Option<&Position>) -> OpenSplit {
    let (context, bad) = context();
    let splits = source.splits(1, None).unwrap();
    let backlog = Arc::clone(&context.backlog);
    OpenSplit { reader: source.open(&splits[split], from, &context).unwrap(), bad, backlog }
}

impl OpenSplit {
    pub fn of(
        reader: Box<dyn SplitReader>,
        bad: Arc<BadRows>,
        backlog: Arc<SourceBacklog>,
    ) -> Self {
        Self { reader, bad, backlog }
    }

    /// The next rows, for which it waits; `None` at the end.
    pub fn next(&mut self, rows_max: usize) -> Result<Option<Vec<String>>, ConnectorError> {
        let since = Instant::now();
        loop {
            match self.reader.next(rows_max)? {
                Next::Batch(batch) => {
                    let text = |column: &ArrayRef, row: usize| {
                        if column.is_null(row) {
                            return "NULL".to_owned();
                        }
                        array_value_to_string(column, row).unwrap()
                    };
                    let row = |row| {
                        let values = batch.columns().iter().map(|column| text(column, row));
                        values.collect::<Vec<_>>().join("|")
                    };
                    return Ok(Some((0..batch.num_rows()).map(row).collect()));
                }
                Next::End => return Ok(None),
                Next::Pending => thread::park_timeout(TIMEOUT),
                Next::Wait { .. } => thread::sleep(Duration::from_millis(1)),
            }
            assert!(since.elapsed() < TIMEOUT, "no rows come");
        }
    }

    pub fn rest(&mut self) -> Vec<String> {
        let mut all = vec![];
        while let Some(rows) = self.next(1000).unwrap() {
            all.extend(rows);
        }
        all
    }

    pub fn bad(&self) -> Vec<String> {
        self.bad.take().into_iter().map(|bad| format!("{} {}", bad.place, bad.reason)).collect()
    }
}

pub fn numbered(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|n| format!(r#"{{"n": {n}, "text": "t{n}"}}"#)).collect()
}

pub fn texts(values: &[String]) -> impl Iterator<Item = &str> {
    values.iter().map(String::as_str)
}

pub fn rows(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|n| format!("{n}|t{n}")).collect()
}

#[test]
fn a_partition_is_read_on_from_every_position() {
    let topic = topic("positions", 1, &[]);
    send(&topic, 0, texts(&numbered(0, 40)));
    let table = table(&topic, &[BOUNDED]);
    let first = source(&table);
    let mut positions = vec![];
    let mut reading = open(&*first, 0, None);
    let mut given = vec![];
    positions.push((0, reading.reader.position()));
    while let Some(rows) = reading.next(7).unwrap() {
        assert!(rows.len() <= 7);
        given.extend(rows);
        positions.push((given.len(), reading.reader.position()));
    }
    assert_eq!(given, rows(0, 40));
    // Messages that come later are behind the end of a run that goes on, too.
    send(&topic, 0, texts(&numbered(40, 50)));
    for (given, position) in positions {
        let position = Position::from_bytes(&position.to_bytes()).unwrap();
        let again = source(&table);
        assert_eq!(open(&*again, 0, Some(&position)).rest(), rows(given, 40), "{given}");
    }
    assert_eq!(open(&*source(&table), 0, None).rest(), rows(0, 50));
}

#[test]
fn each_partition_is_a_split_and_an_empty_topic_ends() {
    let name = topic("partitions", 3, &[]);
    let table = table(&name, &[BOUNDED]);
    let empty = source(&table);
    let splits = empty.splits(4, None).unwrap();
    let names: Vec<&str> = splits.iter().map(|split| split.name.as_str()).collect();
    assert_eq!(names, [0, 1, 2].map(|of| format!("{name}[{of}]")));
    for split in 0..3 {
        assert_eq!(open(&*empty, split, None).rest(), Vec::<String>::new());
    }
    for partition in 0..3 {
        let own = numbered(100 * partition, 100 * partition + 5);
        send(&name, partition as i32, texts(&own));
    }
    let full = source(&table);
    for split in 0..3 {
        assert_eq!(open(&*full, split, None).rest(), rows(100 * split, 100 * split + 5));
    }
}

#[test]
fn rows_that_come_later_wake_the_reader() {
    let topic = topic("later", 1, &[]);
    let source = source(&table(&topic, &[("scan.startup.mode", "latest-offset")]));
    let mut reading = open(&*source, 0, None);
    assert!(matches!(reading.reader.next(10), Ok(Next::Pending)));
    for n in 0..5 {
        let later = numbered(n, n + 1);
        let to = topic.clone();
        let sender = thread::spawn(move || send(&to, 0, texts(&later)));
        assert_eq!(reading.next(10).unwrap(), Some(rows(n, n + 1)));
        sender.join().unwrap();
    }
}

#[test]
fn a_job_begins_where_the_table_says() {
    // Messages of 1970 would be deleted.
    let topic = topic("startup", 2, &[("retention.ms", "-1")]);
    let producer: BaseProducer = config().create().unwrap();
    for n in 0..10 {
        let value = format!(r#"{{"n": {n}, "text": "t{n}"}}"#);
        let record = BaseRecord::<str, str>::to(&topic).partition(0).payload(&value);
        producer.send(record.timestamp(1_000_000 + n)).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    let read = |options: &[(&str, &str)]| {
        let options = [&[BOUNDED], options].concat();
        let source = source(&table(&topic, &options));
        let all = [open(&*source, 0, None).rest(), open(&*source, 1, None).rest()];
        assert!(all[1].is_empty());
        all[0].clone()
    };
    let mode = |mode| ("scan.startup.mode", mode);
    assert_eq!(read(&[mode("earliest-offset")]), rows(0, 10));
    assert_eq!(read(&[mode("latest-offset")]), rows(0, 0));
    let time = ("scan.startup.timestamp-millis", "1000007");
    assert_eq!(read(&[mode("timestamp"), time]), rows(7, 10));
    let offsets = ("scan.startup.specific-offsets", "partition:0,offset:4");
    assert_eq!(read(&[mode("specific-offsets"), offsets]), rows(4, 10));
    let group = format!("{topic}-group");
    let group = ("properties.group.id", group.as_str());
    assert_eq!(read(&[group]), rows(0, 10), "nobody has committed for the group");
    let latest = ("properties.auto.offset.reset", "latest");
    assert_eq!(read(&[group, latest]), rows(0, 0));
    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
    let consumer: BaseConsumer = config().set("group.id", group.1).create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(&topic, 0, rdkafka::Offset::Offset(6)).unwrap();
    consumer.commit(&list, CommitMode::Sync).unwrap();
    assert_eq!(read(&[group]), rows(6, 10));
}

#[test]
fn bad_messages_are_bad_rows_at_their_offsets() {
    let topic = topic("broken", 1, &[]);
    let mut values = numbered(0, 3_000);
    for at in (0..3_000).step_by(7) {
        values[at] = format!("{{broken {at}");
    }
    send(&topic, 0, texts(&values));
    let table = table(&topic, &[BOUNDED]);
    let source = source(&table);
    let mut reading = open(&*source, 0, None);
    let good: Vec<String> = rows(0, 3_000)
        .into_iter()
        .enumerate()
        .filter(|(at, _)| at % 7 != 0)
        .map(|of| of.1)
        .collect();
    assert_eq!(reading.rest(), good);
    let bad = reading.bad();
    let places: Vec<&str> = bad.iter().filter_map(|bad| bad.split(' ').next()).collect();
    let expected = (0..3_000).step_by(7).map(|at| format!("{topic}[0]:{at}"));
    assert_eq!(places, expected.collect::<Vec<_>>());
}

#[test]
fn metadata_is_that_of_each_message() {
    // Messages of years ago would be deleted.
    let topic = topic("metadata", 2, &[("retention.ms", "-1")]);
    let producer: BaseProducer = config().create().unwrap();
    let headers = OwnedHeaders::new()
        .insert(Header { key: "trace", value: Some("a\"b") })
        .insert(Header { key: "none", value: None::<&str> });
    let record = BaseRecord::<str, str>::to(&topic).partition(1).payload(r#"{"n": 1}"#).key("k1");
    producer.send(record.timestamp(1_700_000_000_123).headers(headers)).unwrap();
    producer.send(BaseRecord::<str, str>::to(&topic).partition(1).payload("bad")).unwrap();
    let record = BaseRecord::<str, str>::to(&topic).partition(1).payload(r#"{"n": 2}"#);
    producer.send(record.timestamp(1_700_000_000_124)).unwrap();
    producer.flush(TIMEOUT).unwrap();
    let mut table = table(&topic, &[BOUNDED]);
    let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
    let metadata = [
        ("topic", DataType::Utf8),
        ("partition", DataType::Int64),
        ("offset", DataType::Int64),
        ("timestamp", millis),
        ("key", DataType::Utf8),
        ("headers", DataType::Utf8),
    ];
    let mut fields = table.schema.fields().to_vec();
    for (key, of) in metadata {
        table.metadata.insert(fields.len(), key.to_owned());
        fields.push(Arc::new(Field::new(format!("m_{key}"), of, true)));
    }
    table.schema = Arc::new(Schema::new(fields));
    // In another order than declared, and not all of them.
    let projection = [7, 6, 0, 4, 3, 2, 5];
    let source = KafkaConnector.source(&table, &projection).unwrap();
    let read = open(&*source, 1, None).rest();
    let expected = [
        format!("{{\"none\":null,\"trace\":\"a\\\"b\"}}|k1|1|0|1|{topic}|2023-11-14T22:13:20.123"),
        format!("NULL|NULL|2|2|1|{topic}|2023-11-14T22:13:20.124"),
    ];
    assert_eq!(read, expected);
    let (key, value) = (DataType::Utf8, DataType::Binary);
    let map = Field::new_map(
        "m_headers",
        "entries",
        Field::new("key", key, false),
        Field::new("value", value, true),
        false,
        true,
    );
    let mut fields = table.schema.fields().to_vec();
    fields[7] = Arc::new(map);
    table.schema = Arc::new(Schema::new(fields));
    let source = KafkaConnector.source(&table, &[7, 0]).unwrap();
    let read = open(&*source, 1, None).rest();
    assert_eq!(read, ["{none: , trace: 612262}|1", "NULL|2"], "the bytes of headers");
}

#[test]
fn columns_of_the_key_are_read_from_it() {
    let topic = topic("keyed", 1, &[]);
    let except = ("value.fields-include", "EXCEPT_KEY");
    let of_keys = |options: &[(&str, &str)], fields: &[(&str, DataType)], read: &[usize]| {
        let mut table = table(&topic, &[&[BOUNDED, except], options].concat());
        // An upper-case name is that of a column that is NOT NULL.
        let fields = fields.iter().map(|(name, of)| {
            Field::new(name.to_lowercase(), of.clone(), *name == name.to_lowercase())
        });
        table.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let source = KafkaConnector.source(&table, read).unwrap();
        let mut reading = open(&*source, 0, None);
        (reading.rest(), reading.bad())
    };
    let producer: BaseProducer = config().create().unwrap();
    let values = [r#"{"n":0}"#, r#"{"n":1}"#, "broken", r#"{"n":3}"#, r#"{"n":4}"#];
    let keys = [Some(r#"{"a":"x","b":7}"#), None, Some("broken"), Some("{"), Some(r#"{"b":8}"#)];
    for (value, key) in values.into_iter().zip(keys) {
        let mut record = BaseRecord::<str, str>::to(&topic).partition(0).payload(value);
        record.key = key;
        producer.send(record).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    let (number, text) = (DataType::Int64, DataType::Utf8);
    let fields = [("b", number.clone()), ("n", number.clone()), ("a", text.clone())];
    let json = [("key.fields", "a;b"), ("key.format", "json")];
    let (rows, bad) = of_keys(&json, &fields, &[2, 1, 0]);
    assert_eq!(rows, ["x|0|7", "NULL|1|NULL", "NULL|4|8"]);
    let places: Vec<&str> = bad.iter().filter_map(|bad| bad.split(' ').next()).collect();
    assert_eq!(places, [2, 3].map(|at| format!("{topic}[0]:{at}")), "each is bad once: {bad:?}");
    assert_eq!(of_keys(&json, &fields, &[0]).0, ["7", "NULL", "8"]);
    // Nobody reads the key: a bad one is none.
    assert_eq!(of_keys(&json, &fields, &[1]).0, ["0", "1", "3", "4"]);
    let prefixed = [("p_b", number.clone()), ("n", number.clone()), ("p_a", text.clone())];
    let prefix = ("key.fields-prefix", "p_");
    let of_prefix = [("key.fields", "p_a;p_b"), ("key.format", "json"), prefix];
    assert_eq!(of_keys(&of_prefix, &prefixed, &[2, 1, 0]).0, ["x|0|7", "NULL|1|NULL", "NULL|4|8"]);
    let raw = [("key.fields", "a")];
    let (rows, _) = of_keys(&raw, &[("a", text.clone()), ("n", number.clone())], &[1, 0]);
    let expected = [r#"0|{"a":"x","b":7}"#, "1|NULL", "3|{", r#"4|{"b":8}"#];
    assert_eq!(rows, expected, "the text of the key");
    // A message without the key that a column must have is bad, and the others are read.
    let fields = [("B", number.clone()), ("n", number.clone()), ("a", text.clone())];
    let (rows, bad) = of_keys(&json, &fields, &[1, 0]);
    assert_eq!(rows, ["0|7", "4|8"]);
    assert!(bad.iter().any(|bad| bad.contains("[0]:1") && bad.contains("has no key")), "{bad:?}");
    let (rows, bad) = of_keys(&raw, &[("A", text), ("n", number)], &[1, 0]);
    assert_eq!(rows, [r#"0|{"a":"x","b":7}"#, "3|{", r#"4|{"b":8}"#]);
    assert_eq!(bad.len(), 2, "{bad:?}");
}

#[test]
fn messages_that_were_deleted_are_a_gap() {
    use rdkafka::admin::{AdminClient, AdminOptions};
    use rdkafka::client::DefaultClientContext;
    let topic = topic("gap", 1, &[]);
    send(&topic, 0, texts(&numbered(0, 20)));
    let first = source(&table(&topic, &[]));
    let mut reading = open(&*first, 0, None);
    let mut given = 0;
    while given < 5 {
        given += reading.next(5 - given).unwrap().unwrap().len();
    }
    let position = reading.reader.position();
    drop(reading);
    let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
    let mut before = rdkafka::TopicPartitionList::new();
    before.add_partition_offset(&topic, 0, rdkafka::Offset::Offset(12)).unwrap();
    crate::broker::wait_for(admin.delete_records(&before, &AdminOptions::new())).unwrap();
    let failing = source(&table(&topic, &[]));
    let error = open(&*failing, 0, Some(&position)).next(100).unwrap_err().to_string();
    assert!(error.contains("offsets 5 to 11 are not there any more"), "{error}");
    let skipping = source(&table(&topic, &[("on_gap", "skip")]));
    let mut reading = open(&*skipping, 0, Some(&position));
    assert_eq!(reading.next(100).unwrap(), Some(rows(12, 20)));
    let bad = reading.bad();
    assert_eq!(bad.len(), 1);
    assert!(bad[0].contains("[0]:5 offsets 5 to 11"), "{bad:?}");
    // A job that begins takes what is there.
    let begins = source(&table(&topic, &[BOUNDED]));
    assert_eq!(open(&*begins, 0, None).rest(), rows(12, 20));
}

/// Options of a user with this password.
pub fn password(password: &str) -> [(&'static str, &str); 4] {
    [
        ("properties.security.protocol", "SASL_PLAINTEXT"),
        ("properties.sasl.mechanism", "PLAIN"),
        ("properties.sasl.username", "ann"),
        ("properties.sasl.password", password),
    ]
}

/// Another port of the broker, so far behind the first.
pub fn port(behind: u16) -> String {
    let address = address();
    let (host, port) = address.rsplit_once(':').unwrap();
    format!("{host}:{}", port.parse::<u16>().unwrap() + behind)
}

/// Where the broker asks for a password.
pub fn guarded() -> String {
    port(2)
}

#[test]
fn packed_messages_are_read_as_others() {
    // The broker packs them itself.
    for packed in ["gzip", "snappy", "lz4", "zstd"] {
        let topic = topic("packed", 1, &[("compression.type", packed)]);
        send(&topic, 0, texts(&numbered(0, 2_000)));
        let source = source(&table(&topic, &[BOUNDED]));
        assert_eq!(open(&*source, 0, None).rest(), rows(0, 2_000), "{packed}");
    }
}

#[test]
fn the_backlog_is_what_is_not_read() {
    let topic = topic("backlog", 2, &[]);
    let own = source(&table(&topic, &[]));
    let mut reading = open(&*own, 1, None);
    let backlog = Arc::clone(&reading.backlog);
    let is = |expected: u64| {
        wait_until(&format!("{expected} records"), || backlog.records() == expected);
    };
    send(&topic, 0, texts(&numbered(0, 9)));
    send(&topic, 1, texts(&numbered(0, 100)));
    is(100);
    let mut given = 0;
    while given < 40 {
        given += reading.next(40 - given).unwrap().unwrap().len();
    }
    is(60);
    // Behind the messages of a transaction there is a mark, which is no message.
    let producer: BaseProducer = config().set("transactional.id", &topic).create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    for value in numbered(100, 105) {
        let record = BaseRecord::<str, str>::to(&topic).partition(1).payload(&value);
        producer.send(record).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
    is(60);
    producer.commit_transaction(TIMEOUT).unwrap();
    is(66);
    while given < 105 {
        given += reading.next(1000).unwrap().unwrap().len();
    }
    wait_until("the mark is passed", || {
        assert!(matches!(reading.reader.next(10), Ok(Next::Pending)));
        backlog.records() == 0
    });
    send(&topic, 1, texts(&numbered(105, 107)));
    is(2);
    drop(reading);
    is(0);
}

#[test]
fn what_is_wrong_is_said_once_and_for_good() {
    let error = |table: &TableDef| {
        let source = source(table);
        let error = source.splits(1, None).unwrap_err();
        error.to_string()
    };
    assert!(error(&table("no-such-topic", &[])).contains("there is no such topic"));
    let since = Instant::now();
    let mut nowhere = table("t", &[("retry.timeout", "1s")]);
    nowhere.options.insert("properties.bootstrap.servers".into(), "127.0.0.1:1".into());
    let text = error(&nowhere);
    assert!(text.contains("127.0.0.1:1") && text.contains("no broker can be reached"), "{text}");
    assert!(since.elapsed() < TIMEOUT);
    // A wrong password is not tried for as long as a broker that is away.
    let topic = topic("sasl", 1, &[]);
    let mut guarded = table(&topic, &[&[BOUNDED], password("wrong").as_slice()].concat());
    guarded.options.insert("properties.bootstrap.servers".into(), self::guarded());
    let text = error(&guarded);
    assert!(text.contains("refuses to let it in") && !text.contains("wrong"), "{text}");
    guarded.options.insert("properties.sasl.password".into(), "right".into());
    send(&topic, 0, texts(&numbered(0, 3)));
    assert_eq!(open(&*source(&guarded), 0, None).rest(), rows(0, 3));
}
