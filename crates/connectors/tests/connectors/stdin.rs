//! Rows that are piped in.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use arrow::array::{ArrayRef, Int64Array};
use arrow::ipc::writer::StreamWriter;
use connectors::Stdin;
use dataflow::connector::Connector;
use dataflow::source::Next;

use crate::bed::*;

/// A pipe that gives what the other end sends, and ends with it.
struct Pipe(Receiver<io::Result<&'static str>>);

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Ok(text) = self.0.recv() else { return Ok(0) };
        let text = text?;
        into[..text.len()].copy_from_slice(text.as_bytes());
        Ok(text.len())
    }
}

#[test]
fn a_pipe_is_one_flow_that_ends_with_it() {
    let stdin = Stdin::new(Cursor::new("b,a\nx,1\ny,many\nz,3\n"));
    let table = table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), &[]);
    let source = source(&stdin, &table).unwrap();
    assert!(source.bounded());
    assert_eq!(source.splits(4, None).unwrap().len(), 1);
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["1|x", "3|z"]);
    let reason = "column 'a': 'many' is not a valid BIGINT";
    assert_eq!(bad(&context), [("stdin:3".into(), reason.into(), "y,many".into())]);

    let again = refused(source.open(&nth(0), None, &context).map(drop));
    assert!(again.to_string().contains("read already"), "{again}");
}

#[test]
fn rows_come_before_the_end() {
    let (send, pipe) = channel();
    let options = [("format", "json")];
    let table = table(&columns(&[("a", BIGINT)]), &options);
    let source = source(&Stdin::new(Pipe(pipe)), &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert!(matches!(flow.next(10).unwrap(), Next::Pending), "nothing was sent");
    send.send(Ok("{\"a\":1}\n{\"a\":")).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1"]);
    send.send(Ok("2}\n{\"a\":3}")).unwrap();
    drop(send);
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["2", "3"]);
}

#[test]
fn arrow_is_read_as_a_stream() {
    let a: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    let batch = batch(&[("a", a)]);
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema()).unwrap();
    writer.write(&batch.slice(0, 3000)).unwrap();
    writer.write(&batch.slice(3000, 2000)).unwrap();
    writer.finish().unwrap();
    let table = table(&batch.schema(), &[("format", "arrow")]);
    let source = source(&Stdin::new(Cursor::new(bytes)), &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert_eq!(drain(&mut *flow).unwrap(), batch);
}

#[test]
fn a_pipe_that_breaks_is_an_error_after_its_rows() {
    let (send, pipe) = channel();
    send.send(Ok("a\n1\n")).unwrap();
    send.send(Err(io::Error::other("the disk is gone"))).unwrap();
    let table = table(&columns(&[("a", BIGINT)]), &[]);
    let source = source(&Stdin::new(Pipe(pipe)), &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1"]);
    let error = refused(drain(&mut *flow));
    assert_eq!(error.to_string(), "stdin: the disk is gone");
}

#[test]
fn it_can_only_be_read() {
    let table = table(&columns(&[("a", BIGINT)]), &[]);
    let stdin = Stdin::new(Cursor::new(""));
    assert!(hint(&refused(stdin.sink(&table).map(drop))).contains("'stdout'"));
    assert_eq!(stdin.infer(&table.options).unwrap(), None);
}
