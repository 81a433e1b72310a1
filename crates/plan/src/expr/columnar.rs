//! How functions over arrays take constants.

use arrow::array::ArrayRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;

/// Calls a function with arguments as arrays. Its result over constants alone, which are arrays of
/// one row, is a constant.
pub(crate) fn over_arrays(
    args: &[ColumnarValue],
    function: impl FnOnce(&[ArrayRef]) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    let is_constant = args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
    let made = function(&ColumnarValue::values_to_arrays(args)?)?;
    Ok(if is_constant {
        ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?)
    } else {
        ColumnarValue::Array(made)
    })
}
