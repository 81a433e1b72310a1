//! Sorts whose order is lost: rows of a subquery that is joined, grouped, united or sorted again.
//!
//! SQL gives a subquery no order. DataFusion drops the sort of a table in FROM, and keeps that of a
//! subquery of IN and that of a part of a UNION. One with a LIMIT says which rows there are: it
//! stays.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan};

/// Aggregate functions whose result does not depend on the order of the rows.
const ORDERLESS: [&str; 10] =
    ["count", "sum", "avg", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"];

/// An optimized plan without such sorts.
///
/// # Errors
/// DataFusion's.
pub(crate) fn without_lost(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_down_with_subqueries(|node| {
        if loses_order(&node) { node.map_children(unsorted) } else { Ok(Transformed::no(node)) }
    });
    Ok(rewritten?.data)
}

/// Whether the result of a node does not depend on the order of its rows.
fn loses_order(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Join(_) | LogicalPlan::Union(_) | LogicalPlan::Sort(_) => true,
        LogicalPlan::Distinct(Distinct::All(_)) => true,
        LogicalPlan::Aggregate(aggregate) => aggregate.aggr_expr.iter().all(is_orderless),
        _ => false,
    }
}

fn is_orderless(call: &Expr) -> bool {
    match call {
        Expr::Alias(alias) => is_orderless(&alias.expr),
        Expr::AggregateFunction(call) => ORDERLESS.contains(&call.func.name()),
        _ => false,
    }
}

/// Rows without the sorts that only projections, filters and other such sorts follow.
fn unsorted(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
            let input = unsorted(Arc::unwrap_or_clone(sort.input))?;
            Ok(Transformed::yes(input.data))
        }
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.map_children(unsorted)
        }
        plan => Ok(Transformed::no(plan)),
    }
}
