//! What becomes of messages, against what is written here by hand.

use arrow::array::Array;
use arrow::util::display::array_value_to_string;

use super::*;

fn table(options: &[(&str, &str)], columns: &[(&str, DataType)]) -> TableDef {
    let field = |(name, of): &(&str, DataType)| Field::new(*name, of.clone(), true);
    TableDef {
        name: "t".into(),
        schema: Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>())),
        options: options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        metadata: Default::default(),
        buckets: vec![],
    }
}

fn two_columns(format: &str) -> TableDef {
    table(&[("format", format)], &[("a", DataType::Int64), ("b", DataType::Utf8)])
}

/// The rows with the numbers of their messages, and the bad messages with their reasons.
fn read(table: &TableDef, messages: &[Option<&str>]) -> (Vec<(u32, String)>, Vec<String>) {
    let projection: Vec<usize> = (0..table.schema.fields().len()).collect();
    let format = MessageFormat::new(table, &projection).unwrap();
    let bad = Arc::new(BadRows::collecting());
    let mut decoder = format.decoder(&bad);
    for message in messages {
        decoder.push(message.map(str::as_bytes)).unwrap();
    }
    let MessageRows { rows, messages } = decoder.rows(&|at| format!("m{at}")).unwrap();
    assert_eq!(rows.num_rows(), messages.len());
    let text = |row: usize| {
        let value = |column: &arrow::array::ArrayRef| {
            if column.is_null(row) {
                "NULL".to_owned()
            } else {
                array_value_to_string(column, row).unwrap()
            }
        };
        rows.columns().iter().map(value).collect::<Vec<_>>().join("|")
    };
    let rows = messages.iter().enumerate().map(|(row, message)| (*message, text(row))).collect();
    let bad = bad.take().into_iter().map(|bad| format!("{}: {}", bad.place, bad.reason)).collect();
    (rows, bad)
}

#[test]
fn each_json_message_is_a_row_or_a_bad_row_of_its_own() {
    let messages = [
        Some(r#"{"a": 1, "b": "x"}"#),
        None,
        Some("{\n  \"a\": 2,\r\n  \"b\": \"y \\\" z\"\n}"),
        Some(r#"{"a": "no number"}"#),
        Some(""),
        Some("{\"a\": 3}\n{\"a\": 4}"),
        Some("{\"a\": 5, \"b\": \"two\nlines\"}"),
        Some("{\"a\": 6"),
        Some("\u{feff}{\"a\": 7}"),
        Some("{\"b\": null}"),
    ];
    let (rows, bad) = read(&two_columns("json"), &messages);
    let expected = [(0, "1|x"), (2, "2|y \" z"), (9, "NULL|NULL")];
    assert_eq!(rows, expected.map(|(message, row)| (message, row.to_owned())));
    let places: Vec<&str> = bad.iter().filter_map(|bad| bad.split(':').next()).collect();
    assert_eq!(places, ["m1", "m3", "m4", "m5", "m6", "m7", "m8"], "{bad:#?}");
    assert!(bad[0].contains("no value") && bad[2].contains("is empty"), "{bad:#?}");
    assert!(bad[4].contains("line end"), "{bad:#?}");
}

#[test]
fn a_first_message_does_not_say_how_the_others_are_read() {
    let firsts = [
        "[",
        "]",
        "{",
        "[{\"a\": 1}, {\"a\": 2}]",
        "[\n{\"a\": 1},\n{\"a\": 2}\n]",
        "{\"a\":",
        "{\"a\": 1,",
        "{\n\"a\": 1,",
        "[\n",
        "\"",
        "{\"a\": \"",
        "\u{0}",
        "\u{feff}[",
        "x",
    ];
    for first in firsts {
        let messages = [first, "{\"a\": 3}", "{\"a\":\n4}", first, "{\"a\": 5}"].map(Some);
        let (rows, bad) = read(&two_columns("json"), &messages);
        let expected = [(1, "3|NULL"), (2, "4|NULL"), (4, "5|NULL")];
        assert_eq!(rows, expected.map(|(message, row)| (message, row.to_owned())), "{first}");
        let places: Vec<&str> = bad.iter().filter_map(|bad| bad.split(':').next()).collect();
        assert_eq!(places, ["m0", "m3"], "{first}: {bad:#?}");
    }
}

#[test]
fn a_quote_takes_no_other_message_with_it() {
    let messages = [
        Some("1,plain"),
        Some("2,\"open"),
        Some("3,\"a\nb\""),
        Some("4,\"quoted, whole\""),
        Some("5,x\n6,y"),
        Some("7"),
        Some("8,in\"side"),
        Some("9,"),
    ];
    let (rows, bad) = read(&two_columns("csv"), &messages);
    let good = |message| rows.iter().find(|(of, _)| *of == message).map(|(_, row)| row.as_str());
    assert_eq!(good(0), Some("1|plain"));
    assert_eq!(good(2), Some("3|a\nb"));
    assert_eq!(good(3), Some("4|quoted, whole"));
    assert_eq!(good(7), Some("9|"));
    assert_eq!((good(4), good(5)), (None, None), "{rows:?}");
    assert_eq!(rows.len() + bad.len(), messages.len(), "{rows:?} {bad:?}");
    let two = bad.iter().find(|bad| bad.starts_with("m4")).expect("two records");
    assert!(two.contains("2 records"), "{two}");
}

#[test]
fn a_decoder_goes_on_after_any_batch() {
    let table = two_columns("json");
    let format = MessageFormat::new(&table, &[1]).unwrap();
    let bad = Arc::new(BadRows::collecting());
    let mut decoder = format.decoder(&bad);
    for batch in 0..50_u32 {
        for message in 0..batch {
            let value = format!(r#"{{"a": {message}, "b": "{batch} {message}"}}"#);
            let value = if message % 7 == 3 { "broken".into() } else { value };
            decoder.push(Some(value.as_bytes())).unwrap();
        }
        let MessageRows { rows, messages } = decoder.rows(&|at| format!("{batch} {at}")).unwrap();
        let good: Vec<u32> = (0..batch).filter(|message| message % 7 != 3).collect();
        assert_eq!(messages, good);
        for (row, message) in good.into_iter().enumerate() {
            let text = rows.column(0).as_string::<i32>().value(row);
            assert_eq!(text, format!("{batch} {message}"));
        }
        let places: Vec<String> = bad.take().into_iter().map(|bad| bad.place).collect();
        let broken = (0..batch).filter(|message| message % 7 == 3);
        assert_eq!(places, broken.map(|at| format!("{batch} {at}")).collect::<Vec<_>>());
    }
}

#[test]
fn a_bad_message_ends_the_query_where_the_table_says_so() {
    let mut table = two_columns("json");
    table.options.insert("on_bad".into(), "fail".into());
    let format = MessageFormat::new(&table, &[0]).unwrap();
    let mut decoder = format.decoder(&Arc::default());
    decoder.push(Some(b"[1]")).unwrap();
    let error = decoder.rows(&|at| format!("clicks[3]:{}", at + 17)).unwrap_err();
    assert!(error.to_string().contains("clicks[3]:17"), "{error}");
}

#[test]
fn messages_that_were_written_are_read() {
    for format in ["json", "csv"] {
        let table = two_columns(format);
        let texts = ["x", "two\nlines", "\"", "a,b", "", "é"];
        let columns: [arrow::array::ArrayRef; 2] = [
            Arc::new(arrow::array::Int64Array::from_iter_values(0..texts.len() as i64)),
            Arc::new(arrow::array::StringArray::from(texts.to_vec())),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), columns.into()).unwrap();
        let encoder = MessageEncoder::new(&table, &table.schema).unwrap();
        let mut messages = vec![];
        encoder.encode("t", &batch, |message| messages.push(message.to_vec())).unwrap();
        let messages: Vec<String> =
            messages.into_iter().map(|message| String::from_utf8(message).unwrap()).collect();
        let messages: Vec<Option<&str>> = messages.iter().map(|text| Some(text.as_str())).collect();
        let (rows, bad) = read(&table, &messages);
        let row = |(at, text)| (at as u32, format!("{at}|{text}"));
        let expected: Vec<(u32, String)> = texts.into_iter().enumerate().map(row).collect();
        assert_eq!((rows, bad), (expected, vec![]), "{format}");
    }
}
