//! What is different where windows are sessions.
//!
//! A partial session is a group like any other, with two aggregates more: the least and the
//! greatest time of its rows. They travel with the others and become the session's window when it
//! is over.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use state::Windows;

use crate::error::DataflowError;
use crate::rows::time::last_tick;

/// Takes the times from the end of the values of sessions and makes windows of them: start, end,
/// and time.
pub(super) fn bounds_of(
    values: &mut Vec<ArrayRef>,
    gap: i64,
) -> Result<[ArrayRef; 3], DataflowError> {
    let (Some(last), Some(first)) = (values.pop(), values.pop()) else {
        return Err(DataflowError::Expression("a session has no times".into()));
    };
    let DataType::Timestamp(unit, _) = last.data_type() else {
        return Err(DataflowError::Expression("the time of a session is not a timestamp".into()));
    };
    let ticks = cast(&last, &DataType::Int64)?;
    let ticks = ticks.as_primitive::<Int64Type>();
    let shifted = |by: i64| -> Result<ArrayRef, DataflowError> {
        let shifted = ticks.unary::<_, Int64Type>(|tick| tick.saturating_add(by));
        Ok(cast(&shifted, last.data_type())?)
    };
    let (end, time) = (shifted(gap)?, shifted(gap - last_tick(*unit))?);
    Ok([first, end, time])
}

/// The watermark of what is given out when all sessions are that are over at `watermark`: those
/// that are left end in the first slice that is not complete, or later.
pub(super) fn complete(windows: &Windows, watermark: i64, unit: TimeUnit) -> i64 {
    windows.slice_start(windows.horizon(watermark)).saturating_sub(last_tick(unit))
}
