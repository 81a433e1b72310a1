//! The time until which an operator does not need rows, so that they may be spilled.

use arrow::record_batch::RecordBatch;

use super::Keyed;

/// When an operator needs the rows of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillSpec {
    /// A timestamp: not before the watermark has reached it.
    pub until: usize,
    /// Columns such that rows that differ in them have nothing to do with each other, the same
    /// of all inputs; none where there are no such columns.
    pub apart: Vec<usize>,
    /// Whether it keeps some of them when it has given out what there is at that time.
    pub keeps: bool,
}

impl Keyed {
    /// The spill specification of each input, if all have one.
    pub(crate) fn spill_specs(&self) -> Option<Vec<SpillSpec>> {
        (0..self.inputs.len()).map(|input| self.operator.spill_spec(input)).collect()
    }
}

/// Batches, with the number of their input.
pub type InputBatches = Vec<(usize, RecordBatch)>;
