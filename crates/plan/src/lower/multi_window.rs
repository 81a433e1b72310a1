//! Windows of rows: `TUMBLE`, and `HOP` and `CUMULATE`, of which a row has several.
//!
//! In a relation the bounds are written as calls, and each of its rows stands for all of its
//! windows. Where rows are grouped by them, the grouping knows the windows of a row. For anything
//! else a row of `TUMBLE` has its bounds computed, and one of the others comes out of a step once
//! for each window that it is in ([`crate::lower::expand`]).

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use dataflow::job::Step;
use dataflow::keyed::JoinKind;
use dataflow::time::last_tick;
use datafusion::common::Column;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, UserDefinedLogicalNodeCore};

use crate::explain::window_text;
use crate::expr::own::own;
use crate::logical::errors::PlanError;
use crate::logical::windows::{
    Bound, Lengths, WINDOWS_OF_ROW_MAX, WindowAssign, WindowCall, WindowShape, no_windows,
    windows_of,
};
use crate::lower::between;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::expand;
use crate::lower::expand::{InWindows, LAST_TICK};
use crate::lower::join::On;
use crate::lower::lookup;
use crate::lower::lookup::Sides;
use crate::lower::pipeline;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::session;
use crate::lower::session::columns_beside;
use crate::lower::window_bounds::AttachedWindow;
use crate::text::refusal::Refusal;
use crate::text::types::sql_name;

/// How many windows a row that is grouped may be in: they are all emitted, and of a late row each
/// that has not fired is kept by itself.
const WINDOWS_OF_GROUPED_ROW_MAX: i64 = 100_000;

/// How many windows a row is in, where they are not sessions.
fn windows_of_row(call: &WindowCall) -> i64 {
    let Lengths { slide_ns, size_ns, .. } = call.lengths;
    if call.shape == WindowShape::Session { 1 } else { size_ns.div_euclid(slide_ns) }
}

/// Rows that stand for all of their windows.
pub(crate) fn windowed(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    assign: &WindowAssign,
) -> Result<Relation, LowerError> {
    let relation = pipeline::relation(cx, job, &assign.input)?;
    let mut relation = session::materialized(cx, job, relation)?;
    let time = relation.rewrite_time(&assign.time)?;
    let keys = relation.rewrite_all(&assign.keys)?;
    let columns = assign.schema().columns().into_iter().skip(relation.outputs.len());
    let call = assign.call(time, keys);
    relation.outputs.extend(columns.zip(Bound::ALL.map(|bound| call.expr(bound))));
    relation.windows = relation.windows.assigned(assign);
    if matches!(assign.of.shape, WindowShape::Hop | WindowShape::Cumulate) {
        relation.multi_window = Some(call);
    }
    Ok(relation)
}

/// Refuses to group by windows of which a row is in too many.
pub(crate) fn few_windows(cx: &Context<'_>, call: &WindowCall) -> Result<(), LowerError> {
    let most = windows_of_row(call);
    if most <= WINDOWS_OF_GROUPED_ROW_MAX {
        return Ok(());
    }
    Err(many_windows(cx, call, format!("each row would be in {most} windows"))
        .detail(format!("{WINDOWS_OF_GROUPED_ROW_MAX} are the most, and each emits a result"))
        .hint("make the slide or step longer")
        .into())
}

fn many_windows(cx: &Context<'_>, call: &WindowCall, message: String) -> Refusal {
    let sites = call.sites(cx.lowering.around.sites);
    let places = sites.filter_map(|site| Some((site.slide?.place, site.table)));
    Refusal::new(&[call.shape.word()], message).among(places.collect()).always()
}

/// The relation, each of its rows once for each of its windows, with the bounds as columns.
pub(crate) fn in_windows(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    mut relation: Relation,
    call: &WindowCall,
) -> Result<Relation, LowerError> {
    let most = windows_of_row(call);
    if most > WINDOWS_OF_ROW_MAX {
        let message = format!("each row would come once for each of its {most} windows");
        return Err(many_windows(cx, call, message)
            .detail(format!("{WINDOWS_OF_ROW_MAX} are the most of a row that is not grouped"))
            .hint("GROUP BY window_start, window_end, or make the slide longer")
            .into());
    }
    relation.multi_window = None;
    let keeps_time = relation.tells(&call.time);
    let window = relation.window_of(call);
    let added = |node: &Expr| {
        WindowCall::of(node).filter(|c| c.same_window(call)).map(|c| own(c.bound.column()))
    };
    let text = window_text(call);
    let mut fine = false;
    let make = |before: &SchemaRef, places: &[usize]| {
        let time_type = before.field(places[0]).data_type();
        let DataType::Timestamp(unit, _) = time_type else {
            return Err(PlanError::WindowOf(sql_name(time_type)).into());
        };
        fine = last_tick(*unit) > 1;
        let step = windows_of(call.shape, call.lengths, *unit)
            .and_then(|windows| InWindows::new(before, places[0], windows, text.clone()));
        step.map(|step| Arc::new(step) as Arc<dyn Step>).ok_or_else(no_windows)
    };
    let mut expanded =
        expand::expanded(cx, job, relation, std::slice::from_ref(&call.time), make, added)?;
    // Watermarks speak of the last tick of a window as of its rows; `window_time` may lie
    // before them.
    let time = own(if fine { LAST_TICK } else { Bound::Time.column() });
    expanded.lateness_ns = call.lateness_ns;
    let attached = window.map(|window| AttachedWindow { window, last: time.clone() });
    if keeps_time {
        expanded.times.push(time);
        expanded.attach(attached);
    } else {
        expanded.times.clear();
        expanded.attached = attached.filter(|_| cx.bounded);
    }
    Ok(expanded)
}

/// Whether the rows of a join may stand for all of their windows behind it as well: they are
/// widened by a table, and nothing asks which windows they are.
pub(crate) fn joins_whole(
    cx: &Context<'_>,
    kind: JoinKind,
    relations: &[Relation; 2],
    on: &On,
    filter: Option<&Expr>,
) -> Result<Option<Sides>, LowerError> {
    let [left, right] = relations;
    let asked = |relation: &Relation, expr: &Expr| {
        let column =
            |(column, of): &(Column, Expr)| has_several(of) && expr.column_refs().contains(column);
        relation.outputs.iter().any(column)
    };
    let by_window = on.iter().any(|(l, r)| has_several(l) || has_several(r))
        || relations.iter().flat_map(|relation| &relation.filters).any(has_several)
        || filter.is_some_and(|filter| relations.iter().any(|of| asked(of, filter)));
    if by_window || between::between(cx, left, right, on, filter)?.is_some() {
        return Ok(None);
    }
    let sides = lookup::table_side(cx, [left, right], on, kind)?;
    Ok(sides.filter(|sides| relations[sides.table].multi_window.is_none()))
}

/// Whether an expression asks which of its windows a row is in.
pub(crate) fn has_several(expr: &Expr) -> bool {
    let multi_window = |node: &Expr| {
        WindowCall::of(node)
            .is_some_and(|c| matches!(c.shape, WindowShape::Hop | WindowShape::Cumulate))
    };
    expr.exists(|node| Ok(multi_window(node))).unwrap_or(true)
}

/// Whether a grouping knows the windows of a relation's rows itself: it is by them, and nothing
/// else asks for them.
pub(crate) fn groups_multi_window(relation: &Relation, groups: &[Expr], calls: &[Expr]) -> bool {
    let Some(multi_window) = &relation.multi_window else { return true };
    let call = |group: &Expr| WindowCall::of(group).filter(|call| call.same_window(multi_window));
    let keys: Vec<&Expr> = groups.iter().filter(|group| call(group).is_none()).collect();
    // Windows of CUMULATE that begin together differ in their ends.
    let tells = |call: WindowCall| call.shape == WindowShape::Hop || call.bound != Bound::Start;
    let filters = relation.filters.iter().flat_map(split_conjunction).filter(|f| has_several(f));
    let mut read = filters.flat_map(|filter| columns_beside(filter, has_several_call));
    groups.iter().filter_map(call).any(tells)
        && !keys.iter().any(|key| has_several(key))
        && !calls.iter().any(has_several)
        && read.all(|column| keys.contains(&&column))
}

fn has_several_call(node: &Expr) -> bool {
    WindowCall::of(node).is_some()
}
