//! Values that are written and read as they are.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use dataflow::connector::TableDef;
use dataflow::sink::{Room, WriterContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::broker::{TIMEOUT, config, topic};
use crate::publish::{how, open as open_sink, sink};
use crate::read::{BOUNDED, open, source, table};

/// A table of a value of this type, with its key and its partition.
fn raw_table(topic: &str, of: DataType, is_null: bool, options: &[(&str, &str)]) -> TableDef {
    let mut own = table(topic, options);
    own.options.insert("format".into(), "raw".into());
    own.schema = Arc::new(Schema::new(vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("v", of, is_null),
        Field::new("offset", DataType::Int64, true),
    ]));
    own.metadata = [(0, "key".to_owned()), (2, "offset".to_owned())].into();
    own
}

/// The columns that are written: the key and the value.
fn written(table: &TableDef) -> TableDef {
    let mut own = table.clone();
    own.schema = Arc::new(table.schema.project(&[0, 1]).unwrap());
    own.metadata.remove(&2);
    own
}

/// The values of a partition, as the client has them.
fn values_of(topic: &str, count: usize) -> Vec<Option<Vec<u8>>> {
    let consumer: BaseConsumer = config()
        .set("group.id", "raw")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut values, since) = (vec![], Instant::now());
    while values.len() < count {
        assert!(since.elapsed() < TIMEOUT, "{values:?}");
        if let Some(Ok(message)) = consumer.poll(std::time::Duration::from_millis(100)) {
            values.push(message.payload().map(<[u8]>::to_vec));
        }
    }
    values
}

#[test]
fn raw_values_are_what_was_written_and_null_is_a_tombstone() {
    let all: Vec<u8> = (0..=255).collect();
    let sent: [Option<&[u8]>; 6] =
        [Some(b"plain"), None, Some(b""), Some(b"two\r\nlines\n"), Some(&all), Some(b"{\"a\": ")];
    for guarantee in ["at-least-once", "exactly-once"] {
        let name = topic("raw", 1, &[]);
        let id = format!("id-of-{name}");
        let exactly =
            [("sink.delivery-guarantee", guarantee), ("sink.transactional-id-prefix", &id)];
        let options = if guarantee == "exactly-once" { &exactly[..] } else { &[] };
        let own = written(&raw_table(&name, DataType::Binary, true, options));
        let keys: StringArray = (0..sent.len()).map(|at| Some(format!("k{at}"))).collect();
        let columns: Vec<ArrayRef> =
            vec![Arc::new(keys), Arc::new(BinaryArray::from(sent.to_vec()))];
        let batch = RecordBatch::try_new(Arc::clone(&own.schema), columns).unwrap();
        let to = sink(&own);
        if guarantee == "exactly-once" {
            let mut writer = open_sink(&*to, 0);
            let mark = to.mark().unwrap();
            writer.write(&batch).unwrap();
            let staged = [writer.stage(1, false).unwrap().staged];
            to.publish(&staged, how(false, mark)).unwrap();
        } else {
            let mut writer = to.open(&WriterContext::of(0)).unwrap();
            writer.write(&batch).unwrap();
            let since = Instant::now();
            while writer.drain().unwrap() == Room::Full {
                assert!(since.elapsed() < TIMEOUT);
                std::thread::yield_now();
            }
            writer.commit().unwrap();
        }
        assert_eq!(values_of(&name, sent.len()), sent.map(|value| value.map(<[u8]>::to_vec)));

        let texts = raw_table(&name, DataType::Utf8, true, &[BOUNDED]);
        let mut reading = open(&*source(&texts), 0, None);
        let expected = ["k0|plain|0", "k1|NULL|1", "k2||2", "k3|two\r\nlines\n|3", "k5|{\"a\": |5"];
        assert_eq!(reading.rest(), expected, "{guarantee}");
        let bad = reading.bad();
        let place = format!("{name}[0]:4 ");
        assert!(bad.len() == 1 && bad[0].starts_with(&place), "{bad:?}");
        assert!(bad[0].contains("not UTF-8"), "{bad:?}");

        let bytes = raw_table(&name, DataType::Binary, false, &[BOUNDED]);
        let mut reading = open(&*source(&bytes), 0, None);
        assert_eq!(reading.rest().len(), 5, "a tombstone is no row");
        let bad = reading.bad();
        assert!(bad.len() == 1 && bad[0].starts_with(&format!("{name}[0]:1 ")), "{bad:?}");
        assert!(bad[0].contains("NOT NULL"), "{bad:?}");
    }
}

#[test]
fn a_column_of_the_key_stands_beside_a_raw_value() {
    let name = topic("raw-key", 1, &[]);
    let except = ("value.fields-include", "EXCEPT_KEY");
    let mut own = table(&name, &[("key.fields", "id"), ("key.format", "json"), except, BOUNDED]);
    own.options.insert("format".into(), "raw".into());
    own.schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("v", DataType::Utf8, true),
    ]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![Some(1), Some(2), None])),
        Arc::new(StringArray::from(vec![Some("one"), None, Some("")])),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&own.schema), columns).unwrap();
    let mut writer = sink(&own).open(&WriterContext::of(0)).unwrap();
    writer.write(&batch).unwrap();
    let since = Instant::now();
    while writer.drain().unwrap() == Room::Full {
        assert!(since.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
    writer.commit().unwrap();
    assert_eq!(open(&*source(&own), 0, None).rest(), ["1|one", "2|NULL", "NULL|"]);
    // The value of a table that has the key in it, too, would be two columns.
    own.options.remove(except.0);
    let all = [0, 1];
    let error = dataflow::connector::Connector::source(&kafka::KafkaConnector, &own, &all);
    let error = error.map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("column: \"v\""), "{error:?}");
}
