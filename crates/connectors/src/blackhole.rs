//! `blackhole`: takes rows and keeps none. For benchmarks, and to run a query for its counters.
//!
//! Every worker writes to its own; nothing is gathered, so the sink costs no exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkVisibility, SinkWriter, WriterContext};

/// The connector `blackhole`. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Blackhole {
    rows: Arc<AtomicU64>,
}

impl Blackhole {
    /// Rows swallowed so far by every table of this connector, committed or not.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

impl Connector for Blackhole {
    fn name(&self) -> &'static str {
        "blackhole"
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Sink for Blackhole {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn staging(&self) -> SinkVisibility {
        SinkVisibility::AsTheyCome
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(self.clone()))
    }
}

impl SinkWriter for Blackhole {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}
