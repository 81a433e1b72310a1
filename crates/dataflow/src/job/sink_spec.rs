//! Sinks, as data.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::{DescribeContext, Description, OperatorSpec, SavedState, Statistics, Strategy};
use crate::connector::sink::{Placement, Sink};

/// A table that is written.
#[derive(Clone)]
pub struct SinkSpec {
    /// The table.
    pub sink: Arc<dyn Sink>,
    /// Columns of what reaches it.
    pub schema: SchemaRef,
}

impl OperatorSpec for SinkSpec {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        None
    }

    fn saved_state(&self) -> SavedState {
        SavedState::Nothing
    }

    fn describe(&self, _: &DescribeContext<'_>) -> Description {
        Description { name: "Sink", properties: vec![] }
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        inputs.first().cloned().unwrap_or_default()
    }

    fn strategy(&self, _: usize, workers: u32) -> Strategy {
        match self.sink.placement() {
            Placement::Gather => Strategy::Gather.on(workers),
            Placement::Everywhere => Strategy::Forward,
        }
    }

    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        match strategy {
            Strategy::Forward => Some("every worker writes its rows"),
            Strategy::Gather => Some("worker 0 takes all rows"),
            _ => None,
        }
    }

    /// The windows of worker 0, which waits for room in the sink before it emits rows of its own.
    fn receive_windows(&self, workers: u32) -> u64 {
        match self.sink.placement() {
            Placement::Gather => u64::from(workers.saturating_sub(1)),
            Placement::Everywhere => 0,
        }
    }

    fn sink(&self) -> Option<&Arc<dyn Sink>> {
        Some(&self.sink)
    }
}
