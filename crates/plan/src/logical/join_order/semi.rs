//! Semi and anti joins above a block of inner joins, as filters of the one relation whose columns
//! they read.
//!
//! `x IN (SELECT …)` drops rows by the columns of one relation. At that relation it drops them
//! before they are joined with others. The result is the same in both places, as inner joins change
//! no value of a row.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};

use super::graph::{is_inside, map_relations, plain};

/// A plan whose semi or anti join filters a relation.
pub(crate) struct FilteredRelation {
    pub(crate) plan: LogicalPlan,
    /// The relation without the join, and with it.
    pub(crate) before: LogicalPlan,
    pub(crate) filtered: LogicalPlan,
}

/// Moves the join at the top of a plan down to the relation of the block whose columns it reads.
/// `None` if it is no semi or anti join, or reads several relations.
pub(crate) fn at_relation(
    plan: &LogicalPlan,
    keeps: &dyn Fn(&LogicalPlan) -> bool,
) -> Option<FilteredRelation> {
    let LogicalPlan::Join(join) = plan else { return None };
    let is_filter = matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti);
    let reads = |expr: &Expr| !expr.is_volatile() && !expr.column_refs().is_empty();
    let filter = join.filter.as_ref();
    if !is_filter || !is_inside(&join.left, keeps) || !filter.into_iter().all(reads) {
        return None;
    }
    let (before, filtered) = below(join.clone(), &join.left, keeps)?;
    let mut found = 0;
    let plan = map_relations(&join.left, keeps, &mut |relation| {
        found += usize::from(*relation == before);
        Ok(if *relation == before { filtered.clone() } else { relation.clone() })
    });
    let plan = plan.ok().filter(|_| found == 1)?;
    Some(FilteredRelation { plan, before, filtered })
}

/// The relation below a node whose columns a join reads, without and with the join.
fn below(
    mut join: Join,
    node: &LogicalPlan,
    keeps: &dyn Fn(&LogicalPlan) -> bool,
) -> Option<(LogicalPlan, LogicalPlan)> {
    if !is_inside(node, keeps) {
        join.left = Arc::new(node.clone());
        let Join { left, right, on, filter, join_type, join_constraint, .. } = join;
        let (nulls, aware) = (join.null_equality, join.null_aware);
        let joined =
            Join::try_new(left, right, on, filter, join_type, join_constraint, nulls, aware);
        return Some((node.clone(), LogicalPlan::Join(joined.ok()?)));
    }
    match node {
        LogicalPlan::Join(inner) => {
            let sides = [&inner.left, &inner.right];
            let has = |side: &&&Arc<LogicalPlan>| {
                let knows = |column: &Column| side.schema().maybe_index_of_column(column).is_some();
                read(&join, node).iter().all(knows)
            };
            below(join.clone(), sides.iter().find(has)?, keeps)
        }
        LogicalPlan::Filter(filter) => below(join, &filter.input, keeps),
        LogicalPlan::SubqueryAlias(alias) => {
            let columns = alias.input.schema().columns();
            below(over(join, node, &columns)?, &alias.input, keeps)
        }
        LogicalPlan::Projection(projection) => {
            let columns: Option<Vec<Column>> =
                projection.expr.iter().map(|expr| plain(expr).cloned()).collect();
            below(over(join, node, &columns?)?, &projection.input, keeps)
        }
        _ => None,
    }
}

/// The columns of a node, which is the left input of a join, that the join reads.
fn read(join: &Join, node: &LogicalPlan) -> Vec<Column> {
    let exprs = join.on.iter().map(|(left, _)| left).chain(&join.filter);
    let columns = exprs.flat_map(|expr| expr.column_refs());
    let is_left = |column: &&Column| node.schema().maybe_index_of_column(column).is_some();
    columns.filter(is_left).cloned().collect()
}

/// A join that reads `columns` in place of the columns of a node. `None` if both inputs have a
/// column of the same name.
fn over(mut join: Join, node: &LogicalPlan, columns: &[Column]) -> Option<Join> {
    let right = join.right.schema().clone();
    let mut is_clear = true;
    let mut replaced = |expr: Expr| {
        let replaced = expr.transform_up(|part| {
            let Expr::Column(column) = part else { return Ok(Transformed::no(part)) };
            let Some(at) = node.schema().maybe_index_of_column(&column) else {
                return Ok(Transformed::no(Expr::Column(column)));
            };
            let Column { relation, name, .. } = columns[at].clone();
            let replaced = Column { relation, name, ..column.clone() };
            let is_right = |column| right.maybe_index_of_column(column).is_some();
            is_clear &= !is_right(&column) && !is_right(&replaced);
            Ok(Transformed::yes(Expr::Column(replaced)))
        });
        replaced.map(|replaced| replaced.data).ok()
    };
    let on = join.on.into_iter().map(|(left, right)| Some((replaced(left)?, right)));
    join.on = on.collect::<Option<Vec<_>>>()?;
    if let Some(filter) = join.filter.take() {
        join.filter = Some(replaced(filter)?);
    }
    is_clear.then_some(join)
}
