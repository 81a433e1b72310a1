//! Reading `WITH (…)`: typed values, and errors that name the option and what to write instead.

use arrow::array::{Array, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit};
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use dataflow::type_name::type_name;

/// An error of option `key`.
pub fn refuse(key: &str, message: impl Into<String>, hint: Option<String>) -> ConnectorError {
    ConnectorError::Option { key: key.to_owned(), message: message.into(), hint }
}

/// The name nearest to `name`, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let length = wanted.chars().count();
    // A name of one letter is as near to any other letter.
    let limit = (length / 2).max(2).min(length.saturating_sub(1));
    names
        .into_iter()
        .map(|name| (distance(&wanted, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edits between two names: insert, delete, replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Typed access to the options of a table.
#[derive(Debug, Clone, Copy)]
pub struct OptionReader<'a>(pub &'a Options);

impl<'a> OptionReader<'a> {
    /// A value as it is written.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(String::as_str)
    }

    /// A value that must be there.
    ///
    /// # Errors
    /// When it is not, with the hint.
    pub fn required(&self, key: &str, hint: &str) -> Result<&'a str, ConnectorError> {
        self.text(key).ok_or_else(|| refuse(key, "is missing", Some(hint.to_owned())))
    }

    /// A truth value.
    ///
    /// # Errors
    /// When it is none.
    pub fn bool(&self, key: &str, default: bool) -> Result<bool, ConnectorError> {
        match self.text(key) {
            None => Ok(default),
            Some(value) if value.eq_ignore_ascii_case("true") => Ok(true),
            Some(value) if value.eq_ignore_ascii_case("false") => Ok(false),
            Some(value) => Err(refuse(
                key,
                format!("'{value}' is neither true nor false"),
                Some(format!("write '{key}' = '{default}'")),
            )),
        }
    }

    /// A whole number of at least `min`; `_` may group digits.
    ///
    /// # Errors
    /// When the value is none.
    pub fn integer(&self, key: &str, min: u64) -> Result<Option<u64>, ConnectorError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        match value.trim().replace('_', "").parse::<u64>() {
            Ok(number) if number >= min => Ok(Some(number)),
            _ => Err(refuse(
                key,
                format!("'{value}' is not a whole number of at least {min}"),
                Some(format!("write '{key}' = '{}'", min.max(1000))),
            )),
        }
    }

    /// A finite number for which `fits` holds.
    ///
    /// # Errors
    /// When the value is none.
    pub fn number(
        &self,
        key: &str,
        default: f64,
        range: &str,
        fits: impl Fn(f64) -> bool,
    ) -> Result<f64, ConnectorError> {
        let Some(value) = self.text(key) else { return Ok(default) };
        match value.trim().replace('_', "").parse::<f64>() {
            Ok(number) if number.is_finite() && fits(number) => Ok(number),
            _ => Err(refuse(
                key,
                format!("'{value}' is not a number {range}"),
                Some(format!("write '{key}' = '{default}'")),
            )),
        }
    }

    /// One of `values`, by index.
    ///
    /// # Errors
    /// When the value is none.
    pub fn choice(&self, key: &str, values: &[&str]) -> Result<Option<usize>, ConnectorError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        if let Some(index) = values.iter().position(|v| v.eq_ignore_ascii_case(value)) {
            return Ok(Some(index));
        }
        let hint = match nearest(value, values.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("write one of {}", values.join(", ")),
        };
        Err(refuse(key, format!("'{value}' is not one of {}", values.join(", ")), Some(hint)))
    }

    /// A duration in nanoseconds: `500us`, `5 ms`, `1.5s`, `2 min`, `1h`; milliseconds without a
    /// unit.
    ///
    /// # Errors
    /// When the value is none.
    pub fn duration_ns(&self, key: &str) -> Result<Option<u64>, ConnectorError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        let text = value.trim();
        let digits =
            text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let unit_ns = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "ns" => Some(1.0),
            "us" | "µs" => Some(1e3),
            "" | "ms" => Some(1e6),
            "s" | "sec" | "second" | "seconds" => Some(1e9),
            "m" | "min" | "minute" | "minutes" => Some(60e9),
            "h" | "hour" | "hours" => Some(3600e9),
            "d" | "day" | "days" => Some(86_400e9),
            _ => None,
        };
        let number = text[..digits].replace('_', "").parse::<f64>().ok();
        match number.zip(unit_ns) {
            Some((number, unit_ns)) if number * unit_ns < 9e18 => {
                Ok(Some((number * unit_ns).round() as u64))
            }
            _ => Err(refuse(
                key,
                format!("'{value}' is not a duration"),
                Some(format!("write a number and ns, us, ms, s, min or h: '{key}' = '500ms'")),
            )),
        }
    }

    /// A point in time as milliseconds since 1970 (UTC).
    ///
    /// # Errors
    /// When the value is none.
    pub fn timestamp_ms(&self, key: &str, default: &str) -> Result<i64, ConnectorError> {
        let value = self.text(key).unwrap_or(default);
        let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
        let strict = CastOptions { safe: false, ..Default::default() };
        let text = StringArray::from(vec![value.trim()]);
        cast_with_options(&text, &millis, &strict)
            .ok()
            .and_then(|ticks| {
                let ticks: &arrow::array::TimestampMillisecondArray =
                    ticks.as_any().downcast_ref()?;
                ticks.is_valid(0).then(|| ticks.value(0))
            })
            .ok_or_else(|| {
                refuse(
                    key,
                    format!("'{value}' is not a timestamp"),
                    Some(format!("write '{key}' = '{default}'")),
                )
            })
    }

    /// A single ASCII character; `\t` stands for a tab.
    pub(crate) fn byte(&self, key: &str) -> Result<Option<u8>, ConnectorError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        match value.as_bytes() {
            [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(Some(*byte)),
            br"\t" => Ok(Some(b'\t')),
            _ => Err(refuse(
                key,
                format!("'{value}' is not a single ASCII character"),
                Some(format!("write '{key}' = ','")),
            )),
        }
    }
}

/// The name in SQL of a type, for messages and above columns.
pub(crate) fn sql_type(data_type: &DataType) -> String {
    type_name(data_type, "VARCHAR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_by_which_they_are_declared() {
        let list =
            DataType::List(arrow::datatypes::Field::new("item", DataType::Int32, true).into());
        let zone = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        assert_eq!(sql_type(&list), "ARRAY<INT>");
        assert_eq!(sql_type(&zone), "TIMESTAMP_LTZ(3)");
        assert_eq!(sql_type(&DataType::UInt64), "BIGINT UNSIGNED");
        assert_eq!(sql_type(&DataType::Time32(TimeUnit::Millisecond)), "TIME(3)");
    }

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn the_nearest_name_is_named_and_a_far_one_is_not() {
        assert_eq!(nearest("flihgts", ["planes", "flights"]), Some("flights"));
        assert_eq!(nearest("ORIGIN", ["dest", "origin"]), Some("origin"));
        assert_eq!(nearest("weather", ["planes", "flights"]), None);
    }

    #[test]
    fn durations_have_units() {
        let read = |text: &str| OptionReader(&options(&[("d", text)])).duration_ns("d");
        assert_eq!(read("500us").unwrap(), Some(500_000));
        assert_eq!(read("1.5 s").unwrap(), Some(1_500_000_000));
        assert_eq!(read("20").unwrap(), Some(20_000_000));
        assert!(read("5 parsecs").is_err());
        assert!(read("-5 s").is_err());
    }

    #[test]
    fn values_out_of_place_name_the_option_and_a_way_out() {
        let options = options(&[("format", "parket"), ("rows", "many"), ("header", "ja")]);
        let reader = OptionReader(&options);
        let ConnectorError::Option { key, hint, .. } =
            reader.choice("format", &["csv", "json", "parquet"]).unwrap_err()
        else {
            panic!("another kind of error")
        };
        assert_eq!((key.as_str(), hint.as_deref()), ("format", Some("did you mean 'parquet'?")));
        assert!(reader.integer("rows", 1).is_err());
        assert!(reader.bool("header", true).is_err());
        assert_eq!(reader.integer("absent", 1).unwrap(), None);
    }

    #[test]
    fn timestamps_are_read_with_and_without_zone() {
        let options = options(&[("a", "1970-01-01 00:00:01.5"), ("b", "1970-01-01T00:00:02Z")]);
        let reader = OptionReader(&options);
        assert_eq!(reader.timestamp_ms("a", "").unwrap(), 1500);
        assert_eq!(reader.timestamp_ms("b", "").unwrap(), 2000);
        assert!(reader.timestamp_ms("c", "nine").is_err());
    }
}
