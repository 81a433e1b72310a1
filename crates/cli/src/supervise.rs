//! The process that starts a job's nodes again.
//!
//! ```text
//! run --nodes N     the started process ─▶ node 0 ─▶ nodes 1, 2, …
//! srun, mpirun, …   each started process ─▶ the node of its rank
//! ```
//!
//! The started process has no rows and no connections, so that no fault of a job ends it. A node
//! that is killed ends all others, with code 75; then the child is started again, and the job goes
//! on from its last checkpoint. Any other end of a job is its end, for the same error would come
//! again. A child that is stopped is killed: the others take it for lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millstream::checkpoint::chain::{self, JobRequest, RequestAnswer, StoredRequest};
use millstream::checkpoint::{CheckpointError, ObjectName};
use millstream::cluster::{Assignment, JOB_VARIABLE};
use millstream::{CheckpointOptions, FabricKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, kill_process, pidfd_open};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use crate::args::{OnLoss, RunArgs};
use crate::failure::{AGAIN, Failure, INTERRUPTED, MISSING};
use crate::supervised::{
    GOES_ON, MEMBERS, RESCALED, SAVED, STARTED_AGAIN, SUPERVISED, is_supervised, shrunk,
};
use crate::{human, recover};

/// The greatest number of starts in a row without a checkpoint in between.
const FRUITLESS_MAX: u32 = 10;
/// The launcher of ranks that are named by our own variables.
const OWN_LAUNCHER: &str = "MILLSTREAM_NODES";
/// The pause before a start that follows a fruitless one; it doubles, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a start.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks at a child that has not ended: it may be stopped.
const CHILD_LOOK: Duration = Duration::from_millis(100);
/// The pause between two looks at the requests in a directory, and in another store, where each
/// look has its price. Neither tells of new ones.
const REQUEST_LOOK: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// A child is killed when it has been stopped for this time. After the same time other nodes take
/// it for lost.
const STOPPED_MAX: Duration = Duration::from_secs(3);

/// Whether this process is the one that the user or a launcher has started, and starts nodes again.
/// A process of an MPI world cannot be started again: MPI ends its world.
pub(crate) fn supervises(args: &RunArgs, assignment: Option<&Assignment>) -> bool {
    let mpi = assignment.is_some() && args.job.layout.fabric == FabricKind::Mpi;
    args.state.state.is_some() && !args.dry_run && !mpi && !is_supervised()
}

/// Starts a node as often as needed.
pub(crate) fn supervise(
    args: &RunArgs,
    assignment: Option<&Assignment>,
) -> Result<ExitCode, Failure> {
    let rank = assignment.map_or(0, |assignment| assignment.rank);
    // All ranks have the same arguments, and one of them is enough to report an error in them.
    let sent = |failure: Failure| if rank == 0 { failure } else { failure.silenced() };
    let Some(state) = recover::state_of(args).map_err(sent)? else {
        return Err(Failure::usage("there is nothing to go on from without --state", None));
    };
    check_shrinks(args, assignment).map_err(sent)?;
    let failed = |error: std::io::Error| Failure::runtime(&format!("cannot start: {error}"), None);
    let signals = TerminationSignals::listen().map_err(failed)?;
    let pids = Arc::default();
    let requests =
        if rank == 0 { listen(&state, &pids).map_err(failed)? } else { mpsc::channel().1 };
    if rank == 0 && assignment.is_some() {
        ObjectName::job(&state.job)
            .and_then(|job| chain::forget_members(&*state.store, &job))
            .map_err(|error| Failure::runtime(&error.to_string(), None))?;
    }
    let supervisor = Supervisor {
        before: recover::checkpoint_of(&state),
        first: recover::checkpoint_of(&state),
        generations: recover::generations(&state).unwrap_or_default(),
        begun: BTreeSet::new(),
        args,
        launcher: assignment.filter(|of| of.launcher != OWN_LAUNCHER).and_then(|_| getppid()),
        launch: assignment.map_or(String::new(), |assignment| assignment.job.clone()),
        assignment: assignment.cloned(),
        members: Vec::new(),
        signals,
        requests,
        state,
        pids,
        nodes: args.job.layout.nodes(),
        asked: None,
        fallback: None,
        fruitless: 0,
        starts: 0,
    };
    supervisor.run().map_err(failed)
}

/// Refuses --on-loss shrink where a launcher ends all ranks with the first that is gone.
fn check_shrinks(args: &RunArgs, assignment: Option<&Assignment>) -> Result<(), Failure> {
    if args.state.on_loss == OnLoss::Exit {
        return Ok(());
    }
    let message = match assignment {
        None => "--on-loss shrink is for nodes that a launcher starts: run --nodes starts all anew",
        // Processes of srun may have the variables of another launcher, by its PMI.
        Some(Assignment { launcher: "srun" | OWN_LAUNCHER, .. }) => return Ok(()),
        Some(_) if std::env::var_os("SLURM_STEP_ID").is_some() => return Ok(()),
        Some(_) => "--on-loss shrink cannot work under mpirun: it ends all ranks with the first",
    };
    Err(Failure::usage(message, Some("leave it out: the job goes on when it is run again")))
}

/// SIGINT and SIGTERM. The terminal's Ctrl-C reaches the child without us.
struct TerminationSignals {
    /// One byte for each SIGTERM.
    came: UnixStream,
    interrupted: Arc<AtomicBool>,
    /// The number of SIGTERM that have come.
    terms: u32,
}

impl TerminationSignals {
    fn listen() -> std::io::Result<Self> {
        let (came, comes) = UnixStream::pair()?;
        came.set_nonblocking(true)?;
        pipe::register(SIGTERM, comes)?;
        let interrupted = Arc::new(AtomicBool::new(false));
        flag::register(SIGINT, interrupted.clone())?;
        Ok(Self { came, interrupted, terms: 0 })
    }

    /// Whether the user has ended the job.
    fn have_come(&mut self) -> bool {
        let new = self.came.read(&mut [0; 16]).unwrap_or(0);
        self.terms += new as u32;
        self.terms > 0 || self.interrupted.load(Ordering::Acquire)
    }
}

/// The state of a supervisor.
struct Supervisor<'a> {
    args: &'a RunArgs,
    state: CheckpointOptions,
    /// The assignment by a launcher, if one has started this process, among the ranks that have not
    /// been given up.
    assignment: Option<Assignment>,
    /// The process of a launcher that has started this one, if it lives as long as its ranks: who
    /// names ranks by our own variables may start them and leave.
    launcher: Option<Pid>,
    /// The launcher's name for the job.
    launch: String,
    /// The ranks that went on, for each time that others were given up.
    members: Vec<String>,
    signals: TerminationSignals,
    requests: Receiver<StoredRequest>,
    /// The children, with those that have ended.
    pids: Arc<Mutex<Vec<u32>>>,
    /// The last runs of the job's chains before the first start.
    generations: BTreeMap<String, u64>,
    /// The number of nodes of the job.
    nodes: u32,
    /// The request that the child is being stopped for.
    asked: Option<StoredRequest>,
    /// The number of nodes to go back to, if the job ends with the new one before it has a
    /// checkpoint.
    fallback: Option<u32>,
    /// The jobs that were begun since this process was started. Each begins anew, or goes on from
    /// an older checkpoint, once and not at each restart.
    begun: BTreeSet<String>,
    /// The checkpoint before the first start.
    first: Option<u64>,
    /// The checkpoint before the last start.
    before: Option<u64>,
    fruitless: u32,
    starts: u32,
}

impl Supervisor<'_> {
    fn run(mut self) -> std::io::Result<ExitCode> {
        let code = loop {
            if self.signals.have_come() {
                break ExitCode::from(INTERRUPTED);
            }
            let mut child = self.start()?;
            let status = self.watch(&mut child)?;
            if self.is_orphaned() {
                break ExitCode::from(AGAIN);
            }
            if let Some(code) = self.ended(&child, status) {
                break code;
            }
            self.starts += 1;
            let pause = PAUSE * (1 << self.fruitless.min(7));
            if self.fruitless > 1 {
                self.pause(pause.min(PAUSE_MAX));
            }
        };
        self.leave_request();
        Ok(code)
    }

    /// The rank of the child.
    fn rank(&self) -> u32 {
        self.assignment.as_ref().map_or(0, |assignment| assignment.rank)
    }

    /// Starts the child.
    fn start(&mut self) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).env(SUPERVISED, std::process::id().to_string());
        if self.starts > 0 {
            self.find_begun();
            let begun: Vec<&str> = self.begun.iter().map(String::as_str).collect();
            command.env(STARTED_AGAIN, self.starts.to_string()).env(GOES_ON, begun.join(","));
        }
        if self.before != self.first {
            command.env(SAVED, "1");
        }
        if self.nodes != self.args.job.layout.nodes() {
            command.env(RESCALED, self.nodes.to_string());
        }
        if self.assignment.is_some() {
            // A launcher that does not name its jobs is known by the parent of its ranks, and the
            // parent of a child is its supervisor.
            command.env(JOB_VARIABLE, &self.launch);
        }
        if !self.members.is_empty() {
            command.env(MEMBERS, self.members.join(";"));
        }
        let child = command.spawn()?;
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
        Ok(child)
    }

    /// Looks which jobs were begun. A store that does not answer is asked until it does, or the
    /// user ends the job: a job that began anew once more would give its rows twice.
    fn find_begun(&mut self) {
        let mut has_said = false;
        let now = loop {
            match recover::generations(&self.state) {
                Ok(now) => break now,
                Err(_) if self.signals.have_come() => return,
                Err(error) if !has_said => {
                    self.say(&format!("the job is started when its state can be read: {error}"));
                    has_said = true;
                }
                Err(_) => self.pause(PAUSE_MAX),
            }
        };
        let before = |job: &str| self.generations.get(job).copied().unwrap_or(0);
        let grown = now.into_iter().filter(|(job, generation)| *generation > before(job));
        let grown: Vec<String> = grown.map(|(job, _)| job).collect();
        self.begun.extend(grown);
    }

    /// Waits until the child has ended. Passes on signals and requests meanwhile.
    fn watch(&mut self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        let ended: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
        let (mut passed, mut stopped) = (None, None);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            self.sleep(CHILD_LOOK, Some(&ended));
            if self.is_orphaned() {
                // Nobody may read it any more.
                let message = "the launcher of this node is gone: the node ends with it";
                let _ = writeln!(std::io::stderr(), "{message}");
                let _ = kill_process(pid, Signal::KILL);
                return child.wait();
            }
            passed = self.pass_on(pid, passed);
            if let Ok(request) = self.requests.try_recv() {
                self.requested(pid, request);
            }
            stopped = is_stopped(pid).then(|| stopped.unwrap_or_else(Instant::now));
            if stopped.is_some_and(|since| since.elapsed() > STOPPED_MAX) {
                let (rank, seconds) = (self.rank(), STOPPED_MAX.as_secs());
                eprintln!("node {rank} (process {pid}) is stopped for {seconds} s, and is killed");
                let _ = kill_process(pid, Signal::KILL);
                return child.wait();
            }
        }
    }

    /// Whether the launcher is gone. Its ranks would go on, and nobody could end them or start them
    /// again.
    fn is_orphaned(&self) -> bool {
        self.launcher.is_some() && getppid() != self.launcher
    }

    /// Passes on that the user ends the job, and gives the number of SIGTERM that the child knows
    /// of. `passed` is that of the last call; `None` if the child knows nothing.
    fn pass_on(&mut self, child: Pid, passed: Option<u32>) -> Option<u32> {
        if !self.signals.have_come() {
            return None;
        }
        let terms = self.signals.terms;
        // The first SIGTERM may have been sent to all processes of a group. The child has had it
        // then, and a second one would end it at once.
        let announced = passed.unwrap_or_else(|| {
            let _ = kill_process(child, Signal::USR1);
            terms.min(1)
        });
        for _ in announced..terms {
            let _ = kill_process(child, Signal::TERM);
        }
        Some(terms)
    }

    /// Answers a request to the job, and has the child stop for it.
    fn requested(&mut self, pid: Pid, request: StoredRequest) {
        let store = &*self.state.store;
        let refused = |why: &str| RequestAnswer::Refused(why.to_owned());
        let reply = match (request.request, &self.assignment) {
            (None, _) => refused("a later release of millstream has asked what this one cannot do"),
            _ if self.asked.is_some() => refused("the job is being stopped already"),
            (Some(JobRequest::Stop), _) => RequestAnswer::Accepted,
            (Some(JobRequest::Rescale { .. }), Some(assignment)) => {
                RequestAnswer::Refused(format!(
                    "{} has started its {} nodes, and can alone start others: stop it by \
                     `millstream stop`, and start it with another number",
                    assignment.launcher, assignment.nodes
                ))
            }
            (Some(JobRequest::Rescale { nodes }), None) if nodes == self.nodes => {
                let nodes = human::counted(nodes.into(), "node");
                RequestAnswer::Refused(format!("it runs on {nodes} already"))
            }
            (Some(JobRequest::Rescale { .. }), None) => RequestAnswer::Accepted,
        };
        let holds = match chain::answer(store, &request, &reply) {
            Ok(holds) => holds,
            Err(error) => {
                tracing::warn!(%error, "a request to the job has no answer");
                return;
            }
        };
        if holds && reply == RequestAnswer::Accepted {
            self.asked = Some(request);
            let _ = kill_process(pid, Signal::USR1);
        }
    }

    /// The end of this process, or `None` if the child is to be started again.
    fn ended(&mut self, child: &Child, status: ExitStatus) -> Option<ExitCode> {
        let is_lost = is_lost(status);
        if self.signals.have_come() && (is_lost || status.signal().is_some()) {
            // The user has ended the job: it goes on when it is run again.
            return Some(ExitCode::from(INTERRUPTED));
        }
        if recover::checkpoint_of(&self.state) != self.before {
            self.fallback = None;
        }
        let stopped = is_lost
            || status.signal() == Some(Signal::USR1.as_raw())
            || status.code() == Some(INTERRUPTED.into());
        match self.asked.as_ref().and_then(|asked| asked.request) {
            Some(JobRequest::Stop) if stopped => return Some(ExitCode::from(INTERRUPTED)),
            Some(JobRequest::Rescale { nodes }) if stopped && !self.signals.have_come() => {
                self.fulfil();
                let on = human::counted(nodes.into(), "node");
                self.say(&format!("the job is started again on {on}"));
                self.fallback = Some(self.nodes);
                self.nodes = nodes;
                self.before = recover::checkpoint_of(&self.state);
                self.fruitless = 0;
                return None;
            }
            _ => {}
        }
        if let Some(nodes) = self.fallback.take_if(|_| !status.success() && !stopped) {
            self.go_back(nodes);
            return None;
        }
        if status.code() == Some(MISSING.into()) && self.assignment.is_some() {
            return self.shrink();
        }
        if !is_lost {
            return Some(ExitCode::from(status.code().unwrap_or(1) as u8));
        }
        self.lost(child, status)
    }

    /// Goes back to the number of nodes before a rescale.
    fn go_back(&mut self, nodes: u32) {
        let from = human::counted(self.nodes.into(), "node");
        self.say(&format!("the job cannot run on {from}, and goes back to {nodes}"));
        self.nodes = nodes;
    }

    /// The end of this process because other ranks have not come back; `None` if it goes on without
    /// them.
    fn shrink(&mut self) -> Option<ExitCode> {
        let own = self.assignment.as_ref()?;
        let job = ObjectName::job(&self.state.job);
        let members =
            job.and_then(|job| chain::members(&*self.state.store, &job, &own.job, own.nodes));
        let members = match members {
            Ok(members) => members,
            Err(error) => {
                Failure::runtime(&error.to_string(), None).print();
                return Some(ExitCode::from(AGAIN));
            }
        };
        // Without --on-loss shrink no rank proposes those that go on.
        let Some(ranks) = members else { return Some(ExitCode::from(AGAIN)) };
        let job = shrunk(&self.launch, self.members.len() + 1);
        let Some(among) = own.among(&ranks, job) else {
            let message = format!("node {} has come too late: the others go on", own.rank);
            Failure::runtime(&message, None).print();
            return Some(ExitCode::from(AGAIN));
        };
        let from = human::counted(own.nodes.into(), "node");
        let to = human::counted(among.nodes.into(), "node");
        let was_first = own.rank == 0;
        self.assignment = Some(among);
        let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
        self.members.push(ranks.join(","));
        self.fruitless = 0;
        self.say(&format!("the job goes on with {to}: others of its {from} have not come back"));
        if self.rank() == 0
            && !was_first
            && let Ok(requests) = listen(&self.state, &self.pids)
        {
            self.requests = requests;
        }
        None
    }

    /// The end of this process because nodes of the job are lost over and over; `None` if the child
    /// is to be started again.
    fn lost(&mut self, child: &Child, status: ExitStatus) -> Option<ExitCode> {
        let now = recover::checkpoint_of(&self.state);
        self.fruitless = if now == self.before { self.fruitless + 1 } else { 0 };
        self.before = now;
        if let Some(signal) = status.signal() {
            let (rank, process) = (self.rank(), child.id());
            eprintln!("node {rank} (process {process}) was killed by signal {signal}");
        }
        if self.fruitless > FRUITLESS_MAX {
            let message =
                format!("the job was started again {FRUITLESS_MAX} times without a checkpoint");
            let hint = "the messages above say why it ended; run it again to go on";
            Failure::runtime(&message, Some(hint)).print();
            return Some(ExitCode::from(AGAIN));
        }
        if let Some(nodes) = self.fallback.take_if(|_| self.fruitless > 1) {
            self.go_back(nodes);
        }
        self.say(&format!("the job is started again ({})", self.starts + 1));
        None
    }

    /// Writes a message, once for all ranks.
    fn say(&self, line: &str) {
        if !self.args.quiet && self.rank() == 0 {
            eprintln!("{line}");
        }
    }

    /// Tells the process that has asked that its request is done.
    fn fulfil(&mut self) {
        if let Some(request) = self.asked.take()
            && let Err(error) = chain::fulfil(&*self.state.store, &request)
        {
            tracing::warn!(%error, "a request that was carried out stays in the store");
        }
    }

    /// At the end of this process: tells that a request is done, which a stop is now, or that it
    /// never will be.
    fn leave_request(&mut self) {
        match self.asked.take_if(|asked| asked.request != Some(JobRequest::Stop)) {
            None => self.fulfil(),
            Some(request) => {
                let store = &*self.state.store;
                if let Err(error) = chain::give_up(store, &request, "it was ended meanwhile") {
                    tracing::warn!(%error, "a request that is given up stays in the store");
                }
            }
        }
    }

    /// Sleeps, unless the user ends the job meanwhile.
    fn pause(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.signals.have_come() {
            self.sleep(until.saturating_duration_since(Instant::now()), None);
        }
    }

    /// Sleeps until a signal comes, or the process of `ended` has ended.
    fn sleep(&self, limit: Duration, ended: Option<&OwnedFd>) {
        let mut fds = vec![PollFd::new(&self.signals.came, PollFlags::IN)];
        if let Some(ended) = ended {
            fds.push(PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN));
        }
        let limit = Timespec::try_from(limit).ok();
        // A signal may interrupt it: the caller looks for signals.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// Whether a node of the job was lost, so that the next start may go on.
fn is_lost(status: ExitStatus) -> bool {
    let by_user = [Signal::INT, Signal::TERM].map(Signal::as_raw);
    match status.signal() {
        Some(signal) => !by_user.contains(&signal),
        None => status.code() == Some(AGAIN.into()),
    }
}

/// Whether a process is stopped, by a signal or a debugger.
fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The name in parentheses may hold anything.
    stat.is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
    })
}

fn request_objects(state: &CheckpointOptions) -> Result<Vec<ObjectName>, CheckpointError> {
    let mut objects = Vec::new();
    for job in recover::own_jobs(state)? {
        objects.extend(chain::request_objects(&*state.store, &job)?);
    }
    Ok(objects)
}

/// Looks for requests to the job on a thread of its own, because a store may take long to answer.
/// Until one of the processes `pids` has begun the job, requests are for the run before.
fn listen(
    state: &CheckpointOptions,
    pids: &Arc<Mutex<Vec<u32>>>,
) -> std::io::Result<Receiver<StoredRequest>> {
    let (found, requests) = mpsc::channel();
    let (state, pids) = (state.clone(), Arc::clone(pids));
    let place = ObjectName::job(&state.job).map(|job| state.store.place(&job));
    let is_remote = place.is_ok_and(|place| place.contains("://"));
    let pause = REQUEST_LOOK[usize::from(is_remote)];
    let look = move || {
        let mut old = None;
        loop {
            old = old.or_else(|| request_objects(&state).ok());
            std::thread::sleep(pause);
            let pids = pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if recover::was_begun_by(&state, &pids) {
                break;
            }
        }
        // Requests to an earlier run have no effect on this one.
        for object in old.or_else(|| request_objects(&state).ok()).unwrap_or_default() {
            let _ = state.store.delete(&object);
        }
        let mut announced: Vec<StoredRequest> = Vec::new();
        loop {
            std::thread::sleep(pause);
            let jobs = recover::own_jobs(&state).unwrap_or_default();
            let open = jobs
                .into_iter()
                .flat_map(|job| chain::requests(&*state.store, &job).unwrap_or_default());
            let open: Vec<StoredRequest> = open.collect();
            // Each is sent once: it may be answered, done and gone before the next look.
            for request in open.iter().filter(|request| !announced.contains(request)) {
                if found.send(request.clone()).is_err() {
                    return;
                }
            }
            announced = open;
        }
    };
    std::thread::Builder::new().name("requests".into()).spawn(look).map(|_| requests)
}
