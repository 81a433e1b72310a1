//! The server: tables are made, filled and read here without the connector.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest wait, on a machine that is busy with other things.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Where it listens: `host:port`.
pub fn address() -> String {
    std::env::var("MILLSTREAM_POSTGRES").expect("scripts/test-world.sh starts a server")
}

/// The address of its database, as tables are declared with it.
pub fn url() -> String {
    format!("postgresql://{}/postgres?sslmode=disable", address())
}

/// Has the script do something to the server.
pub fn script(what: &str) {
    let script = std::env::var("MILLSTREAM_POSTGRES_SCRIPT").expect("the script names itself");
    let mut done = Command::new(script);
    // The server inherits no pipe, whose end somebody would wait for.
    done.arg(what).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(done.status().unwrap().success(), "{what}");
}

/// The output of psql, or its error.
pub fn try_psql(sql: &str) -> Result<String, String> {
    let address = address();
    let (host, port) = address.split_once(':').unwrap();
    let mut psql = Command::new("psql");
    psql.args(["-h", host, "-p", port, "-U", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1"]);
    let done = psql.args(["-c", sql]).output().unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

/// The same, of statements that succeed.
#[track_caller]
pub fn psql(sql: &str) -> String {
    try_psql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Makes a table of its own; gives its name.
#[track_caller]
pub fn made(name: &str, columns: &str) -> String {
    let name = unique(name);
    psql(&format!("CREATE TABLE {name} ({columns})"));
    name
}

/// A name that no other test has.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{name}_{}_{next}", std::process::id())
}

/// The lines of an answer of psql.
#[track_caller]
pub fn lines(sql: &str) -> Vec<String> {
    psql(sql).lines().map(str::to_owned).collect()
}

#[track_caller]
pub fn waits_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_there() {
        assert!(since.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A session of psql that stays open.
pub struct Session(std::process::Child);

impl Session {
    /// One with a transaction that is open.
    pub fn begin() -> Self {
        let address = address();
        let (host, port) = address.split_once(':').unwrap();
        let mut psql = Command::new("psql");
        psql.args(["-h", host, "-p", port, "-U", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = Self(psql.spawn().unwrap());
        session.run("BEGIN");
        session
    }

    /// Runs statements, and waits for their end.
    pub fn run(&mut self, sql: &str) {
        use std::io::{BufRead, BufReader, Write};
        let stdin = self.0.stdin.as_mut().unwrap();
        writeln!(stdin, "{sql};\n\\echo done").unwrap();
        let stdout = self.0.stdout.as_mut().unwrap();
        // Nothing else is written, so that no line is read ahead and lost.
        let line = BufReader::new(stdout).lines().next();
        assert_eq!(line.unwrap().unwrap(), "done", "{sql}");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
