//! Steps put together.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::job::{Step, Stepped};

/// One step behind another.
pub fn chain(first: Option<Arc<dyn Step>>, second: Option<Arc<dyn Step>>) -> Option<Arc<dyn Step>> {
    match (first, second) {
        (Some(first), Some(second)) => Some(Arc::new(Chain { first, second })),
        (first, second) => first.or(second),
    }
}

/// Two steps as one.
struct Chain {
    first: Arc<dyn Step>,
    second: Arc<dyn Step>,
}

impl Step for Chain {
    fn schema(&self) -> SchemaRef {
        self.second.schema()
    }

    fn apply_for(
        &self,
        batch: &RecordBatch,
        unread: Option<usize>,
    ) -> Result<Stepped, DataflowError> {
        let first = self.first.apply(batch)?;
        let second = self.second.apply_for(&first.batch, unread)?;
        let origin = first.origin.then(second.origin, batch.num_rows())?;
        Ok(Stepped { batch: second.batch, origin })
    }

    fn rows_of_one(&self) -> Option<u64> {
        Some(self.first.rows_of_one()?.saturating_mul(self.second.rows_of_one()?))
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        self.first.passes_on(self.second.passes_on(output)?)
    }

    fn describe(&self) -> String {
        format!("{}, then {}", self.first.describe(), self.second.describe())
    }
}
