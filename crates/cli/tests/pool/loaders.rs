//! Two processes that load one table.

use std::io::{Read, Write};
use std::path::Path;

use super::bed::{LOAD, Pool, SUMS, TABLE, WAYS, assert_ends, script};
use crate::rig::{Dir, Running};

/// Servers of one pool: one, one that keeps its tables in this directory, and two.
fn pools(kept: &Dir) -> [Pool; 3] {
    let dir = kept.0.join("tables");
    [
        Pool::start("loaders", &["--bytes", "128MiB"]),
        Pool::start("loaders-kept", &["--bytes", "128MiB", "--dir", dir.to_str().unwrap()]),
        Pool::start_several("loaders-two", &["--bytes", "128MiB"], 2),
    ]
}

fn start(pool: &Pool, script: &Path, way: &[&str]) -> Running {
    let args = [&["run", script.to_str().unwrap(), "-q"], way].concat();
    Running(pool.command(&args).spawn().unwrap())
}

/// The exit code of a process, and its standard error.
fn end_of(mut process: Running) -> (Option<i32>, String) {
    let mut messages = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    (process.0.wait().unwrap().code(), messages)
}

/// The one error of a process that has failed.
#[track_caller]
fn error_of(code: Option<i32>, messages: &str) -> String {
    assert!(matches!(code, Some(1 | 2)), "{code:?}: {messages}");
    let errors: Vec<&str> = messages.lines().filter(|line| line.starts_with("error")).collect();
    let [error] = errors[..] else { panic!("{messages}") };
    error.to_owned()
}

/// Nothing is left of any load but table `t` or `u` of one version.
fn check(pool: &Pool, table: &str) {
    pool.await_stats("nobody loads", |stat| stat["loads"] == 0 && stat["leases"] == 0);
    assert_ends(&pool.command(&["pool", "verify", table]).output().unwrap(), 0);
    assert_ends(&pool.command(&["pool", "drop", table]).output().unwrap(), 0);
    pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["versions"] == 0);
}

#[test]
fn who_loads_a_table_that_another_process_loads_is_told_and_changes_nothing() {
    let kept = Dir::new("loaders-meanwhile");
    for pool in pools(&kept) {
        for way in WAYS {
            let (first, mut rows) = pool.loading_over_all();
            let sql = LOAD.replace("TABLE t", "TABLE u");
            let second = pool.run(&sql, way);
            let messages = String::from_utf8(second.stderr).unwrap();
            let error = error_of(second.status.code(), &messages);
            assert!(error.contains("loads table 'u' now"), "{way:?}: {messages}");
            writeln!(rows, "7").unwrap();
            drop(rows);
            let (code, messages) = end_of(first);
            assert_eq!(code, Some(0), "{messages}");
            let sums =
                "CREATE TABLE u WITH ('connector' = 'pool'); SELECT count(*), sum(n) FROM u;";
            let sums = pool.rows(sums, WAYS[0]);
            assert_eq!(sums.lines().last(), Some("100001,4999950007"), "{way:?}");
            check(&pool, "u");
        }
    }
}

#[test]
fn of_two_processes_that_make_a_table_at_once_one_does() {
    let kept = Dir::new("loaders-at-once");
    for pool in pools(&kept) {
        for way in WAYS {
            let script = script(&pool.dir, LOAD);
            let start = || start(&pool, &script, way);
            let ends = [start(), start()].map(end_of);
            let (won, lost): (Vec<_>, Vec<_>) = ends.iter().partition(|(code, _)| *code == Some(0));
            assert_eq!(won.len(), 1, "{way:?}: {ends:?}");
            // It came while the other one loaded, or later.
            let error = error_of(lost[0].0, &lost[0].1);
            assert!(error.contains("table 't'"), "{way:?}: {error}");
            assert_eq!(pool.sums(way), SUMS, "{way:?}");
            check(&pool, "t");
        }
    }
}

#[test]
fn rows_of_two_processes_that_insert_at_once_are_there_for_each_that_ended_well() {
    let kept = Dir::new("loaders-insert");
    for pool in pools(&kept) {
        pool.rows(LOAD, WAYS[0]);
        let insert = LOAD.replace("CREATE TABLE t WITH ('connector' = 'pool') AS", "INSERT INTO t");
        let script = script(&pool.dir, &format!("{TABLE} {insert}"));
        let mut all = 1;
        for way in WAYS {
            let start = || start(&pool, &script, way);
            for (code, messages) in [start(), start()].map(end_of) {
                match code {
                    Some(0) => all += 1,
                    code => {
                        let error = error_of(code, &messages);
                        // The other one had rows to send, or its version was being saved.
                        let is_busy = error.contains("loads table 't' now")
                            || error.contains("a version of table 't' is being saved");
                        assert!(is_busy, "{way:?}: {messages}");
                    }
                }
            }
            let sums = [200_000_u64, 19_999_900_000, 9_999_900_000].map(|sum| sum * all);
            assert_eq!(pool.sums(way), sums.map(|sum| sum.to_string()).join(","), "{way:?}");
        }
        assert!(all > WAYS.len() as u64, "one of two has loaded each time");
        check(&pool, "t");
    }
}
