//! Tables that lie on several memory servers with directories.

use std::io::{Read, Write};
use std::process::Stdio;

use super::bed::{LOAD, Pool, SUMS, WAYS, assert_ends, assert_fails, script, serve};
use crate::rig::{Dir, Running, await_some};

/// So many tables that each of two servers has some.
const TABLES: usize = 6;

/// Servers m0 and m1 with directories of their own.
struct SavedServers {
    pool: Pool,
}

impl SavedServers {
    fn start(name: &str) -> Self {
        let dir = Dir::new(&format!("pool-{name}"));
        let (server, first) = serve_kept(&dir, 0, "127.0.0.1:0");
        let (other, second) = serve_kept(&dir, 1, "127.0.0.1:0");
        let address = format!("{first},{second}");
        Self { pool: Pool { dir, server, others: vec![other], address } }
    }

    fn kill(&mut self, at: usize) {
        self.server(at).kill();
    }

    fn server(&mut self, at: usize) -> &mut Running {
        if at == 0 { &mut self.pool.server } else { &mut self.pool.others[0] }
    }

    fn addresses(&self) -> [String; 2] {
        let mut addresses = self.pool.address.split(',').map(str::to_owned);
        [(); 2].map(|()| addresses.next().unwrap())
    }

    /// Starts a server with its directory, at any address.
    fn restart(&mut self, at: usize) {
        self.restart_at(at, "127.0.0.1:0");
    }

    fn restart_at(&mut self, at: usize, address: &str) {
        let (server, address) = serve_kept(&self.pool.dir, at, address);
        *self.server(at) = server;
        let mut addresses = self.addresses();
        addresses[at] = address;
        self.pool.address = addresses.join(",");
    }

    /// Loads tables `t0` and so on, over both servers.
    fn load(&self) {
        let load = |number| {
            let sql = LOAD.replace("TABLE t ", &format!("TABLE t{number} "));
            let sql = sql.replace("TABLE numbers ", &format!("TABLE numbers{number} "));
            sql.replace("FROM numbers;", &format!("FROM numbers{number};"))
        };
        let sql: String = (0..TABLES).map(load).collect();
        self.pool.rows(&sql, WAYS[0]);
        let stats = self.pool.stats();
        let has = |stat: &serde_json::Value| {
            stat["extents"].as_u64() > Some(0) && stat["tables"].as_u64() > Some(0)
        };
        assert!(stats.iter().all(has), "{stats:?}");
    }

    /// All tables have all of their rows, and their bytes are right.
    fn check(&self, way: &[&str]) {
        for number in 0..TABLES {
            let sql = format!(
                "CREATE TABLE t{number} WITH ('connector' = 'pool');
                 SELECT count(*) AS c, sum(n) AS n, sum(half) AS h FROM t{number};"
            );
            assert_eq!(self.pool.rows(&sql, way).lines().last(), Some(SUMS), "t{number}");
            self.verify(&format!("t{number}"));
        }
    }

    fn verify(&self, table: &str) {
        assert_ends(&self.pool.command(&["pool", "verify", table]).output().unwrap(), 0);
    }

    fn read(&self, number: usize) -> std::process::Output {
        let sql = format!(
            "CREATE TABLE t{number} WITH ('connector' = 'pool'); SELECT count(*) FROM t{number};"
        );
        self.pool.run(&sql, WAYS[0])
    }

    fn directory(&self, at: usize) -> std::path::PathBuf {
        self.pool.dir.0.join(format!("kept-m{at}"))
    }

    /// The files of extents of a server.
    fn files(&self, at: usize) -> usize {
        let files = std::fs::read_dir(self.directory(at)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".extent")).count()
    }
}

fn serve_kept(dir: &Dir, at: usize, address: &str) -> (Running, String) {
    let (name, kept) = (format!("m{at}"), dir.0.join(format!("kept-m{at}")));
    let args = ["--bytes", "128MiB", "--name", &name, "--dir", kept.to_str().unwrap()];
    serve(dir, address, &args)
}

#[test]
fn tables_of_two_servers_outlive_each_and_both() {
    let mut kept = SavedServers::start("kept-restarts");
    kept.load();
    kept.check(WAYS[3]);
    for order in [vec![0], vec![1], vec![0, 1], vec![1, 0]] {
        for at in &order {
            kept.kill(*at);
        }
        let away = kept.read(0);
        assert_fails(&away, 2, "no memory server answers at");
        for at in &order {
            kept.restart(*at);
        }
        kept.check(WAYS[order[0]]);
        // The next version of each, over both.
        for number in 0..TABLES {
            let sql = format!(
                "CREATE TABLE t{number} WITH ('connector' = 'pool');
                 INSERT OVERWRITE t{number} SELECT n, half, name FROM t{number};"
            );
            assert_ends(&kept.pool.run(&sql, WAYS[2]), 0);
        }
        kept.check(WAYS[0]);
    }
    for number in 0..TABLES {
        let table = format!("t{number}");
        assert_ends(&kept.pool.command(&["pool", "drop", &table]).output().unwrap(), 0);
    }
    kept.pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["extents"] == 0);
    await_some(|| (kept.files(0) + kept.files(1) == 0).then_some(()), || "files".to_owned());
}

#[test]
fn servers_that_swap_addresses_are_known_by_their_directories() {
    let mut kept = SavedServers::start("kept-swapped");
    kept.load();
    let [first, second] = kept.addresses();
    (0..2).for_each(|at| kept.kill(at));
    kept.restart_at(0, &second);
    kept.restart_at(1, &first);
    kept.check(WAYS[0]);
    // What was dropped while they did not know each other's address is freed on both.
    for number in 0..TABLES {
        let table = format!("t{number}");
        assert_ends(&kept.pool.command(&["pool", "drop", &table]).output().unwrap(), 0);
    }
    kept.pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["extents"] == 0);
}

#[test]
fn a_server_with_an_empty_directory_is_named_and_forgotten() {
    let mut kept = SavedServers::start("kept-empty");
    kept.load();
    kept.kill(1);
    std::fs::rename(kept.directory(1), kept.pool.dir.0.join("away")).unwrap();
    kept.restart(1);
    // Tables whose list of blocks lay there are not known; the others name the server.
    let reads: Vec<_> = (0..TABLES).map(|number| kept.read(number)).collect();
    let messages: Vec<_> = reads.iter().map(|of| String::from_utf8_lossy(&of.stderr)).collect();
    let named = |of: &str| of.contains("memory server 'm1' is gone: it has another directory");
    assert!(messages.iter().any(|of| named(of)), "{messages:?}");
    for message in &messages {
        assert!(named(message) || message.contains("the pool has no table"), "{message}");
    }
    let forgotten = kept.pool.command(&["pool", "forget", "m1"]).output().unwrap();
    assert_ends(&forgotten, 0);
    let text = String::from_utf8(forgotten.stdout).unwrap();
    let dropped = text.lines().filter(|line| line.starts_with("dropped 't")).count();
    assert_eq!(dropped, messages.iter().filter(|of| named(of)).count(), "{text}");
    assert!(text.contains("of its tables"), "{text}");
    kept.pool.await_stats("nothing is left", |stat| stat["extents"] == 0);
    kept.load();
    (0..2).for_each(|at| kept.kill(at));
    (0..2).for_each(|at| kept.restart(at));
    kept.check(WAYS[3]);
    // One that is there is not forgotten.
    for name in ["m1", "m11"] {
        let none = kept.pool.command(&["pool", "forget", name]).output().unwrap();
        assert_ends(&none, 0);
        let says = String::from_utf8(none.stdout).unwrap();
        assert!(says.starts_with("nothing is known") && says.contains(name), "{says}");
    }
    kept.check(WAYS[0]);
}

#[test]
fn a_server_that_never_comes_back_is_forgotten_by_the_others() {
    let mut kept = SavedServers::start("kept-forgotten");
    kept.load();
    let [first, _] = kept.addresses();
    kept.kill(1);
    kept.pool.address = first;
    let read: Vec<String> =
        (0..TABLES).map(|number| String::from_utf8(kept.read(number).stderr).unwrap()).collect();
    assert!(read.iter().any(|of| of.contains("lies on 'm1', too: name all servers")), "{read:?}");
    // The server notices within some seconds that the other one has gone.
    let forgotten = || {
        let output = kept.pool.command(&["pool", "forget", "m1", "--json"]).output().unwrap();
        (output.status.code() == Some(0)).then_some(output.stdout)
    };
    let forgotten = await_some(forgotten, || "it is connected".to_owned());
    let forgotten: serde_json::Value = serde_json::from_slice(&forgotten).unwrap();
    assert_eq!(forgotten["forgotten"], "m1");
    assert!(!forgotten["dropped"].as_array().unwrap().is_empty(), "{forgotten}");
    assert!(forgotten["freed_extents"].as_u64() > Some(0), "{forgotten}");
    kept.pool.await_stats("nothing is left", |stat| stat["extents"] == 0 && stat["tables"] == 0);
    kept.pool.rows(LOAD, WAYS[0]);
    assert_eq!(kept.pool.sums(WAYS[0]), SUMS);
}

#[test]
fn servers_that_die_in_the_middle_of_a_load_have_the_version_before() {
    for order in [[0, 1], [1, 0]] {
        for both in [false, true] {
            let mut kept = SavedServers::start("kept-killed");
            kept.load();
            let (mut process, mut rows) = kept.pool.loading_over_all();
            kept.kill(order[0]);
            let _ = writeln!(rows, "1");
            drop(rows);
            let mut messages = String::new();
            process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
            assert_eq!(process.0.wait().unwrap().code(), Some(1), "{messages}");
            let gone = format!("memory server 'm{}' is gone", order[0]);
            assert!(messages.contains(&gone), "{messages}");
            if both {
                kept.kill(order[1]);
                kept.restart(order[1]);
            }
            kept.restart(order[0]);
            kept.check(WAYS[0]);
            let stats = kept.pool.await_stats("no load", |stat| stat["loads"] == 0);
            let used: u64 = stats.iter().map(|stat| stat["extents"].as_u64().unwrap()).sum();
            await_some(
                || ((kept.files(0) + kept.files(1)) as u64 == used).then_some(()),
                || format!("{} and {} files, {used} extents", kept.files(0), kept.files(1)),
            );
        }
    }
}

/// The rows of table `g`: of each round a sequence from 0 on, without a gap.
fn grown(kept: &SavedServers) -> Option<u64> {
    let sql = "CREATE TABLE g WITH ('connector' = 'pool');
        SELECT n / 1000000000 AS round, count(*) AS c, sum(n % 1000000000) AS s
        FROM g GROUP BY n / 1000000000;";
    let output = kept.pool.run(sql, WAYS[0]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let of: Vec<u64> = line.split(',').map(|of| of.parse().unwrap()).collect();
        assert_eq!(of[2], of[1] * (of[1] - 1) / 2, "{text}");
        of[1]
    });
    let count: u64 = rows.sum();
    (output.status.code() == Some(0)).then_some(count)
}

#[test]
fn a_table_that_grows_has_what_it_had_whichever_server_dies() {
    let mut kept = SavedServers::start("kept-growing");
    let sql = "CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
        CREATE TABLE g (n BIGINT) WITH ('connector' = 'pool', 'commit.interval' = '100 ms',
            'strip.rows' = '1024');
        INSERT INTO g SELECT n FROM lines;";
    let mut least = 0;
    for round in 0..6_u64 {
        let script = script(&kept.pool.dir, sql);
        let args = ["run", script.to_str().unwrap(), "-q", "--workers", "1"];
        let mut command = kept.pool.command(&args);
        let mut process = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut input = process.0.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            let _ = input.write_all(b"n\n");
            // It ends with the job.
            let mut lines = (0..).map(|n| writeln!(input, "{}", round * 1_000_000_000 + n));
            while lines.next().is_some_and(|written| written.is_ok()) {}
        });
        let more = || grown(&kept).filter(|count| *count > least);
        let seen = await_some(more, || format!("round {round}: more than {least} rows"));
        let first = round as usize % 2;
        kept.kill(first);
        if round % 3 == 2 {
            kept.kill(1 - first);
            kept.restart(1 - first);
        }
        feeder.join().unwrap();
        assert_eq!(process.0.wait().unwrap().code(), Some(1));
        kept.restart(first);
        let after = grown(&kept).unwrap();
        assert!(after >= seen, "round {round}: {seen} rows were there, and {after} are");
        kept.verify("g");
        least = after;
    }
    let stats = kept.pool.stats();
    assert!(stats.iter().all(|stat| stat["extents"].as_u64() > Some(0)), "{stats:?}");
    assert_ends(&kept.pool.command(&["pool", "drop", "g"]).output().unwrap(), 0);
    kept.pool.await_stats("all is free", |stat| stat["bytes"] == 0 && stat["extents"] == 0);
}

#[test]
fn each_result_is_of_one_version_while_a_saved_table_is_replaced() {
    let kept = SavedServers::start("kept-replaced");
    super::faults::replaced_beside_readers(&kept.pool);
}
