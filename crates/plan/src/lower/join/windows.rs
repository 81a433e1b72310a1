//! A join of windows: the rows of each window of the left side with those of the same window of
//! the right side.
//!
//! The ends of both windows must be equal. A row is kept until the watermark passes the end of its
//! window, so a join that compares starts beside ends keeps nothing more.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::keyed::{JoinKind, JoinSide, WindowJoin};
use datafusion::logical_expr::Expr;

use crate::logical::windows::Bound;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join::{JoinSpec, On, Places, join_spec, met};
use crate::lower::relation::{Bounds, LowerError, Relation};
use crate::lower::window_bounds::{bound_of, bounds_behind, granularity, grid_of, window_time};

/// The equalities of a window join.
pub(super) struct Conditions {
    keys: On,
    /// The end of the window, left and right.
    ends: (Expr, Expr),
    /// Whether the windows of joined rows have equal starts too.
    same_start: bool,
}

/// Lowers a window join.
pub(super) fn join_windows(
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
    let spec = join_spec(cx, job, kind, &relations, keys, at, filter)?;
    let side = |(places, schema): &(Places, SchemaRef)| JoinSide {
        schema: schema.clone(),
        keys: places.keys.clone(),
        window_end: places.at,
    };
    let behind = window_behind(kind, &relations, &spec, same_start);
    let JoinSpec { sides: [left, right], on, schema, both, .. } = &spec;
    let operator = WindowJoin {
        sides: [side(left), side(right)],
        kind,
        on: on.clone(),
        schema: schema.clone(),
        both: both.clone(),
    };
    let granularity = granularity(&call, &left.1, left.0.at);
    let mut relation = met(cx, job, spec, Arc::new(operator), granularity, 0)?;
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

/// Separates the bounds of windows from the other equalities of a join; `None` if the join does not
/// ask for equal ends.
pub(super) fn conditions(left: &Relation, right: &Relation, on: &On) -> Option<Conditions> {
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

/// The window of the rows behind a window join: that of the side whose rows are always there, or
/// of both where either may be missing.
fn window_behind(
    kind: JoinKind,
    relations: &[Relation; 2],
    spec: &JoinSpec,
    same_start: bool,
) -> Option<Bounds> {
    let of_side = |side: usize| {
        let first = side * spec.sides[0].1.fields().len();
        let end = spec.both.field(first + spec.sides[side].0.at);
        bounds_behind(&relations[side], &spec.columns[side], Some(end))
    };
    let side = match kind {
        JoinKind::Full => {
            let end = spec.both.field(spec.sides[0].0.at);
            return Bounds::of_either(of_side(0)?, of_side(1)?, end.data_type(), same_start);
        }
        JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti => 1,
        JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => 0,
    };
    let mut bounds = of_side(side)?;
    // The start of the other side's window is this one's only if the join compares starts.
    let reads_start = bounds.start != bounds.end;
    if kind == JoinKind::Inner
        && same_start
        && !reads_start
        && let Some(other) = bounds_behind(&relations[1], &spec.columns[1], None)
    {
        bounds.start = other.start;
    }
    Some(bounds)
}
