//! `n * INTERVAL '1' MINUTE`, which DataFusion does not compute: a function is written for it when
//! a query is planned. Each part of an interval is multiplied, months by themselves.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::compute::kernels::numeric::mul;
use arrow::datatypes::{
    DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::{DFSchema, Result, exec_err, plan_err};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::expr::columnar::over_arrays;

/// Plans products of a whole number and a length of time.
#[derive(Debug)]
pub(crate) struct IntervalProducts {
    function: Arc<ScalarUDF>,
}

impl IntervalProducts {
    pub(crate) fn new() -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { function: Arc::new(ScalarUDF::from(Times { signature })) }
    }
}

impl ExprPlanner for IntervalProducts {
    fn plan_binary_op(
        &self,
        raw: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        if raw.op != BinaryOperator::Multiply {
            return Ok(PlannerResult::Original(raw));
        }
        let RawBinaryExpr { op: _, left, right } = &raw;
        let (of_left, of_right) = (left.get_type(schema), right.get_type(schema));
        let (count, length) = match (of_left, of_right) {
            (Ok(count), Ok(length)) if count.is_integer() && is_length(&length) => (left, right),
            (Ok(length), Ok(count)) if count.is_integer() && is_length(&length) => (right, left),
            _ => return Ok(PlannerResult::Original(raw)),
        };
        let product = self.function.call(vec![count.clone(), length.clone()]);
        Ok(PlannerResult::Planned(Expr::alias(product, format!("{left} * {right}"))))
    }
}

fn is_length(of: &DataType) -> bool {
    matches!(of, DataType::Interval(_) | DataType::Duration(_))
}

/// `__times(n, length)`
#[derive(Debug, PartialEq, Eq, Hash)]
struct Times {
    signature: Signature,
}

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

impl ScalarUDFImpl for Times {
    fn name(&self) -> &str {
        "__times"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        match given {
            [_, length @ DataType::Duration(_)] => Ok(vec![DataType::Int64, length.clone()]),
            [_, _] => Ok(vec![DataType::Int64, INTERVAL]),
            _ => plan_err!("a product has two factors"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.get(1).cloned().unwrap_or(INTERVAL))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args.args, |arrays| product(&arrays[0], &arrays[1]))
    }
}

fn product(counts: &ArrayRef, lengths: &ArrayRef) -> Result<ArrayRef> {
    let Some(lengths) = lengths.as_primitive_opt::<IntervalMonthDayNanoType>() else {
        let units = cast(lengths, &DataType::Int64)?;
        return Ok(cast(&mul(&units, counts)?, lengths.data_type())?);
    };
    let counts = counts.as_primitive::<Int64Type>();
    let product = |row: usize| {
        if counts.is_null(row) || lengths.is_null(row) {
            return Ok(None);
        }
        let (count, length) = (counts.value(row), lengths.value(row));
        match times(count, length) {
            Some(product) => Ok(Some(product)),
            None => exec_err!("{count} times this interval is longer than an interval can be"),
        }
    };
    let products = (0..counts.len()).map(product).collect::<Result<IntervalMonthDayNanoArray>>()?;
    Ok(Arc::new(products))
}

/// `None` if a part does not fit.
fn times(count: i64, length: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let part = |part: i32| i32::try_from(i64::from(part).checked_mul(count)?).ok();
    let IntervalMonthDayNano { months, days, nanoseconds } = length;
    let nanoseconds = nanoseconds.checked_mul(count)?;
    Some(IntervalMonthDayNano::new(part(months)?, part(days)?, nanoseconds))
}
