//! Signals, limits and full disks: what may happen to a job's processes beside an end.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::*;
use crate::rig;

const ROWS: u32 = 40_000;
const RUN: [&str; 8] = ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", "2"];

fn signal_all(processes: &[i32], signal: Signal) {
    for process in processes {
        // One of them may have ended.
        rig::signal(*process, signal);
    }
}

/// Looks at a pipe that must find no more bytes in it, until it is taken for full.
const FULL_LOOKS: u32 = 400;

/// Waits until a pipe is full that a job writes without an end, and all buffers in front of it.
fn await_full(pipe: &ChildStdout) {
    let (mut before, mut same) = (0, 0);
    let is_full = || {
        let now = rustix::io::ioctl_fionread(pipe).unwrap();
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
        same >= FULL_LOOKS
    };
    rig::await_that(is_full, || "the pipe gets more bytes");
}

fn paced(dir: &Dir) {
    dir.write("q.sql", &windows(ROWS, "'rate' = '4000',"));
}

#[test]
fn a_node_that_is_stopped_is_killed_and_the_job_goes_on() {
    let expected = undisturbed("stopped-node", ROWS);
    let dir = Dir::new("stopped-node");
    paced(&dir);
    let mut job = dir.start(dir.command(&RUN));
    // Node 0 notices that node 1 is stopped, and its supervisor that node 0 is.
    for node in [1, 0] {
        let parts = dir.parts();
        dir.await_more_than(parts, &mut job);
        let nodes = job.below();
        let victim = nodes[node.min(nodes.len() - 1)];
        signal(victim, Signal::STOP);
        dir.await_that(|| !runs(victim));
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(dir.log().contains("is stopped for 3 s, and is killed"), "{}", dir.log());
}

#[test]
fn a_run_that_wakes_up_behind_another_one_publishes_nothing() {
    let expected = undisturbed("woken", ROWS);
    let dir = Dir::new("woken");
    paced(&dir);
    let mut first = dir.start(dir.command(&RUN));
    dir.await_more_than(0, &mut first);
    let all: Vec<i32> = [vec![first.id()], first.below()].concat();
    signal_all(&all, Signal::STOP);
    let (code, message) = dir.run(&RUN);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("job 'q' runs as generation"), "{message}");
    let (code, message) = dir.run(&[&RUN[..], &["--take-over"]].concat());
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("goes on from checkpoint"), "{message}");
    assert_eq!(dir.rows("out"), expected, "{message}");
    signal_all(&all, Signal::CONT);
    assert_eq!(first.ends(), Some(1), "{}", dir.log());
    assert!(dir.log().contains("goes on elsewhere as generation 2"), "{}", dir.log());
    // The first run may leave a hidden part.
    assert_eq!(dir.published("out"), expected, "{}", dir.log());
}

#[test]
fn all_nodes_end_with_their_supervisor_and_go_on_with_the_next() {
    let expected = undisturbed("orphans", ROWS);
    let dir = Dir::new("orphans");
    paced(&dir);
    for _ in 0..2 {
        let mut job = dir.start(dir.command(&RUN));
        let parts = dir.parts();
        dir.await_more_than(parts, &mut job);
        let nodes = job.below();
        signal(job.id(), Signal::KILL);
        assert_eq!(job.ends(), None, "{}", dir.log());
        for node in nodes {
            await_that(|| !runs(node), || format!("node {node} lives on"));
        }
    }
    let (code, message) = dir.run(&RUN);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(dir.rows("out"), expected, "{message}");
    for left in ["out", "state/q/chain", "state/q/seg"] {
        let names = dir.names(left).into_iter();
        let hidden: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
        assert!(hidden.is_empty(), "{left}: {hidden:?}");
    }
}

#[test]
fn sigterm_to_all_processes_at_once_takes_a_last_checkpoint() {
    let expected = undisturbed("group", ROWS);
    let dir = Dir::new("group");
    paced(&dir);
    let mut job = dir.start(dir.command(&RUN));
    dir.await_more_than(0, &mut job);
    // As systemd does, and scancel.
    let all: Vec<i32> = [vec![job.id()], job.below()].concat();
    signal_all(&all, Signal::TERM);
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
    assert!(dir.log().contains("ended early, as asked"), "{}", dir.log());
    let (_, message) = dir.run(&["state", "list", "--state", "state"]);
    assert!(message.contains("stopped"), "{message}");
    let (code, message) = dir.run(&RUN);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(dir.rows("out"), expected, "{message}");
}

/// Rows to standard output, without an end.
fn endless(rate: &str) -> String {
    format!(
        "SET 'millstream.checkpoint' = '100 ms';
         CREATE TABLE numbers (n BIGINT) WITH (
           'connector' = 'generator', {rate} 'fields.n.kind' = 'sequence');
         CREATE TABLE shown (n BIGINT) WITH ('connector' = 'stdout', 'format' = 'csv');
         INSERT INTO shown SELECT n FROM numbers;"
    )
}

/// The lines of a process on standard error, as they come: a file would meet its limits.
fn listen(job: &mut Running) -> Arc<Mutex<String>> {
    let message = Arc::new(Mutex::new(String::new()));
    let (stderr, received) = (job.0.stderr.take().unwrap(), message.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            *received.lock().unwrap() += &format!("{line}\n");
        }
    });
    message
}

/// The number of the last checkpoint.
fn checkpoint(dir: &Dir) -> u64 {
    let (_, message) = dir.run(&["state", "list", "--state", "state", "--json"]);
    let at = message.split("\"checkpoint\":").nth(1).unwrap_or("");
    let digits: String = at.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

#[test]
fn a_checkpoint_that_has_no_room_is_given_up_and_a_later_one_is_stored() {
    let dir = Dir::new("full");
    dir.write("q.sql", &endless("'rate' = '1000',"));
    let mut command = dir.command(&RUN);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut job = Running(command.spawn().unwrap());
    let message = listen(&mut job);
    await_that(|| checkpoint(&dir) > 0, || "a checkpoint");
    // No process of it can write to a file.
    let nodes = job.below();
    let limit = |bytes: Option<u64>| {
        for node in nodes.iter().copied() {
            let limit = Rlimit { current: bytes, maximum: None };
            prlimit(Pid::from_raw(node), Resource::Fsize, limit).unwrap();
        }
    };
    limit(Some(0));
    let is_told = || message.lock().unwrap().contains("a checkpoint is given up");
    await_that(is_told, || "a warning");
    let before = checkpoint(&dir);
    assert!(!job.has_ended(), "it goes on: {}", message.lock().unwrap());
    limit(None);
    await_that(|| checkpoint(&dir) > before, || "a later checkpoint");
    signal(job.id(), Signal::TERM);
    assert_eq!(job.ends(), Some(130), "{}", message.lock().unwrap());
    assert!(!message.lock().unwrap().contains("started again"), "{}", message.lock().unwrap());
}

#[test]
fn a_stop_does_not_wait_for_a_reader_that_takes_nothing() {
    let dir = Dir::new("stuck");
    dir.write("q.sql", &endless(""));
    let mut command = dir.command(&RUN);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = Running(command.spawn().unwrap());
    let message = listen(&mut job);
    // Its reader takes a line, so that it runs, and then nothing.
    let mut reader = BufReader::with_capacity(16, job.0.stdout.take().unwrap());
    assert!(reader.read_line(&mut String::new()).unwrap() > 0);
    await_full(reader.get_ref());
    signal(job.id(), Signal::TERM);
    assert_eq!(job.ends(), Some(130), "{}", message.lock().unwrap());
    drop(reader);
}

/// The user ends the job between the answer to a request and what was asked for.
#[test]
fn a_rescale_of_a_job_that_is_ended_meanwhile_fails_with_it() {
    let dir = Dir::new("ended-meanwhile");
    dir.write("q.sql", &endless(""));
    let mut command = dir.command(&RUN);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = Running(command.spawn().unwrap());
    let message = listen(&mut job);
    // It cannot stop for the request as long as nobody reads its rows.
    let mut reader = BufReader::with_capacity(16, job.0.stdout.take().unwrap());
    assert!(reader.read_line(&mut String::new()).unwrap() > 0);
    await_full(reader.get_ref());
    let rescale = ["rescale", "q", "--nodes", "3", "--state", "state"];
    let asks = dir.0.join("state/q/ask");
    let asked = || asks.read_dir().into_iter().flatten().flatten();
    let is_answer = |name: std::ffi::OsString| name.to_string_lossy().ends_with(".answer");
    let (code, output) = std::thread::scope(|scope| {
        let rescaled = scope.spawn(|| dir.run(&rescale));
        dir.await_that(|| asked().any(|entry| is_answer(entry.file_name())));
        signal(job.id(), Signal::TERM);
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        rescaled.join().unwrap()
    });
    assert_eq!(code, Some(1), "{output}\n{}", message.lock().unwrap());
    assert!(output.contains("is not rescaled: it was ended meanwhile"), "{output}");
    assert_eq!(job.ends(), Some(130), "{}", message.lock().unwrap());
    assert_eq!(asked().count(), 0);
}
