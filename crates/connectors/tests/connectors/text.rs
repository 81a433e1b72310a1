//! CSV and JSON, read.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::sum;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit};
use connectors::FileConnector;
use connectors::file::{LINE_BYTES_MAX, RECORD_BYTES_MAX};
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
    let source = source(&FileConnector, &table).unwrap();
    assert!(source.bounded());
    assert_eq!(
        rows(&read(&*source, 1, &context)),
        ["7|1.5|2013-01-01T05:00:00", "8|NULL|2013-01-01T06:00:00.250"]
    );
    let projected = FileConnector.source(&table, &[2, 0]).unwrap();
    assert_eq!(projected.schema().field(0).name(), "at");
    assert_eq!(rows(&read(&*projected, 1, &context))[0], "2013-01-01T05:00:00|7");
    let nothing = FileConnector.source(&table, &[]).unwrap();
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
        let source = FileConnector.source(&table, projection).unwrap();
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
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
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
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
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
    let read = read(&*source(&FileConnector, &strict).unwrap(), 1, &context);
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
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
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
        let source = source(&FileConnector, &table).unwrap();
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
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["1|x", "2|y"]);
    let inferred = FileConnector.infer(&table.options).unwrap().unwrap();
    assert_eq!(inferred.field(1).name(), "column2");
    assert_eq!(inferred.field(0).data_type(), &BIGINT);
}

#[test]
fn a_column_that_the_file_lacks_names_the_nearest() {
    let scratch = Scratch::new("csv-column");
    let table = csv(&scratch, "origin,dest\n", &[("orgin", VARCHAR)]);
    let error = refused(source(&FileConnector, &table));
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
        let source = source(&FileConnector, &table(&schema, &[("path", path)])).unwrap();
        rows(&read(&*source, 3, &context()))
    };
    assert_eq!(names(&scratch.path("")), ["a.csv", "b.csv"]);
    assert_eq!(names(&scratch.path("[a-z].csv")), ["a.csv", "b.csv"]);
    assert_eq!(names(&scratch.path("*.csv")), ["_hidden.csv", "a.csv", "b.csv"]);
    let source_of = |path: &str| source(&FileConnector, &table(&schema, &[("path", path)]));
    let flows = source_of(&scratch.path("?.csv")).unwrap().flows(1, None).unwrap();
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
        refused(source(&FileConnector, &table(&schema, &[("path", path), ("format", "csv")])))
    };
    assert!(hint(&error(&scratch.path("flihgts.csv"))).contains("flights.csv'?"));
    assert!(hint(&error(&scratch.path("nowhere/flights.csv"))).contains("no directory"));
    let nothing = refused(source(&FileConnector, &table(&schema, &[])));
    assert!(matches!(&nothing, ConnectorError::Option { key, .. } if key == "path"));
    let typo = table(&schema, &[("path", "x.csv"), ("format", "cvs")]);
    assert_eq!(hint(&refused(source(&FileConnector, &typo))), "did you mean 'csv'?");
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
        let source = FileConnector.source(&table, projection).unwrap();
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
    let schema = FileConnector.infer(&options).unwrap().unwrap();
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
    let schema = FileConnector.infer(&options).unwrap().unwrap();
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
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["|x|1.25|2013-02-03|true|5", "z||NULL|NULL|NULL|NULL"]);
    assert_eq!(bad(&context)[0].1, "column 'i': '200' is not a valid TINYINT");
    assert_eq!(read.column(0).null_count(), 0);
}

#[test]
fn a_quote_that_swallows_too_much_gives_back_the_lines_behind_it() {
    let scratch = Scratch::new("csv-bound");
    let line = "7,xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
    let lines = RECORD_BYTES_MAX / line.len() + 10;
    let text = format!("a,b\n1,\"open\n{}", line.repeat(lines));
    let table = csv(&scratch, text, &[("a", BIGINT), ("b", VARCHAR)]);
    let context = context();
    let read = read(&*source(&FileConnector, &table).unwrap(), 1, &context);
    assert_eq!(read.num_rows(), lines);
    assert_eq!(bad(&context)[0].0, "t.csv:2");
    assert_eq!(context.bad.count(), 1);
}

#[test]
fn a_file_without_line_ends_is_refused_at_the_bound() {
    let scratch = Scratch::new("bounds");
    let schema = columns(&[("a", VARCHAR)]);
    let head = "a\n\"";
    let csv = scratch.write("t.csv", head.to_owned() + &"x".repeat(RECORD_BYTES_MAX + 2));
    let json = scratch.write("t.json", "x".repeat(LINE_BYTES_MAX + (2 << 20)));
    for path in [csv, json] {
        let source = source(&FileConnector, &table(&schema, &[("path", &path)])).unwrap();
        let error = refused(try_read_flow(&*source, 0, &context()));
        assert!(error.to_string().contains("no line ends within"), "{error}");
    }
}

#[test]
fn batches_of_long_records_are_short() {
    let scratch = Scratch::new("csv-long");
    let record = format!("{}\n", "x".repeat(1 << 20));
    let table = csv(&scratch, format!("a\n{}", record.repeat(20)), &[("a", VARCHAR)]);
    let source = source(&FileConnector, &table).unwrap();
    let mut flow = source.open(0, &context()).unwrap();
    let mut sizes = Vec::new();
    while let Next::Batch(batch) = flow.next(8192).unwrap() {
        sizes.push(batch.num_rows());
    }
    assert_eq!(sizes, [8, 8, 4]);
}
