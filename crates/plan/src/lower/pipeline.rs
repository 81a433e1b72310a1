//! From the nodes of a plan to relations, and from a relation to the edges of the next operator:
//! see [`crate::lower::relation`].

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::job::{
    Distribution, Edge, Exchange, Keyed, KeyedInput, KeyedOperator, Labels, OperatorKind, Reason,
    Scan, Step, TimeColumn, Watermark,
};
use dataflow::placement::Placements;
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::catalog::Table;
use crate::catalog::proctime::{self, ReadTime};
use crate::catalog::watermark::{RowWatermarks, is_read};
use crate::explain::{shown, shown_expr};
use crate::logical::windows::WindowAssign;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::early;
use crate::lower::grouping;
use crate::lower::join;
use crate::lower::lateness;
use crate::lower::local_plan;
use crate::lower::lookup;
use crate::lower::multi_window;
use crate::lower::over;
use crate::lower::prune;
use crate::lower::rank;
use crate::lower::relation::{Base, Feeds, LowerError, Relation, columns_read, refusal};
use crate::lower::row_exchange::{KeyedExchange, row_exchange};
use crate::lower::scan;
use crate::lower::session;
use crate::lower::shared;
use crate::lower::sort;
use crate::lower::step::{self, column_index};
use crate::lower::union;
use crate::text::interval::tick_ns;
use crate::text::settings::ExchangeChoice;

/// The input of an operator.
pub(crate) struct FinishedPipeline {
    pub(crate) edges: Vec<Edge>,
    /// The columns that arrive.
    pub(crate) schema: SchemaRef,
    /// Which of them each expression that was asked for is.
    pub(crate) places: Vec<usize>,
    /// The arriving columns, in the words of the user.
    pub(crate) columns: Vec<String>,
}

/// A step, if one is needed; the columns behind it, and which of them each expression is.
type Narrowed = (Option<Arc<dyn Step>>, SchemaRef, Vec<usize>);

/// Lowers a plan; its rows, as columns of `schema`, go along the edges. Nothing is left behind
/// when it fails.
pub(crate) fn lower(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
    schema: &SchemaRef,
) -> Result<Vec<Edge>, LowerError> {
    let operators = job.operators.len();
    let lowered =
        relation(cx, job, plan).and_then(|relation| session::materialized(cx, job, relation));
    let lowered = lowered.and_then(|relation| {
        let outputs = relation.exprs();
        end(cx, job, &relation, &outputs, schema.clone(), None)
    });
    let lowered = lowered.map_err(|error| error.at(plan));
    if lowered.is_err() {
        job.operators.truncate(operators);
    }
    lowered
}

/// The relation of a node.
pub(crate) fn relation(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
) -> Result<Relation, LowerError> {
    let before = job.operators.len();
    let tried = match job.refusal_of(plan) {
        Some(refusal) => Err(refusal.into()),
        None => node(cx, job, plan),
    };
    let made = match tried {
        Err(LowerError::Refused(refusal)) if local_plan::takes(cx, job, plan, &refusal) => {
            job.operators.truncate(before);
            job.refuse(plan, &refusal);
            local_plan::relation(cx, job, plan, refusal)
        }
        made => made,
    };
    let relation = made.map_err(|error| error.at(plan))?;
    let emits = matches!(plan, LogicalPlan::Join(_) | LogicalPlan::Aggregate(_));
    // The operator of a node is added behind the operators of its inputs.
    if let Some(operator) = job.operators[before..].last_mut()
        && emits
        && cx.lowering.shows_rows
        && let Base::Operators { .. } = &relation.base
    {
        let rows = cx.lowering.statistics.estimate(plan).rows;
        operator.labels.rows_estimate = Some(rows as u64);
    }
    Ok(relation)
}

fn node(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
) -> Result<Relation, LowerError> {
    early::check_emit(cx, plan)?;
    Ok(match plan {
        LogicalPlan::TableScan(scan) => match shared::shared(cx, job, scan)? {
            Some(relation) => relation,
            None => scan::scan(job, scan)?,
        },
        LogicalPlan::SubqueryAlias(alias) => relation(cx, job, &alias.input)?.rename(alias),
        LogicalPlan::Projection(projection) => {
            relation(cx, job, &projection.input)?.project(projection)?
        }
        LogicalPlan::Filter(filter) => {
            let relation = relation(cx, job, &filter.input)?;
            let relation = if session::filters_rows(&relation, &filter.predicate)? {
                session::materialized_where(cx, job, relation, &filter.predicate)?
            } else {
                relation.filter(&filter.predicate)?
            };
            rank::limit(job, &relation);
            relation
        }
        LogicalPlan::Aggregate(aggregate) => grouping::aggregate(cx, job, aggregate)?,
        LogicalPlan::Union(union) => union::union(cx, job, union)?,
        LogicalPlan::Join(join) => join::join(cx, job, join)?,
        LogicalPlan::Window(window) => over::over(cx, job, window)?,
        LogicalPlan::Sort(sorted) => sort::sort(cx, job, sorted)?,
        LogicalPlan::Limit(limit) => sort::limit(cx, job, limit)?,
        other => match WindowAssign::of(other) {
            Some(assign) => multi_window::windowed(cx, job, assign)?,
            None => return Err(refusal(other).into()),
        },
    })
}

/// Ends a relation: `outputs`, over the base's columns, go along edges as columns of `schema`.
/// With `time` their watermarks speak of that expression.
pub(crate) fn end(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    outputs: &[Expr],
    schema: SchemaRef,
    time: Option<&Expr>,
) -> Result<Vec<Edge>, LowerError> {
    let predicate = relation.predicate();
    let (from, columns) = open(cx, job, relation, outputs.iter().chain(&predicate), time)?;
    let (filter, names) = (predicate.as_ref(), &relation.names);
    let step =
        step::compile(&columns, filter, outputs, schema, names).map_err(|e| cx.report(&e))?;
    Ok(Base::edges(&from, &step, time.is_some()))
}

/// Ends a relation: the expressions `requested`, over the base's columns, arrive at an operator.
/// With `time` its watermarks speak of that expression, and wait as long as they are to.
pub(crate) fn finish(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    requested: &[Expr],
    time: Option<&Expr>,
) -> Result<FinishedPipeline, LowerError> {
    let mut finished = finish_without_lateness(cx, job, relation, requested, time)?;
    lateness::wait(cx, job, relation, requested, time, &mut finished.edges)?;
    Ok(finished)
}

/// As [`finish`], for what hands watermarks on as they come.
pub(crate) fn finish_without_lateness(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    requested: &[Expr],
    time: Option<&Expr>,
) -> Result<FinishedPipeline, LowerError> {
    let mut requested = requested.to_vec();
    let predicate = relation.predicate();
    if requested.is_empty() {
        requested.push(relation.counted_by());
    }
    let time = time.filter(|time| relation.tells(time));
    let (from, columns) = open(cx, job, relation, requested.iter().chain(&predicate), time)?;
    let (step, schema, places) = narrow(cx, relation, &requested, columns)?;
    let columns = shown(&schema, &relation.names);
    Ok(FinishedPipeline {
        edges: Base::edges(&from, &step, time.is_some()),
        schema,
        places,
        columns,
    })
}

/// The step that makes `requested` of the columns of a relation's base, if one is needed; the
/// columns behind it, and which of them each is.
pub(crate) fn narrow(
    cx: &Context<'_>,
    relation: &Relation,
    requested: &[Expr],
    columns: SchemaRef,
) -> Result<Narrowed, LowerError> {
    let predicate = relation.predicate();
    let direct = requested.iter().map(|expr| column_index(expr, &columns)).collect();
    let (step, schema, places) = match (&predicate, direct) {
        (None, Some(places)) => (None, columns, places),
        _ => {
            let schema = schema_of(requested, &columns).map_err(|e| cx.report(&e))?;
            let (filter, names) = (predicate.as_ref(), &relation.names);
            let step = step::compile(&columns, filter, requested, schema.clone(), names)
                .map_err(|e| cx.report(&e))?;
            (step, schema, (0..requested.len()).collect())
        }
    };
    Ok((step, schema, places))
}

/// Where the rows of a relation come from, with the columns of its base that expressions name;
/// watermarks speak of `time`.
fn open<'e>(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &'e Relation,
    exprs: impl Iterator<Item = &'e Expr>,
    time: Option<&'e Expr>,
) -> Result<(Feeds, SchemaRef), LowerError> {
    match &relation.base {
        Base::Table(table) => {
            let (input, columns) = scan(cx, table, exprs, time)?;
            let input = pruned(cx, table, input, relation.predicate().as_ref(), &columns)?;
            // Workers of two kinds read and lead rows.
            let settings = cx.lowering.settings;
            let of_one_kind = settings.exchange != ExchangeChoice::Fixed(Exchange::UpPar)
                && settings.job.readers == 0;
            let workers = cx.lowering.workers.total();
            let input = if of_one_kind { input.placed(workers) } else { input };
            let labels = Labels { table: Some(table.title()), ..Labels::default() };
            let source = OperatorKind::Source(input);
            let operator = job.add(table.name.clone(), vec![], source, labels);
            Ok((vec![(operator, None)], columns))
        }
        Base::Operators { from, schema } => Ok((from.clone(), schema.clone())),
        Base::Lookup(join) => lookup::lowered(cx, job, join, exprs, time),
        Base::United { parts, schema } => {
            Ok((union::united(cx, job, parts, schema, time)?, schema.clone()))
        }
    }
}

/// A scan whose source skips rows that cannot pass a filter over its columns, as far as it can.
///
/// # Errors
/// When the source turns out not to fit the table.
pub(crate) fn pruned(
    cx: &Context<'_>,
    table: &Table,
    input: Scan,
    filter: Option<&Expr>,
    columns: &Schema,
) -> Result<Scan, LowerError> {
    let input = match filter.and_then(|filter| prune::predicate(filter, columns)) {
        Some(predicate) => input.pruned(predicate),
        None => input,
    };
    let place = cx.lowering.place_of(table);
    input.source.validate().map_err(|error| table.refused(&error, place))?;
    Ok(input)
}

/// The columns of a table that expressions name, with its watermark if `time` is given.
pub(crate) fn scan<'e>(
    cx: &Context<'_>,
    table: &Arc<Table>,
    exprs: impl Iterator<Item = &'e Expr>,
    time: Option<&'e Expr>,
) -> Result<(Scan, SchemaRef), LowerError> {
    let place = cx.lowering.place_of(table);
    let all = table.columns(place)?;
    let exprs: Vec<&Expr> = exprs.chain(time).collect();
    let mut read = columns_read(exprs.iter().copied(), &all);
    let event_time = table.event_time.as_ref().filter(|_| exprs.iter().any(|e| is_read(e)));
    // A row without its event time is a bad row also where nothing goes by it.
    let event = table.event_time.as_ref();
    let event = event.and_then(|time| all.index_of(&time.column).ok());
    read.extend(event.filter(|&at| event_time.is_some() || all.field(at).is_nullable()));
    read.sort_unstable();
    read.dedup();
    let mut scan = table.scan(&read, place)?;
    let columns = all.project(&read).map_err(|error| cx.report(&error.into()))?;
    let mut columns = Arc::new(columns);
    if let Some((time, at)) = event_time.and_then(|t| Some((t, columns.index_of(&t.column).ok()?)))
    {
        let step = RowWatermarks::new(&columns, at, time.delay);
        scan = scan.then(step);
        columns = scan.columns();
    }
    if exprs.iter().any(|expr| proctime::is_read(expr)) {
        let step = ReadTime::new(&columns);
        scan = scan.then(step);
        columns = scan.columns();
    }
    scan.watermark = match time.and_then(|time| Some((time, column_index(time, &columns)?))) {
        Some((time, column)) => watermark(cx, table, time, column, &columns)?,
        None => None,
    };
    let time = event.and_then(|at| read.binary_search(&at).ok());
    scan.time = time.map(|column| TimeColumn { column, on_bad: table.on_bad() });
    Ok((scan, columns))
}

/// The watermark of a table over `time`, which is column `column` of `columns`, with what the
/// settings say.
fn watermark(
    cx: &Context<'_>,
    table: &Table,
    time: &Expr,
    column: usize,
    columns: &Schema,
) -> Result<Option<Watermark>, LowerError> {
    let settings = cx.lowering.settings;
    let bounded = table.bounded(cx.lowering.place_of(table))?;
    let by_default = settings.idle_timeout_ns.filter(|_| !bounded);
    if proctime::is_column(time) {
        // Rows of a flow are read one after another.
        return Ok(Some(Watermark { column, delay: 0, idle_timeout_ns: by_default }));
    }
    let Some(event) = &table.event_time else { return Ok(None) };
    let tick = match columns.field(column).data_type() {
        DataType::Timestamp(unit, _) => tick_ns(*unit).unsigned_abs(),
        _ => 1,
    };
    let lateness = cx.waits_ns.unsigned_abs().div_ceil(tick);
    let delay = event.delay.saturating_add(i64::try_from(lateness).unwrap_or(i64::MAX));
    Ok(Some(Watermark { column, delay, idle_timeout_ns: event.idle_timeout_ns.or(by_default) }))
}

/// Adds an operator that keeps rows by key, where those of one key meet.
///
/// # Errors
/// When a hint asks for an exchange that cannot be.
pub(crate) fn keyed(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    edges: Vec<Vec<Edge>>,
    inputs: Vec<KeyedInput>,
    granularity: i64,
    operator: Arc<dyn KeyedOperator>,
    mut labels: Labels,
) -> Result<usize, LowerError> {
    let keys: Vec<&[usize]> = inputs.iter().map(|input| input.keys.as_slice()).collect();
    let together = Placements::of(&job.operators).fits(&edges, &keys).is_some();
    let mut spec = Keyed { inputs, exchange: Exchange::Shuffle, granularity, operator };
    let KeyedExchange { exchange, reason, costs, may_stay } = row_exchange(cx, &spec, together)?;
    spec.exchange = exchange;
    for input in &mut labels.inputs {
        input.reason = input.reason.take().or_else(|| reason.clone());
    }
    for (input, costs) in labels.inputs.iter_mut().zip(costs) {
        if input.costs.is_empty() {
            input.costs = costs;
        }
    }
    if may_stay {
        let stay = Placements::of(&job.operators).stay(&edges, &spec);
        let sides = spec.inputs.iter_mut().zip(&mut labels.inputs).zip(stay);
        for (input, labels) in sides.filter_map(|(side, stays)| stays.then_some(side)) {
            input.distribution = Distribution::Local;
            labels.reason = Some(Reason::together());
            labels.costs.clear();
        }
    }
    Ok(job.add_keyed(edges, spec, labels))
}

/// Expressions that arrive at an operator, each once.
#[derive(Default)]
pub(crate) struct RequestedColumns(pub(crate) Vec<Expr>);

impl RequestedColumns {
    pub(crate) fn index(&mut self, expr: &Expr) -> usize {
        self.0.iter().position(|known| known == expr).unwrap_or_else(|| {
            self.0.push(expr.clone());
            self.0.len() - 1
        })
    }
}

/// The columns of expressions, under names that are all different: a cast key may be shown by the
/// name of its column, which is taken.
fn schema_of(exprs: &[Expr], columns: &Schema) -> DfResult<SchemaRef> {
    let scope = &DFSchema::try_from(columns.clone())?;
    let mut fields: Vec<Field> = Vec::with_capacity(exprs.len());
    for expr in exprs {
        let data_type = expr.get_type(scope)?;
        fields.push(match expr {
            Expr::Column(Column { name, .. }) => Field::new(name, data_type, expr.nullable(scope)?),
            other => {
                let is_column = |name: &str| {
                    let mut others = exprs.iter();
                    others.any(|expr| matches!(expr, Expr::Column(column) if column.name == name))
                };
                let shown = shown_expr(other);
                let is_known =
                    is_column(&shown) || fields.iter().any(|field| *field.name() == shown);
                let name = if is_known { other.to_string() } else { shown };
                Field::new(name, data_type, true)
            }
        });
    }
    Ok(Arc::new(Schema::new(fields)))
}
