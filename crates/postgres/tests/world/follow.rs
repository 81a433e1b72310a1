//! Changes as a reader gives them, without a job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use dataflow::source::{Next, Position, ReaderContext, Source, SplitReader};
use fabric::clock::MonotonicClock;

use crate::server::{TIMEOUT, made, psql, unique, url, waits_for};

/// The changes of a table with column n.
fn source(table: &str, options: &[(&str, &str)]) -> Arc<dyn Source> {
    let fields = [Arc::new(Field::new("n", DataType::Int64, true))];
    let after = DataType::Struct(fields.into_iter().collect());
    let schema = Schema::new(vec![Field::new("after", after, true)]);
    let own = [
        ("url", url()),
        ("username", "postgres".into()),
        ("table-name", table.into()),
        ("publication.name", table.into()),
    ];
    let mut all: std::collections::BTreeMap<String, String> =
        own.into_iter().map(|(key, value)| (key.into(), value)).collect();
    all.extend(options.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    let def = TableDef {
        name: "changes".into(),
        schema: Arc::new(schema),
        options: all,
        metadata: Default::default(),
        buckets: vec![],
    };
    let connector = postgres::all().into_iter().find(|one| one.name() == "postgres-cdc").unwrap();
    connector.source(&def, &[0]).unwrap()
}

fn context() -> ReaderContext {
    let bad = Arc::new(BadRows::collecting());
    ReaderContext::new(Arc::new(MonotonicClock::default()), bad)
}

fn open(source: &dyn Source, from: Option<&Position>) -> Box<dyn SplitReader> {
    let splits = source.splits(1, None).unwrap();
    source.open(&splits[0], from, &context()).unwrap()
}

fn numbers(batch: &RecordBatch) -> Vec<i64> {
    let numbers = batch.column(0).as_struct().column(0).as_primitive::<Int64Type>();
    numbers.iter().map(Option::unwrap).collect()
}

/// Numbers of changes until so many are there, of calls that ask for some.
fn read(reader: &mut dyn SplitReader, count: usize, rows_max: usize) -> Vec<i64> {
    let (mut all, since) = (vec![], Instant::now());
    while all.len() < count {
        assert!(since.elapsed() < TIMEOUT, "{} of {count} changes come", all.len());
        match reader.next(rows_max.min(count - all.len())).unwrap() {
            Next::Batch(batch) => {
                assert!(batch.num_rows() <= rows_max);
                all.extend(numbers(&batch));
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
    all
}

/// The slot has been made, and is followed.
fn begins(slot: &str) {
    let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    waits_for("the slot is read", || psql(&active) == "t");
}

#[test]
fn the_server_forgets_what_a_job_without_state_was_given() {
    let table = made("forgotten", "n bigint PRIMARY KEY");
    let source = source(&table, &[]);
    let mut reader = open(&*source, None);
    psql(&format!("INSERT INTO {table} VALUES (1)"));
    assert_eq!(read(&mut *reader, 1, 10), [1]);
    let own = format!("temporary AND slot_name LIKE 'millstream\\_{}\\_%'", std::process::id());
    let confirmed =
        || psql(&format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE {own}"));
    let before = confirmed();
    assert!(before.contains('/'), "{before}");
    psql(&format!("INSERT INTO {table} VALUES (2)"));
    let end = psql("SELECT pg_current_wal_lsn()");
    assert_eq!(read(&mut *reader, 1, 10), [2]);
    // Nothing is settled: no checkpoint is taken.
    waits_for("the changes that were given are confirmed", || {
        psql(&format!("SELECT '{}'::pg_lsn >= '{end}'::pg_lsn", confirmed())) == "t"
    });
}

#[test]
fn a_reader_gives_as_many_rows_as_are_asked_for_and_goes_on_behind_them() {
    let table = made("asked", "n bigint PRIMARY KEY");
    let slot = unique("asked_slot");
    let source = source(&table, &[("slot.name", &slot), ("scan.startup.mode", "latest-offset")]);
    let mut reader = open(&*source, None);
    begins(&slot);
    psql(&format!("INSERT INTO {table} SELECT generate_series(1, 500)"));
    psql(&format!("INSERT INTO {table} SELECT generate_series(501, 900)"));
    // A job ends within a piece, at the end of a transaction, and within the next one.
    for (from, to) in [(1, 70), (71, 500), (501, 507)] {
        let count = (to - from + 1) as usize;
        assert_eq!(read(&mut *reader, count, 64), (from..=to).collect::<Vec<_>>());
        let place = reader.position();
        drop(reader);
        let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
        waits_for("the slot is free", || psql(&active) == "f");
        reader = open(&*source, Some(&place));
    }
    assert_eq!(read(&mut *reader, 393, 100), (508..=900).collect::<Vec<_>>());
    drop(reader);
    waits_for("the slot is dropped", || {
        psql(&format!(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE \
             slot_name = '{slot}' AND NOT active"
        )) == "1"
    });
}

#[test]
fn a_job_that_begins_anew_does_not_get_the_changes_of_the_run_before() {
    let table = made("anew", "n bigint PRIMARY KEY");
    let slot = unique("anew_slot");
    let source = source(&table, &[("slot.name", &slot), ("scan.startup.mode", "latest-offset")]);
    let mut reader = open(&*source, None);
    begins(&slot);
    psql(&format!("INSERT INTO {table} VALUES (1), (2)"));
    assert_eq!(read(&mut *reader, 2, 10), [1, 2]);
    drop(reader);
    let free = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    waits_for("the slot is free", || psql(&free) == "f");
    psql(&format!("INSERT INTO {table} VALUES (3)"));
    let mut reader = open(&*source, None);
    begins(&slot);
    psql(&format!("INSERT INTO {table} VALUES (4)"));
    assert_eq!(read(&mut *reader, 1, 10), [4]);
    drop(reader);
    waits_for("the slot is dropped", || {
        psql(&format!(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE \
             slot_name = '{slot}' AND NOT active"
        )) == "1"
    });
}

#[test]
fn the_bytes_that_a_slot_is_behind_and_keeps_are_measured() {
    const MUCH: u64 = 200_000;
    let table = made("behind", "n bigint PRIMARY KEY");
    let slot = unique("behind_slot");
    let source = source(&table, &[("slot.name", &slot), ("scan.startup.mode", "latest-offset")]);
    let context = context();
    let backlog = Arc::clone(&context.backlog);
    let mut reader = source.open(&source.splits(1, None).unwrap()[0], None, &context).unwrap();
    begins(&slot);
    let insert = |number: i64| {
        let (from, to) = (number * 1000 + 1, (number + 1) * 1000);
        psql(&format!("INSERT INTO {table} SELECT generate_series({from}, {to})"));
    };
    (0..20).for_each(insert);
    waits_for("the reader is behind", || {
        backlog.pending_bytes() > MUCH && backlog.retained_bytes() >= backlog.pending_bytes()
    });
    assert_eq!(read(&mut *reader, 20_000, 1000), (1..=20_000).collect::<Vec<_>>());
    waits_for("it is no longer", || backlog.pending_bytes() < MUCH);
    assert!(backlog.retained_bytes() > MUCH, "no checkpoint has what was read");
    source.settle(&[reader.position()]);
    let mut number = 20_000;
    waits_for("the server forgets", || {
        // It looks for what it may forget when it writes. The place is confirmed once a second:
        // meanwhile only a little is written.
        number += 1;
        psql(&format!("INSERT INTO {table} VALUES ({number})"));
        psql("CHECKPOINT");
        read(&mut *reader, 1, 1);
        std::thread::sleep(Duration::from_millis(500));
        source.settle(&[reader.position()]);
        backlog.retained_bytes() < MUCH
    });
    drop(reader);
    assert_eq!(backlog.retained_bytes(), 0);
    waits_for("the slot is dropped", || {
        psql(&format!(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE \
             slot_name = '{slot}' AND NOT active"
        )) == "1"
    });
}
