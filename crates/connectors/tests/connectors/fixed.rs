//! Records of fixed length: written, read, piped in, and damaged.

use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int32Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use connectors::{FileConnector, Generator, Stdin};
use dataflow::connector::Connector;
use dataflow::sink::WriterContext;

use crate::bed::*;

const LENGTHS: (&str, &str) = ("fixed.lengths", "name: 4");
const BYTES: (&str, &str) = ("fixed.record_bytes", "24");

fn sample() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, -1, 70_000]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["", "four", "ü"]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(0), None, Some(9)]));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
    batch(&[("n", numbers), ("name", names), ("at", times), ("flag", flags)])
}

#[test]
fn what_is_written_is_read_also_in_part_and_packed() {
    let scratch = Scratch::new("fixed-files");
    for name in ["t.bin", "t.bin.zst"] {
        let path = scratch.path(name);
        let options = [("path", &*path), ("format", "fixed"), LENGTHS, BYTES];
        let table = table(&sample().schema(), &options);
        let mut writer =
            FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
        writer.write(&sample().slice(0, 1)).unwrap();
        writer.write(&sample().slice(1, 2)).unwrap();
        writer.commit().unwrap();
        let context = context();
        let all = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!(rows(&all), rows(&sample()), "{name}");
        let some = FileConnector::default().source(&table, &[2, 0]).unwrap();
        assert_eq!(rows(&read(&*some, 1, &context))[2], "1970-01-01T00:00:00.009|70000");
        assert_eq!(context.bad.count(), 0);
    }
    let bytes = fs::read(scratch.path("t.bin")).unwrap();
    let first = [&1i32.to_le_bytes()[..], &[0; 4], &[0; 8], &[1], &[0; 7]].concat();
    assert_eq!((bytes.len(), &bytes[..24]), (3 * 24, &first[..]));
}

#[test]
fn damaged_records_are_refused_by_their_numbers_and_the_others_read() {
    let scratch = Scratch::new("fixed-damaged");
    let path = scratch.write("t.bin", b"\x01\0\xff\xfe\x02\0ab\x03\0c\0\x04");
    let columns = columns(&[("n", DataType::Int16), ("name", VARCHAR)]);
    let options = [("path", &*path), ("format", "fixed"), ("fixed.lengths", "name:2")];
    let context = context();
    let read =
        read(&*source(&FileConnector::default(), &table(&columns, &options)).unwrap(), 1, &context);
    assert_eq!(rows(&read), ["2|ab", "3|c"]);
    let bad: Vec<(String, String)> =
        bad(&context).into_iter().map(|(place, reason, _)| (place, reason)).collect();
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert_eq!(bad[0].0, "t.bin:1");
    assert!(bad[0].1.contains("is not a valid"), "{bad:?}");
    assert_eq!(bad[1], ("t.bin:4".into(), "cut off: 1 of 4 bytes".into()));

    let strict = [&options[..], &[("on_bad", "fail")]].concat();
    let strict = source(&FileConnector::default(), &table(&columns, &strict)).unwrap();
    let error = refused(try_read_flow(&*strict, 0, &context));
    assert!(error.to_string().contains("t.bin:1"), "{error}");
}

#[test]
fn columns_are_declared_and_null_is_refused() {
    let scratch = Scratch::new("fixed-refused");
    let path = scratch.write("t.bin", [0; 8]);
    let options = [("path", &*path), ("format", "fixed")];
    let bare = table(&columns(&[]), &options);
    let error = refused(FileConnector::default().infer(&bare.options));
    assert!(error.to_string().contains("do not name their columns"), "{error}");

    let table = table(&columns(&[("n", DataType::Int32)]), &options);
    let mut writer =
        FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let error = refused(writer.write(&batch(&[("n", numbers)])));
    assert!(error.to_string().contains("column 'n': NULL has no place"), "{error}");
    drop(writer);
    assert_eq!(fs::read(path).unwrap(), [0; 8], "the old file is still there");
}

#[test]
fn records_may_be_piped_in() {
    let stdin = Stdin::new(Cursor::new([7, 0, 8, 0, 9]));
    let table = table(&columns(&[("n", DataType::Int16)]), &[("format", "fixed")]);
    let source = source(&stdin, &table).unwrap();
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["7", "8"]);
    assert_eq!(bad(&context)[0].0, "stdin:3");
}

#[test]
fn generated_rows_are_kept_as_records_that_have_a_length() {
    let kept = |options: &[(&str, &str)]| {
        let options = [&[("kind", "ysb"), ("rows", "20000")], options].concat();
        let bare = table(&columns(&[]), &options);
        let schema = Generator.infer(&bare.options).unwrap().unwrap();
        table(&schema, &options)
    };
    // All but the text, whose length differs.
    let projection = [2, 4, 5, 6, 8];
    let of = |options: &[(&str, &str)]| {
        let source = Generator.source(&kept(options), &projection)?;
        try_read_flow(&*source, 0, &context()).map(|batch| rows(&batch))
    };
    let fixed = ("layout", "fixed");
    let (preload, laps) = (("preload", "true"), ("repeat", "2"));
    let columns = of(&[laps]).unwrap();
    assert_eq!(columns.len(), 40_000);
    assert_eq!(of(&[fixed, preload, laps]).unwrap(), columns);
    assert_eq!(of(&[fixed, preload, laps, ("fixed.record_bytes", "78")]).unwrap(), columns);

    for (options, message) in [
        (&[fixed][..], "needs rows kept"),
        (&[preload, ("fixed.record_bytes", "78")], "speaks of records"),
        (&[fixed, preload, ("fixed.record_bytes", "20")], "the columns take 26 bytes"),
    ] {
        let error = refused(of(options)).to_string();
        assert!(error.contains(message), "{error}");
    }
    let text = source(&Generator, &kept(&[fixed, preload])).unwrap();
    let error = refused(try_read_flow(&*text, 0, &context()));
    assert!(error.to_string().contains("its texts have no fixed length"), "{error}");
}
