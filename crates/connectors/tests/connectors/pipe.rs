//! Tables that are pipes.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::sink::{Room, WriterContext};
use dataflow::source::Next;

use crate::bed::*;

/// The path of a pipe that nobody has opened.
fn pipe(dir: &Scratch) -> String {
    let path = dir.path("p.csv");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[test]
fn a_pipe_gives_its_rows_once_and_as_they_come() {
    let dir = Scratch::new("pipe");
    let path = pipe(&dir);
    let table = table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &[("path", &path)]);
    let files = FileConnector::default();
    let another = source(&files, &table).unwrap();
    let source = source(&files, &table).unwrap();
    assert!(source.bounded() && !source.repeats());
    assert_eq!(source.splits(4, None).unwrap().len(), 1);
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert!(matches!(flow.next(10).unwrap(), Next::Pending), "no writer has opened it");
    let second = refused(another.open(&nth(0), None, &context).map(drop));
    assert!(second.to_string().contains("another scan reads"), "{second}");

    // Waits until the pipe has a reader.
    let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
    assert!(matches!(flow.next(10).unwrap(), Next::Pending), "nothing was written");
    writer.write_all(b"b,a\nx,1\ny,ma").unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|x"]);
    writer.write_all(b"ny\nz,3").unwrap();
    drop(writer);
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["3|z"]);
    assert_eq!(bad(&context)[0].0, "p.csv:3");

    drop(flow);
    let second = refused(another.open(&nth(0), None, &context).map(drop));
    assert!(second.to_string().contains("another scan reads"), "its rows are gone: {second}");
    drop(source);
    another.open(&nth(0), None, &context).expect("it may have a reader again");
}

#[test]
fn a_pipe_tells_nothing_before_it_is_read() {
    let dir = Scratch::new("pipe-refused");
    let path = pipe(&dir);
    let of = |options: &[(&str, &str)]| table(&columns(&[("a", BIGINT)]), options);
    let inferred =
        refused(FileConnector::default().infer(&of(&[("path", &path)]).options).map(drop));
    assert!(inferred.to_string().contains("is a pipe: to infer"), "{inferred}");
    let parquet = of(&[("path", &path), ("format", "parquet")]);
    let parquet = refused(source(&FileConnector::default(), &parquet).map(drop));
    assert!(parquet.to_string().contains("Parquet is not read in order"), "{parquet}");
    dir.write("q.csv", "a\n1\n");
    let glob = dir.path("*.csv");
    let files = source(&FileConnector::default(), &of(&[("path", &glob)])).unwrap();
    assert_eq!(files.splits(1, None).unwrap().len(), 1, "a pattern names files alone");
}

/// The worker that writes is free while the pipe has no reader, and a sink without rows still opens
/// it, so that its reader sees the end.
#[test]
fn a_sink_waits_for_the_reader_of_a_pipe_and_its_worker_does_not() {
    for rows in [2, 0] {
        let dir = Scratch::new("pipe-sink");
        let path = pipe(&dir);
        let table = table(&columns(&[("a", BIGINT)]), &[("path", &path), ("csv.header", "false")]);
        let sink = FileConnector::default().sink(&table).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        if rows > 0 {
            writer.write(&batch(&[("a", ids)])).unwrap();
        }
        assert_eq!(writer.drain().unwrap(), Room::Full, "nobody reads it");
        let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
        writer.commit().unwrap();
        assert_eq!(reader.join().unwrap(), ["", "0\n1\n"][usize::from(rows > 0)]);
    }
}
