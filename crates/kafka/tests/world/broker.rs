//! The broker: topics are made, filled and read here without the connector.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// The longest wait, on a machine that is busy with other things.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Where it listens.
pub fn address() -> String {
    std::env::var("MILLSTREAM_KAFKA").expect("scripts/test-world.sh starts a broker")
}

pub fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address());
    config
}

/// Has the script do something to the broker.
pub fn script(what: &str) {
    let script = std::env::var("MILLSTREAM_KAFKA_SCRIPT").expect("the script names itself");
    let done = Command::new(script).arg(what).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a topic of its own; gives its name.
pub fn topic(name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{name}-{}-{next}", std::process::id());
    create(&name, partitions, settings);
    name
}

/// Makes a topic of this name.
pub fn create(name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
    let mut new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (key, value) in settings {
        new = new.set(key, value);
    }
    let made = admin.create_topics([&new], &AdminOptions::new());
    wait_for(made).unwrap().into_iter().for_each(|made| drop(made.unwrap()));
    // The brokers know it a moment later.
    let consumer: BaseConsumer = config().set("group.id", "look").create().unwrap();
    wait_until("the topic is there", || {
        consumer.fetch_watermarks(name, partitions - 1, Duration::from_secs(5)).is_ok()
    });
}

/// The outcome of a question to the broker. The client's own threads answer it.
pub fn wait_for<T>(question: impl Future<Output = Result<T, KafkaError>>) -> Result<T, KafkaError> {
    use std::task::{Context, Poll, Waker};
    let mut question = std::pin::pin!(question);
    let since = Instant::now();
    loop {
        match question.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => assert!(since.elapsed() < TIMEOUT, "no answer"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Deletes a topic.
pub fn delete(topic: &str) {
    let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
    let deleted = wait_for(admin.delete_topics(&[topic], &AdminOptions::new()));
    deleted.unwrap().into_iter().for_each(|deleted| drop(deleted.unwrap()));
}

/// Raises the number of partitions of a topic.
pub fn widen(topic: &str, partitions: usize) {
    let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
    let wider = NewPartitions::new(topic, partitions);
    let made = wait_for(admin.create_partitions([&wider], &AdminOptions::new()));
    made.unwrap().into_iter().for_each(|made| drop(made.unwrap()));
    let consumer: BaseConsumer = config().set("group.id", "look").create().unwrap();
    wait_until("the partitions are there", || {
        let last = partitions as i32 - 1;
        consumer.fetch_watermarks(topic, last, Duration::from_secs(5)).is_ok()
    });
}

/// A message of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub partition: i32,
    pub key: Option<String>,
    pub value: Option<String>,
}

/// Sends values to a partition.
pub fn send<'a>(topic: &str, partition: i32, values: impl IntoIterator<Item = &'a str>) {
    let producer: BaseProducer = config().create().unwrap();
    for value in values {
        let mut record = BaseRecord::<str, str>::to(topic).partition(partition).payload(value);
        while let Err((error, back)) = producer.send(record) {
            assert_eq!(
                error.rdkafka_error_code(),
                Some(rdkafka::types::RDKafkaErrorCode::QueueFull)
            );
            producer.poll(Duration::from_millis(10));
            record = back;
        }
    }
    producer.flush(TIMEOUT).unwrap();
    assert_eq!(producer.in_flight_count(), 0);
}

/// All messages of a topic that a reader sees; with `committed` those of transactions that have
/// been committed alone.
pub fn messages(topic: &str, committed: bool) -> Vec<Seen> {
    let isolation = if committed { "read_committed" } else { "read_uncommitted" };
    let consumer: BaseConsumer = config()
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", isolation)
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).unwrap();
    let partitions = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition as i32, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (mut seen, mut ended, since) = (vec![], 0, Instant::now());
    while ended < partitions {
        assert!(since.elapsed() < TIMEOUT, "{topic}: {} messages", seen.len());
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => seen.push(Seen {
                partition: message.partition(),
                key: message.key().map(text),
                value: message.payload().map(text),
            }),
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(_)) | None => {}
        }
    }
    seen
}

/// The values of all messages, sorted.
pub fn values(topic: &str, committed: bool) -> Vec<String> {
    let mut values: Vec<String> =
        messages(topic, committed).into_iter().filter_map(|seen| seen.value).collect();
    values.sort();
    values
}
