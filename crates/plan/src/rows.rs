//! Tables that the planner makes itself: rows known when the statement is planned (`VALUES`, `SHOW
//! TABLES`), and the one row of an aggregate over nothing.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::job::Step;
use dataflow::sink::{Placement, Sink, SinkWriter};
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

/// A sink behind an aggregate without keys and window, which has one row even where there was no
/// input: `count(*)` of nothing is 0. `step` makes the sink's columns of the aggregate's.
pub(crate) struct OneRow {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) step: Option<Arc<dyn Step>>,
    /// The aggregate over no rows.
    pub(crate) of_nothing: RecordBatch,
}

impl Sink for OneRow {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, worker: u32) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(OneRowWriter {
            writer: self.sink.open(worker)?,
            step: self.step.clone(),
            of_nothing: Some(self.of_nothing.clone()),
        }))
    }
}

struct OneRowWriter {
    writer: Box<dyn SinkWriter>,
    step: Option<Arc<dyn Step>>,
    /// Until a row has come.
    of_nothing: Option<RecordBatch>,
}

impl SinkWriter for OneRowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.of_nothing = None;
        let Some(step) = &self.step else { return self.writer.write(batch) };
        let stepped = step.apply(batch).map_err(|error| match error {
            DataflowError::Connector(error) => error,
            other => ConnectorError::Io {
                place: "the result".into(),
                message: other.to_string(),
                hint: None,
            },
        })?;
        if stepped.batch.num_rows() == 0 { Ok(()) } else { self.writer.write(&stepped.batch) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.writer.flush()
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        if let Some(row) = self.of_nothing.take() {
            self.write(&row)?;
        }
        self.writer.commit()
    }
}
