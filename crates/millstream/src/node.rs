//! One node of a running job: joins its workers with all others, runs each on a thread, watches
//! over them.
//!
//! ```text
//!   links ─▶ open sources and sinks ─▶ all_gather("open") ─▶ run ─▶ all_gather("end") ─▶ report
//! ```
//!
//! Nothing is read before every worker of every node could open what it needs, so that a job that
//! cannot be written leaves no half of its output behind. Whatever ends a worker early ends all:
//! the node at fault tells why over the control plane, and the others let go without publishing
//! anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use channel::Link;
use cluster::{ClusterError, Control};
use dataflow::bad::BadRows;
use dataflow::job::JobGraph;
use dataflow::metrics::Metrics;
use dataflow::panics::caught;
use dataflow::peers::NeededPeers;
use dataflow::process::Process;
use dataflow::reconnect::Reconnector;
use dataflow::worker::{Signals, Worker, WorkerConfig};
use fabric::multicast::GroupMember;
use fabric::{Clock, FabricError, LinkId};
use state::Disk;

use crate::FabricKind;
use crate::causes::{is_link, worst};
use crate::connections::{NodeConnections, NodeLinks, OpenConnections, ReturnedLinks};
use crate::costs::JobCosts;
use crate::error::Error;
use crate::fault;
use crate::groups::join_groups;
use crate::links::NodeLayout;
use crate::pairs::Pairs;
use crate::pinning::ProcessorPin;
use crate::progress::{Observer, ProgressWatch};
use crate::pulse::Vigil;
use crate::reconnect::{BrokenLink, ReconnectService, Reconnects, WorkerEnd, link_events};
use crate::recovery::{Beginning, JobCheckpoints};
use crate::report::{NodeCounters, Report, encode_end};
use crate::script::RunOptions;
use crate::spill::Folder;
use crate::threads::TaskGroup;
use crate::usage::Usage;

/// How often a node looks for requests, failures and progress.
const TICK: Duration = Duration::from_millis(50);
/// The same while only checkpoints are waited for.
const OVER_TICK: Duration = Duration::from_millis(2);
/// How long after a link was lost a node waits to hear that the job was stopped.
const STOP_HEARD_WITHIN: Duration = Duration::from_secs(1);
/// How soon a node whose workers have ended looks for the first time while other nodes still run;
/// twice as long after each look, up to [`TICK`].
const END_TICK_FIRST: Duration = Duration::from_millis(1);
/// Ticks between two reports of progress.
const TICKS_PER_REPORT: u32 = 4;
/// How long a node that lost a link waits to learn why: longer than the control plane takes.
const REASON_WAIT: Duration = Duration::from_secs(4);

/// The work of a node.
pub(crate) struct NodeRunner<'a> {
    pub(crate) control: &'a Control,
    pub(crate) layout: NodeLayout,
    pub(crate) job: Arc<JobGraph>,
    pub(crate) fabric: FabricKind,
    pub(crate) clock: Arc<dyn Clock>,
    /// Set to end what runs when all input has been read.
    pub(crate) interrupt: Arc<AtomicBool>,
    /// Where the operators of each statement end in the job.
    pub(crate) ends: &'a [usize],
    /// The text of the statements.
    pub(crate) sql: String,
}

/// An event from a worker's thread.
pub(crate) enum WorkerEvent {
    Opened,
    Ended(Result<(), Error>),
    /// A link has lost its connection.
    BrokenLink(Box<BrokenLink>),
    /// So has one that is not needed any more.
    Declined(LinkId),
}

/// State that a node shares with its workers.
struct Shared {
    process: Arc<Process>,
    metrics: Vec<Arc<Metrics>>,
    bad: Arc<BadRows>,
    peers: Arc<NeededPeers>,
    signals: Arc<Signals>,
    /// More workers run on this machine than it has processors.
    shares_processors: bool,
    costs: JobCosts,
    /// Sources are cut by these costs.
    by_cost: bool,
    links: Arc<ReturnedLinks>,
}

impl Shared {
    /// Whether a peer is lost that the workers still need.
    fn check_peers(&self) -> Result<(), Error> {
        Ok(self.peers.check()?)
    }
}

/// Ends workers that still run, at once.
struct AbortAtEnd<'a>(&'a Signals);

impl Drop for AbortAtEnd<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NodeRunner<'_> {
    /// Runs this node's part on what it has kept of the statement before, and returns the report of
    /// the whole job.
    ///
    /// # Errors
    /// The first failure of a worker of this node, or which other node failed.
    pub(crate) fn run(
        self,
        connections: &mut NodeConnections,
        options: &RunOptions<'_>,
    ) -> Result<Report, Error> {
        let result = caught(|| self.run_inner(connections, options)).unwrap_or_else(|panicked| {
            Err(Error::Panic { doing: format!("node {}", self.layout.rank), panicked })
        });
        match result {
            Err(error) => Err(self.explain(error)),
            ok => ok,
        }
    }

    /// What the workers of this node share.
    fn shared(&self, open: &OpenConnections, costs: JobCosts) -> Result<Shared, Error> {
        let NodeLayout { rank, per_node, .. } = self.layout;
        Ok(Shared {
            process: Process::new(rank, per_node).map_err(no_descriptors)?,
            metrics: (0..per_node).map(|_| Arc::default()).collect(),
            bad: Arc::default(),
            peers: Arc::default(),
            signals: Arc::default(),
            shares_processors: open.pairs.shares_processors(),
            costs,
            by_cost: open.by_cost,
            links: Arc::new(ReturnedLinks::new(per_node)),
        })
    }

    fn run_inner(
        &self,
        connections: &mut NodeConnections,
        options: &RunOptions<'_>,
    ) -> Result<Report, Error> {
        let settings = &self.job.settings;
        let mut recovery = match self.recovery(options)? {
            Some(Beginning::HasEnded) => return Ok(Report::default()),
            Some(Beginning::Runs(recovery)) => Some(recovery.started_again(options.restarts)),
            None => None,
        };
        let (open, links, costs) = self.connect(connections, recovery.is_some())?;
        let pairs = &open.pairs;
        let members = self.members(pairs)?;
        let shared = self.shared(&open, costs)?;
        let watch = ProgressWatch::new(self.control, &self.job, self.layout);
        let disk = self.disk()?;
        let (workers, link_events): (_, Vec<_>) = links.iter().map(|_| link_events()).unzip();
        let service = ReconnectService {
            pairs,
            control: self.control,
            layout: self.layout,
            statement: open.statement,
            timeout: Duration::from_nanos(settings.reconnect_ns),
            signals: &shared.signals,
            workers,
            repairs: Mutex::default(),
        };
        let report = thread::scope(|scope| {
            // Workers must not outlive this call: they are aborted, and then waited for.
            let mut group = connections.threads.group();
            let end = AbortAtEnd(&shared.signals);
            let (events, received) = mpsc::channel();
            let mut gates = Vec::new();
            let mut started = Ok(());
            let own = self.layout.own().zip(links).zip(&shared.metrics);
            for (((worker, links), metrics), (member, link_events)) in
                own.zip(members.into_iter().zip(link_events))
            {
                let mut config = self.config(worker, links, metrics, &shared);
                config.disk = disk.clone();
                if let Some(recovery) = &recovery {
                    recovery.configure(&mut config);
                }
                config.multicast = member;
                let end = WorkerEnd { worker, events: events.clone(), link_events };
                config.reconnector =
                    service.is_enabled().then(|| Box::new(end) as Box<dyn Reconnector>);
                let processor = pairs.processor(gates.len());
                let gate =
                    start_worker(&mut group, config, events.clone(), &shared.links, processor);
                started = gate.map(|gate| gates.push(gate));
                if started.is_err() {
                    break;
                }
            }
            drop(events);
            if let Some(recovery) = &mut recovery {
                // The workers have what is theirs.
                recovery.restored = None;
            }
            // Without a gate, workers that wait at it end.
            let open = |()| self.open(gates, &received, &shared, options.observer);
            let reconnects = Reconnects { service: &service, scope };
            let watched = (options, recovery.as_mut());
            let watch = |start| self.watch(start, &received, reconnects, &shared, watch, watched);
            let report = started.and_then(open).and_then(watch);
            // Before the workers end.
            let report_to = |error: &Error| shared.peers.report_failure(&error.to_string());
            let report = report.inspect_err(report_to)?;
            drop(end);
            group.join().map_err(|panicked| Error::Panic { doing: "a worker".into(), panicked })?;
            Ok::<_, Error>(Report { joined: pairs.joined().to_vec(), ..report })
        })?;
        drop(service);
        connections.end(self.control, open, shared.links.take());
        Ok(report)
    }

    /// Opens the connections of the job, and fixes what its tables are divided by.
    fn connect(
        &self,
        connections: &mut NodeConnections,
        keeps_checkpoints: bool,
    ) -> Result<(OpenConnections, NodeLinks, JobCosts), Error> {
        let costs = JobCosts::of(&self.job);
        // A job that goes on must be cut as it was.
        let known = if keeps_checkpoints { 0 } else { costs.fix() };
        let settings = &self.job.settings;
        let (open, links) =
            connections.begin(self.fabric, self.control, self.layout, settings, known)?;
        if open.by_cost {
            tracing::debug!("tables are divided among readers by measured costs");
        }
        Ok((open, links, costs))
    }

    /// The checkpoints of the job, if it keeps some.
    fn recovery(&self, options: &RunOptions<'_>) -> Result<Option<Beginning<'_>>, Error> {
        let Some(state) = options.state else { return Ok(None) };
        let tell = |line: &str| {
            if let Some(observer) = options.observer {
                observer.recovers(line);
            }
        };
        let job = (&self.job, &*self.sql);
        JobCheckpoints::begin(self.control, self.layout, job, state, &tell).map(Some)
    }

    /// The multicast group that each worker of this node is in, if the job needs groups.
    fn members(&self, pairs: &Pairs) -> Result<Vec<Option<Box<dyn GroupMember>>>, Error> {
        let casting = &self.job.settings.casting;
        let broadcasts = self.job.operators.iter().any(|operator| operator.spec().broadcasts());
        if broadcasts && casting.wants_groups(self.layout.nodes) {
            join_groups(pairs, self.control, self.layout, casting.multicast)
        } else {
            Ok(self.layout.own().map(|_| None).collect())
        }
    }

    fn config(
        &self,
        worker: u32,
        links: Vec<Option<Link>>,
        metrics: &Arc<Metrics>,
        shared: &Shared,
    ) -> WorkerConfig {
        WorkerConfig {
            bad: Arc::clone(&shared.bad),
            peers: Arc::clone(&shared.peers),
            by_cost: shared.by_cost,
            metrics: Arc::clone(metrics),
            signals: Arc::clone(&shared.signals),
            shares_processors: shared.shares_processors,
            ..WorkerConfig::new(
                worker,
                self.layout.workers(),
                Arc::clone(&shared.process),
                Arc::clone(&self.job),
                links,
                Arc::clone(&self.clock),
            )
        }
    }

    /// Where the job's groups go that do not fit memory.
    fn disk(&self) -> Result<Option<Arc<dyn Disk>>, Error> {
        let Some(folder) = &self.job.settings.spill else { return Ok(None) };
        match Folder::new(folder, self.layout.rank) {
            Ok(disk) => Ok(Some(disk)),
            Err(error) => Err(Error::Usage {
                message: format!("millstream.spill_dir '{folder}': {error}"),
                hint: "name a folder of this machine that can be written to".into(),
            }),
        }
    }

    /// Waits until all workers of the job have opened, then lets this node's run. Returns the time:
    /// this thread may wait for a processor after it has woken another.
    fn open(
        &self,
        gates: Vec<Sender<()>>,
        events: &Receiver<WorkerEvent>,
        shared: &Shared,
        observer: Option<&dyn Observer>,
    ) -> Result<Instant, Error> {
        for _ in &gates {
            if let Ok(WorkerEvent::Ended(result)) = events.recv() {
                shared.signals.abort();
                drop(gates);
                return Err(worst(result.err().into_iter().chain(errors_of(events))));
            }
        }
        self.control.all_gather("open", Vec::new())?;
        if let Some(observer) = observer {
            observer.opened();
        }
        let start = Instant::now();
        for gate in gates {
            // A worker that is gone says so by its event.
            let _ = gate.send(());
        }
        Ok(start)
    }

    /// Until the last checkpoint of the job is stored and published.
    fn finish_checkpoints(
        &self,
        mut recovery: Option<&mut JobCheckpoints<'_>>,
        options: &RunOptions<'_>,
        Shared { signals, links, .. }: &Shared,
        vigil: &mut Vigil<'_>,
    ) -> Result<(), Error> {
        while let Some(recovery) = recovery.as_mut().filter(|recovery| !recovery.is_over()) {
            self.check_abort(options, signals)?;
            self.pass_on(signals, options.cancel, true);
            recovery.turn(signals, self.control.cancelled())?;
            // Workers of other nodes may wait for what these acknowledge.
            links.poll();
            vigil.turn(self.clock.now_ns());
            if let Some(failure) = self.control.failure() {
                return Err(ClusterError::Node(failure).into());
            }
            thread::sleep(OVER_TICK);
        }
        Ok(())
    }

    /// Whether another node has failed.
    fn check_others(&self) -> Result<(), Error> {
        self.control.failure().map_or(Ok(()), |failure| Err(ClusterError::Node(failure).into()))
    }

    /// Until all workers have ended here and everywhere.
    fn watch<'scope>(
        &self,
        start: Instant,
        events: &Receiver<WorkerEvent>,
        reconnects: Reconnects<'scope, '_>,
        shared: &Shared,
        mut watch: ProgressWatch<'_>,
        (options, mut recovery): (&RunOptions<'_>, Option<&mut JobCheckpoints<'_>>),
    ) -> Result<Report, Error> {
        let mut running = shared.metrics.len();
        let mut vigil = Vigil::new(self.control, reconnects.service.pairs);
        let mut ticks = 0;
        while running > 0 {
            match events.recv_timeout(TICK) {
                Ok(WorkerEvent::Ended(Ok(()))) => running -= 1,
                Ok(WorkerEvent::Ended(Err(_))) if is_set(options.abort) => {}
                Ok(WorkerEvent::Ended(Err(_)))
                    if self.stops(recovery.as_deref_mut(), &shared.signals) =>
                {
                    running -= 1;
                }
                Ok(WorkerEvent::Ended(Err(error))) => {
                    shared.signals.abort();
                    return Err(worst(std::iter::once(error).chain(errors_of(events))));
                }
                Ok(WorkerEvent::BrokenLink(broken)) => reconnects.start(*broken),
                Ok(WorkerEvent::Declined(end)) => reconnects.service.decline(end),
                Ok(WorkerEvent::Opened) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.check_abort(options, &shared.signals)?;
            self.check_others()?;
            shared.check_peers()?;
            reconnects.service.answer();
            shared.links.poll();
            vigil.turn(self.clock.now_ns());
            self.pass_on(&shared.signals, options.cancel, recovery.is_some());
            if let Some(recovery) = &mut recovery {
                recovery.turn(&shared.signals, self.control.cancelled())?;
            }
            ticks += 1;
            if ticks % TICKS_PER_REPORT == 0 {
                let checkpoints = recovery.as_deref().and_then(JobCheckpoints::progress);
                watch.report(&self.counters(shared), checkpoints, options.observer);
            }
        }
        self.finish_checkpoints(recovery.as_deref_mut(), options, shared, &mut vigil)?;
        let own = encode_end(&self.counters(shared), &shared.costs, &shared.bad.kept());
        // Others may still wait for what was sent last, and learn from this that it is lost.
        let mut failed = None;
        let mut tick = END_TICK_FIRST;
        let mut watch_on = || {
            shared.links.poll();
            vigil.turn(self.clock.now_ns());
            let aborted = self.check_abort(options, &shared.signals);
            self.pass_on(&shared.signals, options.cancel, recovery.is_some());
            let turned = recovery.as_deref_mut().map_or(Ok(()), |recovery| {
                recovery.turn(&shared.signals, self.control.cancelled())
            });
            if let Some(error) = aborted.and(turned).err().filter(|_| failed.is_none()) {
                // Nobody waits any more, here or elsewhere.
                self.control.fail(&error.reason());
                failed = Some(error);
            }
            tick = TICK.min(2 * tick);
            tick
        };
        let all = self.control.all_gather_while("end", own, END_TICK_FIRST, &mut watch_on);
        let all = failed.map_or_else(|| all.map_err(Error::from), Err)?;
        // Of this statement: the next one has other topics.
        self.control.discard_messages();
        let report = Report {
            elapsed: start.elapsed(),
            cancelled: self.control.cancelled(),
            checkpoints: recovery.as_deref().and_then(JobCheckpoints::progress),
            ..Report::default()
        };
        let (report, measured) = report.with_ends(&all, self.layout.per_node, &shared.costs)?;
        shared.costs.keep(&measured);
        Ok(report)
    }

    /// Whether a worker has failed because the job is stopped, and others have left before it: this
    /// node may hear of that a moment later.
    fn stops(&self, recovery: Option<&mut JobCheckpoints<'_>>, signals: &Signals) -> bool {
        let Some(recovery) = recovery.filter(|_| self.control.cancelled()) else { return false };
        let until = Instant::now() + STOP_HEARD_WITHIN;
        while !recovery.is_stopped() && Instant::now() < until {
            if recovery.turn(signals, true).is_err() {
                return false;
            }
            thread::sleep(OVER_TICK);
        }
        recovery.is_stopped()
    }

    fn counters(&self, shared: &Shared) -> NodeCounters {
        NodeCounters::read(&shared.metrics, &shared.bad)
    }

    /// Ends the job where its caller has aborted it.
    fn check_abort(&self, options: &RunOptions<'_>, signals: &Signals) -> Result<(), Error> {
        if !is_set(options.abort) {
            return Ok(());
        }
        signals.abort();
        self.interrupt.store(true, Ordering::Relaxed);
        Err(Error::Interrupted)
    }

    /// Passes the user's wish to end on to all nodes and workers.
    fn pass_on(&self, signals: &Signals, cancel: Option<&AtomicBool>, keeps: bool) {
        if is_set(cancel) {
            self.control.cancel();
        }
        // A job that keeps checkpoints is stopped behind its last one.
        if !keeps && self.control.cancelled() && !signals.is_stopped() {
            signals.stop();
        }
    }

    /// The reason behind an error: a broken link means that the other end failed, and the control
    /// plane knows how. The node sends its own failure to the others.
    fn explain(&self, error: Error) -> Error {
        if is_link(&error)
            && let Some(failure) = self.control.await_failure(REASON_WAIT)
        {
            return ClusterError::Node(failure).into();
        }
        if error.failed_node().is_none() {
            self.control.fail(&fault::encode(&error, statement_of(&error, self.ends)));
        }
        error
    }
}

/// The statement, by number, whose failure this is, as far as it is known.
pub(crate) fn statement_of(error: &Error, ends: &[usize]) -> Option<usize> {
    if let Some(fault) = error.reported() {
        return fault.statement;
    }
    let Error::Dataflow(error) = error.cause() else { return None };
    let operator = error.located()?.operator?;
    ends.iter().position(|end| operator < *end)
}

/// Starts a worker on its thread, pinned if it has a processor. Gives the gate at which it waits.
fn start_worker(
    group: &mut TaskGroup<'_>,
    config: WorkerConfig,
    events: Sender<WorkerEvent>,
    links: &Arc<ReturnedLinks>,
    processor: Option<u32>,
) -> Result<Sender<()>, Error> {
    let (gate, opened) = mpsc::channel();
    let worker = config.worker;
    let at = worker - config.process.workers().start;
    let span = tracing::info_span!("worker", worker);
    let links = Arc::clone(links);
    let run = move || span.in_scope(|| run_worker(config, &opened, &events, &links, processor));
    let started = group.start(at as usize, &format!("worker-{worker}"), run);
    started.map_err(|source| Error::Thread { worker, source })?;
    Ok(gate)
}

/// Opens a worker, waits at the gate, and runs it. It gives its links back when it has ended well.
fn run_worker(
    config: WorkerConfig,
    gate: &Receiver<()>,
    events: &Sender<WorkerEvent>,
    returned: &ReturnedLinks,
    processor: Option<u32>,
) {
    let number = config.worker;
    let at = number - config.process.workers().start;
    let run = || -> Result<(), Error> {
        // Before it asks for memory, which the system then takes from nearby.
        let _pin = processor.map(ProcessorPin::new).transpose()?;
        let metrics = Arc::clone(&config.metrics);
        let hardware = config.job.settings.hardware_counters;
        let worker = Worker::new(config)?;
        if events.send(WorkerEvent::Opened).is_ok() && gate.recv().is_ok() {
            let usage = Usage::begin(hardware);
            returned.put(at, worker.run()?);
            usage.end(&metrics);
        }
        Ok(())
    };
    let result = caught(run).unwrap_or_else(|panicked| {
        Err(Error::Panic { doing: format!("worker {number}"), panicked })
    });
    // The node may have given up on this worker.
    let _ = events.send(WorkerEvent::Ended(result));
}

fn no_descriptors(source: std::io::Error) -> Error {
    FabricError::Connect { link: "the workers of this process".into(), source }.into()
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// The errors of the workers that have not been looked at.
fn errors_of(events: &Receiver<WorkerEvent>) -> impl Iterator<Item = Error> {
    events.iter().filter_map(|event| match event {
        WorkerEvent::Ended(Err(error)) => Some(error),
        _ => None,
    })
}
