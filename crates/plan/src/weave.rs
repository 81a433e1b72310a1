//! Makes operators of relations: see [`crate::relation`].

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dataflow::job::{
    Aggregation, Edge, Exchange, Input, Keyed, KeyedInput, KeyedOperator, Operator, OperatorKind,
    Step, Watermark, Window,
};
use dataflow::placement::Placements;
use datafusion::common::{Column, DFSchema};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable, LogicalPlan};
use state::{GroupBy, StateOptions, Windows};

use crate::aggregates::{self, AggregateCall};
use crate::catalog::{EventTime, Table};
use crate::diagnostics::Diagnostic;
use crate::explain::Section;
use crate::interval::tick_ns;
use crate::lower::{Lowering, TOGETHER};
use crate::relation::{
    Base, Bounds, Feeds, Refusal, Relation, Stop, check_key, columns_read, own, refusal,
};
use crate::session;
use crate::settings::ExchangeChoice;
use crate::several::{groups_several, windows_of};
use crate::step::{self, column_index};
use crate::tumble::{Bound, WindowCall};
use crate::watermark::{WatermarkedSource, is_read};

/// Weaves the plans of one statement.
pub(crate) struct Weaver<'a> {
    pub(crate) lowering: &'a Lowering<'a>,
    /// Whether all tables of the statement end.
    pub(crate) bounded: bool,
    pub(crate) operators: Vec<Operator>,
    /// Tables that widen rows: numbers their columns.
    pub(crate) lookups: usize,
    /// What EXPLAIN says of them.
    pub(crate) section: Section,
}

/// What went into an operator.
pub(crate) struct Closed {
    pub(crate) edges: Vec<Edge>,
    /// The columns that arrive.
    pub(crate) schema: SchemaRef,
    /// Which of them each expression that was asked for is.
    pub(crate) places: Vec<usize>,
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
        let (operators, lines) = (self.operators.len(), self.section.lines.len());
        let woven = self.relation(plan).and_then(|relation| self.settled(relation));
        let woven = woven.and_then(|relation| {
            let outputs = relation.exprs();
            self.end(relation, &outputs, schema.clone())
        });
        if woven.is_err() {
            self.operators.truncate(operators);
            self.section.lines.truncate(lines);
        }
        woven
    }

    /// The relation of a node.
    pub(crate) fn relation(&mut self, plan: &LogicalPlan) -> Result<Relation, Stop> {
        Ok(match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan)?,
            LogicalPlan::SubqueryAlias(alias) => self.relation(&alias.input)?.rename(&alias.schema),
            LogicalPlan::Projection(projection) => {
                self.relation(&projection.input)?.project(&projection.expr, &projection.schema)?
            }
            LogicalPlan::Filter(filter) => {
                let mut relation = self.relation(&filter.input)?;
                if session::filters_rows(&relation, &filter.predicate)? {
                    relation = self.settled(relation)?;
                }
                let relation = relation.filter(&filter.predicate)?;
                self.limit(&relation);
                relation
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate)?,
            LogicalPlan::Union(union) => self.union(union)?,
            LogicalPlan::Join(join) => self.join(join)?,
            LogicalPlan::Window(window) if session::is_session(window) => self.sessions(window)?,
            LogicalPlan::Window(window) => self.over(window)?,
            LogicalPlan::Unnest(_) => self.several(plan)?,
            other => return Err(refusal(other).into()),
        })
    }

    /// Ends a relation: `outputs`, over the base's columns, go along edges as columns of `schema`.
    /// Who takes them has no sense of time.
    fn end(
        &mut self,
        relation: Relation,
        outputs: &[Expr],
        schema: SchemaRef,
    ) -> Result<Vec<Edge>, Stop> {
        let predicate = relation.predicate();
        let (from, columns) = self.open(&relation, outputs.iter().chain(&predicate), false)?;
        let step = step::compile(&columns, predicate.as_ref(), outputs, schema)
            .map_err(|e| self.report(&e))?;
        self.section.step(&step, &relation.names);
        Ok(Base::edges(&from, &step, false))
    }

    /// Ends a relation: the expressions `wanted`, over the base's columns, arrive at an operator.
    /// With `time` its watermarks speak of that expression.
    pub(crate) fn close(
        &mut self,
        relation: &Relation,
        wanted: &[Expr],
        time: Option<&Expr>,
    ) -> Result<Closed, Stop> {
        let mut wanted = wanted.to_vec();
        let predicate = relation.predicate();
        if wanted.is_empty() {
            // Rows need a column to be counted by.
            let first = relation.scan.as_arrow().field(0).name().clone();
            wanted.push(own(&first));
        }
        let timed = time.is_some_and(|time| relation.times.contains(time));
        let (from, columns) = self.open(relation, wanted.iter().chain(&predicate), timed)?;
        let (step, schema, places) = self.narrow(relation, &wanted, columns)?;
        Ok(Closed { edges: Base::edges(&from, &step, timed), schema, places })
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
                let compiled = step::compile(&columns, predicate.as_ref(), wanted, schema.clone());
                let step = compiled.map_err(|e| self.report(&e))?;
                (step, schema, (0..wanted.len()).collect())
            }
        };
        self.section.step(&step, &relation.names);
        Ok((step, schema, places))
    }

    /// Where the rows of a relation come from, with the columns of its base that expressions name;
    /// `timed` if watermarks are asked for.
    fn open<'e>(
        &mut self,
        relation: &'e Relation,
        exprs: impl Iterator<Item = &'e Expr>,
        timed: bool,
    ) -> Result<(Feeds, SchemaRef), Stop> {
        match &relation.base {
            Base::Table(table) => {
                let time = relation.times.first().filter(|_| timed);
                let (input, columns) = self.input(table, exprs, time)?;
                let operator = self.add(table.name.clone(), vec![], OperatorKind::Source(input));
                Ok((vec![(operator, None)], columns))
            }
            Base::Operators { from, schema } => Ok((from.clone(), schema.clone())),
            Base::Looked(looked) => self.looked(looked, exprs, timed),
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
        if let Some(at) = told.and_then(|time| all.index_of(&time.column).ok()) {
            read.push(at);
            read.sort_unstable();
            read.dedup();
        }
        let columns = Arc::new(all.project(&read).map_err(|e| self.report(&e.into()))?);
        let watermark = match (&table.event_time, time.and_then(|t| column_index(t, &columns))) {
            (Some(time), Some(column)) => Some(self.watermark(table, time, column, &columns)?),
            _ => None,
        };
        let mut source = table.source(&read, place)?;
        let mut columns = columns;
        if let Some((time, at)) = told.and_then(|t| Some((t, columns.index_of(&t.column).ok()?))) {
            source = Arc::new(WatermarkedSource::new(source, at, time.delay));
            columns = source.schema();
        }
        let input = Input { table: table.name.clone(), source, watermark };
        self.section.source(table, &input, &columns);
        Ok((input, columns))
    }

    /// The watermark of a table over column `column` of `columns`, with what the settings say.
    fn watermark(
        &self,
        table: &Table,
        time: &EventTime,
        column: usize,
        columns: &Schema,
    ) -> Result<Watermark, Stop> {
        let settings = self.lowering.settings;
        let tick = match columns.field(column).data_type() {
            DataType::Timestamp(unit, _) => tick_ns(*unit).unsigned_abs(),
            _ => 1,
        };
        let lateness = settings.allowed_lateness_ns.div_ceil(tick);
        let delay = time.delay.saturating_add(i64::try_from(lateness).unwrap_or(i64::MAX));
        let bounded = table.bounded(self.lowering.place_of(table))?;
        let by_default = settings.idle_timeout_ns.filter(|_| !bounded);
        Ok(Watermark { column, delay, idle_timeout_ns: time.idle_timeout_ns.or(by_default) })
    }

    /// Adds an operator; gives its index.
    pub(crate) fn add(
        &mut self,
        name: String,
        inputs: Vec<Vec<Edge>>,
        kind: OperatorKind,
    ) -> usize {
        self.operators.push(Operator { name, inputs, kind });
        self.operators.len() - 1
    }

    /// Adds an operator that keeps rows by key, where those of one key meet.
    pub(crate) fn keyed(
        &mut self,
        name: &str,
        edges: Vec<Vec<Edge>>,
        inputs: Vec<KeyedInput>,
        granularity: i64,
        operator: Arc<dyn KeyedOperator>,
    ) -> usize {
        let keys: Vec<&[usize]> = inputs.iter().map(|input| input.keys.as_slice()).collect();
        let together = Placements::of(&self.operators).fits(&edges, &keys).is_some();
        let chosen = self.lowering.settings.exchange;
        let (exchange, why) = match self.lowering.workers.total() {
            1 => (Exchange::Forward, "rows of equal keys meet"),
            _ if together && chosen == ExchangeChoice::Auto => (Exchange::Forward, TOGETHER),
            _ => (Exchange::Shuffle, "rows of equal keys meet"),
        };
        self.section.text("exchange", format!("{exchange}: {why}"));
        let spec = Keyed { inputs, exchange, granularity, operator };
        self.add(name.into(), edges, OperatorKind::Keyed(spec))
    }

    pub(crate) fn report(&self, error: &DataFusionError) -> Stop {
        Stop::Failed(self.lowering.around.report(error))
    }

    fn union(&mut self, union: &logical::Union) -> Result<Relation, Stop> {
        let schema = Arc::new(union.schema.as_arrow().clone());
        let plain = schema.fields().iter().enumerate();
        let plain = plain.map(|(at, field)| field.as_ref().clone().with_name(format!("c{at}")));
        let plain: SchemaRef = Arc::new(Schema::new(plain.collect::<Vec<_>>()));
        let mut from = vec![];
        for (at, input) in union.inputs.iter().enumerate() {
            self.section.text("union", format!("part {} of {}", at + 1, union.inputs.len()));
            let relation = self.relation(input)?;
            let relation = self.settled(relation)?;
            let outputs = relation.exprs();
            let edges = self.end(relation, &outputs, plain.clone())?;
            from.extend(edges.into_iter().map(|edge| (edge.from, edge.step)));
        }
        let outputs = plain.fields().iter().map(|field| own(field.name())).collect();
        Ok(Relation::of_operators(from, plain, union.schema.columns(), outputs)?)
    }

    fn aggregate(&mut self, aggregate: &logical::Aggregate) -> Result<Relation, Stop> {
        let relation = self.relation(&aggregate.input)?;
        let (mut relation, group_exprs) = self.in_sets(relation, aggregate)?;
        let groups = relation.rewrite_all(&group_exprs)?;
        let calls = relation.rewrite_all(&aggregate.aggr_expr)?;
        if !session::groups_sessions(&relation, &groups, &calls)
            || !groups_several(&relation, &groups, &calls)
        {
            relation = self.settled(relation)?;
        }
        let having = session::take_filters(&mut relation);
        let groups = relation.rewrite_all(&group_exprs)?;
        let calls = relation.rewrite_all(&aggregate.aggr_expr)?;
        let calls = calls.iter().map(|call| aggregates::lower(call, &relation.scan));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        let grouping = Grouping::of(&relation, &groups, calls)?;
        let over =
            |filter| session::over_groups(filter, &grouping.window, &groups, &grouping.outputs);
        let having = having.into_iter().map(over).collect::<Result<Vec<_>, _>>()?;
        let window = self.window(&relation, &grouping, aggregate.aggr_expr.is_empty())?;

        let mut wanted = Wanted::default();
        let keys: Vec<usize> = grouping.keys.iter().map(|key| wanted.index(key)).collect();
        let args = grouping.calls.iter().map(|call| &call.args);
        let args: Vec<Vec<usize>> =
            args.map(|args| args.iter().map(|arg| wanted.index(arg)).collect()).collect();
        let time = window.as_ref().map(|(time, _)| wanted.index(time));
        let closed = self.close(&relation, &wanted.0, window.as_ref().map(|(time, _)| time))?;
        let place = |at: usize| closed.places[at];
        let keys: Vec<usize> = keys.into_iter().map(place).collect();
        let args = args.into_iter().map(|args| args.into_iter().map(place).collect()).collect();
        let window = match (window, time.map(place)) {
            (Some((_, kind)), Some(column)) => Some(kind.over(column, &closed.schema)?),
            _ => None,
        };
        self.section.grouping(&grouping, &closed.schema, &keys);
        let edges = vec![closed.edges];
        let together = Placements::of(&self.operators).fits(&edges, &[keys.as_slice()]).is_some();
        let (exchange, why) = self.lowering.exchange(together)?;
        self.section.text("exchange", format!("{exchange}: {why}"));
        let schema = grouping.given_out(&keys, &closed.schema, window.as_ref());
        let budget_bytes = self.lowering.settings.job.state_bytes_max;
        let spec = Aggregation {
            group_by: Arc::new(GroupBy {
                keys: keys.iter().map(|&k| closed.schema.field(k).data_type().clone()).collect(),
                aggregates: grouping.calls.iter().map(|c| c.aggregate.clone()).collect(),
                options: StateOptions { budget_bytes, ..StateOptions::default() },
            }),
            input_schema: closed.schema,
            keys,
            args,
            window,
            exchange,
            schema: schema.clone(),
        };
        let windowed = spec.window.is_some();
        let kind = OperatorKind::Aggregate(Box::new(spec));
        let operator = self.add("aggregate".into(), edges, kind);
        let columns = aggregate.schema.columns();
        let outputs = grouping.outputs.iter().map(|name| own(name));
        let outputs = outputs.chain((0..grouping.calls.len()).map(|at| own(&aggregate_name(at))));
        let mut relation = Relation::of_operator(operator, schema, columns, outputs.collect())?;
        relation.filters = having;
        relation.names = grouping.names();
        if windowed {
            grouping.told(&mut relation);
        }
        Ok(relation)
    }

    /// The window of a grouping, with the expression that it is over.
    fn window(
        &self,
        relation: &Relation,
        grouping: &Grouping,
        distinct: bool,
    ) -> Result<Option<(Expr, WindowKind)>, Stop> {
        match &grouping.window {
            None if self.bounded => Ok(None),
            None => Err(for_ever(distinct).into()),
            Some(GroupWindow::Attached(bounds)) => {
                Ok(Some((bounds.time.clone(), WindowKind::Attached)))
            }
            Some(GroupWindow::Call(call)) => {
                if !self.bounded && !relation.times.contains(&call.time) {
                    return Err(self.lowering.no_watermark(relation, call).into());
                }
                Ok(Some((call.time.clone(), WindowKind::Call(call.clone()))))
            }
        }
    }
}

/// What kind of window rows are grouped by.
enum WindowKind {
    /// Of the rows' own time.
    Call(WindowCall),
    /// The window that each row belongs to already.
    Attached,
}

impl WindowKind {
    /// The window over column `column` of `schema`.
    fn over(&self, column: usize, schema: &Schema) -> Result<Window, Option<Diagnostic>> {
        let time_type = schema.field(column).data_type().clone();
        let unit = match &time_type {
            DataType::Timestamp(unit, _) => *unit,
            _ => TimeUnit::Nanosecond,
        };
        // A window's own check has refused sizes that are no whole number of ticks, and the parser
        // those below one. Rows of one window have the same time: one tick is all that they need.
        let (windows, attached) = match self {
            WindowKind::Call(call) => (windows_of(call.shape, call.lengths, unit), false),
            WindowKind::Attached => (Windows::tumbling(1, 0), true),
        };
        Ok(Window { column, time_type, windows: windows.ok_or(None)?, attached })
    }
}

/// Rows brought together.
pub(crate) struct Grouping {
    pub(crate) window: Option<GroupWindow>,
    /// Over the base's columns.
    pub(crate) keys: Vec<Expr>,
    pub(crate) calls: Vec<AggregateCall>,
    /// By group expression the column that it has become.
    outputs: Vec<String>,
}

/// The window that rows are grouped by.
pub(crate) enum GroupWindow {
    /// A window of the rows' time.
    Call(WindowCall),
    /// The windows that rows belong to already.
    Attached(Bounds),
}

/// The name of a key among the columns that a grouping gives out.
pub(crate) fn key_name(key: usize) -> String {
    format!("key_{key}")
}

/// The name of an aggregate among the columns that a grouping gives out.
pub(crate) fn aggregate_name(aggregate: usize) -> String {
    format!("aggregate_{aggregate}")
}

impl Grouping {
    fn of(
        relation: &Relation,
        groups: &[Expr],
        calls: Vec<AggregateCall>,
    ) -> Result<Self, Refusal> {
        let mut grouping = Self { window: None, keys: vec![], calls, outputs: vec![] };
        let two = || Refusal::new(&["GROUP"], "rows are grouped by two different windows");
        for group in groups {
            grouping.outputs.push(match WindowCall::of(group) {
                Some(call) => {
                    let bound = call.bound.column().to_string();
                    match &grouping.window {
                        None => grouping.window = Some(GroupWindow::Call(call)),
                        Some(GroupWindow::Call(known)) if known.same_window(&call) => {}
                        Some(_) => return Err(two()),
                    }
                    bound
                }
                None => {
                    check_key(group, &relation.scan)?;
                    grouping.keys.push(group.clone());
                    key_name(grouping.keys.len() - 1)
                }
            });
        }
        if grouping.keys.is_empty() && grouping.calls.is_empty() {
            // A group without a value would not be kept.
            grouping.calls.push(AggregateCall {
                text: "count(*)".into(),
                aggregate: state::aggregates::count(),
                args: vec![],
            });
        }
        if let Some(bounds) = &relation.window
            && groups.contains(&bounds.end)
            && (groups.contains(&bounds.start) || groups.contains(&bounds.time))
        {
            match &grouping.window {
                None => grouping.window = Some(GroupWindow::Attached(bounds.clone())),
                Some(_) => return Err(two()),
            }
        }
        Ok(grouping)
    }

    /// The columns that it gives out.
    fn given_out(&self, keys: &[usize], before: &Schema, window: Option<&Window>) -> SchemaRef {
        let keys = keys.iter().enumerate().map(|(at, &key)| {
            let field = before.field(key);
            Field::new(key_name(at), field.data_type().clone(), field.is_nullable())
        });
        let calls = self.calls.iter().enumerate();
        let calls = calls
            .map(|(at, call)| Field::new(aggregate_name(at), call.aggregate.output_type(), true));
        let bounds = window.into_iter().flat_map(|window| {
            let field = |bound: Bound| Field::new(bound.column(), window.time_type.clone(), true);
            Bound::GIVEN_OUT.into_iter().map(field)
        });
        Arc::new(Schema::new(keys.chain(calls).chain(bounds).collect::<Vec<_>>()))
    }

    /// What the columns that it gives out are.
    fn names(&self) -> Vec<(String, String)> {
        let keys = self.keys.iter().map(|key| key.human_display().to_string());
        let keys = keys.enumerate().map(|(at, text)| (key_name(at), text));
        let calls = self.calls.iter().map(|call| call.text.clone());
        let calls = calls.enumerate().map(|(at, text)| (aggregate_name(at), text));
        keys.chain(calls).collect()
    }

    /// Writes down which columns of what a windowed grouping gives out tell time.
    fn told(&self, relation: &mut Relation) {
        let given = |bound: Bound| own(bound.column());
        let (times, bounds) = match &self.window {
            Some(GroupWindow::Attached(of)) => {
                let key = |bound: &Expr| {
                    let at = self.keys.iter().position(|key| key == bound)?;
                    Some(own(&key_name(at)))
                };
                // The time of an attached window is the start of its one tick.
                let time = given(Bound::Start);
                let end = key(&of.end);
                let start = key(&of.start).or_else(|| end.clone());
                let of = |(start, end)| Bounds { start, end, time: time.clone(), grid: of.grid };
                let bounds = start.zip(end).map(of);
                (vec![time], bounds)
            }
            Some(GroupWindow::Call(call)) => {
                let (start, end, time) =
                    (given(Bound::Start), given(Bound::End), given(Bound::Time));
                // No window that ends before the watermark comes any more.
                let times = vec![time.clone(), end.clone()];
                (times, Some(Bounds { start, end, time, grid: call.grid() }))
            }
            None => return,
        };
        (relation.times, relation.window) = (times, bounds);
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

/// Why a grouping without a window is refused.
pub(crate) fn for_ever(distinct: bool) -> Refusal {
    let words: &[&str] = match distinct {
        true => &["DISTINCT", "GROUP"],
        false => &["GROUP", "count", "sum", "avg", "min", "max"],
    };
    Refusal::new(words, "rows that never end cannot be grouped without a window").hint(
        "add a window: FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) … \
         GROUP BY window_start, window_end",
    )
}

impl Bound {
    /// In the order in which a grouping gives them out.
    pub(crate) const GIVEN_OUT: [Bound; 3] = [Bound::Start, Bound::End, Bound::Time];
}
