//! Measures a workload: every node makes these calls in this order, node 0 has the figures.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use channel::LinkError;
use dataflow::error::ConnectorError;
use millstream::cluster::{ClusterError, Control};
use millstream::{Counters, FabricKind, Report, RunOptions, Script, Session, SessionBuilder};
use thiserror::Error;

use crate::by_hand::Loop;
use crate::checksums::{ChecksumSink, ChecksumTotals};
use crate::memory::StreamBuffers;
use crate::reference;
use crate::summary::{ALONE, AgainstLimits, MeasuredRun, Summary, UNRELATED};
use crate::targets;
use crate::tsc::Tsc;
use crate::unrelated;
use crate::workload::{Workload, WorkloadSize};

/// The workload.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// The workload.
    pub workload: Workload,
    /// How large it is: its rows are for each worker.
    pub size: WorkloadSize,
    /// Nodes.
    pub nodes: u32,
    /// Workers of each.
    pub workers: u32,
    /// The transport between them.
    pub fabric: FabricKind,
    /// Exchanges, to be compared with each other; none for the planner's choice.
    pub exchanges: Vec<String>,
    /// Whether one worker alone is measured in turns with the others.
    pub against_one: bool,
    /// Whether as many processes as there are nodes, which have nothing to do with each other, are
    /// measured in turns with the others.
    pub against_unrelated: bool,
    /// Whether a loop that was written for the workload is measured in turns with the others, on
    /// the rows of one worker.
    pub against_loop: bool,
    /// How often each thing is measured.
    pub runs: u32,
    /// Other settings.
    pub settings: Vec<(String, String)>,
}

/// Why there are no figures.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The job failed: see the error behind.
    #[error(transparent)]
    Engine(#[from] millstream::Error),
    /// Another node failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The generator refused the size. The caller is at fault.
    #[error(transparent)]
    WorkloadSize(#[from] ConnectorError),
    /// The pool cannot be used.
    #[error("{0}")]
    Pool(String),
    /// A query of a suite failed.
    #[error("{0}: {1}")]
    Query(&'static str, #[source] Box<BenchError>),
    /// A directory cannot be made.
    #[error("{}: {error}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A link between two threads could not be made or broke.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Rows for every instance did not reach every instance once: our bug.
    #[error("{what}: {detail}")]
    Multicast {
        /// The run.
        what: String,
        /// The value found.
        detail: String,
    },
    /// There is not enough memory to measure it.
    #[error("no memory to measure memory with: {0}")]
    Memory(std::io::Error),
    /// The engine's result is not the right one: our bug.
    #[error(
        "{variant} gives a wrong result: {} rows (sums {} and {:.6e}), not {} ({} and {:.6e})",
        got.rows, got.whole, got.real, right.rows, right.whole, right.real
    )]
    Wrong {
        /// The run.
        variant: String,
        /// The result.
        got: ChecksumTotals,
        /// The right value.
        right: ChecksumTotals,
    },
    /// The workload cannot run by the clock. The caller is at fault.
    #[error("{0} has no windows of one table, by whose ends latency is measured")]
    NoLatency(Workload),
    /// Nobody has written a loop for the workload. The caller is at fault.
    #[error("there is no loop for {0}: only for groups in windows that do not overlap")]
    NoLoop(Workload),
    /// Not every row was read: our bug.
    #[error("{variant} read {got} rows, not {right}")]
    Rows {
        /// The run.
        variant: String,
        /// Rows read.
        got: u64,
        /// Rows there are.
        right: u64,
    },
}

/// One of the things that are compared.
struct Variant {
    name: String,
    by: RunBy,
    /// Of all rows that are read.
    size: WorkloadSize,
    script: Script,
    checksums: ChecksumSink,
    runs: Vec<VariantRun>,
}

/// The nodes that run a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunBy {
    /// All, together.
    All,
    /// The first, by itself.
    First,
    /// Each, by itself and at the same time.
    Each,
}

/// A run of a variant, as node 0 sees it.
struct VariantRun {
    run: MeasuredRun,
    /// The result, or that of each node by itself.
    sums: Vec<ChecksumTotals>,
    total: Counters,
}

/// Runs everything in turns and checks the results. Node 0 gets a summary of each thing compared,
/// the others none.
///
/// # Errors
/// The first failure, and wrong results.
pub fn run(plan: &RunPlan, control: &Control) -> Result<Vec<Summary>, BenchError> {
    let mut variants = variants(plan)?;
    let first = control.rank() == 0;
    let threads = |variant: &Variant| variant.size.workers as usize;
    let most = variants.iter().map(threads).max().unwrap_or(1);
    let streams = if first { most } else { 0 };
    let streams = StreamBuffers::new(streams).map_err(BenchError::Memory)?;
    let alone = WorkloadSize { workers: 1, ..plan.size };
    let by_hand = (first && plan.against_loop).then(|| Loop::new(plan.workload, &alone));
    let mut by_hand = by_hand.transpose()?;
    for _ in 0..plan.runs.max(1) {
        for variant in &mut variants {
            // Others wait here until memory was measured: nothing else runs.
            let bandwidth = if first { streams.read(threads(variant)) } else { 0.0 };
            control.all_gather("measure", Vec::new())?;
            let run = variant.run(control, bandwidth)?;
            variant.runs.extend(run.filter(|_| first));
        }
        if let Some(by_hand) = &mut by_hand {
            by_hand.run(streams.read(1));
        }
    }
    drop(streams);
    if !first {
        return Ok(Vec::new());
    }
    checked(plan, variants, by_hand)
}

/// The figures, if all results are right.
fn checked(
    plan: &RunPlan,
    variants: Vec<Variant>,
    by_hand: Option<Loop>,
) -> Result<Vec<Summary>, BenchError> {
    let tsc = Tsc::default();
    let mut known: Vec<(WorkloadSize, ChecksumTotals)> = Vec::new();
    let mut right = |size: WorkloadSize| match known.iter().find(|(other, _)| *other == size) {
        Some((_, sums)) => Ok(*sums),
        None => reference::sums(plan.workload, &size).inspect(|sums| known.push((size, *sums))),
    };
    let mut summaries = Vec::new();
    for variant in variants {
        let workers = match variant.by {
            RunBy::Each => u64::from(plan.workers),
            RunBy::All | RunBy::First => variant.size.workers,
        };
        let sums = right(WorkloadSize { workers, ..variant.size })?;
        summaries.push(variant.check(plan.workload, sums, &tsc)?);
    }
    if let Some(by_hand) = by_hand {
        let sums = right(WorkloadSize { workers: 1, ..plan.size })?;
        summaries.push(by_hand.check(sums, tsc.hertz())?);
    }
    let named = |name: &str| summaries.iter().find(|summary| summary.variant == name).cloned();
    let (alone, unrelated) = (named(ALONE), named(UNRELATED));
    for summary in &mut summaries {
        let is_as_large = |of: &&Summary| of.size == summary.size && !summary.is_limit();
        let unrelated = unrelated.as_ref().filter(is_as_large);
        let alone = alone.as_ref().filter(|_| summary.variant != ALONE);
        summary.compare(alone, unrelated);
        let bars = targets::bars(summary, (plan.nodes, plan.workers), plan.fabric);
        summary.against.bars = bars;
    }
    Ok(summaries)
}

fn variants(plan: &RunPlan) -> Result<Vec<Variant>, BenchError> {
    let workers = plan.nodes * plan.workers;
    let mut variants = Vec::new();
    let planned = [String::from("auto")];
    let exchanges = if plan.exchanges.is_empty() { &planned[..] } else { &plan.exchanges };
    if plan.against_one && workers > 1 {
        variants.push(variant(plan, ALONE, RunBy::First, None)?);
    }
    if plan.against_unrelated {
        variants.push(variant(plan, UNRELATED, RunBy::Each, None)?);
    }
    for exchange in exchanges {
        variants.push(variant(plan, exchange, RunBy::All, Some(exchange))?);
    }
    Ok(variants)
}

fn variant(
    plan: &RunPlan,
    name: &str,
    by: RunBy,
    exchange: Option<&str>,
) -> Result<Variant, BenchError> {
    // Nodes and workers of a session, and sessions.
    let (nodes, workers, sessions) = match by {
        RunBy::All => (plan.nodes, plan.workers, 1),
        RunBy::First => (1, 1, 1),
        RunBy::Each => (1, plan.workers, plan.nodes),
    };
    let own = WorkloadSize { workers: u64::from(nodes * workers), ..plan.size };
    let size = WorkloadSize { workers: u64::from(nodes * workers * sessions), ..plan.size };
    let checksums = ChecksumSink::default();
    let session = session(plan, (nodes, workers), exchange).connector(Arc::new(checksums.clone()));
    let script = session.build()?.sql(&plan.workload.sql(&own))?;
    Ok(Variant { name: name.to_owned(), by, size, script, checksums, runs: Vec::new() })
}

/// A session of nodes and workers of each.
pub(crate) fn session(
    plan: &RunPlan,
    (nodes, workers): (u32, u32),
    exchange: Option<&str>,
) -> SessionBuilder {
    let builder = Session::builder().nodes(nodes).workers(workers).fabric(plan.fabric);
    let builder = builder.set("millstream.hardware_counters", "on");
    let set = |builder: SessionBuilder, (key, value): &(String, String)| builder.set(key, value);
    let builder = plan.settings.iter().fold(builder, set);
    match exchange {
        Some(exchange) => builder.set("millstream.exchange", exchange),
        None => builder,
    }
}

impl Variant {
    /// Runs it once. The nodes that take no part get nothing.
    fn run(&self, control: &Control, bandwidth: f64) -> Result<Option<VariantRun>, BenchError> {
        let measured = |elapsed, total: Counters, sums| {
            let run = MeasuredRun { elapsed, busy: Duration::from_nanos(total.cpu_ns), bandwidth };
            VariantRun { run, sums, total }
        };
        let options = match self.by {
            RunBy::Each => {
                let run = unrelated::run::<BenchError>(&self.script, &self.checksums, control)?;
                return Ok(Some(measured(run.elapsed, run.total, run.sums)));
            }
            RunBy::First => RunOptions::default(),
            RunBy::All => RunOptions { control: Some(control), ..RunOptions::default() },
        };
        let takes_part = self.by == RunBy::All || control.rank() == 0;
        let report = takes_part.then(|| self.script.run(&options)).transpose()?;
        let all = control.all_gather("sums", self.checksums.take().encode())?;
        let mut sums = ChecksumTotals::default();
        let nodes = all.iter().filter_map(|bytes| ChecksumTotals::decode(bytes));
        nodes.for_each(|node| sums.add(&node));
        Ok(report.map(|Report { elapsed, total, .. }| measured(elapsed, total, vec![sums])))
    }

    /// The figures, if all results are right.
    fn check(
        self,
        workload: Workload,
        right: ChecksumTotals,
        tsc: &Tsc,
    ) -> Result<Summary, BenchError> {
        let variant = || format!("{workload} ({})", self.name);
        for VariantRun { sums, total, .. } in &self.runs {
            if let Some(got) = sums.iter().find(|got| !right.agrees(got)) {
                return Err(BenchError::Wrong { variant: variant(), got: *got, right });
            }
            let (got, right) = (total.rows_in, self.size.rows() * workload.reads());
            if got != right {
                return Err(BenchError::Rows { variant: variant(), got, right });
            }
        }
        let total = self.runs.last().map(|run| run.total).unwrap_or_default();
        let runs = self.runs.into_iter().map(|run| run.run).collect();
        Ok(Summary {
            workload,
            variant: self.name,
            size: self.size,
            runs,
            total,
            hertz: tsc.hertz(),
            against: AgainstLimits::default(),
        })
    }
}
