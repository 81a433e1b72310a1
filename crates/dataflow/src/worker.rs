//! A worker: one thread that runs its share of every operator of a job.
//!
//! An operator is a few coroutines on the worker's scheduler: a source has one that reads and
//! pushes, another operator one that emits results, and others that relay rows and send
//! acknowledgements; and for each other worker there is one that takes its frames. [`Worker::step`]
//! gives every ready coroutine a turn and lets the links make progress; it never blocks, so that a
//! simulator can run many workers on one thread. [`Worker::run`] repeats it on a thread of its own
//! and sleeps when nothing is ready.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use channel::Link;
use channel::broadcast::InFlightPayloads;
use fabric::Clock;
use state::Disk;

use crate::checkpoint::{CheckpointTarget, Restored, SinkSnapshot, SplitSnapshot, WorkerSnapshot};
use crate::connector::bad::BadRows;
use crate::connector::origins::Reading;
use crate::connector::peers::NeededPeers;
use crate::connector::source::ReaderContext;
use crate::error::DataflowError;
use crate::error::panics::{Panicked, caught};
use crate::graph::{Graph, Node, ScanTask};
use crate::job::{Idle, JobGraph, OperatorRecovery, Scan, readers};
use crate::operators::restoring::Restoring;
use crate::operators::source::SourceRun;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::alignment::alignments;
use crate::runtime::external::External;
use crate::runtime::metrics::Metrics;
use crate::runtime::net::{Limits, Net, PayloadsInFlight};
pub use crate::runtime::place::Signals;
use crate::runtime::place::WorkerContext;
use crate::runtime::process::Process;
use crate::runtime::reader::{Reader, Share};
use crate::runtime::reconnect::Reconnector;
use crate::runtime::rounds::{RoundCounts, WorkerRounds};
use crate::runtime::scheduler::{Scheduler, Timers, yield_now};

/// Steps without work before a blocking worker sleeps.
const SPINS: u32 = 200;
/// The same where more workers run than the machine has processors: a worker that looks in vain
/// keeps one from those that have work.
const SPINS_SHARED: u32 = 1;

/// Longest sleep. Every event that a worker has to handle wakes it; this bounds the delay if a
/// transport loses a wake-up.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What a worker is made of.
pub struct WorkerConfig {
    /// Its number in the job.
    pub worker: u32,
    /// Workers in the job.
    pub workers: u32,
    /// Its process, shared with the other workers of it.
    pub process: Arc<Process>,
    /// What to run; the same on every worker.
    pub job: Arc<JobGraph>,
    /// Connected links, indexed by worker; `None` for itself and the others of its process.
    pub links: Vec<Option<Link>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where bad rows go.
    pub bad: Arc<BadRows>,
    /// The peers that the workers of the process still need.
    pub peers: Arc<NeededPeers>,
    /// Whether sources are cut by the costs that were measured: the nodes of the job know the same,
    /// and it keeps no checkpoints.
    pub by_cost: bool,
    /// The round in which the worker begins: the first, or the one behind a checkpoint.
    pub round: u64,
    /// Takes what the worker keeps of rounds, if the job keeps checkpoints: sinks stage their rows
    /// then, and what they have staged is published by others.
    pub checkpoints: Option<Arc<dyn CheckpointTarget>>,
    /// The checkpoint that the job goes on from; `None` if it begins.
    pub restored: Option<Arc<Restored>>,
    /// Counters, for others to read.
    pub metrics: Arc<Metrics>,
    /// How others end the run.
    pub signals: Arc<Signals>,
    /// Whether more workers run on this machine than it has processors: one without work sleeps
    /// sooner then.
    pub shares_processors: bool,
    /// Where groups go that do not fit memory.
    pub disk: Option<Arc<dyn Disk>>,
    /// Makes links whole whose connection broke; without it such a connection ends the job.
    pub reconnector: Option<Box<dyn Reconnector>>,
    /// In the group of the workers that are the agents of the same sources: those with the same
    /// place in their process.
    pub multicast: Option<Box<dyn fabric::multicast::GroupMember>>,
}

impl WorkerConfig {
    /// A worker that begins at the first round, without a disk, multicast, or anybody who makes
    /// broken links whole, and whose counters and signals nobody shares.
    pub fn new(
        worker: u32,
        workers: u32,
        process: Arc<Process>,
        job: Arc<JobGraph>,
        links: Vec<Option<Link>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            worker,
            workers,
            process,
            job,
            links,
            clock,
            bad: Arc::default(),
            peers: Arc::default(),
            by_cost: false,
            round: 0,
            checkpoints: None,
            restored: None,
            metrics: Arc::default(),
            signals: Arc::default(),
            shares_processors: false,
            disk: None,
            reconnector: None,
            multicast: None,
        }
    }
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// There is more to do now.
    Busy,
    /// There is nothing to do until another worker moves or the clock reaches `wake_ns`.
    Idle {
        /// When a coroutine wants to be woken.
        wake_ns: Option<u64>,
    },
    /// All operators have ended here and at the peers.
    Done,
}

/// Spawns the coroutines of each operator that is no source.
fn spawn_nodes(scheduler: &mut Scheduler, nodes: &[Option<Rc<Node>>], timers: &Rc<Timers>) {
    for (at, node) in nodes.iter().enumerate() {
        let Some(node) = node else { continue };
        scheduler.spawn_of(at, node.clone().acknowledge());
        scheduler.spawn_of(at, node.clone().relay());
        scheduler.spawn_of(at, node.clone().run());
        scheduler.spawn_beside(at, node.clone().send_due(timers.clone()));
        if let Some(every_ns) = node.interval_ns() {
            scheduler.spawn_beside(at, node.clone().at_intervals(every_ns, timers.clone()));
        }
    }
}

/// One worker of a job.
pub struct Worker {
    scheduler: Scheduler,
    timers: Rc<Timers>,
    net: Rc<Net>,
    /// Notifications by other threads.
    external: Rc<External>,
    nodes: Rc<[Option<Rc<Node>>]>,
    clock: Arc<dyn Clock>,
    signals: Arc<Signals>,
    metrics: Arc<Metrics>,
    /// Its bad rows.
    bad: Arc<BadRows>,
    idle: Idle,
    /// Steps without work before it sleeps, where it does.
    spins: u32,
    /// By operator, which rows a source is busy with.
    readings: Vec<Option<Rc<Reading>>>,
    number: u32,
    round: u64,
    rounds: Option<Rc<WorkerRounds>>,
    /// Until it has what is left at the end.
    checkpoints: Option<Arc<dyn CheckpointTarget>>,
    /// The staged output of sinks that have all of their rows.
    staged_last: Rc<RefCell<Vec<SinkSnapshot>>>,
    /// The peers that are told when the worker fails.
    peers: Arc<NeededPeers>,
}

/// The limits of payloads that the network's multicast carries.
fn limits(job: &JobGraph, workers: u32) -> Limits {
    let ring = &job.settings.ring;
    Limits {
        tags: job.operators.len() as u32,
        workers,
        kept: InFlightPayloads::<()>::retained_max(ring.slots as usize),
        bytes: ring.slot_bytes as usize,
    }
}

/// The flows of a scan that a worker reads: of one that is pulled, its process reads them all.
fn share_of(input: &Scan, job: &JobGraph, place: &WorkerContext) -> Share {
    let (worker, workers, own) = (place.worker, place.workers, place.process.workers());
    if input.is_pulled {
        return Share { number: Some(worker - own.start), of: own.len() as u32 };
    }
    Share {
        number: job.reader(worker, workers),
        of: readers(&job.operators, job.settings.only_readers(workers), workers),
    }
}

/// Spawns the coroutines of the sources. Gives by operator which rows a source is busy with.
fn spawn_scans(
    scheduler: &mut Scheduler,
    scans: Vec<ScanTask>,
    job: &JobGraph,
    place: &WorkerContext,
    context: &ReaderContext,
    metrics: &Arc<Metrics>,
) -> Result<Vec<Option<Rc<Reading>>>, DataflowError> {
    let mut alignments = alignments(&job.operators);
    let mut readings = vec![None; job.operators.len()];
    for ScanTask { operator: at, input, builds, fusion, behind } in scans {
        let rows_max = job.settings.batch_rows_max;
        // Each source marks a round by itself, and its bad rows are counted where it does.
        let bad = Arc::new(BadRows::within(context.bad.clone()));
        let (context, metrics) = (ReaderContext { bad, ..context.clone() }, metrics.clone());
        let input = input.of_process(place.process.rank());
        let share = share_of(&input, job, place);
        let saved = place.restored.iter().flat_map(|restored| restored.splits(at as u32).cloned());
        let saved: Vec<SplitSnapshot> = saved.collect();
        let reader = Reader::going_on(&input, share, rows_max, context, metrics, &saved);
        let reader = reader.map_err(|error| error.of_operator(at))?.counted_as(at);
        readings[at] = Some(reader.reading());
        let source = SourceRun::new(at, fusion, alignments[at].take(), builds, place);
        scheduler.spawn_of(at, source.run(reader, behind));
    }
    Ok(readings)
}

/// Spawns the coroutines that take the frames of other workers, and the one that says goodbye.
fn spawn_receivers(
    scheduler: &mut Scheduler,
    net: &Rc<Net>,
    nodes: &Rc<[Option<Rc<Node>>]>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
) {
    for from in net.peers() {
        let (clock, metrics) = (clock.clone(), metrics.clone());
        scheduler.spawn(receive(from, net.clone(), nodes.clone(), clock, metrics));
    }
    scheduler.spawn(goodbye(net.clone(), nodes.clone()));
}

/// Whether all operators of a job can be saved.
fn keeps_checkpoints(job: &JobGraph) -> bool {
    let mut all = job.operators.iter().map(OperatorRecovery::of);
    all.all(|of| !matches!(of, OperatorRecovery::Rebuilt | OperatorRecovery::Unknown))
}

/// The rounds of a worker, if its job keeps checkpoints.
fn rounds_of(
    job: &JobGraph,
    (worker, round): (u32, u64),
    target: Option<&Arc<dyn CheckpointTarget>>,
    signals: &Arc<Signals>,
    counts: RoundCounts,
) -> Option<Rc<WorkerRounds>> {
    let target = target.filter(|_| keeps_checkpoints(job))?.clone();
    Some(WorkerRounds::new(worker, round, edges_of(job), target, signals.clone(), counts))
}

/// By operator, the edges that lead to it.
fn edges_of(job: &JobGraph) -> Vec<usize> {
    job.operators.iter().map(|of| of.inputs.iter().map(Vec::len).sum()).collect()
}

/// By operator, the watermark up to which its results had been emitted.
fn watermarks(from: &Restoring<'_>, job: &JobGraph) -> Vec<i64> {
    (0..job.operators.len() as u32).map(|operator| from.watermark(operator)).collect()
}

/// Loads what the operators had saved.
fn load(nodes: &[Option<Rc<Node>>], from: &Restoring<'_>) -> Result<(), DataflowError> {
    nodes.iter().enumerate().try_for_each(|(at, node)| {
        let loaded = node.as_ref().map_or(Ok(()), |node| node.load(from));
        loaded.map_err(|error| error.of_operator(at))
    })
}

impl Worker {
    /// Opens sources and sinks and makes the coroutines; nothing runs yet.
    ///
    /// # Errors
    /// When a source or sink cannot be opened.
    pub fn new(config: WorkerConfig) -> Result<Self, DataflowError> {
        let WorkerConfig { worker, workers, process, job, links, clock, bad, metrics, .. } = config;
        let WorkerConfig { signals, disk, reconnector, multicast, round, .. } = config;
        let WorkerConfig { checkpoints, restored, shares_processors, peers, by_cost, .. } = config;
        let staged_last: Rc<RefCell<Vec<SinkSnapshot>>> = Rc::default();
        metrics.count_operators(job.operators.len());
        let bad = Arc::new(BadRows::within(bad));
        let timers = Rc::new(Timers::default());
        timers.advance(clock.now_ns());
        let mut scheduler = Scheduler::new();
        let accounting = Rc::new(StateAccounting::of(&job, disk.is_some(), metrics.clone()));
        let external = Rc::new(External::new(process.parker(worker)));
        let restoring =
            restored.as_deref().map(|restored| Restoring::new(restored, &job, worker, workers));
        let watermarks = restoring.as_ref().map_or(vec![], |from| watermarks(from, &job));
        let counts = RoundCounts::of(&metrics, &bad, &clock);
        let rounds = rounds_of(&job, (worker, round), checkpoints.as_ref(), &signals, counts);
        let place = WorkerContext {
            worker,
            workers,
            process,
            clock: clock.clone(),
            settings: job.settings.clone(),
            accounting,
            disk,
            signals: signals.clone(),
            timers: timers.clone(),
            external: external.clone(),
            checkpoints: checkpoints.clone(),
            restored: restored.clone(),
            watermarks,
            round,
            rounds: rounds.clone(),
            staged_last: staged_last.clone(),
            peers: peers.clone(),
        };
        let in_flight = multicast.map(|of| PayloadsInFlight::new(of, limits(&job, workers)));
        let reconnector = reconnector.map(|it| with_waker(it, external.waker()));
        let net = Rc::new(Net::new(links, reconnector, in_flight, &place, metrics.clone()));
        signals.register(external.waker());
        let (waker, prefetch) = (external.waker(), job.settings.prefetch);
        let context = ReaderContext::new(clock.clone(), bad.clone());
        let context = ReaderContext { peers, by_cost, waker, prefetch, ..context };
        let Graph { nodes, scans } = Graph::new(&job, &place, &net, &metrics, &context)?;
        let loaded = restoring.map_or(Ok(()), |restoring| load(&nodes, &restoring));
        let spawn = |()| spawn_scans(&mut scheduler, scans, &job, &place, &context, &metrics);
        let readings = loaded.and_then(spawn).map_err(|error| place.peers.reported(error))?;
        let nodes: Rc<[Option<Rc<Node>>]> = nodes.into();
        spawn_nodes(&mut scheduler, &nodes, &timers);
        spawn_receivers(&mut scheduler, &net, &nodes, &clock, &metrics);
        let spins = if shares_processors { SPINS_SHARED } else { SPINS };
        Ok(Self {
            scheduler,
            timers,
            net,
            external,
            nodes,
            clock,
            signals,
            metrics,
            bad,
            idle: job.settings.idle,
            spins,
            readings,
            number: worker,
            round,
            rounds,
            checkpoints,
            staged_last,
            peers: place.peers,
        })
    }

    /// Lets links and coroutines make progress once. Does not block.
    ///
    /// # Errors
    /// The first failure; the worker is of no use afterwards.
    pub fn step(&mut self) -> Result<Status, DataflowError> {
        self.timers.advance(self.clock.now_ns());
        let moved = self.net.poll()? | self.external.poll();
        if self.net.in_flight().is_some() {
            self.nodes.iter().flatten().try_for_each(|node| node.poll())?;
        }
        let mut since = self.clock.now_ns();
        let (clock, metrics) = (&self.clock, &self.metrics);
        let mut waited = metrics.waited_for_sinks_ns();
        self.scheduler.turn(|owner| {
            let (now, waited_now) = (clock.now_ns(), metrics.waited_for_sinks_ns());
            if let Some(operator) = owner.and_then(|at| metrics.operators().get(at)) {
                let of_sinks = waited_now.saturating_sub(waited);
                Metrics::add(&operator.busy_ns, now.saturating_sub(since + of_sinks));
            }
            (since, waited) = (now, waited_now);
        })?;
        self.net.flush();
        if self.scheduler.running() == 0 {
            if !self.net.is_drained() {
                // What says that it has left wakes the worker.
                return Ok(if moved { Status::Busy } else { Status::Idle { wake_ns: None } });
            }
            self.save_last();
            return Ok(Status::Done);
        }
        let mut wake_ns = self.timers.next_ns();
        for node in self.nodes.iter().flatten() {
            let deadline = node.deadline(self.timers.now_ns())?;
            wake_ns = wake_ns.into_iter().chain(deadline).min();
        }
        let exchanged = self.net.take_exchanged();
        if moved || exchanged || self.scheduler.has_ready() {
            return Ok(Status::Busy);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let flushed = node.as_ref().map_or(Ok(()), |node| node.flush());
            flushed.map_err(|error| error.of_operator(at))?;
        }
        Ok(Status::Idle { wake_ns })
    }

    /// Runs to the end on the calling thread. Gives the links that can serve another job, indexed
    /// by worker; nobody polls them from now on. After [`Signals::abort`] it gives none.
    ///
    /// # Errors
    /// The first failure. After [`Signals::abort`] it returns without one.
    pub fn run(mut self) -> Result<Vec<Option<Link>>, DataflowError> {
        self.run_to_end().map_err(|error| self.peers.reported(error))
    }

    fn run_to_end(&mut self) -> Result<Vec<Option<Link>>, DataflowError> {
        let mut idle_steps = 0;
        let mut since = self.clock.now_ns();
        let mut waited = 0;
        while !self.signals.is_aborted() {
            let status = match caught(|| self.step()) {
                Ok(status) => status?,
                Err(panicked) => return Err(self.bug(panicked)),
            };
            let metrics = &self.metrics;
            let mut counter = &metrics.busy_ns;
            let mut waiting = false;
            if let Status::Idle { wake_ns } = status {
                waiting = self.net.is_waiting_for_credit();
                counter = if waiting { &metrics.backpressured_ns } else { &metrics.idle_ns };
                idle_steps += 1;
                match self.idle {
                    Idle::Block if idle_steps > self.spins => self.sleep(wake_ns),
                    _ => std::hint::spin_loop(),
                }
            } else {
                idle_steps = 0;
            }
            let (now, waited_now) = (self.clock.now_ns(), metrics.waited_for_sinks_ns());
            // That is counted by the sinks.
            since += waited_now.saturating_sub(waited);
            let ns = now.saturating_sub(since);
            waited = waited_now;
            let only_waits = idle_steps > 0 && !waiting;
            match only_waits.then(|| metrics.sink_without_room()).flatten() {
                Some(sink) => {
                    sink.add_waited(ns);
                    waited += ns;
                }
                None => Metrics::add(counter, ns),
            }
            if waiting {
                self.net.add_backpressured(ns);
            }
            since = now;
            if matches!(status, Status::Done) {
                break;
            }
        }
        let links = if self.signals.is_aborted() { vec![] } else { self.net.take_links() };
        self.net.close();
        Ok(links)
    }

    /// Hands over what is left when all operators have ended, once: no state, but rows of sinks.
    fn save_last(&mut self) {
        let Some(checkpoints) = self.checkpoints.take() else { return };
        // A worker with rounds has handed it over when its last operator ended.
        if self.rounds.is_some() {
            return;
        }
        let (worker, round, sinks) = (self.number, self.round, self.staged_last.take());
        let (late, bad) = (self.metrics.late.load(Ordering::Relaxed), self.bad.count());
        let (operators, splits) = (Vec::new(), Vec::new());
        let snapshot =
            WorkerSnapshot { worker, round, operators, splits, sinks, late, bad, last: true };
        checkpoints.saved(snapshot);
    }

    /// A panic of a step, with the operator that had the turn and the rows that it had.
    fn bug(&self, panicked: Panicked) -> DataflowError {
        let error = DataflowError::Panicked(Box::new(panicked));
        let Some(at) = self.scheduler.owner() else { return error };
        let reading = self.readings.get(at).and_then(Option::as_ref);
        error.of_operator(at).of_record(|_| reading.and_then(|reading| reading.place(None)))
    }

    /// Sleeps until a link has something, another thread tells something, a timer is due, or
    /// [`SLEEP_MAX`] is over.
    fn sleep(&self, wake_ns: Option<u64>) {
        let now = self.clock.now_ns();
        let timer = wake_ns.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let timeout = timer.map_or(SLEEP_MAX, |timer| timer.min(SLEEP_MAX));
        let mut descriptors = Vec::new();
        if !self.net.arm(&mut descriptors) && !self.external.is_notified() {
            fabric::wait(&descriptors, timeout);
        }
    }
}

/// A reconnector that wakes a worker.
fn with_waker(mut reconnector: Box<dyn Reconnector>, waker: Waker) -> Box<dyn Reconnector> {
    reconnector.set_waker(waker);
    reconnector
}

/// Says goodbye to the other workers when all operators have ended here.
async fn goodbye(net: Rc<Net>, nodes: Rc<[Option<Rc<Node>>]>) -> Result<(), DataflowError> {
    for node in nodes.iter().flatten() {
        node.wait().await;
    }
    net.bye().await;
    Ok(())
}

/// Hands the frames of one other worker to their operators, at whose cost they are taken.
async fn receive(
    from: u32,
    net: Rc<Net>,
    nodes: Rc<[Option<Rc<Node>>]>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
) -> Result<(), DataflowError> {
    while let Some(message) = net.recv(from).await? {
        let tag = message.envelope.operator;
        let Some(Some(node)) = nodes.get(tag as usize) else {
            let detail = format!("no operator {tag} takes frames");
            return Err(DataflowError::Frame { worker: from, detail });
        };
        let since = clock.now_ns();
        let received = node.receive(from, message);
        received.map_err(|error| error.of_operator(tag as usize))?;
        if let Some(operator) = metrics.operators().get(tag as usize) {
            Metrics::add(&operator.busy_ns, clock.now_ns().saturating_sub(since));
        }
        yield_now().await;
    }
    Ok(())
}
