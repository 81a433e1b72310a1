//! Columns in the names of directories: `…/year=2024/month=5/x.parquet`.
//!
//! A table has such columns if all of its files name the same keys, in any order, unless
//! 'hive.partitioning' says otherwise. Keys are compared without regard to case; if a name has a
//! key twice, the first one counts. A value is written as in a URL: `%20` is a space. NULL is
//! `__HIVE_DEFAULT_PARTITION__`, or `NULL`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;

use super::fit::{Texts, fit};
use crate::options::{OptionReader, refuse};

/// The option that makes names of directories columns.
pub(crate) const HIVE_PARTITIONING: OptionSpec = OptionSpec {
    key: "hive.partitioning",
    values: "true | false",
    default: "true where all files name the same keys",
    doc: "Whether directories of the form key=value are columns of the rows below them.",
};

/// Names of directories that stand for NULL.
const NULLS: [&str; 2] = ["__HIVE_DEFAULT_PARTITION__", "NULL"];

/// The most keys of a name; each key is a column.
const KEYS_MAX: usize = 100;

/// The keys in the name of a file, in lower case, and their values.
pub(crate) fn of_name(name: &str) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    let path = match name.split_once("://") {
        Some((_, behind)) => behind.split_once('/').map_or("", |(_, path)| path),
        None => name,
    };
    let directories = path.rsplit_once('/').map_or("", |(directories, _)| directories);
    for directory in directories.split('/') {
        let Some((key, value)) = directory.split_once('=') else { continue };
        if key.is_empty() || found.len() == KEYS_MAX {
            continue;
        }
        found.entry(decoded(key).to_lowercase()).or_insert(value_of(value));
    }
    found
}

/// The value of a directory `key=value`; `None` if it is NULL.
pub(crate) fn value_of(value: &str) -> Option<String> {
    (!NULLS.contains(&value)).then(|| decoded(value))
}

/// Decodes a text in which `%20` stands for a space; an invalid code stands for itself.
pub(crate) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// The keys of a table of these files, in order; none if it has no such columns.
///
/// # Errors
/// When the option asks for them and the files have different keys.
pub(crate) fn keys(
    names: &[String],
    options: OptionReader<'_>,
) -> Result<Vec<String>, ConnectorError> {
    let asked = options.text(HIVE_PARTITIONING.key).is_some();
    if !options.bool(HIVE_PARTITIONING.key, true)? {
        return Ok(vec![]);
    }
    let Some(first) = names.first() else { return Ok(vec![]) };
    let keys: Vec<String> = of_name(first).into_keys().collect();
    if keys.is_empty() && !asked {
        return Ok(keys);
    }
    for name in &names[1..] {
        let of = of_name(name);
        let absent = keys.iter().find(|key| !of.contains_key(*key)).map(|key| (key, name));
        let other = of.keys().find(|key| !keys.contains(key)).map(|key| (key, first));
        let Some((key, lacks)) = absent.or(other) else { continue };
        if !asked {
            return Ok(vec![]);
        }
        let has = if lacks == name { first } else { name };
        return Err(refuse(
            HIVE_PARTITIONING.key,
            format!("'{has}' names the key '{key}', and '{lacks}' does not"),
            Some("name the same keys in all paths, or leave the option out".into()),
        ));
    }
    if keys.is_empty() {
        return Err(refuse(
            HIVE_PARTITIONING.key,
            format!("'{first}' names no key"),
            Some("directories are named as in 'data/year=2024/month=5/x.parquet'".into()),
        ));
    }
    Ok(keys)
}

/// The columns of a table whose files have the columns of `schema`; a key with the name of one of
/// them replaces it.
pub(crate) fn with_columns(schema: &Schema, keys: &[String], names: &[String]) -> Schema {
    let mut fields: Vec<Field> =
        schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    for key in keys {
        let values = names.iter().filter_map(|name| of_name(name).remove(key).flatten());
        let of = type_of(values);
        match fields.iter_mut().find(|field| field.name().eq_ignore_ascii_case(key)) {
            Some(field) => *field = Field::new(field.name(), of, true),
            None => fields.push(Field::new(key, of, true)),
        }
    }
    Schema::new(fields)
}

/// The type that all values have, or text if they have no common type. A number that begins with a
/// zero is text, such as the month `05`.
fn type_of(values: impl Iterator<Item = String>) -> DataType {
    let type_of_one = |value: String| {
        let digits = value.strip_prefix('-').unwrap_or(&value);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'));
        let is_date = |text: &str| {
            let form: Vec<usize> = text.split('-').map(str::len).collect();
            form == [4, 2, 2] && is_valid(text, &DataType::Date32)
        };
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        match value.split_at_checked(10) {
            _ if is_number && value.parse::<i64>().is_ok() => DataType::Int64,
            Some((date, "")) if is_date(date) => DataType::Date32,
            Some((date, time)) if time.len() == 9 && is_date(date) && is_valid(&value, &micros) => {
                micros
            }
            _ => DataType::Utf8,
        }
    };
    let same = |a: DataType, b: DataType| if a == b { a } else { DataType::Utf8 };
    values.map(type_of_one).reduce(same).unwrap_or(DataType::Utf8)
}

fn is_valid(value: &str, of: &DataType) -> bool {
    value_as(Some(value), of).is_some()
}

/// A value of the type `of`, in a column of one row; `None` if it is not valid for the type.
pub(crate) fn value_as(value: Option<&str>, of: &DataType) -> Option<ArrayRef> {
    let text: ArrayRef = Arc::new(StringArray::from(vec![value]));
    let fitted = fit(&text, of, Texts::Plain).ok()?;
    fitted.lost.is_none().then_some(fitted.column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Vec<(String, Option<String>)> {
        of_name(name).into_iter().collect()
    }

    #[test]
    fn keys_and_values_are_found_in_the_names_of_directories() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            found("s3://a=b/data/Year=2024/city=New%20York%2Fx/k=1=2/n=9.parquet"),
            [
                ("city".into(), text("New York/x")),
                ("k".into(), text("1=2")),
                ("year".into(), text("2024")),
            ]
        );
        assert_eq!(
            found("/a/x=__HIVE_DEFAULT_PARTITION__/y=NULL/z=/x=1/t.csv"),
            [("x".into(), None), ("y".into(), None), ("z".into(), text(""))]
        );
        assert_eq!(found("/a/=1/b=%zz%/t.csv"), [("b".into(), text("%zz%"))]);
        assert_eq!(found("k=1.csv"), []);
    }

    #[test]
    fn values_have_the_type_that_all_of_them_have() {
        let of = |values: &[&str]| type_of(values.iter().map(|value| value.to_string()));
        assert_eq!(of(&["2024", "-1", "0"]), DataType::Int64);
        assert_eq!(of(&["05"]), DataType::Utf8);
        assert_eq!(of(&["99999999999999999999"]), DataType::Utf8);
        assert_eq!(of(&["2024-01-01", "2024-02-29"]), DataType::Date32);
        assert_eq!(of(&["2024-02-30"]), DataType::Utf8);
        assert_eq!(of(&["2024-01-01", "1"]), DataType::Utf8);
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert_eq!(of(&["2024-01-01 10:00:00", "2024-01-01T10:00:00"]), micros);
        assert_eq!(of(&["true"]), DataType::Utf8);
        assert_eq!(of(&[""]), DataType::Utf8);
        assert_eq!(of(&[]), DataType::Utf8);
    }
}
