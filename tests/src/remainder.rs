//! Rows to workers by the remainder of a key.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use stream::{DataflowError, RowPartitioner};

/// Rows go to the worker that the remainder of their `Int64` in this column says.
pub struct ByRemainder(pub usize);

impl RowPartitioner for ByRemainder {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        let keys = batch.column(self.0).as_primitive::<Int64Type>();
        to.extend(keys.values().iter().map(|key| (key % i64::from(workers)) as u32));
        Ok(())
    }
}
