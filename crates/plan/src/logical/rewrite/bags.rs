//! `EXCEPT ALL` and `INTERSECT ALL` count how often a row is there.
//!
//! DataFusion keeps or drops all rows that are equal. Rows are numbered among their equals on both
//! sides, and the number has to be equal too: of `m` rows on the left and `n` on the right,
//! `INTERSECT ALL` keeps those that have a number up to `n`, and `EXCEPT ALL` the others.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder};

/// The number of a row among its equals.
const NUMBER: &str = "__number_among_equals";

/// Numbers the rows of all bags of a plan.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) if is_of_bags(&join) => counted(join).map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// Whether this is what DataFusion makes of `EXCEPT ALL` or `INTERSECT ALL`. Without `ALL` its left
/// side is distinct, and of a left side that is distinct by itself no row is there twice.
fn is_of_bags(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && !matches!(*join.left, LogicalPlan::Distinct(_))
        && !join.left.schema().fields().iter().any(|field| field.name() == NUMBER)
}

fn counted(join: Join) -> Result<LogicalPlan> {
    let columns = join.left.schema().columns();
    let mut on: (Vec<Column>, Vec<Column>) = (vec![], vec![]);
    for (left, right) in &join.on {
        let (Expr::Column(left), Expr::Column(right)) = (left, right) else {
            return Ok(LogicalPlan::Join(join));
        };
        on.0.push(left.clone());
        on.1.push(right.clone());
    }
    on.0.push(Column::new_unqualified(NUMBER));
    on.1.push(Column::new_unqualified(NUMBER));
    LogicalPlanBuilder::from(numbered(&join.left)?)
        .join_detailed(numbered(&join.right)?, join.join_type, on, None, join.null_equality)?
        .project(columns.into_iter().map(Expr::Column))?
        .build()
}

/// The same rows, each with its number among its equals.
fn numbered(plan: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let columns = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let number = row_number().partition_by(columns).build()?.alias(NUMBER);
    LogicalPlanBuilder::from(plan.as_ref().clone()).window([number])?.build()
}
