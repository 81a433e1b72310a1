//! The watermarks that rows meet which come behind later ones.

use arrow::array::Int64Array;

/// Rows between two looks at the running maximum where no row lags.
const BLOCK: usize = 64;

/// The greatest time after `times`, given the greatest before them; and for each row the watermark
/// that it met, if some row lies before its own.
pub(super) fn row_watermarks(times: &[i64], reached: i64, delay: i64) -> (i64, Option<Int64Array>) {
    let mut greatest = reached;
    let mut lagging = false;
    for block in times.chunks(BLOCK) {
        let (least, most) = extremes(block);
        let after = greatest.max(most);
        if least < after.saturating_sub(delay) {
            lagging |= lags(block, greatest, delay);
        }
        greatest = after;
    }
    if !lagging {
        return (greatest, None);
    }
    let mut running = reached;
    let watermarks = times.iter().map(|&time| {
        let watermark = running.saturating_sub(delay);
        running = running.max(time);
        watermark
    });
    (greatest, Some(Int64Array::from_iter_values(watermarks)))
}

fn extremes(times: &[i64]) -> (i64, i64) {
    times.iter().fold((i64::MAX, i64::MIN), |(least, most), &t| (least.min(t), most.max(t)))
}

fn lags(times: &[i64], mut greatest: i64, delay: i64) -> bool {
    times.iter().any(|&time| {
        let lags = time < greatest.saturating_sub(delay);
        greatest = greatest.max(time);
        lags
    })
}
