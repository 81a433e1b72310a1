//! The columns of a relation that are bounds of the windows that its rows are in.
//!
//! This is an analysis of the plan, as one of functional dependencies is: what holds of a node
//! follows from the node and from what holds of its inputs, and from nothing else. It does not ask
//! how a node is lowered, nor which columns are read.
//!
//! | node | windows of its rows |
//! |---|---|
//! | a stream as a table | those that the stream names |
//! | `TUMBLE`, `HOP`, `CUMULATE`, `SESSION` | its input's, and one more |
//! | filter, projection, `OVER`, ranking, alias | its input's |
//! | grouping | its input's, of which group expressions are bounds |
//! | join | those of both sides; windows whose ends must be equal are one |
//! | `UNION ALL` | the one of which each part has the same bounds in the same columns |
//!
//! Behind an outer join a bound of the side that may be missing is NULL for some rows. So a bound
//! knows which sides of which joins it needs ([`BoundColumn::needs`]), and `coalesce` of several
//! has a value if one of them is there whichever sides are.

use std::collections::BTreeSet;

use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{self as logical, Expr, GroupingSet, UserDefinedLogicalNodeCore};

use super::{Bound, Lengths, WindowAssign, WindowShape};
use crate::catalog::ScannedTable;

/// The windows of a node's rows, and which of its columns are bounds of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RowWindows {
    /// A row is in one of each. Those assigned later stand behind the others.
    windows: Vec<RowWindow>,
    columns: Vec<(Column, BoundColumn)>,
    /// How many outer joins there are beneath.
    joins: usize,
}

/// A window of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowWindow {
    shape: Option<WindowShape>,
    /// Windows of one grid with the same end are the same.
    grid: Option<Grid>,
}

/// How windows follow one another, where that does not depend on rows.
pub(crate) type Grid = (WindowShape, Lengths);

/// A column that is a bound of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundColumn {
    /// The number of the window among those of the row.
    pub(crate) window: usize,
    pub(crate) bound: Bound,
    /// The sides of outer joins that must be there, else it is NULL.
    needs: BTreeSet<Side>,
}

/// A side of an outer join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    join: usize,
    of: SideOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SideOf {
    /// The left or right one of a full join, of which the other is there if this is not.
    Full { right: bool },
    /// The one that a row need not have.
    Optional,
}

impl BoundColumn {
    /// Whether every row has it.
    pub(crate) fn is_total(&self) -> bool {
        self.needs.is_empty()
    }
}

impl RowWindows {
    /// The bound of a window that an expression over the node's columns is, if it is one.
    pub(crate) fn bound(&self, expr: &Expr) -> Option<BoundColumn> {
        match expr {
            Expr::Column(column) => {
                let (_, bound) = self.columns.iter().find(|(known, _)| known == column)?;
                Some(bound.clone())
            }
            Expr::Alias(alias) => self.bound(&alias.expr),
            _ => {
                let parts: Option<Vec<_>> =
                    first_not_null(expr)?.into_iter().map(|part| self.bound(part)).collect();
                either(parts?)
            }
        }
    }

    /// The grid of a window, if it has one.
    pub(crate) fn grid(&self, window: usize) -> Option<Grid> {
        self.windows.get(window)?.grid
    }

    /// The shape of a window, where it is known.
    pub(crate) fn shape(&self, window: usize) -> Option<WindowShape> {
        self.windows.get(window)?.shape
    }

    /// Whether a bound tells a window from those that end at another time.
    pub(crate) fn tells(&self, of: &BoundColumn) -> bool {
        of.is_total()
            && match of.bound {
                Bound::End | Bound::Time => true,
                Bound::Start => self.size_by_start(of.window).is_some(),
            }
    }

    /// How long the windows are, nanoseconds, if those that begin together are equally long.
    pub(crate) fn size_by_start(&self, window: usize) -> Option<i64> {
        let (shape, lengths) = self.grid(window)?;
        matches!(shape, WindowShape::Tumble | WindowShape::Hop).then_some(lengths.size_ns)
    }

    /// The columns that are bounds of a window.
    pub(crate) fn columns(
        &self,
        window: usize,
    ) -> impl Iterator<Item = (&Column, &BoundColumn)> + use<'_> {
        let columns = self.columns.iter().map(|(column, of)| (column, of));
        columns.filter(move |(_, of)| of.window == window)
    }

    /// The rows of a table, which may be a stream whose rows are in windows.
    pub(crate) fn scanned(scan: &logical::TableScan) -> Self {
        let table = scan.source.downcast_ref::<ScannedTable>().map(|source| &source.table);
        let Some(stream) = table.and_then(|table| table.stream.as_ref()) else {
            return Self::default();
        };
        let Some(window) = stream.window else { return Self::default() };
        let bounds =
            [(Bound::End, window.end), (Bound::Start, window.start), (Bound::Time, window.time)];
        let bound = |column: &Column| {
            let is = |(_, at): &&(Bound, usize)| stream.schema.field(*at).name() == &column.name;
            bounds.iter().find(is).map(|(bound, _)| *bound)
        };
        let columns = scan.projected_schema.columns().into_iter();
        let columns = columns.filter_map(|column| {
            let bound = bound(&column)?;
            Some((column, BoundColumn { window: 0, bound, needs: BTreeSet::new() }))
        });
        let window = RowWindow { shape: None, grid: None };
        Self { windows: vec![window], columns: columns.collect(), joins: 0 }
    }

    /// The rows of `self` in windows.
    pub(crate) fn assigned(mut self, assign: &WindowAssign) -> Self {
        let (shape, lengths) = (assign.of.shape, assign.of.lengths);
        let grid = (shape != WindowShape::Session).then_some((shape, lengths));
        let window = self.windows.len();
        self.windows.push(RowWindow { shape: Some(shape), grid });
        let all = assign.schema().columns();
        let bounds = all.into_iter().rev().take(Bound::ALL.len()).rev().zip(Bound::ALL);
        let of = |bound| BoundColumn { window, bound, needs: BTreeSet::new() };
        self.columns.extend(bounds.map(|(column, bound)| (column, of(bound))));
        self
    }

    /// The expressions of a projection.
    pub(crate) fn projected(&self, projection: &logical::Projection) -> Self {
        self.selected(projection.schema.columns(), &projection.expr)
    }

    /// The same columns under the names of an alias.
    pub(crate) fn renamed(&self, alias: &logical::SubqueryAlias) -> Self {
        let before: Vec<Expr> =
            alias.input.schema().columns().into_iter().map(Expr::Column).collect();
        self.selected(alias.schema.columns(), &before)
    }

    /// The groups of a grouping, which have the values of the group expressions.
    pub(crate) fn grouped(&self, aggregate: &logical::Aggregate) -> Self {
        match &aggregate.group_expr[..] {
            [Expr::GroupingSet(sets)] => {
                // Of a key that some set lacks there is NULL.
                let keys = sets.distinct_expr();
                let all = keys.iter().zip(aggregate.schema.columns());
                let (exprs, columns): (Vec<Expr>, Vec<Column>) = all
                    .filter(|(key, _)| in_all_sets(sets, key))
                    .map(|(key, column)| ((*key).clone(), column))
                    .unzip();
                self.selected(columns, &exprs)
            }
            groups => self.selected(aggregate.schema.columns(), groups),
        }
    }

    /// Expressions over the node's columns as `columns`.
    pub(crate) fn selected(&self, columns: Vec<Column>, exprs: &[Expr]) -> Self {
        let columns = columns.into_iter().zip(exprs);
        let columns = columns.filter_map(|(column, expr)| Some((column, self.bound(expr)?)));
        Self { windows: self.windows.clone(), columns: columns.collect(), joins: self.joins }
    }

    /// The rows of a join.
    pub(crate) fn joined(join: &logical::Join, left: &Self, right: &Self) -> Self {
        let [left_needed, right_needed] = match join.join_type {
            JoinType::Inner => [None, None],
            JoinType::Left => [None, Some(SideOf::Optional)],
            JoinType::Right => [Some(SideOf::Optional), None],
            JoinType::Full => [false, true].map(|right| Some(SideOf::Full { right })),
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => return left.clone(),
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                return right.clone();
            }
        };
        let number = left.joins + right.joins;
        let needed = |of: Option<SideOf>| of.map(|of| Side { join: number, of });
        let mut joined = Self { joins: number + 1, ..left.clone() };
        joined.columns.iter_mut().for_each(|(_, of)| of.needs.extend(needed(left_needed)));
        let met = met(join, left, right);
        // The windows of the right side among all.
        let mut places = vec![];
        for (at, window) in right.windows.iter().enumerate() {
            let met = met.iter().find(|met| met.right == at);
            places.push(met.map_or(joined.windows.len(), |met| met.left));
            match met {
                None => joined.windows.push(*window),
                Some(met) if !met.same_start => {
                    joined.begin_apart(met.left, *window, [left_needed, right_needed]);
                }
                Some(_) => {}
            }
        }
        let keeps_start = left_needed.is_some() && right_needed.is_none();
        for (column, of) in &right.columns {
            let apart = met.iter().any(|met| met.right == of.window && !met.same_start);
            if apart && of.bound == Bound::Start && !keeps_start {
                continue;
            }
            let below = of.needs.iter().map(|side| Side { join: side.join + left.joins, ..*side });
            let needs = below.chain(needed(right_needed)).collect();
            let of = BoundColumn { window: places[of.window], bound: of.bound, needs };
            joined.columns.push((column.clone(), of));
        }
        joined
    }

    /// Windows of the two sides of a join end together, but begin apart: rows are in those of the
    /// side that is always there.
    fn begin_apart(&mut self, window: usize, right: RowWindow, needed: [Option<SideOf>; 2]) {
        let [left_needed, right_needed] = needed;
        if left_needed.is_none() {
            return;
        }
        let none = RowWindow { shape: None, grid: None };
        self.windows[window] = if right_needed.is_none() { right } else { none };
        self.columns.retain(|(_, of)| (of.window, of.bound) != (window, Bound::Start));
    }

    /// The rows of all parts of a union.
    pub(crate) fn united(union: &logical::Union, parts: &[&Self]) -> Self {
        let at = |part: usize, column: usize| {
            let (qualifier, field) = union.inputs[part].schema().qualified_field(column);
            let column = Expr::Column(Column::from((qualifier, field)));
            parts[part].bound(&column).filter(BoundColumn::is_total)
        };
        // The same bound everywhere, and of which window of each part.
        let everywhere = |column: usize| -> Option<(Bound, Vec<usize>)> {
            let of: Option<Vec<BoundColumn>> =
                (0..parts.len()).map(|part| at(part, column)).collect();
            let of = of?;
            let bound = of.first()?.bound;
            let is_same = of.iter().all(|other| other.bound == bound);
            is_same.then(|| (bound, of.into_iter().map(|of| of.window).collect()))
        };
        let mut bounds: Vec<(usize, (Bound, Vec<usize>))> =
            (0..union.schema.fields().len()).filter_map(|at| Some((at, everywhere(at)?))).collect();
        // The window is that of the first column that tells one.
        let first = Bound::TELLING.into_iter().find_map(|bound| {
            let (_, (_, of)) = bounds.iter().find(|(_, (of, _))| *of == bound)?;
            Some(of.clone())
        });
        let Some(of) = first else { return Self::default() };
        bounds.retain(|(_, (_, windows))| *windows == of);
        let mut grids = parts.iter().zip(&of).map(|(part, &window)| part.grid(window));
        let first = grids.next().flatten();
        let grid = first.filter(|_| grids.all(|grid| grid == first));
        let window = RowWindow { shape: grid.map(|(shape, _)| shape), grid };
        let names = union.schema.columns();
        let columns = bounds.into_iter().map(|(at, (bound, _))| {
            (names[at].clone(), BoundColumn { window: 0, bound, needs: BTreeSet::new() })
        });
        Self { windows: vec![window], columns: columns.collect(), joins: 0 }
    }
}

/// Windows of the two sides of a join whose ends must be equal.
struct WindowPair {
    left: usize,
    right: usize,
    same_start: bool,
}

/// The windows of the two sides of a join that are the same by its equalities.
fn met(join: &logical::Join, left: &RowWindows, right: &RowWindows) -> Vec<WindowPair> {
    let equal: Vec<(BoundColumn, BoundColumn)> =
        join.on.iter().filter_map(|(l, r)| Some((left.bound(l)?, right.bound(r)?))).collect();
    let mut met: Vec<WindowPair> = vec![];
    for (l, r) in &equal {
        let is_new = met.iter().all(|met| met.left != l.window && met.right != r.window);
        if !is_new || !ends_meet(left, l, right, r) {
            continue;
        }
        let starts = |(of, other): &(BoundColumn, BoundColumn)| {
            let same = (of.window, other.window) == (l.window, r.window);
            same && (of.bound, other.bound) == (Bound::Start, Bound::Start)
        };
        let grid = left.grid(l.window);
        let same_grid = grid.is_some() && grid == right.grid(r.window);
        let same_start = same_grid || equal.iter().any(starts);
        met.push(WindowPair { left: l.window, right: r.window, same_start });
    }
    met
}

/// Whether windows end together if these bounds of them are equal.
pub(crate) fn ends_meet(
    left: &RowWindows,
    l: &BoundColumn,
    right: &RowWindows,
    r: &BoundColumn,
) -> bool {
    l.bound == r.bound
        && match l.bound {
            Bound::End | Bound::Time => true,
            Bound::Start => {
                let same_grid = left.grid(l.window) == right.grid(r.window);
                same_grid && left.size_by_start(l.window).is_some()
            }
        }
}

/// Whether each of the grouping sets has a key.
fn in_all_sets(sets: &GroupingSet, key: &Expr) -> bool {
    match sets {
        GroupingSet::GroupingSets(sets) => sets.iter().all(|set| set.contains(key)),
        GroupingSet::Rollup(_) | GroupingSet::Cube(_) => false,
    }
}

/// The expressions of which one is the first that is not NULL, if it is that.
fn first_not_null(expr: &Expr) -> Option<Vec<&Expr>> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == "coalesce" => {
            Some(call.args.iter().collect())
        }
        // The optimizer makes this of it.
        Expr::Case(case) if case.expr.is_none() => {
            let mut parts = vec![];
            for (when, then) in &case.when_then_expr {
                match &**when {
                    Expr::IsNotNull(of) if of == then => parts.push(&**then),
                    _ => return None,
                }
            }
            parts.push(case.else_expr.as_deref()?);
            Some(parts)
        }
        _ => None,
    }
}

/// How many ways for a bound to be there are looked at.
const WAYS_MAX: usize = 64;

/// The first of several columns that is there, if they are the same bound.
fn either(parts: Vec<BoundColumn>) -> Option<BoundColumn> {
    let BoundColumn { window, bound, .. } = *parts.first()?;
    if parts.iter().any(|part| (part.window, part.bound) != (window, bound)) {
        return None;
    }
    // Where one of them needs the left side of a full join and another the right one, one of the
    // two is there.
    let mut ways: Vec<BTreeSet<Side>> = parts.into_iter().map(|part| part.needs).collect();
    let mut at = 0;
    while at < ways.len() && ways.len() < WAYS_MAX {
        for other in 0..at {
            for side in ways[at].clone() {
                let SideOf::Full { right } = side.of else { continue };
                let opposite = Side { of: SideOf::Full { right: !right }, ..side };
                if ways[other].contains(&opposite) {
                    let both = ways[at].iter().chain(&ways[other]);
                    let way = both.filter(|of| **of != side && **of != opposite);
                    let way: BTreeSet<Side> = way.copied().collect();
                    if !ways.contains(&way) {
                        ways.push(way);
                    }
                }
            }
        }
        at += 1;
    }
    let needs = ways.into_iter().min_by_key(BTreeSet::len)?;
    Some(BoundColumn { window, bound, needs })
}

#[cfg(test)]
mod tests;
