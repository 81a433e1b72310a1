//! Measures the queries of a suite in turns: by layouts of processes and workers, transports and
//! exchanges.
//!
//! Each number of processes is a set of its own, whose first process is the same for all. It gives
//! the turns, and gets the figures; the others of a set make its calls in this order.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use millstream::cluster::Control;
use millstream::pool::PoolOptions;
use millstream::{
    Collected, Counters, Error, FabricKind, Report, RowTarget, RunOptions, Script, Session,
};

use super::{Query, Suite, SuiteConnector, pool};
use crate::run::BenchError;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct SuitePlan {
    /// The suite.
    pub suite: Suite,
    /// The scale of its tables.
    pub scale: f64,
    /// The directory of its files; `None` for tables in memory or in a pool.
    pub files: Option<PathBuf>,
    /// The pool in which its tables lie, if they do.
    pub pool: Option<PoolOptions>,
    /// Rows of a full strip of tables that are loaded into the pool; `None` for the most there can
    /// be.
    pub strip_rows: Option<u32>,
    /// The queries.
    pub queries: Vec<Query>,
    /// Processes and workers of each, to be compared with each other; at least one layout.
    pub layouts: Vec<SuiteLayout>,
    /// Transports between them, to be compared with each other; at least one.
    pub fabrics: Vec<FabricKind>,
    /// Exchanges, to be compared with each other.
    pub exchanges: Vec<String>,
    /// How often each query runs in each way.
    pub runs: u32,
    /// Other settings.
    pub settings: Vec<(String, String)>,
}

impl SuitePlan {
    /// Where the tables lie.
    pub(super) fn place(&self) -> &'static str {
        match (&self.files, &self.pool) {
            (Some(_), _) => "file",
            (None, Some(_)) => "pool",
            (None, None) => "memory",
        }
    }

    /// All ways in which each query runs, in the order of their turns.
    pub fn ways(&self) -> Vec<SuiteWay> {
        let way = |layout: SuiteLayout, fabric: FabricKind, exchange: &String| SuiteWay {
            layout,
            fabric,
            exchange: exchange.clone(),
        };
        let layouts = self
            .layouts
            .iter()
            .flat_map(|layout| self.fabrics.iter().map(move |fabric| (*layout, *fabric)));
        let ways = layouts.flat_map(|(layout, fabric)| {
            self.exchanges.iter().map(move |exchange| way(layout, fabric, exchange))
        });
        ways.collect()
    }

    /// The name of a way among the others: its exchange, and what differs between layouts and
    /// transports.
    pub fn name_of(&self, way: &SuiteWay) -> String {
        let layout = (self.layouts.len() > 1).then(|| way.layout.to_string());
        let fabric = (self.fabrics.len() > 1).then(|| way.fabric.to_string());
        let parts = layout.into_iter().chain(fabric).chain([way.exchange.clone()]);
        parts.collect::<Vec<_>>().join(" ")
    }

    /// The numbers of processes of all layouts, each once, in the order of the layouts.
    pub fn node_counts(&self) -> Vec<u32> {
        let mut counts = Vec::new();
        for layout in &self.layouts {
            if !counts.contains(&layout.nodes) {
                counts.push(layout.nodes);
            }
        }
        counts
    }
}

/// Processes, and workers of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuiteLayout {
    /// Processes.
    pub nodes: u32,
    /// Workers of each process.
    pub workers: u32,
}

impl fmt::Display for SuiteLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nodes, self.workers)
    }
}

/// A way in which queries run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteWay {
    /// Processes and workers.
    pub layout: SuiteLayout,
    /// The transport between them.
    pub fabric: FabricKind,
    /// The exchange.
    pub exchange: String,
}

/// A query that was run in a way.
#[derive(Debug)]
pub struct QueryOutcome {
    /// The query.
    pub query: Query,
    /// The way.
    pub way: SuiteWay,
    /// The figures, or the error of a query that was refused or failed.
    pub figures: Result<QueryFigures, String>,
}

/// The figures of a query.
#[derive(Debug, Clone, Default)]
pub struct QueryFigures {
    /// The time from the first row read to the last row of the result, run by run.
    pub elapsed: Vec<Duration>,
    /// Processor time of all workers, run by run.
    pub busy: Vec<Duration>,
    /// Counters of the last run.
    pub total: Counters,
    /// Rows that the scans read in the last run, with those that a join's build let them skip.
    pub scanned: u64,
    /// Rows that other workers sent to one worker in the last run: for a sink of one writer, and
    /// for operators of which one worker takes all rows.
    pub gathered: u64,
    /// Bytes of the gathered rows that came from other processes.
    pub gathered_bytes: u64,
    /// Blocks of the pool that were read in the last run, and their bytes.
    pub pool_blocks: u64,
    /// Bytes of these blocks.
    pub pool_bytes: u64,
    /// The result of the last run.
    pub result: Vec<RecordBatch>,
}

impl QueryFigures {
    /// Rows of the result.
    pub fn rows(&self) -> usize {
        self.result.iter().map(RecordBatch::num_rows).sum()
    }

    fn add(&mut self, script: &Script, report: &Report, result: Vec<RecordBatch>) {
        self.elapsed.push(report.elapsed);
        self.busy.push(Duration::from_nanos(report.total.cpu_ns));
        self.total = report.total;
        self.result = result;
        let gathering = script.jobs().last().into_iter().flat_map(|job| job.gathering());
        let gathered: Vec<_> = gathering
            .flat_map(|at| report.workers.iter().filter_map(move |of| of.operators.get(at)))
            .collect();
        self.gathered = gathered.iter().map(|of| of.rows_sent + of.local_rows).sum();
        self.gathered_bytes = gathered.iter().map(|of| of.row_bytes_sent).sum();
        let operators = report.workers.iter().flat_map(|worker| &worker.operators);
        let pool = operators.clone().map(|of| [of.pool_blocks, of.pool_bytes]);
        [self.pool_blocks, self.pool_bytes] =
            pool.fold([0, 0], |[blocks, bytes], [more, with]| [blocks + more, bytes + with]);
        let unmatched: u64 = operators.map(|operator| operator.unmatched_rows).sum();
        self.scanned = report.total.rows_in + unmatched;
    }
}

/// Runs all queries in turns. There is a control for each number of processes, as
/// [`SuitePlan::node_counts`] has them, in the first process, and in the others that of their set.
/// The first process gets an outcome of each query in each way, the others none.
///
/// # Errors
/// With several nodes, the first failure of a query that runs. A single node goes on with the next
/// query.
pub fn run(plan: &SuitePlan, controls: &[&Control]) -> Result<Vec<QueryOutcome>, BenchError> {
    pool::load(plan, controls)?;
    let connector = SuiteConnector::new(plan.suite);
    let mut outcomes = Vec::new();
    for query in &plan.queries {
        // In turns, so that a slow minute of the machine affects all ways.
        let mut measured = Vec::new();
        for way in plan.ways() {
            if let Some(control) = control_of(controls, way.layout.nodes) {
                measured.push((prepared(plan, &connector, query, way)?, control));
            }
        }
        for _ in 0..plan.runs.max(1) {
            for (prepared, control) in &mut measured {
                prepared.measure(control)?;
            }
        }
        let first = controls.iter().all(|control| control.rank() == 0);
        if first {
            outcomes.extend(measured.into_iter().map(|(prepared, _)| prepared.outcome));
        }
    }
    Ok(outcomes)
}

/// The control of the set of `nodes` processes, if this process is one of them.
pub(super) fn control_of<'a>(controls: &[&'a Control], nodes: u32) -> Option<&'a Control> {
    controls.iter().find(|control| control.nodes() == nodes).copied()
}

pub(super) fn run_once(script: &Script, control: &Control) -> Result<Report, Error> {
    // A single node does not share its control: a failure would end it for all runs.
    let shared = (control.nodes() > 1).then_some(control);
    script.run(&RunOptions { control: shared, ..RunOptions::default() })
}

/// A planned query, and its result sink.
struct Prepared {
    /// There is no plan if the query is refused, which all nodes do alike.
    script: Option<Script>,
    results: Collected,
    outcome: QueryOutcome,
}

impl Prepared {
    /// Runs the query once.
    fn measure(&mut self, control: &Control) -> Result<(), BenchError> {
        let (Some(script), Ok(figures)) = (&self.script, &mut self.outcome.figures) else {
            return Ok(());
        };
        match run_once(script, control) {
            Ok(report) => figures.add(script, &report, self.results.take()),
            Err(error) if control.nodes() == 1 => {
                self.outcome.figures = Err(error.to_string());
            }
            Err(error) => {
                let name = self.outcome.query.name;
                return Err(BenchError::Query(name, Box::new(error.into())));
            }
        }
        Ok(())
    }
}

fn prepared(
    plan: &SuitePlan,
    connector: &SuiteConnector,
    query: &Query,
    way: SuiteWay,
) -> Result<Prepared, BenchError> {
    let results = Collected::default();
    let SuiteLayout { nodes, workers } = way.layout;
    let builder = Session::builder()
        .nodes(nodes)
        .workers(workers)
        .fabric(way.fabric)
        .rows_to(RowTarget::Connector(Arc::new(results.clone())))
        .connector(Arc::new(connector.clone()));
    let exchange = way.exchange.as_str();
    let builder = exchange_settings(exchange)
        .into_iter()
        .fold(builder, |builder, (key, value)| builder.set(key, value));
    let builder =
        plan.settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value));
    let builder = match &plan.pool {
        Some(pool) => builder.pool(PoolOptions { workers: nodes * workers, ..pool.clone() }),
        None => builder,
    };
    let tables = match &plan.files {
        Some(directory) => plan.suite.declarations_of_files(directory),
        None if plan.pool.is_some() => plan.suite.declarations_in_pool(plan.scale, plan.strip_rows),
        None => plan.suite.declarations(plan.scale),
    };
    let sql = match exchange {
        PULL | MULTICAST => query.sql_hinted(&exchange.to_uppercase(), plan.scale),
        _ => Some(query.sql(plan.scale)),
    };
    let Some(sql) = sql else {
        let figures = Err("it names no tables that are pulled or multicast".to_owned());
        let outcome = QueryOutcome { query: *query, way, figures };
        return Ok(Prepared { script: None, results, outcome });
    };
    let script = builder.build()?.sql(&format!("{tables}{sql}"));
    let figures = match &script {
        Ok(_) => Ok(QueryFigures::default()),
        Err(error) => Err(error.to_string()),
    };
    let outcome = QueryOutcome { query: *query, way, figures };
    Ok(Prepared { script: script.ok(), results, outcome })
}

/// The exchange by which each process reads the tables itself that a query names.
const PULL: &str = "pull";

/// The exchange by which one process reads these tables for all.
const MULTICAST: &str = "multicast";

/// The settings of an exchange: with `shuffle` both sides of a join are partitioned by their keys,
/// with `broadcast` the smaller one goes to every worker, with `pull` the builds that a query names
/// are read by each process, and with `multicast` by one for all; else the planner chooses for each
/// join.
fn exchange_settings(exchange: &str) -> Vec<(&'static str, &str)> {
    const EXCHANGE: &str = "millstream.exchange";
    const TABLE: &str = "millstream.table_bytes";
    match exchange {
        "shuffle" => vec![(EXCHANGE, exchange), (TABLE, "1")],
        "broadcast" => vec![(TABLE, "1 GiB")],
        // Hash joins, as with `shuffle`; the hints say the rest.
        PULL | MULTICAST => vec![(TABLE, "1")],
        other => vec![(EXCHANGE, other)],
    }
}
