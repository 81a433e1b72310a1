//! A reader whose messages come from no broker, and a registry that answers when it is told to.

use std::thread;
use std::time::Instant;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use dataflow::connector::TableDef;
use fabric::clock::MonotonicClock;

use super::*;
use crate::late_registry::{LONG, registry, schema, table, unparks};
use crate::queue::InHeader;

/// A message of no broker.
struct OwnMessage {
    offset: i64,
    value: Vec<u8>,
}

impl TopicMessage for OwnMessage {
    fn offset(&self) -> i64 {
        self.offset
    }

    fn payload(&self) -> Option<&[u8]> {
        Some(&self.value)
    }

    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn millis(&self) -> Option<i64> {
        None
    }

    fn headers(&self) -> Option<Vec<InHeader<'_>>> {
        None
    }
}

fn reader(table: &TableDef) -> PartitionReader {
    let topic = Topic::new(table).unwrap();
    let (columns, values) = TopicColumns::new(table, &[0], &topic.name).unwrap();
    let bad = Arc::new(BadRows::collecting());
    let mut context = ReaderContext::new(Arc::new(MonotonicClock::default()), Arc::clone(&bad));
    context.waker = unparks();
    let format = connectors::messages::MessageFormat::new(&values.table, &values.projection);
    let decoder = format.unwrap().decoder(&bad);
    let reading = PartitionSettings {
        topic,
        table: table.name.clone(),
        partition: 0,
        columns,
        skips_gaps: false,
        begins: false,
    };
    let place = PartitionRange { next: 5, end: Some(100) };
    PartitionReader::open(reading, place, None, (decoder, None), &context).unwrap()
}

/// Takes messages of one schema; gives what the reader says then.
fn take(reader: &mut PartitionReader, schema: u32, messages: &[(i64, u8)]) -> Option<Next> {
    let from = reader.place.next;
    let mut taken = Taken { offsets: vec![], collector: reader.reading.columns.collector() };
    for (offset, n) in messages {
        // Zigzag, of one byte.
        let value = [&[0], &schema.to_be_bytes()[..], &[n * 2]].concat();
        reader.accept(&OwnMessage { offset: *offset, value }, &mut taken).unwrap();
    }
    reader.decode(HeldMessages { taken, from }).unwrap()
}

fn numbers(next: Option<Next>) -> Vec<i64> {
    let Some(Next::Batch(batch)) = next else { panic!("there are no rows") };
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// The next offset that the position has.
fn next_of(reader: &PartitionReader) -> i64 {
    let position = Position::from_bytes(&reader.position().to_bytes()).unwrap();
    PartitionRange::of(&position, &reader.split, true).unwrap().next
}

/// Waits, as a worker does, until the reader has rows.
fn woken(reader: &mut PartitionReader) -> Next {
    let since = Instant::now();
    loop {
        match reader.next(100).unwrap() {
            Next::Pending => thread::park_timeout(LONG),
            next => return next,
        }
        assert!(since.elapsed() < LONG, "nobody wakes the reader");
    }
}

#[test]
fn messages_that_wait_for_a_registry_hold_up_no_worker_and_are_not_lost() {
    let (url, answer) = registry();
    let mut reader = reader(&table(&url));
    assert_eq!(next_of(&reader), 5);
    // Nobody has answered: to wait for it would be for ever.
    assert!(matches!(take(&mut reader, 1, &[(5, 10), (8, 11)]), Some(Next::Pending)));
    for _ in 0..3 {
        assert!(matches!(reader.next(100).unwrap(), Next::Pending));
        assert_eq!(next_of(&reader), 5, "a checkpoint would lose the rows");
    }
    answer.send(schema()).unwrap();
    assert_eq!(numbers(Some(woken(&mut reader))), [10, 11]);
    assert_eq!(next_of(&reader), 9);
    // A schema that is known is not waited for, and one that is new is, to the last message.
    assert_eq!(numbers(take(&mut reader, 1, &[(9, 12)])), [12]);
    assert_eq!(next_of(&reader), 10);
    assert!(matches!(take(&mut reader, 2, &[(10, 13), (99, 14)]), Some(Next::Pending)));
    assert!(reader.place.is_at_end());
    assert!(matches!(reader.next(100).unwrap(), Next::Pending), "it is not at its end");
    assert_eq!(next_of(&reader), 10);
    answer.send(schema()).unwrap();
    assert_eq!(numbers(Some(woken(&mut reader))), [13, 14]);
    assert_eq!(next_of(&reader), 100);
    assert!(matches!(reader.next(100).unwrap(), Next::End));
}
