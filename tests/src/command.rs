//! The command `millstream`, started as a user would start it, and what became of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the checkout")
}

/// The program that was built with this test.
///
/// # Panics
/// When it was not: a test of this crate alone does not build it.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let program = test.parent().and_then(Path::parent).expect("…/release/deps").join("millstream");
    let how = "build it first: cargo build --release --workspace --bins";
    assert!(program.is_file(), "{} is missing; {how}", program.display());
    program
}

/// A directory of a test, removed at the end.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// An empty directory. `examples` in it are the checkout's.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("millstream-{name}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        std::os::unix::fs::symlink(root().join("examples"), path.join("examples"))
            .expect("a link to the examples");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).expect("a file");
    }

    /// Reads a file in it.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What is in it, hidden files too, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Outcome {
    /// Fails unless the command ended with `code`; gives itself back.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Fails unless there is one error, which begins with `message`, and a hint with `hint`.
    #[track_caller]
    pub fn one_error(&self, message: &str, hint: &str) {
        let err = &self.err;
        assert!(err.starts_with(&format!("error: {message}")), "{message:?} expected:\n{err}");
        let errors = err.lines().filter(|line| line.starts_with("error")).count();
        assert_eq!(errors, 1, "one error:\n{err}");
        assert!(err.contains("hint: ") && err.contains(hint), "hint {hint:?} expected:\n{err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

fn command(dir: &Dir, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).current_dir(dir.path()).stdin(Stdio::null()).env_remove("MILLSTREAM_LOG");
    command
}

/// Runs the command to its end.
pub fn run(dir: &Dir, args: &[&str]) -> Outcome {
    outcome(&mut command(dir, args))
}

/// Runs the command to its end with `bytes` piped into it.
pub fn run_piped(dir: &Dir, args: &[&str], bytes: &[u8]) -> Outcome {
    let mut command = command(dir, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut pipe = child.stdin.take().expect("standard input");
    // A command that ends early does not read it all.
    let _ = pipe.write_all(bytes);
    drop(pipe);
    ended(child.wait_with_output().expect("the end"))
}

/// Runs `millstream run` on SQL.
pub fn run_sql(dir: &Dir, sql: &str, args: &[&str]) -> Outcome {
    dir.write("q.sql", sql);
    run(dir, &[&["run", "q.sql"], args].concat())
}

/// As [`run_sql`], where no file may have more than `kib` KiB.
pub fn run_sql_limited(dir: &Dir, sql: &str, args: &[&str], kib: u32) -> Outcome {
    dir.write("q.sql", sql);
    // The unit of POSIX's shell is 512 bytes.
    let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", kib * 2);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(program()).args(["run", "q.sql"]).args(args);
    shell.current_dir(dir.path()).stdin(Stdio::null()).env_remove("MILLSTREAM_LOG");
    outcome(&mut shell)
}

fn outcome(command: &mut Command) -> Outcome {
    ended(command.output().expect("the command starts"))
}

fn ended(output: Output) -> Outcome {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A command that is running.
#[derive(Debug)]
pub struct Running {
    child: Child,
    rows: BufReader<ChildStdout>,
}

impl Running {
    /// Starts `millstream run` on SQL that writes to standard output, and waits for `lines` lines.
    pub fn start(dir: &Dir, sql: &str, args: &[&str], lines: usize) -> Self {
        dir.write("q.sql", sql);
        let mut command = command(dir, &[&["run", "q.sql"], args].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut rows = BufReader::new(child.stdout.take().expect("standard output"));
        for _ in 0..lines {
            let mut line = String::new();
            if rows.read_line(&mut line).expect("standard output") == 0 {
                let output = child.wait_with_output().expect("the end");
                panic!("ended early: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        Self { child, rows }
    }

    /// The process of node 0, and those of the other nodes in the order in which they started.
    pub fn nodes(&self) -> Vec<u32> {
        let mut nodes = vec![self.child.id()];
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        nodes.extend(all.filter(|pid| parent_of(*pid) == Some(self.child.id())));
        nodes[1..].sort_unstable();
        nodes
    }

    /// Ends as Ctrl-C in a terminal would end it.
    pub fn interrupt(&self) {
        signal(self.child.id(), Signal::INT);
    }

    /// Reads what is left, and waits.
    pub fn end(mut self) -> Outcome {
        let mut out = String::new();
        self.rows.read_to_string(&mut out).expect("standard output");
        let output = self.child.wait_with_output().expect("the end");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Outcome { code: output.status.code(), out, err }
    }
}

/// Kills a process at once.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).expect("a process")
}

fn signal(pid: u32, signal: Signal) {
    kill_process(pid_of(pid), signal).expect("the process is there");
}

/// The parent of a process: the second field behind the name, which stands in parentheses.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

/// Waits for the ends of processes, wherever they hang in the tree; tells how long it took, or
/// which of them still ran after `patience`.
pub fn await_ends(pids: &[u32], patience: Duration) -> Result<Duration, u32> {
    let start = Instant::now();
    for pid in pids {
        let Ok(process) = pidfd_open(pid_of(*pid), PidfdFlags::empty()) else { continue };
        let left = patience.saturating_sub(start.elapsed());
        let left = Timespec::try_from(left).expect("seconds");
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut ends, Some(&left)) != Ok(1) {
            return Err(*pid);
        }
    }
    Ok(start.elapsed())
}

/// Shared memory that processes have mapped, in bytes, each region counted once.
pub fn shared_bytes(pids: &[u32]) -> u64 {
    let mut regions = BTreeMap::new();
    for pid in pids {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the mappings");
        for line in maps.lines().filter(|line| line.contains("/memfd:")) {
            let mut fields = line.split_whitespace();
            let (from, to) =
                fields.next().and_then(|range| range.split_once('-')).expect("a range");
            let hex = |text| u64::from_str_radix(text, 16).expect("an address");
            let inode = fields.nth(3).expect("an inode").to_owned();
            *regions.entry(inode).or_insert(0) = hex(to) - hex(from);
        }
    }
    regions.values().sum()
}

/// The most memory that a process has had, in bytes.
pub fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("KiB") * 1024
}
