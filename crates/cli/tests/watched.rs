//! A directory that is watched by a job with checkpoints: each row of each file is written once,
//! whatever nodes are killed and however many there are.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long something may take, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(180);
const ROWS_OF_FILE: usize = 500;

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("millstream-watched-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("in")).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    fn start(&self, nodes: &str, workers: &str) -> Running {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.0.join("log"));
        let layout = ["--state", "state", "--nodes", nodes, "--workers", workers];
        let mut command = self.command(&[&["run", "q.sql"], &layout[..]].concat());
        let child = command.stderr(log.unwrap()).stdout(Stdio::null()).spawn().unwrap();
        Running(child)
    }

    /// Puts a file of rows into the directory.
    fn put(&self, file: usize) {
        let numbers = file * ROWS_OF_FILE..(file + 1) * ROWS_OF_FILE;
        let lines: String = numbers.map(|number| format!("{number}\n")).collect();
        fs::write(self.0.join("next"), format!("n\n{lines}")).unwrap();
        fs::rename(self.0.join("next"), self.0.join(format!("in/{file}.csv"))).unwrap();
    }

    /// The numbers that were written, sorted.
    fn written(&self) -> Vec<usize> {
        let Ok(parts) = fs::read_dir(self.0.join("out")) else { return vec![] };
        let parts = parts.map(|part| part.unwrap().path());
        let is_seen =
            |path: &PathBuf| !path.file_name().unwrap().to_string_lossy().starts_with('.');
        let texts = parts.filter(is_seen).map(|path| fs::read_to_string(path).unwrap());
        let texts: Vec<String> = texts.collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        let mut numbers: Vec<usize> = lines.filter_map(|line| line.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    #[track_caller]
    fn await_rows(&self, rows: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.written().len() < rows {
            assert!(Instant::now() < until, "{} of {rows}: {}", self.written().len(), self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run; it is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that another one has started, and those that these have.
fn started_by(process: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let direct = lists.iter().flat_map(|list| list.split_whitespace());
    let direct: Vec<i32> = direct.filter_map(|pid| pid.parse().ok()).collect();
    let below: Vec<i32> = direct.iter().flat_map(|pid| started_by(*pid)).collect();
    [direct, below].concat()
}

#[test]
fn files_of_a_watched_directory_are_read_once_by_nodes_that_die_and_by_other_nodes() {
    let dir = Dir::new("nodes");
    let sql = "SET 'millstream.checkpoint' = '50 ms';
        CREATE TABLE come (n BIGINT) WITH (
          'connector' = 'file', 'path' = 'in/', 'format' = 'csv', 'watch' = '20ms',
          'watch.settle' = '0s');
        CREATE TABLE written (n BIGINT) WITH (
          'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
        INSERT INTO written SELECT n FROM come;";
    fs::write(dir.0.join("q.sql"), sql).unwrap();
    let mut files = 0;
    for (nodes, workers, kills) in [("2", "2", 2), ("3", "1", 1), ("1", "2", 0)] {
        let mut job = dir.start(nodes, workers);
        for kill in 0..=kills {
            (0..4).for_each(|at| dir.put(files + at));
            files += 4;
            // Some rows are written when a node dies, and others are on their way.
            dir.await_rows(files * ROWS_OF_FILE - 3 * ROWS_OF_FILE);
            let running = started_by(job.0.id().cast_signed());
            if kill < kills
                && let Some(node) = running.get(kill % running.len().max(1))
            {
                let _ = kill_process(Pid::from_raw(*node).unwrap(), Signal::KILL);
            }
        }
        dir.await_rows(files * ROWS_OF_FILE - 2 * ROWS_OF_FILE);
        let stopped = dir.command(&["stop", "q", "--state", "state"]).output().unwrap();
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        assert_eq!(job.0.wait().unwrap().code(), Some(130), "{}", dir.log());
        // What has been read need not be kept.
        let _ = fs::remove_file(dir.0.join("in/0.csv"));
    }
    let mut job = dir.start("2", "1");
    // Its rows tell that this run has begun.
    dir.put(files);
    files += 1;
    dir.await_rows(files * ROWS_OF_FILE);
    let stopped = dir.command(&["stop", "q", "--state", "state"]).output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(job.0.wait().unwrap().code(), Some(130), "{}", dir.log());
    assert!(dir.written().into_iter().eq(0..files * ROWS_OF_FILE), "{}", dir.log());
}

#[test]
fn rows_that_come_once_are_refused_by_a_job_that_would_begin_anew() {
    let dir = Dir::new("once");
    let sql = "CREATE TABLE come (n BIGINT) WITH ('connector' = 'stdin', 'format' = 'csv');
        CREATE TABLE written (n BIGINT) WITH ('connector' = 'file', 'path' = 'out.csv');
        INSERT INTO written SELECT n FROM come;";
    fs::write(dir.0.join("q.sql"), sql).unwrap();
    let refused = dir.command(&["run", "q.sql", "--state", "state"]).output().unwrap();
    let reported = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{reported}");
    assert!(reported.contains("come once") && reported.contains("without --state"), "{reported}");
    assert!(!dir.0.join("out.csv").exists());
}
