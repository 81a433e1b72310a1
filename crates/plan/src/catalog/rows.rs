//! Rows that are known when the statement is planned: `VALUES`, `SHOW TABLES`.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Next, Source};

/// Rows that are known when they are read.
pub(crate) struct Rows {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Arc<Mutex<Vec<RecordBatch>>>,
}

impl Rows {
    fn batches(&self) -> Vec<RecordBatch> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Source for Rows {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn flows(&self, _: u32, _: Option<usize>) -> Result<Vec<FlowInfo>, ConnectorError> {
        let rows = Some(self.batches().iter().map(|batch| batch.num_rows() as u64).sum());
        Ok(vec![FlowInfo { name: "rows".into(), rows, ..FlowInfo::default() }])
    }

    fn open(&self, _: usize, _: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError> {
        Ok(Box::new(RowsFlow { rest: self.batches().into_iter().rev().collect() }))
    }
}

/// What has not been read, the next last.
struct RowsFlow {
    rest: Vec<RecordBatch>,
}

impl Flow for RowsFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        while let Some(batch) = self.rest.pop() {
            let rows = batch.num_rows();
            if rows > rows_max {
                self.rest.push(batch.slice(rows_max, rows - rows_max));
            }
            if rows > 0 {
                return Ok(Next::Batch(batch.slice(0, rows.min(rows_max))));
            }
        }
        Ok(Next::End)
    }
}
