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
        encoder
            .encode("t", &batch, |message| messages.extend(message.map(<[u8]>::to_vec)))
            .unwrap();
        let messages: Vec<String> =
            messages.into_iter().map(|message| String::from_utf8(message).unwrap()).collect();
        let messages: Vec<Option<&str>> = messages.iter().map(|text| Some(text.as_str())).collect();
        let (rows, bad) = read(&table, &messages);
        let row = |(at, text)| (at as u32, format!("{at}|{text}"));
        let expected: Vec<(u32, String)> = texts.into_iter().enumerate().map(row).collect();
        assert_eq!((rows, bad), (expected, vec![]), "{format}");
    }
}

/// The rows of messages of bytes, each with the number of its message; and the bad ones.
fn read_raw(table: &TableDef, messages: &[Option<&[u8]>]) -> (RecordBatch, Vec<u32>, Vec<BadRow>) {
    let format = MessageFormat::new(table, &[0]).unwrap();
    let bad = Arc::new(BadRows::collecting());
    let mut decoder = format.decoder(&bad);
    messages.iter().for_each(|message| decoder.push(*message).unwrap());
    let MessageRows { rows, messages } = decoder.rows(&|at| format!("m{at}")).unwrap();
    // The decoder goes on behind a batch.
    assert_eq!(decoder.rows(&|at| format!("m{at}")).unwrap().rows.num_rows(), 0);
    (rows, messages, bad.take())
}

#[test]
fn a_raw_message_is_its_value_whatever_it_has() {
    let all: Vec<u8> = (0..=255).collect();
    let messages: [Option<&[u8]>; 7] = [
        Some(b"two\r\nlines\n"),
        None,
        Some(b""),
        Some(&all),
        Some(b" \xef\xbb\xbf[{\"a\": \"\0"),
        Some(b"\xff"),
        Some("é\n".as_bytes()),
    ];
    let bytes = table(&[("format", "raw")], &[("v", DataType::Binary)]);
    let (rows, numbers, bad) = read_raw(&bytes, &messages);
    assert_eq!(rows.column(0).as_binary::<i32>().iter().collect::<Vec<_>>(), messages);
    assert_eq!((numbers, bad), ((0..7).collect(), vec![]));

    let texts = table(&[("format", "RAW")], &[("v", DataType::Utf8)]);
    let (rows, numbers, bad) = read_raw(&texts, &messages);
    let read = rows.column(0).as_string::<i32>().iter().map(|text| text.map(str::as_bytes));
    let valid: Vec<usize> = vec![0, 1, 2, 4, 6];
    assert!(read.eq(valid.iter().map(|at| messages[*at])));
    assert_eq!(numbers, valid.iter().map(|at| *at as u32).collect::<Vec<_>>());
    let bad: Vec<_> = bad.iter().map(|bad| (bad.place.as_str(), bad.text.as_str())).collect();
    assert_eq!(bad[1], ("m5", "0xff"));
    assert!(bad.len() == 2 && bad[0].0 == "m3" && bad[0].1.starts_with("0x000102"), "{bad:?}");

    // The column need not be read for its values to be checked.
    let unread = MessageFormat::new(&texts, &[]).unwrap();
    let mut decoder = unread.decoder(&Arc::new(BadRows::collecting()));
    messages.iter().for_each(|message| decoder.push(*message).unwrap());
    let MessageRows { rows, messages: numbers } = decoder.rows(&|_| String::new()).unwrap();
    assert_eq!((rows.num_rows(), numbers.len(), rows.num_columns()), (5, 5, 0));
}

#[test]
fn a_raw_message_without_a_value_is_bad_where_there_is_no_null() {
    let mut table = table(&[("format", "raw")], &[("v", DataType::Utf8)]);
    table.schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Utf8, false)]));
    let (rows, numbers, bad) = read_raw(&table, &[None, Some(b"x"), None, Some(b"")]);
    let read: Vec<_> = rows.column(0).as_string::<i32>().iter().flatten().collect();
    assert_eq!((read, numbers), (vec!["x", ""], vec![1, 3]));
    let places: Vec<&str> = bad.iter().map(|bad| bad.place.as_str()).collect();
    assert_eq!(places, ["m0", "m2"]);
    assert!(bad[0].reason.contains("column 'v' is NOT NULL"), "{}", bad[0].reason);
}

#[test]
fn raw_messages_are_written_as_they_are_and_null_is_none() {
    let texts = [Some("a,\"b\"\n"), None, Some(""), Some("é")];
    let wanted = texts.map(|text| text.map(|text| text.as_bytes().to_vec()));
    let columns: [arrow::array::ArrayRef; 2] = [
        Arc::new(arrow::array::StringArray::from(texts.to_vec())),
        Arc::new(arrow::array::BinaryArray::from_iter(wanted.iter().cloned())),
    ];
    for column in columns {
        let table = table(&[("format", "raw")], &[("v", column.data_type().clone())]);
        let encoder = MessageEncoder::new(&table, &table.schema).unwrap();
        let batch = RecordBatch::try_new(Arc::clone(&table.schema), vec![column]).unwrap();
        for (rows, wanted) in [(batch.clone(), &wanted[..]), (batch.slice(1, 2), &wanted[1..3])] {
            let mut messages = vec![];
            let take = |message: Option<&[u8]>| messages.push(message.map(<[u8]>::to_vec));
            encoder.encode("t", &rows, take).unwrap();
            assert_eq!(messages, wanted);
        }
        encoder.encode("t", &batch.slice(0, 0), |_| panic!("there is no row")).unwrap();
    }
}

#[test]
fn raw_messages_are_one_column_of_text_or_bytes() {
    let refused = |columns: &[(&str, DataType)]| {
        let table = table(&[("format", "raw")], columns);
        let read = MessageFormat::new(&table, &[]).unwrap_err();
        let written = MessageEncoder::new(&table, &table.schema).unwrap_err();
        assert_eq!(read.to_string(), written.to_string());
        format!("{read:?}")
    };
    let of = refused(&[("n", DataType::Int64)]);
    assert!(of.contains("column: \"n\"") && of.contains("STRING or BYTES, and not"), "{of}");
    let of = refused(&[("a", DataType::Utf8), ("b", DataType::Utf8)]);
    assert!(of.contains("column: \"b\"") && of.contains("EXCEPT_KEY"), "{of}");
    let of = refused(&[]);
    assert!(of.contains("declare a column"), "{of}");
}
