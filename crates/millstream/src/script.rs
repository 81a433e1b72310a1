//! A planned script: jobs that run one after another.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cluster::Control;
use dataflow::job::{Operator, Strategy};
use fabric::clock::MonotonicClock;
use plan::{Analyzed, CalledFunction, Explain, ExplainFormat, Planned, Ran, Stage, Workers};

use crate::FabricKind;
use crate::connections::{SessionConnections, ThreadNode};
use crate::error::Error;
use crate::fault::FaultKind;
use crate::links::NodeLayout;
use crate::memory::{self, Memory};
use crate::node::{NodeRunner, statement_of};
use crate::pool::Client;
use crate::progress::Observer;
use crate::recovery::CheckpointOptions;
use crate::report::{Report, SinkWait};

/// How a script is run.
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// This node's connection with the others, where they are processes of their own. Without it
    /// all nodes of the session run as threads of this process.
    pub control: Option<&'a Control>,
    /// Set to true to end the job: inputs end, and finished output is published.
    pub cancel: Option<&'a AtomicBool>,
    /// Set to true to drop the job: nothing of it is published, and it ends with
    /// [`Error::Interrupted`].
    pub abort: Option<&'a AtomicBool>,
    /// Observes the jobs.
    pub observer: Option<&'a dyn Observer>,
    /// Where the jobs keep checkpoints. [`cancel`](Self::cancel) stops a job then: it keeps what it
    /// has, and goes on when it is run again.
    pub state: Option<&'a CheckpointOptions>,
    /// How often the run was started again before, after a failure: for reports.
    pub restarts: u32,
}

/// The script that [`Session::sql`](crate::Session::sql) made of a text.
pub struct Script {
    jobs: Vec<Job>,
}

/// The queries of a statement, or of a statement set, which run side by side.
pub struct Job {
    job: Arc<dataflow::job::JobGraph>,
    explain: Explain,
    statements: Vec<Planned>,
    ends: Vec<usize>,
    bounded: bool,
    analyzed: Option<Analyzed>,
    interrupt: Arc<AtomicBool>,
    workers: Workers,
    fabric: FabricKind,
    pool: Option<Arc<Client>>,
    /// Those of its session, as long as that lives.
    connections: Weak<SessionConnections>,
}

impl Script {
    pub(crate) fn new(
        stages: Vec<Stage>,
        workers: Workers,
        fabric: FabricKind,
        pool: Option<&Arc<Client>>,
        connections: &Arc<SessionConnections>,
    ) -> Self {
        let job = |stage: Stage| Job {
            job: Arc::new(stage.job),
            explain: stage.explain,
            statements: stage.statements,
            ends: stage.ends,
            bounded: stage.bounded,
            analyzed: stage.analyzed,
            interrupt: stage.interrupt,
            workers,
            fabric,
            pool: pool.cloned(),
            connections: Arc::downgrade(connections),
        };
        Self { jobs: stages.into_iter().map(job).collect() }
    }

    /// Its jobs, in their order.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Memory of the job that uses most: they run one after another.
    pub fn memory(&self) -> Memory {
        self.jobs.iter().map(Job::memory).max_by_key(Memory::all_bytes).unwrap_or_default()
    }

    /// Refuses to run where this machine does not have the memory of rings, queues and buffers: of
    /// all nodes where they are `on_one_machine`, else of one. Whoever starts processes asks before
    /// it does; where nodes are threads, [`Job::run`] asks.
    ///
    /// # Errors
    /// The parts of the sum, and what the machine has.
    pub fn fits(&self, on_one_machine: bool) -> Result<(), Error> {
        let machine = memory::of_machine();
        self.jobs.iter().try_for_each(|job| job.memory().fits(on_one_machine, machine))
    }

    /// How its jobs would run: pipelines, exchanges and why, memory.
    pub fn explain(&self) -> String {
        self.explain_as(ExplainFormat::Text)
    }

    /// As [`Script::explain`], one job after another: objects of JSON, digraphs of Graphviz.
    pub fn explain_as(&self, format: ExplainFormat) -> String {
        let texts: Vec<_> = self.jobs.iter().map(|job| job.explain.show(format)).collect();
        texts.join(if format == ExplainFormat::Text { "\n" } else { "" })
    }

    /// Runs the jobs one after another.
    ///
    /// # Errors
    /// The first failure; later jobs are not run.
    pub fn run(&self, options: &RunOptions<'_>) -> Result<Report, Error> {
        if let Some(control) = options.control {
            self.check_others(control)?;
        }
        let mut report = Report::default();
        let connections = self.jobs.first().map(Job::connections).unwrap_or_default();
        for (at, job) in self.jobs.iter().enumerate() {
            let of_job = options.state.filter(|_| self.jobs.len() > 1).map(|state| {
                let job = format!("{}.{}", state.job, at + 1);
                CheckpointOptions { job, ..state.clone() }
            });
            let state = of_job.as_ref().or(options.state);
            let before = job.explain.called();
            let ran = job.run_on(&connections, &RunOptions { state, ..*options })?;
            if let Some(analyzed) = &job.analyzed {
                let called = job.explain.called().into_iter().zip(before);
                let functions = called.map(|(now, before)| CalledFunction {
                    usage: now.usage.since(before.usage),
                    ..now
                });
                let ran = Ran { functions: functions.collect(), ..ran.ran() };
                analyzed.tell(&job.explain.analyzed(analyzed.format, &ran));
            }
            report.then(ran);
            if report.cancelled {
                break;
            }
        }
        Ok(report)
    }

    /// All nodes have to plan the same: they may be of other versions, or see other files.
    fn check_others(&self, control: &Control) -> Result<(), Error> {
        if control.nodes() == 1 {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), self.explain()).hash(&mut hasher);
        let own = hasher.finish().to_le_bytes().to_vec();
        let all = control.all_gather("plan", own)?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::Unlike { rank: rank as u32, what: "plan" }),
        }
    }
}

impl Job {
    /// The statements that it runs.
    pub fn statements(&self) -> &[Planned] {
        &self.statements
    }

    /// Whether it ends by itself.
    pub fn bounded(&self) -> bool {
        self.bounded
    }

    /// Its plan, for a reader or another program.
    pub fn explain_as(&self, format: ExplainFormat) -> String {
        self.explain.show(format)
    }

    /// The names of its operators, in the order of
    /// [`WorkerCounters::operators`](crate::WorkerCounters::operators).
    pub fn operators(&self) -> Vec<String> {
        self.explain.operators()
    }

    /// Its sinks: the place of each among [`Job::operators`], and its name.
    pub fn sinks(&self) -> impl Iterator<Item = (usize, &str)> {
        let operators = self.job.operators.iter().enumerate();
        let sinks = operators.filter(|(_, operator)| operator.spec().sink().is_some());
        sinks.map(|(at, operator)| (at, operator.name.as_str()))
    }

    /// The operators of which one worker takes all rows of an input, by their places among
    /// [`Job::operators`]: sinks of one writer, sorts, limits, and parts that one worker runs.
    pub fn gathering(&self) -> impl Iterator<Item = usize> {
        let gathers = |operator: &Operator| {
            let strategy = |input| operator.spec().strategy(input, self.workers.total());
            (0..operator.inputs.len()).any(|input| strategy(input) == Strategy::Gather)
        };
        let operators = self.job.operators.iter().enumerate();
        operators.filter(move |(_, operator)| gathers(operator)).map(|(at, _)| at)
    }

    /// How long its sinks were waited for.
    fn waited(&self, report: &Report) -> Vec<SinkWait> {
        let waited = |at: usize| {
            let each = report.workers.iter().filter_map(|worker| worker.operators.get(at));
            Duration::from_nanos(each.map(|operator| operator.backpressured_ns).sum())
        };
        let sinks = self.sinks().filter(|(at, _)| !waited(*at).is_zero());
        sinks.map(|(at, name)| SinkWait { sink: name.to_owned(), waited: waited(at) }).collect()
    }

    /// Memory that it may use, computed beforehand.
    pub fn memory(&self) -> Memory {
        Memory::of(&self.explain, self.workers)
    }

    /// Runs to the end of all inputs, or until it is asked to end.
    ///
    /// # Errors
    /// The first failure. Nothing of a failed query is published.
    pub fn run(&self, options: &RunOptions<'_>) -> Result<Report, Error> {
        self.run_on(&self.connections(), options)
    }

    /// The connections of its session; others where the session is gone.
    fn connections(&self) -> Arc<SessionConnections> {
        self.connections.upgrade().unwrap_or_default()
    }

    fn run_on(
        &self,
        connections: &SessionConnections,
        options: &RunOptions<'_>,
    ) -> Result<Report, Error> {
        let Workers { nodes, per_node } = self.workers;
        let job = tracing::info_span!(
            "job", nodes, workers_per_node = per_node, fabric = %self.fabric, bounded = self.bounded
        );
        let _job = job.enter();
        // They run side by side, as long as the job.
        let span = |statement: &Planned| {
            let Planned { name, line, sql } = statement;
            tracing::info_span!("statement", %name, line, %sql)
        };
        let _statements: Vec<_> = self.statements.iter().map(span).collect();
        self.interrupt.store(false, Ordering::Relaxed);
        if let Some(pool) = &self.pool {
            // Scans that begin from now on read the loads of the jobs before.
            pool.next_statement();
        }
        if let Some(observer) = options.observer {
            observer.started(self);
        }
        let result = match options.control {
            Some(control) => self.run_node(connections, control, options),
            None => self.run_in_process(connections, options),
        };
        let result = result.map_err(|error| self.of_statement(error));
        let result = result.map(|report| Report { sinks: self.waited(&report), ..report });
        if let Some(observer) = options.observer {
            observer.ended(&result);
        }
        result
    }

    /// Runs one node, which is this process.
    fn run_node(
        &self,
        connections: &SessionConnections,
        control: &Control,
        options: &RunOptions<'_>,
    ) -> Result<Report, Error> {
        let mut kept = connections.take_process(control);
        let report = self.node(control).run(&mut kept, options)?;
        connections.end_process(control, kept);
        Ok(report)
    }

    fn node<'c>(&'c self, control: &'c Control) -> NodeRunner<'c> {
        let Workers { nodes, per_node } = self.workers;
        NodeRunner {
            control,
            layout: NodeLayout { rank: control.rank(), nodes, per_node },
            job: Arc::clone(&self.job),
            fabric: self.fabric,
            clock: Arc::new(MonotonicClock::new()),
            interrupt: Arc::clone(&self.interrupt),
            ends: &self.ends,
            sql: self.statements.iter().map(|one| &*one.sql).collect::<Vec<_>>().join(";\n"),
        }
    }

    /// The same failure with its statement, if that is known.
    fn of_statement(&self, cause: Error) -> Error {
        let runs = matches!(cause, Error::Dataflow(_) | Error::Panic { .. });
        let of_worker =
            runs || cause.reported().is_some_and(|fault| fault.blame != FaultKind::Usage);
        let only = (self.statements.len() == 1 && of_worker).then_some(0);
        let statement = statement_of(&cause, &self.ends).or(only);
        match statement.and_then(|at| self.statements.get(at)) {
            Some(statement) => {
                Error::Statement { statement: Box::new(statement.clone()), cause: Box::new(cause) }
            }
            None => cause,
        }
    }

    /// Node 0 on this thread, every other node on one of its own.
    fn run_in_process(
        &self,
        connections: &SessionConnections,
        options: &RunOptions<'_>,
    ) -> Result<Report, Error> {
        self.memory().fits(true, connections.machine_memory())?;
        let mut nodes = connections.take_threads(self.workers.nodes)?;
        let span = tracing::Span::current();
        let run = |ThreadNode { control, connections }: &mut ThreadNode| {
            self.node(control).run(connections, options)
        };
        let mut each = nodes.iter_mut();
        let own = each.next();
        let mut results = thread::scope(|scope| {
            let others: Vec<_> = each
                .map(|node| {
                    let span = span.clone();
                    scope.spawn(move || span.in_scope(|| run(node)))
                })
                .collect();
            let own = own.map(run);
            let others = others
                .into_iter()
                .map(|node| node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            own.into_iter().chain(others).collect::<Vec<_>>()
        });
        connections.end_threads(nodes, results.iter().all(Result::is_ok));
        // The node at fault knows best; the others only report that it failed.
        let at_fault = results
            .iter()
            .position(|result| result.as_ref().is_err_and(|error| error.failed_node().is_none()));
        results.swap_remove(at_fault.unwrap_or(0))
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.jobs).finish()
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.statements.iter().map(|statement| &statement.name)).finish()
    }
}
