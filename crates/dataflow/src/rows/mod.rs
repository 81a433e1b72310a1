//! Rows between operators: a batch with what is known of the times of its rows.

pub(crate) mod chunks;
pub(crate) mod keys;
pub(crate) mod narrow;
pub(crate) mod origin;
pub(crate) mod selection;
pub mod size;
pub mod time;
pub mod type_name;
pub(crate) mod windows;
pub(crate) mod wire;

use arrow::array::Int64Array;
use arrow::record_batch::RecordBatch;
use state::Times;

/// Rows on their way, in the order of their flow.
#[derive(Clone)]
pub(crate) struct Rows {
    /// The rows.
    pub(crate) batch: RecordBatch,
    /// For each row the watermark that it met, if some row lags behind its own.
    pub(crate) watermarks: Option<Int64Array>,
    /// The least and the greatest event time, where they are known: in a batch in order.
    pub(crate) span: Option<(i64, i64)>,
}

impl Rows {
    /// Rows that cannot be late.
    pub(crate) fn on_time(batch: RecordBatch) -> Self {
        Self { batch, watermarks: None, span: None }
    }
}

/// A batch as it was read, which the loop of a fused scan takes in place of
/// [`Reader::take`](crate::runtime::reader::Reader::take).
#[derive(Clone, Copy)]
pub(crate) struct FusedRows<'a> {
    /// The rows.
    pub(crate) batch: &'a RecordBatch,
    /// Their times, if there is a watermark. By the first and the last they may be in order: the
    /// loop looks at all, and stops where they are not.
    pub(crate) times: Option<Times<'a>>,
}
