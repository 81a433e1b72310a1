//! Rows that are known when the statement is planned: `VALUES`, `SHOW TABLES`.

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, FlowContext, FlowInfo, Next, Source};

/// Rows that are known.
pub(crate) struct Rows {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

impl Rows {
    fn count(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
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
        let rows = Some(self.count() as u64);
        Ok(vec![FlowInfo { name: "rows".into(), rows, ..FlowInfo::default() }])
    }

    fn open(&self, _: usize, _: &FlowContext) -> Result<Box<dyn Flow>, ConnectorError> {
        Ok(Box::new(RowsFlow { rest: self.batches.iter().rev().cloned().collect() }))
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
