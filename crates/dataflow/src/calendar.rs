//! Times that no text can say: points beyond the calendar, times beyond a day, and durations of
//! more milliseconds than a number has. Arrow files and casts can hold them. The library would
//! write its error as the value, or panic, so that they are refused before anything is written.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, UInt64Array};
use arrow::compute::{cast, max, min, take};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::temporal_conversions::as_datetime;
use arrow::util::display::{ArrayFormatter, FormatOptions};

const DAY_SECONDS: i64 = 86_400;
/// No zone is further from UTC. A time is written in its zone, where the calendar must hold too.
const ZONE_MAX_SECONDS: i64 = DAY_SECONDS;
/// A text of a duration counts milliseconds below this.
const DURATION_MILLISECONDS_MAX: i64 = i64::MAX;

/// Refuses a batch in which a time cannot be written as text.
///
/// # Errors
/// The column, the number that stands in it, and why there is no text of it.
pub fn check_times(batch: &RecordBatch) -> Result<(), String> {
    let schema = batch.schema();
    let mut columns = schema.fields().iter().zip(batch.columns());
    match columns.find_map(|(field, column)| Some((field, unwritable(column)?))) {
        None => Ok(()),
        Some((field, Unwritable { ticks, why })) => {
            Err(format!("column '{}': {ticks} is {why}", field.name()))
        }
    }
}

/// The array, if each time of it can be written as text. Of lists and the like only what its rows
/// show is left: a cast goes over all that lies beneath.
///
/// # Errors
/// The number that stands in it, and why there is no text of it.
pub fn checked(array: &ArrayRef) -> Result<ArrayRef, String> {
    let shown = shown(array).map_err(|error| error.to_string())?;
    match unwritable(&shown) {
        None => Ok(shown),
        Some(Unwritable { ticks, why }) => Err(format!("{ticks} is {why}")),
    }
}

/// The array, with NULL for each row in which a time cannot be written as text, and of lists and
/// the like only what its rows show.
///
/// # Errors
/// Of Arrow, for a type whose rows cannot be taken.
pub fn writable(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let all = shown(array)?;
    if unwritable(&all).is_none() {
        return Ok(all);
    }
    let has_text = |row: &usize| unwritable(&all.slice(*row, 1)).is_none();
    let rows = (0..all.len()).map(|row| Some(row).filter(has_text).map(|row| row as u64));
    take(&all, &rows.collect::<UInt64Array>(), None)
}

/// The array without what lies between the values of its rows, and beneath rows that are NULL.
fn shown(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !array.data_type().is_nested() {
        return Ok(array.clone());
    }
    let rows = (0..array.len() as u64).collect();
    take(array, &UInt64Array::new(rows, array.nulls().cloned()), None)
}

/// The value of a row as text, as its number if it has none.
///
/// # Errors
/// Of Arrow, for a type that has no text.
pub fn text_of(array: &dyn Array, row: usize) -> Result<String, ArrowError> {
    let value = array.slice(row, 1);
    match unwritable(&value) {
        None => {
            let options = FormatOptions::default().with_null("NULL");
            ArrayFormatter::try_new(&value, &options)?.value(0).try_to_string()
        }
        Some(Unwritable { ticks, .. }) => Ok(ticks.to_string()),
    }
}

/// A value without a text.
#[derive(Debug, PartialEq, Eq)]
struct Unwritable {
    /// In the unit of its column.
    ticks: i64,
    why: &'static str,
}

/// One of a column, or of what lies within its values.
fn unwritable(column: &ArrayRef) -> Option<Unwritable> {
    match column.data_type() {
        DataType::Struct(_) => column.as_struct().columns().iter().find_map(unwritable),
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            unwritable(&elements(list.offsets(), list.values().as_ref()))
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            unwritable(&elements(list.offsets(), list.values().as_ref()))
        }
        DataType::ListView(_) => unwritable(column.as_list_view::<i32>().values()),
        DataType::LargeListView(_) => unwritable(column.as_list_view::<i64>().values()),
        DataType::RunEndEncoded(_, value) => unwritable(&cast(column, value.data_type()).ok()?),
        DataType::Map(..) => {
            let map = column.as_map();
            unwritable(&elements(map.offsets(), map.entries()))
        }
        DataType::FixedSizeList(..) => unwritable(column.as_fixed_size_list().values()),
        DataType::Dictionary(_, value) => unwritable(&cast(column, value).ok()?),
        of => {
            let why = reason(of)?;
            let ticks = cast(column, &DataType::Int64).ok()?;
            let ticks = ticks.as_primitive::<Int64Type>();
            // Writable values lie between two bounds, so that the outermost tell of all.
            let mut outermost = [min(ticks), max(ticks)].into_iter().flatten();
            let ticks = outermost.find(|ticks| !is_writable(of, *ticks))?;
            Some(Unwritable { ticks, why })
        }
    }
}

/// Why a value of a type may have no text; `None` if each has one.
fn reason(of: &DataType) -> Option<&'static str> {
    match of {
        DataType::Date32 | DataType::Date64 => Some("a point in time beyond the calendar"),
        DataType::Timestamp(unit, _) if *unit != TimeUnit::Nanosecond => {
            Some("a point in time beyond the calendar")
        }
        DataType::Time32(_) | DataType::Time64(_) => Some("no time of a day"),
        DataType::Duration(TimeUnit::Second | TimeUnit::Millisecond) => {
            Some("a duration that is too long for a text")
        }
        _ => None,
    }
}

fn is_writable(of: &DataType, ticks: i64) -> bool {
    match of {
        DataType::Date32 => as_datetime::<Date32Type>(ticks).is_some(),
        DataType::Date64 => as_datetime::<Date64Type>(ticks).is_some(),
        DataType::Timestamp(unit, zone) => {
            let shift = zone.as_ref().map_or(0, |_| ZONE_MAX_SECONDS * per_second(*unit));
            let both = [ticks.checked_sub(shift), ticks.checked_add(shift)];
            both.into_iter().all(|ticks| ticks.is_some_and(|ticks| in_calendar(*unit, ticks)))
        }
        DataType::Time32(unit) | DataType::Time64(unit) => {
            (0..DAY_SECONDS * per_second(*unit)).contains(&ticks)
        }
        DataType::Duration(TimeUnit::Second) => {
            let longest = DURATION_MILLISECONDS_MAX / 1000;
            (-longest..=longest).contains(&ticks)
        }
        DataType::Duration(TimeUnit::Millisecond) => {
            (-DURATION_MILLISECONDS_MAX..=DURATION_MILLISECONDS_MAX).contains(&ticks)
        }
        _ => true,
    }
}

fn in_calendar(unit: TimeUnit, ticks: i64) -> bool {
    let instant = match unit {
        TimeUnit::Second => as_datetime::<TimestampSecondType>(ticks),
        TimeUnit::Millisecond => as_datetime::<TimestampMillisecondType>(ticks),
        TimeUnit::Microsecond => as_datetime::<TimestampMicrosecondType>(ticks),
        TimeUnit::Nanosecond => as_datetime::<TimestampNanosecondType>(ticks),
    };
    instant.is_some()
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The elements of the lists of an array, which may be a part of a longer one.
fn elements<O: OffsetSizeTrait>(offsets: &[O], values: &dyn Array) -> ArrayRef {
    let [first, last] =
        [offsets.first(), offsets.last()].map(|at| at.map_or(0, |at| at.as_usize()));
    values.slice(first, last - first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ListArray, TimestampMicrosecondArray};

    use super::*;

    #[test]
    fn only_the_lists_of_the_rows_are_looked_through() {
        let values = vec![Some(vec![Some(0)]), Some(vec![Some(i64::MAX)])];
        let list = ListArray::from_iter_primitive::<TimestampSecondType, _, _>(values);
        let list: ArrayRef = Arc::new(list);
        assert_eq!(unwritable(&list).map(|found| found.ticks), Some(i64::MAX));
        assert_eq!(unwritable(&list.slice(0, 1)), None);
    }

    /// The formatter panics at such a time in a zone.
    #[test]
    fn a_value_without_a_text_is_shown_by_its_number() {
        let ticks = 8_210_266_876_799_999_999;
        let times = TimestampMicrosecondArray::from(vec![Some(0), Some(ticks), None]);
        let times: ArrayRef = Arc::new(times.with_timezone("+14:00"));
        let texts = [0, 1, 2].map(|row| text_of(&times, row).unwrap());
        assert_eq!(texts, ["1970-01-01T14:00:00+14:00", &ticks.to_string(), "NULL"]);
        let kept = writable(&times).unwrap();
        assert_eq!([0, 1, 2].map(|row| kept.is_null(row)), [false, true, true]);
        assert!(checked(&times).unwrap_err().starts_with("8210266876799999999 is a point"));
    }
}
