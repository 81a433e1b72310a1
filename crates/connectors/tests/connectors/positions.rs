//! What every source promises of its positions: a reader that is opened at one gives exactly the
//! rows that are left, and a position that does not belong to a split is refused.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, SchemaRef};
use connectors::{FileConnector, Generator, Socket, Stdin};
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::{Next, Position, Source, SplitReader};

use crate::bed::*;

/// A reader, the rows that it gave so far, and its context.
struct Reading {
    reader: Box<dyn SplitReader>,
    rows: Vec<String>,
}

impl Reading {
    /// The next rows; false at the end.
    fn next(&mut self, rows_max: usize) -> Result<bool, ConnectorError> {
        match self.reader.next(rows_max)? {
            Next::Batch(batch) => {
                assert!((1..=rows_max).contains(&batch.num_rows()));
                self.rows.extend(rows(&batch));
                Ok(true)
            }
            Next::Pending | Next::Wait { .. } => panic!("the reader waits"),
            Next::End => Ok(false),
        }
    }
}

/// Checks all positions of all splits of a source; gives how many rows it has.
pub fn check(source: &dyn Source, workers: u32) -> usize {
    let splits = source.splits(workers, None).unwrap();
    let mut total = 0;
    let mut of_others: Option<Position> = None;
    for split in &splits {
        let opened = context();
        let reader = source.open(split, None, &opened).unwrap();
        let mut reading = Reading { reader, rows: Vec::new() };
        let mut positions = vec![(reading.reader.position(), 0, 0)];
        while reading.next(7).unwrap() {
            let position = reading.reader.position();
            positions.push((position, reading.rows.len(), opened.bad.count()));
        }
        for (position, given, bad) in &positions {
            assert!(position.can_be_replayed());
            let position = Position::from_bytes(&position.to_bytes()).unwrap();
            for rows_max in [1, 5, 1_000] {
                let resumed = context();
                let reader = source.open(split, Some(&position), &resumed).unwrap();
                assert_eq!(reader.position(), position, "nothing was read");
                let mut rest = Reading { reader, rows: Vec::new() };
                while rest.next(rows_max).unwrap() {}
                let name = &split.name;
                assert!(rest.rows == reading.rows[*given..], "{name} behind row {given}");
                assert_eq!(bad + resumed.bad.count(), opened.bad.count(), "{name} {given}");
            }
        }
        let refused = |position: &Position| {
            source
                .open(split, Some(position), &context())
                .and_then(|reader| Reading { reader, rows: Vec::new() }.next(10))
                .expect_err("it is no position of the split")
                .to_string()
        };
        if let Some(position) = &of_others {
            assert!(refused(position).contains("the position is one of"));
        }
        let other = Position::new("other", 1, &split.name, &[1, 2, 3]);
        assert!(refused(&other).contains("the position is of 'other', version 1"));
        of_others = positions.pop().map(|(position, ..)| position);
        total += reading.rows.len();
    }
    total
}

fn file(path: &str, schema: &SchemaRef, options: &[(&str, &str)]) -> Arc<dyn Source> {
    let options: Vec<_> = [("path", path)].iter().chain(options).copied().collect();
    source(&FileConnector::default(), &table(schema, &options)).unwrap()
}

fn two() -> SchemaRef {
    columns(&[("a", BIGINT), ("b", VARCHAR)])
}

/// Writes a file of `rows` rows through a sink.
fn written(path: &str, rows: i64, options: &[(&str, &str)]) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|a| format!("x{a}"))));
    let batch = batch(&[("a", numbers), ("b", texts)]);
    let options: Vec<_> = [("path", path)].iter().chain(options).copied().collect();
    let sink = FileConnector::default().sink(&table(&batch.schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    for begin in (0..batch.num_rows()).step_by(25) {
        writer.write(&batch.slice(begin, 25.min(batch.num_rows() - begin))).unwrap();
    }
    writer.commit().unwrap();
}

/// Records of CSV, two of ten of them bad.
pub fn odd_records(count: usize) -> String {
    let record = |a: usize| match a % 10 {
        3 => "none,bad\n".to_owned(),
        4 => format!("{a},\"two\nlines\"\r\n\n"),
        5 => "\"never closed,x\n".to_owned(),
        _ => format!("{a},x{a}\r\n"),
    };
    (0..count).map(record).collect()
}

#[test]
fn csv_goes_on_behind_any_row() {
    let scratch = Scratch::new("positions-csv");
    let path = scratch.write("t.csv", format!("\u{feff}a,b\r\n{}99,last", odd_records(60)));
    assert_eq!(check(&*file(&path, &two(), &[]), 1), 49);
    // Without a header, a comment, and a line that is too long for a record.
    let long = "y".repeat(5 << 20);
    let path = scratch.write("u.csv", format!("1,a\n#no\n2,b\n3,{long}\n4,d\n"));
    let bare = [("csv.header", "false"), ("csv.comment", "#")];
    assert_eq!(check(&*file(&path, &two(), &bare), 1), 3);
    written(&scratch.path("t.csv.gz"), 100, &[]);
    written(&scratch.path("u.csv.zst"), 50, &[]);
    assert_eq!(check(&*file(&scratch.path("*.csv.*"), &two(), &[]), 1), 150);
}

#[test]
fn json_and_records_of_fixed_length_go_on_behind_any_row() {
    let scratch = Scratch::new("positions-json");
    let line = |a: i64| match a % 10 {
        3 => "{\"a\": \"none\"}\n".to_owned(),
        4 => format!("\r\n  {{\"a\": {a}, \"b\": \"x\"}}\r\n"),
        _ => format!("{{\"a\": {a}}}\n"),
    };
    let text: String = (0..60).map(line).chain(["{\"a\": 7}".to_owned()]).collect();
    let path = scratch.write("t.json", &text);
    assert_eq!(check(&*file(&path, &two(), &[]), 1), 55);
    let long = format!("{{\"a\": 1}}\n{{\"b\": \"{}\"}}\n{{\"a\": 2}}\n", "y".repeat(17 << 20));
    let path = scratch.write("u.json", long);
    assert_eq!(check(&*file(&path, &two(), &[]), 1), 2);
    let fixed = [("format", "fixed"), ("fixed.lengths", "b:4")];
    written(&scratch.path("t.bin"), 100, &fixed);
    assert_eq!(check(&*file(&scratch.path("t.bin"), &two(), &fixed), 1), 100);
}

#[test]
fn parquet_and_arrow_go_on_behind_any_row() {
    let scratch = Scratch::new("positions-arrow");
    for (name, options) in [
        ("t.parquet", &[][..]),
        ("t.arrow", &[("arrow.layout", "file")]),
        ("t.arrows", &[("arrow.layout", "stream")]),
    ] {
        let path = scratch.path(name);
        written(&path, 90, options);
        assert_eq!(check(&*file(&path, &two(), &[]), 1), 90, "{name}");
        // Rows that the declared type cannot hold are bad, and positions count them.
        let narrow = columns(&[("a", DataType::Int8), ("b", VARCHAR)]);
        let path = scratch.path(&format!("wide-{name}"));
        written(&path, 150, options);
        assert_eq!(check(&*file(&path, &narrow, &[]), 1), 128, "{name}");
    }
}

#[test]
fn a_generator_goes_on_behind_any_row() {
    let number = columns(&[("a", BIGINT)]);
    let sequence = ("fields.a.kind", "sequence");
    let of = |options: &[(&str, &str)]| source(&Generator, &table(&number, options)).unwrap();
    let few = of(&[sequence, ("rows", "100"), ("repeat", "3")]);
    assert_eq!(check(&*few, 2), 300);
    // A row each 10 ms makes blocks of one row.
    let slow = of(&[sequence, ("rows", "30"), ("rate", "100"), ("flows", "3")]);
    let splits = slow.splits(1, None).unwrap();
    let mut reader = slow.open(&splits[1], None, &context()).unwrap();
    assert!(matches!(reader.next(10).unwrap(), Next::Wait { until_ns: 20_000_000 }));
    let kept = of(&[sequence, ("rows", "20000"), ("preload", "true"), ("flows", "1")]);
    let splits = kept.splits(1, None).unwrap();
    let mut reader = kept.open(&splits[0], None, &context()).unwrap();
    let mut given = 0;
    while let Next::Batch(batch) = reader.next(9_000).unwrap() {
        given += batch.num_rows();
        let rest = kept.open(&splits[0], Some(&reader.position()), &context()).unwrap();
        let mut rest = Reading { reader: rest, rows: Vec::new() };
        while rest.next(20_000).unwrap() {}
        assert_eq!(rest.rows.len(), 20_000 - given);
        assert_eq!(rest.rows.first(), (given < 20_000).then(|| given.to_string()).as_ref());
    }
    assert_eq!(given, 20_000);
}

#[test]
fn a_position_in_a_record_or_in_another_file_is_refused() {
    let scratch = Scratch::new("positions-refused");
    let text = "a,b\n1,x\n2,y\n";
    let path = scratch.write("t.csv", text);
    let source = file(&path, &two(), &[]);
    let splits = source.splits(1, None).unwrap();
    let at = |bytes: usize, offset: u64, record: u64| {
        let numbers = [bytes as u64, 0, offset, record, 0];
        let position = Position::new("csv", 2, &splits[0].name, &numbers);
        let opened = source.open(&splits[0], Some(&position), &context());
        let read = opened.and_then(|mut reader| reader.next(10).map(drop));
        read.map_or_else(|error| error.to_string(), |()| "read".into())
    };
    assert_eq!(at(text.len(), 8, 3), "read");
    assert!(at(text.len(), 9, 3).contains("byte 9 is within a record"));
    assert!(at(text.len(), 2, 1).contains("before the first record"));
    assert!(at(text.len(), 99, 9).contains("behind the end"));
    assert!(at(text.len() + 1, 8, 3).contains("it has 12 bytes, and had 13 before"));
}

#[test]
fn a_file_that_was_replaced_by_one_of_the_same_length_is_refused() {
    let scratch = Scratch::new("positions-replaced");
    let texts: Vec<String> =
        (0..5000).map(|row| format!("{:04},{}", row, "x".repeat(row % 7))).collect();
    let text = format!("a,b\n{}\n", texts.join("\n"));
    for (at, old, new) in [(0, "0000,", "9990,"), (1, "4999,", "9999,")] {
        let path = scratch.write(&format!("t{at}.csv"), &text);
        let open = || file(&path, &two(), &[]);
        let source = open();
        let splits = source.splits(1, None).unwrap();
        let mut reader = source.open(&splits[0], None, &context()).unwrap();
        reader.next(10).unwrap();
        let position = reader.position();
        // A copy with other times is the same file.
        std::fs::remove_file(&path).unwrap();
        scratch.write(&format!("t{at}.csv"), &text);
        assert!(open().open(&splits[0], Some(&position), &context()).is_ok());
        scratch.write(&format!("t{at}.csv"), text.replacen(old, new, 1));
        let error = refused(open().open(&splits[0], Some(&position), &context()).map(drop));
        let error = error.to_string();
        assert!(error.starts_with(&path) && error.contains("it was replaced"), "{error}");
    }
}

#[test]
fn what_comes_once_is_never_replayed() {
    let once: [(&dyn Connector, TableDef); 2] = [
        (&Stdin::new(&b""[..]), table(&two(), &[])),
        (&Socket, table(&two(), &[("address", "localhost:1")])),
    ];
    for (connector, table) in once {
        let source = source(connector, &table).unwrap();
        let splits = source.splits(1, None).unwrap();
        let position = Position::none(&splits[0].name);
        assert!(!position.can_be_replayed());
        let error = refused(source.open(&splits[0], Some(&position), &context()).map(drop));
        assert!(error.to_string().contains("cannot be replayed"), "{error}");
    }
}
