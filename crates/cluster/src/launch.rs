//! Starts the nodes of a job as processes of this machine, and knows how they end.
//!
//! One thread starts the children and watches them until none is left. It is also the thread that
//! the kernel takes for their parent: they die with it (`PR_SET_PDEATHSIG`), so it lives until all
//! have ended.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::control::{Control, lock};
use crate::error::{Cause, ClusterError, NodeFailure};
use crate::mesh::{INVITATION_VARIABLE, Root, check_nodes};

/// Bytes of one line of a child's standard error at most; a longer one is broken.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// After this time a process that was killed and still is there is killed again.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// After a node's last sign all others have ended within so long, or are ended.
pub const LOST_AFTER: Duration = Duration::from_millis(4500);

/// Takes a line that a node wrote to its standard error: its rank, and the line without its end.
pub type StderrLine = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// The processes to start.
#[derive(Clone)]
pub struct LocalLaunch {
    /// Nodes of the job, the calling process included.
    pub nodes: u32,
    /// The program of ranks 1 and up. It finds its [`Invitation`](crate::Invitation) in the
    /// environment.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables beside those of the calling process.
    pub env: Vec<(OsString, OsString)>,
    /// Where rank 0 listens: a loopback address, port 0 for a free one.
    pub listen: SocketAddr,
    /// Which start of the job this is; higher after each restart.
    pub generation: u32,
    /// Where lines of the children's standard error go.
    pub stderr: StderrLine,
}

impl LocalLaunch {
    /// This program once more with its own arguments, on a free port of 127.0.0.1; lines go to
    /// standard error behind `[node 2] `.
    ///
    /// # Errors
    /// When the operating system does not tell which program this is.
    pub fn new(nodes: u32) -> Result<Self, ClusterError> {
        let program =
            std::env::current_exe().map_err(ClusterError::system("the program's path"))?;
        Ok(Self {
            nodes,
            program,
            args: std::env::args_os().skip(1).collect(),
            env: Vec::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            generation: 1,
            stderr: Arc::new(|rank, line| eprintln!("[node {rank}] {line}")),
        })
    }
}

impl fmt::Debug for LocalLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalLaunch({} nodes of {})", self.nodes, self.program.display())
    }
}

/// A job whose nodes have all come. The calling process is rank 0.
#[derive(Debug)]
pub struct Launched {
    /// The connection with the other nodes.
    pub control: Control,
    /// The other nodes' processes.
    pub children: Children,
}

/// Starts ranks 1 and up and waits until all have joined. With one node nothing is started.
///
/// # Errors
/// When the port is in use, the program cannot be started, or a node dies or stays away; whatever
/// was started is then ended.
pub fn launch_local(launch: LocalLaunch) -> Result<Launched, ClusterError> {
    check_nodes(launch.nodes)?;
    if launch.nodes == 1 {
        return Ok(Launched { control: Control::solo()?, children: Children { watch: None } });
    }
    let root = Root::listen(launch.listen, launch.nodes, launch.generation, std::process::id())?;
    let exits = Arc::new(Exits::default());
    let children = Children::start(launch, &root, Arc::clone(&exits))?;
    let control = root.gather(Some(exits))?;
    Ok(Launched { control, children })
}

/// The processes of ranks 1 and up. Dropping it kills what still runs.
pub struct Children {
    watch: Option<Watch>,
}

/// How children are to end.
struct End {
    /// After this those that still run are killed.
    grace: Duration,
    /// This one is not waited for.
    lost: Option<u32>,
}

struct Watch {
    thread: JoinHandle<()>,
    /// Dropping it ends the watch at once.
    ending: mpsc::Sender<End>,
    event_fd: Arc<OwnedFd>,
}

impl Children {
    fn start(launch: LocalLaunch, root: &Root, exits: Arc<Exits>) -> Result<Self, ClusterError> {
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| ClusterError::system("an event descriptor")(errno.into()))?;
        let event_fd = Arc::new(event_fd);
        let commands: Vec<_> = (1..launch.nodes)
            .map(|rank| {
                let mut command = Command::new(&launch.program);
                command
                    .args(&launch.args)
                    .envs(launch.env.iter().map(|(key, value)| (key, value)))
                    .env(INVITATION_VARIABLE, root.invitation(rank).encode())
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped());
                (rank, command)
            })
            .collect();
        let (end, ending) = mpsc::channel();
        let (started, starts) = mpsc::channel();
        let watcher = Watcher {
            stderr: Arc::clone(&launch.stderr),
            exits,
            event_fd: Arc::clone(&event_fd),
            ending,
            children: Vec::new(),
            pumps: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("children".into())
            .spawn(move || watcher.run(commands, &started))
            .map_err(ClusterError::system("a thread"))?;
        let children = Self { watch: Some(Watch { thread, ending: end, event_fd }) };
        match starts.recv() {
            Ok(Ok(())) => Ok(children),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ClusterError::Closed),
        }
    }

    /// Waits until all have ended, and kills those that still run after `grace`.
    pub fn wait(mut self, grace: Duration) {
        self.end(End { grace, lost: None });
    }

    /// Waits until all have ended that can after this failure: the node that failed is killed if it
    /// still runs, for it may be stopped or stuck, and so are those that have not ended
    /// [`LOST_AFTER`] after its last sign.
    pub fn wait_after(mut self, failure: &NodeFailure) {
        let grace = grace_after(&failure.cause);
        self.end(End { grace, lost: Some(failure.rank) });
    }

    fn end(&mut self, end: End) {
        let Some(Watch { thread, ending, event_fd }) = self.watch.take() else { return };
        // The watcher may have seen the last child end already.
        let _ = ending.send(end);
        let _ = rustix::io::write(&event_fd, &1u64.to_ne_bytes());
        if thread.join().is_err() {
            tracing::error!("the thread that watches the children panicked");
        }
    }
}

/// How long after such a failure became known processes may run on.
fn grace_after(cause: &Cause) -> Duration {
    match cause {
        Cause::Silent(ms) => LOST_AFTER.saturating_sub(Duration::from_millis((*ms).into())),
        _ => LOST_AFTER,
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end(End { grace: Duration::ZERO, lost: None });
    }
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Children")
    }
}

/// How children have ended, for the control thread to look up.
#[derive(Debug, Default)]
pub(crate) struct Exits(Mutex<Vec<(u32, u32, Cause)>>);

impl Exits {
    pub(crate) fn cause(&self, rank: u32) -> Option<Cause> {
        lock(&self.0).iter().find(|exit| exit.0 == rank).map(|exit| exit.2.clone())
    }

    /// Rank, process and cause of the first that ended.
    pub(crate) fn first(&self) -> Option<(u32, u32, Cause)> {
        lock(&self.0).first().cloned()
    }

    fn add(&self, rank: u32, process: u32, status: ExitStatus) {
        let cause = match (status.signal(), status.code()) {
            (Some(signal), _) => Cause::Killed(signal),
            (None, Some(code)) => Cause::Exited(code),
            (None, None) => Cause::Lost,
        };
        lock(&self.0).push((rank, process, cause));
    }
}

struct Watcher {
    stderr: StderrLine,
    exits: Arc<Exits>,
    event_fd: Arc<OwnedFd>,
    ending: mpsc::Receiver<End>,
    children: Vec<Watched>,
    pumps: Vec<JoinHandle<()>>,
}

struct Watched {
    rank: u32,
    child: Child,
    /// Readable once the process has ended.
    ended: OwnedFd,
}

impl Watcher {
    fn run(
        mut self,
        commands: Vec<(u32, Command)>,
        started: &mpsc::Sender<Result<(), ClusterError>>,
    ) {
        for (rank, command) in commands {
            if let Err(error) = self.start(rank, command) {
                // The caller waits for this word before it does anything else.
                let _ = started.send(Err(error));
                self.kill(|_| true);
                break;
            }
        }
        let _ = started.send(Ok(()));
        self.watch();
        for pump in self.pumps.drain(..) {
            if pump.join().is_err() {
                tracing::error!("a thread that copies a child's lines panicked");
            }
        }
    }

    fn start(&mut self, rank: u32, mut command: Command) -> Result<(), ClusterError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|source| ClusterError::Start {
            rank,
            program: program.clone(),
            source,
        })?;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let stderr = child.stderr.take();
        match ended {
            Ok(ended) => self.children.push(Watched { rank, child, ended }),
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ClusterError::system("a process descriptor")(errno.into()));
            }
        }
        if let Some(stderr) = stderr {
            let sink = Arc::clone(&self.stderr);
            let pump = std::thread::Builder::new()
                .name(format!("stderr-{rank}"))
                .spawn(move || copy_lines(stderr, rank, &sink))
                .map_err(ClusterError::system("a thread"))?;
            self.pumps.push(pump);
        }
        Ok(())
    }

    /// Until no child is left.
    fn watch(&mut self) {
        let mut deadline: Option<Instant> = None;
        while !self.children.is_empty() {
            let limit = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let ended = self.await_exit(limit);
            for at in ended.into_iter().rev() {
                let Watched { rank, mut child, .. } = self.children.swap_remove(at);
                match child.wait() {
                    Ok(status) => self.exits.add(rank, child.id(), status),
                    Err(error) => tracing::error!(%error, rank, "cannot wait for a node"),
                }
            }
            match self.ending.try_recv() {
                Ok(End { grace, lost }) => {
                    deadline = Some(Instant::now() + grace);
                    self.kill(|rank| Some(rank) == lost);
                }
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    deadline = deadline.or(Some(Instant::now()));
                }
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                self.kill(|_| true);
                deadline = Some(Instant::now() + KILL_AGAIN);
            }
        }
    }

    /// Indices of children that have ended, in ascending order.
    fn await_exit(&self, limit: Option<Duration>) -> Vec<usize> {
        let mut fds = vec![PollFd::new(&self.event_fd, PollFlags::IN)];
        for watched in &self.children {
            fds.push(PollFd::from_borrowed_fd(watched.ended.as_fd(), PollFlags::IN));
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        if let Err(errno) = poll(&mut fds, limit.as_ref()) {
            tracing::debug!(%errno, "poll");
            return Vec::new();
        }
        let ended = (0..self.children.len()).filter(|at| !fds[at + 1].revents().is_empty());
        let ended = ended.collect();
        let _ = rustix::io::read(&self.event_fd, &mut [0u8; 8]);
        ended
    }

    fn kill(&mut self, which: impl Fn(u32) -> bool) {
        for watched in self.children.iter_mut().filter(|watched| which(watched.rank)) {
            if let Err(error) = watched.child.kill() {
                tracing::debug!(%error, rank = watched.rank, "kill");
            }
        }
    }
}

fn copy_lines(stderr: ChildStderr, rank: u32, sink: &StderrLine) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line);
        sink(rank, text.trim_end_matches(['\n', '\r']));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_ended_within_five_seconds_of_the_last_sign() {
        assert_eq!(grace_after(&Cause::Silent(3000)), Duration::from_millis(1500));
        assert_eq!(grace_after(&Cause::Silent(60_000)), Duration::ZERO);
        assert_eq!(grace_after(&Cause::Killed(9)), LOST_AFTER);
        assert!(LOST_AFTER < Duration::from_secs(5));
    }
}
