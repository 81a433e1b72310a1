//! The end of a process at each request that a load or a query sends, and tables that are replaced
//! beside their readers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bed::{
    LOAD, Pool, SUMS, TABLE, WAYS, assert_ends, assert_fails, command, script, serve,
};
use super::proxy::Proxy;
use crate::rig::Running;

/// Requests that one of these statements sends at most.
const REQUESTS_MAX: usize = 100;

/// A load of as many rows again, and the sums behind it.
const MORE: &str = "INSERT INTO t SELECT n, half, name FROM t;";
const SUMS_TWICE: &str = "400000,39999800000,19999800000";

/// A statement whose requests pass a proxy.
fn start(pool: &Pool, proxy: &Proxy, sql: &str, args: &[&str]) -> Running {
    let script = script(&pool.dir, &format!("{TABLE} {sql}"));
    let args = [&["run", script.to_str().unwrap(), "-q", "--pool", &proxy.address], args].concat();
    let mut command: Command = command(&pool.dir, &args);
    Running(command.spawn().unwrap())
}

fn ended(process: &mut Child) -> (Option<i32>, String) {
    let mut messages = String::new();
    std::io::Read::read_to_string(&mut process.stderr.take().unwrap(), &mut messages).unwrap();
    (process.wait().unwrap().code(), messages)
}

/// Has `each` look at a process whose next request is held back, for each of its requests; gives
/// how many there were.
fn at_each_request(
    pool: &mut Pool,
    sql: &str,
    mut each: impl FnMut(&mut Pool, Proxy, Running, usize),
) -> usize {
    for requests in 0..REQUESTS_MAX {
        let proxy = Proxy::start(pool, requests);
        let way = [WAYS[0], WAYS[2]][requests % 2];
        let mut process = start(pool, &proxy, sql, way);
        if !proxy.is_reached_before_end(&mut process.0) {
            let (code, messages) = ended(&mut process.0);
            assert_eq!(code, Some(0), "{messages}");
            return requests;
        }
        each(pool, proxy, process, requests);
    }
    panic!("it sends more than {REQUESTS_MAX} requests");
}

/// Whether a process has ended well. Else its message names the server, which went away while the
/// statement was planned or while it ran.
fn has_ended_well(process: &mut Child, request: usize) -> bool {
    let (code, messages) = ended(process);
    let names_the_server = messages.contains("memory server 'm0' is gone")
        || messages.contains("no memory server answers at");
    match code {
        Some(0) => true,
        Some(1 | 2) if names_the_server => false,
        _ => panic!("request {request}: code {code:?}, {messages}"),
    }
}

/// A load that is decided may be cut off behind that: it has ended well then, and all of its rows
/// are there. Before that, none are.
#[test]
fn a_load_that_is_killed_or_cut_off_at_any_request_is_there_as_a_whole_or_not_at_all() {
    let mut pool = Pool::start("fault-steps", &["--bytes", "256MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let bytes = pool.stat()["bytes"].clone();
    let mut failed = 0;
    let steps = at_each_request(&mut pool, MORE, |pool, proxy, mut process, request| {
        let ended_well = if request % 3 == 0 {
            process.kill();
            drop(proxy);
            None
        } else {
            drop(proxy);
            Some(has_ended_well(&mut process.0, request))
        };
        pool.await_stat("nobody loads", |stat| stat["loads"] == 0 && stat["leases"] == 0);
        let sums = pool.sums(WAYS[2]);
        if sums == SUMS_TWICE {
            assert_ne!(ended_well, Some(false), "request {request}: its rows are there");
            assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
            pool.rows(LOAD, WAYS[0]);
        } else {
            assert_eq!(sums, SUMS, "request {request}");
            assert_ne!(ended_well, Some(true), "request {request}: its rows are lost");
            failed += 1;
        }
        pool.await_stat("nothing else is left", |stat| {
            stat["leases"] == 0 && stat["bytes"] == bytes
        });
    });
    assert!(failed > 8, "{failed} of {steps} requests come before the load is decided");
    assert_eq!(pool.sums(WAYS[2]), SUMS_TWICE, "the last one was whole");
}

#[test]
fn a_server_that_dies_at_any_request_of_a_load_is_named() {
    let mut pool = Pool::start("fault-server", &["--bytes", "256MiB"]);
    pool.rows(LOAD, WAYS[0]);
    // By the way that the process takes to the server: they send different requests.
    let (mut failed, mut decided) = (0, [None; 2]);
    let steps = at_each_request(&mut pool, MORE, |pool, proxy, mut process, request| {
        pool.server.kill();
        drop(proxy);
        let decided = &mut decided[request % 2];
        if has_ended_well(&mut process.0, request) {
            decided.get_or_insert(request);
        } else {
            assert_eq!(
                *decided, None,
                "request {request} comes behind one of a load that was told"
            );
            failed += 1;
        }
        let (server, _) = serve(&pool.dir, &pool.address, &["--bytes", "256MiB"]);
        pool.server = server;
        pool.rows(LOAD, WAYS[0]);
    });
    assert!(failed > 8, "{failed} of {steps} requests come before the load is decided");
}

#[test]
fn a_reader_that_dies_at_any_request_lets_go() {
    let mut pool = Pool::start("fault-reader", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let sql = "SELECT count(*), sum(n) FROM t;";
    let steps = at_each_request(&mut pool, sql, |pool, proxy, mut process, step| {
        process.kill();
        drop(proxy);
        pool.await_stat(&format!("request {step}"), |stat| stat["leases"] == 0);
    });
    assert!(steps > 4, "a query has more requests than {steps}");
    assert_eq!(pool.sums(WAYS[0]), SUMS);
}

#[test]
fn a_client_whose_request_is_changed_harms_nobody_else() {
    const CHANGES: u64 = 20;
    let pool = Pool::start("fault-changed", &["--bytes", "256MiB"]);
    pool.rows(LOAD, WAYS[0]);
    for seed in 0..CHANGES {
        let own = format!(
            "CREATE TABLE numbers (n BIGINT) WITH (
                'connector' = 'generator', 'rows' = '5000', 'fields.n.kind' = 'sequence');
             CREATE TABLE own WITH ('connector' = 'pool', 'table' = 'own{seed}') AS
             SELECT n, CAST(n AS STRING) AS text FROM numbers;"
        );
        let proxy = Proxy::changing(&pool, seed as usize % 10, seed);
        let (code, messages) = ended(&mut start(&pool, &proxy, &own, WAYS[0]).0);
        assert!(matches!(code, Some(0..=2)), "change {seed}: {code:?}, {messages}");
        drop(proxy);
        // Whatever it has loaded: who reads it gets rows or an error.
        let read = format!(
            "CREATE TABLE own WITH ('connector' = 'pool', 'table' = 'own{seed}');
             SELECT count(*), sum(n), max(text) FROM own;"
        );
        let read = pool.run(&read, WAYS[2]);
        assert!(matches!(read.status.code(), Some(0..=2)), "change {seed}: {read:?}");
        assert_eq!(pool.sums(WAYS[seed as usize % 2 * 2]), SUMS, "change {seed}");
    }
    pool.await_stat("nobody uses it", |stat| stat["loads"] == 0 && stat["leases"] == 0);
    assert_ends(&pool.command(&["pool", "verify", "t"]).output().unwrap(), 0);
}

/// Tells others of a thread that has panicked.
struct Failed<'a>(&'a AtomicBool);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::SeqCst);
    }
}

#[test]
fn each_result_is_of_one_version_while_the_table_is_replaced() {
    for servers in [1, 2] {
        let pool = Pool::start_several("fault-replaced", &["--bytes", "128MiB"], servers);
        replaced_beside_readers(&pool);
    }
}

/// How long a table is replaced at least: some versions, unless `MILLSTREAM_REPLACED_SECONDS` says
/// more.
fn replaced_for() -> Duration {
    let seconds = std::env::var("MILLSTREAM_REPLACED_SECONDS");
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

/// Replaces a table while others read it, and drops it.
pub fn replaced_beside_readers(pool: &Pool) {
    const VERSIONS: usize = 12;
    let load = |version: usize| {
        let declared = if version == 0 {
            "CREATE TABLE v WITH ('connector' = 'pool') AS"
        } else {
            "CREATE TABLE v WITH ('connector' = 'pool'); INSERT OVERWRITE v"
        };
        // Each version has other rows, and more of them.
        let rows = 50_000 + 1000 * (version % 100);
        format!(
            "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '{rows}',
                 'fields.n.kind' = 'sequence');
             {declared} SELECT n, {version} AS version FROM numbers;"
        )
    };
    pool.rows(&load(0), WAYS[1]);
    let (over, results) = (AtomicBool::new(false), AtomicUsize::new(0));
    let has_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for way in WAYS {
            let (over, results) = (&over, &results);
            let failed = Failed(&has_failed);
            scope.spawn(move || {
                let _failed = failed;
                while !over.load(Ordering::SeqCst) {
                    let sql = "CREATE TABLE v WITH ('connector' = 'pool');
                        SELECT count(*), min(version), max(version), sum(n) FROM v;";
                    let rows = pool.rows(sql, way);
                    let row = rows.lines().last().unwrap_or_default();
                    let row: Vec<u64> = row.split(',').map(|v| v.parse().unwrap()).collect();
                    let all = 50_000 + 1000 * (row[1] % 100);
                    assert_eq!(row, [all, row[1], row[1], all * (all - 1) / 2], "{way:?}");
                    results.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let begun = Instant::now();
        for version in 1.. {
            let is_over = version > VERSIONS && begun.elapsed() >= replaced_for();
            if is_over || has_failed.load(Ordering::SeqCst) {
                break;
            }
            // Some result lies between two versions.
            let before = results.load(Ordering::SeqCst);
            pool.rows(&load(version), WAYS[version % 4]);
            while results.load(Ordering::SeqCst) == before && !has_failed.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    pool.await_stats("nobody reads", |stat| stat["leases"] == 0);
    assert_ends(&pool.command(&["pool", "drop", "v"]).output().unwrap(), 0);
    pool.await_stats("all is free", |stat| stat["bytes"] == 0);
}

#[test]
fn a_sort_keeps_no_version_when_its_statement_has_ended() {
    let pool = Pool::start("fault-sort", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let script = script(
        &pool.dir,
        &format!(
            "{TABLE} CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
         SELECT n + 7000000 AS n FROM t ORDER BY n DESC LIMIT 3;
         SELECT n FROM lines;"
        ),
    );
    let mut command = pool.command(&["sql", "-f", script.to_str().unwrap(), "--workers", "1"]);
    let mut session = Running(command.stdin(Stdio::piped()).spawn().unwrap());
    let mut says = BufReader::new(session.0.stdout.take().unwrap()).lines();
    let mut lines = session.0.stdin.take().unwrap();
    lines.write_all(b"n\n42\n").unwrap();
    lines.flush().unwrap();
    assert!(says.any(|line| line.unwrap().contains("7199997")), "the third row");
    assert!(says.any(|line| line.unwrap() == "42"), "the next statement reads");
    pool.await_stat("nobody reads", |stat| stat["leases"] == 0);
    let less = format!("{TABLE} INSERT OVERWRITE t SELECT n, half, name FROM t WHERE n < 10;");
    pool.rows(&less, WAYS[0]);
    pool.await_stat("the version before goes", |stat| stat["extents"] == 1);
    drop(lines);
    assert_eq!(session.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_slow_sink_keeps_no_version_when_its_statement_has_ended() {
    for fabric in ["shm", "tcp"] {
        let pool = Pool::start("fault-slow-sink", &["--bytes", "64MiB"]);
        pool.rows(LOAD, WAYS[0]);
        let path = pool.dir.0.join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let script = script(
            &pool.dir,
            &format!(
                "{TABLE}
                CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
                CREATE TABLE pipe (n BIGINT) WITH (
                    'connector' = 'file', 'path' = '{}', 'format' = 'csv');
                INSERT INTO pipe SELECT n FROM t; SELECT n FROM lines;",
                path.display()
            ),
        );
        let args = ["sql", "-f", script.to_str().unwrap(), "--workers", "2"];
        let mut command = pool.command(&[&args[..], &["--pool-fabric", fabric]].concat());
        let mut session = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut says = BufReader::new(session.0.stdout.take().unwrap()).lines();
        let mut lines = session.0.stdin.take().unwrap();
        let mut rows = BufReader::new(std::fs::File::open(&path).unwrap()).lines();
        assert_eq!(rows.next().unwrap().unwrap(), "n");
        let first: u64 = rows.next().unwrap().unwrap().parse().unwrap();
        // Much of the table is not read: the statement holds its version beside the next one.
        let less = format!("{TABLE} INSERT OVERWRITE t SELECT n + 7000000, half, name FROM t;");
        pool.rows(&less, WAYS[0]);
        assert_ne!(pool.stat()["leases"], 0, "{fabric}");
        let rest = rows.map(|row| row.unwrap().parse::<u64>().unwrap());
        let (count, sum) = rest.fold((1, first), |(count, sum), n| (count + 1, sum + n));
        assert_eq!((count, sum), (200_000, 19_999_900_000), "rows of the version that it pinned");
        lines.write_all(b"n\n42\n").unwrap();
        lines.flush().unwrap();
        assert!(says.any(|line| line.unwrap() == "42"), "the next statement reads");
        pool.await_stat("nobody reads", |stat| stat["leases"] == 0 && stat["versions"] == 1);
        drop(lines);
        assert_eq!(session.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn without_a_server_each_command_says_so() {
    let mut pool = Pool::start("fault-none", &["--bytes", "64MiB"]);
    pool.server.kill();
    for command in [&["ls"][..], &["stat"], &["stat", "t"], &["verify", "t"], &["drop", "t"]] {
        let none = pool.command(&[&["pool"], command].concat()).output().unwrap();
        assert_fails(&none, 1, "no memory server answers at");
    }
    let no_port = ["pool", "ls", "--pool", "127.0.0.1"];
    let no_port = command(&pool.dir, &no_port).output().unwrap();
    assert_fails(&no_port, 1, "the port is missing, as in 127.0.0.1:7740");
}

/// Each declaration of a table asks the pool.
#[test]
fn a_text_of_many_tables_waits_once_for_a_server_that_does_not_answer() {
    let pool = Pool::start("fault-once", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let tables: Vec<String> = ["t", "u", "v", "w"]
        .map(|name| TABLE.replace(" t ", &format!(" {name} ")).replace(");", ", 'table' = 't');"))
        .into();
    let sql = format!("{} SELECT count(*) FROM t;", tables.concat());
    // One that connects is held back, and then one of a process that is connected.
    for requests in [1, 3] {
        let proxy = Proxy::start(&pool, requests);
        let script = script(&pool.dir, &sql);
        let args = ["run", script.to_str().unwrap(), "-q", "--pool", &proxy.address];
        let output = command(&pool.dir, &args).output().unwrap();
        assert_fails(&output, 2, "it has not answered within 4 s");
        assert_eq!(proxy.held(), 1, "{requests} requests pass, and the next one is held back");
    }
}
