//! `a / b` of decimals, rounded: half away from zero, as Flink does.
//!
//! DataFusion's operator cuts digits off, and fails where what it multiplies by does not fit,
//! though the quotient would. In plans it stays the operator, which all that looks into
//! expressions knows; it is this function where DataFusion computes constants as it optimizes
//! ([`as_functions`], [`as_operators`]), and where expressions are compiled
//! ([`checked`](super::checked)).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, PrimitiveArray};
use arrow::compute::kernels::numeric::div;
use arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Decimal128Type, Decimal256Type, DecimalType, i256,
};
use arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;

/// The plan, which divides decimals by the function.
///
/// # Errors
/// DataFusion's, of types.
pub(crate) fn as_functions(plan: LogicalPlan) -> Result<LogicalPlan> {
    let made = plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let made = expr.transform_up(|part| Ok(function(part, &scope)))?;
            Ok(made.update_data(|expr| name.restore(expr)))
        })
    });
    made.map(|made| made.data)
}

/// The expression, which divides decimals by the function.
///
/// # Errors
/// None: the walk asks for a result.
pub(crate) fn in_expression(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    expr.transform_up(|part| Ok(function(part, scope))).map(|made| made.data)
}

/// The plan, which divides by the operator again.
///
/// # Errors
/// DataFusion's, of types.
pub(crate) fn as_operators(plan: LogicalPlan) -> Result<LogicalPlan> {
    let operator = |part| match part {
        Expr::ScalarFunction(mut call) if call.func.inner().is::<Division>() => {
            match (call.args.pop(), call.args.pop()) {
                (Some(right), Some(left)) => {
                    let (left, right) = (Box::new(left), Box::new(right));
                    let call = BinaryExpr::new(left, Operator::Divide, right);
                    Ok(Transformed::yes(Expr::BinaryExpr(call)))
                }
                _ => internal_err!("a division has two sides"),
            }
        }
        other => Ok(Transformed::no(other)),
    };
    let made = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let made = expr.transform_up(operator)?;
            Ok(made.update_data(|expr| name.restore(expr)))
        })
    });
    made.map(|made| made.data)
}

/// The function in place of `/`, if a decimal is divided.
pub(super) fn function(expr: Expr, scope: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right })
            if is_decimal(&left, scope) || is_decimal(&right, scope) =>
        {
            let signature = Signature::user_defined(Volatility::Immutable);
            let division = ScalarUDF::from(Division { signature });
            Transformed::yes(division.call(vec![*left, *right]))
        }
        other => Transformed::no(other),
    }
}

fn is_decimal(expr: &Expr, scope: &DFSchema) -> bool {
    expr.get_type(scope).is_ok_and(|of| of.is_decimal())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Division {
    signature: Signature,
}

fn types<'a>(left: &'a DataType, right: &'a DataType) -> BinaryTypeCoercer<'a> {
    BinaryTypeCoercer::new(left, &Operator::Divide, right)
}

impl ScalarUDFImpl for Division {
    fn name(&self) -> &str {
        "__divide"
    }

    /// The operator's: columns keep their names.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let [left, right] = args else { return internal_err!("a division has two sides") };
        let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
        let call = BinaryExpr::new(left, Operator::Divide, right);
        Ok(Expr::BinaryExpr(call).schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = given else { return internal_err!("a division has two sides") };
        let (left, right) = types(left, right).get_input_types()?;
        Ok(vec![left, right])
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        let [left, right] = args else { return internal_err!("a division has two sides") };
        types(left, right).get_result_type()
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = &args.args[..] else {
            return internal_err!("a division has two sides");
        };
        let of = types(&left.data_type(), &right.data_type()).get_result_type()?;
        apply(left, right, |left, right| quotients(left, right, &of))
    }
}

/// The quotients, of which DataFusion says that they are of a type.
fn quotients(left: &dyn Datum, right: &dyn Datum, of: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType::{Decimal128, Decimal256};
    match (left.get().0.data_type(), right.get().0.data_type(), of) {
        (&Decimal128(_, a), &Decimal128(_, b), &Decimal128(digits, scale)) => {
            let by = i16::from(scale) - i16::from(a) + i16::from(b);
            each::<Decimal128Type>(left, right, digits, scale, |left, right| {
                narrow(left, right, by)
                    .or_else(|| wide(i256::from_i128(left), i256::from_i128(right), by)?.to_i128())
            })
        }
        (&Decimal256(_, a), &Decimal256(_, b), &Decimal256(digits, scale)) => {
            let by = i16::from(scale) - i16::from(a) + i16::from(b);
            each::<Decimal256Type>(left, right, digits, scale, |left, right| wide(left, right, by))
        }
        _ => div(left, right),
    }
}

fn each<T: DecimalType>(
    left: &dyn Datum,
    right: &dyn Datum,
    digits: u8,
    scale: i8,
    quotient: impl Fn(T::Native, T::Native) -> Option<T::Native>,
) -> Result<ArrayRef, ArrowError> {
    let ((left, one_left), (right, one_right)) = (left.get(), right.get());
    let rows = if one_left { right.len() } else { left.len() };
    let (left, right) = (left.as_primitive::<T>(), right.as_primitive::<T>());
    let at = |row: usize, one: bool| if one { 0 } else { row };
    let value = |row: usize| {
        let (l, r) = (at(row, one_left), at(row, one_right));
        if left.is_null(l) || right.is_null(r) {
            return Ok(None);
        }
        let (l, r) = (left.value(l), right.value(r));
        if r.is_zero() {
            return Err(ArrowError::DivideByZero);
        }
        quotient(l, r).map(Some).ok_or_else(|| {
            ArrowError::ArithmeticOverflow(format!("a quotient has more than {digits} digits"))
        })
    };
    let made = (0..rows).map(value).collect::<Result<PrimitiveArray<T>, _>>()?;
    let made = made.with_precision_and_scale(digits, scale)?;
    made.validate_decimal_precision(digits)?;
    Ok(Arc::new(made))
}

/// `left * 10^by / right`, rounded; none if something does not fit.
fn narrow(left: i128, right: i128, by: i16) -> Option<i128> {
    let power = 10_i128.checked_pow(by.unsigned_abs().into())?;
    let (left, right) =
        if by < 0 { (left, right.checked_mul(power)?) } else { (left.checked_mul(power)?, right) };
    let (quotient, rest) = (left.checked_div(right)?, left.checked_rem(right)?);
    // The rest is at least half of the divisor.
    if rest.unsigned_abs() >= right.unsigned_abs() - rest.unsigned_abs() {
        quotient.checked_add(if (left < 0) == (right < 0) { 1 } else { -1 })
    } else {
        Some(quotient)
    }
}

/// The same of twice the width.
fn wide(left: i256, right: i256, by: i16) -> Option<i256> {
    let power = i256::from(10_i64).pow_checked(by.unsigned_abs().into()).ok()?;
    let (left, right) =
        if by < 0 { (left, right.checked_mul(power)?) } else { (left.checked_mul(power)?, right) };
    let (quotient, rest) = (left.checked_div(right)?, left.checked_rem(right)?);
    // Of less than the greatest, whose negative is one less, there is an absolute value.
    let (rest, divisor) = (rest.wrapping_abs(), right.wrapping_abs());
    if rest >= divisor.wrapping_sub(rest) {
        let one = if (left < i256::ZERO) == (right < i256::ZERO) { 1 } else { -1 };
        quotient.checked_add(i256::from(one))
    } else {
        Some(quotient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_rounded_half_away_from_zero() {
        let cases = [
            (125, 3, 4, 416_667),
            (-125, 3, 4, -416_667),
            (125, -3, 4, -416_667),
            (-125, -3, 4, 416_667),
            (1, 2, 0, 1),
            (-1, 2, 0, -1),
            (1, 3, 0, 0),
            (5, 2, 0, 3),
            (7, 2, -1, 0),
            (10, 2, -1, 1),
            (0, 5, 3, 0),
            (6, 3, 0, 2),
        ];
        for (left, right, by, expected) in cases {
            assert_eq!(narrow(left, right, by), Some(expected), "{left} / {right} by {by}");
            let of = |value| i256::from_i128(value);
            let wide = wide(of(left), of(right), by);
            assert_eq!(wide, Some(of(expected)), "{left} / {right} by {by}");
        }
        // A value that does not fit is left to the wider type.
        assert_eq!(narrow(i128::MAX, 3, 4), None);
        let wide = wide(i256::from_i128(i128::MAX), i256::from_i128(10_000), 4);
        assert_eq!(wide.and_then(i256::to_i128), Some(i128::MAX));
    }
}
