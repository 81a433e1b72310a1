//! `a || b` of texts, as a function with a bound.
//!
//! It stays an operator in plans, for a reader, until it is compiled; only where constants are
//! joined, which DataFusion computes while it optimizes, it is a function from the beginning.

use std::sync::Arc;

use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use crate::expr::columnar::over_arrays;

/// The name of the function in messages.
pub(super) const NAME: &str = "||";

/// The plan, in which each function that can grow has its bound, whoever put it there, and `||` of
/// constants too.
///
/// # Errors
/// None: the walk asks for a result.
pub(crate) fn bounded(plan: LogicalPlan) -> Result<LogicalPlan> {
    let constants = |call: &BinaryExpr| {
        call.left.column_refs().is_empty() && call.right.column_refs().is_empty()
    };
    let bounded = plan.transform_up_with_subqueries(|node| {
        node.map_expressions(|expr| expr.transform_up(|part| Ok(checked(part, constants))))
    });
    bounded.map(|bounded| bounded.data)
}

/// The expression, in which each function that can grow has its bound, and `||` too.
///
/// # Errors
/// As [`bounded`].
pub(crate) fn in_expression(expr: Expr) -> Result<Expr> {
    expr.transform_up(|part| Ok(checked(part, |_| true))).map(|bounded| bounded.data)
}

fn checked(part: Expr, joins: impl Fn(&BinaryExpr) -> bool) -> Transformed<Expr> {
    match part {
        Expr::BinaryExpr(call) if is_joined(&call) && joins(&call) => {
            Transformed::yes(function(call))
        }
        Expr::ScalarFunction(mut call) => {
            super::bound(&mut call.func);
            Transformed::yes(Expr::ScalarFunction(call))
        }
        other => Transformed::no(other),
    }
}

/// Whether an operator is `||`.
pub(crate) fn is_joined(call: &BinaryExpr) -> bool {
    call.op == Operator::StringConcat
}

/// The function in place of `||`.
pub(crate) fn function(call: BinaryExpr) -> Expr {
    let signature = Signature::user_defined(Volatility::Immutable);
    let mut joined = Arc::new(ScalarUDF::from(Joined { signature }));
    super::bound(&mut joined);
    joined.call(vec![*call.left, *call.right])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Joined {
    signature: Signature,
}

impl ScalarUDFImpl for Joined {
    fn name(&self) -> &str {
        NAME
    }

    /// The operator's: columns keep their names.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let [left, right] = args else { return internal_err!("{NAME} takes two texts") };
        let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
        let call = BinaryExpr::new(left, Operator::StringConcat, right);
        Ok(Expr::BinaryExpr(call).schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = given else { return internal_err!("{NAME} takes two texts") };
        let (left, right) =
            BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
        Ok(vec![left, right])
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match args {
            [left, _] => Ok(left.clone()),
            _ => internal_err!("{NAME} takes two texts"),
        }
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args.args, |arrays| {
            let [left, right] = arrays else { return internal_err!("{NAME} takes two texts") };
            Ok(concat_elements_dyn(left.as_ref(), right.as_ref())?)
        })
    }
}
