//! Damaged files of every format: an error that names the file, or rows and bad rows that account
//! for it; never a panic of ours, an endless read or an allocation that the file only claims.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::Next;

use crate::bed::*;

/// Formats in which nothing may be missing from the end without being noticed.
const WHOLE: [&str; 10] = [
    "t.csv.gz",
    "t.csv.zst",
    "t.csv.bz2",
    "t.csv.xz",
    "t.arrow",
    "t.arrows",
    "z.arrow",
    "t.arrows.gz",
    "t.parquet",
    "z.parquet",
];

fn sample() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..40).map(|row| format!("n{row}"))));
    batch(&[("id", ids), ("name", names)])
}

fn write(path: &str) {
    let sample = sample();
    let mut options = vec![("path", path)];
    if path.contains("/z.") {
        options.extend([("arrow.compression", "zstd"), ("parquet.compression", "zstd")]);
    }
    let sink = FileConnector::default().sink(&table(&sample.schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&sample.slice(0, 20)).unwrap();
    writer.write(&sample.slice(20, 20)).unwrap();
    writer.commit().unwrap();
}

/// Good and bad rows; an endless file would be seen by its rows.
fn read_all(path: &str) -> Result<(Vec<String>, u64), ConnectorError> {
    let table = table(&sample().schema(), &[("path", path)]);
    FileConnector::default().infer(&table.options)?;
    let (source, context) = (source(&FileConnector::default(), &table)?, context());
    let mut found = Vec::new();
    for flow in 0..source.splits(1, None)?.len() {
        let mut flow = source.open(&nth(flow), None, &context)?;
        loop {
            match flow.next(64)? {
                Next::Batch(batch) => found.extend(rows(&batch)),
                Next::Pending | Next::Wait { .. } => panic!("a file waits"),
                Next::End => break,
            }
            assert!(found.len() <= 10_000, "rows without end");
        }
    }
    Ok((found, context.bad.count()))
}

#[test]
fn a_file_that_was_cut_is_never_taken_for_a_whole_one() {
    let scratch = Scratch::new("cut");
    for name in WHOLE {
        let path = scratch.path(name);
        write(&path);
        let whole = fs::read(&path).unwrap();
        assert_eq!(read_all(&path).unwrap(), (rows(&sample()), 0), "{name}");
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            match read_all(&path) {
                Err(ConnectorError::Io { place, .. }) => {
                    assert!(place.starts_with(&path), "{name} cut at {length}: {place}");
                }
                Err(other) => panic!("{name} cut at {length}: {other}"),
                Ok(read) => panic!("{name} of {} cut at {length}: {read:?}", whole.len()),
            }
        }
    }
}

#[test]
fn text_that_was_cut_gives_its_whole_records() {
    let scratch = Scratch::new("cut-text");
    for name in ["t.csv", "t.json"] {
        let path = scratch.path(name);
        write(&path);
        let whole = fs::read(&path).unwrap();
        let all = rows(&sample());
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
            let records = lines.saturating_sub(usize::from(name == "t.csv"));
            // Without its header, or without a record, a file says nothing.
            let Ok((read, bad)) = read_all(&path) else {
                assert!(records == 0, "{name} cut at {length}");
                continue;
            };
            assert!(read.len() >= records, "{name} cut at {length}");
            // A last record that was cut may still be one, with less of its last value.
            assert!(read.len() as u64 + bad <= records as u64 + 1, "{name} cut at {length}");
            let same = read.len().min(records);
            assert_eq!(read[..same], all[..same]);
        }
    }
}

#[test]
fn bits_that_flip_give_errors_or_rows() {
    let scratch = Scratch::new("flips");
    let (mut errors, mut accepted) = (0, 0);
    for name in WHOLE.iter().chain(&["t.csv", "t.json"]) {
        let path = scratch.path(name);
        write(&path);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= [1, 0x80, 0xff][at % 3];
            fs::write(&path, &bytes).unwrap();
            match read_all(&path) {
                Ok(_) => accepted += 1,
                Err(ConnectorError::Io { place, .. }) => {
                    assert!(place.starts_with(&path), "{place}");
                    errors += 1;
                }
                // A name of a column may have changed, or its type.
                Err(ConnectorError::Column { .. }) => errors += 1,
                Err(other) => panic!("{name} at {at}: {other}"),
            }
        }
    }
    assert!(errors > 0 && accepted > 0);
}

#[test]
fn what_is_not_of_its_format_is_refused() {
    let scratch = Scratch::new("foreign");
    let huge = |head: &[u8]| [head, &[0xff; 3], &[0x7f], &[0x11; 64]].concat();
    let cases: [(&str, Vec<u8>); 14] = [
        ("empty.csv", vec![]),
        ("empty.json", vec![]),
        ("empty.parquet", vec![]),
        ("empty.arrow", vec![]),
        ("empty.csv.gz", vec![]),
        ("empty.csv.zst", vec![]),
        ("empty.csv.bz2", vec![]),
        ("empty.csv.xz", vec![]),
        ("text.parquet", b"id,name\n1,x\n".to_vec()),
        ("text.arrow", b"id,name\n1,x\n".to_vec()),
        ("magic.parquet", b"PAR1PAR1".to_vec()),
        ("magic.arrow", b"ARROW1\0\0ARROW1".to_vec()),
        ("length.arrows", huge(&[0xff; 4])),
        (
            "length.parquet",
            [&b"PAR1"[..], &[0x11; 64], &[0xff, 0xff, 0xff, 0x7f], b"PAR1"].concat(),
        ),
    ];
    for (name, bytes) in cases {
        let path = scratch.write(name, bytes);
        let error = refused(read_all(&path));
        let ConnectorError::Io { place, message, .. } = &error else { panic!("{name}: {error}") };
        assert!(place.starts_with(&path), "{name}: {place}");
        assert!(!message.is_empty() && message.len() < 300, "{name}: {message}");
    }
    let path = scratch.write("header.csv", "id,name\n");
    assert_eq!(read_all(&path).unwrap(), (vec![], 0));
}
