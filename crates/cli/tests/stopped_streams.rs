//! A job that is stopped and run again, whose rows are seen as they come: each is seen once.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long something may take, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Rows of the whole job.
const ROWS: usize = 40_000;

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str, sink: &str) -> Self {
        let name = format!("millstream-streams-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        // It takes no shorter than four seconds, and may be stopped meanwhile.
        let sql = format!(
            "SET 'millstream.checkpoint' = '50 ms';
             CREATE TABLE numbers (n BIGINT) WITH (
               'connector' = 'generator', 'rows' = '{ROWS}', 'rate' = '10000',
               'fields.n.kind' = 'sequence', 'fields.n.min' = '0');
             CREATE TABLE seen (n BIGINT) WITH ({sink});
             INSERT INTO seen SELECT n FROM numbers;"
        );
        fs::write(path.join("q.sql"), sql).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    fn appended(&self, name: &str) -> File {
        OpenOptions::new().create(true).append(true).open(self.0.join(name)).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn start(&self) -> Running {
        let nodes = ["--state", "state", "--nodes", "2", "--workers", "2"];
        let mut command = self.command(&[&["run", "q.sql"], &nodes[..]].concat());
        Running(command.stdout(self.appended("out")).stderr(self.appended("log")).spawn().unwrap())
    }

    /// Runs the job and stops it when `seen` says that rows have come, until it ends.
    fn run_with_stops(&self, seen: impl Fn() -> usize) {
        for _ in 0..3 {
            let (mut job, before) = (self.start(), seen());
            let until = Instant::now() + TIMEOUT;
            let has_ended = |job: &mut Running| job.0.try_wait().unwrap().is_some();
            while seen() <= before && !has_ended(&mut job) {
                assert!(Instant::now() < until, "{}", self.text("log"));
                std::thread::sleep(Duration::from_millis(10));
            }
            let stopped = self.command(&["stop", "q", "--state", "state"]).output().unwrap();
            assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
            job.ends();
        }
        assert_eq!(self.start().ends(), Some(0), "{}", self.text("log"));
        assert!(self.text("log").contains("goes on from checkpoint"), "{}", self.text("log"));
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run; it is ended with the test.
struct Running(Child);

impl Running {
    fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each number once, in whatever order the workers had them.
fn check(text: &str) {
    let mut numbers: Vec<i64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    numbers.sort_unstable();
    let lines = numbers.len();
    assert!(lines == ROWS, "{lines} rows in place of {ROWS}");
    assert!(numbers.into_iter().eq(0..ROWS as i64), "a row is missing, and another one came twice");
}

#[test]
fn rows_on_the_standard_output_come_once() {
    let dir = Dir::new("stdout", "'connector' = 'stdout', 'format' = 'csv'");
    dir.run_with_stops(|| dir.text("out").len());
    check(&dir.text("out"));
}

/// The bytes of each connection, in order.
type Taken = Arc<Mutex<Vec<Vec<u8>>>>;

/// Takes connections and what comes by each.
fn listen(to: TcpListener) -> Taken {
    let taken = Taken::default();
    let all = Arc::clone(&taken);
    std::thread::spawn(move || {
        for connection in to.incoming() {
            let (all, mut connection) = (Arc::clone(&all), connection.unwrap());
            let at = {
                let mut all = all.lock().unwrap();
                all.push(Vec::new());
                all.len() - 1
            };
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(length @ 1..) = connection.read(&mut bytes) {
                    all.lock().unwrap()[at].extend(&bytes[..length]);
                }
            });
        }
    });
    taken
}

#[test]
fn rows_to_a_socket_come_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let of = format!("'connector' = 'socket', 'address' = '{address}', 'format' = 'csv'");
    let (dir, taken) = (Dir::new("socket", &of), listen(listener));
    dir.run_with_stops(|| taken.lock().unwrap().iter().map(Vec::len).sum());
    let text = || taken.lock().unwrap().iter().map(|of| String::from_utf8_lossy(of)).collect();
    // What was sent last may not have been read.
    let until = Instant::now() + TIMEOUT;
    let mut all: String = text();
    while all.lines().count() < ROWS && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        all = text();
    }
    check(&all);
}
