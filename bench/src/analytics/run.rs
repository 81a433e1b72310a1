//! Measures the queries of a suite: every node makes these calls in this order, and node 0 gets the
//! figures.

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
    /// Nodes.
    pub nodes: u32,
    /// Workers of each node.
    pub workers: u32,
    /// The transport between them.
    pub fabric: FabricKind,
    /// Exchanges, to be compared with each other.
    pub exchanges: Vec<String>,
    /// How often each query runs with each exchange.
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
}

/// A query with an exchange.
#[derive(Debug)]
pub struct QueryOutcome {
    /// The query.
    pub query: Query,
    /// The exchange.
    pub exchange: String,
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
    /// Rows that were sent to one worker, by a sink or by an operator that one worker runs.
    pub gathered: u64,
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
        let sinks = script.jobs().last().into_iter().flat_map(|job| job.sinks());
        let rows = |(at, _): (usize, &str)| -> u64 {
            let each = report.workers.iter().filter_map(|worker| worker.operators.get(at));
            each.map(|operator| operator.rows_in).sum()
        };
        self.gathered = sinks.map(rows).sum();
        let operators = report.workers.iter().flat_map(|worker| &worker.operators);
        let pool = operators.clone().map(|of| [of.pool_blocks, of.pool_bytes]);
        [self.pool_blocks, self.pool_bytes] =
            pool.fold([0, 0], |[blocks, bytes], [more, with]| [blocks + more, bytes + with]);
        let unmatched: u64 = operators.map(|operator| operator.unmatched_rows).sum();
        self.scanned = report.total.rows_in + unmatched;
    }
}

/// Runs all queries in turns. Node 0 gets an outcome of each query with each exchange, the other
/// nodes none.
///
/// # Errors
/// With several nodes, the first failure of a query that runs. A single node goes on with the next
/// query.
pub fn run(plan: &SuitePlan, control: &Control) -> Result<Vec<QueryOutcome>, BenchError> {
    pool::load(plan, control)?;
    let connector = SuiteConnector::new(plan.suite);
    let mut outcomes = Vec::new();
    for query in &plan.queries {
        // In turns, so that a slow minute of the machine affects all exchanges.
        let mut measured: Vec<_> = plan
            .exchanges
            .iter()
            .map(|exchange| prepared(plan, &connector, query, exchange))
            .collect::<Result<_, BenchError>>()?;
        for _ in 0..plan.runs.max(1) {
            for (script, results, outcome) in &mut measured {
                let (Some(script), Ok(figures)) = (&*script, &mut outcome.figures) else {
                    continue;
                };
                match run_once(script, control) {
                    Ok(report) => figures.add(script, &report, results.take()),
                    Err(error) if control.nodes() == 1 => {
                        outcome.figures = Err(error.to_string());
                    }
                    Err(error) => {
                        return Err(BenchError::Query(query.name, Box::new(error.into())));
                    }
                }
            }
        }
        if control.rank() == 0 {
            outcomes.extend(measured.into_iter().map(|(_, _, outcome)| outcome));
        }
    }
    Ok(outcomes)
}

pub(super) fn run_once(script: &Script, control: &Control) -> Result<Report, Error> {
    // A single node does not share its control: a failure would end it for all runs.
    let shared = (control.nodes() > 1).then_some(control);
    script.run(&RunOptions { control: shared, ..RunOptions::default() })
}

/// A planned query, and its result sink; no plan if the query is refused, which all nodes do alike.
fn prepared(
    plan: &SuitePlan,
    connector: &SuiteConnector,
    query: &Query,
    exchange: &str,
) -> Result<(Option<Script>, Collected, QueryOutcome), BenchError> {
    let results = Collected::default();
    let builder = Session::builder()
        .nodes(plan.nodes)
        .workers(plan.workers)
        .fabric(plan.fabric)
        .rows_to(RowTarget::Connector(Arc::new(results.clone())))
        .connector(Arc::new(connector.clone()));
    let builder = exchange_settings(exchange)
        .into_iter()
        .fold(builder, |builder, (key, value)| builder.set(key, value));
    let builder =
        plan.settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value));
    let builder = match &plan.pool {
        Some(pool) => builder.pool(pool.clone()),
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
        let outcome = QueryOutcome { query: *query, exchange: exchange.to_owned(), figures };
        return Ok((None, results, outcome));
    };
    let script = builder.build()?.sql(&format!("{tables}{sql}"));
    let figures = match &script {
        Ok(_) => Ok(QueryFigures::default()),
        Err(error) => Err(error.to_string()),
    };
    let outcome = QueryOutcome { query: *query, exchange: exchange.to_owned(), figures };
    Ok((script.ok(), results, outcome))
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
