//! `blackhole`: takes rows and keeps none. For benchmarks, and to run a query for its counters.
//!
//! Every worker writes to its own; nothing is gathered, so the sink costs no exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter};
use dataflow::source::Source;

use crate::options::refuse;

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

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn infer(&self, _options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(None)
    }

    fn source(
        &self,
        _table: &TableDef,
        _projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        Err(refuse(
            "connector",
            "'blackhole' can only be written to",
            Some("read from 'file' or 'generator'".into()),
        ))
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Sink for Blackhole {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _worker: u32) -> Result<Box<dyn SinkWriter>, ConnectorError> {
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
