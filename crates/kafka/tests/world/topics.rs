//! Tables that read several topics: by their names, and by a pattern.

use std::sync::Arc;
use std::task::Waker;

use arrow::datatypes::{DataType, Field, Schema};
use dataflow::connector::{Connector, TableDef};
use dataflow::source::{NewSplits, Position, Source, Split};
use kafka::KafkaConnector;

use crate::broker::{create, delete, send, topic, wait_until, widen};
use crate::read::{BOUNDED, OpenSplit, context, numbered, open, rows, source, table, texts};

/// How often a running table looks for topics in these tests.
const OFTEN: (&str, &str) = ("scan.topic-partition-discovery.interval", "50 ms");

/// A table of all topics that match.
fn like(pattern: &str, options: &[(&str, &str)]) -> TableDef {
    let mut table = table("t", options);
    table.options.remove("topic");
    table.options.insert("topic-pattern".into(), pattern.into());
    table
}

/// The same with a column that has the topic.
fn with_topic(mut table: TableDef) -> TableDef {
    let mut fields = table.schema.fields().to_vec();
    table.metadata.insert(fields.len(), "topic".into());
    fields.push(Arc::new(Field::new("topic", DataType::Utf8, false)));
    table.schema = Arc::new(Schema::new(fields));
    table
}

fn names(splits: &[Split]) -> Vec<String> {
    splits.iter().map(|split| split.name.clone()).collect()
}

/// All rows of a table that ends, sorted.
fn all(source: &dyn Source) -> Vec<String> {
    let splits = source.splits(1, None).unwrap().len();
    let mut rows: Vec<String> = (0..splits).flat_map(|at| open(source, at, None).rest()).collect();
    rows.sort();
    rows
}

/// Opens a split that came while the table was read.
fn open_new(source: &dyn Source, split: &Split) -> OpenSplit {
    let (context, bad) = context();
    let split = Split { is_new: true, ..split.clone() };
    OpenSplit::of(source.open(&split, None, &context).unwrap(), bad, context.backlog)
}

/// Waits until there are so many new splits.
fn wait_for_splits(new: &mut dyn NewSplits, count: usize) -> Vec<Split> {
    let mut all = vec![];
    wait_until("new partitions are found", || {
        all.extend(new.poll().unwrap());
        all.len() >= count
    });
    assert_eq!(all.len(), count);
    all
}

#[test]
fn the_topics_of_a_list_are_one_table() {
    let (first, second) = (topic("list", 2, &[]), topic("list", 3, &[]));
    for (at, (name, partition)) in
        [(&first, 0), (&first, 1), (&second, 0), (&second, 2)].into_iter().enumerate()
    {
        send(name, partition, texts(&numbered(10 * at, 10 * at + 5)));
    }
    let list = format!("{second}; {first}");
    let both = source(&with_topic(table(&list, &[BOUNDED])));
    let splits = both.splits(1, None).unwrap();
    let mut expected: Vec<String> = (0..2).map(|of| format!("{first}[{of}]")).collect();
    expected.extend((0..3).map(|of| format!("{second}[{of}]")));
    expected.sort();
    assert_eq!(names(&splits), expected);
    // The partitions of a topic are those of as many workers, on whichever node.
    for name in [&first, &second] {
        let owners = splits.iter().filter(|split| split.name.starts_with(&**name));
        let owners: Vec<u64> = owners.map(|split| split.owner.unwrap()).collect();
        assert!(owners.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{owners:?}");
    }
    let of = |name: &str, from: usize| -> Vec<String> {
        rows(from, from + 5).into_iter().map(|row| format!("{row}|{name}")).collect()
    };
    let mut expected: Vec<String> =
        [of(&first, 0), of(&first, 10), of(&second, 20), of(&second, 30)].concat();
    expected.sort();
    assert_eq!(all(&*both), expected);
    // Bad rows are named by their own topic.
    send(&second, 1, ["bad"]);
    let both = source(&table(&list, &[BOUNDED]));
    let at = both.splits(1, None).unwrap().iter().position(|s| s.name == format!("{second}[1]"));
    let mut reading = open(&*both, at.unwrap(), None);
    assert!(reading.rest().is_empty());
    let bad = reading.bad();
    assert!(bad.len() == 1 && bad[0].starts_with(&format!("{second}[1]:0 ")), "{bad:?}");
}

/// A state of a table that read one topic, and of builds that read no more, is that of a list, too.
#[test]
fn the_position_of_a_topic_is_one_of_a_list() {
    let (first, second) = (topic("state", 1, &[]), topic("state", 1, &[]));
    send(&first, 0, texts(&numbered(0, 20)));
    send(&second, 0, texts(&numbered(100, 105)));
    let alone = source(&table(&first, &[BOUNDED]));
    let mut reading = open(&*alone, 0, None);
    let given = reading.next(7).unwrap().unwrap().len();
    let position = reading.reader.position();
    assert_eq!(position.split(), format!("{first}[0]"));
    let position = Position::from_bytes(&position.to_bytes()).unwrap();
    let both = source(&table(&format!("{first};{second}"), &[BOUNDED]));
    let at = |name: &str| {
        let splits = both.splits(1, None).unwrap();
        splits.iter().position(|split| split.name == format!("{name}[0]")).unwrap()
    };
    assert_eq!(open(&*both, at(&first), Some(&position)).rest(), rows(given, 20));
    assert_eq!(open(&*both, at(&second), None).rest(), rows(100, 105));
}

#[test]
fn a_pattern_finds_topics_and_those_that_come() {
    let prefix = format!("pattern-{}", std::process::id());
    let [first, second, other] =
        ["a", "b", "x"].map(|name| format!("{prefix}-{name}")).map(|name| {
            create(&name, 2, &[]);
            name
        });
    send(&first, 0, texts(&numbered(0, 5)));
    send(&second, 1, texts(&numbered(10, 15)));
    send(&other, 0, texts(&numbered(90, 95)));
    let pattern = format!("{prefix}-[a-d]");
    let mut expected = [rows(0, 5), rows(10, 15)].concat();
    expected.sort();
    assert_eq!(all(&*source(&like(&pattern, &[BOUNDED]))), expected);
    // The whole name has to match, and topics of the brokers' own never do.
    let none = source(&like("pattern|.*consumer_offsets", &[BOUNDED]));
    let error = none.splits(1, None).unwrap_err().to_string();
    assert!(error.contains("no topic matches"), "{error}");
    // Two processes, which find what comes at different times.
    let running = [0, 1].map(|_| source(&like(&pattern, &[OFTEN])));
    let mut new = running.each_ref().map(|running| {
        assert_eq!(running.splits(1, None).unwrap().len(), 4);
        running.new_splits(Waker::noop().clone()).unwrap().unwrap()
    });
    let third = format!("{prefix}-c");
    create(&third, 2, &[]);
    send(&third, 1, texts(&numbered(20, 25)));
    for (running, new) in running.iter().zip(&mut new) {
        let came = wait_for_splits(&mut **new, 2);
        assert_eq!(names(&came), [0, 1].map(|of| format!("{third}[{of}]")));
        assert_eq!(open_new(&**running, &came[1]).next(10).unwrap(), Some(rows(20, 25)));
    }
    widen(&first, 3);
    let came = new.each_mut().map(|new| wait_for_splits(&mut **new, 1));
    assert_eq!(came[0], came[1], "all nodes agree whose it is");
    assert_eq!(names(&came[0]), [format!("{first}[2]")]);
    assert!(new[0].poll().unwrap().is_empty());
}

#[test]
fn a_table_whose_topics_are_not_there_yet_waits_for_them() {
    let name = format!("later-{}", std::process::id());
    let waiting = source(&like(&name, &[OFTEN, ("scan.startup.mode", "latest-offset")]));
    assert!(waiting.splits(1, None).unwrap().is_empty());
    let mut new = waiting.new_splits(Waker::noop().clone()).unwrap().unwrap();
    create(&name, 1, &[]);
    send(&name, 0, texts(&numbered(0, 5)));
    let came = wait_for_splits(&mut *new, 1);
    assert_eq!(open_new(&*waiting, &came[0]).next(10).unwrap(), Some(rows(0, 5)));
    delete(&name);
    let once = source(&like(&name, &[("scan.topic-partition-discovery.interval", "0s")]));
    wait_until("it is deleted", || once_is_empty(&like(&name, &[BOUNDED])));
    assert!(once.splits(1, None).unwrap_err().to_string().contains("no topic matches"));
}

fn once_is_empty(table: &TableDef) -> bool {
    source(table).splits(1, None).is_err()
}

#[test]
fn what_is_wrong_with_a_choice_is_said_before_anything_runs() {
    let error = |table: &TableDef| {
        let all: Vec<usize> = (0..table.schema.fields().len()).collect();
        KafkaConnector.source(table, &all).err().unwrap().to_string()
    };
    assert!(error(&like("(", &[])).contains("no regular expression"));
    assert!(error(&table("a;a", &[])).contains("twice"));
    let offsets = [
        ("scan.startup.mode", "specific-offsets"),
        ("scan.startup.specific-offsets", "partition:0,offset:4"),
    ];
    assert!(error(&table("a;b", &offsets)).contains("partitions of one topic"));
    for table in [table("a;b", &[]), like("a", &[])] {
        assert!(KafkaConnector.sink(&table).is_err(), "one topic is written");
    }
    let missing = format!("{};no-such-topic", topic("there", 1, &[]));
    let missing = source(&table(&missing, &[BOUNDED]));
    let error = missing.splits(1, None).unwrap_err().to_string();
    assert!(error.contains("there is no such topic"), "{error}");
}
