//! Joins of rows whose times lie near each other: interval joins.
//!
//! ```sql
//! a JOIN b ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '5' MINUTE AND b.ts + INTERVAL '1' HOUR
//! ```
//!
//! Both times have a watermark and their difference has a bound on either side, so that a row is
//! remembered until the watermark says that no partner can come. The bounds may be written in any
//! way that compares one time with the other, each plus or minus intervals.

use std::sync::Arc;

use arrow::datatypes::DataType;
use dataflow::keyed::{IntervalJoin, JoinKind, TimedSide};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator};

use crate::expr::own::own;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join;
use crate::lower::join::{JoinSpec, On, Places};
use crate::lower::relation::{LowerError, Relation};
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;

/// Conditions that bound how far times are apart.
pub(crate) struct Between {
    /// A time of the left and of the right base.
    times: [Expr; 2],
    /// The least and the greatest that the left less the right may be, in ticks.
    apart: [i64; 2],
    /// Ticks of a second.
    second: i64,
    /// The conditions that say something else.
    rest: Option<Expr>,
}

/// Bounds on the difference of two times, in nanoseconds.
#[derive(Clone)]
struct TimeDifference {
    times: [Expr; 2],
    least: Option<i64>,
    most: Option<i64>,
}

/// The conditions of a join that bound how far times are apart, if there are any. Those of one
/// side alone are refused: the rows of the other would be remembered for ever.
pub(crate) fn between(
    cx: &Context<'_>,
    left: &Relation,
    right: &Relation,
    on: &On,
    filter: Option<&Expr>,
) -> Result<Option<Between>, LowerError> {
    let mut known: Option<TimeDifference> = None;
    let mut rest = vec![];
    for (l, r) in on {
        let at = |expr, of: &Relation| moment(expr, of);
        if let (Some((l, ahead)), Some((r, back))) = (at(l, left), at(r, right)) {
            let apart = back.saturating_sub(ahead);
            merge(
                &mut known,
                TimeDifference { times: [l, r], least: Some(apart), most: Some(apart) },
            );
        }
    }
    for part in filter.into_iter().flat_map(split_conjunction) {
        let compared = compared(part, left, right)?;
        match compared.filter(|found| known.as_ref().is_none_or(|k| k.times == found.times)) {
            Some(found) => merge(&mut known, found),
            None => rest.push(part.clone()),
        }
    }
    let Some(TimeDifference { times, least, most }) = known else { return Ok(None) };
    let (Some(least), Some(most)) = (least, most) else {
        let reason = "a join whose times are bounded on one side would have to remember every \
                      row of the other";
        return Err(Refusal::new(&["JOIN", "EXISTS"], reason).hint(HINT).into());
    };
    let of = |side: usize, relation: &Relation| times[side].get_type(&relation.scan);
    let (l, r) = (of(0, left), of(1, right));
    let (l, r) = (l.map_err(|e| cx.report(&e))?, r.map_err(|e| cx.report(&e))?);
    let (DataType::Timestamp(unit, _), true) = (&l, l == r) else {
        let reason = "the times of a join are of different types";
        let hint = "declare both columns as TIMESTAMP(3)";
        return Err(Refusal::new(&["JOIN", "EXISTS"], reason).hint(hint).into());
    };
    let tick = tick_ns(*unit);
    if least % tick != 0 || most % tick != 0 {
        let reason = "an interval is finer than the times of the join";
        let hint = crate::catalog::finer_hint(*unit);
        return Err(Refusal::new(&["INTERVAL"], reason).hint(hint).into());
    }
    let apart = [least / tick, most / tick];
    let second = (1_000_000_000 / tick).max(1);
    Ok(Some(Between { times, apart, second, rest: conjunction(rest) }))
}

/// A join of rows whose times are near each other.
pub(crate) fn nearby(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    relations: [Relation; 2],
    on: On,
    between: Between,
) -> Result<Relation, LowerError> {
    let Between { times: [left, right], apart, second, rest } = between;
    let at = [(left.clone(), Some(left)), (right.clone(), Some(right))];
    let spec = join::join_spec(cx, job, kind, &relations, on, at, rest.as_ref())?;
    let JoinSpec { sides, schema, both, on, .. } = &spec;
    let [l, r] = sides;
    let side = |(places, columns): &(Places, _)| {
        let Places { keys, at, .. } = places;
        TimedSide { schema: Arc::clone(columns), keys: keys.clone(), time: *at }
    };
    let operator = IntervalJoin {
        sides: [side(l), side(r)],
        apart,
        kind,
        on: on.clone(),
        schema: schema.clone(),
        both: both.clone(),
    };
    // A side whose rows may be emitted without a partner has no time on the other side.
    let timed: &[usize] = match kind {
        JoinKind::Inner => &[0, 1],
        JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => &[0],
        JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti => &[1],
        JoinKind::Full => &[],
    };
    let first = [0, l.1.fields().len()];
    let times = timed.iter().map(|&side| own(both.field(first[side] + sides[side].0.at).name()));
    let times = times.collect();
    let often = (apart[1].saturating_sub(apart[0]) / 16).clamp(1, second);
    let mut relation = join::met(cx, job, spec, Arc::new(operator), often, 1)?;
    relation.times = times;
    Ok(relation)
}

const HINT: &str = "bound the times from both sides: … AND a.ts BETWEEN b.ts - INTERVAL '1' HOUR \
                    AND b.ts + INTERVAL '1' HOUR";

/// Adds what else is known of the same times.
fn merge(known: &mut Option<TimeDifference>, found: TimeDifference) {
    let Some(known) = known else {
        *known = Some(found);
        return;
    };
    if known.times == found.times {
        known.least = known.least.max(found.least);
        known.most = [known.most, found.most].into_iter().flatten().min();
    }
}

/// The bounds that a condition sets on the difference of a left and a right time.
fn compared(
    part: &Expr,
    left: &Relation,
    right: &Relation,
) -> Result<Option<TimeDifference>, Refusal> {
    match part {
        Expr::BinaryExpr(binary) => difference(&binary.left, binary.op, &binary.right, left, right),
        Expr::Between(between) if !between.negated => {
            let low = difference(&between.expr, Operator::GtEq, &between.low, left, right)?;
            let high = difference(&between.expr, Operator::LtEq, &between.high, left, right)?;
            let (Some(low), Some(high)) = (low, high) else { return Ok(None) };
            let mut known = Some(low);
            merge(&mut known, high);
            Ok(known)
        }
        _ => Ok(None),
    }
}

/// The bounds that `a op b` sets, where one is a time of the left side and the other one of the
/// right.
fn difference(
    a: &Expr,
    op: Operator,
    b: &Expr,
    left: &Relation,
    right: &Relation,
) -> Result<Option<TimeDifference>, Refusal> {
    let of = |expr: &Expr, side: &Relation| -> Result<Option<(Expr, i64)>, Refusal> {
        if side.names_all(expr) { Ok(moment(&side.rewrite(expr)?, side)) } else { Ok(None) }
    };
    let (l, op, r) = match (of(a, left)?, of(b, right)?) {
        (Some(l), Some(r)) => (l, op, r),
        _ => match (of(b, left)?, of(a, right)?, op.swap()) {
            (Some(l), Some(r), Some(op)) => (l, op, r),
            _ => return Ok(None),
        },
    };
    // l + ahead op r + back says that l - r op back - ahead.
    let ((l, ahead), (r, back)) = (l, r);
    let apart = back.saturating_sub(ahead);
    let tick = tick_of(&l, left).unwrap_or(1);
    let (least, most) = match op {
        Operator::GtEq => (Some(apart), None),
        Operator::Gt => (Some(apart.saturating_add(tick)), None),
        Operator::LtEq => (None, Some(apart)),
        Operator::Lt => (None, Some(apart.saturating_sub(tick))),
        Operator::Eq => (Some(apart), Some(apart)),
        _ => return Ok(None),
    };
    Ok(Some(TimeDifference { times: [l, r], least, most }))
}

fn tick_of(time: &Expr, of: &Relation) -> Option<i64> {
    match time.get_type(&of.scan).ok()? {
        DataType::Timestamp(unit, _) => Some(tick_ns(unit)),
        _ => None,
    }
}

/// A time of which watermarks speak, and nanoseconds that are added to it.
fn moment(expr: &Expr, of: &Relation) -> Option<(Expr, i64)> {
    if of.times.contains(expr) {
        return Some((expr.clone(), 0));
    }
    let Expr::BinaryExpr(binary) = expr else { return None };
    let (time, length, sign) = match (binary.op, &*binary.left, &*binary.right) {
        (Operator::Plus, time, Expr::Literal(length, _)) => (time, length, 1),
        (Operator::Plus, Expr::Literal(length, _), time) => (time, length, 1),
        (Operator::Minus, time, Expr::Literal(length, _)) => (time, length, -1),
        _ => return None,
    };
    let (time, before) = moment(time, of)?;
    Some((time, before.checked_add(length_ns(length)?.checked_mul(sign)?)?))
}

/// The length of an interval; months have none.
pub(crate) fn length_ns(value: &ScalarValue) -> Option<i64> {
    const DAY_NS: i64 = 86_400_000_000_000;
    match value {
        ScalarValue::IntervalMonthDayNano(Some(length)) if length.months == 0 => {
            i64::from(length.days).checked_mul(DAY_NS)?.checked_add(length.nanoseconds)
        }
        ScalarValue::IntervalDayTime(Some(length)) => {
            let days = i64::from(length.days).checked_mul(DAY_NS)?;
            days.checked_add(i64::from(length.milliseconds) * 1_000_000)
        }
        ScalarValue::DurationSecond(Some(length)) => length.checked_mul(1_000_000_000),
        ScalarValue::DurationMillisecond(Some(length)) => length.checked_mul(1_000_000),
        ScalarValue::DurationMicrosecond(Some(length)) => length.checked_mul(1_000),
        ScalarValue::DurationNanosecond(Some(length)) => Some(*length),
        _ => None,
    }
}
