//! `PROCTIME()`: the time of day (UTC) at which a row is worked on, in milliseconds.
//!
//! It is evaluated once per batch. As a computed column (`pt AS PROCTIME()`) that is when the row
//! was read, and with `WATERMARK FOR pt AS pt` windows are windows of processing time.

use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

const TYPE: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcTime {
    signature: Signature,
}

impl ProcTime {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::nullary(Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for ProcTime {
    fn name(&self) -> &str {
        "proctime"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(TYPE)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Field::new(self.name(), TYPE, false).into())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = now.as_millis() as i64;
        Ok(ColumnarValue::Scalar(ScalarValue::TimestampMillisecond(Some(millis), None)))
    }
}
