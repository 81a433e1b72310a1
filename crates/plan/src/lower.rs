//! From an optimized plan to the operators of a job.
//!
//! A plan that can be lowered ([`pipeline`]) becomes operators in front of the statement's sink.
//! Otherwise, over bounded input, its largest parts that can be lowered feed a [`BatchStage`],
//! which runs the rest. Over unbounded input there is no rest: what does not stream is refused.

pub(crate) mod aggregates;
pub(crate) mod batch;
pub(crate) mod between;
pub(crate) mod broadcast;
pub(crate) mod builder;
pub(crate) mod context;
pub(crate) mod early;
pub(crate) mod expand;
pub(crate) mod grouping;
pub(crate) mod hash_join;
pub(crate) mod hints;
pub(crate) mod join;
pub(crate) mod join_order;
pub(crate) mod lateness;
pub(crate) mod local_plan;
pub(crate) mod lookup;
pub(crate) mod multi_window;
pub(crate) mod over;
pub(crate) mod pipeline;
pub(crate) mod place;
pub(crate) mod prune;
pub(crate) mod rank;
pub(crate) mod relation;
pub(crate) mod replication;
mod row_exchange;
pub(crate) mod scan;
pub(crate) mod session;
pub(crate) mod sets;
pub(crate) mod shared;
pub(crate) mod sort;
pub(crate) mod step;
pub(crate) mod temporal;
pub(crate) mod union;
pub(crate) mod window_bounds;

use std::sync::{Arc, Mutex};

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::cost::Decision;
use dataflow::job::{
    Edge, Exchange, InputLabels, Labels, Operator, OperatorKind, Reason, Scan, SinkSpec,
};
use dataflow::sink::Sink;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};

use crate::Workers;
use crate::catalog::rows::MemorySource;
use crate::catalog::{Catalog, ScannedTable, Table};
use crate::explain::{ExplainedBatch, OrderedJoins, cost, plain};
use crate::expr::given::GivenFunction;
use crate::logical::engine::Engine;
use crate::logical::errors::Surroundings;
use crate::logical::windows::WindowCall;
use crate::lower::batch::{BatchStage, GatheredRows};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::grouping::GROUPING;
use crate::lower::hints::BlockHints;
use crate::lower::join_order::ScannedStatistics;
use crate::lower::place::Texts;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::shared::Sharing;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::emit::Emit;
use crate::text::hints::Hints;
use crate::text::refusal::Refusal;
use crate::text::settings::{ExchangeChoice, InForce};

/// Why workers are of two kinds.
pub(crate) const HALVES: &str = "millstream.exchange = 'uppar': half of the workers read and the \
                                 others keep the rows of their keys";

/// Where a statement's rows go.
pub(crate) struct Target {
    /// For messages: `INSERT INTO t`.
    pub(crate) name: String,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) schema: SchemaRef,
    /// For EXPLAIN: the table and its connector.
    pub(crate) table: String,
}

/// The operators of a statement, whose edges count from the first of them.
pub(crate) struct Lowered {
    pub(crate) operators: Vec<Operator>,
    /// For EXPLAIN: `INSERT INTO t`.
    pub(crate) name: String,
    pub(crate) bounded: bool,
    /// The stage that runs when all input has been read, if there is one.
    pub(crate) batch: Option<ExplainedBatch>,
    /// For EXPLAIN: the orders of its blocks of inner joins.
    pub(crate) orders: Vec<OrderedJoins>,
    /// The functions of the program that it calls.
    pub(crate) functions: Vec<GivenFunction>,
}

/// Lowers one statement.
pub(crate) struct Lowering<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) catalog: &'a Catalog,
    /// The optimized plan of the statement.
    pub(crate) plan: &'a LogicalPlan,
    pub(crate) settings: &'a InForce,
    pub(crate) workers: Workers,
    pub(crate) around: Surroundings<'a>,
    /// Whether and how often windows emit before they end.
    pub(crate) emit: Option<Emit>,
    pub(crate) hints: &'a Hints,
    /// The statistics of the tables of the statement.
    pub(crate) statistics: ScannedStatistics,
    /// The tables that the job has read as streams, by their titles, if it goes on.
    pub(crate) streamed: &'a [String],
    /// Whether EXPLAIN shows the estimated rows of joins and groupings: if a join order was chosen
    /// by them.
    pub(crate) shows_rows: bool,
}

impl Lowering<'_> {
    /// Lowers the plan of a statement: with its repeated parts apart, if it can be lowered so.
    ///
    /// # Errors
    /// When the query does not stream over unbounded input, or a connector or DataFusion refuses
    /// it.
    pub(crate) fn lower(
        &self,
        sharing: Option<Sharing>,
        target: Target,
    ) -> Result<Lowered, Option<Diagnostic>> {
        let plan = self.plan;
        let tables = tables_of(plan);
        if tables.is_empty() {
            return match &self.emit {
                None => self.constant(plan, target),
                Some(emit) => Err(Some(emit.without_windows())),
            };
        }
        let mut bounded = true;
        for table in &tables {
            bounded &= table.bounded(self.place_of(table))?;
        }
        let emit = self.emit.as_ref();
        let (waits_ns, hints) = (self.waits_ns(plan), BlockHints::default());
        let sizes = None;
        let cx = Context { lowering: self, bounded, emit, waits_ns, hints, sizes };
        if let Some(Sharing { plan, parts }) = sharing.filter(|_| emit.is_none()) {
            let mut job = JobBuilder { shared: parts, ..JobBuilder::default() };
            if let Ok(edges) = pipeline::lower(&cx, &mut job, &plan, &target.schema) {
                return Ok(whole(job, bounded, edges, target));
            }
        }
        let mut job = JobBuilder::default();
        match pipeline::lower(&cx, &mut job, plan, &target.schema) {
            Ok(edges) => Ok(whole(job, bounded, edges, target)),
            Err(LowerError::Failed(diagnostic)) => Err(diagnostic),
            Err(LowerError::Refused(refusal)) if refusal.always => Err(Some(self.refused(refusal))),
            Err(LowerError::Refused(refusal)) if bounded && emit.is_none() => {
                self.with_batch_stage(&cx, job, target, &refusal)
            }
            Err(LowerError::Refused(refusal)) => Err(Some(self.unbounded(refusal))),
        }
    }

    /// A statement with work that needs all rows.
    fn with_batch_stage(
        &self,
        cx: &Context<'_>,
        mut job: JobBuilder,
        target: Target,
        refusal: &Refusal,
    ) -> Result<Lowered, Option<Diagnostic>> {
        let mut parts = vec![];
        let rest = cut(cx, &mut job, self.plan, &mut parts)?;
        let stage = BatchStage::new(
            rest.clone(),
            parts.len(),
            self.engine.state(),
            target.sink.clone(),
            target.schema.clone(),
            self.settings.batch_bytes,
            self.engine.interrupt.clone(),
        )
        .map_err(|e| self.around.report(&e))?;
        for (at, part) in parts.into_iter().enumerate() {
            let kind = OperatorKind::Sink(SinkSpec { sink: stage.part(at), schema: part.schema });
            let labels = Labels {
                name: Some("BatchInput"),
                table: Some(format!("part {}", at + 1)),
                ..Labels::default()
            };
            job.add(format!("{} (part {})", target.name, at + 1), vec![part.edges], kind, labels);
        }
        let plan = rest.display_indent().to_string();
        let batch = ExplainedBatch {
            reason: refusal.reason.clone(),
            plan: plan.lines().map(|line| plain(line, &[])).collect(),
            table: target.table,
            memory_bytes: self.settings.batch_bytes,
        };
        let operators = job.operators;
        Ok(Lowered {
            operators,
            name: target.name,
            bounded: true,
            batch: Some(batch),
            orders: vec![],
            functions: vec![],
        })
    }

    /// A statement that reads no table: its rows are computed now.
    fn constant(&self, plan: &LogicalPlan, target: Target) -> Result<Lowered, Option<Diagnostic>> {
        let report = |e: &DataFusionError| self.around.report(e);
        let batches = batch::collect(plan, self.engine.state()).map_err(|e| report(&e))?;
        let batches = batches
            .into_iter()
            .map(|b| batch::renamed(b, &target.schema))
            .collect::<DfResult<Vec<_>>>()
            .map_err(|e| report(&e))?;
        Ok(known_rows(batches, target))
    }

    /// The error that a window is over a time of which no watermark speaks.
    pub(crate) fn no_watermark(&self, relation: &Relation, window: &WindowCall) -> Refusal {
        let sites: Vec<_> = window.sites(self.around.sites).collect();
        let places = sites.iter().map(|site| (site.time.place, site.table)).collect();
        // As it is called where the window is written: a view may have made it of something else.
        let name = match sites.first() {
            Some(site) => site.time.text.clone(),
            None => window.time.human_display().to_string(),
        };
        let input = match relation.table() {
            Some(table) => format!("table '{}'", table.name),
            None => "its input".into(),
        };
        let reason = format!("'{name}' has no watermark, and {input} never ends");
        let error = Refusal::new(&[window.shape.word()], reason)
            .among(places)
            .detail("a window emits its result when the watermark passes its end")
            .always();
        match (relation.table(), relation.times.first()) {
            (Some(_), None) => error
                .hint(format!("declare it: WATERMARK FOR {name} AS {name} - INTERVAL '5' SECOND")),
            (Some(_), Some(time)) => {
                error.hint(format!("the table's event time is '{}'", time.human_display()))
            }
            (None, _) => error.hint("the time of rows that come from a window is 'window_time'"),
        }
    }

    /// How the workers' rows meet in a grouping, and why so; rows of equal keys may be `together`
    /// already, and `costs` is asked what each way costs if that is known.
    pub(crate) fn exchange(
        &self,
        together: bool,
        hints: &BlockHints<'_>,
        costs: impl FnOnce() -> Option<Decision>,
    ) -> Result<(Exchange, InputLabels), LowerError> {
        let workers = self.workers.total();
        let decision = if workers > 1 { costs() } else { None };
        let labels = |reason: Option<Reason>| InputLabels {
            reason,
            costs: decision.as_ref().map(cost::costs).unwrap_or_default(),
            ..InputLabels::default()
        };
        let possible = [Exchange::Merge, Exchange::Shuffle, Exchange::UpPar, Exchange::Forward];
        if let Some((exchange, reason)) =
            hints.obey_exchange(&possible, workers == 1 || together)?
        {
            return Ok((exchange, labels(Some(reason))));
        }
        match self.settings.exchange {
            ExchangeChoice::Auto if workers == 1 => Ok((Exchange::Forward, labels(None))),
            ExchangeChoice::Auto if together => {
                let reason = Some(Reason::together());
                Ok((Exchange::Forward, InputLabels { reason, ..InputLabels::default() }))
            }
            ExchangeChoice::Auto => {
                let (exchange, reason) = match &decision {
                    Some(decision) => (decision.exchange, cost::reason(decision)),
                    None => (Exchange::Merge, cost::UNKNOWN.into()),
                };
                Ok((exchange, labels(Some(Reason::Planner(reason)))))
            }
            ExchangeChoice::Fixed(Exchange::Forward) if workers > 1 && !together => {
                let message =
                    format!("exchange 'forward' cannot group the rows of {workers} workers");
                let refusal = Refusal::new(&GROUPING, message)
                    .detail("each worker would emit its own rows for the same key")
                    .hint("SET millstream.exchange = 'merge'")
                    .always();
                Err(refusal.into())
            }
            ExchangeChoice::Fixed(Exchange::UpPar) if workers > 1 => {
                Ok((Exchange::UpPar, labels(Some(Reason::Setting(HALVES.into())))))
            }
            ExchangeChoice::Fixed(exchange) => {
                let setting = format!("millstream.exchange = '{exchange}'");
                Ok((exchange, labels(Some(Reason::Setting(setting)))))
            }
        }
    }

    /// The error that something does not stream that has to.
    fn unbounded(&self, refusal: Refusal) -> Diagnostic {
        let node = refusal.site.node.as_ref().unwrap_or(self.plan);
        let is_endless = |table: &&Arc<Table>| !table.bounded(Place::default()).unwrap_or(true);
        let tables = [tables_of(node), tables_of(self.plan)].concat();
        let endless = tables.iter().find(is_endless).map(|table| &table.name);
        let refusal = match (endless, &refusal.detail) {
            (_, Some(_)) => refusal,
            (Some(name), None) => refusal.detail(format!("table '{name}' never ends")),
            (None, None) if self.emit.is_some() => {
                refusal.detail("with EMIT, results are emitted as time passes")
            }
            (None, None) => refusal,
        };
        self.refused(refusal)
    }

    /// The error that something is refused, where that is written.
    pub(crate) fn refused(&self, mut refusal: Refusal) -> Diagnostic {
        let texts = Texts::of(self.plan, self.around.tokens, self.catalog);
        let found = texts.place(&refusal);
        if found.as_ref().is_some_and(|found| found.of_values) {
            // DataFusion has made two groupings of it.
            refusal.reason = "DISTINCT values of rows that never end need a window".into();
            refusal.hint = Some("GROUP BY window_start, window_end".into());
        }
        let message = match found.as_ref().and_then(|found| found.view) {
            Some(view) => format!("in view '{view}': {}", refusal.reason),
            None => refusal.reason,
        };
        let place = found.map_or_else(|| self.around.start(), |found| found.place);
        let error = Diagnostic::at(place, message);
        Diagnostic { detail: refusal.detail, hint: refusal.hint, ..error }
    }

    /// Where a table is named.
    pub(crate) fn place_of(&self, table: &Table) -> Place {
        let place = place::of_table(table, self.plan, self.catalog.script);
        place.unwrap_or_else(|| self.around.start())
    }
}

/// Rows that exist already, as a statement.
pub(crate) fn known_rows(batches: Vec<RecordBatch>, target: Target) -> Lowered {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let text = format!("{rows}, of the statement itself");
    told_rows(Arc::new(Mutex::new(batches)), text, target)
}

/// Rows that will exist when they are read.
pub(crate) fn told_rows(
    batches: Arc<Mutex<Vec<RecordBatch>>>,
    text: String,
    target: Target,
) -> Lowered {
    let source = Arc::new(MemorySource { schema: target.schema.clone(), batches });
    let labels =
        Labels { name: Some("Values"), properties: vec![("rows", text)], ..Labels::default() };
    scanned(Scan::new("rows", source), labels, target)
}

/// All rows of a table, as a statement.
pub(crate) fn scanned(input: Scan, labels: Labels, target: Target) -> Lowered {
    let name = input.table.clone();
    let source = Operator::new(name, vec![], OperatorKind::Source(input)).labelled(labels);
    let edge = Edge { from: 0, step: None, timed: false, lateness: 0 };
    let kind = OperatorKind::Sink(SinkSpec { sink: target.sink, schema: target.schema });
    let (name, labels) = (target.name, labels_of_sink(target.table));
    let sink = Operator::new(name.clone(), vec![vec![edge]], kind).labelled(labels);
    let operators = vec![source, sink];
    Lowered { operators, name, bounded: true, batch: None, orders: vec![], functions: vec![] }
}

/// Appends operators whose edges count from the first of them.
pub(crate) fn append(to: &mut Vec<Operator>, operators: Vec<Operator>) {
    let first = to.len();
    to.extend(operators.into_iter().map(|mut operator| {
        operator.inputs.iter_mut().flatten().for_each(|edge| edge.from += first);
        operator
    }));
}

/// The tables that a plan reads, each once.
pub(crate) fn tables_of(plan: &LogicalPlan) -> Vec<Arc<Table>> {
    let mut tables: Vec<Arc<Table>> = vec![];
    // The closure never fails, so neither does the walk.
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(source) = scan.source.downcast_ref::<ScannedTable>()
            && !tables.iter().any(|known| Arc::ptr_eq(known, &source.table))
        {
            tables.push(source.table.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    tables
}

/// A statement that is lowered whole.
fn whole(mut job: JobBuilder, bounded: bool, edges: Vec<Edge>, target: Target) -> Lowered {
    let kind = OperatorKind::Sink(SinkSpec { sink: target.sink, schema: target.schema });
    let (name, labels) = (target.name, labels_of_sink(target.table));
    job.add(name.clone(), vec![edges], kind, labels);
    let operators = job.operators;
    Lowered { operators, name, bounded, batch: None, orders: vec![], functions: vec![] }
}

/// The text of EXPLAIN about the sink of a table.
fn labels_of_sink(table: String) -> Labels {
    Labels { table: Some(table), ..Labels::default() }
}

/// A part of a plan that was lowered.
struct Part {
    edges: Vec<Edge>,
    schema: SchemaRef,
}

/// Cuts the largest parts that can be lowered out of a plan and leaves [`GatheredRows`] with the
/// same columns in their place.
fn cut(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
    parts: &mut Vec<Part>,
) -> Result<LogicalPlan, Option<Diagnostic>> {
    let mut failed = None;
    let rest = plan.clone().transform_down_with_subqueries(|node| {
        if failed.is_some() {
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
        }
        let schema: SchemaRef = Arc::new(node.schema().as_arrow().clone());
        let edges = match pipeline::lower(cx, job, &node, &schema) {
            Ok(edges) => edges,
            Err(LowerError::Refused(Refusal { always: false, .. })) => {
                return Ok(Transformed::no(node));
            }
            Err(LowerError::Refused(refusal)) => {
                failed = Some(Some(cx.lowering.refused(refusal)));
                return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
            }
            Err(LowerError::Failed(diagnostic)) => {
                failed = Some(diagnostic);
                return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
            }
        };
        let leaf = leaf_of(&node, parts.len())?;
        parts.push(Part { edges, schema });
        Ok(Transformed::new(leaf, true, TreeNodeRecursion::Jump))
    });
    match (failed, rest) {
        (Some(diagnostic), _) => Err(diagnostic),
        (None, Ok(rest)) => Ok(rest.data),
        (None, Err(error)) => Err(cx.lowering.around.report(&error)),
    }
}

/// The node that stands for a part in the rest of a plan.
pub(crate) fn leaf_of(node: &LogicalPlan, part: usize) -> DfResult<LogicalPlan> {
    let fields = node.schema().as_arrow().fields().iter().enumerate();
    let plain: Vec<Field> =
        fields.map(|(at, f)| f.as_ref().clone().with_name(format!("c{at}"))).collect();
    let source = GatheredRows { part, schema: Arc::new(Schema::new(plain)) };
    let name = format!("part {}", part + 1);
    let scan = LogicalPlanBuilder::scan(name.clone(), Arc::new(source), None)?;
    let columns = node.schema().iter().enumerate().map(|(at, (qualifier, field))| {
        Expr::Column(Column::new(Some(name.clone()), format!("c{at}")))
            .alias_qualified(qualifier.cloned(), field.name())
    });
    scan.project(columns.collect::<Vec<_>>())?.build()
}
