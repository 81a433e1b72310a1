//! Makes operators of relations: see [`crate::lower::relation`].

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::job::{
    Edge, Exchange, Input, Keyed, KeyedInput, KeyedOperator, Labels, Lead, Operator, OperatorKind,
    Reason, Step, TimeColumn, Watermark,
};
use dataflow::placement::Placements;
use datafusion::common::{Column, DFSchema};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::catalog::Table;
use crate::catalog::proctime::{self, ProcTimeSource};
use crate::catalog::watermark::{WatermarkedSource, is_read};
use crate::explain::shown;
use crate::logical::windows::is_session;
use crate::lower::relation::{Base, Feeds, Relation, Stop, columns_read, refusal};
use crate::lower::session;
use crate::lower::shared::SharedPart;
use crate::lower::step::{self, column_index};
use crate::lower::{HALVES, Lowering};
use crate::text::emit::Emit;
use crate::text::interval::tick_ns;
use crate::text::settings::ExchangeChoice;

/// Weaves the plans of one statement.
pub(crate) struct Weaver<'a> {
    pub(crate) lowering: &'a Lowering<'a>,
    /// Whether all tables of the statement end.
    pub(crate) bounded: bool,
    pub(crate) operators: Vec<Operator>,
    /// Parts that are woven once.
    pub(crate) shared: Vec<SharedPart>,
    /// Tables that widen rows: numbers their columns.
    pub(crate) lookups: usize,
    /// How the windows of the next grouping are given out before they end: of the last one on the
    /// way to the sink, which is the first that is met from there.
    pub(crate) emit: Option<Emit>,
    /// By how much the watermarks of all tables are behind what was declared: the least lateness.
    pub(crate) waits_ns: i64,
}

/// What went into an operator.
pub(crate) struct Closed {
    pub(crate) edges: Vec<Edge>,
    /// The columns that arrive.
    pub(crate) schema: SchemaRef,
    /// Which of them each expression that was asked for is.
    pub(crate) places: Vec<usize>,
    /// What those that arrive are, in the words of the user.
    pub(crate) columns: Vec<String>,
}

/// A step, if one is needed; the columns behind it, and which of them each expression is.
type Narrowed = (Option<Arc<dyn Step>>, SchemaRef, Vec<usize>);

impl Weaver<'_> {
    /// Weaves a plan; its rows, as columns of `schema`, go along the edges. Nothing is left behind
    /// when it fails.
    pub(crate) fn weave(
        &mut self,
        plan: &LogicalPlan,
        schema: &SchemaRef,
    ) -> Result<Vec<Edge>, Stop> {
        let operators = self.operators.len();
        let woven = self.relation(plan).and_then(|relation| self.settled(relation));
        let woven = woven.and_then(|relation| {
            let outputs = relation.exprs();
            self.end(&relation, &outputs, schema.clone(), None)
        });
        let woven = woven.map_err(|stop| stop.at(plan));
        if woven.is_err() {
            self.operators.truncate(operators);
        }
        woven
    }

    /// The relation of a node.
    pub(crate) fn relation(&mut self, plan: &LogicalPlan) -> Result<Relation, Stop> {
        self.node(plan).map_err(|stop| stop.at(plan))
    }

    fn node(&mut self, plan: &LogicalPlan) -> Result<Relation, Stop> {
        self.check_emit(plan)?;
        Ok(match plan {
            LogicalPlan::TableScan(scan) => match self.shared(scan)? {
                Some(relation) => relation,
                None => self.scan(scan)?,
            },
            LogicalPlan::SubqueryAlias(alias) => self.relation(&alias.input)?.rename(&alias.schema),
            LogicalPlan::Projection(projection) => {
                self.relation(&projection.input)?.project(&projection.expr, &projection.schema)?
            }
            LogicalPlan::Filter(filter) => {
                let relation = self.relation(&filter.input)?;
                let relation = match session::filters_rows(&relation, &filter.predicate)? {
                    true => self.settled_where(relation, &filter.predicate)?,
                    false => relation.filter(&filter.predicate)?,
                };
                self.limit(&relation);
                relation
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate)?,
            LogicalPlan::Union(union) => self.union(union)?,
            LogicalPlan::Join(join) => self.join(join)?,
            LogicalPlan::Window(window) if is_session(window) => self.sessions(window)?,
            LogicalPlan::Window(window) => self.over(window)?,
            LogicalPlan::Unnest(_) => self.several(plan)?,
            other => return Err(refusal(other).into()),
        })
    }

    /// Ends a relation: `outputs`, over the base's columns, go along edges as columns of `schema`.
    /// With `time` their watermarks speak of that expression.
    pub(crate) fn end(
        &mut self,
        relation: &Relation,
        outputs: &[Expr],
        schema: SchemaRef,
        time: Option<&Expr>,
    ) -> Result<Vec<Edge>, Stop> {
        let predicate = relation.predicate();
        let (from, columns) = self.open(relation, outputs.iter().chain(&predicate), time)?;
        let (filter, names) = (predicate.as_ref(), &relation.names);
        let step =
            step::compile(&columns, filter, outputs, schema, names).map_err(|e| self.report(&e))?;
        Ok(Base::edges(&from, &step, time.is_some()))
    }

    /// Ends a relation: the expressions `wanted`, over the base's columns, arrive at an operator.
    /// With `time` its watermarks speak of that expression, and wait as long as they are to.
    pub(crate) fn close(
        &mut self,
        relation: &Relation,
        wanted: &[Expr],
        time: Option<&Expr>,
    ) -> Result<Closed, Stop> {
        let mut closed = self.close_as_it_is(relation, wanted, time)?;
        self.wait(relation, wanted, time, &mut closed.edges)?;
        Ok(closed)
    }

    /// As [`Weaver::close`], for what hands watermarks on as they come.
    pub(crate) fn close_as_it_is(
        &mut self,
        relation: &Relation,
        wanted: &[Expr],
        time: Option<&Expr>,
    ) -> Result<Closed, Stop> {
        let mut wanted = wanted.to_vec();
        let predicate = relation.predicate();
        if wanted.is_empty() {
            wanted.push(relation.counted_by());
        }
        let time = time.filter(|time| relation.tells(time));
        let (from, columns) = self.open(relation, wanted.iter().chain(&predicate), time)?;
        let (step, schema, places) = self.narrow(relation, &wanted, columns)?;
        let columns = shown(&schema, &relation.names);
        Ok(Closed { edges: Base::edges(&from, &step, time.is_some()), schema, places, columns })
    }

    /// The step that makes `wanted` of the columns of a relation's base, if one is needed; the
    /// columns behind it, and which of them each is.
    pub(crate) fn narrow(
        &mut self,
        relation: &Relation,
        wanted: &[Expr],
        columns: SchemaRef,
    ) -> Result<Narrowed, Stop> {
        let predicate = relation.predicate();
        let direct = wanted.iter().map(|expr| column_index(expr, &columns)).collect();
        let (step, schema, places) = match (&predicate, direct) {
            (None, Some(places)) => (None, columns, places),
            _ => {
                let schema = schema_of(wanted, &columns).map_err(|e| self.report(&e))?;
                let (filter, names) = (predicate.as_ref(), &relation.names);
                let step = step::compile(&columns, filter, wanted, schema.clone(), names)
                    .map_err(|e| self.report(&e))?;
                (step, schema, (0..wanted.len()).collect())
            }
        };
        Ok((step, schema, places))
    }

    /// Where the rows of a relation come from, with the columns of its base that expressions name;
    /// watermarks speak of `time`.
    fn open<'e>(
        &mut self,
        relation: &'e Relation,
        exprs: impl Iterator<Item = &'e Expr>,
        time: Option<&'e Expr>,
    ) -> Result<(Feeds, SchemaRef), Stop> {
        match &relation.base {
            Base::Table(table) => {
                let (input, columns) = self.input(table, exprs, time)?;
                let labels = Labels { table: Some(table.title()), ..Labels::default() };
                let source = OperatorKind::Source(input);
                let operator = self.add(table.name.clone(), vec![], source, labels);
                Ok((vec![(operator, None)], columns))
            }
            Base::Operators { from, schema } => Ok((from.clone(), schema.clone())),
            Base::Looked(looked) => self.looked(looked, exprs, time),
            Base::United { parts, schema } => {
                Ok((self.united(parts, schema, time)?, schema.clone()))
            }
        }
    }

    /// The columns of a table that expressions name, with its watermark if `time` is given.
    pub(crate) fn input<'e>(
        &mut self,
        table: &Arc<Table>,
        exprs: impl Iterator<Item = &'e Expr>,
        time: Option<&'e Expr>,
    ) -> Result<(Input, SchemaRef), Stop> {
        let place = self.lowering.place_of(table);
        let all = table.columns(place)?;
        let exprs: Vec<&Expr> = exprs.chain(time).collect();
        let mut read = columns_read(exprs.iter().copied(), &all);
        let told = table.event_time.as_ref().filter(|_| exprs.iter().any(|e| is_read(e)));
        // A row without its event time is a bad row also where nothing goes by it.
        let event = table.event_time.as_ref();
        let event = event.and_then(|time| all.index_of(&time.column).ok());
        read.extend(event.filter(|&at| told.is_some() || all.field(at).is_nullable()));
        read.sort_unstable();
        read.dedup();
        let mut source = table.source(&read, place)?;
        let columns = all.project(&read).map_err(|error| self.report(&error.into()))?;
        let mut columns = Arc::new(columns);
        if let Some((time, at)) = told.and_then(|t| Some((t, columns.index_of(&t.column).ok()?))) {
            source = Arc::new(WatermarkedSource::new(source, at, time.delay));
            columns = source.schema();
        }
        if exprs.iter().any(|expr| proctime::is_read(expr)) {
            source = Arc::new(ProcTimeSource::new(source));
            columns = source.schema();
        }
        let watermark = match time.and_then(|time| Some((time, column_index(time, &columns)?))) {
            Some((time, column)) => self.watermark(table, time, column, &columns)?,
            None => None,
        };
        let time = event.and_then(|at| read.binary_search(&at).ok());
        let time = time.map(|column| TimeColumn { column, on_bad: table.on_bad() });
        let input = Input { table: table.name.clone(), source, time, watermark };
        Ok((input, columns))
    }

    /// The watermark of a table over `time`, which is column `column` of `columns`, with what the
    /// settings say.
    fn watermark(
        &self,
        table: &Table,
        time: &Expr,
        column: usize,
        columns: &Schema,
    ) -> Result<Option<Watermark>, Stop> {
        let settings = self.lowering.settings;
        let bounded = table.bounded(self.lowering.place_of(table))?;
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
        let lateness = self.waits_ns.unsigned_abs().div_ceil(tick);
        let delay = event.delay.saturating_add(i64::try_from(lateness).unwrap_or(i64::MAX));
        Ok(Some(Watermark { column, delay, idle_timeout_ns: event.idle_timeout_ns.or(by_default) }))
    }

    /// Adds an operator; gives its index.
    pub(crate) fn add(
        &mut self,
        name: String,
        inputs: Vec<Vec<Edge>>,
        kind: OperatorKind,
        labels: Labels,
    ) -> usize {
        self.operators.push(Operator { name, inputs, kind, labels });
        self.operators.len() - 1
    }

    /// Adds an operator that keeps rows by key, where those of one key meet.
    pub(crate) fn keyed(
        &mut self,
        edges: Vec<Vec<Edge>>,
        inputs: Vec<KeyedInput>,
        granularity: i64,
        operator: Arc<dyn KeyedOperator>,
        mut labels: Labels,
    ) -> usize {
        let keys: Vec<&[usize]> = inputs.iter().map(|input| input.keys.as_slice()).collect();
        let together = Placements::of(&self.operators).fits(&edges, &keys).is_some();
        let chosen = self.lowering.settings.exchange;
        let (exchange, why) = match self.lowering.workers.total() {
            1 => (Exchange::Forward, None),
            _ if together && chosen == ExchangeChoice::Auto => {
                (Exchange::Forward, Some(Reason::together()))
            }
            _ if chosen == ExchangeChoice::Fixed(Exchange::UpPar) => {
                (Exchange::UpPar, Some(Reason::Setting(HALVES.into())))
            }
            _ => (Exchange::Shuffle, None),
        };
        for input in &mut labels.inputs {
            input.reason = input.reason.take().or_else(|| why.clone());
        }
        let mut spec = Keyed { inputs, exchange, granularity, operator };
        if exchange == Exchange::Shuffle && chosen == ExchangeChoice::Auto {
            let stay = Placements::of(&self.operators).stay(&edges, &spec);
            let sides = spec.inputs.iter_mut().zip(&mut labels.inputs).zip(stay);
            for (input, labels) in sides.filter_map(|(side, stays)| stays.then_some(side)) {
                input.lead = Lead::Here;
                labels.reason = Some(Reason::together());
            }
        }
        self.add_keyed(edges, spec, labels)
    }

    /// Adds an operator that keeps rows by key, under the name by which EXPLAIN knows it.
    pub(crate) fn add_keyed(
        &mut self,
        edges: Vec<Vec<Edge>>,
        spec: Keyed,
        labels: Labels,
    ) -> usize {
        let name = spec.operator.describe(&[]).name.to_owned();
        self.add(name, edges, OperatorKind::Keyed(spec), labels)
    }

    pub(crate) fn report(&self, error: &DataFusionError) -> Stop {
        Stop::Failed(self.lowering.around.report(error))
    }
}

/// Expressions that arrive at an operator, each once.
#[derive(Default)]
pub(crate) struct Wanted(pub(crate) Vec<Expr>);

impl Wanted {
    pub(crate) fn index(&mut self, expr: &Expr) -> usize {
        self.0.iter().position(|known| known == expr).unwrap_or_else(|| {
            self.0.push(expr.clone());
            self.0.len() - 1
        })
    }
}

/// The columns of expressions.
fn schema_of(exprs: &[Expr], columns: &Schema) -> DfResult<SchemaRef> {
    let scope = &DFSchema::try_from(columns.clone())?;
    let field = |expr: &Expr| {
        let data_type = expr.get_type(scope)?;
        Ok(match expr {
            Expr::Column(Column { name, .. }) => Field::new(name, data_type, expr.nullable(scope)?),
            other => Field::new(other.human_display().to_string(), data_type, true),
        })
    };
    Ok(Arc::new(Schema::new(exprs.iter().map(field).collect::<DfResult<Vec<_>>>()?)))
}
