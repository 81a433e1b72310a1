//! A day is not compared with a number.
//!
//! DataFusion takes an integer beside a DATE for days since 1970, so that `ON a.id = b.day` joins
//! what has nothing in common. With other times it knows no comparison, and so it is with days
//! here.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Diagnostic, Span};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{InList, InSubquery};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, Expr, ExprSchemable, LogicalPlan, Operator, Union,
};

use super::conditions::first_column;
use super::refused;
use crate::expr::equality::compares;
use crate::text::types::sql_name;

const HINT: &str = "CAST one of both";

/// Checks all comparisons of a plan, and the columns that a UNION puts together.
///
/// # Errors
/// The first of a day and a number.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        match node {
            LogicalPlan::Join(join) => {
                let mut keys = join.on.iter();
                keys.try_for_each(|(left, right)| compared(left, Operator::Eq, right, &scope))?;
            }
            LogicalPlan::Union(union) => united(union)?,
            _ => {}
        }
        node.apply_expressions(|expr| {
            expression(expr, &scope).map(|()| TreeNodeRecursion::Continue)
        })
    })
    .map(drop)
}

/// Checks the comparisons within an expression.
///
/// # Errors
/// As [`check`].
pub(crate) fn expression(expr: &Expr, scope: &DFSchema) -> Result<()> {
    expr.apply(|part| {
        match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
                compared(left, *op, right, scope)?;
            }
            Expr::Between(Between { expr, low, high, .. }) => {
                compared(expr, Operator::GtEq, low, scope)?;
                compared(expr, Operator::LtEq, high, scope)?;
            }
            Expr::InList(InList { expr, list, .. }) => {
                list.iter().try_for_each(|one| compared(expr, Operator::Eq, one, scope))?;
            }
            Expr::InSubquery(InSubquery { expr, subquery, .. }) => {
                let fields = subquery.subquery.schema().fields();
                if let ([of], Ok(own)) = (&fields[..], expr.get_type(scope)) {
                    differ(&own, Operator::Eq, of.data_type(), || first_column(expr))?;
                }
            }
            Expr::Case(Case { expr: Some(base), when_then_expr, .. }) => {
                let mut whens = when_then_expr.iter();
                whens.try_for_each(|(when, _)| compared(base, Operator::Eq, when, scope))?;
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map(drop)
}

fn compared(left: &Expr, op: Operator, right: &Expr, scope: &DFSchema) -> Result<()> {
    // Of what has no type, the planner tells.
    let (Ok(of_left), Ok(of_right)) = (left.get_type(scope), right.get_type(scope)) else {
        return Ok(());
    };
    differ(&of_left, op, &of_right, || first_column(left).or_else(|| first_column(right)))
}

fn differ(
    left: &DataType,
    op: Operator,
    right: &DataType,
    place: impl FnOnce() -> Option<Span>,
) -> Result<()> {
    if !are_apart(left, right) {
        return Ok(());
    }
    let message = format!("there is no comparison {} {op} {}", sql_name(left), sql_name(right));
    let error = refused(&["WHERE", "ON", "SELECT"], &message, HINT);
    Err(match place() {
        Some(span) => error.with_diagnostic(Diagnostic::new_error(message, Some(span))),
        None => error,
    })
}

/// The columns of a UNION, before they have one type.
fn united(union: &Union) -> Result<()> {
    let [first, others @ ..] = &union.inputs[..] else { return Ok(()) };
    for other in others {
        let fields = first.schema().fields().iter().zip(other.schema().fields());
        for (at, (one, other)) in fields.enumerate() {
            let (one, other) = (one.data_type(), other.data_type());
            if are_apart(one, other) {
                let (one, other) = (sql_name(one), sql_name(other));
                let message = format!("column {} of a UNION is {one} and {other}", at + 1);
                return Err(refused(&["UNION"], &message, HINT));
            }
        }
    }
    Ok(())
}

fn are_apart(one: &DataType, other: &DataType) -> bool {
    let is_day = |of: &DataType| matches!(of, DataType::Date32 | DataType::Date64);
    is_day(one) && other.is_numeric() || one.is_numeric() && is_day(other)
}
