//! Names of result columns that nobody named.
//!
//! DataFusion names a column after its expression, with the type of each literal: `Int64(1)`,
//! `v + Int64(1)`, `Utf8("a")`. Who reads rows expects the literal as it was written.

use arrow::datatypes::{Schema, SchemaRef};

/// Types that DataFusion puts around a literal.
const TYPES: [&str; 13] = [
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "Float32",
    "Float64",
    "Boolean",
    "Utf8",
    "LargeUtf8",
];

/// The columns with plain names; as they were where two would have the same.
pub(crate) fn with_plain_names(schema: &SchemaRef) -> SchemaRef {
    let names: Vec<String> = schema.fields().iter().map(|field| plain(field.name())).collect();
    let twice = |(at, name): (usize, &String)| names[..at].contains(name);
    if names.iter().enumerate().any(twice) {
        return schema.clone();
    }
    let fields = schema.fields().iter().zip(names);
    let fields: Vec<_> =
        fields.map(|(field, name)| field.as_ref().clone().with_name(name)).collect();
    Schema::new(fields).into()
}

/// A name without the types of literals.
fn plain(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(open) = rest.find('(') {
        let before = |c: char| !c.is_alphanumeric() && c != '_';
        let word = rest[..open].trim_end_matches(|c| !before(c)).len();
        let literal = TYPES.contains(&&rest[word..open]).then(|| literal(&rest[open + 1..]));
        match literal.flatten() {
            Some((text, after)) => {
                out.push_str(&rest[..word]);
                out.push_str(&text);
                rest = after;
            }
            None => {
                out.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
            }
        }
    }
    out + rest
}

/// The literal at the beginning of `text`, and what follows its closing bracket.
fn literal(text: &str) -> Option<(String, &str)> {
    match text.strip_prefix('"') {
        Some(quoted) => {
            let (inner, after) = quoted.split_once("\")")?;
            Some((format!("'{inner}'"), after))
        }
        None => text.split_once(')').map(|(inner, after)| (inner.to_owned(), after)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn literals_stand_as_they_were_written() {
        for (name, expected) in [
            ("Int64(1)", "1"),
            ("t.v + Int64(1)", "t.v + 1"),
            ("sum(t.v * Float64(1.5))", "sum(t.v * 1.5)"),
            ("Utf8(\"a (b)\") || größe", "'a (b)' || größe"),
            ("größeInt64(x)", "größeInt64(x)"),
            ("count(*)", "count(*)"),
            ("NULL", "NULL"),
            ("myInt64(x)", "myInt64(x)"),
            ("Int64(", "Int64("),
        ] {
            assert_eq!(plain(name), expected);
        }
    }

    #[test]
    fn names_stay_apart() {
        let schema = |names: [&str; 2]| -> SchemaRef {
            let field = |name| Field::new(name, DataType::Int64, true);
            Arc::new(Schema::new(names.map(field).to_vec()))
        };
        let same = schema(["Int64(1)", "Int32(1)"]);
        assert_eq!(with_plain_names(&same), same);
        assert_eq!(with_plain_names(&schema(["Int64(1)", "Int64(2)"])), schema(["1", "2"]));
    }
}
