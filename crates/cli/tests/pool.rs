//! Memory servers and their clients as processes: what they do, and what becomes of one when
//! another dies.

mod assigned;
mod bed;
mod cached;
mod faults;
mod growing;
mod index;
mod kept;
mod large;
mod loaders;
mod multicast;
mod proxy;
mod recovering;
mod servers;
mod unread;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;

use bed::{LOAD, Pool, SUMS, TABLE, WAYS, assert_ends, assert_fails, command, script, serve};

use crate::rig::Dir;

#[test]
fn a_table_is_loaded_once_and_read_by_all() {
    for loads in WAYS {
        let pool = Pool::start("all", &["--bytes", "256MiB"]);
        pool.rows(LOAD, loads);
        for reads in WAYS {
            assert_eq!(pool.sums(reads), SUMS, "loaded {loads:?}, read {reads:?}");
        }
        let again = format!("{LOAD} INSERT INTO t SELECT n, half, name FROM t;");
        let again =
            again.replace("CREATE TABLE t WITH ('connector' = 'pool') AS", "INSERT OVERWRITE t");
        let again = again.replace("CREATE TABLE numbers", &format!("{TABLE} CREATE TABLE numbers"));
        pool.rows(&again, loads);
        assert_eq!(pool.sums(WAYS[0]), "400000,39999800000,19999800000", "loaded {loads:?}");
        let intact = pool.command(&["pool", "verify", "t"]).output().unwrap();
        assert_ends(&intact, 0);
        assert_ends(&pool.command(&["pool", "drop", "t"]).output().unwrap(), 0);
        pool.await_stat("all is free", |stat| stat["bytes"] == 0 && stat["tables"] == 0);
    }
}

#[test]
fn a_statement_reads_what_those_before_it_have_loaded() {
    let pool = Pool::start("steps", &["--bytes", "64MiB"]);
    for nodes in ["1", "2"] {
        let table = format!("CREATE TABLE s WITH ('connector' = 'pool', 'table' = 's{nodes}')");
        let script = format!(
            "{table} AS SELECT 2 AS v;
             INSERT INTO s SELECT v + 1 FROM s;
             SELECT count(*), sum(v) FROM s;
             INSERT OVERWRITE s SELECT v + 10 FROM s WHERE v > 2;
             SELECT count(*), sum(v) FROM s;
             INSERT OVERWRITE s SELECT v + 10 FROM s;
             SELECT count(*), sum(v) FROM s;"
        );
        let rows = pool.rows(&script, &["--nodes", nodes, "--workers", "1"]);
        let is_sum = |row: &&str| !row.is_empty() && !row.contains('(');
        let sums: Vec<&str> = rows.lines().filter(is_sum).collect();
        assert_eq!(sums, ["2,5", "1,13", "1,23"], "{nodes} nodes: {rows}");
    }
}

#[test]
fn the_first_insert_makes_a_table_that_is_declared() {
    let pool = Pool::start("declared", &["--bytes", "64MiB"]);
    let sql = "CREATE TABLE numbers (n BIGINT) WITH (
            'connector' = 'generator', 'rows' = '1000', 'fields.n.kind' = 'sequence');
        CREATE TABLE d (n BIGINT, none STRING) WITH ('connector' = 'pool');
        INSERT INTO d SELECT n, CAST(NULL AS STRING) FROM numbers;
        INSERT INTO d SELECT n, none FROM d WHERE n < 0;
        SELECT count(*) AS c, sum(n) AS n, count(none) AS t FROM d;";
    for args in [WAYS[1], WAYS[3]] {
        assert_eq!(pool.rows(sql, args).lines().last(), Some("1000,499500,0"), "{args:?}");
        assert_ends(&pool.command(&["pool", "drop", "d"]).output().unwrap(), 0);
    }
}

#[test]
fn the_nearest_name_is_named() {
    let pool = Pool::start("nearest", &["--bytes", "64MiB"]);
    pool.rows("CREATE TABLE t WITH ('connector' = 'pool') AS SELECT 1 AS v;", &[]);
    for command in ["stat", "verify", "drop"] {
        let near = pool.command(&["pool", command, "tt"]).output().unwrap();
        assert_fails(&near, 1, "did you mean 't'?");
        let far = pool.command(&["pool", command, "orders"]).output().unwrap();
        assert_fails(&far, 1, "`millstream pool ls` lists the tables");
    }
}

#[test]
fn a_job_may_have_memory_servers_of_its_own() {
    let dir = Dir::new("pool-own");
    let script = script(&dir, &format!("{LOAD} SELECT count(*) AS c FROM t;"));
    let script = script.to_str().unwrap();
    for nodes in ["1", "2"] {
        let args = ["run", script, "-q", "--memory-servers", "2x64MiB", "--nodes", nodes];
        // They replace the addresses in the environment, where nobody listens.
        for environment in [None, Some("127.0.0.1:1")] {
            let mut command = command(&dir, &args);
            command.envs(environment.map(|at| ("MILLSTREAM_POOL", at)));
            let output = command.output().unwrap();
            assert_ends(&output, 0);
            assert_eq!(String::from_utf8_lossy(&output.stdout).lines().last(), Some("200000"));
        }
        let both = command(&dir, &[&args[..], &["--pool", "127.0.0.1:1"]].concat()).output();
        assert_fails(&both.unwrap(), 2, "--memory-servers starts the servers of a job, and --pool");
    }
}

#[test]
fn the_end_of_a_server_is_an_error_of_its_readers() {
    for args in [WAYS[0], WAYS[2]] {
        let mut pool = Pool::start("killed", &["--bytes", "64MiB"]);
        pool.rows(LOAD, WAYS[0]);
        let mut reading = pool.reading(args);
        pool.server.kill();
        reading.hears("memory server 'm0' is gone");
        let (rows, messages, code) = reading.end();
        assert!(code == Some(1) && rows < 200_000, "{code:?}, {rows} rows: {messages}");
        assert!(messages.contains("memory server 'm0' is gone"), "{messages}");
    }
}

#[test]
fn a_stopped_server_is_an_error_and_another_one_in_its_place_serves() {
    let mut pool = Pool::start("stopped", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let mut reading = pool.reading(WAYS[2]);
    pool.server.signal(Signal::STOP);
    reading.hears("it has not answered within");
    let (_, messages, code) = reading.end();
    assert_eq!(code, Some(1), "{messages}");
    // It goes on, and serves.
    pool.server.signal(Signal::CONT);
    assert_eq!(pool.sums(WAYS[2]), SUMS);
    pool.server.kill();
    let stat = pool.command(&["pool", "stat"]).output().unwrap();
    assert_fails(&stat, 1, "no memory server answers at");
    let (server, _) = serve(&pool.dir, &pool.address, &["--bytes", "64MiB"]);
    pool.server = server;
    let sums = pool.run(&format!("{TABLE} SELECT count(*) FROM t;"), &[]);
    assert_fails(&sums, 2, "the pool has no table 't'");
}

#[test]
fn the_leases_of_a_dead_client_end() {
    let pool = Pool::start("client", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let mut dies = pool.reading(WAYS[0]);
    let lives = pool.reading(WAYS[2]);
    pool.await_stat("both read", |stat| stat["leases"] == 2);
    dies.process.kill();
    pool.await_stat("one reads", |stat| stat["leases"] == 1);
    let (rows, messages, code) = lives.end();
    assert_eq!((rows, code), (200_000, Some(0)), "{messages}");
    pool.await_stat("nobody reads", |stat| stat["leases"] == 0);
}

#[test]
fn a_client_that_was_stopped_for_too_long_has_no_rows() {
    let pool = Pool::start("silent", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    for args in [WAYS[0], WAYS[2]] {
        let mut reading = pool.reading(args);
        pool.await_stat("it reads", |stat| stat["leases"] == 1);
        reading.process.signal(Signal::STOP);
        pool.await_stat("its lease ends", |stat| stat["leases"] == 0);
        reading.process.signal(Signal::CONT);
        reading.hears("it was silent for longer than a lease lasts");
        let (_, messages, code) = reading.end();
        assert_eq!(code, Some(1), "{messages}");
        assert!(messages.contains("memory server 'm0' is gone"), "{messages}");
    }
    assert_eq!(pool.sums(WAYS[0]), SUMS);
}

#[test]
fn a_dead_loader_leaves_nothing() {
    let pool = Pool::start("loader", &["--bytes", "64MiB"]);
    let (mut process, _rows) = pool.loading();
    let sql = "CREATE TABLE u WITH ('connector' = 'pool') AS SELECT 1 AS n;";
    assert_fails(&pool.run(sql, &[]), 1, "loads table 'u' now");
    process.kill();
    pool.await_stat("nobody loads", |stat| stat["loads"] == 0 && stat["bytes"] == 0);
    assert_ends(&pool.run(sql, &[]), 0);
}

#[test]
fn a_loader_whose_server_dies_ends() {
    let mut pool = Pool::start("loaded", &["--bytes", "64MiB"]);
    let (process, rows) = pool.loading();
    pool.server.kill();
    drop(rows);
    let mut process = process;
    let mut messages = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert_eq!(process.0.wait().unwrap().code(), Some(1), "{messages}");
    assert!(messages.contains("memory server 'm0' is gone"), "{messages}");
}

#[test]
fn a_full_pool_is_an_error_and_what_was_loaded_is_free_again() {
    let pool = Pool::start("full", &["--bytes", "2MiB"]);
    let output = pool.run(LOAD, &[]);
    assert_fails(&output, 1, "the pool is full");
    let stat = pool.await_stat("all is free", |stat| stat["bytes"] == 0 && stat["loads"] == 0);
    // The questions for a table that is not there, and the load, however often it asked.
    assert!(stat["refusals"].as_u64().unwrap() <= 4, "{stat}");
}

#[test]
fn strangers_disturb_nobody() {
    let pool = Pool::start("strangers", &["--bytes", "64MiB"]);
    pool.rows(LOAD, WAYS[0]);
    let connect = || TcpStream::connect(&pool.address).unwrap();
    let idle: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    // Garbage, a length out of bounds, and a message that never ends.
    for bytes in [&[0xff; 64][..], &[0; 64], b"GET / HTTP/1.1\r\n\r\n", &[0, 0, 0, 1, 1, 1, 1, 1]] {
        let mut socket = connect();
        socket.write_all(bytes).unwrap();
        assert_eq!(pool.sums(WAYS[0]), SUMS);
    }
    drop(idle);
    // Another token than that of the server.
    let other = Dir::new("pool-other");
    let tokens = other.0.join("millstream");
    std::fs::create_dir_all(&tokens).unwrap();
    let name = format!("service-{}.token", pool.address);
    let wrong = tokens.join(&name);
    std::fs::write(&wrong, format!("{}\n", "0".repeat(32))).unwrap();
    set_mode(&wrong, 0o600);
    let asks = || command(&other, &["pool", "ls", "--pool", &pool.address]).output().unwrap();
    assert_fails(&asks(), 1, "does not show the token");
    set_mode(&wrong, 0o644);
    assert_fails(&asks(), 1, "open to nobody else");
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_server_that_cannot_be_says_why() {
    let pool = Pool::start("why", &["--bytes", "64MiB"]);
    let memory =
        |args: &[&str]| command(&pool.dir, &[&["memory"], args].concat()).output().unwrap();
    let taken = memory(&["--bytes", "64MiB", "--listen", &pool.address]);
    assert_fails(&taken, 1, "the port is in use");
    let open = memory(&["--bytes", "64MiB", "--listen", "0.0.0.0:0"]);
    assert_fails(&open, 1, "clients have to prove who they are");
    assert_fails(&memory(&["--bytes", "1000TiB", "--listen", "127.0.0.1:0"]), 2, "does not fit");
    assert_fails(&memory(&["--bytes", "8 apples"]), 2, "such as 8GiB");
    assert_fails(&command(&pool.dir, &["pool", "ls"]).output().unwrap(), 2, "no pool is named");
}

#[test]
fn with_certificates_both_sides_show_one() {
    let dir = Dir::new("pool-certs");
    for args in [["cert", "init", "ca"].as_slice(), &["cert", "issue", "ca", "node"]] {
        assert_ends(&command(&dir, args).output().unwrap(), 0);
    }
    let (_server, address) = serve(&dir, "127.0.0.1:0", &["--bytes", "64MiB", "--certs", "node"]);
    let ask = |args: &[&str]| {
        command(&dir, &[&["pool", "stat", "--pool", &address], args].concat()).output().unwrap()
    };
    assert_ends(&ask(&["--pool-certs", "node"]), 0);
    assert_fails(&ask(&[]), 1, "cannot be used: it has left no token for this user");
    assert_fails(&ask(&["--pool-certs", "absent"]), 1, "cannot be used: absent/node.pem");
    let by_verbs = ask(&["--pool-certs", "node", "--pool-fabric", "verbs"]);
    assert_fails(&by_verbs, 1, "cannot be used: it is read by shm, tcp, and not by verbs");
    for args in [["cert", "init", "other"].as_slice(), &["cert", "issue", "other", "stranger"]] {
        assert_ends(&command(&dir, args).output().unwrap(), 0);
    }
    assert_fails(&ask(&["--pool-certs", "stranger"]), 1, "certificate");
    assert_ends(&ask(&["--pool-certs", "node"]), 0);
}

#[test]
fn a_server_ends_in_good_order() {
    let mut pool = Pool::start("ends", &["--bytes", "64MiB"]);
    let token = pool.dir.0.join("millstream").join(format!("service-{}.token", pool.address));
    assert!(token.exists());
    pool.server.signal(Signal::TERM);
    assert_eq!(pool.server.0.wait().unwrap().code(), Some(0));
    assert!(!token.exists(), "the token goes with the server");
}
