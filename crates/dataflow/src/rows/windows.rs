//! Rows by the windows that they are in.

use std::collections::BTreeMap;

use arrow::array::UInt32Array;
use arrow::buffer::ScalarBuffer;
use arrow::compute::take_record_batch;
use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::rows::time::ticks;

/// The ends of the windows of a batch's rows.
pub(crate) fn ends_of(batch: &RecordBatch, end: usize) -> Result<ScalarBuffer<i64>, DataflowError> {
    ticks(batch.column(end))
        .cloned()
        .ok_or_else(|| DataflowError::Expression("the end of a window is not a timestamp".into()))
}

/// The rows of a batch by the end of their window.
pub(crate) fn by_window(
    batch: &RecordBatch,
    end: usize,
) -> Result<Vec<(i64, RecordBatch)>, DataflowError> {
    let ends = ends_of(batch, end)?;
    // Rows that come in the order of their windows, as most do, are not copied.
    if ends.is_sorted() {
        let mut from = 0;
        let part = |run: &[i64]| {
            from += run.len();
            (run[0], batch.slice(from - run.len(), run.len()))
        };
        return Ok(ends.chunk_by(i64::eq).map(part).collect());
    }
    let all: Vec<u32> = (0..ends.len() as u32).collect();
    let part = |(end, rows): (i64, Vec<u32>)| {
        Ok((end, take_record_batch(batch, &UInt32Array::from(rows))?))
    };
    by_end(&ends, &all).into_iter().map(part).collect()
}

/// The numbers of some rows of a batch by the end of their window.
pub(crate) fn numbers_by_window(
    batch: &RecordBatch,
    end: usize,
    numbers: &[u32],
) -> Result<BTreeMap<i64, Vec<u32>>, DataflowError> {
    Ok(by_end(&ends_of(batch, end)?, numbers))
}

fn by_end(ends: &[i64], numbers: &[u32]) -> BTreeMap<i64, Vec<u32>> {
    let mut by_end: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    let end = |&row: &u32| ends[row as usize];
    for run in numbers.chunk_by(|one, next| end(one) == end(next)) {
        by_end.entry(end(&run[0])).or_default().extend_from_slice(run);
    }
    by_end
}
