//! Memory servers and their clients as processes.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use crate::rig::{Dir, Running, await_some};

pub const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT, half BIGINT, name STRING) WITH (
        'connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence',
        'fields.half.max' = '9');
    CREATE TABLE t WITH ('connector' = 'pool') AS SELECT n, n / 2 AS half, name FROM numbers;";

pub const TABLE: &str = "CREATE TABLE t WITH ('connector' = 'pool');";

/// The sum of 0 to 199,999, and of their halves.
pub const SUMS: &str = "200000,19999900000,9999900000";

/// A command whose tokens lie in its directory.
pub fn command(dir: &Dir, args: &[&str]) -> Command {
    let mut command = dir.command(args);
    // Tokens that servers have left for the user are not found.
    command.env_remove("MILLSTREAM_POOL").env_remove("XDG_STATE_HOME");
    command.env("XDG_RUNTIME_DIR", &dir.0).env("HOME", &dir.0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A file with these statements. Calls with the same text give the same file.
pub fn script(dir: &Dir, sql: &str) -> PathBuf {
    let name = BuildHasherDefault::<DefaultHasher>::default().hash_one(sql);
    let path = dir.0.join(format!("{name:x}.sql"));
    if !path.exists() {
        let hidden = path.with_extension(format!("{:?}", std::thread::current().id()));
        std::fs::write(&hidden, sql).unwrap();
        std::fs::rename(&hidden, &path).unwrap();
    }
    path
}

/// A memory server or several, and what their clients do.
pub struct Pool {
    pub dir: Dir,
    pub server: Running,
    /// Those behind the first.
    pub others: Vec<Running>,
    /// The addresses of all.
    pub address: String,
}

impl Pool {
    pub fn start(name: &str, args: &[&str]) -> Self {
        let dir = Dir::new(&format!("pool-{name}"));
        let (server, address) = serve(&dir, "127.0.0.1:0", args);
        Self { dir, server, others: vec![], address }
    }

    /// Servers m0, m1 and so on.
    pub fn start_several(name: &str, args: &[&str], count: usize) -> Self {
        let dir = Dir::new(&format!("pool-{name}"));
        let server = |number: usize| {
            let name = format!("m{number}");
            serve(&dir, "127.0.0.1:0", &[args, &["--name", &name]].concat())
        };
        let (mut servers, addresses): (Vec<Running>, Vec<String>) = (0..count).map(server).unzip();
        let others = servers.split_off(1);
        Self { dir, server: servers.remove(0), others, address: addresses.join(",") }
    }

    /// Servers m0, m1 and so on, of these sizes.
    pub fn start_sized(name: &str, bytes: [&str; 2]) -> Self {
        let mut pool = Self::start(name, &["--bytes", bytes[0], "--name", "m0"]);
        let args = ["--bytes", bytes[1], "--name", "m1"];
        let (server, address) = serve(&pool.dir, "127.0.0.1:0", &args);
        pool.others.push(server);
        pool.address = format!("{},{address}", pool.address);
        pool
    }

    pub fn command(&self, args: &[&str]) -> Command {
        command(&self.dir, &[args, &["--pool", &self.address]].concat())
    }

    pub fn run(&self, sql: &str, args: &[&str]) -> Output {
        let script = script(&self.dir, sql);
        self.command(&[&["run", script.to_str().unwrap(), "-q"], args].concat()).output().unwrap()
    }

    pub fn rows(&self, sql: &str, args: &[&str]) -> String {
        let output = self.run(sql, args);
        assert_ends(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn sums(&self, args: &[&str]) -> String {
        let sql = format!("{TABLE} SELECT count(*) AS c, sum(n) AS n, sum(half) AS h FROM t;");
        self.rows(&sql, args).lines().last().unwrap_or_default().to_owned()
    }

    /// Numbers of the server's state.
    pub fn stat(&self) -> Value {
        let output = self.command(&["pool", "stat", "--json"]).output().unwrap();
        assert_ends(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Numbers of the states of all servers, by name.
    pub fn stats(&self) -> Vec<Value> {
        let output = self.command(&["pool", "stat", "--json"]).output().unwrap();
        assert_ends(&output, 0);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the states of all servers are as wanted.
    #[track_caller]
    pub fn await_stats(&self, what: &str, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        let found = || Some(self.stats()).filter(|stats| stats.iter().all(&is));
        await_some(found, || format!("{what}: {:?}", self.stats()))
    }

    /// The pool's entry of table `t`; nothing while it is not there.
    pub fn table(&self) -> Value {
        let output = self.command(&["pool", "stat", "t", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until the server's state is as wanted.
    #[track_caller]
    pub fn await_stat(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = || Some(self.stat()).filter(|stat| is(stat));
        await_some(found, || format!("{what}: {}", self.stat()))
    }

    /// A query that has written its first row, and goes on when its rows are read.
    pub fn reading(&self, args: &[&str]) -> Reading {
        let script = script(&self.dir, &format!("{TABLE} SELECT n, half, name FROM t;"));
        let script = script.to_str().unwrap();
        let args = [&["run", script, "-q", "--format", "csv"], args].concat();
        // Its log is how the test learns what it has noticed.
        let mut command = self.command(&args);
        command.env("MILLSTREAM_LOG", "warn,millstream=debug");
        let mut process = Running(command.spawn().unwrap());
        let mut rows = BufReader::new(process.0.stdout.take().unwrap());
        let messages = BufReader::new(process.0.stderr.take().unwrap());
        let mut head = String::new();
        rows.read_line(&mut head).unwrap();
        Reading { process, rows, messages, head }
    }

    /// A load that waits for rows.
    pub fn loading(&self) -> (Running, ChildStdin) {
        let sql = "CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
            CREATE TABLE u WITH ('connector' = 'pool') AS SELECT n FROM lines;";
        let script = script(&self.dir, sql);
        let mut command = self.command(&["run", script.to_str().unwrap(), "--workers", "1"]);
        let mut process = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut rows = process.0.stdin.take().unwrap();
        rows.write_all(b"n\n").unwrap();
        (0..20_000).for_each(|n| writeln!(rows, "{n}").unwrap());
        rows.flush().unwrap();
        self.await_stat("it loads", |stat| stat["loads"] == 1);
        (process, rows)
    }

    /// A load that has written to all servers, and waits for rows.
    pub fn loading_over_all(&self) -> (Running, ChildStdin) {
        let sql = "CREATE TABLE lines (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
            CREATE TABLE u WITH ('connector' = 'pool') AS SELECT n FROM lines;";
        let script = script(&self.dir, sql);
        let mut command = self.command(&["run", script.to_str().unwrap(), "--workers", "1"]);
        let mut process = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut rows = process.0.stdin.take().unwrap();
        rows.write_all(b"n\n").unwrap();
        (0..100_000).for_each(|n| writeln!(rows, "{n}").unwrap());
        rows.flush().unwrap();
        self.await_stats("it loads", |stat| stat["extents"] != 0);
        (process, rows)
    }
}

/// Reads until a line has this text.
pub fn hears(from: &mut impl BufRead, what: &str) {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "it has not written: {what}");
    }
}

pub struct Reading {
    pub process: Running,
    rows: BufReader<ChildStdout>,
    messages: BufReader<ChildStderr>,
    head: String,
}

impl Reading {
    /// Waits for a line on standard error.
    pub fn hears(&mut self, what: &str) {
        hears(&mut self.messages, what);
    }

    /// Lets it go on: its rows, the rest that it says, and its exit code.
    pub fn end(mut self) -> (usize, String, Option<i32>) {
        assert!(self.head.starts_with("n,half,name"), "{}", self.head);
        let (mut rows, mut messages) = (String::new(), String::new());
        self.rows.read_to_string(&mut rows).unwrap();
        self.messages.read_to_string(&mut messages).unwrap();
        let code = self.process.0.wait().unwrap().code();
        (rows.lines().count(), messages, code)
    }
}

/// Starts a server and waits until it is ready.
pub fn serve(dir: &Dir, at: &str, args: &[&str]) -> (Running, String) {
    let args = [&["memory", "--listen", at], args].concat();
    let mut server = Running(command(dir, &args).stderr(Stdio::inherit()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(" at ").nth(1).and_then(|rest| rest.split(": ").next());
    let address = address.unwrap_or_else(|| panic!("the server says: {line:?}")).to_owned();
    (server, address)
}

#[track_caller]
pub fn assert_ends(output: &Output, code: i32) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
}

#[track_caller]
pub fn assert_fails(output: &Output, code: i32, with: &str) {
    assert_ends(output, code);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains(with), "{messages}");
}

pub const WAYS: [&[&str]; 4] = [
    &["--workers", "1"],
    &["--nodes", "2", "--workers", "2"],
    &["--workers", "1", "--pool-fabric", "tcp"],
    &["--nodes", "2", "--workers", "2", "--pool-fabric", "tcp"],
];
