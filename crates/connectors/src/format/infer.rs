//! Infers the type of a column of text.

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Field, Int64Type, TimeUnit};

use super::rows::convert;

/// Records that are looked at.
pub(crate) const SAMPLE_ROWS: usize = 1000;

/// The narrowest type that holds every text: BIGINT, DOUBLE, BOOLEAN, DATE, TIMESTAMP, VARCHAR.
pub(crate) fn narrowest(text: &ArrayRef) -> DataType {
    let values: Vec<&str> = text.as_string::<i32>().iter().flatten().collect();
    if values.is_empty() {
        return DataType::Utf8;
    }
    let holds = |data_type: &DataType| {
        let mut refused = Vec::new();
        let field = Field::new("", data_type.clone(), true);
        convert(text, &field, &mut refused).is_ok() && refused.is_empty()
    };
    // Read as it is written: 1.0 was meant to have a fraction.
    let whole = |text: &&str| <Int64Type as Parser>::parse(text.trim_ascii()).is_some();
    let words =
        |text: &&str| text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false");
    if values.iter().all(words) {
        return DataType::Boolean;
    }
    if values.iter().all(|text| text.len() == 10) && holds(&DataType::Date32) {
        return DataType::Date32;
    }
    if values.iter().all(whole) {
        return DataType::Int64;
    }
    [DataType::Float64, DataType::Timestamp(unit_of(&values), None)]
        .into_iter()
        .find(holds)
        .unwrap_or(DataType::Utf8)
}

/// The coarsest unit, from milliseconds on, that holds every fraction of a second.
fn unit_of(values: &[&str]) -> TimeUnit {
    let digits = |text: &&str| {
        let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
        fraction.bytes().take_while(u8::is_ascii_digit).count()
    };
    match values.iter().map(digits).max() {
        None | Some(0..=3) => TimeUnit::Millisecond,
        Some(4..=6) => TimeUnit::Microsecond,
        Some(_) => TimeUnit::Nanosecond,
    }
}
