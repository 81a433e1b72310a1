//! An `INSERT` that does not end: its table grows by versions that others read meanwhile.

use std::io::{Read, Write};
use std::process::{ChildStdin, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::bed::{Pool, SUMS, TABLE, WAYS, assert_ends, assert_fails, script};
use crate::rig::{Running, await_some};

/// An `INSERT` of the rows on its standard input.
struct Growing {
    process: Running,
    rows: ChildStdin,
    next: u64,
}

impl Growing {
    fn start(pool: &Pool, options: &str, args: &[&str]) -> Self {
        let sql = format!(
            "CREATE TABLE lines (n BIGINT, half BIGINT, name STRING)
             WITH ('connector' = 'stdin', 'format' = 'csv');
             CREATE TABLE t (n BIGINT, half BIGINT, name STRING)
             WITH ('connector' = 'pool', {options});
             INSERT INTO t SELECT n, half, name FROM lines;"
        );
        let script = script(&pool.dir, &sql);
        let args = [&["run", script.to_str().unwrap(), "--progress", "none"], args].concat();
        let mut command = pool.command(&args);
        let mut process = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut rows = process.0.stdin.take().unwrap();
        rows.write_all(b"n,half,name\n").unwrap();
        Self { process, rows, next: 0 }
    }

    fn write(&mut self, count: u64) {
        let line = |n| format!("{n},{},name {n}\n", n / 2);
        let lines: String = (self.next..self.next + count).map(line).collect();
        self.rows.write_all(lines.as_bytes()).unwrap();
        self.rows.flush().unwrap();
        self.next += count;
    }

    /// Closes its input; gives its messages and its exit code.
    fn end(self) -> (String, Option<i32>) {
        drop(self.rows);
        ended(self.process)
    }
}

fn ended(mut process: Running) -> (String, Option<i32>) {
    let mut messages = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    (messages, process.0.wait().unwrap().code())
}

/// The pool's entry of the table, once it has this number of rows.
#[track_caller]
fn await_rows(pool: &Pool, rows: u64) -> Value {
    let found = || Some(pool.table()).filter(|stat| stat["rows"] == rows);
    await_some(found, || format!("{rows} rows do not come: {}", pool.table()))
}

const SHORTLY: &str = "'commit.interval' = '100 ms'";

const IN_LISTS: &str = "'commit.interval' = '100 ms', 'layout' = 'lists'";

#[test]
fn a_table_grows_while_it_is_read_and_has_the_rows_of_a_bounded_run() {
    grows("grow-grows", SHORTLY, &WAYS);
    grows("grow-lists", IN_LISTS, &[WAYS[0], WAYS[3]]);
}

fn grows(name: &str, options: &str, ways: &[&[&str]]) {
    for args in ways {
        let pool = Pool::start(name, &["--bytes", "256MiB"]);
        let mut growing = Growing::start(&pool, options, args);
        let workers = if args.contains(&"2") { 4 } else { 1 };
        for step in 1..=6 {
            growing.write(1000);
            let stat = await_rows(&pool, 1000 * step);
            let strips = stat["strips"].as_u64().unwrap();
            assert!(strips <= workers, "short strips are replaced: {stat}");
            let sums = pool.sums(args);
            let (n, halves) = ((0..1000 * step).sum::<u64>(), (0..1000 * step).map(|n| n / 2));
            assert_eq!(sums, format!("{},{n},{}", 1000 * step, halves.sum::<u64>()), "{args:?}");
        }
        growing.write(194_000);
        let (messages, code) = growing.end();
        assert_eq!(code, Some(0), "{messages}");
        assert!(messages.contains("at least once"), "{messages}");
        assert_eq!(pool.sums(args), SUMS, "{args:?}");
        assert_ends(&pool.command(&["pool", "verify", "t"]).output().unwrap(), 0);
        // Nothing is kept of the versions before: the rows need 25 full strips, and some are short.
        let stat = await_rows(&pool, 200_000);
        assert!(stat["strips"].as_u64().unwrap() <= 25 + workers, "{stat}");
        pool.await_stat("nobody loads", |stat| stat["loads"] == 0);
        // The nodes of a statement may ask for its version for a while.
        if workers == 1 {
            assert_eq!(stat["extents"], pool.stat()["extents"], "only the newest version is there");
        }
        assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
        pool.await_stat("all is free", |stat| stat["bytes"] == 0);
    }
}

#[test]
fn a_table_grows_over_two_servers() {
    for (args, options) in [(WAYS[0], SHORTLY), (WAYS[3], SHORTLY), (WAYS[3], IN_LISTS)] {
        let pool = Pool::start_several("grow-two", &["--bytes", "128MiB"], 2);
        let mut growing = Growing::start(&pool, options, args);
        for step in 1..=3 {
            growing.write(10_000);
            await_rows(&pool, 10_000 * step);
            let (n, halves) = ((0..10_000 * step).sum::<u64>(), (0..10_000 * step).map(|n| n / 2));
            let sums = format!("{},{n},{}", 10_000 * step, halves.sum::<u64>());
            assert_eq!(pool.sums(args), sums, "{args:?}");
        }
        growing.write(170_000);
        let (messages, code) = growing.end();
        assert_eq!(code, Some(0), "{messages}");
        assert_eq!(pool.sums(args), SUMS, "{args:?}");
        assert_ends(&pool.command(&["pool", "verify", "t"]).output().unwrap(), 0);
        pool.await_stats("both have extents", |stat| stat["extents"] != 0 && stat["loads"] == 0);
        assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
        pool.await_stats("all is free", |stat| stat["bytes"] == 0);
    }
}

#[test]
fn a_statement_reads_one_version_while_others_appear() {
    let pool = Pool::start("grow-one", &["--bytes", "256MiB"]);
    for args in [WAYS[0], WAYS[2]] {
        let mut growing = Growing::start(&pool, SHORTLY, WAYS[0]);
        growing.write(100_000);
        await_rows(&pool, 100_000);
        let reading = pool.reading(args);
        for step in 1..=5 {
            growing.write(1000);
            await_rows(&pool, 100_000 + step * 1000);
        }
        let (rows, messages, code) = reading.end();
        assert_eq!((rows, code), (100_000, Some(0)), "{messages}");
        assert_eq!(growing.end().1, Some(0));
        assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
        pool.await_stat("all is free", |stat| stat["bytes"] == 0);
    }
}

#[test]
fn an_interrupt_commits_what_has_come() {
    for args in [WAYS[0], WAYS[1]] {
        let pool = Pool::start("grow-interrupt", &["--bytes", "64MiB"]);
        let mut growing = Growing::start(&pool, SHORTLY, args);
        growing.write(5000);
        await_rows(&pool, 5000);
        // Its input stays open: it is the signal that ends it.
        let Growing { process, rows, .. } = growing;
        process.signal(Signal::INT);
        let (messages, code) = ended(process);
        drop(rows);
        assert_eq!(code, Some(130), "{messages}");
        assert_eq!(await_rows(&pool, 5000)["rows"], 5000);
        pool.await_stat("nobody loads", |stat| stat["loads"] == 0);
    }
}

#[test]
fn what_a_dead_writer_has_committed_stays_and_another_one_goes_on() {
    let pool = Pool::start("grow-dead", &["--bytes", "64MiB"]);
    let mut growing = Growing::start(&pool, SHORTLY, WAYS[0]);
    growing.write(1000);
    await_rows(&pool, 1000);
    let sql = format!("{TABLE} INSERT INTO t SELECT n, half, name FROM t;");
    assert_fails(&pool.run(&sql, &[]), 1, "loads table 't' now");
    growing.process.kill();
    pool.await_stat("nobody loads", |stat| stat["loads"] == 0);
    await_rows(&pool, 1000);
    let mut again = Growing::start(&pool, SHORTLY, WAYS[1]);
    again.write(1000);
    await_rows(&pool, 2000);
    // A table that goes is an error of who writes it.
    assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
    again.write(1);
    let (messages, code) = ended(again.process);
    assert_eq!(code, Some(1), "{messages}");
    assert!(messages.contains("the pool has no table 't'"), "{messages}");
    pool.await_stat("all is free", |stat| stat["bytes"] == 0 && stat["loads"] == 0);
}

#[test]
fn the_end_of_a_server_is_an_error_of_who_writes() {
    let mut pool = Pool::start("grow-server", &["--bytes", "64MiB"]);
    let mut growing = Growing::start(&pool, SHORTLY, WAYS[1]);
    growing.write(1000);
    await_rows(&pool, 1000);
    pool.server.kill();
    let (messages, code) = ended(growing.process);
    assert_eq!(code, Some(1), "{messages}");
    assert!(messages.contains("memory server 'm0' is gone"), "{messages}");
}
