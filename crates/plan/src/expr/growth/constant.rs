//! A long constant that is the value of every row: a text of a megabyte is gigabytes of a batch.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{
    Case, ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::{CALL_BYTES_MAX, bytes_of};
use crate::text::units::human;

/// Bytes of a constant that is looked at: no batch has as many rows as would be needed of shorter
/// ones.
const LONG_BYTES: u64 = 1 << 10;

/// Functions that return one of their arguments.
const CHOOSING: [&str; 3] = ["coalesce", "nvl", "nvl2"];

/// The expression of an output, of which a long constant has the bound that calls have.
pub(crate) fn bounded(expr: Expr) -> Expr {
    let boxed = |expr: Box<Expr>| Box::new(bounded(*expr));
    match expr {
        Expr::Alias(mut alias) => {
            alias.expr = boxed(alias.expr);
            Expr::Alias(alias)
        }
        Expr::Literal(value, metadata) => {
            if is_long(&value) {
                // A constant function would be computed once, of no rows.
                let signature = Signature::any(1, Volatility::Volatile);
                let constant = ScalarUDF::from(Constant { signature });
                constant.call(vec![Expr::Literal(value, metadata)])
            } else {
                Expr::Literal(value, metadata)
            }
        }
        Expr::Case(Case { expr, when_then_expr, else_expr }) => {
            let branches = when_then_expr.into_iter().map(|(when, then)| (when, boxed(then)));
            Expr::Case(Case::new(expr, branches.collect(), else_expr.map(boxed)))
        }
        Expr::ScalarFunction(mut call) if CHOOSING.contains(&call.func.name()) => {
            call.args = call.args.into_iter().map(bounded).collect();
            Expr::ScalarFunction(call)
        }
        other => other,
    }
}

fn is_long(value: &ScalarValue) -> bool {
    // Of a number it is known, and there are many of them.
    value.data_type().primitive_width().is_none() && bytes(value) > LONG_BYTES
}

fn bytes(value: &ScalarValue) -> u64 {
    value.to_array().map_or(0, |value| bytes_of(value.as_ref(), 0, 1))
}

/// `__constant(value)`: the value, unless all rows of a batch together are too long.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Constant {
    signature: Signature,
}

impl ScalarUDFImpl for Constant {
    fn name(&self) -> &str {
        "__constant"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = args.arg_fields[0].as_ref().clone();
        Ok(Arc::new(field.with_name(self.name())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let Some(ColumnarValue::Scalar(value)) = args.args.into_iter().next() else {
            return internal_err!("a constant is one value");
        };
        let made = bytes(&value).saturating_mul(rows as u64);
        if made > CALL_BYTES_MAX {
            let (made, most) = (human(made), human(CALL_BYTES_MAX));
            return exec_err!(
                "a constant would be {made} of {rows} rows; {most} are the most of a batch, which \
                 millstream.batch_rows makes smaller"
            );
        }
        Ok(ColumnarValue::Scalar(value))
    }
}
