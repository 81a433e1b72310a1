//! A job of processes, as a user starts it, and its progress as seen from outside: the records of
//! its chain, and the files of its output.

use std::cell::Cell;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream::checkpoint::chain;
use millstream::checkpoint::{DirectoryStore, ObjectName};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// The time between two looks at the files of a job, and so the error of its figures: several
/// processes write them, on a disk or on another machine's.
const LOOK: Duration = Duration::from_millis(2);
/// The longest wait for a job to go on.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait for the state of a job to grow.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest wait for processes that were killed, whose files are removed then.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of jobs.
const JOB: &str = "job";
/// The last characters of a job's messages that an error shows.
const MESSAGE_CHARS_MAX: usize = 2000;

/// The progress of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct JobState {
    /// The generation of its run.
    pub(super) generation: u64,
    /// The number of its last checkpoint.
    pub(super) checkpoint: u64,
}

/// The job and its directories. Its processes end with it.
pub(super) struct JobProcess {
    directory: PathBuf,
    child: Child,
    /// Nodes that were stopped by a signal. The job may leave them so.
    silent: Vec<i32>,
}

impl JobProcess {
    /// Starts a query on a number of nodes, in a directory where it may have run before.
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

    /// Its progress; that of a job that has not begun while it has no chain.
    pub(super) fn state(&self) -> JobState {
        let view = ObjectName::job(JOB).and_then(|job| chain::look(&self.store(), &job));
        let Ok(view) = view else { return JobState::default() };
        let checkpoint = view.checkpoint.map_or(0, |checkpoint| checkpoint.number);
        JobState { generation: view.generation, checkpoint }
    }

    /// The rows of state that its last checkpoint has written; 0 before the first one.
    fn state_rows(&self) -> u64 {
        let store = self.store();
        let rows = ObjectName::job(JOB).and_then(|job| {
            let Some(base) = chain::look(&store, &job)?.checkpoint else { return Ok(0) };
            let mut rows = 0;
            for entry in chain::read_checkpoint(&store, &job, &base)?.segments {
                let segment = chain::open_segment(&store, &job, &entry)?;
                rows += segment.sections().iter().map(|section| section.rows).sum::<u64>();
            }
            Ok(rows)
        });
        rows.unwrap_or(0)
    }

    fn store(&self) -> DirectoryStore {
        DirectoryStore::new(self.directory.join("state"))
    }

    /// Waits until it is in a generation behind `before`, and has published rows of a checkpoint of
    /// that generation.
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

    /// Waits until its last checkpoint has this many rows of state.
    pub(super) fn grows_to(&mut self, rows: u64) -> Result<(), String> {
        let looked_at = Cell::new(0);
        let grown = |job: &Self| {
            let checkpoint = job.state().checkpoint;
            (looked_at.replace(checkpoint) != checkpoint && job.state_rows() >= rows).then_some(())
        };
        self.wait(GROWTH_TIMEOUT, "does not grow", grown)
    }

    /// Waits until `look` finds something. A job that ends before is an error, which says what the
    /// job does not do.
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

    /// Sends a signal to one of its nodes, by its number modulo that of the nodes. Gives the time.
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

    /// Ends the nodes that were stopped by [`signal`](Self::signal).
    pub(super) fn bury(&mut self) {
        for pid in self.silent.drain(..).filter_map(Pid::from_raw) {
            // The job may have ended it.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Stops it with a last checkpoint.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let mut command = Command::new(program()?);
        command.args(["stop", JOB, "--state"]).arg(self.directory.join("state"));
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }

    /// Its nodes: all processes below the one that starts them again.
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
        // Nodes end with the process that was started, but for those that were stopped.
        let nodes = self.nodes().into_iter().filter_map(Pid::from_raw);
        let nodes = nodes.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let nodes: Vec<OwnedFd> = nodes.collect();
        let _ = self.child.kill();
        self.bury();
        let _ = self.child.wait();
        let until = Instant::now() + END_TIMEOUT;
        for node in &nodes {
            // The descriptor of a process is readable when it has ended.
            let left = until.saturating_duration_since(Instant::now()).try_into().ok();
            let _ = poll(&mut [PollFd::new(node, PollFlags::IN)], left.as_ref());
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
