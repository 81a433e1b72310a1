//! Memory servers and their clients as processes: what they do, and what becomes of one when
//! another dies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a change is awaited that comes at once on a machine with nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(120);

const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT, half BIGINT, name STRING) WITH (
        'connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence',
        'fields.half.max' = '9');
    CREATE TABLE t WITH ('connector' = 'pool') AS SELECT n, n / 2 AS half, name FROM numbers;";

const TABLE: &str = "CREATE TABLE t WITH ('connector' = 'pool');";

/// The sum of 0 to 199,999, and of their halves.
const SUMS: &str = "200000,19999900000,9999900000";

/// A directory for the token of a server and for scripts.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("millstream-pool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).env_remove("MILLSTREAM_LOG").env_remove("MILLSTREAM_POOL");
        command.env("XDG_RUNTIME_DIR", &self.0).current_dir(&self.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn script(&self, sql: &str) -> PathBuf {
        let path =
            self.0.join(format!("{:x}.sql", sql.len() * 7919 + usize::from(sql.as_bytes()[9])));
        std::fs::write(&path, sql).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed at the end.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory server, and what its clients do.
struct Pool {
    dir: Dir,
    server: Process,
    address: String,
}

impl Pool {
    fn start(name: &str, args: &[&str]) -> Self {
        let dir = Dir::new(name);
        let (server, address) = serve(&dir, "127.0.0.1:0", args);
        Self { dir, server, address }
    }

    fn command(&self, args: &[&str]) -> Command {
        self.dir.command(&[args, &["--pool", &self.address]].concat())
    }

    fn run(&self, sql: &str, args: &[&str]) -> Output {
        let script = self.dir.script(sql);
        self.command(&[&["run", script.to_str().unwrap(), "-q"], args].concat()).output().unwrap()
    }

    fn rows(&self, sql: &str, args: &[&str]) -> String {
        let output = self.run(sql, args);
        assert_ends(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    }

    fn sums(&self, args: &[&str]) -> String {
        let sql = format!("{TABLE} SELECT count(*) AS c, sum(n) AS n, sum(half) AS h FROM t;");
        self.rows(&sql, args).lines().last().unwrap_or_default().to_owned()
    }

    /// Numbers of the server's state.
    fn stat(&self) -> Value {
        let output = self.command(&["pool", "stat", "--json"]).output().unwrap();
        assert_ends(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the server's state is as wanted.
    #[track_caller]
    fn await_stat(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let stat = self.stat();
            if is(&stat) {
                return stat;
            }
            assert!(begun.elapsed() < TIMEOUT, "{what}: {stat}");
        }
    }

    /// A query that has written its first row, and goes on when its rows are read.
    fn reading(&self, args: &[&str]) -> Reading {
        let script = self.dir.script(&format!("{TABLE} SELECT n, half, name FROM t;"));
        let script = script.to_str().unwrap();
        let args = [&["run", script, "-q", "--format", "csv"], args].concat();
        // Its log is how the test learns what it has noticed.
        let mut command = self.command(&args);
        command.env("MILLSTREAM_LOG", "warn,millstream=debug");
        let mut process = Process(command.spawn().unwrap());
        let mut rows = BufReader::new(process.0.stdout.take().unwrap());
        let messages = BufReader::new(process.0.stderr.take().unwrap());
        let mut head = String::new();
        rows.read_line(&mut head).unwrap();
        Reading { process, rows, messages, head }
    }

    /// A load that waits for rows.
    fn loading(&self) -> (Process, ChildStdin) {
        let sql = "CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
            CREATE TABLE u WITH ('connector' = 'pool') AS SELECT n FROM lines;";
        let script = self.dir.script(sql);
        let mut command = self.command(&["run", script.to_str().unwrap(), "--workers", "1"]);
        let mut process = Process(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut rows = process.0.stdin.take().unwrap();
        rows.write_all(b"n\n").unwrap();
        (0..20_000).for_each(|n| writeln!(rows, "{n}").unwrap());
        rows.flush().unwrap();
        self.await_stat("it loads", |stat| stat["loads"] == 1);
        (process, rows)
    }
}

struct Reading {
    process: Process,
    rows: BufReader<ChildStdout>,
    messages: BufReader<ChildStderr>,
    head: String,
}

impl Reading {
    /// Waits for a line on standard error.
    fn hears(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert_ne!(
                self.messages.read_line(&mut line).unwrap(),
                0,
                "it has not written: {what}"
            );
        }
    }

    /// Lets it go on: its rows, the rest that it says, and its exit code.
    fn end(mut self) -> (usize, String, Option<i32>) {
        assert!(self.head.starts_with("n,half,name"), "{}", self.head);
        let (mut rows, mut messages) = (String::new(), String::new());
        self.rows.read_to_string(&mut rows).unwrap();
        self.messages.read_to_string(&mut messages).unwrap();
        let code = self.process.0.wait().unwrap().code();
        (rows.lines().count(), messages, code)
    }
}

/// Starts a server and waits until it is ready.
fn serve(dir: &Dir, at: &str, args: &[&str]) -> (Process, String) {
    let args = [&["memory", "--listen", at], args].concat();
    let mut server = Process(dir.command(&args).stderr(Stdio::inherit()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(" at ").nth(1).and_then(|rest| rest.split(": ").next());
    let address = address.unwrap_or_else(|| panic!("the server says: {line:?}")).to_owned();
    (server, address)
}

#[track_caller]
fn assert_ends(output: &Output, code: i32) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, with: &str) {
    assert_ends(output, code);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains(with), "{messages}");
}

const WAYS: [&[&str]; 4] = [
    &["--workers", "1"],
    &["--nodes", "2", "--workers", "2"],
    &["--workers", "1", "--pool-fabric", "tcp"],
    &["--nodes", "2", "--workers", "2", "--pool-fabric", "tcp"],
];

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
    let dir = Dir::new("own");
    let script = dir.script(&format!("{LOAD} SELECT count(*) AS c FROM t;"));
    let script = script.to_str().unwrap();
    for nodes in ["1", "2"] {
        let args = ["run", script, "-q", "--memory-servers", "2x64MiB", "--nodes", nodes];
        let output = dir.command(&args).output().unwrap();
        assert_ends(&output, 0);
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().last(), Some("200000"));
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
    pool.await_stat("all is free", |stat| stat["bytes"] == 0 && stat["loads"] == 0);
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
    let other = Dir::new("other");
    let tokens = other.0.join("millstream");
    std::fs::create_dir_all(&tokens).unwrap();
    let name = format!("service-{}.token", pool.address);
    let wrong = tokens.join(&name);
    std::fs::write(&wrong, format!("{}\n", "0".repeat(32))).unwrap();
    set_mode(&wrong, 0o600);
    let asks = || other.command(&["pool", "ls", "--pool", &pool.address]).output().unwrap();
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
    let memory = |args: &[&str]| pool.dir.command(&[&["memory"], args].concat()).output().unwrap();
    let taken = memory(&["--bytes", "64MiB", "--listen", &pool.address]);
    assert_fails(&taken, 1, "the port is in use");
    let open = memory(&["--bytes", "64MiB", "--listen", "0.0.0.0:0"]);
    assert_fails(&open, 1, "clients have to prove who they are");
    assert_fails(&memory(&["--bytes", "1000TiB", "--listen", "127.0.0.1:0"]), 2, "does not fit");
    assert_fails(&memory(&["--bytes", "8 apples"]), 2, "such as 8GiB");
    assert_fails(&pool.dir.command(&["pool", "ls"]).output().unwrap(), 2, "no pool is named");
}

#[test]
fn with_certificates_both_sides_show_one() {
    let dir = Dir::new("certs");
    for args in [["cert", "init", "ca"].as_slice(), &["cert", "issue", "ca", "node"]] {
        assert_ends(&dir.command(args).output().unwrap(), 0);
    }
    let (_server, address) = serve(&dir, "127.0.0.1:0", &["--bytes", "64MiB", "--certs", "node"]);
    let ask = |args: &[&str]| {
        dir.command(&[&["pool", "stat", "--pool", &address], args].concat()).output().unwrap()
    };
    assert_ends(&ask(&["--pool-certs", "node"]), 0);
    assert_fails(&ask(&[]), 1, "no memory server answers at");
    for args in [["cert", "init", "other"].as_slice(), &["cert", "issue", "other", "stranger"]] {
        assert_ends(&dir.command(args).output().unwrap(), 0);
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
