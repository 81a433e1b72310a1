//! Joins, and what they have in common.
//!
//! - Of the rows of each window (S7, [`windows`]): both sides carry windows, and the join asks for
//!   equal `window_start` and `window_end` beside other keys, so that its state is bounded by the
//!   windows that are open.
//! - Of rows whose times are near each other ([`crate::lower::between`]): its state is bounded by
//!   the time that they may be apart.
//! - Of rows with the version of a table at their time ([`crate::logical::as_of`]): its state is a
//!   version of each key.
//! - Of input that ends ([`crate::lower::hash_join`]): its state is the rows of one side.
//! - With a table that ends and is small ([`crate::lower::lookup`]): its state is the table.
//!
//! Other joins over input that never ends would have to remember every row, and are refused.

mod windows;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use dataflow::job::{
    Distribution, Edge, Exchange, InputLabels, Keyed, KeyedInput, KeyedOperator, Labels, Step,
};
use dataflow::keyed::JoinKind;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{self as logical, Expr};

use crate::expr::own::own;
use crate::logical::as_of::is_asked;
use crate::logical::windows::RowWindows;
use crate::lower::between;
use crate::lower::broadcast;
use crate::lower::broadcast::{May, Meet, name};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::hash_join::{self, Form};
use crate::lower::hints::BlockHints;
use crate::lower::lookup;
use crate::lower::multi_window;
use crate::lower::pipeline;
use crate::lower::pipeline::{FinishedPipeline, RequestedColumns};
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::session;
use crate::lower::step;
use crate::lower::temporal;
use crate::text::refusal::Refusal;

/// The equalities of a join: over the columns of the left base, and of the right one.
pub(crate) type On = Vec<(Expr, Expr)>;

/// A join.
pub(crate) fn join(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    join: &logical::Join,
) -> Result<Relation, LowerError> {
    let form = Form::of(join);
    let (kind, filter) = (form.kind, join.filter.as_ref());
    let by_key = cx.bounded && cx.lowering.emit.is_none() && !join.on.is_empty();
    if !by_key {
        is_plain(join)?;
    }
    let mut sides = vec![];
    for input in [&join.left, &join.right] {
        let relation = pipeline::relation(cx, job, input)?;
        sides.push(match relation.multi_window {
            Some(_) => relation,
            None => session::materialized(cx, job, relation)?,
        });
    }
    let [mut left, mut right] =
        <[Relation; 2]>::try_from(sides).map_err(|_| LowerError::Failed(None))?;
    let sizes = cx.bounded.then(|| cx.lowering.statistics.sizes([&join.left, &join.right]));
    let cx = &Context { hints: cx.lowering.hints_of_join(join), sizes, ..*cx };
    let windows = RowWindows::joined(join, &left.windows, &right.windows);
    let mut on = conditions_of(join, &left, &right)?;
    if !form.is_plain() {
        let [left, right] =
            [session::materialized(cx, job, left)?, session::materialized(cx, job, right)?];
        on = conditions_of(join, &left, &right)?;
        let joined = hash_join::hash_join(cx, job, join, [left, right], on)?;
        return Ok(Relation { windows, ..joined });
    }
    if left.multi_window.is_some() || right.multi_window.is_some() {
        let both = [left, right];
        if let Some(sides) = multi_window::joins_whole(cx, kind, &both, &on, filter)? {
            let joined = lookup::lookup_join(cx, job, sides, both, on, filter)?;
            return Ok(Relation { windows, ..joined });
        }
        [left, right] = both;
        (left, right) =
            (session::materialized(cx, job, left)?, session::materialized(cx, job, right)?);
        on = conditions_of(join, &left, &right)?;
    }
    if let Some(filter) = filter.filter(|filter| is_asked(filter)) {
        let joined = temporal::versioned(cx, job, kind, [left, right], on, filter)?;
        return Ok(Relation { windows, ..joined });
    }
    if let Some(conditions) = windows::conditions(join, &left, &right, &on) {
        let sides = ([left, right], windows);
        return windows::join_windows(cx, job, kind, sides, conditions, filter);
    }
    let between = between::between(cx, &left, &right, &on, filter);
    let joined = match (between, lookup::table_side(cx, [&left, &right], &on, kind)?) {
        (Err(LowerError::Failed(error)), _) => Err(LowerError::Failed(error)),
        (Ok(Some(between)), _) => between::nearby(cx, job, kind, [left, right], on, between),
        (_, Some(sides)) if !by_key || lookup::can(&left, &right, &on) => {
            lookup::lookup_join(cx, job, sides, [left, right], on, filter)
        }
        _ if by_key => hash_join::hash_join(cx, job, join, [left, right], on),
        (Err(refused), _) => Err(refused),
        (Ok(None), _) => Err(endless(cx, &left, &right, kind)?.into()),
    }?;
    Ok(Relation { windows, ..joined })
}

/// Why a join would have to remember every row.
fn endless(
    cx: &Context<'_>,
    left: &Relation,
    right: &Relation,
    kind: JoinKind,
) -> Result<Refusal, LowerError> {
    let words = ["JOIN", "IN", "EXISTS"];
    let refusal = Refusal::new(&words, "a join would have to remember every row");
    let other = match kind {
        JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => JoinKind::Right,
        _ => JoinKind::Left,
    };
    Ok(match lookup::table_side(cx, [left, right], &On::new(), other)? {
        Some(_) if !cx.bounded => {
            let reason = "which rows of a table have no partner is known only at the end of \
                          the stream";
            Refusal::new(&words, reason)
                .hint("keep the rows of the stream instead: FROM stream LEFT JOIN table ON …")
        }
        _ => refusal.hint(
            "join windows: … ON l.window_start = r.window_start AND \
             l.window_end = r.window_end AND …; or rows near each other: … AND l.ts BETWEEN \
             r.ts - INTERVAL '1' HOUR AND r.ts + INTERVAL '1' HOUR; or a table that ends",
        ),
    })
}

/// Ends both sides of a join that remembers rows: their columns and keys arrive, and `at`, by
/// which they are forgotten, with the time of which watermarks speak.
pub(crate) fn join_spec(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    relations: &[Relation; 2],
    keys: On,
    at: [(Expr, Option<Expr>); 2],
    filter: Option<&Expr>,
) -> Result<JoinSpec, LowerError> {
    let [left, right] = relations;
    for (l, r) in &keys {
        check_key(l, &left.scan)?;
        check_key(r, &right.scan)?;
    }
    let (left_keys, right_keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    let [(at, time), (right_end, right_time)] = at;
    let (left_at, left_side) = arriving(cx, job, left, &left_keys, at, time)?;
    let (right_at, right_side) = arriving(cx, job, right, &right_keys, right_end, right_time)?;
    let shown = [left_at.shown(left, &left_side), right_at.shown(right, &right_side)];

    let both = both_of(&left_side.schema, &right_side.schema);
    let first = left_side.schema.fields().len();
    let schema: SchemaRef = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => part(&both, 0, first),
        JoinKind::RightSemi | JoinKind::RightAnti => part(&both, first, both.fields().len()),
        _ => both.clone(),
    };
    let columns = [left_at.columns(left, &both, 0), right_at.columns(right, &both, first)];
    let names: Vec<(String, String)> =
        both.fields().iter().map(|f| f.name().clone()).zip(shown.concat()).collect();
    let on = filter.map(|filter| condition(cx, filter, &columns.concat(), &both, &names));
    let on = on.transpose()?.flatten();
    let edges = vec![left_side.edges, right_side.edges];
    let sides = [(left_at, left_side.schema), (right_at, right_side.schema)];
    let names = [name(left, 0), name(right, 1)];
    let may = May::of(kind);
    Ok(JoinSpec { kind, sides, edges, columns, on, schema, both, names, shown, may })
}

/// Adds the operator of a join that remembers rows. `granularity` and `grace` are in ticks.
///
/// # Errors
/// When a hint asks for what cannot be.
pub(crate) fn met(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    spec: JoinSpec,
    operator: Arc<dyn KeyedOperator>,
    granularity: i64,
    grace: i64,
) -> Result<Relation, LowerError> {
    let inputs = |distributions: [Distribution; 2]| -> Vec<KeyedInput> {
        let input =
            |((places, schema), distribution): (&(Places, SchemaRef), Distribution)| KeyedInput {
                schema: schema.clone(),
                distribution,
                // Rows of one window meet; where there is none, all do.
                keys: if places.keys.is_empty() && grace == 0 {
                    vec![places.at]
                } else {
                    places.keys.clone()
                },
                time: Some(places.at),
                grace,
            };
        spec.sides.iter().zip(distributions).map(input).collect()
    };
    let exchange = Exchange::Shuffle;
    let inputs_by_key = inputs([Distribution::Hash; 2]);
    let by_key = Keyed { inputs: inputs_by_key, exchange, granularity, operator };
    let meet = broadcast::meet(cx, job, &spec, by_key.can_merge())?;
    let keyed = match &meet {
        Meet::Broadcast { distributions, .. } => Keyed { inputs: inputs(*distributions), ..by_key },
        Meet::ByKey { .. } => by_key,
    };
    let hints =
        if broadcast::is_asked(&cx.hints, &spec) { BlockHints::default() } else { cx.hints };
    let cx = &Context { hints, ..*cx };
    let JoinSpec { kind, edges, columns, schema, both, shown, .. } = spec;
    let known = columns.concat();
    let names = names_of(&known);
    let emitted = both.fields().iter().zip(shown.concat());
    let emitted = emitted.filter(|(field, _)| schema.index_of(field.name()).is_ok());
    let mut labels =
        Labels { columns: emitted.map(|(_, name)| name).collect(), ..Labels::default() };
    labels.inputs.extend(shown.iter().map(|columns| InputLabels::of_columns(columns)));
    let operator = match meet {
        Meet::Broadcast { reasons, costs, .. } => {
            for (input, (reason, costs)) in
                labels.inputs.iter_mut().zip(reasons.into_iter().zip(costs))
            {
                (input.reason, input.costs) = (Some(reason), costs);
            }
            job.add_keyed(edges, keyed, labels)
        }
        Meet::ByKey { reasons, costs } => {
            let of_sides = reasons.into_iter().zip(costs);
            for (input, (reason, costs)) in labels.inputs.iter_mut().zip(of_sides) {
                (input.reason, input.costs) = (reason, costs);
            }
            let Keyed { inputs, operator, .. } = keyed;
            pipeline::keyed(cx, job, edges, inputs, granularity, operator, labels)?
        }
    };
    let [left, right] = columns;
    let outputs = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => left,
        JoinKind::RightSemi | JoinKind::RightAnti => right,
        _ => known.clone(),
    };
    let (columns, exprs): (Vec<Column>, Vec<Expr>) = outputs.into_iter().unzip();
    let mut relation = Relation::of_operator(operator, schema, columns, exprs)?;
    relation.names = names;
    Ok(relation)
}

/// The condition of a join beside its keys, over the columns of both sides.
pub(crate) fn condition(
    cx: &Context<'_>,
    filter: &Expr,
    known: &[(Column, Expr)],
    both: &SchemaRef,
    names: &[(String, String)],
) -> Result<Option<Arc<dyn Step>>, LowerError> {
    let filter = over(filter, known).map_err(|e| cx.report(&e))?;
    let all: Vec<Expr> = both.fields().iter().map(|field| own(field.name())).collect();
    step::compile(both, Some(&filter), &all, both.clone(), names).map_err(|e| cx.report(&e))
}

/// Ends one side: its columns, keys and `at` arrive, with watermarks of `time`.
pub(crate) fn arriving(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    keys: &[Expr],
    at: Expr,
    time: Option<Expr>,
) -> Result<(Places, FinishedPipeline), LowerError> {
    let mut requested = RequestedColumns::default();
    let outputs: Vec<usize> =
        relation.outputs.iter().map(|(_, expr)| requested.index(expr)).collect();
    let keys: Vec<usize> = keys.iter().map(|key| requested.index(key)).collect();
    let at = requested.index(&at);
    let finished = pipeline::finish(cx, job, relation, &requested.0, time.as_ref())?;
    let place = |at: usize| finished.places[at];
    let places = Places {
        outputs: outputs.into_iter().map(place).collect(),
        keys: keys.into_iter().map(place).collect(),
        at: place(at),
    };
    Ok((places, finished))
}

/// Both sides of a join that remembers rows, ended.
pub(crate) struct JoinSpec {
    kind: JoinKind,
    pub(crate) sides: [(Places, SchemaRef); 2],
    pub(crate) edges: Vec<Vec<Edge>>,
    /// The columns of each side by what they are called in `both`.
    columns: [Vec<(Column, Expr)>; 2],
    pub(crate) on: Option<Arc<dyn Step>>,
    pub(crate) schema: SchemaRef,
    pub(crate) both: SchemaRef,
    /// The names of the sides in the query.
    pub(crate) names: [String; 2],
    /// The columns of each side, in the words of the user.
    shown: [Vec<String>; 2],
    /// The sides that can go to every worker.
    pub(crate) may: May,
}

/// Where the columns of a side are among those that arrive.
pub(crate) struct Places {
    pub(crate) outputs: Vec<usize>,
    pub(crate) keys: Vec<usize>,
    /// When a row is, or its window ends.
    pub(crate) at: usize,
}

impl Places {
    /// The arriving columns of a side, in the words of the user.
    pub(crate) fn shown(&self, side: &Relation, finished: &FinishedPipeline) -> Vec<String> {
        let arriving = finished.columns.iter().enumerate();
        let name = |(at, text): (usize, &String)| {
            let output = self.outputs.iter().position(|&place| place == at);
            output.map_or_else(|| text.clone(), |output| qualified(&side.outputs[output].0))
        };
        arriving.map(name).collect()
    }

    /// The columns of a side by what they are called among `both`, of which they begin at `first`.
    pub(crate) fn columns(
        &self,
        side: &Relation,
        both: &Schema,
        first: usize,
    ) -> Vec<(Column, Expr)> {
        let columns = side.outputs.iter().zip(&self.outputs);
        let named = |place: usize| own(both.field(first + place).name());
        columns.map(|((column, _), &place)| (column.clone(), named(place))).collect()
    }
}

/// For EXPLAIN: the texts of columns. Columns of one name are distinguished by their tables.
pub(crate) fn names_of(columns: &[(Column, Expr)]) -> Vec<(String, String)> {
    let is_other = |column: &Column, expr: &Expr, (other, of): &(Column, Expr)| {
        other.name == column.name && of != expr
    };
    let named = |(column, expr): &(Column, Expr)| match expr {
        Expr::Column(own) => {
            let ambiguous = columns.iter().any(|other| is_other(column, expr, other));
            let name = if ambiguous { qualified(column) } else { column.name.clone() };
            Some((own.name.clone(), name))
        }
        _ => None,
    };
    columns.iter().filter_map(named).collect()
}

/// The name of an expression over the base of a side, with the table or alias of the side.
pub(crate) fn called(side: &Relation, expr: &Expr) -> Option<String> {
    let output = side.outputs.iter().find(|(_, of)| of == expr);
    output.map(|(column, _)| qualified(column))
}

/// A column with the table or alias that the user gave it.
fn qualified(column: &Column) -> String {
    match &column.relation {
        Some(of) if !of.table().starts_with("__") => format!("{}.{}", of.table(), column.name),
        _ => column.name.clone(),
    }
}

/// Refuses forms of joins that need all rows of a side.
fn is_plain(join: &logical::Join) -> Result<(), Refusal> {
    if join.null_equality == NullEquality::NullEqualsNull {
        return Err(Refusal::new(&["INTERSECT", "EXCEPT"], "INTERSECT and EXCEPT do not stream"));
    }
    if join.null_aware {
        return Err(Refusal::new(&["IN"], "NOT IN does not stream").hint("write NOT EXISTS"));
    }
    match join.join_type {
        JoinType::LeftMark | JoinType::RightMark => {
            Err(Refusal::new(&["IN", "EXISTS"], "a subquery in an expression"))
        }
        _ => Ok(()),
    }
}

/// The equalities of a join, over the columns of both bases.
fn conditions_of(join: &logical::Join, left: &Relation, right: &Relation) -> Result<On, Refusal> {
    join.on.iter().map(|(l, r)| Ok((left.rewrite(l)?, right.rewrite(r)?))).collect()
}

/// Left and right columns, under names that are all different.
pub(crate) fn both_of(left: &Schema, right: &Schema) -> SchemaRef {
    let named = |side: &'static str| {
        move |(at, field): (usize, &Arc<Field>)| {
            Field::new(format!("{side}_{at}"), field.data_type().clone(), true)
        }
    };
    let left = left.fields().iter().enumerate().map(named("left"));
    let right = right.fields().iter().enumerate().map(named("right"));
    Arc::new(Schema::new(left.chain(right).collect::<Vec<_>>()))
}

pub(crate) fn part(schema: &Schema, from: usize, to: usize) -> SchemaRef {
    Arc::new(Schema::new(schema.fields()[from..to].to_vec()))
}

/// A condition over the columns of a join's inputs, written over what they are called here.
pub(crate) fn over(filter: &Expr, known: &[(Column, Expr)]) -> DfResult<Expr> {
    let replaced = filter.clone().transform_up(|node| {
        Ok(match node {
            Expr::Column(column) => match known.iter().find(|(known, _)| *known == column) {
                Some((_, expr)) => Transformed::yes(expr.clone()),
                None => Transformed::no(Expr::Column(column)),
            },
            other => Transformed::no(other),
        })
    })?;
    Ok(replaced.data)
}
