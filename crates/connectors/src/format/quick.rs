//! Values in the form in which they are mostly written, read in one pass over their bytes.
//!
//! Invariant: a value that is given is the one that [`fit`](super::fit) gives for the text; a text
//! of another form gives `None`, and `fit` decides about it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, Int64Array, make_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, TimeUnit};

/// Digits of a whole number that is no overflow in any case.
const WHOLE_DIGITS_MAX: usize = 18;

/// Digits that a double holds exactly.
const EXACT_DIGITS_MAX: usize = 15;

/// The powers of ten that follow the point of a number of so many digits.
const POWERS: [f64; EXACT_DIGITS_MAX + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The same as whole numbers.
const POWERS_OF_TEN: [u64; EXACT_DIGITS_MAX + 1] = {
    let mut powers = [1; EXACT_DIGITS_MAX + 1];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

/// The years that every unit holds and that begin no earlier than 1970.
const YEARS: std::ops::RangeInclusive<u32> = 1970..=2261;

/// Bytes of `YYYY-MM-DD`.
const DATE_BYTES: usize = 10;

/// Bytes of `YYYY-MM-DD hh:mm`.
const MINUTE_BYTES: usize = 16;

/// Bytes of `YYYY-MM-DD hh:mm:ss`.
const TIME_BYTES: usize = 19;

/// Eight bytes as a number; `None` where there are fewer.
#[inline(always)]
pub(super) fn word(text: &[u8], at: usize) -> Option<u64> {
    let bytes = text.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// A byte in each place of a word.
const fn everywhere(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Marks the lowest byte of a word that is zero, and maybe some above it.
#[inline(always)]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(everywhere(1)) & !word & everywhere(0x80)
}

/// Where one of two bytes is found, from `at` on, or the end.
#[inline(always)]
pub(super) fn find2(a: u8, b: u8, text: &[u8], at: usize) -> usize {
    let (mut at, words) = (at, at + 48);
    while at < words {
        let Some(word) = word(text, at) else { break };
        let found = zeros(word ^ everywhere(a)) | zeros(word ^ everywhere(b));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = text.get(at..).unwrap_or_default();
    at + memchr::memchr2(a, b, rest).unwrap_or(rest.len())
}

/// Where the string of JSON at `at` ends with its quotation mark, if it has no escapes.
#[inline(always)]
pub(super) fn string(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let end = find2(b'"', b'\\', text, at + 1);
    (text.get(end) == Some(&b'"')).then_some(end + 1)
}

/// The digits at `at` as a number, and where they end. Of a number that is too large for a word,
/// some are lost.
#[inline(always)]
fn digits(text: &[u8], at: usize) -> (u64, usize) {
    let (mut number, mut end) = (0_u64, at);
    while let Some(word) = word(text, end) {
        let values = word ^ everywhere(b'0');
        // Marks the bytes above nine; a carry goes into bytes behind the first one alone.
        let others = (values | values.wrapping_add(everywhere(0x76))) & everywhere(0x80);
        if others == 0 {
            number = number.wrapping_mul(100_000_000).wrapping_add(eight_digits(values));
            end += 8;
            continue;
        }
        let count = others.trailing_zeros() / 8;
        // Without any, the shift would be one of a whole word.
        let values = values << 1 << (63 - 8 * count);
        let scale = POWERS_OF_TEN[count as usize];
        number = number.wrapping_mul(scale).wrapping_add(eight_digits(values));
        return (number, end + count as usize);
    }
    while let Some(digit) = text.get(end).map(|byte| byte.wrapping_sub(b'0'))
        && digit < 10
    {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    (number, end)
}

/// The number whose digits are the bytes of a word, the first one the lowest.
#[inline(always)]
fn eight_digits(values: u64) -> u64 {
    // Two digits in each second byte, then four in each fourth, then all.
    let pairs = values.wrapping_mul(10 << 8 | 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000 << 32 | 1) >> 32
}

/// The whole number at `at`, and where it ends: as JSON writes it, without a fraction.
#[inline(always)]
pub(super) fn whole(text: &[u8], at: usize) -> Option<(i64, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let (number, end) = digits(text, first);
    let count = end - first;
    let has_zeros = count > 1 && text[first] == b'0';
    if count == 0 || count > WHOLE_DIGITS_MAX || has_zeros || goes_on(text, end) {
        return None;
    }
    let number = number as i64;
    Some((if negative { -number } else { number }, end))
}

/// The number at `at` to the nearest double, and where it ends: as JSON writes it, without an
/// exponent. Both the digits and the power of ten are exact, so that the quotient is the nearest.
#[inline(always)]
pub(super) fn double(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let (mut number, mut end) = digits(text, first);
    let before = end - first;
    let mut behind = 0;
    if text.get(end) == Some(&b'.') {
        let point = end;
        let (fraction, last) = digits(text, point + 1);
        behind = last - point - 1;
        if behind == 0 || behind > EXACT_DIGITS_MAX {
            return None;
        }
        number = number.wrapping_mul(POWERS_OF_TEN[behind]).wrapping_add(fraction);
        end = last;
    }
    let has_zeros = before > 1 && text[first] == b'0';
    if before == 0 || before + behind > EXACT_DIGITS_MAX || has_zeros || goes_on(text, end) {
        return None;
    }
    // Less than 2⁶³: the processor takes it as a signed number.
    let number = number as i64 as f64 / POWERS[behind];
    Some((if negative { -number } else { number }, end))
}

/// Whether what looks like the end of a number is none.
#[inline(always)]
fn goes_on(text: &[u8], end: usize) -> bool {
    matches!(text.get(end), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
}

/// The ticks of a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeTicks {
    Days,
    Of(TimeUnit),
}

impl TimeTicks {
    /// Those of a type; `None` if it is no point in time, or one of a zone.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Date32 => Some(Self::Days),
            DataType::Timestamp(unit, None) => Some(Self::Of(*unit)),
            _ => None,
        }
    }

    /// Reads points in time one after the other.
    pub(super) fn reader(self) -> TimeReader {
        TimeReader { ticks: self, minute: *b"1970-01-01 00:00", seconds: 0 }
    }
}

/// Reads points in time. One that is in the minute of the one before is read faster.
pub(super) struct TimeReader {
    pub(super) ticks: TimeTicks,
    /// The minute read last, and the seconds at its begin.
    minute: [u8; MINUTE_BYTES],
    seconds: i64,
}

impl TimeReader {
    /// The point in time that is written from `at` on, and where it ends: `YYYY-MM-DD` for days,
    /// and `YYYY-MM-DD hh:mm:ss` with up to nine digits behind a point.
    #[inline(always)]
    pub(super) fn read(&mut self, text: &[u8], at: usize) -> Option<(i64, usize)> {
        let text = text.get(at..)?;
        let unit = match self.ticks {
            TimeTicks::Days => {
                return Some((days(text.first_chunk::<DATE_BYTES>()?)?, at + DATE_BYTES));
            }
            TimeTicks::Of(unit) => unit,
        };
        let (minute, behind) = text.split_first_chunk::<MINUTE_BYTES>()?;
        if *minute != self.minute {
            self.seconds = minute_seconds(minute)?;
            self.minute = *minute;
        }
        let (&[colon, s0, s1], behind) = behind.split_first_chunk::<3>()?;
        let seconds = two(s0, s1);
        if colon != b':' || seconds > 59 {
            return None;
        }
        let seconds = self.seconds + i64::from(seconds);
        let mut end = at + TIME_BYTES;
        let mut nanos = 0;
        if behind.first() == Some(&b'.') {
            let (fraction, last) = digits(behind, 1);
            let count = last - 1;
            if count == 0 || count > 9 {
                return None;
            }
            nanos = fraction as i64 * POWERS_OF_TEN[9 - count] as i64;
            end += last;
        }
        let ticks = match unit {
            TimeUnit::Second => seconds,
            TimeUnit::Millisecond => seconds * 1_000 + nanos / 1_000_000,
            TimeUnit::Microsecond => seconds * 1_000_000 + nanos / 1_000,
            TimeUnit::Nanosecond => seconds * 1_000_000_000 + nanos,
        };
        Some((ticks, end))
    }
}

/// Ticks as a column of the type `of`, which has [such](TimeTicks::of).
pub(super) fn times(ticks: Vec<i64>, valid: Option<NullBuffer>, of: &DataType) -> ArrayRef {
    let array: ArrayRef = match of {
        DataType::Date32 => {
            let days: Vec<i32> = ticks.into_iter().map(|days| days as i32).collect();
            Arc::new(Int32Array::new(days.into(), valid))
        }
        _ => Arc::new(Int64Array::new(ticks.into(), valid)),
    };
    // The same ticks under another name.
    let data = array.to_data().into_builder().data_type(of.clone());
    data.build().map_or(array, make_array)
}

/// Two digits; far more than 99 if they are none.
#[inline(always)]
fn two(high: u8, low: u8) -> u32 {
    let (high, low) = (u32::from(high.wrapping_sub(b'0')), u32::from(low.wrapping_sub(b'0')));
    let wrong = u32::from(high > 9) | u32::from(low > 9);
    high * 10 + low + wrong * 10_000
}

/// Days since 1970 of `YYYY-MM-DD`.
#[inline(always)]
fn days(date: &[u8; DATE_BYTES]) -> Option<i64> {
    let [y0, y1, y2, y3, dash, m0, m1, dash2, d0, d1] = *date;
    let (century, year) = (two(y0, y1), two(y2, y3));
    let (year, month, day) = (century * 100 + year, two(m0, m1), two(d0, d1));
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    let is_date = (dash, dash2) == (b'-', b'-') && (1..=length).contains(&day);
    // A wrong pair of digits makes the year, the month or the day too large.
    if !is_date || !YEARS.contains(&year) {
        return None;
    }
    // Years that begin in March have the day of a leap year last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some(i64::from(days) - 719_468)
}

/// Seconds since 1970 of `YYYY-MM-DD hh:mm`.
#[inline(always)]
fn minute_seconds(minute: &[u8; MINUTE_BYTES]) -> Option<i64> {
    let (date, of_day) = minute.split_first_chunk::<DATE_BYTES>()?;
    let &[space, h0, h1, colon, m0, m1] = of_day else { return None };
    let (hours, minutes) = (two(h0, h1), two(m0, m1));
    let is_time = matches!(space, b' ' | b'T') && colon == b':' && hours < 24 && minutes < 60;
    let days = days(date)?;
    is_time.then(|| days * 86_400 + i64::from(hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, StringArray};
    use arrow::compute::cast;
    use arrow::datatypes::{Float64Type, Int64Type};
    use proptest::prelude::*;

    use super::*;
    use crate::format::fit::{Texts, fit};

    /// The value by the rule of all formats, as a number.
    fn slow(text: &str, of: &DataType, texts: Texts) -> Option<i64> {
        let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
        let fitted = fit(&text, of, texts).unwrap();
        let number = match of {
            DataType::Date32 => {
                cast(&cast(&fitted.column, &DataType::Int32).unwrap(), &DataType::Int64)
            }
            _ => cast(&fitted.column, &DataType::Int64),
        };
        let number = number.unwrap();
        number.is_valid(0).then(|| number.as_primitive::<Int64Type>().value(0))
    }

    /// Whether what is read of a whole text is what the rule gives.
    fn is_same(text: &str) {
        let bytes = text.as_bytes();
        let is_whole = |end: usize| end == text.len();
        if let Some((number, _)) = whole(bytes, 0).filter(|(_, end)| is_whole(*end)) {
            assert_eq!(Some(number), slow(text, &DataType::Int64, Texts::Json), "{text}");
        }
        if let Some((number, _)) = double(bytes, 0).filter(|(_, end)| is_whole(*end)) {
            let array: ArrayRef = Arc::new(StringArray::from(vec![text]));
            let fitted = fit(&array, &DataType::Float64, Texts::Json).unwrap();
            let expected = fitted.column.as_primitive::<Float64Type>().value(0);
            assert_eq!(number.to_bits(), expected.to_bits(), "{text}");
        }
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let units = [Second, Millisecond, Microsecond, Nanosecond];
        let units = units.map(|unit| DataType::Timestamp(unit, None));
        for of in units.iter().chain([&DataType::Date32]) {
            let ticks = TimeTicks::of(of).unwrap().reader().read(bytes, 0);
            if let Some((ticks, _)) = ticks.filter(|(_, end)| is_whole(*end)) {
                for texts in [Texts::Json, Texts::Plain] {
                    assert_eq!(Some(ticks), slow(text, of, texts), "{text} as {of}");
                }
            }
        }
    }

    #[test]
    fn each_day_is_the_day_of_the_calendar() {
        let mut day = -1;
        for year in 1970..=2261 {
            for month in 1..=12 {
                for of_month in 1..=31 {
                    let text = format!("{year}-{month:02}-{of_month:02}");
                    let read = TimeTicks::Days.reader().read(text.as_bytes(), 0);
                    if let Some((read, 10)) = read {
                        day += 1;
                        assert_eq!(read, day, "{text}");
                    } else {
                        assert!(of_month > 28, "{text}");
                    }
                }
            }
        }
        // 2262-01-01 is so many days behind 1970-01-01.
        assert_eq!(day + 1, 106_651);
        is_same("2000-02-29");
        is_same("2100-02-29");
    }

    #[test]
    fn texts_of_other_forms_are_left_to_the_rule() {
        for text in ["", "-", "01", "1.", ".5", "1e3", "1.5e3", "+1", "1-2", "1234567890123456789"]
        {
            assert_eq!(whole(text.as_bytes(), 0), None, "{text}");
        }
        for text in ["", "-", "01.5", "1.", ".5", "1e3", "1.5.1", "0.1234567890123456", "NaN"] {
            assert_eq!(double(text.as_bytes(), 0), None, "{text}");
        }
        let mut millis = TimeTicks::Of(TimeUnit::Millisecond).reader();
        for text in [
            "2024-01-31",
            "2024-1-31 00:00:00",
            "2024-01-31 24:00:00",
            "2024-01-31 00:60:00",
            "2024-01-31 00:00:60",
            "2024-01-31 00:00:00.",
            "2024-01-31 00:00:00.1234567890",
            "1969-12-31 23:59:59",
            "2024-02-30 00:00:00",
            "2024/01/31 00:00:00",
            "2024-01-31_00:00:00",
            "2024-01-3: 00:00:00",
            "20:4-01-31 00:00:00",
        ] {
            assert_eq!(millis.read(text.as_bytes(), 0), None, "{text}");
        }
        assert_eq!(whole(b"-17,", 0), Some((-17, 3)));
        assert_eq!(double(b" 0.25}", 1), Some((0.25, 5)));
        assert_eq!(millis.read(b"1970-01-02T00:00:01.5009\"", 0), Some((86_401_500, 24)));
    }

    #[test]
    fn a_byte_is_found_where_it_is() {
        for length in 0..80 {
            for place in 0..=length {
                let mut text = vec![b'\x81'; length];
                text.extend(b"x\"y");
                text[place] = b'\\';
                assert_eq!(find2(b'"', b'\\', &text, 0), place);
                assert_eq!(find2(b'"', b'\x01', &text, place), length + 1);
            }
        }
        assert_eq!(find2(b'a', b'b', b"", 0), 0);
        assert_eq!(find2(b'a', b'b', b"cc", 5), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn numbers_and_times_are_those_of_the_rule(
            text in prop_oneof![
                "-?[0-9]{1,19}",
                "-?[0-9]{1,12}\\.[0-9]{1,16}",
                "(19|20|21|22)[0-9]{2}-[01][0-9]-[0-3][0-9]",
                "2[0-2][0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-6][0-9]:[0-6][0-9]",
                "(19|20)7[0-9]-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9]\\.[0-9]{1,10}",
                any::<f64>().prop_map(|number| number.to_string()),
                any::<i64>().prop_map(|number| number.to_string()),
            ]
        ) {
            is_same(&text);
        }
    }
}
