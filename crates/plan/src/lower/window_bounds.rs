//! The window to which the rows of a relation belong: which expressions are its start, end and
//! time, and what they are behind an operator that emits some of the columns.

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Column;
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::expr::own::own;
use crate::logical::windows::{Bound, Lengths, WindowCall, WindowShape};
use crate::lower::context::Context;
use crate::lower::relation::{Bounds, LowerError, Relation};
use crate::lower::session;
use crate::text::interval::tick_ns;

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
pub(crate) fn grid_of(relation: &Relation, expr: &Expr) -> Option<(WindowShape, Lengths)> {
    match WindowCall::of(expr) {
        Some(call) => call.grid(),
        None => relation.window.as_ref()?.grid,
    }
}

/// The window of the rows of `side` behind an operator that emits them as `columns`. `end` is the
/// field with its end, where the operator has one whether the query reads it or not.
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

/// A bound that is computed from columns of a side, as one that either side of a full join may
/// have; and the same bound behind the operator that emits the side as `columns`.
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

/// The event time of rows whose window ends at `end`: their watermark is one of that time.
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

/// How far apart the ends of windows are at least, in ticks.
pub(crate) fn granularity(end: &Expr, schema: &Schema, column: usize) -> i64 {
    let DataType::Timestamp(unit, _) = schema.field(column).data_type() else { return 1 };
    match WindowCall::of(end) {
        Some(call) if call.lengths.offset_ns == 0 => call.lengths.size_ns / tick_ns(*unit),
        _ => 1,
    }
}
