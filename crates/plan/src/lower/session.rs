//! `SESSION`: windows that depend on the rows of a key.
//!
//! A session is no function of a row: it depends on all rows of its key. So no filter goes below
//! the node that assigns it ([`crate::logical::windows::WindowAssign`]) but those on its keys, and
//! the batch stage computes it with window functions for any query over bounded input.
//!
//! In a relation the bounds are written as calls, like those of other windows. Where rows are
//! grouped by their session and its keys, the grouping finds the sessions. For anything else they
//! are materialized: rows wait in an operator of their own until their session has ended.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use dataflow::job::{Distribution, Edge, InputLabels, KeyedInput, Labels};
use dataflow::keyed::RowSessions;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};

use crate::explain::shown;
use crate::expr::own::own;
use crate::logical::errors::PlanError;
use crate::logical::windows::{Bound, WindowCall, WindowShape};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::grouping::GroupWindow;
use crate::lower::multi_window;
use crate::lower::pipeline;
use crate::lower::pipeline::RequestedColumns;
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::window_bounds::AttachedWindow;
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;
use crate::text::types::sql_name;

/// The relation, each of whose rows is in one window: the bounds of sessions are columns, and
/// what stands for several windows comes once for each.
pub(crate) fn materialized(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: Relation,
) -> Result<Relation, LowerError> {
    materialized_of(cx, job, relation, None)
}

/// The relation filtered, if the filter chooses among rows whose windows must be materialized
/// before: of sessions the other rows make them too, and are not kept.
pub(crate) fn materialized_where(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: Relation,
    predicate: &Expr,
) -> Result<Relation, LowerError> {
    if relation.multi_window.is_some() {
        let (mut before, mut behind) = (relation, vec![]);
        for part in split_conjunction(predicate) {
            if decides_anew(&before.rewrite(part)?) {
                behind.push(part);
            } else {
                before = before.filter(part)?;
            }
        }
        let relation = materialized(cx, job, before)?;
        return Ok(behind.into_iter().try_fold(relation, Relation::filter)?);
    }
    let (mut of_rows, mut of_sessions) = (vec![], vec![]);
    for part in split_conjunction(predicate) {
        let over_base = relation.rewrite(part)?;
        if has_session(&over_base) { of_sessions.push(part) } else { of_rows.push(over_base) }
    }
    let mut relation = materialized_of(cx, job, relation, conjunction(of_rows))?;
    for part in of_sessions {
        relation = relation.filter(part)?;
    }
    Ok(relation)
}

/// The relation materialized, with those of its rows for which `given` holds.
fn materialized_of(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    mut relation: Relation,
    given: Option<Expr>,
) -> Result<Relation, LowerError> {
    if let Some(call) = relation.multi_window.clone() {
        return multi_window::in_windows(cx, job, relation, &call);
    }
    let Some(call) = session_of(&relation) else { return Ok(relation) };
    if !cx.bounded && !relation.tells(&call.time) {
        return Err(cx.lowering.no_watermark(&relation, &call).into());
    }
    let window = relation.window_of(&call);
    let having = take_filters(&mut relation);
    let mut requested = RequestedColumns::default();
    for key in &call.keys {
        check_key(key, &relation.scan)?;
        requested.index(key);
    }
    requested.index(&call.time);
    relation.outputs.iter().map(|(_, expr)| expr).chain(&having).for_each(|expr| {
        let columns = columns_beside(expr, is_session_call);
        columns.into_iter().for_each(|column| _ = requested.index(&column));
    });
    let asked = requested.0.len();
    requested.0.extend(given.clone());
    let finished = pipeline::finish(cx, job, &relation, &requested.0, Some(&call.time))?;
    let place =
        |expr: &Expr| requested.0.iter().position(|w| w == expr).map(|at| finished.places[at]);
    let (places, last) = finished.places.split_at(asked);
    // Columns that only choose the emitted rows go no further.
    let columns = finished.schema.fields().len();
    let alone = last.iter().any(|&at| at + 1 == columns && !places.contains(&at));
    let kept = columns - usize::from(alone);
    let keys: Vec<usize> = call.keys.iter().filter_map(place).collect();
    let time = place(&call.time).unwrap_or_default();
    let time_type = finished.schema.field(time).data_type().clone();
    let DataType::Timestamp(unit, _) = &time_type else {
        return Err(cx.report(&PlanError::WindowOf(sql_name(&time_type)).into()));
    };
    let gap = call.lengths.size_ns / tick_ns(*unit);
    let names: Vec<_> = (0..kept).map(|at| (row_name(at), finished.columns[at].clone())).collect();
    let given = last.first().copied();
    let time_field = finished.schema.field(time);
    let schema = output_schema(finished.schema.fields()[..kept].iter(), time_field.data_type());
    let input = finished.schema.clone();
    let sessions = RowSessions { input, keys, time, gap, given, schema: schema.clone() };
    let mut labels = Labels::of_input(InputLabels::of_columns(&finished.columns));
    labels.columns = shown(&schema, &names);
    let operator = row_sessions(cx, job, finished.edges, &finished.schema, sessions, labels)?;

    let over = |expr: &Expr| {
        let column = |node: &Expr| match WindowCall::of(node) {
            Some(of) if of.same_window(&call) => Some(own(of.bound.column())),
            _ => place(node).map(|at| own(&row_name(at))),
        };
        replaced(expr.clone(), column)
    };
    let (columns, outputs): (Vec<Column>, Vec<Expr>) = relation.outputs.into_iter().unzip();
    let outputs = outputs.iter().map(over).collect::<Result<_, _>>()?;
    let mut materialized = Relation::of_operator(operator, schema, columns, outputs)?;
    materialized.filters = having.iter().map(over).collect::<Result<_, _>>()?;
    materialized.names = names;
    let time = own(Bound::Time.column());
    materialized.times = vec![time.clone()];
    materialized.windows = relation.windows;
    materialized.attach(window.map(|window| AttachedWindow { window, last: time }));
    Ok(materialized)
}

/// Adds the operator in which rows wait; gives its index.
fn row_sessions(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    edges: Vec<Edge>,
    before: &SchemaRef,
    sessions: RowSessions,
    labels: Labels,
) -> Result<usize, LowerError> {
    let input = KeyedInput {
        schema: before.clone(),
        keys: sessions.keys.clone(),
        distribution: Distribution::Hash,
        time: Some(sessions.time),
        grace: sessions.gap,
    };
    let granularity = (sessions.gap / 4).max(1);
    pipeline::keyed(cx, job, vec![edges], vec![input], granularity, Arc::new(sessions), labels)
}

/// Rows with the bounds of their session.
fn output_schema<'a>(rows: impl Iterator<Item = &'a FieldRef>, time_type: &DataType) -> SchemaRef {
    let renamed = |(at, field): (usize, &FieldRef)| field.as_ref().clone().with_name(row_name(at));
    let bounds = Bound::ALL.map(|b| Field::new(b.column(), time_type.clone(), true));
    Arc::new(Schema::new(rows.enumerate().map(renamed).chain(bounds).collect::<Vec<_>>()))
}

/// The name of a column behind an operator or step that passes rows on.
pub(crate) fn row_name(at: usize) -> String {
    format!("row_{at}")
}

/// The session that rows of a relation belong to, if it is not materialized.
fn session_of(relation: &Relation) -> Option<WindowCall> {
    let mut found = None;
    for (_, expr) in &relation.outputs {
        // The closure never fails, so neither does the walk.
        let _ = expr.apply(|node| {
            let call = WindowCall::of(node).filter(|call| call.shape == WindowShape::Session);
            found = found.take().or(call);
            Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        });
    }
    found
}

/// The columns that an expression reads, but for those of parts that are `is_known` in another way.
pub(crate) fn columns_beside(expr: &Expr, is_known: impl Fn(&Expr) -> bool) -> Vec<Expr> {
    let mut columns = vec![];
    // The closure never fails, so neither does the walk.
    let _ = expr.apply(|node| {
        let is_known = is_known(node);
        if matches!(node, Expr::Column(_)) && !is_known {
            columns.push(node.clone());
        }
        Ok(if is_known { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    });
    columns
}

fn is_session_call(node: &Expr) -> bool {
    WindowCall::of(node).is_some_and(|call| call.shape == WindowShape::Session)
}

/// An expression with `column` of each part in its place, where it has one.
pub(crate) fn replaced(
    expr: Expr,
    column: impl Fn(&Expr) -> Option<Expr>,
) -> Result<Expr, Refusal> {
    let replaced = expr.transform_down(|node| {
        Ok(match column(&node) {
            Some(column) => Transformed::new(column, true, TreeNodeRecursion::Jump),
            None => Transformed::no(node),
        })
    });
    Ok(replaced.map_err(|error| Refusal::new(&[], error.to_string()))?.data)
}

fn has_session(expr: &Expr) -> bool {
    expr.exists(|node| Ok(is_session_call(node))).unwrap_or(true)
}

/// Whether a filter over the base's columns decides of each window of a row anew.
fn decides_anew(filter: &Expr) -> bool {
    filter.is_volatile() && !multi_window::has_several(filter)
}

/// Whether a filter chooses among rows, whose sessions must be materialized before, while one that
/// chooses among sessions may come after; or among the windows of a row by more than their bounds.
pub(crate) fn filters_rows(relation: &Relation, predicate: &Expr) -> Result<bool, Refusal> {
    let session = session_of(relation);
    if session.is_none() && relation.multi_window.is_none() {
        return Ok(false);
    }
    let predicate = relation.rewrite(predicate)?;
    if session.is_none() {
        return Ok(split_conjunction(&predicate).into_iter().any(decides_anew));
    }
    Ok(!split_conjunction(&predicate).into_iter().all(has_session))
}

/// Whether a grouping finds the sessions of a relation itself: it is by them and their keys, and
/// nothing else asks for them.
pub(crate) fn groups_sessions(relation: &Relation, groups: &[Expr], calls: &[Expr]) -> bool {
    let Some(session) = session_of(relation) else { return true };
    let (bounds, keys): (Vec<_>, Vec<_>) =
        groups.iter().partition(|group| WindowCall::of(group).is_some());
    let read = relation.filters.iter().filter(|filter| has_session(filter));
    let mut read = read.flat_map(|filter| columns_beside(filter, is_session_call));
    !bounds.is_empty()
        && session.keys.iter().all(|key| keys.contains(&key))
        && keys.iter().all(|key| session.keys.contains(key))
        && !calls.iter().any(has_session)
        && read.all(|column| session.keys.contains(&column))
}

/// Takes the filters out of a relation that choose among windows of which a row has several or
/// which it cannot tell: they are for groups.
pub(crate) fn take_filters(relation: &mut Relation) -> Vec<Expr> {
    let filters = std::mem::take(&mut relation.filters);
    let filters = filters.iter().flat_map(|filter| split_conjunction(filter)).cloned();
    let of_groups = |filter: &Expr| {
        let multi_window =
            |node: &Expr| WindowCall::of(node).is_some_and(|c| c.shape != WindowShape::Tumble);
        filter.exists(|node| Ok(multi_window(node))).unwrap_or(true)
    };
    let (of_groups, of_rows) = filters.partition(of_groups);
    relation.filters = of_rows;
    of_groups
}

/// A filter over the output columns of a grouping: `groups` become `outputs`.
pub(crate) fn over_groups(
    filter: Expr,
    window: &Option<GroupWindow>,
    groups: &[Expr],
    outputs: &[String],
) -> Result<Expr, Refusal> {
    let column = |node: &Expr| match (WindowCall::of(node), window) {
        (Some(call), Some(GroupWindow::Call { call: known, .. })) if known.same_window(&call) => {
            Some(own(call.bound.column()))
        }
        _ => groups.iter().position(|group| group == node).map(|at| own(&outputs[at])),
    };
    let replaced = replaced(filter, column)?;
    let given = |column: &&Column| {
        outputs.contains(&column.name) || Bound::ALL.iter().any(|b| b.column() == column.name)
    };
    if replaced.column_refs().iter().all(given) {
        Ok(replaced)
    } else {
        Err(Refusal::new(&["WHERE"], "a filter speaks of rows and of their windows"))
    }
}
