//! Rows that are known when the statement is planned: `VALUES`, `SHOW TABLES`.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::{Position, ReaderContext, RowsReader, Source, Split, SplitReader};

/// A source of rows in memory.
pub(crate) struct MemorySource {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Arc<Mutex<Vec<RecordBatch>>>,
}

impl MemorySource {
    fn batches(&self) -> Vec<RecordBatch> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Source for MemorySource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let rows = Some(self.batches().iter().map(|batch| batch.num_rows() as u64).sum());
        Ok(vec![Split { name: "rows".into(), rows, ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(Box::new(RowsReader::open(&split.name, self.batches(), from)?))
    }
}
