//! Indexes of keys: the first process that looks keys up loads one for all, and whatever becomes of
//! it and of the server, a query has the rows of its keys.

use std::process::Child;

use serde_json::Value;

use super::bed::{Pool, WAYS, assert_ends, command, script, serve};
use crate::rig::{Running, await_some};

/// Keys from everywhere in each strip, each of two rows.
const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence');
    CREATE TABLE t WITH ('connector' = 'pool') AS SELECT (n * 7919) % 100000 AS k, n FROM numbers;";

const INDEX: &str = "t (index of k)";

/// The rows 12,345 and 112,345 have the key 60,055.
const LOOKUP: &str = "CREATE TABLE t WITH ('connector' = 'pool', 'index' = 'k');
    SELECT count(*) AS c, sum(n) AS n FROM t WHERE k = 60055;";
const FOUND: &str = "2,124690";

fn look_up(pool: &Pool, args: &[&str]) -> String {
    pool.rows(LOOKUP, args).lines().last().unwrap_or_default().to_owned()
}

/// The pool's entry of the index; nothing while it is not there.
fn index(pool: &Pool) -> Value {
    let output = pool.command(&["pool", "stat", INDEX, "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// How many blocks a lookup reads.
fn blocks(pool: &Pool, args: &[&str]) -> u64 {
    let sql = LOOKUP.replace("SELECT", "EXPLAIN ANALYZE SELECT");
    let rows = pool.rows(&sql, args);
    assert!(rows.contains("1 key in the index of k"), "{rows}");
    let line = rows.lines().find(|line| line.contains("blocks of the pool read"));
    let line = line.unwrap_or_else(|| panic!("{rows}"));
    let (before, _) = line.split_once(" blocks of the pool read").unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

fn start(pool: &Pool, args: &[&str]) -> Child {
    let script = script(&pool.dir, LOOKUP);
    let args = [&["run", script.to_str().unwrap(), "-q", "--format", "csv"], args].concat();
    pool.command(&args).spawn().unwrap()
}

#[test]
fn an_index_is_loaded_once_and_all_read_it() {
    for servers in [1, 2] {
        for way in WAYS {
            let pool = Pool::start_several("index", &["--bytes", "64MiB"], servers);
            pool.rows(LOAD, way);
            assert_eq!(look_up(&pool, way), FOUND, "{servers} servers, {way:?}");
            assert_eq!(index(&pool)["version"], 1, "{servers} servers, {way:?}");
            for reads in WAYS {
                assert_eq!(look_up(&pool, reads), FOUND, "{servers} servers, {way:?}, {reads:?}");
                // Of two columns in one or two strips, and of a leaf for each process.
                let read = blocks(&pool, reads);
                assert!((3..=8).contains(&read), "{read} blocks, {servers} servers, {reads:?}");
            }
            assert_eq!(index(&pool)["version"], 1, "{servers} servers, {way:?}");
            // Another version has another one.
            let more = "CREATE TABLE t WITH ('connector' = 'pool');
                INSERT INTO t SELECT k, n FROM t WHERE n < 50000;";
            pool.rows(more, way);
            assert_eq!(look_up(&pool, way), "3,137035", "{servers} servers, {way:?}");
            assert_eq!(index(&pool)["version"], 2, "{servers} servers, {way:?}");
            assert_ends(&pool.command(&["pool", "verify", INDEX]).output().unwrap(), 0);
            assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
            pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["tables"] == 0);
        }
    }
}

#[test]
fn processes_that_look_up_together_load_one_index() {
    let pool = Pool::start("index-together", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let jobs: Vec<Child> = (0..6).map(|at| start(&pool, WAYS[at % 4])).collect();
    for job in jobs {
        let output = job.wait_with_output().unwrap();
        assert_ends(&output, 0);
        let rows = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(rows.lines().last(), Some(FOUND), "{rows}");
    }
    assert_eq!(index(&pool)["version"], 1);
}

#[test]
fn a_process_that_is_killed_while_it_loads_an_index_leaves_nothing() {
    let pool = Pool::start("index-killed", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let bytes = pool.stat()["bytes"].clone();
    let mut job = Running(start(&pool, WAYS[2]));
    // Wherever it is by then: it may have ended, too.
    await_some(
        || (job.0.try_wait().unwrap().is_some() || pool.stat()["loads"] != 0).then_some(()),
        || "it does not load".to_owned(),
    );
    job.kill();
    pool.await_stat("nobody loads", |stat| stat["loads"] == 0 && stat["leases"] == 0);
    if index(&pool).is_null() {
        pool.await_stat("nothing is left", |stat| stat["bytes"] == bytes);
    }
    assert_eq!(look_up(&pool, WAYS[0]), FOUND);
    assert_eq!(index(&pool)["version"], 1);
}

#[test]
fn an_index_without_room_or_rights_is_done_without() {
    // Extents of the table, and no room for one of its index.
    let args = ["--bytes", "2MiB", "--read-token-file", "readers"];
    let mut pool = Pool::start("index-full", &args);
    pool.rows(LOAD, WAYS[0]);
    let token = pool.dir.0.join("readers");
    let reader = ["--workers", "1", "--pool-token-file", token.to_str().unwrap()];
    assert_eq!(look_up(&pool, &reader), FOUND);
    assert!(index(&pool).is_null());
    let output = pool.run(LOOKUP, WAYS[0]);
    assert_ends(&output, 0);
    assert!(String::from_utf8_lossy(&output.stdout).contains(FOUND));
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.contains("without its index of k") && messages.contains("free"), "{messages}");
    pool.await_stat("nothing is left", |stat| stat["loads"] == 0 && stat["leases"] == 0);
    // Where it is there, who may read alone reads it.
    pool.server.kill();
    std::fs::remove_file(&token).unwrap();
    let args = ["--bytes", "64MiB", "--read-token-file", "readers"];
    (pool.server, pool.address) = serve(&pool.dir, "127.0.0.1:0", &args);
    pool.rows(LOAD, WAYS[0]);
    assert_eq!(look_up(&pool, WAYS[0]), FOUND);
    assert!(blocks(&pool, &reader) < 9);
}

#[test]
fn a_server_that_is_started_anew_has_its_index_loaded_anew() {
    let dir = ["--bytes", "64MiB", "--dir", "kept"];
    let mut pool = Pool::start("index-restart", &dir);
    pool.rows(LOAD, WAYS[0]);
    assert_eq!(look_up(&pool, WAYS[3]), FOUND);
    pool.server.kill();
    (pool.server, pool.address) = serve(&pool.dir, "127.0.0.1:0", &dir);
    assert_eq!(index(&pool)["version"], 1);
    assert_eq!(look_up(&pool, WAYS[1]), FOUND);
    assert!(blocks(&pool, WAYS[0]) < 9);
    // A byte of its file is not as it was: it is dropped, and loaded again.
    let entry = index(&pool);
    pool.server.kill();
    let files = std::fs::read_dir(pool.dir.0.join("kept")).unwrap();
    let mut extents: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    extents.retain(|path| path.extension().is_some_and(|end| end == "extent"));
    extents.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    let last = extents.last().unwrap();
    let mut bytes = std::fs::read(last).unwrap();
    bytes[100] ^= 1;
    std::fs::write(last, bytes).unwrap();
    (pool.server, pool.address) = serve(&pool.dir, "127.0.0.1:0", &dir);
    let listed = command(&pool.dir, &["pool", "ls", "--pool", &pool.address]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("damaged"), "{listed}, {entry}");
    assert_eq!(look_up(&pool, WAYS[2]), FOUND);
    assert!(blocks(&pool, WAYS[0]) < 9);
}
