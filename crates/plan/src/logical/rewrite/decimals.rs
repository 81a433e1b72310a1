//! A `DECIMAL` that meets a `DOUBLE` is a `DOUBLE`, as in arithmetic.
//!
//! DataFusion would compare both, and unite them, as a `DECIMAL(30, 15)`: that has no NaN and no
//! 1e30, and takes 1e-20 for 0. A number that is written in the query is a `DECIMAL` there, of the
//! digits that it has. So are sums, differences and products of such numbers: beside a `DECIMAL`,
//! `0.06 + 0.01` is exactly 0.07, and not the `DOUBLE` below it.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{InList, InSubquery};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, Expr, ExprSchemable, LogicalPlan, Operator, Projection, Union, cast,
};

use super::intervals::compares;

/// Functions that give one of their arguments, or compare them.
const CHOOSING: [&str; 7] =
    ["coalesce", "greatest", "ifnull", "least", "make_array", "nullif", "nvl"];

/// Gives the two one type wherever they meet.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut any = false;
    let met = plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let made = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let made = expr.transform_up(|part| within(part, &scope))?;
            Ok(made.update_data(|expr| name.restore(expr)))
        })?;
        let made = made.transform_data(|node| between(node, &scope))?;
        any |= made.transformed;
        // The nodes above have other types, too.
        match made.data {
            LogicalPlan::Union(Union { inputs, .. }) if any => {
                Union::try_new_with_loose_types(inputs)
                    .map(LogicalPlan::Union)
                    .map(Transformed::yes)
            }
            node if any => node.recompute_schema().map(Transformed::yes),
            node => Ok(Transformed::no(node)),
        }
    })?;
    Ok(met.data)
}

/// Decimals beside doubles within an expression.
fn within(mut part: Expr, scope: &DFSchema) -> Result<Transformed<Expr>> {
    let some = match &mut part {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
            align(&mut [left, right], scope)
        }
        Expr::Between(Between { expr, negated: _, low, high }) => {
            align(&mut [expr, low, high], scope)
        }
        Expr::InList(InList { expr, list, negated: _ }) => {
            let mut all: Vec<&mut Expr> = list.iter_mut().collect();
            all.push(expr);
            align(&mut all, scope)
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated: _ }) => {
            let of = subquery.subquery.schema().field(0).data_type().clone();
            let own = expr.get_type(scope)?;
            if own.is_decimal() && of.is_floating() {
                **expr = cast(std::mem::take(expr.as_mut()), DataType::Float64);
            } else if own.is_floating() && of.is_decimal() {
                let of = Arc::clone(&subquery.subquery);
                let column = Expr::Column(of.schema().columns().swap_remove(0));
                let column = cast(column, DataType::Float64);
                subquery.subquery = Arc::new(projected(of, vec![column])?);
            } else {
                return Ok(Transformed::no(part));
            }
            true
        }
        Expr::Case(Case { expr, when_then_expr, else_expr }) => {
            let (mut whens, mut thens) = (vec![], vec![]);
            for (when, then) in when_then_expr {
                whens.push(when.as_mut());
                thens.push(then.as_mut());
            }
            thens.extend(else_expr.as_deref_mut());
            let some = align(&mut thens, scope);
            match expr {
                Some(expr) => {
                    whens.push(expr);
                    align(&mut whens, scope) || some
                }
                None => some,
            }
        }
        Expr::ScalarFunction(call) if CHOOSING.contains(&call.func.name()) => {
            align(&mut call.args.iter_mut().collect::<Vec<_>>(), scope)
        }
        Expr::ScalarFunction(call) if call.func.name() == "nvl2" => {
            align(&mut call.args.iter_mut().skip(1).collect::<Vec<_>>(), scope)
        }
        _ => false,
    };
    Ok(if some { Transformed::yes(part) } else { Transformed::no(part) })
}

/// The pairs of columns that meet between the inputs of a node: keys of a join, columns of a union.
fn between(node: LogicalPlan, scope: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Join(mut join) => {
            let pairs = join.on.iter_mut();
            let aligned = pairs.map(|(left, right)| align(&mut [left, right], scope));
            let some = aligned.fold(false, |some, aligned| some | aligned);
            let join = LogicalPlan::Join(join);
            Ok(if some { Transformed::yes(join) } else { Transformed::no(join) })
        }
        LogicalPlan::Union(Union { inputs, schema }) => {
            let mut rows: Vec<Vec<Expr>> = inputs.iter().map(|input| outputs(input)).collect();
            let mut some = false;
            for at in 0..schema.fields().len() {
                let mut types = vec![];
                for (row, input) in rows.iter().zip(&inputs) {
                    types.push(row[at].get_type(input.schema())?);
                }
                let column = rows.iter_mut().map(|row| &mut row[at]);
                some |= align_as(&mut column.collect::<Vec<_>>(), &types);
            }
            if !some {
                return Ok(Transformed::no(LogicalPlan::Union(Union { inputs, schema })));
            }
            let inputs = inputs.into_iter().zip(rows).map(|(input, row)| {
                let plain = |expr: &Expr| matches!(expr, Expr::Column(_));
                let same = row.iter().all(plain);
                if same { Ok(input) } else { projected(input, row).map(Arc::new) }
            });
            let union = Union::try_new_with_loose_types(inputs.collect::<Result<_>>()?)?;
            Ok(Transformed::yes(LogicalPlan::Union(union)))
        }
        node => Ok(Transformed::no(node)),
    }
}

/// The columns of a plan; a number that is written there stands for itself.
fn outputs(plan: &LogicalPlan) -> Vec<Expr> {
    let written = |at: usize| match plan {
        LogicalPlan::Projection(projection) => {
            let expr = projection.expr.get(at)?.clone().unalias();
            matches!(expr, Expr::Literal(..)).then_some(expr)
        }
        _ => None,
    };
    let columns = plan.schema().columns().into_iter().enumerate();
    columns.map(|(at, column)| written(at).unwrap_or(Expr::Column(column))).collect()
}

/// The plan with other values in its columns, which keep their names.
fn projected(plan: Arc<LogicalPlan>, values: Vec<Expr>) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    let named =
        values.into_iter().zip(columns).map(|(value, Column { relation, name, .. })| match value {
            Expr::Column(_) => value,
            value => value.alias_qualified(relation, name),
        });
    let named = named.collect();
    Projection::try_new(named, plan).map(LogicalPlan::Projection)
}

/// Gives values that meet one type, if decimals and floats are among them; tells whether.
fn align(values: &mut [&mut Expr], scope: &DFSchema) -> bool {
    let types = values.iter().map(|value| value.get_type(scope));
    // Of what has no type yet, the planner tells.
    types.collect::<Result<Vec<_>>>().is_ok_and(|types| align_as(values, &types))
}

/// As [`align`], of values of these types.
fn align_as(values: &mut [&mut Expr], types: &[DataType]) -> bool {
    let floats = types.iter().any(DataType::is_floating);
    if !floats || !types.iter().any(DataType::is_decimal) {
        return false;
    }
    match in_decimals(values, types) {
        Some(numbers) => numbers.into_iter().zip(values).for_each(|(number, value)| {
            if let Some(number) = number {
                **value = Expr::Literal(number, None);
            }
        }),
        None => {
            types.iter().zip(values).filter(|(of, _)| of.is_decimal()).for_each(|(_, value)| {
                **value = cast(std::mem::take(*value), DataType::Float64);
            })
        }
    }
    true
}

/// The floats among values as decimals that fit beside the others, if they are numbers that are
/// written in the query.
fn in_decimals(values: &[&mut Expr], types: &[DataType]) -> Option<Vec<Option<ScalarValue>>> {
    let (mut before, mut behind) = (0, 0);
    let mut numbers = vec![];
    for (value, of) in values.iter().zip(types) {
        let number = match (&**value, of.is_floating()) {
            (_, false) => None,
            (Expr::Literal(ScalarValue::Float64(None), _), true) => None,
            (written, true) => Some(Exact::of(written)?.scalar()?),
        };
        let digits = number.as_ref().map_or_else(|| of.clone(), ScalarValue::data_type);
        if let DataType::Decimal128(digits, scale) = digits {
            before = before.max(i16::from(digits) - i16::from(scale));
            behind = behind.max(i16::from(scale));
        }
        numbers.push(number);
    }
    (before + behind <= i16::from(DECIMAL128_MAX_PRECISION)).then_some(numbers)
}

/// A decimal number: its value without the point, and the number of digits behind the point.
#[derive(Debug, Clone, Copy)]
struct Exact {
    value: i128,
    scale: u32,
}

impl Exact {
    /// The value of a number that is written in the query, or of a sum, a difference or a product
    /// of such numbers.
    fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Literal(ScalarValue::Float64(Some(number)), _) => Self::shortest(*number),
            Expr::Literal(ScalarValue::Int64(Some(number)), _) => {
                Some(Self { value: i128::from(*number), scale: 0 })
            }
            Expr::Negative(inner) => {
                let Self { value, scale } = Self::of(inner)?;
                Some(Self { value: value.checked_neg()?, scale })
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (a, b) = (Self::of(left)?, Self::of(right)?);
                let scale = a.scale.max(b.scale);
                match op {
                    Operator::Plus => {
                        Some(Self { value: a.at(scale)?.checked_add(b.at(scale)?)?, scale })
                    }
                    Operator::Minus => {
                        Some(Self { value: a.at(scale)?.checked_sub(b.at(scale)?)?, scale })
                    }
                    Operator::Multiply => {
                        let value = a.value.checked_mul(b.value)?;
                        Some(Self { value, scale: a.scale + b.scale })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A `DOUBLE` in the fewest digits that identify it.
    fn shortest(number: f64) -> Option<Self> {
        let text = number.to_string();
        let (whole, behind) = text.split_once('.').unwrap_or((&text, ""));
        let value = format!("{whole}{behind}").parse().ok()?;
        Some(Self { value, scale: u32::try_from(behind.len()).ok()? })
    }

    /// The value with `scale` digits behind the point, which are at least as many as now.
    fn at(self, scale: u32) -> Option<i128> {
        self.value.checked_mul(10_i128.checked_pow(scale - self.scale)?)
    }

    /// The number as a constant of the smallest `DECIMAL` type that has it.
    fn scalar(self) -> Option<ScalarValue> {
        let Self { value, scale } = self;
        let digits = value.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1).max(scale);
        let precision =
            u8::try_from(digits).ok().filter(|digits| *digits <= DECIMAL128_MAX_PRECISION)?;
        Some(ScalarValue::Decimal128(Some(value), precision, i8::try_from(scale).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;

    use super::*;

    #[test]
    fn a_number_has_the_digits_that_are_written() {
        let cases = [
            (1.5, Some((15, 2, 1))),
            (-0.25, Some((-25, 2, 2))),
            (0.0, Some((0, 1, 0))),
            (1e30, Some((1_000_000_000_000_000_000_000_000_000_000, 31, 0))),
            (1e-20, Some((1, 20, 20))),
            (1e40, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ];
        for (number, expected) in cases {
            let expected = expected
                .map(|(value, digits, scale)| ScalarValue::Decimal128(Some(value), digits, scale));
            let scalar = Exact::shortest(number).and_then(Exact::scalar);
            assert_eq!(scalar, expected, "{number}");
        }
    }

    #[test]
    fn arithmetic_of_written_numbers_is_exact() {
        let sum = lit(0.06) + lit(0.01);
        let cases = [
            (sum.clone(), Some((7, 2, 2))),
            (lit(0.1) - lit(1_i64), Some((-9, 1, 1))),
            (-(sum * lit(7_i64)), Some((-49, 2, 2))),
            (lit(1e30) * lit(1e30), None),
            (lit(1.0) / lit(3.0), None),
        ];
        for (expr, expected) in cases {
            let expected = expected
                .map(|(value, digits, scale)| ScalarValue::Decimal128(Some(value), digits, scale));
            assert_eq!(Exact::of(&expr).and_then(Exact::scalar), expected, "{expr}");
        }
    }
}
