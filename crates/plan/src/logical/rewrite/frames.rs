//! Frames of rows that are ordered by what has no distance: TIME, BYTES, ROW and others.
//!
//! `RANGE` is the frame where none is written, and DataFusion takes it for numbers, texts, dates
//! and times only. Between bounds without a distance it is the same as `GROUPS`, which takes all;
//! with a distance there is no meaning, and it is refused.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, WindowFrameBound, WindowFrameUnits,
};

use super::refused;
use crate::text::types::sql_name;

/// Writes such frames as `GROUPS`.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::Window(window) = &node else { return Ok(Transformed::no(node)) };
        let (scope, names) = (window.input.schema().clone(), NamePreserver::new(&node));
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let framed = expr.transform_up(|part| {
                let Expr::WindowFunction(mut call) = part else { return Ok(Transformed::no(part)) };
                let frame = &mut call.params.window_frame;
                let by = call.params.order_by.first().map(|order| order.expr.get_type(&scope));
                let Some(by) = by.transpose()?.filter(|_| frame.units == WindowFrameUnits::Range)
                else {
                    return Ok(Transformed::no(Expr::WindowFunction(call)));
                };
                let distance = is_distance(&frame.start_bound) || is_distance(&frame.end_bound);
                if is_taken(&by) && !(distance && has_no_distance(&by)) {
                    return Ok(Transformed::no(Expr::WindowFunction(call)));
                }
                if distance {
                    let message =
                        format!("rows that are ordered by {} have no distance", sql_name(&by));
                    return Err(refused(&["RANGE"], &message, "write ROWS or GROUPS"));
                }
                frame.units = WindowFrameUnits::Groups;
                Ok(Transformed::yes(Expr::WindowFunction(call)))
            })?;
            Ok(framed.update_data(|expr| name.restore(expr)))
        })
    })?;
    Ok(rewritten.data)
}

/// Whether DataFusion takes such a type for one with distances, though it has none.
fn has_no_distance(of: &DataType) -> bool {
    of.is_string() || *of == DataType::Boolean
}

/// Whether DataFusion takes RANGE over an order by this type.
fn is_taken(of: &DataType) -> bool {
    of.is_numeric()
        || of.is_null()
        || of.is_string()
        || matches!(
            of,
            DataType::Boolean | DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
        )
}

fn is_distance(bound: &WindowFrameBound) -> bool {
    !matches!(bound, WindowFrameBound::CurrentRow) && !bound.is_unbounded()
}
