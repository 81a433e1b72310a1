//! A directory that is watched by a job with checkpoints: each row of each file is written once,
//! whatever nodes are killed and however many there are.

use std::fs;

use rustix::process::Signal;

use crate::rig::{Dir, Running, await_that, signal};

const ROWS_OF_FILE: usize = 500;

/// Puts a file of rows into the directory.
fn put(dir: &Dir, file: usize) {
    let numbers = file * ROWS_OF_FILE..(file + 1) * ROWS_OF_FILE;
    let lines: String = numbers.map(|number| format!("{number}\n")).collect();
    dir.write("next", &format!("n\n{lines}"));
    fs::rename(dir.0.join("next"), dir.0.join(format!("in/{file}.csv"))).unwrap();
}

/// The numbers that were written, sorted.
fn written(dir: &Dir) -> Vec<usize> {
    let rows = dir.published("out");
    let mut numbers: Vec<usize> = rows.iter().filter_map(|row| row.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

#[track_caller]
fn await_rows(dir: &Dir, rows: usize) {
    let written = || written(dir).len();
    await_that(|| written() >= rows, || format!("{} of {rows}: {}", written(), dir.log()));
}

fn start(dir: &Dir, nodes: &str, workers: &str) -> Running {
    let layout = ["--state", "state", "--nodes", nodes, "--workers", workers];
    dir.start(dir.command(&[&["run", "q.sql"], &layout[..]].concat()))
}

/// Stops the job, which takes a last checkpoint.
#[track_caller]
fn stop(dir: &Dir, job: &mut Running) {
    let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(job.ends(), Some(130), "{}", dir.log());
}

#[test]
fn files_of_a_watched_directory_are_read_once_by_nodes_that_die_and_by_other_nodes() {
    let dir = Dir::new("watched-nodes");
    let sql = "SET 'millstream.checkpoint' = '50 ms';
        CREATE TABLE come (n BIGINT) WITH (
          'connector' = 'file', 'path' = 'in/', 'format' = 'csv', 'watch' = '20ms',
          'watch.settle' = '0s');
        CREATE TABLE written (n BIGINT) WITH (
          'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
        INSERT INTO written SELECT n FROM come;";
    fs::create_dir(dir.0.join("in")).unwrap();
    dir.write("q.sql", sql);
    let mut files = 0;
    for (nodes, workers, kills) in [("2", "2", 2), ("3", "1", 1), ("1", "2", 0)] {
        let mut job = start(&dir, nodes, workers);
        for kill in 0..=kills {
            (0..4).for_each(|at| put(&dir, files + at));
            files += 4;
            // Some rows are written when a node dies, and others are on their way.
            await_rows(&dir, files * ROWS_OF_FILE - 3 * ROWS_OF_FILE);
            let nodes = job.below();
            if kill < kills
                && let Some(node) = nodes.get(kill % nodes.len().max(1))
            {
                signal(*node, Signal::KILL);
            }
        }
        await_rows(&dir, files * ROWS_OF_FILE - 2 * ROWS_OF_FILE);
        stop(&dir, &mut job);
        // A file that was read need not be kept.
        let _ = fs::remove_file(dir.0.join("in/0.csv"));
    }
    let mut job = start(&dir, "2", "1");
    // Its rows tell that this run has begun.
    put(&dir, files);
    files += 1;
    await_rows(&dir, files * ROWS_OF_FILE);
    stop(&dir, &mut job);
    assert!(written(&dir).into_iter().eq(0..files * ROWS_OF_FILE), "{}", dir.log());
}

#[test]
fn rows_that_come_once_are_refused_by_a_job_that_would_begin_anew() {
    let dir = Dir::new("watched-once");
    let sql = "CREATE TABLE come (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
        CREATE TABLE written (n BIGINT) WITH ('connector' = 'file', 'path' = 'out.csv');
        INSERT INTO written SELECT n FROM come;";
    dir.write("q.sql", sql);
    let (code, message) = dir.run(&["run", "q.sql", "--state", "state"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("come once") && message.contains("without --state"), "{message}");
    assert!(!dir.0.join("out.csv").exists());
}
