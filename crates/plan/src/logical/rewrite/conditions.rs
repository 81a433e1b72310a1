//! A condition is BOOLEAN, as in Flink.
//!
//! DataFusion asks that of WHERE, HAVING and ON, and takes any number but 0 for true in CASE WHEN
//! and FILTER (WHERE …). Here it is one rule for all of them, and for the operands of AND, OR, NOT
//! and IS TRUE.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Diagnostic, Span};
use datafusion::error::Result;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Case, Expr, ExprSchemable, LogicalPlan, Operator};

use super::refused;
use crate::text::types::sql_name;

/// Checks all conditions of a plan.
///
/// # Errors
/// The first that is not BOOLEAN.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expression(expr, &scope).map(|()| TreeNodeRecursion::Continue)
        })
    })
    .map(drop)
}

/// Checks the conditions within an expression.
///
/// # Errors
/// As [`check`].
pub(crate) fn expression(expr: &Expr, scope: &DFSchema) -> Result<()> {
    expr.apply(|part| {
        let (words, conditions): (&'static [&'static str], Vec<&Expr>) = match part {
            Expr::Case(Case { expr: None, when_then_expr, .. }) => {
                (&["WHEN"], when_then_expr.iter().map(|(when, _)| when.as_ref()).collect())
            }
            Expr::AggregateFunction(call) => {
                (&["FILTER"], call.params.filter.iter().map(AsRef::as_ref).collect())
            }
            Expr::WindowFunction(call) => {
                (&["FILTER"], call.params.filter.iter().map(AsRef::as_ref).collect())
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                (&["AND"], vec![left, right])
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                (&["OR"], vec![left, right])
            }
            Expr::Not(inner) => (&["NOT"], vec![inner]),
            Expr::IsTrue(inner)
            | Expr::IsNotTrue(inner)
            | Expr::IsFalse(inner)
            | Expr::IsNotFalse(inner)
            | Expr::IsUnknown(inner)
            | Expr::IsNotUnknown(inner) => (&["IS"], vec![inner]),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        conditions.into_iter().try_for_each(|condition| boolean(condition, scope, words))?;
        Ok(TreeNodeRecursion::Continue)
    })
    .map(drop)
}

fn boolean(condition: &Expr, scope: &DFSchema, words: &'static [&'static str]) -> Result<()> {
    // Of what has no type, the planner tells.
    let Ok(of) = condition.get_type(scope) else { return Ok(()) };
    if of.is_null() || of == arrow::datatypes::DataType::Boolean {
        return Ok(());
    }
    let message = format!("a condition is BOOLEAN, and this is {}", sql_name(&of));
    let hint = if of.is_numeric() { "compare it: … <> 0" } else { "compare it with something" };
    let error = refused(words, &message, hint);
    Err(match first_column(condition) {
        Some(span) => error.with_diagnostic(Diagnostic::new_error(message, Some(span))),
        None => error,
    })
}

/// Where the first column of an expression is written.
pub(super) fn first_column(expr: &Expr) -> Option<Span> {
    let mut first = None;
    // The visitor has no failures of its own.
    let _ = expr.apply(|part| {
        first = part.spans().and_then(|spans| spans.first());
        Ok(if first.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    first
}
