//! Texts as numbers and times.
//!
//! A number is read from its digits, so that none is lost on the way: not in a DECIMAL of 38
//! digits, and not in `9007199254740993.0`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, Int64Array, PrimitiveArray,
    StringArray,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::compute::kernels::cast_utils::{Parser, parse_decimal};
use arrow::compute::kernels::zip::zip;
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;

use super::{Fitted, cast_safe, valid};

/// The forms that a text may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::format) enum Texts {
    /// Numbers, times as they are written.
    Plain,
    /// Values of JSON, whose numbers may be times too: in ticks of the column.
    Json,
}

/// The digits that an exact number has at most: DECIMAL(76) and its places.
const DIGITS_MAX: i64 = 160;

/// A type of numbers that are read from text.
pub(in crate::format) trait Number: ArrowPrimitiveType {
    /// The number that a text is, where the type has it.
    fn read(text: &str) -> Option<Self::Native>;
}

macro_rules! whole_numbers {
    ($($of:ty),*) => {$(
        impl Number for $of {
            fn read(text: &str) -> Option<Self::Native> {
                let exactly = || digits(text, 0)?.parse::<i128>().ok()?.try_into().ok();
                <Self as Parser>::parse(text).or_else(exactly)
            }
        }
    )*};
}
whole_numbers!(Int8Type, Int16Type, Int32Type, Int64Type);
whole_numbers!(UInt8Type, UInt16Type, UInt32Type, UInt64Type);

macro_rules! nearest_numbers {
    ($($of:ty),*) => {$(
        impl Number for $of {
            fn read(text: &str) -> Option<Self::Native> {
                let number = <Self as Parser>::parse(text)?;
                // A text of digits is no infinity.
                let is_beyond = || text.bytes().any(|byte| byte.is_ascii_digit());
                (number.is_finite() || !is_beyond()).then_some(number)
            }
        }
    )*};
}
nearest_numbers!(Float32Type, Float64Type);

/// The digits of a number times ten to the power of `scale`; `None` where it is no number, or has
/// digits behind those.
fn digits(text: &str, scale: i8) -> Option<String> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (number, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], unsigned[at + 1..].parse::<i32>().ok()?),
        None => (unsigned, 0),
    };
    let (before, behind) = number.split_once('.').unwrap_or((number, ""));
    let all = || before.bytes().chain(behind.bytes());
    if all().next().is_none() || !all().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let Some(first) = all().position(|byte| byte != b'0') else { return Some("0".to_owned()) };
    let last = all().count() - all().rev().position(|byte| byte != b'0')?;
    // How many of the digits from the first one on stand before the point.
    let point = before.len() as i64 + i64::from(exponent) + i64::from(scale) - first as i64;
    if point > DIGITS_MAX || ((last - first) as i64) > point {
        return None;
    }
    let mut out = String::from(if negative { "-" } else { "" });
    out.extend(all().take(last).skip(first).map(char::from));
    out.extend(std::iter::repeat_n('0', point as usize - (last - first)));
    Some(out)
}

/// Texts in the type `to`.
pub(super) fn fit(text: &StringArray, to: &DataType, texts: Texts) -> Result<Fitted, ArrowError> {
    match to {
        DataType::Int8 => Ok(numbers::<Int8Type>(text)),
        DataType::Int16 => Ok(numbers::<Int16Type>(text)),
        DataType::Int32 => Ok(numbers::<Int32Type>(text)),
        DataType::Int64 => Ok(numbers::<Int64Type>(text)),
        DataType::UInt8 => Ok(numbers::<UInt8Type>(text)),
        DataType::UInt16 => Ok(numbers::<UInt16Type>(text)),
        DataType::UInt32 => Ok(numbers::<UInt32Type>(text)),
        DataType::UInt64 => Ok(numbers::<UInt64Type>(text)),
        DataType::Float32 => Ok(numbers::<Float32Type>(text)),
        DataType::Float64 => Ok(numbers::<Float64Type>(text)),
        DataType::Decimal32(..) => Ok(decimals::<Decimal32Type>(text, to)),
        DataType::Decimal64(..) => Ok(decimals::<Decimal64Type>(text, to)),
        DataType::Decimal128(..) => Ok(decimals::<Decimal128Type>(text, to)),
        DataType::Decimal256(..) => Ok(decimals::<Decimal256Type>(text, to)),
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 if texts == Texts::Json => {
            times(text, to)
        }
        DataType::Binary => Ok(bytes(text)),
        _ => written(text, to),
    }
}

fn parsed<T: ArrowPrimitiveType>(
    text: &StringArray,
    of: &DataType,
    read: impl Fn(&str) -> Option<T::Native>,
) -> Fitted {
    let read = |text: Option<&str>| text.and_then(|text| read(text.trim_ascii()));
    let column: PrimitiveArray<T> = text.iter().map(read).collect();
    let column: ArrayRef = Arc::new(column.with_data_type(of.clone()));
    if column.null_count() == text.null_count() {
        return Fitted::whole(column);
    }
    let lost = &set(text) & &!&valid(&column);
    Fitted::new(column, lost)
}

fn set(text: &StringArray) -> BooleanBuffer {
    match text.nulls() {
        Some(nulls) => nulls.inner().clone(),
        None => BooleanBuffer::new_set(text.len()),
    }
}

fn numbers<T: Number>(text: &StringArray) -> Fitted {
    parsed::<T>(text, &T::DATA_TYPE, T::read)
}

fn decimals<T: DecimalType>(text: &StringArray, to: &DataType) -> Fitted {
    let (DataType::Decimal32(precision, scale)
    | DataType::Decimal64(precision, scale)
    | DataType::Decimal128(precision, scale)
    | DataType::Decimal256(precision, scale)) = *to
    else {
        return Fitted::new(Arc::new(PrimitiveArray::<T>::new_null(text.len())), set(text));
    };
    parsed::<T>(text, to, |text| {
        let digits = digits(text, scale)?;
        // The library counts them in a byte.
        let fits = digits.trim_start_matches('-').len() <= usize::from(precision);
        fits.then(|| parse_decimal::<T>(&digits, precision, 0).ok()).flatten()
    })
}

/// Bytes, of which each is two digits of base 16: so they are written, in CSV as in JSON.
fn bytes(text: &StringArray) -> Fitted {
    let read = |text: Option<&str>| text.and_then(|text| bytes_of(text.trim_ascii()));
    let column: ArrayRef = Arc::new(text.iter().map(read).collect::<BinaryArray>());
    let lost = &set(text) & &!&valid(&column);
    Fitted::new(column, lost)
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
}

/// Texts in the format of the type.
fn written(text: &StringArray, to: &DataType) -> Result<Fitted, ArrowError> {
    let text: ArrayRef = Arc::new(text.clone());
    cast_safe(&text, to)
}

/// Points in time as they are written, or numbers of ticks. Eight digits are a date, as elsewhere.
fn times(text: &StringArray, to: &DataType) -> Result<Fitted, ArrowError> {
    let is_day = matches!(to, DataType::Date32 | DataType::Date64);
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let ticks_of = |text: &str| is_number(text) && !(is_day && text.len() == 8);
    let numbers = BooleanBuffer::collect_bool(text.len(), |row| {
        text.is_valid(row) && ticks_of(text.value(row).trim_ascii())
    });
    if numbers.count_set_bits() == 0 {
        return written(text, to);
    }
    let ticks: Int64Array = (0..text.len())
        .map(|row| numbers.value(row).then(|| Int64Type::read(text.value(row).trim_ascii()))?)
        .collect();
    let words = numbers.iter().zip(text).map(|(number, text)| text.filter(|_| !number));
    let words = written(&words.collect(), to)?;
    let ticks: ArrayRef = Arc::new(ticks);
    let ticks = match to {
        DataType::Date32 => cast_safe(&ticks, to)?.column,
        _ => cast(&ticks, to)?,
    };
    let column = zip(&BooleanArray::new(numbers, None), &ticks, &words.column)?;
    let lost = &set(text) & &!&valid(&column);
    Ok(Fitted::new(column, lost))
}
