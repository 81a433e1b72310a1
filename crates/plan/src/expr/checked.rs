//! Arithmetic that fails where a result does not fit its type, `/` of decimals, which rounds,
//! comparisons of floats, whose NaNs are one, and `||` and long constants with their bound.
//!
//! DataFusion's `+`, `-`, `*` and unary `-` of integers wrap around. Before expressions are
//! compiled, for a step or for the batch stage, they are replaced by functions that do not; plans
//! are read and optimized with the operators, which all that looks into expressions knows.
//!
//! What stands behind `AND` is not computed for rows that do not meet what stands before it, if it
//! may fail: `b <> 0 AND a / b > 1`. Behind `OR` it is not computed for those that do. The
//! optimizer makes `AND` and `OR` of a `CASE` whose branches are conditions, so that this holds
//! there too.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum};
use arrow::compute::kernels::numeric::{add, mul, neg, sub};
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type};
use arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit, when,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions as physical;
use datafusion::physical_expr_common::datum::apply;

use crate::expr::arithmetic::{self, Narrow};
use crate::expr::growth::{constant, joined};
use crate::expr::{division, equality};

/// The expression, checked.
///
/// # Errors
/// DataFusion's, of types.
pub(crate) fn expression(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    let guarded = expr.transform_up(|part| guard(part, scope))?;
    for_all_rows(guarded.data, scope)
}

/// A condition that must be true, checked.
///
/// # Errors
/// As [`expression`].
pub(crate) fn condition(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    expression(guarded(expr, scope)?, scope)
}

/// The expression, checked, with all of its parts computed for all rows: where it does not fail it
/// has the values of [`expression`], and is true where [`condition`] is.
///
/// # Errors
/// As [`expression`].
pub(crate) fn for_all_rows(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    let checked = constant::bounded(expr).transform_up(|part| operator(part, scope))?;
    Ok(checked.data)
}

/// The plan with all of its expressions checked.
///
/// # Errors
/// As [`expression`].
pub(crate) fn plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let checked = plan.transform_up_with_subqueries(|node| {
        let mut scope = DFSchema::empty();
        node.inputs().iter().for_each(|input| scope.merge(input.schema()));
        if node.inputs().is_empty() {
            scope = node.schema().as_ref().clone();
        }
        let names = NamePreserver::new(&node);
        let filters = matches!(node, LogicalPlan::Filter(_));
        node.map_expressions(|expr| {
            if matches!(expr, Expr::GroupingSet(_)) {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let checked =
                if filters { condition(expr, &scope)? } else { expression(expr, &scope)? };
            Ok(Transformed::yes(name.restore(checked)))
        })
    });
    checked.map(|checked| checked.data)
}

/// An expression that is compiled already, checked as far as `+`, `-` and `*` go.
///
/// # Errors
/// None: the walk asks for a result.
pub(crate) fn compiled(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let checked = expr.transform_up(|part| {
        Ok(match part.downcast_ref::<physical::BinaryExpr>() {
            Some(binary) => {
                let binary = binary.clone().with_fail_on_overflow(true);
                Transformed::yes(Arc::new(binary) as Arc<dyn PhysicalExpr>)
            }
            None => Transformed::no(part),
        })
    });
    checked.map(|checked| checked.data)
}

fn operator(expr: Expr, scope: &DFSchema) -> Result<Transformed<Expr>> {
    let expr = match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) if equality::compares(op) => {
            return equality::ordered(expr, scope);
        }
        Expr::Between(_) => return equality::ordered(expr, scope),
        Expr::BinaryExpr(call) if joined::is_joined(&call) => {
            return Ok(Transformed::yes(joined::function(call)));
        }
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide, .. }) => {
            return Ok(division::function(expr, scope));
        }
        other => other,
    };
    let which = match &expr {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Plus, .. }) => Which::Add,
        Expr::BinaryExpr(BinaryExpr { op: Operator::Minus, .. }) => Which::Sub,
        Expr::BinaryExpr(BinaryExpr { op: Operator::Multiply, .. }) => Which::Mul,
        Expr::Negative(_) => Which::Neg,
        _ => return Ok(Transformed::no(expr)),
    };
    if !may_overflow(&expr.get_type(scope)?) {
        return Ok(Transformed::no(expr));
    }
    let args = match expr {
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![*left, *right],
        Expr::Negative(inner) => vec![*inner],
        other => return Ok(Transformed::no(other)),
    };
    let function = ScalarUDF::from(Checked { which, signature: signature() });
    Ok(Transformed::yes(function.call(args)))
}

fn may_overflow(of: &DataType) -> bool {
    of.is_integer() || of.is_decimal()
}

/// In a condition that must be true, computes what may fail only for rows for which it is asked.
fn guarded(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    let Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) =
        expr
    else {
        return Ok(expr);
    };
    let fails = may_fail(&right, scope);
    let (left, right) = (guarded(*left, scope)?, guarded(*right, scope)?);
    match (fails, op) {
        (true, Operator::And) => when(left, right).otherwise(lit(false)),
        (true, _) => when(left, lit(true)).otherwise(right),
        (false, op) => Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))),
    }
}

/// The same of one `AND` or `OR` whose NULL is not FALSE.
fn guard(expr: Expr, scope: &DFSchema) -> Result<Transformed<Expr>> {
    let decides = match &expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right })
            if may_fail(right, scope) =>
        {
            when(left.as_ref().clone().is_false(), lit(false))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right })
            if may_fail(right, scope) =>
        {
            when(left.as_ref().clone().is_true(), lit(true))
        }
        _ => return Ok(Transformed::no(expr)),
    };
    decides.clone().otherwise(expr).map(Transformed::yes)
}

/// Whether an expression divides by something other than a constant, computes what may overflow,
/// reads a text as something else, or makes a number narrower.
fn may_fail(expr: &Expr, scope: &DFSchema) -> bool {
    let fails = |part: &Expr| match part {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => {
            !matches!(**right, Expr::Literal(..))
        }
        Expr::Cast(Cast { expr, field }) => {
            let fails = |of: DataType| cast_may_fail(&of, field.data_type());
            !matches!(**expr, Expr::Literal(..)) && expr.get_type(scope).is_ok_and(fails)
        }
        Expr::Negative(_)
        | Expr::BinaryExpr(BinaryExpr {
            op: Operator::Plus | Operator::Minus | Operator::Multiply,
            ..
        }) => part.get_type(scope).is_ok_and(|of| may_overflow(&of)),
        _ => false,
    };
    expr.exists(|part| Ok(fails(part))).unwrap_or(true)
}

/// Whether a cast may have no result: of a text, and of a number to a narrower type.
fn cast_may_fail(of: &DataType, to: &DataType) -> bool {
    let is_number = |of: &DataType| of.is_integer() || of.is_decimal();
    match (of, to) {
        (of, to) if of == to => false,
        (of, to) if of.is_string() => !to.is_string(),
        (DataType::Decimal128(digits, scale), DataType::Decimal128(more, behind)) => {
            let before = |digits: u8, scale: i8| i16::from(digits) - i16::from(scale);
            before(*digits, *scale) > before(*more, *behind)
        }
        (of, to) if is_number(of) && is_number(to) => {
            let widens = of.primitive_width() < to.primitive_width();
            !(of.is_signed_integer() && to.is_signed_integer() && widens)
        }
        (of, to) => of.is_floating() && is_number(to),
    }
}

/// The value of `left op right`, where `op` is arithmetic that may overflow.
///
/// # Errors
/// It does.
pub(crate) fn constant(
    left: &ScalarValue,
    op: Operator,
    right: &ScalarValue,
) -> Result<Option<ScalarValue>> {
    let which = match op {
        Operator::Plus => Which::Add,
        Operator::Minus => Which::Sub,
        Operator::Multiply => Which::Mul,
        _ => return Ok(None),
    };
    let same = left.data_type() == right.data_type() || left.data_type().is_decimal();
    if !same || !may_overflow(&left.data_type()) || !may_overflow(&right.data_type()) {
        return Ok(None);
    }
    let made = which.of(&left.to_scalar()?, &right.to_scalar()?)?;
    ScalarValue::try_from_array(&made, 0).map(Some)
}

/// The value of `-value`.
///
/// # Errors
/// It does not fit.
pub(crate) fn negative(value: &ScalarValue) -> Result<ScalarValue> {
    if may_overflow(&value.data_type()) {
        ScalarValue::try_from_array(&neg(value.to_array()?.as_ref())?, 0)
    } else {
        value.arithmetic_negate()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Add,
    Sub,
    Mul,
    Neg,
}

impl Which {
    fn of(self, left: &dyn Datum, right: &dyn Datum) -> Result<ArrayRef, ArrowError> {
        let narrow = match self {
            Which::Add => Narrow::Add,
            Which::Sub => Narrow::Sub,
            Which::Mul | Which::Neg => Narrow::Mul,
        };
        if let Some(made) = arithmetic::in_64_bits(narrow, left, right) {
            return Ok(made);
        }
        let made = match self {
            Which::Add => add(left, right),
            Which::Sub => sub(left, right),
            Which::Mul | Which::Neg => mul(left, right),
        }?;
        fits(&made)?;
        Ok(made)
    }
}

/// Looks whether decimals have no more digits than their type.
fn fits(made: &ArrayRef) -> Result<(), ArrowError> {
    match made.data_type() {
        DataType::Decimal128(digits, _) => {
            made.as_primitive::<Decimal128Type>().validate_decimal_precision(*digits)
        }
        DataType::Decimal256(digits, _) => {
            made.as_primitive::<Decimal256Type>().validate_decimal_precision(*digits)
        }
        _ => Ok(()),
    }
}

fn signature() -> Signature {
    Signature::user_defined(Volatility::Immutable)
}

/// `left + right`, `left - right`, `left * right` or `-value`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.which {
            Which::Add => "__add",
            Which::Sub => "__subtract",
            Which::Mul => "__multiply",
            Which::Neg => "__negative",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        Ok(given.to_vec())
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        let op = match self.which {
            Which::Add => Operator::Plus,
            Which::Sub => Operator::Minus,
            Which::Mul => Operator::Multiply,
            Which::Neg => return Ok(args[0].clone()),
        };
        datafusion::logical_expr::binary::BinaryTypeCoercer::new(&args[0], &op, &args[1])
            .get_result_type()
    }

    fn return_field_from_args(
        &self,
        args: ReturnFieldArgs<'_>,
    ) -> Result<arrow::datatypes::FieldRef> {
        let types: Vec<DataType> =
            args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        let of = self.return_type(&types)?;
        Ok(Arc::new(arrow::datatypes::Field::new(self.name(), of, nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match (self.which, &args.args[..]) {
            (Which::Neg, [ColumnarValue::Scalar(value)]) => {
                negative(value).map(ColumnarValue::Scalar)
            }
            (_, [ColumnarValue::Array(values)]) => Ok(ColumnarValue::Array(neg(values.as_ref())?)),
            (which, [left, right]) => apply(left, right, |left, right| which.of(left, right)),
            _ => datafusion::common::exec_err!("{} takes two numbers", self.name()),
        }
    }
}
