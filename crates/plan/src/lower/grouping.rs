//! `GROUP BY`: rows that are brought together by keys and, mostly, a window.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dataflow::cost::{Costs, Decision, Grouped, WorkerCounts, decide};
use dataflow::job::{
    Aggregation, Edge, Exchange, InputLabels, Labels, OperatorKind, Statistics, TimeWindow,
};
use dataflow::placement::Placements;
use datafusion::logical_expr::{self as logical, Expr};
use state::{GroupBy, StateOptions, Windows};

use crate::explain::{key_mode_text, plain, shown, shown_expr};
use crate::expr::emit_kind;
use crate::expr::own::own;
use crate::logical::windows::{Bound, BoundColumn, WindowCall, WindowShape, windows_of};
use crate::lower::aggregates::{self, AggregateCall};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::early;
use crate::lower::multi_window;
use crate::lower::multi_window::groups_multi_window;
use crate::lower::pipeline;
use crate::lower::pipeline::RequestedColumns;
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::session;
use crate::lower::sets;
use crate::lower::window_bounds::{AttachedWindow, last_of_either, unit_in};
use crate::text::diagnostics::Diagnostic;
use crate::text::refusal::Refusal;

/// The groups of rows.
pub(crate) fn aggregate(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    aggregate: &logical::Aggregate,
) -> Result<Relation, LowerError> {
    let emit = cx.emit;
    let cx = &cx.without_emit();
    let relation = pipeline::relation(cx, job, &aggregate.input)?;
    let windows = relation.windows.grouped(aggregate);
    let (mut relation, group_exprs) = sets::in_sets(cx, job, relation, aggregate)?;
    let groups = relation.rewrite_all(&group_exprs)?;
    let calls = relation.rewrite_all(&aggregate.aggr_expr)?;
    if !session::groups_sessions(&relation, &groups, &calls)
        || !groups_multi_window(&relation, &groups, &calls)
    {
        relation = session::materialized(cx, job, relation)?;
    }
    let having = session::take_filters(&mut relation);
    let before = relation.names.clone();
    let groups = relation.rewrite_all(&group_exprs)?;
    let calls = relation.rewrite_all(&aggregate.aggr_expr)?;
    let of = GroupWindow::of(&relation, &group_exprs);
    let grouping = GroupedAggregation::of(&relation, of, &groups, &calls, emit.is_some())?;
    let over = |filter| session::over_groups(filter, &grouping.window, &groups, &grouping.outputs);
    let having = having.into_iter().map(over).collect::<Result<Vec<_>, _>>()?;
    let without = || without_window(&relation, &group_exprs, aggregate.aggr_expr.is_empty());
    let window = window(cx, &relation, &grouping, without)?;
    if let Some(emit) = emit {
        early::can_emit(job, emit, &relation, &grouping.window)?;
    }

    let mut requested = RequestedColumns::default();
    let keys: Vec<usize> = grouping.keys.iter().map(|key| requested.index(key)).collect();
    let args = grouping.calls.iter().map(|call| &call.args);
    let args: Vec<Vec<usize>> =
        args.map(|args| args.iter().map(|arg| requested.index(arg)).collect()).collect();
    let time = window.as_ref().map(|(time, _)| requested.index(time));
    let finished =
        pipeline::finish(cx, job, &relation, &requested.0, window.as_ref().map(|(time, _)| time))?;
    let place = |at: usize| finished.places[at];
    let keys: Vec<usize> = keys.into_iter().map(place).collect();
    let args = args.into_iter().map(|args| args.into_iter().map(place).collect()).collect();
    let window = match (window, time.map(place)) {
        (Some((_, kind)), Some(column)) => Some(kind.over(column, &finished.schema)?),
        _ => None,
    };
    let edges = vec![finished.edges];
    let early_ns = emit.map(|emit| emit.every_ns);
    let schema =
        grouping.output_schema(&keys, &finished.schema, window.as_ref(), early_ns.is_some());
    let spec = Aggregation {
        group_by: Arc::new(group_by(cx, &grouping, &keys, &finished.schema)),
        input_schema: finished.schema,
        keys,
        args,
        window,
        exchange: Exchange::Merge,
        early_ns,
        schema: schema.clone(),
    };
    let names = grouping.names(&before);
    let columns = [finished.columns, shown(&schema, &names)];
    let cx = &Context { hints: cx.lowering.hints_of_grouping(aggregate), ..*cx };
    let operator = add(cx, job, spec, edges, columns)?;
    let columns = aggregate.schema.columns();
    let mut relation = Relation::of_operator(operator, schema, columns, grouping.output_exprs())?;
    relation.filters = having;
    relation.names = names;
    relation.windows = windows;
    grouping.attach_to(&mut relation);
    Ok(relation)
}

/// Adds a grouping of the rows of some edges by the exchange that is chosen for it. `columns` are
/// those that arrive and those that it emits, in the words of the user.
fn add(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    mut spec: Aggregation,
    edges: Vec<Vec<Edge>>,
    [columns, emitted]: [Vec<String>; 2],
) -> Result<usize, LowerError> {
    let together = Placements::of(&job.operators).fits(&edges, &[spec.keys.as_slice()]).is_some();
    let costs = || costs(cx, job, &spec, &edges[0]);
    let (exchange, input) = cx.lowering.exchange(together, &cx.hints, costs)?;
    spec.exchange = exchange;
    let mut labels = Labels::of_input(InputLabels { columns, ..input });
    labels.columns = emitted;
    labels.properties.extend(key_mode_text(&spec.group_by).map(|mode| ("key mode", mode)));
    let name = if spec.window.is_some() { "WindowAggregate" } else { "Aggregate" };
    let kind = OperatorKind::Aggregate(Box::new(spec));
    Ok(job.add(name.into(), edges, kind, labels))
}

/// The cost of grouping the rows of some edges, if enough is known of them.
fn costs(
    cx: &Context<'_>,
    job: &JobBuilder,
    spec: &Aggregation,
    edges: &[Edge],
) -> Option<Decision> {
    let (workers, settings) = (cx.lowering.workers, &cx.lowering.settings.job);
    let rows = Statistics::along(edges, &Statistics::of(&job.operators, workers.total()));
    let workers = WorkerCounts { total: workers.total(), per_process: workers.per_node };
    let grouped = Grouped::of(spec, &rows, workers, settings.epoch)?;
    Some(decide(Exchange::Merge, &grouped, &Costs::default(), settings.state_bytes_max))
}

/// The state of rows with `keys` among the columns of `before`.
fn group_by(
    cx: &Context<'_>,
    grouping: &GroupedAggregation,
    keys: &[usize],
    before: &Schema,
) -> GroupBy {
    let settings = &cx.lowering.settings;
    let (budget_bytes, key_mode) = (settings.job.state_bytes_max, settings.key_mode);
    GroupBy {
        keys: keys.iter().map(|&key| before.field(key).data_type().clone()).collect(),
        aggregates: grouping.calls.iter().map(|call| call.aggregate.clone()).collect(),
        options: StateOptions { budget_bytes, key_mode, ..StateOptions::default() },
    }
}

/// The window of a grouping, with the expression that it is over.
fn window(
    cx: &Context<'_>,
    relation: &Relation,
    grouping: &GroupedAggregation,
    without: impl FnOnce() -> Refusal,
) -> Result<Option<(Expr, WindowKind)>, LowerError> {
    match &grouping.window {
        None if cx.bounded => Ok(None),
        None => Err(without().into()),
        Some(GroupWindow::Attached(attached)) => {
            Ok(Some((attached.last.clone(), WindowKind::Attached)))
        }
        Some(GroupWindow::Call { call, .. }) => {
            if !cx.bounded && !relation.tells(&call.time) {
                return Err(cx.lowering.no_watermark(relation, call).into());
            }
            multi_window::few_windows(cx, call)?;
            Ok(Some((call.time.clone(), WindowKind::Call(call.clone()))))
        }
    }
}

/// The kind of window that rows are grouped by.
enum WindowKind {
    /// Of the rows' own time.
    Call(WindowCall),
    /// The window that each row belongs to already.
    Attached,
}

impl WindowKind {
    /// The window over column `column` of `schema`.
    fn over(&self, column: usize, schema: &Schema) -> Result<TimeWindow, Option<Diagnostic>> {
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
        Ok(TimeWindow { column, time_type, windows: windows.ok_or(None)?, attached })
    }
}

/// A grouped aggregation: its window, keys and calls.
pub(crate) struct GroupedAggregation {
    pub(crate) window: Option<GroupWindow>,
    /// Over the base's columns.
    pub(crate) keys: Vec<Expr>,
    pub(crate) calls: Vec<AggregateCall>,
    /// By group expression the column that it has become.
    outputs: Vec<String>,
    /// The same by aggregate.
    call_names: Vec<String>,
}

/// The window that rows are grouped by.
pub(crate) enum GroupWindow {
    /// A window that is computed from a row, and which of the row's windows that is.
    Call { call: WindowCall, window: usize },
    /// The window that an operator has attached to each row.
    Attached(AttachedWindow),
}

impl GroupWindow {
    /// The window that expressions tell from those that end at another time: of several, the one
    /// that was assigned last.
    fn of(relation: &Relation, groups: &[Expr]) -> Option<Self> {
        let tells = |of: &BoundColumn| {
            // Sessions of one key that begin together are the same.
            let call = relation.call_of(of.window);
            let is_session = call.is_some_and(|call| call.shape == WindowShape::Session);
            relation.windows.tells(of) || of.is_total() && is_session
        };
        let bounds = groups.iter().filter_map(|group| relation.bound(group)).filter(tells);
        let window = bounds.map(|of| of.window).max()?;
        match relation.call_of(window) {
            Some(call) => Some(GroupWindow::Call { call, window }),
            None => relation.attached.clone().map(GroupWindow::Attached),
        }
    }
}

/// The name of a key among the output columns of a grouping.
pub(crate) fn key_name(key: usize) -> String {
    format!("key_{key}")
}

/// The name of an aggregate among the output columns of a grouping.
pub(crate) fn aggregate_name(aggregate: usize) -> String {
    format!("aggregate_{aggregate}")
}

impl GroupedAggregation {
    fn of(
        relation: &Relation,
        window: Option<GroupWindow>,
        groups: &[Expr],
        calls: &[Expr],
        early: bool,
    ) -> Result<Self, Refusal> {
        let (keys, outputs) = (vec![], vec![]);
        let mut grouping = Self { window, keys, calls: vec![], outputs, call_names: vec![] };
        for call in calls {
            let kind = emit_kind::is_kind(call);
            grouping.call_names.push(match kind {
                true if !early => return Err(early::kind_unknown()),
                true => emit_kind::COLUMN.into(),
                false => aggregate_name(grouping.calls.len()),
            });
            if !kind {
                let lowered = aggregates::lower(call, &relation.scan);
                let lowered = lowered.map_err(|refusal| refusal.nth(alike(calls, call)))?;
                grouping.calls.push(lowered);
            }
        }
        for group in groups {
            let of = WindowCall::of(group).filter(|of| match &grouping.window {
                Some(GroupWindow::Call { call, .. }) => call.same_window(of),
                _ => false,
            });
            grouping.outputs.push(match of {
                Some(call) => call.bound.column().to_string(),
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
        Ok(grouping)
    }

    /// Its output columns.
    fn output_schema(
        &self,
        keys: &[usize],
        before: &Schema,
        window: Option<&TimeWindow>,
        early: bool,
    ) -> SchemaRef {
        let keys = keys.iter().enumerate().map(|(at, &key)| {
            let field = before.field(key);
            Field::new(key_name(at), field.data_type().clone(), field.is_nullable())
        });
        let calls = self.calls.iter().enumerate();
        let calls = calls
            .map(|(at, call)| Field::new(aggregate_name(at), call.aggregate.output_type(), true));
        let bounds = window.into_iter().flat_map(|window| {
            let field = |bound: Bound| Field::new(bound.column(), window.time_type.clone(), true);
            Bound::ALL.into_iter().map(field)
        });
        let kind = early.then(emit_kind::kind_field);
        Arc::new(Schema::new(keys.chain(calls).chain(bounds).chain(kind).collect::<Vec<_>>()))
    }

    /// The plan's columns over the output: the group expressions and the aggregates.
    fn output_exprs(&self) -> Vec<Expr> {
        self.outputs.iter().chain(&self.call_names).map(|name| own(name)).collect()
    }

    /// The texts of its output columns.
    fn names(&self, before: &[(String, String)]) -> Vec<(String, String)> {
        let keys = self.keys.iter().map(shown_expr);
        let keys = keys.enumerate().map(|(at, text)| (key_name(at), text));
        let calls = self.calls.iter().map(|call| call.text.clone());
        let calls = calls.enumerate().map(|(at, text)| (aggregate_name(at), text));
        keys.chain(calls).map(|(name, text)| (name, plain(&text, before))).collect()
    }

    /// Attaches the window of the grouping to its rows, if it has one.
    fn attach_to(&self, relation: &mut Relation) {
        let given = |bound: Bound| own(bound.column());
        let attached = match &self.window {
            Some(GroupWindow::Call { window, .. }) => {
                let (end, time) = (given(Bound::End), given(Bound::Time));
                // No window that ends before the watermark comes any more.
                relation.times = vec![time, end];
                let unit = unit_in(&relation.scan, Bound::End.column());
                let last = |unit| last_of_either(given(Bound::End), given(Bound::Time), unit);
                unit.map(|unit| AttachedWindow { window: *window, last: last(unit) })
            }
            // The rows of an attached window are those of its last tick, as of a window that is
            // one tick long.
            Some(GroupWindow::Attached(AttachedWindow { window, .. })) => {
                Some(AttachedWindow { window: *window, last: given(Bound::Start) })
            }
            None => return,
        };
        relation.attach(attached);
    }
}

/// How many calls of the function of `call` are in front of it.
fn alike(calls: &[Expr], call: &Expr) -> usize {
    let name = |expr: &Expr| match expr {
        Expr::AggregateFunction(call) => Some(call.func.name().to_owned()),
        _ => None,
    };
    let before = calls.iter().take_while(|before| *before != call);
    before.filter(|before| name(before) == name(call)).count()
}

/// The words by which a grouping is written, the best one first.
pub(crate) const GROUPING: [&str; 5] = ["GROUP", "DISTINCT", "HAVING", "UNION", "SELECT"];

/// The same of one without aggregates.
const DISTINCT: [&str; 5] = ["DISTINCT", "UNION", "INTERSECT", "EXCEPT", "GROUP"];

/// Why a grouping is refused that no window ends: by `groups` over the columns of the node.
fn without_window(relation: &Relation, groups: &[Expr], distinct: bool) -> Refusal {
    let bounds = groups.iter().filter_map(|group| Some((group, relation.windows.bound(group)?)));
    for (group, of) in bounds {
        let column = of.bound.column();
        let shape = relation.windows.shape(of.window).filter(|_| of.bound == Bound::Start);
        let (reason, hint) = if of.is_total() {
            let Some(shape) = shape else { continue };
            let word = shape.word();
            let reason = format!("windows of {word} that start together end at different times");
            let clause = if distinct { "SELECT DISTINCT" } else { "GROUP BY" };
            (reason, format!("{clause} window_start, window_end"))
        } else {
            let shown = group.human_display();
            let reason = format!("'{shown}' is NULL in rows without a partner, which never end");
            (reason, format!("GROUP BY coalesce({shown}, …) with the {column} of the other side"))
        };
        let words = if distinct { &DISTINCT[..] } else { &GROUPING };
        return Refusal::new(words, reason).hint(hint).about([group]);
    }
    for_ever(distinct)
}

/// Why a grouping without a window is refused.
pub(crate) fn for_ever(distinct: bool) -> Refusal {
    let words = if distinct { &DISTINCT[..] } else { &GROUPING };
    Refusal::new(words, "rows that never end cannot be grouped without a window").hint(
        "add a window: FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) … \
         GROUP BY window_start, window_end",
    )
}
