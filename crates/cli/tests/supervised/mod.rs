//! Jobs whose nodes are started again: by `run --nodes`, and as ranks of a launcher. Their rows are
//! those of a run that nothing happened to.

mod bucket;
mod launchers;
mod rescale;
mod signals;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("millstream-supervised-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// The rows of all files of `out/`, sorted, without headers; no hidden file was left.
    fn rows(&self) -> Vec<String> {
        for entry in fs::read_dir(self.0.join("out")).unwrap() {
            let file = entry.unwrap().file_name().to_string_lossy().into_owned();
            assert!(!file.starts_with('.'), "{file} was left behind");
        }
        self.published()
    }

    /// The rows of all files of `out/` that are seen, sorted, without headers.
    fn published(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for entry in fs::read_dir(self.0.join("out")).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            if file.starts_with('.') {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            rows.extend(text.lines().skip(1).map(str::to_owned));
        }
        rows.sort();
        rows
    }

    /// The number of files in `out/`.
    fn parts(&self) -> usize {
        self.0.join("out").read_dir().map_or(0, Iterator::count)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; its code and what it says.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        reported(&self.command(args).output().unwrap())
    }

    /// Starts a command. What it says is added to the file `log`.
    fn start(&self, mut command: Command) -> Running {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.0.join("log"));
        Running(command.stderr(log.unwrap()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Waits until `job` has published more files than `parts`, or has ended.
    fn awaits_more_than(&self, parts: usize, job: &mut Running) {
        let until = Instant::now() + TIMEOUT;
        while self.parts() <= parts && job.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The code of a command that has ended, and what it said.
fn reported(output: &Output) -> (Option<i32>, String) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), texts.concat())
}

/// A process with those that it has started; it is ended with the value.
struct Running(Child);

impl Running {
    /// The processes below the started one, parents first.
    fn below(&self) -> Vec<i32> {
        let mut found = children(self.0.id().cast_signed());
        let mut at = 0;
        while at < found.len() {
            found.extend(children(found[at]));
            at += 1;
        }
        found
    }

    /// Waits for its end; its code.
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

fn children(of: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

fn signal(process: i32, signal: Signal) {
    // It may have ended.
    let _ = kill_process(Pid::from_raw(process).unwrap(), signal);
}

/// A job of windows over `rows` rows, which writes into the directory `out/`.
fn windows(rows: u32, rate: &str) -> String {
    format!(
        "SET 'millstream.checkpoint' = '100 ms';
         CREATE TABLE bids (
           ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '{rows}', {rate} 'interval' = '10ms',
           'fields.auction.max' = '99', 'fields.price.max' = '1000000');
         CREATE TABLE written (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT, hi BIGINT)
           WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         INSERT INTO written SELECT window_start, auction, count(*), sum(price), max(price)
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
           GROUP BY window_start, window_end, auction;"
    )
}

/// The rows of a run of [`windows`] that nothing happens to, without checkpoints.
fn undisturbed(name: &str, rows: u32) -> Vec<String> {
    let dir = Dir::new(&format!("{name}-undisturbed"));
    dir.write("q.sql", &windows(rows, ""));
    let (code, message) = dir.run(&["run", "q.sql", "--workers", "2"]);
    assert_eq!(code, Some(0), "{message}");
    let rows = dir.rows();
    assert!(rows.len() > 500, "{}", rows.len());
    rows
}
