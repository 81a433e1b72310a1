//! A job of processes, as a user starts it, and what is seen of it from outside: the records of its
//! chain, and the files of its output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream::checkpoint::chain;
use millstream::checkpoint::{DirectoryStore, ObjectName};
use rustix::process::{Pid, Signal, kill_process};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// The longest wait for anything: a job that has not gone on by then does not.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time in which the state of a job grows as large as it is asked for.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest wait for processes that were killed, before their files are removed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of jobs.
const JOB: &str = "job";
/// The last characters of a job's messages that an error shows.
const MESSAGE_CHARS_MAX: usize = 2000;

/// How far a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JobState {
    /// Its run.
    pub(super) generation: u64,
    /// The number of its last checkpoint.
    pub(super) checkpoint: u64,
}

/// The job and its directories. Its processes end with it.
pub(super) struct JobProcess {
    directory: PathBuf,
    child: Child,
    /// Nodes that were stopped by a signal, which nobody else ends.
    silent: Vec<i32>,
}

impl JobProcess {
    /// Starts a query on so many nodes, in a directory where it may have run before.
    pub(super) fn start(directory: &Path, sql: &str, nodes: u32) -> Result<Self, String> {
        let file = directory.join(format!("{JOB}.sql"));
        fs::write(&file, sql).map_err(|error| error.to_string())?;
        let log = fs::OpenOptions::new().create(true).append(true).open(directory.join("log"));
        let log = log.map_err(|error| error.to_string())?;
        let mut command = Command::new(program()?);
        command.arg("run").arg(file).arg("--state").arg(directory.join("state"));
        command.args(["--nodes", &nodes.to_string(), "--workers", "1"]);
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| error.to_string())?;
        Ok(Self { directory: directory.to_owned(), child, silent: Vec::new() })
    }

    /// Where it is now; the beginning if it has not begun.
    pub(super) fn state(&self) -> JobState {
        let store = DirectoryStore::new(self.directory.join("state"));
        let view = ObjectName::job(JOB).and_then(|job| chain::look(&store, &job));
        let Ok(view) = view else { return JobState::default() };
        let checkpoint = view.checkpoint.map_or(0, |checkpoint| checkpoint.number);
        JobState { generation: view.generation, checkpoint }
    }

    /// The bytes of its last checkpoint; 0 before the first one.
    fn state_bytes(&self) -> u64 {
        let store = DirectoryStore::new(self.directory.join("state"));
        let manifest = ObjectName::job(JOB).and_then(|job| {
            let checkpoint = chain::look(&store, &job)?.checkpoint;
            checkpoint.map(|base| chain::read_checkpoint(&store, &job, &base)).transpose()
        });
        let manifest = manifest.ok().flatten();
        manifest.map_or(0, |manifest| manifest.segments.iter().map(|segment| segment.bytes).sum())
    }

    /// Waits until it is in a generation behind `before`, and has published rows of a checkpoint
    /// that is of that generation.
    pub(super) fn flows_behind(&mut self, before: u64) -> Result<Instant, String> {
        let begun = self.wait(TIMEOUT, "has not begun again", |job| {
            Some(job.state()).filter(|state| state.generation > before)
        })?;
        self.publishes_behind(begun.checkpoint)
    }

    /// Waits until it has published rows of a checkpoint behind this one.
    pub(super) fn publishes_behind(&mut self, checkpoint: u64) -> Result<Instant, String> {
        self.wait(TIMEOUT, "publishes no rows", |job| {
            job.published().filter(|number| *number > checkpoint).map(|_| Instant::now())
        })
    }

    /// The number of the last checkpoint with rows in the directory of the output.
    pub(super) fn published(&self) -> Option<u64> {
        let entries = fs::read_dir(self.directory.join("out")).ok()?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| {
            name.to_str()?.strip_prefix("part-")?.split('-').next()?.parse().ok()
        });
        numbers.max()
    }

    /// Waits until there are so many bytes of state.
    pub(super) fn grows_to(&mut self, bytes: u64) -> Result<(), String> {
        let grown = |job: &Self| (job.state_bytes() >= bytes).then_some(());
        self.wait(GROWTH_TIMEOUT, "does not grow", grown)
    }

    /// Waits for an answer.
    fn wait<T>(
        &mut self,
        timeout: Duration,
        otherwise: &str,
        look: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, String> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > until {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let skipped = log.chars().count().saturating_sub(MESSAGE_CHARS_MAX);
                let log: String = log.chars().skip(skipped).collect();
                return Err(format!("the job {otherwise}: {}", log.trim()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Sends a signal to one of its nodes: `which` counts them, modulo their number.
    pub(super) fn signal(&mut self, which: u32, signal: Signal) -> Result<Instant, String> {
        let nodes = self
            .wait(TIMEOUT, "has no nodes", |job| Some(job.nodes()).filter(|all| all.len() > 1))?;
        let node = nodes[which as usize % nodes.len()];
        if signal == Signal::STOP {
            self.silent.push(node);
        }
        let pid = Pid::from_raw(node).ok_or("a node without a process")?;
        let at = Instant::now();
        kill_process(pid, signal).map_err(|error| error.to_string())?;
        Ok(at)
    }

    /// Ends the nodes that were stopped and do not end by themselves.
    pub(super) fn bury(&mut self) {
        for pid in self.silent.drain(..).filter_map(Pid::from_raw) {
            // It may have been ended by the job.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Takes a last checkpoint and ends.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let mut command = Command::new(program()?);
        command.args(["stop", JOB, "--state"]).arg(self.directory.join("state"));
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }

    /// Its nodes: the children of the process that starts them again, and their children.
    fn nodes(&self) -> Vec<i32> {
        let mut found = children(self.child.id().cast_signed());
        let mut at = 0;
        while at < found.len() {
            found.extend(children(found[at]));
            at += 1;
        }
        found
    }
}

impl Drop for JobProcess {
    fn drop(&mut self) {
        // The others end with the one that was started; none may be left that was stopped.
        let nodes = self.nodes();
        let _ = self.child.kill();
        self.bury();
        let _ = self.child.wait();
        let until = Instant::now() + END_TIMEOUT;
        let lives = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
        while nodes.iter().any(lives) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| error.to_string())
}

fn children(of: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}
