//! Values of expressions as SQL has them, for messages and plans.

use arrow::datatypes::{DataType, IntervalMonthDayNano};
use dataflow::calendar;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;

use crate::expr::equality::is_ordered;
use crate::text::types::sql_name;

/// An expression for a reader of a plan.
pub(crate) fn shown_expr(expr: &Expr) -> String {
    let shown = expr.clone().transform_up(|part| match part {
        Expr::Literal(value, _) => Ok(Transformed::yes(as_name(&value))),
        Expr::ScalarFunction(mut call) if is_ordered(&call) && !call.args.is_empty() => {
            Ok(Transformed::yes(call.args.swap_remove(0)))
        }
        part => Ok(Transformed::no(part)),
    });
    // The closure has no failures of its own.
    shown.map_or_else(|_| expr.to_string(), |shown| shown.data.human_display().to_string())
}

/// A value as a name that needs no quotes: DataFusion shows it as it is.
pub(crate) fn as_name(value: &ScalarValue) -> Expr {
    Expr::Column(Column::new_unqualified(text_of(value)))
}

/// A value as SQL has it.
fn text_of(value: &ScalarValue) -> String {
    if let ScalarValue::IntervalMonthDayNano(Some(interval)) = value
        && let Some(text) = seconds(*interval)
    {
        return text;
    }
    if value.is_null() {
        return "NULL".into();
    }
    let array = value.to_array().ok();
    let text = array.and_then(|array| calendar::text_of(&array, 0).ok()).unwrap_or_default();
    match value.data_type() {
        of if of.is_integer() || of.is_floating() => value.to_string(),
        of if of.is_numeric() || of.is_nested() || of == DataType::Boolean => text,
        of if of.is_string() => format!("'{}'", text.replace('\'', "''")),
        of => {
            let name = sql_name(&of);
            format!("{} '{text}'", name.split('(').next().unwrap_or(&name))
        }
    }
}

/// An interval that has a length, in seconds.
fn seconds(interval: IntervalMonthDayNano) -> Option<String> {
    let IntervalMonthDayNano { months: 0, days: 0, nanoseconds } = interval else { return None };
    let (sign, ns) = (if nanoseconds < 0 { "-" } else { "" }, nanoseconds.unsigned_abs());
    let fraction = format!("{:09}", ns % 1_000_000_000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    Some(format!("INTERVAL '{sign}{}{point}{fraction}' SECOND", ns / 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::{col, lit};

    #[test]
    fn values_are_shown_as_sql_has_them() {
        let interval = |months, days, nanoseconds| {
            let of = IntervalMonthDayNano { months, days, nanoseconds };
            lit(ScalarValue::IntervalMonthDayNano(Some(of)))
        };
        assert_eq!(shown_expr(&(col("a") + lit(1_i32))), "a + 1");
        assert_eq!(shown_expr(&col("a").eq(lit("it's"))), "a = 'it''s'");
        assert_eq!(shown_expr(&col("a").eq(lit(ScalarValue::Int64(None)))), "a = NULL");
        assert_eq!(shown_expr(&col("a").and(lit(true))), "a AND true");
        for (ns, text) in [(1_000_000, "0.001"), (-1_500_000_000, "-1.5"), (60_000_000_000, "60")] {
            let shown = shown_expr(&(col("t") - interval(0, 0, ns)));
            assert_eq!(shown, format!("t - INTERVAL '{text}' SECOND"));
        }
        assert!(shown_expr(&interval(1, 0, 0)).contains("1 mon"));
    }
}
