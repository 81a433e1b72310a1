//! Which rows of a batch come too late, wholly or for some of their windows.

use std::collections::BTreeMap;

use arrow::array::{BooleanArray, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::record_batch::RecordBatch;
use state::{RowPlace, Windows};

use crate::error::DataflowError;
use crate::rows::time::without_late;

/// A batch whose late rows are sorted out.
pub(super) struct Sorted {
    /// Rows for which no window has fired.
    pub(super) on_time: RecordBatch,
    /// Rows for which some windows have fired, by the key of what has the others. A row is there
    /// once for each key.
    pub(super) rest: Vec<(i64, RecordBatch)>,
    /// How many rows are in no window any more.
    pub(super) late: u64,
}

/// Sorts out the rows of a batch by the watermark that each of them met.
///
/// # Errors
/// Those of Arrow.
pub(super) fn sort_out(
    windows: &Windows,
    batch: &RecordBatch,
    times: &[i64],
    watermarks: &[i64],
) -> Result<Sorted, DataflowError> {
    if let Some(gap) = windows.gap() {
        let (on_time, late) = without_late(batch, times, watermarks, gap)?;
        return Ok(Sorted { on_time, rest: Vec::new(), late });
    }
    let mut rest: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    let mut late = 0;
    // The slice of the row before, which in most cases is that of the next too, and where its first
    // window ends.
    let (mut start, mut end, mut first_end) = (0, 0, 0);
    let mut on_time = Vec::with_capacity(times.len());
    for (row, (&time, &watermark)) in times.iter().zip(watermarks).enumerate() {
        if time < start || time >= end {
            start = windows.slice_start(time);
            end = windows.slice_end(start);
            first_end = windows.window_after(start, i64::MIN).map_or(i64::MAX, |first| first.end);
        }
        on_time.push(first_end > watermark);
        if first_end > watermark {
            continue;
        }
        let mut put = |key| rest.entry(key).or_default().push(row as u32);
        match windows.place(time, watermark) {
            RowPlace::Slice(start) => put(windows.slice_key(start)),
            RowPlace::Windows => {
                windows.ends_of(start, watermark).for_each(|end| put(windows.window_key(end)));
            }
            RowPlace::Late => late += 1,
        }
    }
    if late == 0 && rest.is_empty() {
        return Ok(Sorted { on_time: batch.clone(), rest: Vec::new(), late });
    }
    let rest = rest
        .into_iter()
        .map(|(key, rows)| Ok((key, take_record_batch(batch, &UInt32Array::from(rows))?)));
    let rest = rest.collect::<Result<_, DataflowError>>()?;
    let on_time = filter_record_batch(batch, &BooleanArray::from(on_time))?;
    Ok(Sorted { on_time, rest, late })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn a_row_goes_on_counting_for_windows_that_have_not_fired() {
        let windows = Windows::hopping(10, 5, 0).unwrap();
        let (times, watermarks) = (vec![12, 3, 7, 3, -4], vec![11, 4, 11, 7, 20]);
        let column: ArrayRef = Arc::new(Int64Array::from(times.clone()));
        let batch = RecordBatch::try_from_iter([("ts", column)]).unwrap();
        let sorted = sort_out(&windows, &batch, &times, &watermarks).unwrap();
        let rows =
            |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(rows(&sorted.on_time), [12, 3]);
        let rest: Vec<_> = sorted.rest.iter().map(|(key, batch)| (*key, rows(batch))).collect();
        assert_eq!(rest, [(windows.window_key(10), vec![3]), (windows.window_key(15), vec![7])]);
        assert_eq!(sorted.late, 1);
    }

    #[test]
    fn a_row_may_begin_a_session_until_its_gap_is_over() {
        let windows = Windows::sessions(10).unwrap();
        let (times, watermarks) = (vec![12, 3, 2, -4], vec![12, 12, 12, 20]);
        let column: ArrayRef = Arc::new(Int64Array::from(times.clone()));
        let batch = RecordBatch::try_from_iter([("ts", column)]).unwrap();
        let sorted = sort_out(&windows, &batch, &times, &watermarks).unwrap();
        assert_eq!((sorted.on_time, sorted.rest.len(), sorted.late), (batch.slice(0, 2), 0, 2));
    }

    #[test]
    fn a_batch_on_time_stays_whole() {
        let windows = Windows::cumulating(10, 5, 0).unwrap();
        let times = vec![1, 6];
        let column: ArrayRef = Arc::new(Int64Array::from(times.clone()));
        let batch = RecordBatch::try_from_iter([("ts", column)]).unwrap();
        let sorted = sort_out(&windows, &batch, &times, &[4, 9]).unwrap();
        assert_eq!((sorted.on_time, sorted.rest.len(), sorted.late), (batch.clone(), 0, 0));
        let sorted = sort_out(&windows, &batch, &times, &[5, 9]).unwrap();
        assert_eq!(sorted.rest, [(windows.slice_key(5), batch.slice(0, 1))]);
    }
}
