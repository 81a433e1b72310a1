//! Rows that are there when a job begins, read by runs that end within them while the table
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use dataflow::source::{Next, Position, ReaderContext, Source, SplitReader};
use fabric::clock::MonotonicClock;

use crate::server::{Session, TIMEOUT, lines, made, psql, script, unique, url, waits_for};

/// The changes of a table with columns k, n and v.
fn source(table: &str, slot: &str) -> Arc<dyn Source> {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let side = DataType::Struct(
        [field("k", DataType::Utf8), field("n", DataType::Int64), field("v", DataType::Int64)]
            .into_iter()
            .collect(),
    );
    let schema = Schema::new(vec![
        field("op", DataType::Utf8),
        field("before", side.clone()),
        field("after", side),
    ]);
    let options = [
        ("url", url()),
        ("username", "postgres".into()),
        ("table-name", table.into()),
        ("publication.name", table.into()),
        ("slot.name", slot.into()),
    ];
    let def = TableDef {
        name: "changes".into(),
        schema: Arc::new(schema),
        options: options.into_iter().map(|(key, value)| (key.into(), value)).collect(),
        metadata: Default::default(),
        buckets: vec![],
    };
    let connector = postgres::all().into_iter().find(|one| one.name() == "postgres-cdc").unwrap();
    connector.source(&def, &[0, 1, 2]).unwrap()
}

fn open(source: &dyn Source, from: Option<&Position>) -> Box<dyn SplitReader> {
    let splits = source.splits(1, None).unwrap();
    source.open(&splits[0], from, &context()).unwrap()
}

fn context() -> ReaderContext {
    let bad = Arc::new(BadRows::collecting());
    ReaderContext::new(Arc::new(MonotonicClock::default()), bad)
}

type Key = (String, i64);

/// The table as its changes make it.
#[derive(Default)]
struct Made {
    rows: BTreeMap<Key, i64>,
    /// Rows that were there.
    read: usize,
    changes: usize,
}

impl Made {
    /// Applies changes; each has to fit the rows that are there.
    fn apply(&mut self, batch: &RecordBatch) {
        let (ops, before, after) = (
            batch.column(0).as_string::<i32>(),
            batch.column(1).as_struct(),
            batch.column(2).as_struct(),
        );
        for row in 0..batch.num_rows() {
            let side = |side: &arrow::array::StructArray| {
                let number = |at: usize| {
                    let numbers = side.column(at).as_primitive::<Int64Type>();
                    numbers.is_valid(row).then(|| numbers.value(row))
                };
                let key = side.column(0).as_string::<i32>().value(row).to_owned();
                side.is_valid(row).then(|| ((key, number(1).unwrap()), number(2)))
            };
            let (op, before, after) = (ops.value(row), side(before), side(after));
            let shown = format!("{op} {before:?} {after:?}");
            match op {
                "r" | "c" => {
                    let (key, value) = after.unwrap();
                    assert_eq!(self.rows.insert(key, value.unwrap()), None, "{shown}");
                    self.read += usize::from(op == "r");
                }
                "u" => {
                    let (key, value) = after.unwrap();
                    let old = before.map_or_else(|| key.clone(), |(key, _)| key);
                    assert!(self.rows.remove(&old).is_some(), "{shown}");
                    assert_eq!(self.rows.insert(key, value.unwrap()), None, "{shown}");
                }
                "d" => assert!(self.rows.remove(&before.unwrap().0).is_some(), "{shown}"),
                "t" => self.rows.clear(),
                op => panic!("{op}"),
            }
            self.changes += usize::from(op != "r");
        }
    }

    /// Reads until `rows` more rows have come, or a change of the log.
    fn read_rows(&mut self, reader: &mut dyn SplitReader, rows: usize) {
        let (to, since) = (self.read + rows, Instant::now());
        while self.read < to && self.changes == 0 {
            assert!(since.elapsed() < TIMEOUT, "{} of {to} rows come", self.read);
            self.step(reader, to - self.read);
        }
    }

    fn step(&mut self, reader: &mut dyn SplitReader, rows_max: usize) {
        match reader.next(rows_max).unwrap() {
            Next::Batch(batch) => self.apply(&batch),
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }

    /// Reads until the rows are those of the table.
    fn read_until_it_is(&mut self, reader: &mut dyn SplitReader, table: &str) {
        let rows = lines(&format!("SELECT n, v, k FROM {table}")).into_iter().map(|line| {
            let mut parts = line.splitn(3, '|');
            let mut number = || parts.next().unwrap().parse::<i64>().unwrap();
            let (n, v) = (number(), number());
            ((parts.next().unwrap().to_owned(), n), v)
        });
        let expected: BTreeMap<Key, i64> = rows.collect();
        let since = Instant::now();
        while self.rows != expected {
            assert!(since.elapsed() < TIMEOUT, "{} of {} rows", self.rows.len(), expected.len());
            self.step(reader, 1000);
        }
    }
}

/// A reader that is gone has left its slot.
fn is_free(slot: &str) {
    let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    waits_for("the slot is free", || psql(&active) == "f");
}

fn dropped(slot: &str) {
    waits_for("the slot is dropped", || {
        psql(&format!(
            "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE \
             slot_name = '{slot}' AND NOT active"
        )) == "1"
    });
}

/// Rows whose keys are texts in the order of a language, which is not that of their bytes.
const FILLED: &str = "SELECT (ARRAY['a', 'B', 'ä', 'c', 'Z''s', 'z'])[1 + i % 6] || i % 50, i, 0 \
                      FROM generate_series(1, 4000) i";

const COLUMNS: &str = "k text COLLATE \"und-x-icu\", n bigint, v bigint, PRIMARY KEY (k, n)";

#[test]
fn a_table_that_changes_is_read_once_by_runs_that_end_within_its_rows() {
    let table = made("ranges", COLUMNS);
    psql(&format!("INSERT INTO {table} {FILLED}"));
    let slot = unique("ranges_slot");
    let source = source(&table, &slot);
    let mut reader = open(&*source, None);
    let mut made = Made::default();
    made.read_rows(&mut *reader, 700);
    // It has begun before the snapshots of some runs, and ends behind them.
    let mut long = Session::begin();
    for run in 1..=5_i64 {
        let place = Position::from_bytes(&reader.position().to_bytes()).unwrap();
        drop(reader);
        is_free(&slot);
        // Everywhere in the table rows go, come, change, and move to other keys.
        psql(&format!(
            "BEGIN; DELETE FROM {table} WHERE n % 41 = {run};
             UPDATE {table} SET v = v + {run} WHERE n % 7 = {run};
             INSERT INTO {table} SELECT k || '+{run}', n, 1 FROM {table} WHERE n % 61 = {run};
             UPDATE {table} SET k = 'ba' || k WHERE n % 53 = {run}; COMMIT;
             UPDATE {table} SET k = 'x' || k WHERE n % 59 = {run};
             BEGIN; DELETE FROM {table} WHERE n % 3 = 0; ROLLBACK"
        ));
        long.run(&format!(
            "INSERT INTO {table}
             SELECT 'long' || i, -{run} * 100 - i, 5 FROM generate_series(1, 20) i;
             INSERT INTO {table} VALUES ('b', -{run}, 6), ('zz', -{run}, 6)"
        ));
        if run == 4 {
            long.run("COMMIT");
        }
        reader = open(&*source, Some(&place));
        made.read_rows(&mut *reader, 300);
    }
    psql(&format!("UPDATE {table} SET v = v + 100 WHERE n % 5 = 0"));
    long.run("COMMIT");
    made.read_until_it_is(&mut *reader, &table);
    assert!(made.read > 2300 && made.changes > 0, "{} {}", made.read, made.changes);
    // Within the changes the ranges are a part of the position.
    let place = reader.position();
    drop(reader);
    is_free(&slot);
    psql(&format!("DELETE FROM {table} WHERE n % 2 = 0"));
    let mut reader = open(&*source, Some(&place));
    made.read_until_it_is(&mut *reader, &table);
    drop(reader);
    dropped(&slot);
}

#[test]
fn a_run_may_end_within_the_changes_of_the_time_in_which_rows_were_read() {
    let table = made("overlap", COLUMNS);
    psql(&format!("INSERT INTO {table} {FILLED}"));
    let slot = unique("overlap_slot");
    let source = source(&table, &slot);
    let mut reader = open(&*source, None);
    let mut made = Made::default();
    made.read_rows(&mut *reader, 2000);
    let place = reader.position();
    drop(reader);
    is_free(&slot);
    psql(&format!("UPDATE {table} SET v = v + 1; UPDATE {table} SET v = v + 1 WHERE n % 2 = 0"));
    reader = open(&*source, Some(&place));
    made.read_rows(&mut *reader, 2000);
    // The last row that is there has been read, and of 6000 changes those of the first 2000 rows
    // count.
    for step in 0..6 {
        let (to, since) = ((step + 1) * 400, Instant::now());
        while made.changes < to {
            assert!(since.elapsed() < TIMEOUT, "{} of {to} changes", made.changes);
            made.step(&mut *reader, to - made.changes);
        }
        let place = Position::from_bytes(&reader.position().to_bytes()).unwrap();
        assert!(!place.note().is_empty());
        drop(reader);
        is_free(&slot);
        reader = open(&*source, Some(&place));
    }
    made.read_until_it_is(&mut *reader, &table);
    assert_eq!(made.read, 4000);
    drop(reader);
    dropped(&slot);
}

#[test]
fn a_server_that_is_killed_within_the_rows_is_read_on_by_the_same_reader() {
    let table = made("within", COLUMNS);
    psql(&format!("INSERT INTO {table} {}", FILLED.replace("4000", "40000")));
    let slot = unique("within_slot");
    let source = source(&table, &slot);
    let context = context();
    let splits = source.splits(1, None).unwrap();
    let mut reader = source.open(&splits[0], None, &context).unwrap();
    let mut made = Made::default();
    for kill in 1..=2 {
        made.read_rows(&mut *reader, 3000);
        script("kill");
        script("restart");
        psql(&format!("UPDATE {table} SET v = {kill} WHERE n % 10 = {kill}"));
    }
    made.read_until_it_is(&mut *reader, &table);
    assert_eq!(made.read, 40000);
    // The server goes while the reader is slow: changes that wait are not lost.
    let before = psql("SELECT pg_current_wal_insert_lsn()");
    psql(&format!("UPDATE {table} SET v = v + 10"));
    let sent = format!("SELECT count(*) FROM pg_stat_replication WHERE sent_lsn > '{before}'");
    waits_for("the server sends changes", || psql(&sent) != "0");
    script("kill");
    waits_for("the connection is lost", || context.backlog.unreachable() > 0);
    script("restart");
    made.read_until_it_is(&mut *reader, &table);
    drop(reader);
    dropped(&slot);
}

#[test]
fn a_table_that_cannot_be_read_on_is_an_error() {
    let slot = unique("truncated_slot");
    let fails = |table: &str, change: &str, message: &str| {
        let source = source(table, &slot);
        let mut reader = open(&*source, None);
        let mut made = Made::default();
        made.read_rows(&mut *reader, 700);
        let place = reader.position();
        drop(reader);
        is_free(&slot);
        psql(change);
        let opened = { source.open(&source.splits(1, None).unwrap()[0], Some(&place), &context()) };
        let since = Instant::now();
        let error = opened.map(|mut reader| {
            loop {
                assert!(since.elapsed() < TIMEOUT, "{message}");
                match reader.next(1000) {
                    Ok(Next::Pending) => std::thread::sleep(std::time::Duration::from_millis(5)),
                    Ok(_) => {}
                    Err(error) => break error,
                }
            }
        });
        let error = error.unwrap_or_else(|error| error).to_string();
        assert!(error.contains(message), "{error}");
        dropped(&slot);
    };
    let filled = |columns: &str| {
        let table = made("truncated", columns);
        psql(&format!("INSERT INTO {table} {FILLED}"));
        table
    };
    let table = filled(COLUMNS);
    fails(&table, &format!("TRUNCATE {table}"), "was truncated while its rows were read");
    let table = filled(COLUMNS);
    let key = format!("ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (n)");
    fails(&table, &key, "another key than when the job began");
    let table = filled("k text, n bigint, v bigint");
    fails(&table, "SELECT 1", "without a primary key");
}
