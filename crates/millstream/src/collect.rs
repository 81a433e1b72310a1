//! A sink that keeps rows in memory, for programs that want them.

use std::sync::{Arc, Mutex};

use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};

/// A connector that keeps the rows that were published. Clones share them. If nodes are processes,
/// the rows are in the first one.
#[derive(Debug, Clone, Default)]
pub struct Collected(Arc<Mutex<Vec<RecordBatch>>>);

impl Collected {
    /// The rows published since the last call.
    pub fn take(&self) -> Vec<RecordBatch> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// As the place where rows of a bare `SELECT` go.
impl Connector for Collected {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Sink for Collected {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Collector { rows: Vec::new(), to: self.clone() }))
    }
}

struct Collector {
    rows: Vec<RecordBatch>,
    to: Collected,
}

impl SinkWriter for Collector {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        // The arrays may lie in a ring's slot, which would never be free again.
        self.rows.push(dataflow::detach(batch));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.to.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(self.rows);
        Ok(())
    }
}
