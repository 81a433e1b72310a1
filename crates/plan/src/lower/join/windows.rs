//! A join of windows: the rows of each window of the left side with those of the same window of
//! the right side.
//!
//! The ends of both windows must be equal. A row is kept until the watermark passes the end of its
//! window, so a join that compares starts beside ends keeps nothing more.

use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use dataflow::keyed::{JoinKind, JoinSide, WindowJoin};
use datafusion::common::Column;
use datafusion::logical_expr::{self as logical, Expr, when};

use crate::expr::own::own;
use crate::logical::windows::{Bound, BoundColumn, RowWindows, ends_meet};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join::{JoinSpec, On, Places, join_spec, met};
use crate::lower::relation::{LowerError, Relation};
use crate::lower::window_bounds::{AttachedWindow, granularity, last_tick_of, window_time};

/// The equalities of a window join.
pub(super) struct Conditions {
    keys: On,
    /// The window, left and right.
    windows: [usize; 2],
    /// Its end, left and right.
    ends: [Expr; 2],
}

/// Lowers a window join; `windows` are those of its rows.
pub(super) fn join_windows(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    kind: JoinKind,
    (relations, windows): ([Relation; 2], RowWindows),
    conditions: Conditions,
    filter: Option<&Expr>,
) -> Result<Relation, LowerError> {
    let Conditions { keys, windows: of, ends: [left, right] } = conditions;
    let call = left.clone();
    let times = [window_time(cx, &relations[0], of[0])?, window_time(cx, &relations[1], of[1])?];
    let [left_time, right_time] = times;
    let at = [(left, left_time), (right, right_time)];
    let spec = join_spec(cx, job, kind, &relations, keys, at, filter)?;
    let side = |(places, schema): &(Places, SchemaRef)| JoinSide {
        schema: schema.clone(),
        keys: places.keys.clone(),
        window_end: places.at,
    };
    let attached = attached(kind, &relations, of, &spec);
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
    relation.windows = windows;
    relation.attach(attached);
    Ok(relation)
}

/// Separates the bounds of windows from the other equalities of a join, which are `on` over the
/// columns of both bases; `None` if the windows of joined rows need not end together.
pub(super) fn conditions(
    join: &logical::Join,
    left: &Relation,
    right: &Relation,
    on: &On,
) -> Option<Conditions> {
    type Equal = Option<(BoundColumn, BoundColumn)>;
    let bounds = |(l, r): &(Expr, Expr)| left.bound(l).zip(right.bound(r));
    let equal: Vec<Equal> = join.on.iter().map(bounds).collect();
    let meet =
        |(l, r): &&(BoundColumn, BoundColumn)| ends_meet(&left.windows, l, &right.windows, r);
    let first = |bound: Bound| equal.iter().flatten().filter(meet).find(|(l, _)| l.bound == bound);
    let (l, r) = Bound::TELLING.into_iter().find_map(first)?;
    let windows = [l.window, r.window];
    let grid = left.windows.grid(l.window);
    let same_grid = grid.is_some() && grid == right.windows.grid(r.window);
    // These follow from equal ends; of a row that may have no window they are asked too.
    let follows = |(l, r): &(BoundColumn, BoundColumn)| {
        let of_window = [l.window, r.window] == windows && l.bound == r.bound;
        of_window && l.is_total() && r.is_total() && (l.bound != Bound::Start || same_grid)
    };
    let keys = on.iter().zip(&equal).filter(|(_, of)| !of.as_ref().is_some_and(follows));
    let keys = keys.map(|(pair, _)| pair.clone()).collect();
    let ends = [left.end_of(l.window)?, right.end_of(r.window)?];
    Some(Conditions { keys, windows, ends })
}

/// The window of the rows behind a window join: that of the side whose rows are always there, or
/// of both where either may be missing.
fn attached(
    kind: JoinKind,
    relations: &[Relation; 2],
    of: [usize; 2],
    spec: &JoinSpec,
) -> Option<AttachedWindow> {
    let end = |side: usize| -> &Field {
        let first = side * spec.sides[0].1.fields().len();
        spec.both.field(first + spec.sides[side].0.at)
    };
    let of_side = |side: usize| {
        let columns: &[(Column, Expr)] = &spec.columns[side];
        relations[side].attached_behind(of[side], columns, Some(end(side)))
    };
    match kind {
        JoinKind::Full => {
            let [left, right] = [own(end(0).name()), own(end(1).name())];
            let either = when(left.clone().is_not_null(), left).otherwise(right).ok()?;
            let last = last_tick_of(either, end(0).data_type())?;
            Some(AttachedWindow { window: of[0], last })
        }
        JoinKind::RightSemi | JoinKind::RightAnti => of_side(1),
        // The windows of both sides are one, which is known by its place on the left.
        JoinKind::Right => Some(AttachedWindow { window: of[0], ..of_side(1)? }),
        JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => of_side(0),
    }
}
