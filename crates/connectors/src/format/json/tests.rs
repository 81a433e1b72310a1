//! A reader of fields gives the rows and the bad rows that the library gives.

use std::collections::BTreeMap;
use std::io::Cursor;

use arrow::datatypes::TimeUnit;
use arrow::util::pretty::pretty_format_batches;
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use proptest::prelude::*;

use super::*;
use crate::format::rows::TargetColumns;

/// Rows and bad rows of a text, by a reader of fields or by the library.
fn decoded(text: &[u8], by_fields: bool, rows_max: usize) -> (String, Vec<String>) {
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("x", DataType::Float64, true),
        Field::new("small", DataType::Int8, true),
        Field::new("is", DataType::Boolean, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Millisecond, None), true),
        Field::new("price", DataType::Decimal128(10, 2), true),
        Field::new("unread", DataType::Utf8, true),
        Field::new("unread_whole", DataType::Int64, true),
        Field::new("unread_double", DataType::Float64, true),
        Field::new("ü", DataType::Utf8, false),
        Field::new("day", DataType::Date32, true),
        Field::new("second", DataType::Timestamp(TimeUnit::Second, None), true),
        Field::new("nano", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
        Field::new("zoned", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("clock", DataType::Time64(TimeUnit::Microsecond), true),
        Field::new("near", DataType::Float32, true),
        Field::new("large", DataType::UInt64, true),
        Field::new("bytes", DataType::Binary, true),
    ]);
    let table = TableDef {
        name: "t".into(),
        schema: Arc::new(schema),
        options: BTreeMap::new(),
        metadata: BTreeMap::new(),
        buckets: vec![],
    };
    let bad = Arc::new(BadRows::collecting());
    let fields = table.schema.fields().iter().enumerate();
    let read = fields.filter(|(_, field)| !field.name().starts_with("unread"));
    let read: Vec<usize> = read.map(|(at, _)| at).collect();
    let target = Arc::new(TargetColumns::new(&table, &read).unwrap());
    let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
    let input = ByteInput::new(Box::new(Cursor::new(text.to_vec())), "t.json");
    let mut decoder = JsonDecoder::new(input, refuser);
    assert!(decoder.fields.is_some());
    if !by_fields {
        decoder.fields = None;
    }
    let mut batches = Vec::new();
    loop {
        match decoder.decode(rows_max).unwrap() {
            Decoded::Batch(batch) => batches.push(batch),
            Decoded::Later => panic!("a text is there as a whole"),
            Decoded::End => break,
        }
    }
    let bad =
        bad.take().into_iter().map(|bad| format!("{}: {} {}", bad.place, bad.reason, bad.text));
    (pretty_format_batches(&batches).unwrap().to_string(), bad.collect())
}

fn is_same(text: &[u8]) {
    for rows_max in [1, 1000] {
        let [ours, theirs] = [true, false].map(|by_fields| decoded(text, by_fields, rows_max));
        assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(text));
    }
}

/// The declared columns, and others.
const NAMES: &[&str] = &[
    "id",
    "name",
    "x",
    "small",
    "is",
    "at",
    "price",
    "unread",
    "unread_whole",
    "unread_double",
    "ü",
    "day",
    "second",
    "nano",
    "zoned",
    "clock",
    "near",
    "large",
    "bytes",
    "undeclared",
    "n\\u0061me",
];

/// Values of JSON, and what is nearly one.
const VALUES: &[&str] = &[
    "1",
    "-0",
    "-0.0",
    "0e0",
    "00",
    "-01",
    "-",
    "1E+5",
    "123456789012345678",
    "1234567890123456789",
    "18446744073709551615",
    "999999999999999.9",
    "0.123456789012345",
    "0.1234567890123456",
    "16777217",
    "0",
    "01",
    "1.0",
    "1.5",
    "1e3",
    "-1.25e-2",
    "9223372036854775807",
    "9223372036854775808",
    "128",
    "1e400",
    "1.",
    ".5",
    "+1",
    "1-2",
    "--1",
    "true",
    "false",
    "null",
    "nul",
    "tru",
    "truex",
    r#""""#,
    r#""5""#,
    r#"" 5 ""#,
    r#""a\"b""#,
    r#""\u20ac\n\/""#,
    r#""\ud83d\ude00""#,
    r#""\ud83d""#,
    r#""\ud83dx""#,
    r#""\q""#,
    r#""\u12"#,
    "\"\t\"",
    r#""2024-01-31 10:20:30.123""#,
    r#""2024-01-31T10:20:30.999999999""#,
    r#""2024-01-31 10:20:30.1234567891""#,
    r#""2024-01-31 10:20:30+02:00""#,
    r#"" 2024-01-31 10:20:30 ""#,
    r#""2016-12-31 23:59:60""#,
    r#""2024-01-31 24:00:00""#,
    r#""2024-01-31 10:20""#,
    r#""2024-01-31""#,
    r#"" 2024-01-31 ""#,
    r#""2024-02-30""#,
    r#""1900-02-29""#,
    r#""1969-12-31 23:59:59.9""#,
    r#""2262-04-12 00:00:00""#,
    r#""2261-12-31 23:59:59.999999999""#,
    r#""1677-09-21""#,
    r#""9999-12-31 23:59:59""#,
    r#""20240131""#,
    r#""1700000000000""#,
    r#""10:20:30.5""#,
    r#""+1""#,
    r#""-0""#,
    r#""1e3""#,
    r#""0aFF""#,
    r#""2024-01-31T10:20:30.123456Z""#,
    "1700000000000",
    "20240131",
    r#""1.005""#,
    r#""12345678.90""#,
    r#""123456789.12""#,
    "[1]",
    r#"[1,{"a":"}"}]"#,
    "{}",
    r#"{"a":1 "b":2}"#,
    "[1,,2]",
    "[1 2]",
    "[",
    "{",
    "\"x",
    "NaN",
    r#""NaN""#,
    r#""inf""#,
    "",
];

#[test]
fn values_are_those_of_the_library() {
    let mut all = String::new();
    for name in NAMES {
        for value in VALUES {
            let line = format!("{{\"id\":7,\"ü\":\"u\",\"{name}\":{value}}}\n");
            let alone = line.replacen("\"id\":7,", "", 1);
            all.push_str(&line);
            all.push_str(&alone);
            all.push_str("{\"id\":8,\"ü\":\"u\"}\r\n");
        }
    }
    is_same(all.as_bytes());
}

#[test]
fn forms_of_a_line_are_those_of_the_library() {
    for line in [
        "{}",
        " { } ",
        "{",
        "}",
        "[]",
        "5",
        "nope",
        "",
        "{,}",
        r#"{"id":1,}"#,
        r#"{"id":1,,"ü":""}"#,
        r#"{"id":1 "ü":""}"#,
        r#"{"id" 1,"ü":""}"#,
        r#"{"id":1,"ü":""} {"id":2,"ü":""}"#,
        r#"{"id":1,"ü":""}{"id":2,"ü":""}"#,
        r#"{"id":1,"ü":""} x"#,
        r#" {"id" : 1 , "ü" : "" } "#,
        r#"{"id":1,"id":2,"ü":""}"#,
        r#"{"id":1,"ü":"","":5}"#,
        r#"{"ü":"","id":1}"#,
        r#"{id:1}"#,
        r#"{"ID":1,"ü":""}"#,
        r#"{"id":null,"ü":null}"#,
        "\u{feff}{\"id\":1,\"ü\":\"\"}",
    ] {
        is_same(line.as_bytes());
        is_same(format!("{{\"id\":0,\"ü\":\"\"}}\n{line}\n{{\"ü\":\"\",\"id\":9}}").as_bytes());
    }
    is_same(b"{\"id\":1,\"\xc3\xbc\":\"\xff\"}\n{\"id\":2,\"\xc3\xbc\":\"\"}");
}

#[test]
fn a_missing_comma_is_a_bad_row() {
    let text =
        b"{\"id\":1,\"\xc3\xbc\":\"\"}\n{\"id\":2 \"\xc3\xbc\":\"\"}\n{\"id\":3,\"\xc3\xbc\":\"\"}";
    for by_fields in [true, false] {
        let (rows, bad) = decoded(text, by_fields, 1000);
        assert_eq!(rows.lines().count(), 3 + 2 + 1, "{rows}");
        assert_eq!(bad.len(), 1);
        assert!(bad[0].starts_with("t.json:2: no JSON: at character 9 ','"), "{bad:?}");
    }
}

#[test]
fn depths_are_those_of_the_library() {
    let mut bad = 0;
    for depth in DEPTH_MAX - 3..DEPTH_MAX + 3 {
        let arrays = "[".repeat(depth) + "1" + &"]".repeat(depth);
        let objects = "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
        for (name, value) in [("undeclared", &arrays), ("undeclared", &objects), ("name", &arrays)]
        {
            let text = format!(
                "{{\"id\":1,\"ü\":\"[{{\"}}\n{{\"id\":2,\"ü\":\"\",\"{name}\":{value}}}\n\
                 {{\"id\":3,\"ü\":\"\",\"{name}\":{value},\"x\":[{{}}]}}\n\
                 {{\"{name}\":{value}\n{{\"id\":4,\"ü\":\"\"}}\n",
            );
            is_same(text.as_bytes());
            let (_, refused) = decoded(text.as_bytes(), true, 1000);
            bad += refused.iter().filter(|bad| bad.contains("nests deeper than")).count();
        }
    }
    // Three lines of three depths, in three forms.
    assert_eq!(bad, 27);
}

#[test]
fn a_line_end_at_any_place_ends_the_line() {
    let lines = [
        r#"{"id":1,"ü":"u","name":"a text of some words","x":1.5,"undeclared":[1]}"#,
        r#"{"id":12345678,"ü":"","name":null,"x":-2,"undeclared":"{}"}"#,
        r#"{"id": 3, "ü": "\"", "name": "n", "x": 0.25, "at": "2024-01-31 10:20:30.5"}"#,
        r#"{"id": 4, "ü": "", "name": "", "x": 4, "at": "2024-01-31 10:20:30"}"#,
    ];
    let text = lines.map(|line| line.to_owned() + "\n").concat();
    let is_same = |text: &[u8]| {
        let [ours, theirs] = [true, false].map(|by_fields| decoded(text, by_fields, 1000));
        assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(text));
    };
    for at in 0..=text.len() {
        let (before, behind) = text.as_bytes().split_at(at);
        is_same(before);
        is_same(&[before, [&b"\n"[..], b" \r\n\t"][at % 2], behind].concat());
    }
}

/// A line that is often right, with a few bytes changed.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(NAMES);
    let value = prop_oneof![
        prop::sample::select(VALUES).prop_map(str::to_owned),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| format!("{value:?}")),
        "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?",
        any::<bool>().prop_map(|value| value.to_string()),
        Just("null".to_owned()),
        "[a-z0-9 ü\\\\\"/u]{0,9}".prop_map(|text| format!("\"{text}\"")),
        "\"20[0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?\"",
        Just("{\"a\":[1,{}]}".to_owned()),
    ];
    let fields = prop::collection::vec((name, value), 0..7);
    let signs = prop::sample::select(vec![(",", ":"), (", ", ": "), ("\t,", " :"), (" , ", ":  ")]);
    let change = (any::<prop::sample::Index>(), prop::sample::select(b"{}[],:\"\\ 0x-e.".to_vec()));
    (fields, prop::collection::vec(change, 0..2), any::<bool>(), signs).prop_map(
        |(fields, changes, whole, (comma, colon))| {
            let mut text = String::from(if whole { "{\"id\":1,\"ü\":\"\"" } else { "{\"x\":1" });
            for (name, value) in fields {
                text.push_str(&format!("{comma}\"{name}\"{colon}{value}"));
            }
            let mut bytes = (text + "}").into_bytes();
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_lines_are_those_of_the_library(lines in prop::collection::vec(line(), 1..40)) {
        is_same(&lines.join(&b'\n'));
    }
}
