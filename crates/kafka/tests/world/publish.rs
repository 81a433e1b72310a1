//! Topics that are written by the connector.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use dataflow::connector::{Connector, TableDef};
use dataflow::sink::{
    Publishing, Room, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};
use kafka::KafkaConnector;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::broker::{TIMEOUT, address, config, messages, topic, values, wait_for};
use crate::read::table;

pub fn batch(table: &TableDef, from: i64, to: i64) -> RecordBatch {
    let numbers = Int64Array::from_iter_values(from..to);
    let texts: StringArray = (from..to).map(|n| (n % 3 != 0).then(|| format!("t{n}"))).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(numbers), Arc::new(texts)];
    RecordBatch::try_new(Arc::clone(&table.schema), columns).unwrap()
}

/// The messages of rows, sorted.
pub fn expected(from: i64, to: i64) -> Vec<String> {
    let text = |n: i64| if n % 3 == 0 { "null".into() } else { format!("\"t{n}\"") };
    let mut all: Vec<String> =
        (from..to).map(|n| format!("{{\"n\":{n},\"text\":{}}}", text(n))).collect();
    all.sort();
    all
}

pub fn sink(table: &TableDef) -> Arc<dyn Sink> {
    KafkaConnector.sink(table).unwrap()
}

fn waits(mut ready: impl FnMut() -> Room) {
    let since = Instant::now();
    while ready() == Room::Full {
        assert!(since.elapsed() < TIMEOUT, "there is no room");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn write(table: &TableDef, worker: u32, from: i64, to: i64) {
    let mut writer = sink(table).open(&WriterContext::of(worker)).unwrap();
    for begin in (from..to).step_by(1000) {
        waits(|| writer.room());
        writer.write(&batch(table, begin, to.min(begin + 1000))).unwrap();
    }
    waits(|| writer.drain().unwrap());
    writer.commit().unwrap();
}

#[test]
fn rows_are_messages_and_none_is_lost() {
    let topic = topic("sent", 4, &[]);
    let table = table(&topic, &[]);
    assert_eq!(sink(&table).staging(), SinkVisibility::AsTheyCome);
    write(&table, 0, 0, 120_000);
    write(&table, 1, 120_000, 120_001);
    assert_eq!(values(&topic, true), expected(0, 120_001));
}

#[test]
fn keys_and_partitions_are_what_the_table_says() {
    let options: &[&[(&str, &str)]] = &[
        &[("key.fields", "text")],
        &[("key.fields", "n;text"), ("value.fields-include", "ALL")],
        &[("sink.partitioner", "fixed")],
        &[("sink.partitioner", "round-robin")],
    ];
    let mut of_each = vec![];
    for options in options {
        let topic = topic("keys", 3, &[]);
        let result = table(&topic, options);
        write(&result, 4, 0, 30);
        of_each.push(messages(&topic, true));
    }
    let [by_text, by_both, fixed, robin] = of_each.try_into().unwrap();
    let keys = |seen: &[crate::broker::Seen]| {
        let mut keys: Vec<String> =
            seen.iter().map(|seen| seen.key.clone().unwrap_or("none".into())).collect();
        keys.sort();
        keys
    };
    let mut texts: Vec<String> =
        (0..30).map(|n| if n % 3 == 0 { "none".into() } else { format!("t{n}") }).collect();
    texts.sort();
    assert_eq!(keys(&by_text), texts);
    assert_eq!(keys(&by_both), expected(0, 30), "a key of several columns is an object");
    assert!(fixed.iter().all(|seen| seen.partition == 1), "worker 4 of 3 partitions: {fixed:?}");
    for partition in 0..3 {
        let own = robin.iter().filter(|seen| seen.partition == partition);
        assert_eq!(own.count(), 10);
    }
    // The hash of Java's client, whose values these are.
    for (key, partition) in [("t1", murmur2(b"t1") % 3), ("t2", murmur2(b"t2") % 3)] {
        let seen = by_text.iter().find(|seen| seen.key.as_deref() == Some(key)).unwrap();
        assert_eq!(seen.partition as u32, partition, "{key}");
    }
}

/// MurmurHash2 as the client of Java has it, without its sign, written down from its definition.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    for (at, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    (hash ^ (hash >> 15)) & 0x7fff_ffff
}

pub fn exactly(topic: &str) -> TableDef {
    let id = format!("id-of-{topic}");
    let exactly = ("sink.delivery-guarantee", "exactly-once");
    table(topic, &[exactly, ("sink.transactional-id-prefix", &id)])
}

pub fn open(sink: &dyn Sink, worker: u32) -> Box<dyn SinkWriter> {
    open_of(7, sink, worker)
}

fn open_of(job: u64, sink: &dyn Sink, worker: u32) -> Box<dyn SinkWriter> {
    let run = RunId { job, generation: 3 };
    let staging = Some(StagingContext { run, goes_on: false, before: vec![] });
    sink.open(&WriterContext { staging, ..WriterContext::of(worker) }).unwrap()
}

pub fn how(again: bool, mark: Option<[u64; 2]>) -> Publishing {
    Publishing { last: false, again, mark }
}

/// Has rows staged; gives the mark before them, and them.
pub fn staged_of(
    own: &dyn Sink,
    writer: &mut dyn SinkWriter,
    from: i64,
    to: i64,
) -> (Option<[u64; 2]>, [Vec<u8>; 1]) {
    let table = table("t", &[]);
    writer.write(&batch(&table, from, to)).unwrap();
    (own.mark().unwrap(), [writer.stage(1, false).unwrap().staged])
}

#[test]
fn a_checkpoint_is_published_once_however_often_it_is_asked_for() {
    let topic = topic("exactly", 3, &[]);
    let table = exactly(&topic);
    let first = sink(&table);
    assert_eq!((first.staging(), first.stages_rows()), (SinkVisibility::ByCheckpoint, true));
    let mut writers = [0, 1].map(|worker| open(&*first, worker));
    for round in 0..4 {
        let mark = first.mark().unwrap();
        assert_eq!(mark, Some([round as u64, 0]));
        let before = 100 * round;
        writers[0].write(&batch(&table, before, before + 30)).unwrap();
        writers[0].write(&batch(&table, before + 30, before + 50)).unwrap();
        writers[1].write(&batch(&table, before + 50, before + 100)).unwrap();
        let staged = writers.each_mut().map(|writer| writer.stage(9, false).unwrap().staged);
        assert_eq!(values(&topic, false), expected(0, before), "staged rows are nowhere");
        first.publish(&staged, how(false, mark)).unwrap();
        assert_eq!(values(&topic, true), expected(0, before + 100));
        // Another process that does not know that they are published.
        sink(&table).publish(&staged, how(true, mark)).unwrap();
        first.publish(&staged, how(true, mark)).unwrap();
        assert_eq!(values(&topic, true), expected(0, before + 100));
        let nothing = writers.each_mut().map(|writer| writer.stage(10, false).unwrap().staged);
        first.publish(&nothing, how(false, first.mark().unwrap())).unwrap();
    }
    // The mark of a checkpoint that is older than what is there.
    let mut writer = open(&*first, 0);
    writer.write(&batch(&table, 0, 5)).unwrap();
    let staged = [writer.stage(11, true).unwrap().staged];
    let error = first.publish(&staged, how(true, Some([2, 0]))).unwrap_err().to_string();
    assert!(error.contains("there were 2 publications"), "{error}");
    let error = first.publish(&staged, how(true, Some([9, 0]))).unwrap_err().to_string();
    assert!(error.contains("there were 9 publications"), "{error}");
    // The count is right, and somebody else has published.
    let error = first.publish(&staged, how(true, Some([3, 0]))).unwrap_err().to_string();
    assert!(error.contains("there were 3 publications"), "{error}");
    let error = first.publish(&[b"else".to_vec()], how(true, Some([4, 0]))).unwrap_err();
    assert!(error.to_string().contains("other messages"), "{error}");
    assert_eq!(values(&topic, true), expected(0, 400));
}

#[test]
fn two_jobs_of_one_name_do_not_take_a_publication_of_the_other_for_their_own() {
    let topic = topic("twice", 2, &[]);
    let table = exactly(&topic);
    let sinks = [sink(&table), sink(&table)];
    // The same rows at the same count: the job alone tells them apart.
    let staged = [0, 1].map(|job| {
        let mut writer = open_of(job, &*sinks[job as usize], 0);
        writer.write(&batch(&table, 0, 10)).unwrap();
        [writer.stage(1, false).unwrap().staged]
    });
    let marks = [0, 1].map(|job: usize| sinks[job].mark().unwrap());
    assert_eq!(marks, [Some([0, 0]); 2]);
    sinks[0].publish(&staged[0], how(false, marks[0])).unwrap();
    let error = sinks[1].publish(&staged[1], how(false, marks[1])).unwrap_err().to_string();
    assert!(error.contains("another job writes by the same name"), "{error}");
    sinks[0].publish(&staged[0], how(true, marks[0])).unwrap();
    assert_eq!(values(&topic, true), expected(0, 10));
    // A job that asks for the count after the other has published adds its rows.
    let mark = sink(&table).mark().unwrap();
    sinks[1].publish(&staged[1], how(false, mark)).unwrap();
    assert_eq!(values(&topic, true).len(), 20);
}

#[test]
fn a_marker_that_was_forgotten_stops_no_run_that_knows_what_is_published() {
    let topic = topic("forgotten", 1, &[]);
    let table = exactly(&topic);
    let own = sink(&table);
    let mut writer = open(&*own, 0);
    let mut stage = |from, to| staged_of(&*own, &mut *writer, from, to);
    let (mark, staged) = stage(0, 5);
    own.publish(&staged, how(false, mark)).unwrap();
    // The brokers forget the group while the job has nothing to write.
    let (mark, staged) = stage(5, 10);
    assert_eq!(mark, Some([1, 0]));
    let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
    let group = format!("id-of-{topic}");
    let deleted = admin.delete_groups(&[&group], &AdminOptions::new());
    assert!(wait_for(deleted).unwrap().iter().all(Result::is_ok));
    // A run that goes on does not know whether the run before has published.
    let error = sink(&table).publish(&staged, how(true, mark)).unwrap_err().to_string();
    assert!(error.contains("its marker is gone"), "{error}");
    own.publish(&staged, how(false, mark)).unwrap();
    own.publish(&staged, how(true, mark)).unwrap();
    assert_eq!(values(&topic, true), expected(0, 10));
    assert_eq!(sink(&table).mark().unwrap(), Some([2, 0]));
}

#[test]
fn a_message_that_no_retry_makes_smaller_is_an_error_at_once() {
    let topic = topic("large", 1, &[("max.message.bytes", "20000")]);
    for limit in ["properties.message.max.bytes", "properties.linger.ms"] {
        // Without a limit of its own the client sends the message, and the broker refuses it.
        let limit = [(limit, "1000"), ("retry.timeout", "1 h")];
        let mut table = exactly(&topic);
        table.options.extend(limit.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let own = sink(&table);
        let mut writer = open(&*own, 0);
        let large = format!("{:0>30000}", 1);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![1])),
            Arc::new(StringArray::from(vec![large.as_str()])),
        ];
        writer.write(&RecordBatch::try_new(Arc::clone(&table.schema), columns).unwrap()).unwrap();
        let (mark, staged) = (own.mark().unwrap(), [writer.stage(1, false).unwrap().staged]);
        let error = own.publish(&staged, how(false, mark)).unwrap_err().to_string();
        assert!(error.contains("a message is larger than the topic takes"), "{error}");
    }
    assert_eq!(values(&topic, true), expected(0, 0));
}

#[test]
fn a_wrong_password_ends_the_job_before_brokers_are_given_up() {
    let topic = topic("sasl-sink", 1, &[]);
    // A broker that is away is waited for longer than the test takes.
    let retry = ("retry.timeout", "1 h");
    let given = [crate::read::password("wrong").as_slice(), &[retry]].concat();
    let mut plain = table(&topic, &given);
    let servers = crate::read::guarded();
    plain.options.insert("properties.bootstrap.servers".into(), servers.clone());
    let mut exactly = exactly(&topic);
    exactly.options.extend(plain.options.clone());
    let refused = |error: dataflow::error::ConnectorError| {
        let text = error.to_string();
        assert!(text.contains("refuses to let it in") && !text.contains("wrong"), "{text}");
    };
    let since = Instant::now();
    refused(sink(&plain).open(&WriterContext::of(0)).err().unwrap());
    refused(sink(&exactly).mark().unwrap_err());
    assert!(since.elapsed() < TIMEOUT);
    for table in [&mut plain, &mut exactly] {
        table.options.insert("properties.sasl.password".into(), "right".into());
    }
    write(&plain, 0, 0, 3);
    assert_eq!(sink(&exactly).mark().unwrap(), Some([0, 0]));
    assert_eq!(values(&topic, true), expected(0, 3));
}

#[test]
fn an_open_transaction_of_a_run_before_is_given_up() {
    let topic = topic("zombie", 2, &[]);
    let table = exactly(&topic);
    let zombie: BaseProducer =
        config().set("transactional.id", format!("id-of-{topic}")).create().unwrap();
    zombie.init_transactions(TIMEOUT).unwrap();
    zombie.begin_transaction().unwrap();
    zombie.send(BaseRecord::<str, str>::to(&topic).payload("of the zombie")).unwrap();
    zombie.flush(TIMEOUT).unwrap();
    let own = sink(&table);
    let mut writer = open(&*own, 0);
    let (mark, staged) = staged_of(&*own, &mut *writer, 0, 10);
    own.publish(&staged, how(false, mark)).unwrap();
    assert!(zombie.commit_transaction(TIMEOUT).is_err(), "the zombie is fenced");
    assert_eq!(values(&topic, true), expected(0, 10));
}

/// Sends the end of a transaction as a producer of this epoch would; gives the broker's error code.
fn end_transaction(to: &mut TcpStream, id: &str, producer: i64, epoch: i16) -> i16 {
    let mut body = vec![];
    body.extend((id.len() as i16).to_be_bytes());
    body.extend(id.as_bytes());
    body.extend(producer.to_be_bytes());
    body.extend(epoch.to_be_bytes());
    body.push(1);
    // EndTxn, version 1, with a client of one letter.
    let mut request = vec![];
    request.extend(26_i16.to_be_bytes());
    request.extend(1_i16.to_be_bytes());
    request.extend(7_i32.to_be_bytes());
    request.extend(1_i16.to_be_bytes());
    request.push(b'x');
    request.extend(body);
    // One write: the broker acknowledges the first of two late.
    to.write_all(&[&(request.len() as i32).to_be_bytes(), request.as_slice()].concat()).unwrap();
    let mut length = [0; 4];
    to.read_exact(&mut length).unwrap();
    let mut answer = vec![0; i32::from_be_bytes(length) as usize];
    to.read_exact(&mut answer).unwrap();
    i16::from_be_bytes([answer[8], answer[9]])
}

/// The producer that an id has, and the epoch of its last transaction, as requests find them.
fn find_producer(to: &mut TcpStream, id: &str) -> (i64, i16) {
    // The epoch is the right one, and has no transaction yet.
    const INVALID_TRANSACTION_STATE: i16 = 48;
    const NO_SUCH_PRODUCER: i16 = 49;
    // The transaction before is being ended.
    const CONCURRENT_TRANSACTIONS: i16 = 51;
    for producer in 0..10_000 {
        for epoch in 0..64 {
            let since = Instant::now();
            let code = loop {
                match end_transaction(to, id, producer, epoch) {
                    CONCURRENT_TRANSACTIONS => assert!(since.elapsed() < TIMEOUT, "{id}"),
                    code => break code,
                }
            };
            match code {
                0 => return (producer, epoch),
                INVALID_TRANSACTION_STATE => return (producer, epoch - 1),
                NO_SUCH_PRODUCER => break,
                _ => {}
            }
        }
    }
    panic!("nobody writes by {id}");
}

#[test]
fn a_late_end_of_a_transaction_commits_nothing_of_the_next() {
    let topic = topic("late", 2, &[]);
    let table = exactly(&topic);
    let id = format!("id-of-{topic}");
    let mut to = TcpStream::connect(address()).unwrap();

    // The fault itself, so that the test is known to see it: one producer, two transactions.
    let other_id = format!("{id}-control");
    let control: BaseProducer = config().set("transactional.id", &other_id).create().unwrap();
    control.init_transactions(TIMEOUT).unwrap();
    let record = |text: &'static str| BaseRecord::<str, str>::to(&topic).payload(text).partition(0);
    control.begin_transaction().unwrap();
    control.send(record("control 1")).unwrap();
    control.commit_transaction(TIMEOUT).unwrap();
    let (producer, epoch) = find_producer(&mut to, &other_id);
    control.begin_transaction().unwrap();
    control.send(record("control 2")).unwrap();
    control.flush(TIMEOUT).unwrap();
    assert_eq!(values(&topic, true), ["control 1"]);
    assert_eq!(end_transaction(&mut to, &other_id, producer, epoch), 0, "it is accepted");
    let since = Instant::now();
    while values(&topic, true).len() < 2 {
        assert!(since.elapsed() < TIMEOUT, "a late end commits what is open");
    }
    drop(control);

    // The sink: late ends of its first publication arrive all through the second.
    let own = sink(&table);
    let mut writer = open(&*own, 0);
    let mut publish = |from, to| {
        let (mark, staged) = staged_of(&*own, &mut *writer, from, to);
        own.publish(&staged, how(false, mark)).unwrap();
    };
    publish(0, 1);
    let (producer, epoch) = find_producer(&mut to, &id);
    let (ended, late_id) = (Arc::new(AtomicBool::new(false)), id.clone());
    let hears = Arc::clone(&ended);
    let late = std::thread::spawn(move || {
        let mut sent = 0_u64;
        while !hears.load(Ordering::Relaxed) {
            let _refused = end_transaction(&mut to, &late_id, producer, epoch);
            sent += 1;
        }
        sent
    });
    let (watched, watch) = (topic.clone(), Arc::clone(&ended));
    let reader = std::thread::spawn(move || {
        let mut counts = vec![];
        while !watch.load(Ordering::Relaxed) {
            counts.push(values(&watched, true).len() - 2);
        }
        counts
    });
    for round in 0..5 {
        publish(1 + 5_000 * round, 1 + 5_000 * (round + 1));
    }
    ended.store(true, Ordering::Relaxed);
    assert!(late.join().unwrap() > 0);
    for count in reader.join().unwrap() {
        assert_eq!(count % 5_000, 1, "a publication is seen whole or not at all");
    }
    let own: Vec<String> =
        values(&topic, true).into_iter().filter(|value| !value.starts_with("control")).collect();
    assert_eq!(own, expected(0, 25_001));
}
