//! Types that a plan has announced, and those of what runs.
//!
//! A query's columns have the types that it has as it was written. DataFusion's optimizer may make
//! other ones: it sums sums, which takes more digits, and folds constants that a type depends on.
//! An optimized plan keeps the announced schema: by a cast where that changes no value,
//! and otherwise not at all, which is said before anything runs.

use arrow::datatypes::{DataType, Field};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable, LogicalPlan, Projection};

use crate::text::types::sql_name;

/// The plan, with columns of the types of `announced`.
///
/// # Errors
/// Where a column cannot have its type.
pub(crate) fn conform(plan: LogicalPlan, announced: &DFSchema) -> Result<LogicalPlan> {
    let pairs = || plan.schema().fields().iter().zip(announced.fields());
    if plan.schema().fields().len() != announced.fields().len()
        || pairs().all(|(own, announced)| alike(own.data_type(), announced.data_type()))
    {
        return Ok(plan);
    }
    let (input, exprs) = match plan {
        LogicalPlan::Projection(Projection { input, expr, .. }) => (input, expr),
        other => {
            let columns = other.schema().columns().into_iter().map(Expr::Column).collect();
            (other.into(), columns)
        }
    };
    let mut typed = vec![];
    for (expr, (qualifier, field)) in exprs.into_iter().zip(announced.iter()) {
        let (from, to) = (expr.get_type(input.schema())?, field.data_type());
        if alike(&from, to) {
            typed.push(expr);
            continue;
        }
        if !keeps_values(&from, to) {
            return Err(differs(field, &from));
        }
        let cast = logical::cast(expr.unalias(), to.clone());
        typed.push(cast.alias_qualified(qualifier.cloned(), field.name()));
    }
    Projection::try_new(typed, input).map(LogicalPlan::Projection)
}

/// An error unless what is to run gives a column of the type that was announced.
///
/// # Errors
/// That these types differ.
pub(crate) fn same_type(announced: &Field, runs: &DataType) -> Result<()> {
    if alike(announced.data_type(), runs) { Ok(()) } else { Err(differs(announced, runs)) }
}

/// Whether two types are the same, as far as what they are made of is not asked.
fn alike(a: &DataType, b: &DataType) -> bool {
    a == b || (a.is_nested() && b.is_nested())
}

fn differs(announced: &Field, runs: &DataType) -> DataFusionError {
    let (name, to) = (announced.name(), sql_name(announced.data_type()));
    let from = sql_name(runs);
    DataFusionError::Plan(format!(
        "column '{name}' is of {to}, but would be computed as {from}: CAST it to one of them"
    ))
}

/// Whether a cast gives each value as it is, or fails.
fn keeps_values(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Dictionary, LargeUtf8, Null, Utf8, Utf8View,
    };
    let scale = |of: &DataType| match of {
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            Some(*scale)
        }
        _ if of.is_integer() => Some(0),
        _ => None,
    };
    match (from, to) {
        (from, to) if from == to => true,
        (Null, _) => true,
        (Dictionary(_, values), to) => keeps_values(values, to),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => true,
        (DataType::Float32, DataType::Float64) => true,
        (from, to) => match (scale(from), scale(to)) {
            (Some(from), Some(to)) => from <= to,
            _ => false,
        },
    }
}

/// The plan, in which a function that has another type for its arguments as they are coerced than
/// for the values that they have is given the values: `round(d, 1)` has one digit, which is not
/// seen through a cast of the 1. Says whether there was any such function.
///
/// # Errors
/// Those of types that are found again.
pub(crate) fn with_literals(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let given = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let given = expr.transform_up(|part| Ok(with_values(part, &scope)))?;
            Ok(given.update_data(|expr| name.restore(expr)))
        })?;
        if given.transformed { given.map_data(LogicalPlan::recompute_schema) } else { Ok(given) }
    })
}

/// A call with the values of its constant arguments, if it has another type with them.
fn with_values(part: Expr, scope: &DFSchema) -> Transformed<Expr> {
    let Expr::ScalarFunction(call) = &part else { return Transformed::no(part) };
    let value = |arg: &Expr| {
        let Expr::Cast(Cast { expr, field }) = arg else { return None };
        let Expr::Literal(value, metadata) = expr.as_ref() else { return None };
        let value = value.cast_to(field.data_type()).ok()?;
        Some(Expr::Literal(value, metadata.clone()))
    };
    let values: Vec<Option<Expr>> = call.args.iter().map(value).collect();
    if values.iter().all(Option::is_none) {
        return Transformed::no(part);
    }
    let args = call.args.iter().zip(values);
    let args = args.map(|(arg, value)| value.unwrap_or_else(|| arg.clone())).collect();
    let given = Expr::ScalarFunction(ScalarFunction::new_udf(call.func.clone(), args));
    match (part.get_type(scope), given.get_type(scope)) {
        (Ok(before), Ok(after)) if before != after => Transformed::yes(given),
        _ => Transformed::no(part),
    }
}
