//! Statements whose server dies while they neither read from it nor write to it.

use std::io::{BufReader, Read, Write};
use std::process::{ChildStdin, Stdio};

use super::bed::{LOAD, Pool, TABLE, WAYS, hears, script};
use crate::rig::{Running, await_some};

const LINES: &str = "CREATE TABLE lines (k BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');";

/// A statement over the table and standard input, which has one row and stays open.
fn start(pool: &Pool, sql: &str, args: &[&str]) -> (Running, ChildStdin) {
    let script = script(&pool.dir, &format!("{TABLE} {LINES} {sql}"));
    let args = [&["run", script.to_str().unwrap(), "-q", "--format", "csv"], args].concat();
    let mut command = pool.command(&args);
    // Its log is how the test learns what it has noticed.
    command.env("MILLSTREAM_LOG", "warn,millstream=debug").stdin(Stdio::piped());
    let mut process = Running(command.spawn().unwrap());
    let mut lines = process.0.stdin.take().unwrap();
    lines.write_all(b"k\n5\n").unwrap();
    lines.flush().unwrap();
    (process, lines)
}

/// A statement ends by itself, and its error names the server.
#[track_caller]
fn assert_names(mut process: Running, server: &str, what: &str) {
    let code = process.ends();
    let mut messages = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    // One that was planned still ends with another code, or without a server.
    assert!(matches!(code, Some(1 | 2)), "{what}: {code:?}, {messages}");
    let error = messages.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    let names = [&format!("memory server '{server}' is gone"), "no memory server answers at"];
    assert!(names.iter().any(|text| error.contains(text)), "{what}: {messages}");
}

#[test]
fn a_server_that_dies_before_its_blocks_are_wanted_is_named() {
    // The table is read when the input that never ends has ended.
    let sql = "SELECT /*+ BROADCAST(lines) */ count(*), sum(half) FROM t JOIN lines ON n = k;";
    for way in WAYS {
        let mut pool = Pool::start("unread-lost", &["--bytes", "64MiB"]);
        pool.rows(LOAD, way);
        let (process, lines) = start(&pool, sql, way);
        let processes = if way.contains(&"--nodes") { 2 } else { 1 };
        pool.await_stat("all have pinned a version", |stat| stat["leases"] == processes);
        pool.server.kill();
        assert_names(process, "m0", &format!("{way:?}"));
        drop(lines);
    }
}

#[test]
fn a_statement_that_has_all_blocks_ends_well_without_the_server() {
    // The second has read the table in a statement before.
    for sql in [
        "SELECT k, half FROM lines JOIN t ON n = k;",
        "SELECT 5 AS k, half FROM t WHERE n = 5; SELECT k, k / 2 AS half FROM lines;",
    ] {
        for way in WAYS {
            let mut pool = Pool::start("unread-done", &["--bytes", "64MiB"]);
            pool.rows(LOAD, way);
            let (mut process, mut lines) = start(&pool, sql, way);
            let mut rows = BufReader::new(process.0.stdout.take().unwrap());
            let mut messages = BufReader::new(process.0.stderr.take().unwrap());
            hears(&mut rows, "5,2");
            pool.server.kill();
            hears(&mut messages, "memory server 'm0' is gone");
            lines.write_all(b"7\n").unwrap();
            drop(lines);
            hears(&mut rows, "7,3");
            let mut rest = String::new();
            messages.read_to_string(&mut rest).unwrap();
            assert_eq!(process.ends(), Some(0), "{way:?}: {rest}");
        }
    }
}

/// Loads whose rows all wait for more when the server dies.
const LOADS: [&str; 5] = [
    "CREATE TABLE u WITH ('connector' = 'pool') AS SELECT k FROM lines;",
    "INSERT INTO t SELECT k, k AS half, 'x' AS name FROM lines;",
    "CREATE TABLE g (k BIGINT) WITH ('connector' = 'pool', 'commit.interval' = '1 h');
     INSERT INTO g SELECT k FROM lines;",
    "CREATE TABLE l (k BIGINT)
     WITH ('connector' = 'pool', 'commit.interval' = '1 h', 'layout' = 'lists');
     INSERT INTO l SELECT k FROM lines;",
    "CREATE TABLE o WITH ('connector' = 'pool') AS
     SELECT k, rank() OVER (ORDER BY k) AS place FROM lines;",
];

#[test]
fn a_server_that_dies_while_a_load_has_nothing_to_write_is_named() {
    for (at, sql) in LOADS.into_iter().enumerate() {
        for way in WAYS {
            let mut pool = Pool::start(&format!("unwritten-{at}"), &["--bytes", "64MiB"]);
            pool.rows(LOAD, way);
            let (process, lines) = start(&pool, sql, way);
            pool.await_stat("it loads", |stat| stat["loads"] == 1);
            pool.server.kill();
            assert_names(process, "m0", &format!("{way:?}, {sql}"));
            drop(lines);
        }
    }
}

#[test]
fn each_server_of_a_load_that_has_nothing_to_write_is_named() {
    for way in WAYS {
        let mut pool = Pool::start_several("unwritten-part", &["--bytes", "64MiB"], 2);
        pool.rows(LOAD, way);
        let (process, lines) = start(&pool, LOADS[0], way);
        let loads = || pool.stats().iter().any(|stat| stat["loads"] == 1);
        await_some(|| loads().then_some(()), || "it does not load".to_owned());
        pool.others[0].kill();
        assert_names(process, "m1", &format!("{way:?}"));
        drop(lines);
    }
}
