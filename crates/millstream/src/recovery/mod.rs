//! Jobs that go on where they were: checkpoints while they run, and what a run begins with.
//!
//! ```text
//! leader (node 0)   end of round r ─▶ every node ─▶ its workers mark, and keep what they have
//! each node         what its workers keep ─▶ a segment in the store ─▶ its entry to the leader
//! leader            a record in the chain ─▶ output of the round is published ─▶ the next round
//! ```
//!
//! Nodes talk by messages of the control plane, on the thread that watches over the workers; all
//! that may wait for the store runs on a thread beside it ([`keeper`]). A job with an operator or a
//! sink that cannot be saved takes no checkpoints: its output is published when it has ended, and
//! after a failure it begins anew.

mod encode;
mod functions;
mod ids;
mod keeper;
mod leader;
mod loading;
mod manifest;
mod messages;
mod narrow;
mod opening;
mod record_timeout;
mod resumed;
mod start;
mod sweep;

use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checkpoint::chain::{self, ResumeFrom, Resumed, RunDescription};
use checkpoint::{BaseCheckpoint, CheckpointError, Holder, ObjectName, Store};
use cluster::Control;
use connectors::fnv;
use dataflow::checkpoint::Restored;
use dataflow::job::{
    Guarantee, JobGraph, JobRecovery, OperatorRecovery, RecoveryRefusal, Settings,
};
use dataflow::sink::SinkVisibility;
use dataflow::worker::{Signals, WorkerConfig};

use self::ids::{FittedState, OperatorId, operator_ids};
use self::keeper::{Keeper, KeeperReport, KeeperThread, RecordedRound, Target};
use self::leader::{Leader, Order};
use self::loading::Loading;
use self::messages::Message;
use self::opening::Opening;
pub use self::resumed::PlanDecisions;
use self::start::{Start, job_number};
use self::sweep::sweep;
use crate::checkpoints::{CheckpointProgress, RestoredCheckpoint};
use crate::error::Error;
use crate::links::NodeLayout;

/// The topic of messages about checkpoints. Topics of workers are made of their numbers, and never
/// this one.
const ABOUT: u64 = u64::MAX - 1;
/// How long the head of a chain is watched at least, and at most, whose writer may live on another
/// machine.
const HEAD_WATCH: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];
/// Between two looks at it.
const HEAD_LOOK: Duration = Duration::from_millis(500);

/// Where a job keeps its checkpoints, and what it begins with: `--state` of the command line.
///
/// A script of a session, or a job of streams, goes on where it was when it is run again by the
/// same name. [`RunOptions::cancel`](crate::RunOptions::cancel) stops it behind a last checkpoint;
/// [`RunOptions::abort`](crate::RunOptions::abort) drops it, as a crash does, and the rows behind
/// its last checkpoint are read again.
///
/// ```no_run
/// use millstream::checkpoint::chain::ResumeFrom;
/// use millstream::{CheckpointOptions, Error, PlanDecisions, RunOptions, Session, state_store};
///
/// fn run(sql: &str) -> Result<(), Error> {
///     let options = CheckpointOptions {
///         store: state_store::open("/var/lib/clicks").expect("a directory"),
///         job: "clicks".into(),
///         from: ResumeFrom::Latest,
///         evolve: false,
///         take_over: false,
///         begun: Vec::new(),
///     };
///     let mut session = Session::builder().workers(2).build()?;
///     // The plan keeps what was decided when the job began.
///     session.resume(&PlanDecisions::of(&options)?);
///     let script = session.sql(sql)?;
///     script.run(&RunOptions { state: Some(&options), ..RunOptions::default() })?;
///     Ok(())
/// }
/// ```
///
/// Operators of streams are found again by their names: that of
/// [`process`](crate::stream::process), of a source and of a sink. One that does not say what it
/// [keeps](crate::stream::KeyedOperator::saved) is refused by its name.
#[derive(Clone)]
pub struct CheckpointOptions {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The job, by a name that no other job of the store has.
    pub job: String,
    /// The checkpoint that it goes on from.
    pub from: ResumeFrom,
    /// Whether state that the job has no operator for is dropped, and operators without state begin
    /// empty.
    pub evolve: bool,
    /// Whether a run of the job that may be alive is ended by this one.
    pub take_over: bool,
    /// The jobs that an earlier start of the same run has begun already, by their names: they go on
    /// from the last checkpoint, whatever `from` says. A script of several jobs has several names.
    pub begun: Vec<String>,
}

impl CheckpointOptions {
    /// The checkpoint that the job of this name goes on from.
    pub(crate) fn goes_on_from(&self, job: &str) -> &ResumeFrom {
        let is_begun = self.begun.iter().any(|begun| begun == job);
        if is_begun { &ResumeFrom::Latest } else { &self.from }
    }
}

impl std::fmt::Debug for CheckpointOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CheckpointOptions(job '{}')", self.job)
    }
}

/// The checkpoints of a running job, at one node.
pub(crate) struct JobCheckpoints<'a> {
    control: &'a Control,
    target: Arc<Target>,
    /// The checkpoint that the job goes on from.
    pub(crate) restored: Option<Arc<Restored>>,
    /// Its first round.
    pub(crate) round: u64,
    /// At node 0.
    leader: Option<Leader>,
    /// How often the run was started again before, after a failure.
    restarts: u32,
    /// Whether the job ends here because it was stopped.
    stopped: bool,
    thread: KeeperThread,
}

/// How a job begins.
pub(crate) enum Beginning<'a> {
    /// It runs.
    Runs(Box<JobCheckpoints<'a>>),
    /// It had ended before: there is nothing to do.
    HasEnded,
}

/// Why a job takes no checkpoints; empty if it does.
///
/// # Errors
/// When it is refused.
fn obstacles(job: &JobGraph) -> Result<Vec<String>, Error> {
    let Settings { functions, guarantee, .. } = &job.settings;
    let recovery = JobRecovery::of(&job.operators, functions, *guarantee);
    match recovery.refusals.into_iter().next() {
        Some(RecoveryRefusal { message, hint }) => Err(Error::Usage { message, hint: hint.into() }),
        None => Ok(recovery.obstacles),
    }
}

/// Messages to the user about sinks whose rows are not exactly once, where that was not asked for.
pub(crate) fn promises(job: &JobGraph) -> Vec<String> {
    if job.settings.guarantee == Some(Guarantee::AtLeastOnce) {
        return Vec::new();
    }
    let again = job.operators.iter().filter(|operator| {
        OperatorRecovery::of(operator) == OperatorRecovery::Sink(SinkVisibility::AsTheyCome)
    });
    let again = again.map(|operator| {
        format!("rows of '{}' since the last checkpoint come again after a failure", operator.name)
    });
    again.collect()
}

/// The run for the record that begins it.
fn described(layout: NodeLayout, fingerprint: &str, sql: &str) -> RunDescription {
    RunDescription {
        holder: Holder::this_process(),
        nodes: layout.nodes,
        workers: layout.workers(),
        release: env!("CARGO_PKG_VERSION").into(),
        fingerprint: fingerprint.into(),
        sql: sql.to_owned(),
    }
}

impl<'a> JobCheckpoints<'a> {
    /// Begins a run of a job: at node 0 a generation of its chain, at all nodes by reading the
    /// checkpoint that it goes on from. `tell` takes lines for the user.
    ///
    /// # Errors
    /// When another run of the job lives, its state does not fit the job or is damaged, or the
    /// store fails.
    pub(crate) fn begin(
        control: &'a Control,
        layout: NodeLayout,
        (job, sql): (&Arc<JobGraph>, &str),
        options: &CheckpointOptions,
        tell: &dyn Fn(&str),
    ) -> Result<Beginning<'a>, Error> {
        let ids: Arc<[OperatorId]> = operator_ids(job).into();
        let fingerprint = fingerprint(&ids);
        let name = ObjectName::job(&options.job)?;
        let store = &options.store;
        let obstacles = obstacles(job)?;
        let (mut begun, mut start) = (None, Vec::new());
        if layout.rank == 0 {
            let run = described(layout, &fingerprint, sql);
            let obstacles = &obstacles;
            let opening = Opening { store, name: &name, options, ids: &ids, job, obstacles, tell };
            begun = opening.begin(&run)?;
            let job = job_number(&**store, &name);
            start = Start::encode(begun.as_ref().map(|begun| Start::of(job, begun)).as_ref());
        }
        let mut all = control.all_gather("resume", start)?;
        let start = Start::decode(&all.swap_remove(0));
        let start = start.ok_or(Error::Unlike { rank: 0, what: "checkpoints" })?;
        let Some(Start { run, round, base }) = start else {
            return Ok(Beginning::HasEnded);
        };
        let own = layout.own().len() as u32;
        let restored = base.map(|base| restored(store, &name, (&ids, own), &base)).transpose()?;
        let (chain, resumed) = begun.unzip();
        if layout.rank == 0
            && let Err(error) = sweep(&**store, &name, (job, &ids), run)
        {
            tracing::warn!(%error, "what earlier runs have staged stays");
        }
        let resumed = resumed.flatten();
        let went_on = resumed.as_ref().map(|resumed| RestoredCheckpoint::of(&resumed.manifest));
        let before = went_on.clone().unwrap_or_default();
        let recorded = Arc::new(RecordedRound::default());
        let thread = KeeperThread::start(|to| {
            let mut keeper = Keeper::new(
                store.clone(),
                name.clone(),
                (job.clone(), ids.clone()),
                run.generation,
                (layout.rank, layout.nodes),
                (layout.own(), layout.workers()),
                fingerprint,
                chain,
                to,
            );
            keeper.before = before;
            keeper.recorded = recorded.clone();
            keeper
        });
        let thread = thread.map_err(|source| Error::Thread { worker: 0, source })?;
        let target = Target { run, events: Mutex::new(thread.events.clone()), recorded };
        let leader = (layout.rank == 0).then(|| {
            announce(tell, job, &obstacles, resumed.as_ref(), run.generation);
            let interval = (job.settings.checkpoint, obstacles.is_empty());
            Leader::new(interval, round, layout.nodes).going_on_from(went_on)
        });
        Ok(Beginning::Runs(Box::new(Self {
            control,
            target: Arc::new(target),
            restored,
            round,
            leader,
            restarts: 0,
            stopped: false,
            thread,
        })))
    }

    /// The same, of a job that was started again `restarts` times before.
    pub(crate) fn started_again(self, restarts: u32) -> Self {
        Self { restarts, ..self }
    }

    /// Has a worker begin where the job goes on, and hand over what it keeps.
    pub(crate) fn configure(&self, config: &mut WorkerConfig) {
        config.checkpoints = Some(self.target.clone());
        config.restored.clone_from(&self.restored);
        config.round = self.round;
    }

    /// How the checkpoints stand, at node 0.
    pub(crate) fn progress(&self) -> Option<CheckpointProgress> {
        let progress = self.leader.as_ref()?.progress();
        Some(CheckpointProgress { restarts: self.restarts, ..progress })
    }

    /// Whether the job ends because it was stopped, with all that it has kept.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether this node may leave: what its workers have done is stored, and at node 0 it is
    /// published.
    pub(crate) fn is_over(&self) -> bool {
        self.leader.as_ref().is_none_or(Leader::is_over)
    }

    /// Passes on what has happened since the last call. `stop`: the user asks for the job's end.
    ///
    /// # Errors
    /// When a checkpoint cannot be recorded because another run has begun, or output cannot be
    /// published.
    pub(crate) fn turn(&mut self, signals: &Signals, stop: bool) -> Result<(), Error> {
        let rank = self.control.rank();
        loop {
            let kept = match self.thread.kept.try_recv() {
                Ok(kept) => kept,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    let reason = "the thread that stores checkpoints has ended".to_owned();
                    return Err(CheckpointError::Invalid { reason }.into());
                }
            };
            match (kept, &mut self.leader) {
                (KeeperReport::Checkpoint { round, end, stored }, Some(leader)) => {
                    leader.recorded(round, end, stored)?;
                }
                (KeeperReport::Failed(error), _) => return Err(error),
                (kept, _) => self.send(0, &Message::of(kept))?,
            }
        }
        for from in 0..self.control.nodes() {
            while let Some(message) = self.receive(from)? {
                self.received(from, message, signals)?;
            }
        }
        let Some(leader) = &mut self.leader else { return Ok(()) };
        if stop || leader.all_ended() {
            self.thread.record_timeout.hurry();
        }
        for message in leader.turn(stop)? {
            match message {
                Order::All(message) => {
                    for to in 0..self.control.nodes() {
                        if to == rank {
                            self.received(rank, message.clone(), signals)?;
                        } else {
                            self.send(to, &message)?;
                        }
                    }
                }
                Order::Own(event) => {
                    let _ = self.thread.events.send(event);
                }
            }
        }
        Ok(())
    }

    fn received(&mut self, from: u32, message: Message, signals: &Signals) -> Result<(), Error> {
        match message {
            Message::EndRound { round, stored } => {
                let _ = self.thread.events.send(keeper::KeeperEvent::EndRound { round, stored });
                self.target.recorded.set(stored);
                signals.end_round(round);
            }
            Message::Rest { round } => {
                signals.rest_behind(round);
                self.send(0, &Message::Rests)?;
            }
            Message::Stop => {
                self.stopped = true;
                signals.abort();
            }
            message => {
                if let Some(leader) = &mut self.leader {
                    leader.received(from, message)?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, to: u32, message: &Message) -> Result<(), Error> {
        if to == self.control.rank() {
            return match &mut self.leader {
                Some(leader) => leader.received(to, message.clone()),
                None => Ok(()),
            };
        }
        Ok(self.control.send_to(to, ABOUT, message.encode())?)
    }

    fn receive(&self, from: u32) -> Result<Option<Message>, Error> {
        if from == self.control.rank() || !self.control.unread_messages().contains(&(from, ABOUT)) {
            return Ok(None);
        }
        let Some(bytes) = self.control.receive_message(from, ABOUT, Duration::ZERO)? else {
            return Ok(None);
        };
        let message = Message::decode(&bytes);
        message.map(Some).ok_or(Error::Unlike { rank: from, what: "checkpoints" })
    }
}

/// The operators of a job that keep state, in one number.
fn fingerprint(ids: &[OperatorId]) -> String {
    let all = ids.iter().filter(|id| id.remembers);
    let all: Vec<&str> = all.map(|id| id.id.as_str()).collect();
    format!("{:016x}", fnv(all.join(" ").as_bytes()))
}

/// The state of a checkpoint, for the operators of a job and this many workers of this process.
fn restored(
    store: &Arc<dyn Store>,
    name: &ObjectName,
    (ids, own): (&[OperatorId], u32),
    base: &BaseCheckpoint,
) -> Result<Arc<Restored>, CheckpointError> {
    let manifest = chain::read_checkpoint(&**store, name, base)?;
    let fitted = FittedState::of(&manifest.operators, ids);
    let loading = Loading::new(store.clone(), own);
    let (segments, names) = (&manifest.segments, fitted.names());
    let workers = keeper::read(&**store, name, segments, names, Some(&loading))?.workers;
    Ok(Arc::new(Restored { round: manifest.number, workers }))
}

/// Tells the user what the job goes on from, and what it cannot promise.
fn announce(
    tell: &dyn Fn(&str),
    job: &JobGraph,
    obstacles: &[String],
    resumed: Option<&Resumed>,
    generation: u64,
) {
    if let Some(Resumed { base, manifest, .. }) = resumed {
        let bytes = RestoredCheckpoint::of(manifest).bytes;
        let splits: usize = manifest.sources.iter().map(|source| source.splits.len()).sum();
        tell(&format!(
            "goes on from checkpoint {}: {splits} splits of sources, {bytes} bytes of state, \
             generation {generation}",
            base.number
        ));
    }
    if !obstacles.is_empty() {
        tell(&format!(
            "takes no checkpoints, and begins anew after a failure: {}",
            obstacles.join("; ")
        ));
    }
    promises(job).iter().for_each(|promise| tell(promise));
}
