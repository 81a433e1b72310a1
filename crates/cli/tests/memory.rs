//! Memory servers that are killed, watched and short of descriptors, as processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a change is awaited that comes at once on a machine with nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(120);

const TABLE: &str = "CREATE TABLE t WITH ('connector' = 'pool');";

/// A directory for tokens, scripts and tables.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("millstream-memory-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env_remove("MILLSTREAM_LOG").env_remove("MILLSTREAM_POOL");
        // Tokens that servers have left for the user are not found.
        command.env("XDG_RUNTIME_DIR", &self.0).env("HOME", &self.0).env_remove("XDG_STATE_HOME");
        command.current_dir(&self.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn millstream(&self, args: &[&str]) -> Output {
        self.command(PROGRAM, args).output().unwrap()
    }

    fn run(&self, at: &str, sql: &str, more: &[&str]) -> Output {
        let script = self.0.join("script.sql");
        std::fs::write(&script, sql).unwrap();
        self.millstream(
            &[&["run", "script.sql", "-q", "--pool", at, "--workers", "1"], more].concat(),
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_millstream");

/// A server that is killed at the end.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut process = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split(" at ").nth(1).and_then(|rest| rest.split(": ").next());
        let address = address.unwrap_or_else(|| panic!("the server says: {line:?}")).to_owned();
        Self { process, address }
    }

    fn of(place: &Place, listen: &str, more: &[&str]) -> Self {
        let args = [&["memory", "--bytes", "256MiB", "--listen", listen], more].concat();
        Self::start(place.command(PROGRAM, &args))
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[track_caller]
fn out(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "stdout:\n{out}\nstderr:\n{err}");
    out.into_owned()
}

/// Makes the rows of a table: the numbers from 0 on.
fn numbers(rows: u64, then: &str) -> String {
    format!(
        "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '{rows}',
             'fields.n.kind' = 'sequence'); {then}"
    )
}

const CREATE: &str = "CREATE TABLE t WITH ('connector' = 'pool') AS SELECT n FROM numbers;";

#[test]
fn a_server_that_was_killed_has_its_tables_again_and_jobs_that_ran_fail_once() {
    let place = Place::new("killed");
    let mut server = Server::of(&place, "127.0.0.1:0", &["--dir", "kept"]);
    let at = server.address.clone();
    out(&place.run(&at, &numbers(500_000, CREATE), &[]));
    let sum = format!("{TABLE} SELECT count(*) AS c, sum(n) AS s FROM t;");
    std::fs::write(place.0.join("read.sql"), format!("{TABLE} SELECT n FROM t;")).unwrap();
    let args = ["run", "read.sql", "-q", "--format", "csv", "--pool", &at, "--workers", "1"];
    let args = [&args[..], &["--pool-fabric", "tcp"]].concat();
    let mut reading = place.command(PROGRAM, &args).spawn().unwrap();
    let mut rows = BufReader::new(reading.stdout.take().unwrap());
    rows.read_line(&mut String::new()).unwrap();
    server.kill();
    let server = Server::of(&place, &at, &["--dir", "kept"]);
    // The pipe is full of rows: what follows them is one error.
    rows.read_to_string(&mut String::new()).unwrap();
    let mut messages = String::new();
    reading.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert_eq!(reading.wait().unwrap().code(), Some(1), "{messages}");
    assert_eq!(messages.matches("memory server 'm0' is gone").count(), 1, "{messages}");
    assert!(out(&place.run(&server.address, &sum, &[])).ends_with("500000,124999750000\n"));
    out(&place.millstream(&["pool", "verify", "t", "--pool", &at]));
}

#[test]
fn a_load_in_which_the_server_is_killed_is_there_whole_or_not_at_all() {
    let place = Place::new("loads");
    let mut server = Server::of(&place, "127.0.0.1:0", &["--dir", "kept"]);
    let at = server.address.clone();
    out(&place.run(&at, &numbers(100_000, CREATE), &[]));
    // Each load has more rows than the one before, so that the sums tell them apart.
    let sums = |rows: u64| format!("{rows},{}\n", rows * (rows - 1) / 2);
    let mut rows = 100_000;
    for round in 0..8 {
        let next = rows + 1000;
        let load = numbers(next, &format!("{TABLE} INSERT OVERWRITE t SELECT n FROM numbers;"));
        std::fs::write(place.0.join("load.sql"), load).unwrap();
        let args = ["run", "load.sql", "-q", "--pool", &at, "--workers", "1"];
        let loading = place.command(PROGRAM, &args).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(40 * round));
        server.kill();
        let loaded = loading.wait_with_output().unwrap().status.success();
        server = Server::of(&place, &at, &["--dir", "kept"]);
        let sum = format!("{TABLE} SELECT count(*) AS c, sum(n) AS s FROM t;");
        let found = out(&place.run(&at, &sum, &[]));
        if found.ends_with(&sums(next)) {
            rows = next;
        } else {
            assert!(!loaded, "round {round}: it was told that the rows are there: {found}");
            assert!(found.ends_with(&sums(rows)), "round {round}: {found}");
        }
        out(&place.millstream(&["pool", "verify", "t", "--pool", &at]));
    }
}

/// The tables that are served there.
fn page(at: &str) -> String {
    let mut socket = TcpStream::connect(at).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_server_tells_what_it_has_and_has_done() {
    let place = Place::new("metrics");
    let mut command = place.command(
        PROGRAM,
        &["memory", "--bytes", "64MiB", "--listen", "127.0.0.1:0", "--metrics=127.0.0.1:0"],
    );
    command.stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(" at ").nth(1).unwrap().split(": ").next().unwrap().to_owned();
    let mut announced = String::new();
    BufReader::new(process.stderr.as_mut().unwrap()).read_line(&mut announced).unwrap();
    let server = Server { process, address };
    let metrics = announced.trim().strip_prefix("metrics on http://").unwrap();
    let metrics: SocketAddr = metrics.strip_suffix("/metrics").unwrap().parse().unwrap();
    let at = server.address.as_str();
    out(&place.run(at, &numbers(50_000, CREATE), &[]));
    let sum = format!("{TABLE} SELECT sum(n) AS s FROM t;");
    out(&place.run(at, &sum, &["--pool-fabric", "tcp"]));
    let failed = place.run(at, &numbers(5, CREATE), &[]);
    assert!(!failed.status.success(), "the table is there");
    let stat = out(&place.millstream(&["pool", "stat", "--json", "--pool", at]));
    let stat: Value = serde_json::from_str(&stat).unwrap();
    assert_eq!(
        (&stat["tables"], &stat["versions"], &stat["damaged"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert!(stat["reads"].as_u64() > Some(5), "{stat}");
    // The page is of a moment ago.
    let begun = Instant::now();
    loop {
        let page = page(&metrics.to_string());
        let has = |name: &str, value: &Value| {
            page.contains(&format!("\nmillstream_pool_{name}{{server=\"m0\"}} {value}\n"))
        };
        let all = has("tables", &stat["tables"])
            && has("bytes", &stat["bytes"])
            && has("budget_bytes", &stat["bytes_max"])
            && has("reads_total", &stat["reads"])
            && has("read_bytes_total", &stat["read_bytes"]);
        if all {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{page}\n{stat}");
    }
}

/// Processor time that a process has used, in ticks of 10 ms.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_server_without_descriptors_waits_for_some() {
    let place = Place::new("descriptors");
    let serves = format!("ulimit -n 64; exec {PROGRAM} memory --bytes 64MiB --listen 127.0.0.1:0");
    let server = Server::start(place.command("sh", &["-c", &serves]));
    let at = server.address.as_str();
    let idle: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(at).unwrap()).collect();
    let before = ticks(server.process.id());
    // A stranger is sent away after two seconds: so long there are no descriptors.
    std::thread::sleep(Duration::from_millis(1500));
    let used = ticks(server.process.id()) - before;
    assert!(used < 75, "it was busy for {used} of 150 ticks");
    drop(idle);
    let begun = Instant::now();
    while !place.millstream(&["pool", "stat", "--pool", at]).status.success() {
        assert!(begun.elapsed() < TIMEOUT, "it serves nobody any more");
    }
}

#[test]
fn readers_of_a_token_file_read_and_do_not_load() {
    let place = Place::new("readers");
    let server = Server::of(&place, "127.0.0.1:0", &["--read-token-file", "readers.token"]);
    let at = server.address.as_str();
    out(&place.run(at, &numbers(1000, CREATE), &[]));
    let more = ["--pool-token-file", "readers.token"];
    let sum = format!("{TABLE} SELECT sum(n) AS s FROM t;");
    assert!(out(&place.run(at, &sum, &more)).ends_with("499500\n"));
    let insert = numbers(5, &format!("{TABLE} INSERT INTO t SELECT n FROM numbers;"));
    let dropped = ["pool", "drop", "t", "--pool", at, "--pool-token-file", "readers.token"];
    for refused in [place.run(at, &insert, &more), place.millstream(&dropped)] {
        let messages = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{messages}");
        assert!(messages.contains("neither load nor drop"), "{messages}");
    }
    assert!(Path::new(&place.0.join("readers.token")).exists());
    let another = ["memory", "--bytes", "1MiB", "--listen", "127.0.0.1:0"];
    let another =
        place.millstream(&[&another[..], &["--read-token-file", "readers.token"]].concat());
    let messages = String::from_utf8_lossy(&another.stderr);
    assert!(messages.contains("it is not written over: remove it"), "{messages}");
}
