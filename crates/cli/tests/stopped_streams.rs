//! A job that is stopped and run again, whose rows are seen as they come: each is seen once.

use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use crate::rig::{Dir, Running, await_that};

/// Rows of the whole job.
const ROWS: usize = 40_000;

/// The job, with its rows in this sink, in a directory of its own.
fn prepared(name: &str, sink: &str) -> Dir {
    let dir = Dir::new(&format!("streams-{name}"));
    // It takes no shorter than four seconds, and may be stopped meanwhile.
    let sql = format!(
        "SET 'millstream.checkpoint' = '50 ms';
         CREATE TABLE numbers (n BIGINT) WITH (
           'connector' = 'generator', 'rows' = '{ROWS}', 'rate' = '10000',
           'fields.n.kind' = 'sequence', 'fields.n.min' = '0');
         CREATE TABLE seen (n BIGINT) WITH ({sink});
         INSERT INTO seen SELECT n FROM numbers;"
    );
    dir.write("q.sql", &sql);
    dir
}

fn start(dir: &Dir) -> Running {
    let run = ["run", "q.sql", "--state", "state", "--nodes", "2", "--workers", "2"];
    let mut command = dir.command(&run);
    Running(command.stdout(dir.appended("out")).stderr(dir.appended("log")).spawn().unwrap())
}

/// Runs the job and stops it when `seen` says that rows have come, until it ends.
fn run_with_stops(dir: &Dir, seen: impl Fn() -> usize) {
    for _ in 0..3 {
        let (mut job, before) = (start(dir), seen());
        dir.await_that(|| seen() > before || job.has_ended());
        let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
        assert_eq!(code, Some(0), "{message}");
        job.ends();
    }
    assert_eq!(start(dir).ends(), Some(0), "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
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
    let dir = prepared("stdout", "'connector' = 'stdout', 'format' = 'csv'");
    run_with_stops(&dir, || dir.text("out").len());
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
    let (dir, taken) = (prepared("socket", &of), listen(listener));
    run_with_stops(&dir, || taken.lock().unwrap().iter().map(Vec::len).sum());
    let text = || -> String {
        taken.lock().unwrap().iter().map(|of| String::from_utf8_lossy(of)).collect()
    };
    // The rows that were sent last may not have been read.
    await_that(|| text().lines().count() >= ROWS, || format!("{} rows", text().lines().count()));
    check(&text());
}
