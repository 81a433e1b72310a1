//! Options of Flink: names of Flink for options of ours, and options that ask for what holds here.

use connectors::messages::{MESSAGE_FORMATS, TYPED_OPTIONS};
use connectors::{OptionReader, refuse};
use dataflow::connector::{OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;

use crate::option;

/// The names of Flink that stand for one of ours.
const SAME: [(&str, &str); 4] = [
    ("value.format", "format"),
    ("csv.field-delimiter", "csv.delimiter"),
    ("csv.quote-character", "csv.quote"),
    ("csv.null-literal", "csv.null"),
];

/// Whether messages that cannot be read are passed over.
const IGNORES: [&str; 2] = ["json.ignore-parse-errors", "csv.ignore-parse-errors"];

const MISSING: &str = "json.fail-on-missing-field";
const TIMES: &str = "json.timestamp-format.standard";
const CHARSET: &str = "raw.charset";
const ENDIANNESS: &str = "raw.endianness";

/// An option of a format stands behind one of these, where it is that of the value or the key.
const OF_VALUE: &str = "value.";
const OF_KEY: &str = "key.";

pub(crate) const OPTIONS: [OptionSpec; 14] = [
    option(SAME[0].0, "as 'format'", "none", "Flink's other name of 'format'."),
    option(SAME[1].0, "character", "none", "Flink's name of 'csv.delimiter'."),
    option(SAME[2].0, "character", "none", "Flink's name of 'csv.quote'."),
    option(SAME[3].0, "text", "none", "Flink's name of 'csv.null'."),
    option(
        IGNORES[0],
        "true | false",
        "true",
        "Flink's: 'true' is 'on_bad' = 'skip', and 'false' is 'on_bad' = 'fail', for messages that \
         cannot be read. What is not said is 'true' here, and 'false' there.",
    ),
    option(IGNORES[1], "true | false", "true", "The same for CSV."),
    option(
        MISSING,
        "false",
        "false",
        "Flink's: a field that is not there is NULL, and a bad row in a column that is NOT NULL.",
    ),
    option(
        TIMES,
        "SQL | ISO-8601",
        "ISO-8601",
        "Flink's: both forms are read, whatever it says; a sink writes that of ISO 8601 alone.",
    ),
    option(
        "value.<format>.<option>",
        "as the option",
        "none",
        "Flink's: an option of the format of the value, such as value.csv.field-delimiter.",
    ),
    option(
        "key.<format>.<option>",
        "as the option",
        "none",
        "Flink's: an option of the format of the key, where it differs from that of the value.",
    ),
    option(
        CHARSET,
        "UTF-8",
        "UTF-8",
        "Flink's: the encoding of texts that are read as they are. Other bytes are a BYTES column.",
    ),
    option(
        ENDIANNESS,
        "big-endian | little-endian",
        "big-endian",
        "Flink's: read, and without an effect, since values of 'raw' are texts or bytes.",
    ),
    option("scan.parallelism", "integer", "none", "Flink's: read, and without an effect."),
    option("sink.parallelism", "integer", "none", "Flink's: read, and without an effect."),
];

/// The table with options by our names.
///
/// # Errors
/// When an option of Flink asks for what is not done, or contradicts one of ours.
pub(crate) fn translated(table: &TableDef, is_sink: bool) -> Result<TableDef, ConnectorError> {
    let mut own = table.options.clone();
    // Those of the key are not those of the table: they are translated where they are taken.
    let mut keys: Vec<Options> = vec![];
    for (key, value) in &table.options {
        if let Some(plain) = behind(OF_VALUE, key)? {
            own.remove(key);
            replace(&mut own, (key, plain), value)?;
        }
        if let Some(plain) = behind(OF_KEY, key)? {
            keys.push([(plain.to_owned(), value.clone())].into());
        }
    }
    let own = by_our_names(own, is_sink)?;
    for key in keys {
        by_our_names(key, is_sink)?;
    }
    Ok(TableDef { options: own, ..table.clone() })
}

/// The options that `key.` gives to the format of the key alone, by our names.
pub(crate) fn key_options(options: &Options) -> Options {
    let own = options
        .iter()
        .filter_map(|(key, value)| Some((behind(OF_KEY, key).ok()??.to_owned(), value.clone())));
    // They were looked at before, when the table was.
    by_our_names(own.collect(), false).unwrap_or_default()
}

/// The name of an option of a format behind `prefix`; `None` where `key` is another option.
///
/// # Errors
/// When no format has such an option.
fn behind<'k>(prefix: &str, key: &'k str) -> Result<Option<&'k str>, ConnectorError> {
    let Some(plain) = key.strip_prefix(prefix) else { return Ok(None) };
    let all = || crate::OPTIONS.iter().chain(&TYPED_OPTIONS).chain(&OPTIONS).map(|of| of.key);
    if all().any(|known| known == key) {
        return Ok(None);
    }
    let format = plain.split_once('.').map(|(format, _)| format);
    let is_of_format = format.is_some_and(|format| MESSAGE_FORMATS.contains(&format));
    if is_of_format && all().any(|known| known == plain) {
        return Ok(Some(plain));
    }
    let near = connectors::nearest(key, all().filter(|known| known.starts_with(prefix)));
    let near = near.or_else(|| connectors::nearest(plain, all()));
    let hint = near.map(|near| format!("did you mean '{near}'?"));
    Err(refuse(key, "no format has such an option", hint))
}

fn by_our_names(given: Options, is_sink: bool) -> Result<Options, ConnectorError> {
    let (options, mut own) = (OptionReader(&given), given.clone());
    for (key, ours) in SAME {
        if let Some(value) = options.text(key) {
            replace(&mut own, (key, ours), value)?;
        }
    }
    for key in IGNORES {
        if options.text(key).is_some() {
            let on_bad = if options.bool(key, true)? { "skip" } else { "fail" };
            replace(&mut own, (key, "on_bad"), on_bad)?;
        }
    }
    if options.bool(MISSING, false)? {
        let hint = "declare the columns that must be there as NOT NULL";
        let message = "a field that is not there is NULL, and fails no query";
        return Err(refuse(MISSING, message, Some(hint.into())));
    }
    if options.choice(TIMES, &["SQL", "ISO-8601"])? == Some(0) && is_sink {
        let hint = "leave it out, or write a time as text: date_format(t, '%Y-%m-%d %H:%M:%S')";
        return Err(refuse(TIMES, "times are written as 'ISO-8601'", Some(hint.into())));
    }
    options.choice(CHARSET, &["UTF-8"])?;
    options.choice(ENDIANNESS, &["big-endian", "little-endian"])?;
    for key in ["scan.parallelism", "sink.parallelism"] {
        options.integer(key, 1)?;
    }
    Ok(own)
}

/// Says by our name what the table says by Flink's.
fn replace(
    options: &mut Options,
    (key, ours): (&str, &str),
    value: &str,
) -> Result<(), ConnectorError> {
    match options.insert(ours.to_owned(), value.to_owned()) {
        Some(before) if !before.eq_ignore_ascii_case(value) => {
            let message = format!("'{ours}' = '{before}' is there, too");
            Err(refuse(key, message, Some("leave one of them out".into())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::datatypes::Schema;

    use super::*;

    fn given(options: &[(&str, &str)], is_sink: bool) -> Result<Options, String> {
        let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let table = TableDef {
            name: "t".into(),
            schema: Arc::new(Schema::empty()),
            options: options.collect(),
            metadata: BTreeMap::new(),
            buckets: vec![],
        };
        let of = translated(&table, is_sink).map_err(|error| error.to_string())?;
        Ok(of.options)
    }

    #[test]
    fn options_of_flink_are_those_by_our_names() {
        let options = given(
            &[
                ("value.format", "csv"),
                ("csv.field-delimiter", ";"),
                ("csv.ignore-parse-errors", "true"),
                ("json.fail-on-missing-field", "false"),
                ("json.timestamp-format.standard", "ISO-8601"),
                ("scan.parallelism", "4"),
            ],
            false,
        );
        let options = options.unwrap();
        for (key, value) in [("format", "csv"), ("csv.delimiter", ";"), ("on_bad", "skip")] {
            assert_eq!(options[key], value);
        }
        let fails = given(&[("json.ignore-parse-errors", "false")], false).unwrap();
        assert_eq!(fails["on_bad"], "fail");
        let own = [("format", "json"), ("on_bad", "table")];
        assert_eq!(given(&own, true).unwrap().len(), 2);
        given(&[("format", "json"), ("value.format", "JSON")], true).unwrap();
    }

    /// As the page of Flink's connector has them.
    #[test]
    fn options_of_a_format_stand_behind_the_part_of_the_message() {
        let table = [
            ("key.format", "csv"),
            ("key.fields", "a;b"),
            ("key.csv.field-delimiter", "|"),
            ("key.csv.ignore-parse-errors", "true"),
            ("value.format", "csv"),
            ("value.csv.field-delimiter", ";"),
            ("value.csv.ignore-parse-errors", "false"),
            ("value.fields-include", "ALL"),
        ];
        let options = given(&table, false).unwrap();
        let expected =
            [("format", "csv"), ("csv.delimiter", ";"), ("on_bad", "fail"), ("key.format", "csv")];
        expected.iter().for_each(|(key, value)| assert_eq!(options[*key], *value, "{key}"));
        let of_key = key_options(&options);
        assert_eq!((&*of_key["csv.delimiter"], &*of_key["on_bad"]), ("|", "skip"));
        assert!(key_options(&given(&table[4..], false).unwrap()).is_empty());
    }

    #[test]
    fn what_is_not_done_is_refused() {
        let says = |options: &[(&str, &str)], words: &str| {
            let error = given(options, true).unwrap_err();
            let key = options[0].0.trim_start_matches("key.").trim_start_matches("value.");
            assert!(error.contains(words) && error.contains(key), "{error}");
        };
        says(&[("value.format", "csv"), ("format", "json")], "'format' = 'json' is there, too");
        says(&[("json.ignore-parse-errors", "true"), ("on_bad", "fail")], "'on_bad' = 'fail'");
        says(&[("json.ignore-parse-errors", "maybe")], "maybe");
        says(&[("json.fail-on-missing-field", "true")], "is NULL");
        says(&[("json.timestamp-format.standard", "SQL")], "written as 'ISO-8601'");
        says(&[("sink.parallelism", "0")], "0");
        says(&[("value.json.wibble", "1")], "no format");
        says(&[("key.wibble.null", "1")], "no format");
        says(&[("value.fields-inclde", "ALL")], "no format");
        says(&[("key.json.ignore-parse-errors", "maybe")], "maybe");
        says(&[("value.csv.null-literal", "x"), ("csv.null-literal", "y")], "is there, too");
    }
}
