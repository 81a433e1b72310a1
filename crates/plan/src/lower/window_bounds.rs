//! The windows of the rows of a relation, as operators know them.
//!
//! [`RowWindows`] names the columns that are bounds of windows. This module says where a window is
//! while rows are on their way: a call ([`WindowCall`]) computes it from a row, as long as no
//! operator has materialized it, or it is attached to the rows that an operator emits.

use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, Schema, TimeUnit};
use dataflow::time::last_tick;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, ExprSchemable, lit};

use crate::expr::own::own;
use crate::logical::windows::{Bound, BoundColumn, RowWindows, WindowCall};
use crate::lower::context::Context;
use crate::lower::relation::{LowerError, Relation};
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;

/// The window that an operator has attached to the rows that it emits.
#[derive(Clone)]
pub(crate) struct AttachedWindow {
    /// The number of the window among those of the rows.
    pub(crate) window: usize,
    /// The last tick of the window, over the base's columns. Watermarks speak of it.
    pub(crate) last: Expr,
}

impl Relation {
    /// The bound of a window that an expression over the node's columns is, if operators know that
    /// window.
    pub(crate) fn bound(&self, expr: &Expr) -> Option<BoundColumn> {
        let attached = self.attached.as_ref().map(|attached| attached.window);
        self.windows
            .bound(expr)
            .filter(|of| attached == Some(of.window) || self.call_of(of.window).is_some())
    }

    /// The call that computes a window of a row, if it is not attached.
    pub(crate) fn call_of(&self, window: usize) -> Option<WindowCall> {
        let columns = self.windows.columns(window);
        columns.filter_map(|(column, _)| self.output(column)).find_map(WindowCall::of)
    }

    /// The window that a call computes.
    pub(crate) fn window_of(&self, call: &WindowCall) -> Option<usize> {
        let column = |(column, expr): &(Column, Expr)| {
            let is_same = WindowCall::of(expr).is_some_and(|of| of.same_window(call));
            let of = || self.windows.bound(&Expr::Column(column.clone()));
            is_same.then(of).flatten().map(|of| of.window)
        };
        self.outputs.iter().find_map(column)
    }

    /// A column of the node, over the base's columns.
    fn output(&self, column: &Column) -> Option<&Expr> {
        self.outputs.iter().find(|(known, _)| known == column).map(|(_, expr)| expr)
    }

    /// The end of a window that operators know, over the base's columns.
    pub(crate) fn end_of(&self, window: usize) -> Option<Expr> {
        if let Some(call) = self.call_of(window) {
            return Some(call.expr(Bound::End));
        }
        let mut columns = self.windows.columns(window);
        let is_end = |of: &BoundColumn| of.is_total() && of.bound == Bound::End;
        if let Some(end) = columns.find(|(_, of)| is_end(of)) {
            return self.output(end.0).cloned();
        }
        let AttachedWindow { last, .. } =
            self.attached.as_ref().filter(|attached| attached.window == window)?;
        let unit = unit_of(&last.get_type(&self.scan).ok()?)?;
        Some(last.clone() + ticks(1, unit))
    }

    /// Says which window is attached to the rows, and that watermarks speak of its last tick and of
    /// the columns that are that.
    pub(crate) fn attach(&mut self, attached: Option<AttachedWindow>) {
        if let Some(AttachedWindow { window, last }) = &attached {
            let is_time = |of: &BoundColumn| of.is_total() && of.bound == Bound::Time;
            let columns = self.windows.columns(*window).filter(|(_, of)| is_time(of));
            let columns = columns.filter(|_| self.is_in_milliseconds(last));
            let columns = columns.filter_map(|(column, _)| self.output(column));
            let times = std::iter::once(last).chain(columns).cloned();
            let times: Vec<Expr> = times.filter(|time| !self.times.contains(time)).collect();
            self.times.extend(times);
        }
        self.attached = attached;
    }

    /// A time over the node's columns, written over the base's: if it is the time of the attached
    /// window, as that of which watermarks speak.
    pub(crate) fn rewrite_time(&self, time: &Expr) -> Result<Expr, Refusal> {
        let of = self.windows.bound(time).filter(|of| of.is_total() && of.bound == Bound::Time);
        match (of, &self.attached) {
            (Some(of), Some(AttachedWindow { window, last }))
                if of.window == *window && self.is_in_milliseconds(last) =>
            {
                Ok(last.clone())
            }
            _ => self.rewrite(time),
        }
    }

    /// Whether `window_time` is the last tick of a window; of finer times, it lies before that.
    fn is_in_milliseconds(&self, last: &Expr) -> bool {
        let unit = last.get_type(&self.scan).ok().and_then(|of| unit_of(&of));
        unit.is_some_and(|unit| last_tick(unit) == 1)
    }

    /// The window of the rows behind an operator that emits the node's rows as `columns`, and in
    /// the field `end` the end of their window, where it has one whether the query reads it or not.
    pub(crate) fn attached_behind(
        &self,
        window: usize,
        columns: &[(Column, Expr)],
        end: Option<&Field>,
    ) -> Option<AttachedWindow> {
        let last = |bound: Bound| {
            let mut of = self.windows.columns(window);
            let (column, _) = of.find(|(_, of)| of.bound == bound && of.is_total())?;
            let at = self.outputs.iter().position(|(known, _)| known == column)?;
            let unit = unit_of(&self.outputs[at].1.get_type(&self.scan).ok()?)?;
            last_of(&self.windows, window, bound, &columns[at].1, unit)
        };
        let last_of_end = |end: &Field| {
            let unit = unit_of(end.data_type())?;
            let time = if last_tick(unit) == 1 { last(Bound::Time) } else { None };
            time.or_else(|| last_of(&self.windows, window, Bound::End, &own(end.name()), unit))
        };
        let last = match end {
            Some(end) => last_of_end(end)?,
            None => Bound::TELLING.into_iter().find_map(last)?,
        };
        Some(AttachedWindow { window, last })
    }
}

/// The last tick of a window by one of its bounds.
pub(crate) fn last_of(
    windows: &RowWindows,
    window: usize,
    bound: Bound,
    expr: &Expr,
    unit: TimeUnit,
) -> Option<Expr> {
    let of = expr.clone();
    match bound {
        Bound::End => Some(of - ticks(1, unit)),
        Bound::Time if last_tick(unit) == 1 => Some(of),
        Bound::Time => Some(of + ticks(last_tick(unit) - 1, unit)),
        Bound::Start => {
            let size = windows.size_by_start(window)? / tick_ns(unit);
            Some(of + ticks(size - 1, unit))
        }
    }
}

/// The last tick of a window that ends at `end`.
pub(crate) fn last_tick_of(end: Expr, data_type: &DataType) -> Option<Expr> {
    unit_of(data_type).map(|unit| end - ticks(1, unit))
}

/// The last tick of a window of which both `end` and `window_time` are there.
pub(crate) fn last_of_either(end: Expr, time: Expr, unit: TimeUnit) -> Expr {
    if last_tick(unit) == 1 { time } else { end - ticks(1, unit) }
}

/// The unit of a column of times.
pub(crate) fn unit_in(columns: &DFSchema, name: &str) -> Option<TimeUnit> {
    unit_of(columns.field_with_unqualified_name(name).ok()?.data_type())
}

fn unit_of(data_type: &DataType) -> Option<TimeUnit> {
    match data_type {
        DataType::Timestamp(unit, _) => Some(*unit),
        _ => None,
    }
}

/// An interval of a number of ticks.
fn ticks(count: i64, unit: TimeUnit) -> Expr {
    let length = IntervalMonthDayNano::new(0, 0, count.saturating_mul(tick_ns(unit)));
    lit(ScalarValue::IntervalMonthDayNano(Some(length)))
}

/// The event time of rows that are in a window: their watermark is one of that time.
pub(crate) fn window_time(
    cx: &Context<'_>,
    relation: &Relation,
    window: usize,
) -> Result<Option<Expr>, LowerError> {
    match relation.call_of(window) {
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
