//! Constants that do not fit are an error.
//!
//! DataFusion computes constants while it optimizes, and lets them wrap. What rows are computed
//! with is checked when it runs ([`crate::expr::checked`]); what no row is in is checked here,
//! before.

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan};

use crate::expr::checked;

/// Computes the arithmetic of constants.
///
/// # Errors
/// A result that does not fit its type.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                Ok(match constant(part)? {
                    Some(_) => TreeNodeRecursion::Jump,
                    None => TreeNodeRecursion::Continue,
                })
            })
        })
    })
    .map(drop)
}

/// The value of an expression of constants and arithmetic.
fn constant(expr: &Expr) -> Result<Option<ScalarValue>> {
    match expr {
        Expr::Literal(value, _) => Ok(Some(value.clone())),
        Expr::Alias(alias) => constant(&alias.expr),
        Expr::Cast(cast) => {
            let value = constant(&cast.expr)?;
            // A value that cannot be cast is an error when it is computed.
            Ok(value.and_then(|value| value.cast_to(cast.field.data_type()).ok()))
        }
        Expr::Negative(inner) => match constant(inner)? {
            Some(value) => checked::negative(&value).map(Some),
            None => Ok(None),
        },
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            match (constant(left)?, constant(right)?) {
                (Some(left), Some(right)) => checked::constant(&left, *op, &right),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}
