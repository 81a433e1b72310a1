//! Brokers that are away, topics that are not what they were, and what the sink relies on.

use std::time::{Duration, Instant};

use dataflow::sink::{Room, WriterContext};
use dataflow::source::Next;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::broker::{TIMEOUT, config, create, delete, script, send, topic, values, wait_until};
use crate::publish::{batch, exactly, expected, how, open, sink, staged_of};
use crate::read::{self, numbered, rows, source, table, texts};

/// Options by which a client learns soon that a topic is gone.
const LEARNS_SOON: [(&str, &str); 2] = [
    ("properties.topic.metadata.refresh.interval.ms", "500"),
    ("properties.topic.metadata.propagation.max.ms", "500"),
];

#[test]
fn a_topic_that_is_deleted_is_an_error_of_its_readers_and_writers() {
    let topic = topic("deleted", 1, &[]);
    let table = table(&topic, &LEARNS_SOON);
    send(&topic, 0, texts(&numbered(0, 20)));
    let mut reading = read::open(&*source(&table), 0, None);
    let mut given = 0;
    while given < 20 {
        given += reading.next(100).unwrap().unwrap().len();
    }
    let mut writer = sink(&table).open(&WriterContext::of(0)).unwrap();
    delete(&topic);
    let error = reading.next(100).unwrap_err().to_string();
    assert!(error.contains("was deleted"), "{error}");
    let mut written = Ok(());
    wait_until("the writer learns of it", || {
        written = writer.write(&batch(&table, 0, 1)).and_then(|()| writer.drain().map(drop));
        written.is_err()
    });
    let error = written.unwrap_err().to_string();
    assert!(error.contains("was deleted"), "{error}");
}

#[test]
fn a_topic_that_is_made_anew_while_it_is_read_is_an_error() {
    let topic = topic("anew", 1, &[]);
    let table = table(&topic, &[("on_gap", "skip")]);
    send(&topic, 0, texts(&numbered(0, 20)));
    let mut reading = read::open(&*source(&table), 0, None);
    let mut given = 0;
    while given < 20 {
        given += reading.next(100).unwrap().unwrap().len();
    }
    let position = reading.reader.position();
    delete(&topic);
    create(&topic, 1, &[]);
    send(&topic, 0, texts(&numbered(0, 5)));
    let error = reading.next(100).unwrap_err().to_string();
    assert!(error.contains("offset 20 is behind its end"), "{error}");
    // A job that goes on from a checkpoint of the old one.
    let again = read::open(&*source(&table), 0, Some(&position)).next(100).unwrap_err();
    assert!(again.to_string().contains("offset 20 is behind its end, which is 5"), "{again}");
}

#[test]
fn brokers_that_are_away_are_waited_for_in_bounded_memory() {
    // Messages that the client keeps, and a batch.
    const KEPT_MAX: i64 = 101_000;
    let topic = topic("away", 1, &[]);
    let table = table(&topic, &[]);
    send(&topic, 0, texts(&numbered(0, 20)));
    let mut reading = read::open(&*source(&table), 0, None);
    let mut given = reading.next(100).unwrap().unwrap();
    let mut writer = sink(&table).open(&WriterContext::of(0)).unwrap();
    script("kill");
    wait_until("the reader waits for a broker", || {
        match reading.reader.next(100).unwrap() {
            Next::Pending => {}
            rows => panic!("{rows:?}"),
        }
        reading.backlog.unreachable() == 1
    });
    let mut written = 0;
    while writer.room() == Room::Ready {
        writer.write(&batch(&table, written, written + 1_000)).unwrap();
        written += 1_000;
        assert!(written <= KEPT_MAX, "the writer takes more and more");
    }
    // It stays so however long the broker is away.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        assert_eq!(writer.room(), Room::Full);
        assert!(matches!(reading.reader.next(100).unwrap(), Next::Pending));
        std::thread::sleep(Duration::from_millis(50));
    }
    script("restart");
    wait_until("all is sent", || writer.drain().unwrap() == Room::Ready);
    writer.commit().unwrap();
    while given.len() < 20 + written as usize {
        given.extend(reading.next(10_000).unwrap().unwrap());
    }
    assert_eq!(given[..20], rows(0, 20));
    assert_eq!(given.len(), 20 + written as usize, "each message is read once");
    wait_until("the reader does not wait any more", || reading.backlog.unreachable() == 0);
    let mut sent: Vec<String> = expected(0, written);
    sent.extend(numbered(0, 20));
    sent.sort();
    assert_eq!(values(&topic, true), sent);
}

/// The marker of a sink's group, as the client itself asks for it.
fn marker(topic: &str) -> (Offset, String) {
    let group: BaseConsumer = config().set("group.id", format!("id-of-{topic}")).create().unwrap();
    let mut own = TopicPartitionList::new();
    own.add_partition(topic, 0);
    let asked = group.committed_offsets(own, TIMEOUT).unwrap();
    let element = &asked.elements()[0];
    let note = element.metadata().split(' ').next().unwrap_or_default().to_owned();
    (element.offset(), note)
}

/// A producer of a run before that has this transaction open.
fn zombie(topic: &str, timeout: Duration, value: &str) -> BaseProducer {
    let mut config = config();
    config.set("transactional.id", format!("id-of-{topic}"));
    config.set("transaction.timeout.ms", timeout.as_millis().to_string());
    let zombie: BaseProducer = config.create().unwrap();
    zombie.init_transactions(TIMEOUT).unwrap();
    zombie.begin_transaction().unwrap();
    zombie.send(BaseRecord::<str, str>::to(topic).payload(value)).unwrap();
    zombie.flush(TIMEOUT).unwrap();
    zombie
}

/// The nine facts that exactly-once rests on, each seen from outside of the connector.
#[test]
fn what_the_sink_relies_on_is_so() {
    let topic = topic("facts", 1, &[]);
    let table = exactly(&topic);
    let publish = |from, to| {
        let own = sink(&table);
        let (mark, staged) = staged_of(&*own, &mut *open(&*own, 0), from, to);
        own.publish(&staged, how(false, mark)).unwrap();
    };
    publish(0, 2);
    assert_eq!(values(&topic, true), expected(0, 2));
    assert_eq!(marker(&topic), (Offset::Offset(1), "1".into()), "rows and marker come together");
    let zombie = |timeout, value| self::zombie(&topic, timeout, value);
    let first = zombie(Duration::from_secs(60), "of the first zombie");
    assert_eq!(values(&topic, true), expected(0, 2), "an open transaction is not seen");
    // The next publication fences it, and aborts its transaction.
    publish(2, 4);
    assert_eq!(values(&topic, true), expected(0, 4));
    assert_eq!(marker(&topic), (Offset::Offset(2), "2".into()), "it is that of the last commit");
    match first.commit_transaction(TIMEOUT) {
        Err(KafkaError::Transaction(error)) => assert!(error.is_fatal(), "{error:?}"),
        done => panic!("the zombie commits: {done:?}"),
    }
    assert_eq!(values(&topic, true), expected(0, 4), "each row once");
    script("kill");
    script("restart");
    assert_eq!(values(&topic, true), expected(0, 4), "a crash loses nothing");
    assert_eq!(marker(&topic), (Offset::Offset(2), "2".into()));
    publish(4, 5);
    assert_eq!(values(&topic, true), expected(0, 5), "publishing goes on");
    // A transaction that outlives its timeout: the broker aborts it, which is one more record.
    let second = zombie(Duration::from_secs(2), "of the second zombie");
    let consumer: BaseConsumer = config().set("group.id", "look").create().unwrap();
    let end = || consumer.fetch_watermarks(&topic, 0, TIMEOUT).unwrap().1;
    let before = end();
    wait_until("the broker aborts it", || end() > before);
    assert!(second.commit_transaction(TIMEOUT).is_err());
    assert_eq!(marker(&topic), (Offset::Offset(3), "3".into()));
    publish(5, 6);
    assert_eq!(values(&topic, true), expected(0, 6));
    assert_eq!(marker(&topic), (Offset::Offset(4), "4".into()));
}
