//! Options of Flink: names of Flink for options of ours, and options that ask for what holds here.

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

pub(crate) const OPTIONS: [OptionSpec; 10] = [
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
    option("scan.parallelism", "integer", "none", "Flink's: read, and without an effect."),
    option("sink.parallelism", "integer", "none", "Flink's: read, and without an effect."),
];

/// The table with options by our names.
///
/// # Errors
/// When an option of Flink asks for what is not done, or contradicts one of ours.
pub(crate) fn translated(table: &TableDef, is_sink: bool) -> Result<TableDef, ConnectorError> {
    let (options, mut own) = (OptionReader(&table.options), table.options.clone());
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
    for key in ["scan.parallelism", "sink.parallelism"] {
        options.integer(key, 1)?;
    }
    Ok(TableDef { options: own, ..table.clone() })
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

    #[test]
    fn what_is_not_done_is_refused() {
        let says = |options: &[(&str, &str)], words: &str| {
            let error = given(options, true).unwrap_err();
            assert!(error.contains(words) && error.contains(options[0].0), "{error}");
        };
        says(&[("value.format", "csv"), ("format", "json")], "'format' = 'json' is there, too");
        says(&[("json.ignore-parse-errors", "true"), ("on_bad", "fail")], "'on_bad' = 'fail'");
        says(&[("json.ignore-parse-errors", "maybe")], "maybe");
        says(&[("json.fail-on-missing-field", "true")], "is NULL");
        says(&[("json.timestamp-format.standard", "SQL")], "written as 'ISO-8601'");
        says(&[("sink.parallelism", "0")], "0");
    }
}
