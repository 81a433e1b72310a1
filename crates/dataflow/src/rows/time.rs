//! Event time in ticks: the integers behind a timestamp column, of whatever unit the column has.

use arrow::array::{Array, AsArray, BooleanArray, Int64Array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{
    DataType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use crate::rows::origin::Origin;

/// The ticks of a timestamp column; `None` for another type.
pub fn ticks(array: &dyn Array) -> Option<&ScalarBuffer<i64>> {
    let DataType::Timestamp(unit, _) = array.data_type() else { return None };
    Some(match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
    })
}

/// Ticks of the unit in a second.
pub fn ticks_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Nanoseconds in the greatest unit of which they are a whole number, for a reader.
pub fn span_text(ns: i64) -> String {
    let units = [
        ("day", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    match units.into_iter().find(|(_, size)| ns % size == 0 && ns != 0) {
        Some((unit, size)) => format!("{} {unit}", ns / size),
        None if ns == 0 => "0 s".into(),
        None => format!("{ns} ns"),
    }
}

/// The same of ticks of a timestamp type.
pub(crate) fn ticks_text(ticks: i64, of: &DataType) -> String {
    match of {
        DataType::Timestamp(unit, _) => {
            span_text(ticks.saturating_mul(1_000_000_000 / ticks_per_second(*unit)))
        }
        _ => format!("{ticks} ticks"),
    }
}

/// A time in ticks as milliseconds; the two ends of the axis stay ends.
pub fn to_millis(ticks: i64, unit: TimeUnit) -> i64 {
    match (ticks, unit) {
        (i64::MIN | i64::MAX, _) | (_, TimeUnit::Millisecond) => ticks,
        (_, TimeUnit::Second) => ticks.saturating_mul(1_000),
        _ => ticks.div_euclid(ticks_per_second(unit) / 1_000),
    }
}

/// How far `window_time` is from the end of its window: a millisecond, or a tick where a tick is
/// longer.
pub fn last_tick(unit: TimeUnit) -> i64 {
    (ticks_per_second(unit) / 1_000).max(1)
}

/// The ticks of the rows that a step has let through.
pub(crate) fn ticks_of(ticks: &Int64Array, origin: &Origin) -> Result<Int64Array, ArrowError> {
    Ok(match origin {
        Origin::All => ticks.clone(),
        Origin::Mask(kept) => arrow::compute::filter(ticks, kept)?.as_primitive().clone(),
        Origin::Taken(rows) => arrow::compute::take(ticks, rows, None)?.as_primitive().clone(),
    })
}

/// The rows of a batch that are not late, and how many are: those whose time, and `grace` ticks
/// more, its own of the `watermarks` had reached.
pub(crate) fn without_late(
    batch: &RecordBatch,
    times: &[i64],
    watermarks: &[i64],
    grace: i64,
) -> Result<(RecordBatch, u64), ArrowError> {
    let on_time = |(&time, &watermark): (&i64, &i64)| Some(time.saturating_add(grace) > watermark);
    let on_time: BooleanArray = times.iter().zip(watermarks).map(on_time).collect();
    let late = on_time.len() - on_time.true_count();
    match late {
        0 => Ok((batch.clone(), 0)),
        _ => Ok((filter_record_batch(batch, &on_time)?, late as u64)),
    }
}
