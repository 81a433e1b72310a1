//! Rows that an operator has no use for before some time.

use arrow::record_batch::RecordBatch;

use super::Keyed;

/// When an operator needs the rows of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// A timestamp: not before the watermark has reached it.
    pub until: usize,
    /// Columns such that rows that differ in them have nothing to do with each other, the same of
    /// all inputs; none where there are no such columns.
    pub apart: Vec<usize>,
    /// Whether it keeps some of them when it has given out what there is at that time.
    pub keeps: bool,
}

impl Keyed {
    /// Until when the rows of each input are of no use to the operator, if that is known of all.
    pub(crate) fn waits(&self) -> Option<Vec<Waits>> {
        (0..self.inputs.len()).map(|input| self.operator.waits(input)).collect()
    }
}

/// Batches, with the number of their input.
pub type Given = Vec<(usize, RecordBatch)>;
