//! CSV and JSON, read.

use std::fmt::Write;
use std::fs;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::sum;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit};
use connectors::FileConnector;
use connectors::file::{LINE_BYTES_MAX, QUOTED_BYTES_MAX, RECORD_BYTES_MAX};
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::Next;

use crate::bed::*;

fn csv(scratch: &Scratch, text: impl AsRef<[u8]>, fields: &[(&str, DataType)]) -> TableDef {
    table(&columns(fields), &[("path", &scratch.write("t.csv", text))])
}

#[test]
fn columns_are_found_by_name_and_cast() {
    let scratch = Scratch::new("csv-names");
    let text = "B,extra,a,at\n1.5,x,7,2013-01-01 05:00:00\n,y, 8 ,2013-01-01T06:00:00.250Z\n";
    let table = csv(&scratch, text, &[("a", BIGINT), ("b", DOUBLE), ("at", TIMESTAMP)]);
    let context = context();
    let source = source(&FileConnector::default(), &table).unwrap();
    assert!(source.bounded());
    assert_eq!(
        rows(&read(&*source, 1, &context)),
        ["7|1.5|2013-01-01T05:00:00", "8|NULL|2013-01-01T06:00:00.250"]
    );
    let projected = FileConnector::default().source(&table, &[2, 0]).unwrap();
    assert_eq!(projected.schema().field(0).name(), "at");
    assert_eq!(rows(&read(&*projected, 1, &context))[0], "2013-01-01T05:00:00|7");
    let nothing = FileConnector::default().source(&table, &[]).unwrap();
    assert_eq!(read(&*nothing, 1, &context).num_rows(), 2);
    assert_eq!(context.bad.count(), 0);
}

#[test]
fn three_broken_lines_in_a_hundred_thousand_cost_three_rows() {
    let scratch = Scratch::new("csv-broken");
    let mut text = "id,value,name\n".to_owned();
    for id in 0..100_000 {
        match id {
            12 => text += "12,1\n",
            50_000 => text += "50000,many,n\n",
            99_999 => text += "99999,1,n,1\n",
            _ => writeln!(text, "{id},{},n{}", id % 10, id % 7).unwrap(),
        }
    }
    let table = csv(&scratch, text, &[("id", BIGINT), ("value", BIGINT), ("name", VARCHAR)]);
    // What is bad does not depend on the columns that a query reads.
    for projection in [&[0, 1, 2][..], &[0], &[]] {
        let context = context();
        let source = FileConnector::default().source(&table, projection).unwrap();
        let read = read(&*source, 1, &context);
        assert_eq!(read.num_rows(), 99_997);
        if let Some(ids) = read.columns().first() {
            let expected = (0..100_000i64).sum::<i64>() - 12 - 50_000 - 99_999;
            assert_eq!(sum(ids.as_primitive::<Int64Type>()), Some(expected));
        }
        assert_eq!(context.bad.count(), 3);
        let mut bad = bad(&context);
        bad.sort();
        let short = "expected 3 fields, found 2";
        let long = "expected 3 fields, found 4";
        let word = "column 'value': 'many' is not a valid BIGINT";
        assert_eq!(bad[0], ("t.csv:100001".into(), long.into(), "99999,1,n,1".into()));
        assert_eq!(bad[1], ("t.csv:14".into(), short.into(), "12,1".into()));
        assert_eq!(bad[2], ("t.csv:50002".into(), word.into(), "50000,many,n".into()));
    }
}

#[test]
fn an_unclosed_quote_costs_only_its_own_line() {
    let scratch = Scratch::new("csv-quote");
    let text = "a,b\n1,\"two\nlines\"\n2,\"open\n3,c\n4,\"d\"\n\n5,\"e\"\"e\"\n6,\"last\n";
    let table = csv(&scratch, text, &[("a", BIGINT), ("b", VARCHAR)]);
    let context = context();
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["1|two\nlines", "3|c", "4|d", "5|e\"e"]);
    let bad = bad(&context);
    assert_eq!(bad.iter().map(|bad| bad.0.as_str()).collect::<Vec<_>>(), ["t.csv:4", "t.csv:9"]);
    assert_eq!((bad[0].2.as_str(), bad[1].2.as_str()), ("2,\"open", "6,\"last"));
}

#[test]
fn windows_line_ends_blank_lines_comments_and_marks_are_understood() {
    let scratch = Scratch::new("csv-crlf");
    let text = "\u{feff}a,b\r\n# 1,2\r\n\r\n1,x\r\n# more\r\n2,y,z\r\n3,w";
    let path = scratch.write("t.csv", text);
    let schema = columns(&[("a", BIGINT), ("b", VARCHAR)]);
    let table = table(&schema, &[("path", &path), ("csv.comment", "#")]);
    let context = context();
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["1|x", "3|w"]);
    assert_eq!(bad(&context)[0].0, "t.csv:6");
    assert_eq!(bad(&context)[0].2, "2,y,z");
}

#[test]
fn nulls_are_what_the_option_says_and_empty_fields_of_numbers() {
    let scratch = Scratch::new("csv-null");
    let path = scratch.write("t.csv", "a,b\nNA,NA\n,\n1,x\n");
    let fields = vec![Field::new("a", BIGINT, true), Field::new("b", VARCHAR, false)];
    let schema = Arc::new(Schema::new(fields));
    let context = context();
    let strict = table(&schema, &[("path", &path), ("csv.null", "NA,-")]);
    let read = read(&*source(&FileConnector::default(), &strict).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["NULL|", "1|x"]);
    let reason = "column 'b': NULL, but it is NOT NULL";
    assert_eq!(bad(&context), [("t.csv:2".into(), reason.into(), "NA,NA".into())]);
}

#[test]
fn bytes_that_are_no_text_are_a_bad_row() {
    let scratch = Scratch::new("csv-utf8");
    // The two halves of an é in two fields: each is wrong, together they would be right.
    let table = csv(&scratch, b"a,b\nx,y\n\xc3,\xa9\nz,w\n", &[("a", VARCHAR), ("b", VARCHAR)]);
    let context = context();
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["x|y", "z|w"]);
    assert_eq!(bad(&context)[0].1, "column 'a': the text is not UTF-8");
}

#[test]
fn on_bad_fail_ends_at_the_record() {
    let scratch = Scratch::new("csv-fail");
    let schema = columns(&[("a", BIGINT)]);
    for (name, text) in [("t.csv", "a\n1\nx\n"), ("t.json", "{\"a\":1}\n\n{\"a\":[]}\n")] {
        let path = scratch.write(name, text);
        let table = table(&schema, &[("path", &path), ("on_bad", "fail")]);
        let source = source(&FileConnector::default(), &table).unwrap();
        let error = refused(try_read_flow(&*source, 0, &context()));
        assert!(
            matches!(error, ConnectorError::Io { ref place, .. } if *place == format!("{path}:3"))
        );
        assert!(hint(&error).contains("'on_bad' = 'skip'"), "{error}");
    }
}

#[test]
fn a_file_without_header_is_read_by_position() {
    let scratch = Scratch::new("csv-headless");
    let path = scratch.write("t.tsv", "1\tx\n2\ty\n");
    let schema = columns(&[("a", BIGINT), ("b", VARCHAR)]);
    let table = table(&schema, &[("path", &path), ("csv.header", "false")]);
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["1|x", "2|y"]);
    let inferred = FileConnector::default().infer(&table.options).unwrap().unwrap();
    assert_eq!(inferred.field(1).name(), "column2");
    assert_eq!(inferred.field(0).data_type(), &BIGINT);
}

#[test]
fn columns_of_one_name_are_told_apart() {
    let scratch = Scratch::new("csv-twice");
    let text = "k,v,k,k_1,k\n1,2,3,4,5\n";
    let files = FileConnector::default();
    let all = csv(&scratch, text, &[]);
    let inferred = files.infer(&all.options).unwrap().unwrap();
    let names: Vec<&String> = inferred.fields().iter().map(|field| field.name()).collect();
    assert_eq!(names, ["k", "v", "k_2", "k_1", "k_3"]);
    let all = TableDef { schema: inferred, ..all };
    assert_eq!(rows(&read(&*source(&files, &all).unwrap(), 1, &context())), ["1|2|3|4|5"]);

    let of = |names: &[&str]| {
        let fields: Vec<_> = names.iter().map(|name| (*name, BIGINT)).collect();
        source(&files, &csv(&scratch, text, &fields))
    };
    let error = refused(of(&["v", "k"]));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "k"), "{error}");
    assert!(error.to_string().contains("two columns of this name"), "{error}");
    assert!(hint(&error).contains("'k_2'"), "{error}");
    let read = |names: &[&str]| rows(&read(&*of(names).unwrap(), 1, &context()));
    assert_eq!(read(&["v", "k_1", "k_3"]), ["2|4|5"], "no name of them is there twice");
    assert_eq!(read(&["k_3", "k_2", "k"]), ["5|3|1"]);
}

#[test]
fn a_column_that_the_file_lacks_names_the_nearest() {
    let scratch = Scratch::new("csv-column");
    let table = csv(&scratch, "origin,dest\n", &[("orgin", VARCHAR)]);
    let error = refused(source(&FileConnector::default(), &table));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "orgin"));
    assert_eq!(hint(&error), "did you mean 'origin'?");
}

#[test]
fn globs_and_directories_are_sorted_and_files_are_flows() {
    let scratch = Scratch::new("globs");
    for name in ["b.csv", "a.csv", "_hidden.csv", "c.txt"] {
        scratch.write(name, format!("a\n{name}\n"));
    }
    let schema = columns(&[("a", VARCHAR)]);
    let names = |path: &str| -> Vec<String> {
        let source = source(&FileConnector::default(), &table(&schema, &[("path", path)])).unwrap();
        rows(&read(&*source, 3, &context()))
    };
    assert_eq!(names(&scratch.path("")), ["a.csv", "b.csv"]);
    assert_eq!(names(&scratch.path("[a-z].csv")), ["a.csv", "b.csv"]);
    assert_eq!(names(&scratch.path("*.csv")), ["a.csv", "b.csv"]);
    assert_eq!(names(&scratch.path("_*.csv")), ["_hidden.csv"]);
    assert_eq!(names(&scratch.path("_hidden.csv")), ["_hidden.csv"]);
    let source_of =
        |path: &str| source(&FileConnector::default(), &table(&schema, &[("path", path)]));
    let flows = source_of(&scratch.path("?.csv")).unwrap().splits(1, None).unwrap();
    assert_eq!(flows.len(), 2);
    assert_eq!(flows[0].bytes, Some(8));
    assert!(flows[1].name.ends_with("b.csv"));
    let error = refused(source_of(&scratch.path("*.parquet")));
    assert!(error.to_string().contains("no file matches"), "{error}");
    let error = refused(source_of(&scratch.path("c.txt")));
    assert!(hint(&error).contains("'format' = 'csv'"), "{error}");
}

#[test]
fn a_missing_file_names_the_nearest() {
    let scratch = Scratch::new("missing");
    scratch.write("flights.csv", "a\n");
    let schema = columns(&[("a", VARCHAR)]);
    let error = |path: &str| {
        refused(source(
            &FileConnector::default(),
            &table(&schema, &[("path", path), ("format", "csv")]),
        ))
    };
    assert!(hint(&error(&scratch.path("flihgts.csv"))).contains("flights.csv'?"));
    assert!(hint(&error(&scratch.path("nowhere/flights.csv"))).contains("no directory"));
    let nothing = refused(source(&FileConnector::default(), &table(&schema, &[])));
    assert!(matches!(&nothing, ConnectorError::Option { key, .. } if key == "path"));
    let typo = table(&schema, &[("path", "x.csv"), ("format", "cvs")]);
    assert_eq!(hint(&refused(source(&FileConnector::default(), &typo))), "did you mean 'csv'?");
}

#[test]
fn json_lines_are_rows_and_bad_ones_stand_alone() {
    let scratch = Scratch::new("json");
    let mut text = String::new();
    for id in 0..20_000 {
        match id {
            5 => text += "{\"id\": 5, \"at\"\n",
            6 => text += "\n{\"id\": \"six\"}\n",
            9_999 => text += "{\"id\":9999}{\"id\":9999}\n",
            19_999 => text += "{\"name\":\"no id\"}",
            _ => writeln!(text, "{{\"id\":{id},\"at\":\"2013-01-01T05:00:00Z\",\"x\":{{}}}}")
                .unwrap(),
        }
    }
    let path = scratch.write("t.jsonl", text);
    let fields = vec![
        Field::new("id", BIGINT, false),
        Field::new("at", TIMESTAMP, true),
        Field::new("name", VARCHAR, true),
    ];
    let table = table(&Arc::new(Schema::new(fields)), &[("path", &path)]);
    for projection in [&[0, 1, 2][..], &[2]] {
        let context = context();
        let source = FileConnector::default().source(&table, projection).unwrap();
        let read = read(&*source, 1, &context);
        assert_eq!(read.num_rows(), 19_996);
        assert_eq!(context.bad.count(), 4);
        let bad = bad(&context);
        let places: Vec<&str> = bad.iter().map(|bad| bad.0.as_str()).collect();
        assert_eq!(places, ["t.jsonl:6", "t.jsonl:8", "t.jsonl:10001", "t.jsonl:20001"]);
        assert!(bad[1].1.starts_with("column 'id'"), "{}", bad[1].1);
        assert_eq!(bad[2].1, "expected one object a line");
        assert_eq!(bad[3].1, "column 'id': NULL, but it is NOT NULL");
        assert_eq!(bad[1].2, "{\"id\": \"six\"}");
    }
}

#[test]
fn columns_are_inferred_from_the_first_records() {
    let scratch = Scratch::new("infer");
    let csv = "i,d,b,day,at,s,n,us\n1,1.5,true,2013-01-01,2013-01-01 05:00:00,a1,,\
               2013-01-01 05:00:00.123456\n2,3,false,2013-01-02,2013-01-01T06:00:00Z,2,NA,\n";
    let path = scratch.write("t.csv", csv);
    let options = table(&columns(&[]), &[("path", &path), ("csv.null", "NA")]).options;
    let schema = FileConnector::default().infer(&options).unwrap().unwrap();
    let types: Vec<&DataType> = schema.fields().iter().map(|field| field.data_type()).collect();
    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
    assert_eq!(
        types,
        [
            &BIGINT,
            &DOUBLE,
            &DataType::Boolean,
            &DataType::Date32,
            &TIMESTAMP,
            &VARCHAR,
            &VARCHAR,
            &micros
        ]
    );
    let json = "{\"i\":1,\"at\":\"2013-01-01T05:00:00Z\",\"s\":\"1\"}\nbroken\n{\"d\":1.5}\n";
    let path = scratch.write("t.json", json);
    let options = table(&columns(&[]), &[("path", &path)]).options;
    let schema = FileConnector::default().infer(&options).unwrap().unwrap();
    let of = |name: &str| schema.field_with_name(name).unwrap().data_type().clone();
    assert_eq!([of("i"), of("at"), of("s"), of("d")], [BIGINT, TIMESTAMP, VARCHAR, DOUBLE]);
}

#[test]
fn types_beyond_the_plain_ones_are_cast() {
    let scratch = Scratch::new("csv-types");
    let words = DataType::Dictionary(Box::new(DataType::Int32), Box::new(VARCHAR));
    let fields = [
        ("v", DataType::Utf8View),
        ("w", words),
        ("m", DataType::Decimal128(10, 2)),
        ("d", DataType::Date32),
        ("b", DataType::Boolean),
        ("i", DataType::Int8),
    ];
    let text = "v,w,m,d,b,i\n,x,1.25,2013-02-03,true,5\nz,,,,,\nz,x,1,2013-02-03,true,200\n";
    let table = csv(&scratch, text, &fields);
    let context = context();
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["|x|1.25|2013-02-03|true|5", "z||NULL|NULL|NULL|NULL"]);
    assert_eq!(bad(&context)[0].1, "column 'i': '200' is not a valid TINYINT");
    assert_eq!(read.column(0).null_count(), 0);
}

#[test]
fn a_quote_that_swallows_too_much_gives_back_the_lines_behind_it() {
    let scratch = Scratch::new("csv-bound");
    let line = "7,xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
    // It is never closed, in a file that ends before its end is given up, and in one that does not;
    // or a quote that follows does not close it.
    for (bytes, end) in [(RECORD_BYTES_MAX, ""), (QUOTED_BYTES_MAX, ""), (1 << 10, "8,\"y\"\n")] {
        let lines = bytes / line.len() + 10;
        let text = format!("a,b\n1,\"open\n{}{end}", line.repeat(lines));
        let table = csv(&scratch, text, &[("a", BIGINT), ("b", VARCHAR)]);
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!(read.num_rows(), lines + usize::from(!end.is_empty()));
        assert_eq!(bad(&context)[0].0, "t.csv:2");
        assert_eq!(context.bad.count(), 1);
    }
}

#[test]
fn a_quoted_value_that_is_too_long_is_a_bad_row_and_its_lines_are_no_records() {
    let scratch = Scratch::new("csv-quoted");
    let schema = columns(&[("a", BIGINT), ("record", BIGINT)]);
    for (bytes, ending) in [(RECORD_BYTES_MAX, "\n"), (QUOTED_BYTES_MAX - (1 << 20), "\r\n")] {
        let lines = bytes / 5 + 10;
        let value = format!("\"3,{}\"\"4\"", "7,77\n".repeat(lines));
        let records = ["a,b", "1,x", &format!("2,{value}"), "5,y", &format!("6,{value}"), "7,z"];
        let mut table = table(&schema, &[("path", &scratch.write("t.csv", records.join(ending)))]);
        table.metadata.insert(1, "record".into());
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        let at = |records: usize| records + lines * (records / 2 - 1);
        assert_eq!(rows(&read), ["1|2", &format!("5|{}", at(4)), &format!("7|{}", at(6))]);
        let bad = bad(&context);
        assert_eq!(bad.len(), 2);
        for (bad, place) in bad.iter().zip([3, at(5)]) {
            assert_eq!(bad.0, format!("t.csv:{place}"));
            assert_eq!(bad.1, format!("the record is longer than {RECORD_BYTES_MAX} bytes"));
            assert!(bad.2.len() < 300, "{}", bad.2.len());
        }
    }
}

#[test]
fn a_line_that_is_too_long_is_a_bad_row_and_its_neighbours_are_read() {
    let scratch = Scratch::new("bounds");
    let schema = columns(&[("a", VARCHAR), ("record", BIGINT)]);
    let long = |bytes: usize| "x".repeat(bytes + (3 << 20));
    let csv = long(RECORD_BYTES_MAX);
    let json = long(LINE_BYTES_MAX);
    let reasons = [RECORD_BYTES_MAX, LINE_BYTES_MAX]
        .map(|bytes| format!("the line is longer than {bytes} bytes"));
    for (name, text, reason) in [
        ("t.csv", format!("a\n1\n{csv}\n2\n\"{csv}\"\n3\n"), &reasons[0]),
        ("t.csv", format!("a\n1\n{csv}\n2\n\"{csv}"), &reasons[0]),
        ("t.json", format!("{{\"a\":1}}\n{json}\n{{\"a\":2}}\n{json}\n{{\"a\":3}}"), &reasons[1]),
        ("t.json", format!("{{\"a\":1}}\n{json}\n{{\"a\":2}}\n{json}"), &reasons[1]),
    ] {
        let last = text.ends_with('x');
        let path = scratch.write(name, text);
        let mut table = table(&schema, &[("path", &path)]);
        table.metadata.insert(1, "record".into());
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        let line = |line: usize| line + usize::from(name == "t.csv");
        let expected: Vec<String> = [1, 3, 5][..if last { 2 } else { 3 }]
            .iter()
            .zip(1..)
            .map(|(at, value)| format!("{value}|{}", line(*at)))
            .collect();
        assert_eq!(rows(&read), expected, "{name}");
        let bad = bad(&context);
        assert_eq!(bad.len(), 2, "{name}");
        for (bad, at) in bad.iter().zip([2, 4]) {
            assert_eq!((&bad.0, &bad.1), (&format!("{name}:{}", line(at)), reason));
            assert!(bad.2.len() < 300, "{}", bad.2.len());
        }
    }
}

#[test]
fn the_mark_of_an_encoding_is_passed_and_other_encodings_are_named() {
    let scratch = Scratch::new("marks");
    let wide = |text: &str| -> Vec<u8> {
        let units = "\u{feff}".encode_utf16().chain(text.encode_utf16());
        units.flat_map(u16::to_le_bytes).collect()
    };
    let texts = [("t.csv", "a\n\"1\"\n"), ("t.json", "{\"a\":\"1\"}\n")];
    for (name, text) in texts {
        let path = scratch.write(name, format!("\u{feff}{text}"));
        let table = table(&columns(&[("a", VARCHAR)]), &[("path", &path)]);
        let inferred = FileConnector::default().infer(&table.options).unwrap().unwrap();
        assert_eq!(inferred.field(0).name(), "a");
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
        assert_eq!(rows(&read), ["1"], "{name}");
        for marked in [true, false] {
            let bytes = wide(text);
            scratch.write(name, if marked { &bytes[..] } else { &bytes[2..] });
            let error = match source(&FileConnector::default(), &table) {
                Ok(source) => refused(try_read_flow(&*source, 0, &context())),
                Err(error) => error,
            };
            assert!(error.to_string().contains("its text is UTF-16"), "{error}");
            assert!(hint(&error).contains("iconv"), "{error}");
        }
    }
    let path = scratch.write("t.csv", "\u{feff}\"1\",x\n2,y\n");
    let options = [("path", &*path), ("csv.header", "false")];
    let table = table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &options);
    assert_eq!(FileConnector::default().infer(&table.options).unwrap().unwrap().fields().len(), 2);
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["1|x", "2|y"]);
}

#[test]
fn an_empty_file_among_others_has_no_rows() {
    let scratch = Scratch::new("empty");
    for (extension, text) in [("csv", "a\n7\n"), ("json", "{\"a\":7}\n")] {
        for (name, text) in [("a", ""), ("b", text), ("c", "")] {
            scratch.write(&format!("{name}.{extension}"), text);
        }
        let path = scratch.path(&format!("*.{extension}"));
        let table = table(&columns(&[("a", BIGINT)]), &[("path", &path)]);
        assert_eq!(
            FileConnector::default().infer(&table.options).unwrap().unwrap().field(0).name(),
            "a"
        );
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!((rows(&read), context.bad.count()), (vec!["7".to_owned()], 0));
    }
}

#[test]
fn a_column_that_one_file_lacks_is_null_there() {
    let scratch = Scratch::new("lacks");
    scratch.write("1.csv", "a\n1\n");
    scratch.write("2.csv", "b,a\nx,2\n");
    let path = scratch.path("*.csv");
    let table_of = |fields: &[(&str, DataType)]| table(&columns(fields), &[("path", &path)]);
    let both = table_of(&[("a", BIGINT), ("b", VARCHAR)]);
    let read = read(&*source(&FileConnector::default(), &both).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["1|NULL", "2|x"]);
    let error =
        refused(source(&FileConnector::default(), &table_of(&[("a", BIGINT), ("c", VARCHAR)])));
    assert!(matches!(&error, ConnectorError::Column { column, .. } if column == "c"), "{error}");
    let fields = vec![Field::new("a", BIGINT, true), Field::new("b", VARCHAR, false)];
    let strict = table(&Arc::new(Schema::new(fields)), &[("path", &path)]);
    let error = refused(source(&FileConnector::default(), &strict));
    assert!(error.to_string().contains("1.csv has no such column"), "{error}");
}

#[test]
fn a_file_that_links_lead_to_twice_is_read_once() {
    let scratch = Scratch::new("links");
    fs::create_dir(scratch.path("d")).unwrap();
    scratch.write("d/t.csv", "a\n1\n");
    std::os::unix::fs::symlink("..", scratch.path("d/up")).unwrap();
    let path = scratch.path("**/*.csv");
    let table = table(&columns(&[("a", BIGINT)]), &[("path", &path)]);
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["1"]);
}

#[test]
fn numbers_of_json_are_read_by_the_rule_of_all_formats() {
    let scratch = Scratch::new("json-numbers");
    let decimal = DataType::Decimal128(10, 2);
    let cases = [
        (BIGINT, "1.9", None),
        (BIGINT, "1.0", Some("1")),
        (BIGINT, "1e3", Some("1000")),
        (BIGINT, "9007199254740993.0", Some("9007199254740993")),
        (BIGINT, "9223372036854775808", None),
        (BIGINT, "\"7\"", Some("7")),
        (BIGINT, "true", None),
        (BIGINT, "[1]", None),
        (DataType::Int8, "128", None),
        (decimal.clone(), "1.25", Some("1.25")),
        (decimal.clone(), "1.255", None),
        (decimal.clone(), "123456789", None),
        (DOUBLE, "0.1", Some("0.1")),
        (DOUBLE, "1e400", None),
        (DOUBLE, "\"NaN\"", Some("NaN")),
        (DOUBLE, "\"-Infinity\"", Some("-inf")),
        (TIMESTAMP, "1500", Some("1970-01-01T00:00:01.500")),
        (TIMESTAMP, "1.5", None),
        (TIMESTAMP, "\"1969-12-31T23:59:59.9999Z\"", Some("1969-12-31T23:59:59.999")),
        (DataType::Boolean, "true", Some("true")),
        (VARCHAR, r#""\ud842\udfb7""#, Some("𠮷")),
        (VARCHAR, r#""\ud842""#, None),
        (VARCHAR, "12.50", Some("12.50")),
        (VARCHAR, "{}", None),
        (DataType::new_list(DataType::Int8, true), "[1, 300]", None),
        (DataType::new_list(DataType::Int8, true), "[1, 2.0]", Some("[1, 2]")),
    ];
    for (of, value, expected) in cases {
        let path = scratch.write("t.json", format!("{{\"a\":{value}}}\n{{\"a\":null}}\n"));
        let table = table(&columns(&[("a", of.clone())]), &[("path", &path)]);
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        let expected: Vec<&str> = expected.into_iter().chain(["NULL"]).collect();
        assert_eq!(rows(&read), expected, "{value} as {of}: {:?}", bad(&context));
        assert_eq!(context.bad.count(), 2 - expected.len() as u64);
    }
}

#[test]
fn arrays_and_objects_of_several_lines_are_read() {
    let scratch = Scratch::new("json-shapes");
    for text in [
        "[\n{\"a\":1},\n{\"a\":2},\n{\"a\":{}},\n{\"a\":4}\n]\n",
        "\u{feff}[{\"a\":1},{\"a\":2},{\"a\":[\"],\"]},{\"a\":4}]",
        " [ {\r\n  \"a\": 1\r\n  },\r\n  {\r\n \"a\": 2}\r\n,[3],{\"a\":\r\n4\r\n}\r\n]",
        "{\n  \"a\": 1\n}\n\n{\n  \"a\": 2\n}\n3\n{\n  \"a\":\n 4\n}\n",
        "[{\"a\":1}\n{\"a\":2}\n{\"a\" 3}\n{\"a\":4}\n",
    ] {
        let path = scratch.write("t.json", text);
        let mut table = table(
            &columns(&[("a", BIGINT), ("record", BIGINT)]),
            &[("path", &path), ("split.bytes", "8")],
        );
        table.metadata.insert(1, "record".into());
        let context = context();
        let source = source(&FileConnector::default(), &table).unwrap();
        assert_eq!(source.splits(4, None).unwrap().len(), 1);
        assert_eq!(rows(&read(&*source, 4, &context)), ["1|1", "2|2", "4|4"], "{text}");
        assert_eq!(bad(&context).len(), 1, "{text}");
        assert_eq!(bad(&context)[0].0, "t.json:3", "{text}");
        assert_eq!(crate::positions::check(&*source, 1), 3);
    }
    let path = scratch.write("u.json", "[\n  {\n    \"a\": 1,\n    \"b\": \"x\"\n  },\n  {}\n]");
    let table = table(&columns(&[]), &[("path", &path)]);
    let inferred = FileConnector::default().infer(&table.options).unwrap().unwrap();
    assert_eq!(inferred, columns(&[("a", BIGINT), ("b", VARCHAR)]));
}

#[test]
fn a_first_line_that_is_damaged_makes_no_other_layout() {
    let scratch = Scratch::new("json-damaged");
    for first in ["{\"a\":", "{", "[", "[{\"a\":", "\"x", "{\"a\":\"x"] {
        let path = scratch.write("t.json", format!("{first}\n{{\"a\":2}}\n{{\"a\":3}}\n"));
        let table = table(&columns(&[("a", BIGINT)]), &[("path", &path)]);
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        let expected: &[&str] = if first == "[{\"a\":" { &[] } else { &["2", "3"] };
        assert_eq!(rows(&read), expected, "{first}");
    }
}

#[test]
fn what_is_wrong_with_a_line_of_json_is_said_in_the_words_of_sql() {
    let scratch = Scratch::new("json-words");
    let list = DataType::new_list(DataType::Int32, true);
    for (of, line, reason) in [
        (BIGINT, "5", "a row is a JSON object, and this is a number"),
        (BIGINT, "\"x\"", "a row is a JSON object, and this is a text"),
        (
            BIGINT,
            "{\"a\":1},",
            "no JSON: at character 8 the end of the line is missing, and there is ','",
        ),
        (
            BIGINT,
            "{\"a\":{} \"b\":2}",
            "no JSON: at character 9 ',' or '}' is missing, and there is '\"'",
        ),
        (DataType::Boolean, "{\"a\":300}", "column 'a': 300 is not a valid BOOLEAN"),
        (list.clone(), "{\"a\":\"x\"}", "column 'a': \"x\" is not a valid ARRAY<INT>"),
        (BIGINT, "{\"a\":[1]}", "column 'a': [1] is not a valid BIGINT"),
        (BIGINT, "{\"a\":\"x\"}", "column 'a': 'x' is not a valid BIGINT"),
    ] {
        let path = scratch.write("t.json", format!("{line}\n"));
        let table = table(&columns(&[("a", of)]), &[("path", &path)]);
        let context = context();
        read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!(bad(&context)[0].1, reason, "{line}");
    }
}

#[test]
fn batches_of_long_records_are_short() {
    let scratch = Scratch::new("csv-long");
    let record = format!("{}\n", "x".repeat(1 << 20));
    let table = csv(&scratch, format!("a\n{}", record.repeat(20)), &[("a", VARCHAR)]);
    let source = source(&FileConnector::default(), &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    let mut sizes = Vec::new();
    while let Next::Batch(batch) = flow.next(8192).unwrap() {
        sizes.push(batch.num_rows());
    }
    assert_eq!(sizes, [8, 8, 4]);
}
