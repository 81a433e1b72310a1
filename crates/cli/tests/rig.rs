//! The rig of the tests: a scratch directory, commands in it, processes that are ended with their
//! test, and waits for events.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest wait for an event, on a machine that is busy with other things.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// The pause between two looks for an event.
const LOOK: Duration = Duration::from_millis(5);

/// A scratch directory, which is removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-{name}-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// The text of a file; nothing if it is not there.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// A file, to which text is appended.
    pub fn appended(&self, name: &str) -> File {
        OpenOptions::new().create(true).append(true).open(self.0.join(name)).unwrap()
    }

    /// The names in a folder, sorted; none if it is not there.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(folder)).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// The rows of an output, a file or a folder, sorted and without headers. No hidden file is
    /// left in the folder.
    #[track_caller]
    pub fn rows(&self, output: &str) -> Vec<String> {
        let hidden = self.names(output).into_iter().filter(|name| name.starts_with('.'));
        let hidden: Vec<String> = hidden.collect();
        assert!(hidden.is_empty(), "{output}: {hidden:?} were left behind");
        self.published(output)
    }

    /// The rows of an output that are seen: those of its hidden files are not.
    pub fn published(&self, output: &str) -> Vec<String> {
        let names = self.names(output).into_iter().filter(|name| !name.starts_with('.'));
        let mut files: Vec<PathBuf> = names.map(|name| self.0.join(output).join(name)).collect();
        if self.0.join(output).is_file() {
            files.push(self.0.join(output));
        }
        let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
        let texts: Vec<String> = texts.collect();
        let rows = texts.iter().flat_map(|text| text.lines().skip(1));
        let mut rows: Vec<String> = rows.map(str::to_owned).collect();
        rows.sort();
        rows
    }

    /// The number of files in `out/`.
    pub fn parts(&self) -> usize {
        self.names("out").len()
    }

    /// A command of the program in this directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; its code and what it says.
    pub fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        reported(&self.command(args).output().unwrap())
    }

    /// Starts a command. Its messages are appended to the file `log`.
    pub fn start(&self, mut command: Command) -> Running {
        let command = command.stderr(self.appended("log")).stdout(Stdio::null());
        Running(command.spawn().unwrap())
    }

    pub fn log(&self) -> String {
        self.text("log")
    }

    /// Waits for an event; the log tells what happened in its place.
    #[track_caller]
    pub fn await_that(&self, holds: impl FnMut() -> bool) {
        await_that(holds, || self.log());
    }

    /// Waits until `job` has published more files than `parts`, or has ended.
    #[track_caller]
    pub fn await_more_than(&self, parts: usize, job: &mut Running) {
        self.await_that(|| self.parts() > parts || job.has_ended());
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that was started; it is killed with the value.
pub struct Running(pub Child);

impl Running {
    pub fn id(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// The processes below this one, parents first.
    pub fn below(&self) -> Vec<i32> {
        let mut found = children(self.id());
        let mut at = 0;
        while at < found.len() {
            found.extend(children(found[at]));
            at += 1;
        }
        found
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for its end; its code.
    #[track_caller]
    pub fn ends(&mut self) -> Option<i32> {
        await_some(|| self.0.try_wait().unwrap(), || "it does not end").code()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn children(of: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// Sends a signal to a process; false if the process has ended.
pub fn signal(process: i32, signal: Signal) -> bool {
    kill_process(Pid::from_raw(process).unwrap(), signal).is_ok()
}

/// Whether a process runs: it has an executable until it ends.
pub fn runs(process: i32) -> bool {
    Path::new(&format!("/proc/{process}/exe")).exists()
}

/// The code of a command that has ended, and what it said.
pub fn reported(output: &Output) -> (Option<i32>, String) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), texts.concat())
}

/// Waits for an event; fails with the text of `state` if it does not come.
#[track_caller]
pub fn await_that<S: Display>(mut holds: impl FnMut() -> bool, state: impl FnOnce() -> S) {
    await_some(|| holds().then_some(()), state);
}

/// Waits until `found` gives a value; fails with the text of `state` if it gives none.
#[track_caller]
pub fn await_some<T, S: Display>(
    mut found: impl FnMut() -> Option<T>,
    state: impl FnOnce() -> S,
) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "{}", state());
        std::thread::sleep(LOOK);
    }
}

/// The files of a directory, and of the directories in it, sorted.
pub fn files(of: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Tells a command that it is a rank of a job, as the launchers of a family do.
pub fn set_rank(command: &mut Command, family: &str, rank: usize, nodes: usize) {
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_FD", "SLURM_STEP_NUM_TASKS"] {
        command.env_remove(name);
    }
    let (rank, nodes) = (rank.to_string(), nodes.to_string());
    command.envs(match family {
        "open" => vec![
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", nodes.clone()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", nodes),
            ("PMIX_NAMESPACE", "1304166401".into()),
        ],
        // The parent names this job: the ranks have one in common, and their nodes do not.
        "hydra" => {
            vec![("PMI_RANK", rank), ("PMI_SIZE", nodes.clone()), ("MPI_LOCALNRANKS", nodes)]
        }
        "slurm" => vec![
            ("SLURM_PROCID", rank),
            ("SLURM_STEP_NUM_TASKS", nodes),
            ("SLURM_STEP_NUM_NODES", "1".into()),
            ("SLURM_JOB_ID", "17".into()),
            ("SLURM_STEP_ID", "0".into()),
        ],
        _ => vec![
            ("MILLSTREAM_RANK", rank),
            ("MILLSTREAM_NODES", nodes),
            ("MILLSTREAM_JOB", "ranks".into()),
        ],
    });
}

/// Numbers that look random, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
