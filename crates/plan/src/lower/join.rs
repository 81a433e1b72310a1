//! Joins that stream, and what they have in common.
//!
//! - Of the rows of each window (S7), here: both sides carry windows, and the join asks for equal
//!   `window_start` and `window_end` beside other keys, so that its state is bounded by the windows
//!   that are open.
//! - Of rows whose times are near each other ([`crate::lower::between`]): its state is bounded by
//!   the time that they may be apart.
//! - Of rows with the version of a table at their time ([`crate::logical::as_of`]): its state is a
//!   version of each key.
//! - With a table that ends and is small ([`crate::lower::lookup`]): its state is the table.
//!
//! Other joins over input that never ends would have to remember every row, and are refused.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::job::{
    Edge, Exchange, InputLabels, Keyed, KeyedInput, KeyedOperator, Labels, Lead, Step,
};
use dataflow::keyed::{JoinKind, JoinSide, WindowJoin};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable};

use crate::expr::own::own;
use crate::logical::as_of::is_asked;
use crate::logical::windows::{Bound, Lengths, Shape, WindowCall};
use crate::lower::between;
use crate::lower::broadcast;
use crate::lower::broadcast::{May, Meet, name};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::lookup;
use crate::lower::pipeline;
use crate::lower::pipeline::{FinishedPipeline, RequestedColumns};
use crate::lower::relation::{Bounds, LowerError, Relation, check_key};
use crate::lower::session;
use crate::lower::several;
use crate::lower::step;
use crate::lower::temporal;
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;

/// What must be equal in a join: over the columns of the left base, and of the right one.
pub(crate) type On = Vec<(Expr, Expr)>;

/// What both sides of a join of windows must have equal.
struct Conditions {
    keys: On,
    /// The end of the window, left and right.
    ends: (Expr, Expr),
    /// Whether rows that meet are in windows that begin together too.
    same_start: bool,
}

/// A join.
pub(crate) fn join(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    join: &logical::Join,
) -> Result<Relation, LowerError> {
    let kind = kind_of(join)?;
    let filter = join.filter.as_ref();
    let mut sides = vec![];
    for input in [&join.left, &join.right] {
        let relation = pipeline::relation(cx, job, input)?;
        sides.push(match relation.several {
            Some(_) => relation,
            None => session::settled(cx, job, relation)?,
        });
    }
    let [mut left, mut right] =
        <[Relation; 2]>::try_from(sides).map_err(|_| LowerError::Failed(None))?;
    let cx = &Context { hints: cx.lowering.hints_of_join(join), ..*cx };
    let mut on = conditions_of(join, &left, &right)?;
    if left.several.is_some() || right.several.is_some() {
        let both = [left, right];
        if let Some(sides) = several::joins_whole(cx, kind, &both, &on, filter)? {
            return lookup::widened(cx, job, sides, both, on, filter);
        }
        [left, right] = both;
        (left, right) = (session::settled(cx, job, left)?, session::settled(cx, job, right)?);
        on = conditions_of(join, &left, &right)?;
    }
    if let Some(filter) = filter.filter(|filter| is_asked(filter)) {
        return temporal::versioned(cx, job, kind, [left, right], on, filter);
    }
    if let Some(conditions) = conditions(&left, &right, &on) {
        return windows(cx, job, kind, [left, right], conditions, filter);
    }
    let between = between::between(cx, &left, &right, &on, filter);
    match (between, lookup::table_side(cx, &left, &right, kind)?) {
        (Err(LowerError::Failed(error)), _) => Err(LowerError::Failed(error)),
        (Ok(Some(between)), _) => between::nearby(cx, job, kind, [left, right], on, between),
        (_, Some(sides)) => lookup::widened(cx, job, sides, [left, right], on, filter),
        (Err(refused), None) => Err(refused),
        (Ok(None), None) => Err(endless(cx, &left, &right, kind)?.into()),
    }
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
    Ok(match lookup::table_side(cx, left, right, other)? {
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

/// A join of windows.
fn windows(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    relations: [Relation; 2],
    Conditions { keys, ends, same_start }: Conditions,
    filter: Option<&Expr>,
) -> Result<Relation, LowerError> {
    let (left, right) = ends;
    let call = left.clone();
    let times = [window_time(cx, &relations[0], &left)?, window_time(cx, &relations[1], &right)?];
    let [left_time, right_time] = times;
    let at = [(left, left_time), (right, right_time)];
    let meeting = meeting(cx, job, kind, &relations, keys, at, filter)?;
    let side = |(places, schema): &(Places, SchemaRef)| JoinSide {
        schema: schema.clone(),
        keys: places.keys.clone(),
        window_end: places.at,
    };
    let behind = window_behind(kind, &relations, &meeting, same_start);
    let Meeting { sides: [left, right], on, schema, both, .. } = &meeting;
    let operator = WindowJoin {
        sides: [side(left), side(right)],
        kind,
        on: on.clone(),
        schema: schema.clone(),
        both: both.clone(),
    };
    let granularity = granularity(&call, &left.1, left.0.at);
    let mut relation = met(cx, job, meeting, Arc::new(operator), granularity, 0)?;
    if let Some(bounds) = behind {
        // Rows of both sides are in the same window.
        if kind == JoinKind::Inner {
            let sides = relations
                .iter()
                .flat_map(|side| side.outputs.iter().map(move |(_, expr)| bound_of(side, expr)));
            for ((_, output), bound) in relation.outputs.iter_mut().zip(sides) {
                match bound {
                    Some(Bound::Start) if same_start => *output = bounds.start.clone(),
                    Some(Bound::End) => *output = bounds.end.clone(),
                    Some(Bound::Start | Bound::Time) | None => {}
                }
            }
        }
        relation.times = vec![bounds.time.clone()];
        relation.window = Some(bounds);
    }
    Ok(relation)
}

/// Ends both sides of a join that remembers rows: their columns and keys arrive, and `at`, by
/// which they are forgotten, with the time of which watermarks speak.
pub(crate) fn meeting(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    relations: &[Relation; 2],
    keys: On,
    at: [(Expr, Option<Expr>); 2],
    filter: Option<&Expr>,
) -> Result<Meeting, LowerError> {
    let [left, right] = relations;
    for (l, r) in &keys {
        check_key(l, &left.scan)?;
        check_key(r, &right.scan)?;
    }
    let (left_keys, right_keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    let [left_time, right_time] = at;
    let (left_at, left_side) = arriving(cx, job, left, &left_keys, left_time)?;
    let (right_at, right_side) = arriving(cx, job, right, &right_keys, right_time)?;
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
    Ok(Meeting { kind, sides, edges, columns, on, schema, both, names, shown, may })
}

/// Adds the operator of a join that remembers rows. `granularity` and `grace` are in ticks.
///
/// # Errors
/// When a hint asks for what cannot be.
pub(crate) fn met(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    meeting: Meeting,
    operator: Arc<dyn KeyedOperator>,
    granularity: i64,
    grace: i64,
) -> Result<Relation, LowerError> {
    let meet = broadcast::meet(cx, job, &meeting)?;
    let Meeting { kind, sides, edges, columns, schema, both, shown, .. } = meeting;
    let leads = match meet {
        Meet::Broadcast { leads, .. } => leads,
        Meet::ByKey { .. } => [Lead::ByKey; 2],
    };
    let known = columns.concat();
    let names = names_of(&known);
    let emitted = both.fields().iter().zip(shown.concat());
    let emitted = emitted.filter(|(field, _)| schema.index_of(field.name()).is_ok());
    let mut labels =
        Labels { columns: emitted.map(|(_, name)| name).collect(), ..Labels::default() };
    labels.inputs.extend(shown.iter().map(|columns| InputLabels::of_columns(columns)));
    let input = |((places, schema), lead): (&(Places, SchemaRef), Lead)| KeyedInput {
        schema: schema.clone(),
        lead,
        // Rows of one window meet; where there is none, all do.
        keys: match places.keys.is_empty() && grace == 0 {
            true => vec![places.at],
            false => places.keys.clone(),
        },
        time: Some(places.at),
        grace,
    };
    let inputs: Vec<KeyedInput> = sides.iter().zip(leads).map(input).collect();
    let operator = match meet {
        Meet::Broadcast { reasons, costs, .. } => {
            for (input, (reason, costs)) in
                labels.inputs.iter_mut().zip(reasons.into_iter().zip(costs))
            {
                (input.reason, input.costs) = (Some(reason), costs);
            }
            let exchange = Exchange::Shuffle;
            job.add_keyed(edges, Keyed { inputs, exchange, granularity, operator }, labels)
        }
        Meet::ByKey { reasons, costs } => {
            let of_sides = reasons.into_iter().zip(costs);
            for (input, (reason, costs)) in labels.inputs.iter_mut().zip(of_sides) {
                (input.reason, input.costs) = (reason, costs);
            }
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
fn condition(
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

/// The time of which watermarks speak where rows have a window that ends at `end`.
pub(crate) fn window_time(
    cx: &Context<'_>,
    relation: &Relation,
    end: &Expr,
) -> Result<Option<Expr>, LowerError> {
    match WindowCall::of(end) {
        Some(call) if !cx.bounded && !relation.times.contains(&call.time) => {
            Err(cx.lowering.no_watermark(relation, &call).into())
        }
        Some(call) => Ok(Some(call.time)),
        None => Ok(relation.times.first().cloned()),
    }
}

/// Ends one side: its columns, keys and `at` arrive, with watermarks of `time`.
pub(crate) fn arriving(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    keys: &[Expr],
    (at, time): (Expr, Option<Expr>),
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
pub(crate) struct Meeting {
    kind: JoinKind,
    pub(crate) sides: [(Places, SchemaRef); 2],
    pub(crate) edges: Vec<Vec<Edge>>,
    /// The columns of each side by what they are called in `both`.
    columns: [Vec<(Column, Expr)>; 2],
    pub(crate) on: Option<Arc<dyn Step>>,
    pub(crate) schema: SchemaRef,
    pub(crate) both: SchemaRef,
    /// What the sides are called in the query.
    pub(crate) names: [String; 2],
    /// What the columns of each side are, in the words of the user.
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
    /// What the columns of a side are that arrive, in the words of the user.
    fn shown(&self, side: &Relation, finished: &FinishedPipeline) -> Vec<String> {
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

/// For EXPLAIN: what columns are. Those of one name are told apart by their tables.
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

/// What an expression over the base of a side is called, with the table or alias of the side.
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

fn kind_of(join: &logical::Join) -> Result<JoinKind, Refusal> {
    if join.null_equality == NullEquality::NullEqualsNull {
        return Err(Refusal::new(&["INTERSECT", "EXCEPT"], "INTERSECT and EXCEPT do not stream"));
    }
    if join.null_aware {
        return Err(Refusal::new(&["IN"], "NOT IN does not stream").hint("write NOT EXISTS"));
    }
    Ok(match join.join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::LeftMark | JoinType::RightMark => {
            return Err(Refusal::new(&["IN", "EXISTS"], "a subquery in an expression"));
        }
    })
}

/// What must be equal in a join, over the columns of both bases.
fn conditions_of(join: &logical::Join, left: &Relation, right: &Relation) -> Result<On, Refusal> {
    join.on.iter().map(|(l, r)| Ok((left.rewrite(l)?, right.rewrite(r)?))).collect()
}

/// Sorts the bounds of windows out of the equalities of a join; nothing if they do not ask for
/// equal ends. Rows that wait are forgotten by the end of their window, so that nothing more is
/// needed.
fn conditions(left: &Relation, right: &Relation, on: &On) -> Option<Conditions> {
    let same_grid = |l: &Expr, r: &Expr| {
        let grid = grid_of(left, l);
        grid.is_some() && grid == grid_of(right, r)
    };
    let (mut keys, mut ends, mut start) = (vec![], None, false);
    for (l, r) in on {
        match (bound_of(left, l), bound_of(right, r)) {
            (Some(Bound::Start), Some(Bound::Start)) => {
                start = true;
                if !same_grid(l, r) {
                    keys.push((l.clone(), r.clone()));
                }
            }
            (Some(Bound::End), Some(Bound::End)) => ends = Some((l.clone(), r.clone())),
            (Some(Bound::Time), Some(Bound::Time)) => {}
            _ => keys.push((l.clone(), r.clone())),
        }
    }
    let (l, r) = ends?;
    let same_start = start || same_grid(&l, &r);
    Some(Conditions { keys, ends: (l, r), same_start })
}

/// Which bound of its window an expression of a relation is.
pub(crate) fn bound_of(relation: &Relation, expr: &Expr) -> Option<Bound> {
    if let Some(call) = WindowCall::of(expr) {
        return Some(call.bound);
    }
    let window = relation.window.as_ref()?;
    // A window whose start nobody reads has its end in that place.
    let bounds =
        [(&window.end, Bound::End), (&window.start, Bound::Start), (&window.time, Bound::Time)];
    bounds.into_iter().find(|(of, _)| *of == expr).map(|(_, bound)| bound)
}

/// The grid of the window of which an expression of a relation is a bound.
pub(crate) fn grid_of(relation: &Relation, expr: &Expr) -> Option<(Shape, Lengths)> {
    match WindowCall::of(expr) {
        Some(call) => call.grid(),
        None => relation.window.as_ref()?.grid,
    }
}

/// The window of the rows behind a join of windows: that of the side whose rows are always there,
/// or of both where either may be missing.
fn window_behind(
    kind: JoinKind,
    relations: &[Relation; 2],
    meeting: &Meeting,
    same_start: bool,
) -> Option<Bounds> {
    let of_side = |side: usize| {
        let first = side * meeting.sides[0].1.fields().len();
        let end = meeting.both.field(first + meeting.sides[side].0.at);
        bounds_behind(&relations[side], &meeting.columns[side], Some(end))
    };
    let side = match kind {
        JoinKind::Full => {
            let end = meeting.both.field(meeting.sides[0].0.at);
            return Bounds::of_either(of_side(0)?, of_side(1)?, end.data_type(), same_start);
        }
        JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti => 1,
        JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => 0,
    };
    let mut bounds = of_side(side)?;
    // A start that is read on the other side alone tells this window only if it is the same one.
    let reads_start = bounds.start != bounds.end;
    if kind == JoinKind::Inner
        && same_start
        && !reads_start
        && let Some(other) = bounds_behind(&relations[1], &meeting.columns[1], None)
    {
        bounds.start = other.start;
    }
    Some(bounds)
}

/// The window that rows of `side` still belong to behind an operator, which gives them out as
/// `columns`; `end` is the field with its end, where the operator has one whether it is read or
/// not.
pub(crate) fn bounds_behind(
    side: &Relation,
    columns: &[(Column, Expr)],
    end: Option<&Field>,
) -> Option<Bounds> {
    let find = |bound: Bound| {
        let is_bound = |(_, expr): &(Column, Expr)| bound_of(side, expr) == Some(bound);
        match side.outputs.iter().position(is_bound) {
            Some(at) => Some((&side.outputs[at].1, columns[at].1.clone())),
            None => computed(side, columns, bound),
        }
    };
    let found = find(Bound::End);
    let data_type = match (end, &found) {
        (Some(end), _) => end.data_type().clone(),
        (None, Some((read, _))) => read.get_type(&side.scan).ok()?,
        (None, None) => return None,
    };
    let grid = match &found {
        Some((read, _)) => grid_of(side, read),
        None => side.window.as_ref().and_then(|window| window.grid),
    };
    let end = found.map(|(_, expr)| expr).or_else(|| end.map(|end| own(end.name())))?;
    let read = |bound: Bound| find(bound).map(|(_, expr)| expr);
    Bounds::ending(end, &data_type, [read(Bound::Start), read(Bound::Time)], grid)
}

/// A bound that is computed of columns which a side gives out, as one that either side of a full
/// join may have; and what it is behind the operator that gives them out as `columns`.
fn computed<'a>(
    side: &'a Relation,
    columns: &[(Column, Expr)],
    bound: Bound,
) -> Option<(&'a Expr, Expr)> {
    let window = side.window.as_ref()?;
    let of = match bound {
        Bound::Start => &window.start,
        Bound::End => &window.end,
        Bound::Time => &window.time,
    };
    let column = |part: &Expr| {
        let at = side.outputs.iter().position(|(_, expr)| expr == part)?;
        matches!(part, Expr::Column(_)).then(|| columns[at].1.clone())
    };
    let named = of.column_refs().into_iter().cloned().map(Expr::Column);
    let is_computed =
        !matches!(of, Expr::Column(_)) && named.map(|of| column(&of)).all(|of| of.is_some());
    let behind = is_computed.then(|| session::replaced(of.clone(), column))?.ok()?;
    Some((of, behind))
}

/// Left and right columns, under names that are all different.
fn both_of(left: &Schema, right: &Schema) -> SchemaRef {
    let named = |side: &'static str| {
        move |(at, field): (usize, &Arc<Field>)| {
            Field::new(format!("{side}_{at}"), field.data_type().clone(), true)
        }
    };
    let left = left.fields().iter().enumerate().map(named("left"));
    let right = right.fields().iter().enumerate().map(named("right"));
    Arc::new(Schema::new(left.chain(right).collect::<Vec<_>>()))
}

fn part(schema: &Schema, from: usize, to: usize) -> SchemaRef {
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

/// How far apart the ends of windows are at least, in ticks.
pub(crate) fn granularity(end: &Expr, schema: &Schema, column: usize) -> i64 {
    let DataType::Timestamp(unit, _) = schema.field(column).data_type() else { return 1 };
    match WindowCall::of(end) {
        Some(call) if call.lengths.offset_ns == 0 => call.lengths.size_ns / tick_ns(*unit),
        _ => 1,
    }
}
