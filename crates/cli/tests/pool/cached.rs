//! Tables that are caches of files: processes load them for each other, and read them whatever
//! becomes of the files, of the loader and of the server.

use std::net::TcpListener;
use std::process::{Child, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::bed::{Pool, WAYS, assert_ends, assert_fails, script, serve};
use crate::rig::{Running, await_some};

const SUM: &str = "SELECT count(*) AS c, sum(n) AS n FROM c;";

/// Declares a cache of the directory's file, and sums it up.
fn cached(pool: &Pool, name: &str, refresh: &str) -> String {
    let path = pool.dir.0.join(name);
    let path = path.display();
    format!(
        "CREATE TABLE c WITH ('connector' = 'pool', 'origin' = '{path}',
           'origin.refresh' = '{refresh}'); {SUM}"
    )
}

/// Replaces a file by the numbers from 0 on.
fn put(pool: &Pool, name: &str, rows: u64) {
    let text: String = (0..rows).map(|n| format!("{n},r{n}\n")).collect();
    pool.dir.write("hidden", &format!("n,name\n{text}"));
    std::fs::rename(pool.dir.0.join("hidden"), pool.dir.0.join(name)).unwrap();
}

/// The row of [`SUM`] of these numbers.
fn sum_of(rows: u64) -> String {
    format!("{rows},{}", (0..rows).sum::<u64>())
}

fn last(output: &Output) -> String {
    assert_ends(output, 0);
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

fn entry(pool: &Pool) -> Value {
    let output = pool.command(&["pool", "stat", "c", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn version(pool: &Pool) -> u64 {
    entry(pool)["version"].as_u64().unwrap_or(0)
}

fn start(pool: &Pool, sql: &str, args: &[&str]) -> Child {
    let script = script(&pool.dir, sql);
    let args = [&["run", script.to_str().unwrap(), "-q"], args].concat();
    pool.command(&args).spawn().unwrap()
}

#[test]
fn a_cache_is_loaded_once_and_anew_when_its_files_have_changed() {
    for args in [WAYS[0], WAYS[3]] {
        let pool = Pool::start("cached", &["--bytes", "64MiB"]);
        std::fs::create_dir(pool.dir.0.join("in")).unwrap();
        put(&pool, "in/a.csv", 30_000);
        let now = cached(&pool, "in/*.csv", "0 s");
        for _ in 0..2 {
            assert_eq!(last(&pool.run(&now, args)), sum_of(30_000), "{args:?}");
            assert_eq!(version(&pool), 1, "{args:?}");
        }
        // A job that does not name the origin reads the same table.
        let plain = format!("CREATE TABLE c WITH ('connector' = 'pool'); {SUM}");
        assert_eq!(last(&pool.run(&plain, args)), sum_of(30_000));
        put(&pool, "in/a.csv", 1_000);
        let later = cached(&pool, "in/*.csv", "1 h");
        assert_eq!(last(&pool.run(&later, args)), sum_of(30_000), "an hour has not passed");
        assert_eq!(last(&pool.run(&now, args)), sum_of(1_000), "{args:?}");
        put(&pool, "in/b.csv", 1_000);
        let both = format!("2000,{}", 2 * (0..1_000).sum::<u64>());
        assert_eq!(last(&pool.run(&now, args)), both, "{args:?}");
        assert_eq!(version(&pool), 3);
        assert_ends(&pool.command(&["pool", "verify", "c"]).output().unwrap(), 0);
        assert_ends(&pool.command(&["pool", "drop", "c"]).output().unwrap(), 0);
        pool.await_stat("all is free", |stat| stat["bytes"] == 0 && stat["tables"] == 0);
    }
}

#[test]
fn processes_that_begin_together_make_one_load() {
    let pool = Pool::start_several("cached-together", &["--bytes", "64MiB"], 2);
    put(&pool, "a.csv", 100_000);
    let sql = cached(&pool, "a.csv", "1 h")
        .replace("CREATE TABLE c ", "CREATE TABLE c DISTRIBUTED BY HASH(n) INTO 4 BUCKETS ")
        .replace("CREATE TABLE c D", "CREATE TABLE c (n BIGINT, name STRING) D");
    let jobs: Vec<Child> = (0..4).map(|at| start(&pool, &sql, WAYS[at % 2])).collect();
    for job in jobs {
        assert_eq!(last(&job.wait_with_output().unwrap()), sum_of(100_000));
    }
    assert_eq!(version(&pool), 1);
    let origin = entry(&pool)["origin"].as_str().map(str::to_owned);
    assert!(origin.is_some_and(|origin| origin.ends_with("/a.csv")), "{}", entry(&pool));
    let explain = script(&pool.dir, &sql);
    let explain = pool.command(&["explain", explain.to_str().unwrap()]).output().unwrap();
    let plan = String::from_utf8_lossy(&explain.stdout).into_owned();
    assert!(plan.contains("version 1") && plan.contains("100000 rows"), "{plan}");
}

#[test]
fn another_process_loads_when_the_loader_is_killed() {
    let pool = Pool::start("cached-killed", &["--bytes", "256MiB"]);
    put(&pool, "a.csv", 1_000_000);
    let sql = cached(&pool, "a.csv", "1 h");
    let mut loader = Running(start(&pool, &sql, WAYS[0]));
    pool.await_stat("it loads", |stat| stat["loads"] != 0 || stat["tables"] != 0);
    let waiting = start(&pool, &sql, WAYS[1]);
    loader.kill();
    assert_eq!(last(&waiting.wait_with_output().unwrap()), sum_of(1_000_000));
    assert_eq!(version(&pool), 1);
    pool.await_stat("no load is left", |stat| stat["loads"] == 0 && stat["leases"] == 0);
}

#[test]
fn an_origin_that_is_away_or_too_large_leaves_the_old_version_with_a_warning() {
    let pool = Pool::start("cached-away", &["--bytes", "4MiB"]);
    let now = cached(&pool, "a.csv", "0 s");
    let output = pool.run(&now, &[]);
    assert_fails(&output, 2, "a.csv: no such file");
    put(&pool, "a.csv", 1_000);
    assert_eq!(last(&pool.run(&now, &[])), sum_of(1_000));
    std::fs::remove_file(pool.dir.0.join("a.csv")).unwrap();
    // The second does not ask the origin: others need not wait for one that is away.
    for reason in ["no such file", "a short time ago"] {
        let output = pool.run(&now, &[]);
        assert_eq!(last(&output), sum_of(1_000));
        assert_fails(&output, 0, "is read as it was loaded before");
        assert_fails(&output, 0, reason);
    }
    assert_eq!(version(&pool), 1);
    // Another table, so that no origin rests.
    let other = now.replace("'pool', ", "'pool', 'table' = 'd', ");
    put(&pool, "a.csv", 1_000);
    assert_eq!(last(&pool.run(&other, &[])), sum_of(1_000));
    let text = "x".repeat(6_000_000);
    pool.dir.write("a.csv", &format!("n,name\n1,{text}\n"));
    let lines: String = (0..60).map(|n| format!("{n},{}\n", &text[..100_000])).collect();
    pool.dir.write("a.csv", &format!("n,name\n{lines}"));
    let output = pool.run(&other, &[]);
    assert_eq!(last(&output), sum_of(1_000));
    assert_fails(&output, 0, "the pool is full");
    let third = now.replace("'pool', ", "'pool', 'table' = 'e', ");
    assert_fails(&pool.run(&third, &[]), 2, "the pool is full");
    pool.await_stat("what was loaded of it is free", |stat| {
        stat["loads"] == 0 && stat["tables"] == 2 && stat["bytes"].as_u64() < Some(2 << 20)
    });
}

#[test]
fn readers_beside_loads_see_one_version() {
    let pool = Pool::start("cached-beside", &["--bytes", "64MiB"]);
    let now = cached(&pool, "a.csv", "0 s");
    let wanted: Vec<String> = (1..=4).map(|round| sum_of(round * 5_000)).collect();
    for round in 1..=4 {
        put(&pool, "a.csv", round * 5_000);
        let readers: Vec<Child> = (0..3).map(|at| start(&pool, &now, WAYS[at % 2])).collect();
        for reader in readers {
            let sum = last(&reader.wait_with_output().unwrap());
            let seen = wanted.iter().position(|of| *of == sum);
            // One reads the version before while another loads; none reads a part, or a later one.
            let round = round as usize - 1;
            assert!(seen.is_some_and(|seen| seen == round || seen + 1 == round), "{round}: {sum}");
        }
    }
    assert_eq!(last(&pool.run(&now, &[])), sum_of(20_000));
    pool.await_stat("nobody reads", |stat| stat["leases"] == 0);
}

#[test]
fn a_server_that_is_killed_has_its_caches_again_or_loads_them_again() {
    for keeps in [true, false] {
        let more: &[&str] = if keeps { &["--dir", "tables"] } else { &[] };
        let mut pool = Pool::start("cached-restart", &[&["--bytes", "64MiB"], more].concat());
        put(&pool, "a.csv", 20_000);
        let now = cached(&pool, "a.csv", "0 s");
        assert_eq!(last(&pool.run(&now, &[])), sum_of(20_000));
        put(&pool, "a.csv", 10_000);
        assert_eq!(last(&pool.run(&now, &[])), sum_of(10_000));
        pool.server.kill();
        let (server, address) =
            serve(&pool.dir, "127.0.0.1:0", &[&["--bytes", "64MiB"], more].concat());
        (pool.server, pool.address) = (server, address);
        assert_eq!(last(&pool.run(&now, WAYS[1])), sum_of(10_000), "{keeps}");
        // Version 2 is a copy of the file, and is not loaded again.
        assert_eq!(version(&pool), if keeps { 2 } else { 1 });
    }
}

#[test]
fn a_part_that_was_lost_with_a_server_is_loaded_again() {
    let mut pool = Pool::start_several("cached-lost", &["--bytes", "64MiB"], 2);
    put(&pool, "a.csv", 100_000);
    let hour = cached(&pool, "a.csv", "1 h");
    for round in 0..2 {
        assert_eq!(last(&pool.run(&hour, WAYS[1])), sum_of(100_000));
        // One of them has the table, the other a part of it.
        let (at, name) = [(0, "m0"), (1, "m1")][round];
        let address = pool.address.split(',').nth(at).unwrap().to_owned();
        let server = if at == 0 { &mut pool.server } else { &mut pool.others[0] };
        server.kill();
        *server = serve(&pool.dir, &address, &["--bytes", "64MiB", "--name", name]).0;
        let read = || {
            let output = pool.run(&hour, WAYS[1]);
            (output.status.code() == Some(0)).then(|| last(&output))
        };
        // The server that has the table learns of it a little later.
        assert_eq!(await_some(read, || "it is not read"), sum_of(100_000));
    }
}

#[test]
fn who_may_not_load_reads_what_others_have_loaded() {
    let pool = Pool::start("cached-readers", &["--bytes", "64MiB", "--read-token-file", "readers"]);
    put(&pool, "a.csv", 1_000);
    let now = cached(&pool, "a.csv", "0 s");
    let reads = ["--pool-token-file", "readers"];
    assert_fails(&pool.run(&now, &reads), 2, "this process may not load it");
    assert_eq!(last(&pool.run(&now, &[])), sum_of(1_000));
    put(&pool, "a.csv", 2_000);
    assert_eq!(last(&pool.run(&now, &reads)), sum_of(1_000));
    assert_eq!(last(&pool.run(&now, &[])), sum_of(2_000));
    assert_eq!(last(&pool.run(&now, &reads)), sum_of(2_000));
}

/// A shell that plans the statements of a file.
fn shell(pool: &Pool, sql: &str) -> Running {
    let script = script(&pool.dir, sql);
    Running(pool.command(&["sql", "-f", script.to_str().unwrap()]).spawn().unwrap())
}

/// Sends Ctrl-C; gives the exit code and what was written to standard error.
fn interrupted(mut shell: Running) -> (Option<i32>, String) {
    if !shell.has_ended() {
        shell.signal(Signal::INT);
    }
    let code = shell.ends();
    let mut messages = String::new();
    let mut stderr = shell.0.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut messages).unwrap();
    (code, messages)
}

#[test]
fn ctrl_c_ends_a_load_and_the_next_process_loads() {
    let pool = Pool::start("cached-interrupted", &["--bytes", "512MiB"]);
    // A load that is over before it is interrupted is done again with more rows.
    for rows in [1_000_000, 2_000_000, 4_000_000, 8_000_000] {
        put(&pool, "a.csv", rows);
        let sql = cached(&pool, "a.csv", "1 h");
        let mut loader = shell(&pool, &sql);
        let mut loads = || loader.has_ended() || pool.stat()["loads"] != 0;
        await_some(|| loads().then_some(()), || "it does not load");
        let (code, messages) = interrupted(loader);
        if code == Some(0) || version(&pool) != 0 {
            assert_ends(&pool.command(&["pool", "drop", "c"]).output().unwrap(), 0);
            continue;
        }
        assert_eq!(code, Some(130), "{messages}");
        pool.await_stat("its memory is back", |stat| stat["bytes"] == 0 && stat["loads"] == 0);
        assert_eq!(last(&pool.run(&sql, WAYS[1])), sum_of(rows));
        assert_eq!(version(&pool), 1);
        return;
    }
    panic!("each load was over before it was interrupted");
}

#[test]
fn ctrl_c_ends_a_wait_for_an_origin_that_does_not_answer_and_for_who_waits_for_it() {
    let pool = Pool::start("cached-silent", &["--bytes", "64MiB"]);
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap();
    let sql = format!(
        "CREATE TABLE c (n BIGINT, name STRING) WITH ('connector' = 'pool',
           'origin' = 's3://bucket/*.csv', 'origin.s3.endpoint' = 'http://{endpoint}',
           'origin.s3.region' = 'eu-west-1', 'origin.s3.access_key_id' = 'key',
           'origin.s3.secret_access_key' = 'hush'); {SUM}"
    );
    let looks = shell(&pool, &sql);
    let (connection, _) = silent.accept().unwrap();
    let waits = shell(&pool, &sql);
    pool.await_stat("both are there", |stat| stat["clients"].as_u64() > Some(2));
    for shell in [waits, looks] {
        let (code, messages) = interrupted(shell);
        assert_eq!(code, Some(130), "{messages}");
    }
    drop(connection);
    assert_eq!(entry(&pool)["version"], Value::Null);
}
