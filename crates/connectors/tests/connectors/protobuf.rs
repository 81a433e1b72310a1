//! Streams of messages of Protobuf, each behind its length: in files, packed, piped in, written.

use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::record_batch::RecordBatch;
use connectors::messages::MessageEncoder;
use connectors::{FileConnector, Stdin};
use dataflow::connector::Connector;
use dataflow::sink::WriterContext;
use prost_reflect::prost::Message;
use prost_reflect::prost::bytes::Buf;

use crate::bed::*;
use crate::formats::{digits, fixture};
use crate::positions::check;

/// A message behind its length, written down from the definition of a varint.
pub fn behind_length(message: &[u8]) -> Vec<u8> {
    let groups = (0..).map(|at| (message.len() >> (7 * at)) as u8);
    let count = (usize::BITS - message.len().leading_zeros()).div_ceil(7).max(1);
    let length = groups.take(count as usize).zip(1..);
    let length = length.map(|(group, at)| group & 0x7f | if at < count { 0x80 } else { 0 });
    length.chain(message.iter().copied()).collect()
}

/// The options of a table of `org.example.Event`.
fn events<'a>(proto: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let own = [
        ("format", "protobuf"),
        ("protobuf.message-class-name", "org.example.Event"),
        ("protobuf.proto.file", proto),
    ];
    [&own[..], more].concat()
}

fn proto() -> String {
    fixture("event.proto").display().to_string()
}

fn sample(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|n| "é".repeat(n as usize % 90))));
    let small = (0..rows).map(|n| (n % 3 != 0).then_some(n as i32));
    let small: ArrayRef = Arc::new(arrow::array::Int32Array::from_iter(small));
    batch(&[("name", names), ("small", small), ("id", ids)])
}

fn write(path: &str, rows: &RecordBatch, options: &[(&str, &str)]) {
    let options: Vec<_> = [("path", path)].iter().chain(options).copied().collect();
    let sink = FileConnector::default().sink(&table(&rows.schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    for begin in (0..rows.num_rows()).step_by(30) {
        writer.write(&rows.slice(begin, 30.min(rows.num_rows() - begin))).unwrap();
    }
    writer.commit().unwrap();
}

#[test]
fn a_stream_of_another_encoder_is_its_messages() {
    let scratch = Scratch::new("proto-stream");
    let messages = digits("events.json", "message");
    let stream: Vec<u8> = messages.iter().flat_map(|message| behind_length(message)).collect();
    let (path, proto) = (scratch.write("events.pb", &stream), proto());
    let columns = columns(&[
        ("id", BIGINT),
        ("name", VARCHAR),
        ("at", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ]);
    let of = table(&columns, &events(&proto, &[("path", &path)]));
    let opened = context();
    let read = read(&*source(&FileConnector::default(), &of).unwrap(), 3, &opened);
    let lines = fs::read_to_string(fixture("events.txt")).unwrap();
    let expected = lines.lines().map(|line| {
        let fields: Vec<&str> = line.split('|').collect();
        let at = if fields[17].is_empty() { "NULL" } else { fields[17] };
        format!("{}|{}|{at}", fields[0], fields[2])
    });
    assert_eq!(rows(&read), expected.collect::<Vec<_>>());
    assert_eq!(bad(&opened), []);
    assert_eq!(check(&*source(&FileConnector::default(), &of).unwrap(), 2), messages.len());
}

#[test]
fn columns_that_nothing_declares_are_the_fields_of_the_type() {
    let scratch = Scratch::new("proto-infer");
    let (path, proto) = (scratch.write("t.bin", b""), proto());
    let options = table(&columns(&[]), &events(&proto, &[("path", &path)])).options;
    let inferred = FileConnector::default().infer(&options).unwrap().unwrap();
    assert_eq!(inferred.fields().len(), 22);
    let of = |name: &str| inferred.field_with_name(name).unwrap().data_type().clone();
    assert_eq!(of("at"), DataType::Timestamp(TimeUnit::Microsecond, None));
    assert_eq!((of("wrapped"), of("color")), (VARCHAR, VARCHAR));
    assert!(matches!(of("place"), DataType::Struct(_)));
    // A stream is not looked at for them.
    assert_eq!(Stdin::default().infer(&options).unwrap().unwrap(), inferred);
    // All of them are read from a stream, and written to one.
    let messages = digits("events.json", "message");
    let stream: Vec<u8> = messages.iter().flat_map(|message| behind_length(message)).collect();
    let of_all = table(&inferred, &events(&proto, &[("path", &scratch.write("t.bin", stream))]));
    let all = read(&*source(&FileConnector::default(), &of_all).unwrap(), 1, &context());
    let copy = scratch.path("copy.bin");
    write(&copy, &all, &events(&proto, &[]));
    let of_copy = table(&inferred, &events(&proto, &[("path", &copy)]));
    assert_eq!(read(&*source(&FileConnector::default(), &of_copy).unwrap(), 1, &context()), all);
}

#[test]
fn what_is_written_is_what_another_reader_takes_and_is_read_again() {
    let scratch = Scratch::new("proto-written");
    let proto = proto();
    for (name, count) in [("t.pb", 0), ("t.pb", 1), ("t.pb", 100), ("t.pb.gz", 95), ("t.zst", 95)] {
        let (path, rows_of) = (scratch.path(name), sample(count));
        write(&path, &rows_of, &events(&proto, &[]));
        let of = table(&rows_of.schema(), &events(&proto, &[("path", &path)]));
        let opened = context();
        let again = read(&*source(&FileConnector::default(), &of).unwrap(), 1, &opened);
        assert_eq!((rows(&again), bad(&opened)), (rows(&rows_of), vec![]), "{name} {count}");
        assert_eq!(check(&*source(&FileConnector::default(), &of).unwrap(), 1), count as usize);
    }
    // The library reads the lengths, and messages are those of a log.
    let rows_of = sample(100);
    write(&scratch.path("t.pb"), &rows_of, &events(&proto, &[]));
    let bytes = fs::read(scratch.path("t.pb")).unwrap();
    let mut left = bytes.as_slice();
    let of = table(&rows_of.schema(), &events(&proto, &[]));
    let encoder = MessageEncoder::new(&of, &of.schema).unwrap();
    let take = |message: Option<&[u8]>| {
        let length = prost_reflect::prost::decode_length_delimiter(&mut left).unwrap();
        assert_eq!(message.unwrap(), &left[..length]);
        // Google's type without fields reads all of them as unknown.
        <() as Message>::decode(&left[..length]).unwrap();
        left.advance(length);
    };
    encoder.encode("t", &rows_of, take).unwrap();
    assert!(left.is_empty());
}

#[test]
fn directories_are_written_and_read_in_parts() {
    let scratch = Scratch::new("proto-parts");
    let (path, proto) = (scratch.path("parts/"), proto());
    write(&path, &sample(40), &events(&proto, &[("compression", "gzip")]));
    let names: Vec<_> = fs::read_dir(scratch.path("parts")).unwrap().collect();
    let name = names[0].as_ref().unwrap().file_name().into_string().unwrap();
    assert!(names.len() == 1 && name.ends_with(".pb.gz"), "{name}");
    let of = table(&sample(0).schema(), &events(&proto, &[("path", &path)]));
    let again = read(&*source(&FileConnector::default(), &of).unwrap(), 2, &context());
    assert_eq!(rows(&again), rows(&sample(40)));
    // The name of a file does not say what it has.
    let bare = [("path", &*path)];
    let error = refused(source(&FileConnector::default(), &table(&sample(0).schema(), &bare)));
    assert!(hint(&error).contains("'format' says"), "{error}");
}

#[test]
fn damage_is_named_by_the_file_and_the_message() {
    let scratch = Scratch::new("proto-damaged");
    let proto = proto();
    let messages = digits("events.json", "message");
    let id = columns(&[("id", BIGINT)]);
    let read_of = |bytes: &[u8], more: &[(&str, &str)]| {
        let path = scratch.write("t.pb", bytes);
        let all = [&[("path", &*path)], more].concat();
        let of = source(&FileConnector::default(), &table(&id, &events(&proto, &all))).unwrap();
        let opened = context();
        let read = try_read_flow(&*of, 0, &opened).map(|read| read.num_rows());
        (read.map_err(|error| error.to_string()), bad(&opened))
    };
    let mut stream: Vec<u8> = messages[..3].iter().flat_map(|of| behind_length(of)).collect();
    // A field of another type is a bad row, and so is what is cut off.
    stream.extend(behind_length(&[10, 1, b'x']));
    stream.extend(behind_length(&messages[3]));
    let whole = stream.len();
    stream.extend(&behind_length(&messages[4])[..5]);
    let (read, bad) = read_of(&stream, &[]);
    assert_eq!(read, Ok(4));
    let places: Vec<_> = bad.iter().map(|(place, ..)| place.as_str()).collect();
    assert_eq!(places, ["t.pb:4", "t.pb:6"], "{bad:?}");
    assert_eq!(bad[0].2, "0x0a0178");
    assert!(bad[1].1.contains("cut off: 5 bytes"), "{bad:?}");
    let (read, _) = read_of(&stream, &[("on_bad", "fail")]);
    assert!(read.unwrap_err().contains("t.pb:4"));
    // Behind a length that cannot be nothing can be told apart.
    stream.truncate(whole);
    stream.extend([0xff; 4]);
    stream.push(0x0f);
    let (read, _) = read_of(&stream, &[]);
    let error = read.unwrap_err();
    assert!(error.contains("t.pb:6") && error.contains("4294967295 bytes"), "{error}");
}

#[test]
fn a_pipe_is_a_stream_too() {
    let proto = proto();
    let stream: Vec<u8> = [&[2, 8, 1][..], &[2, 8, 2], &[2, 8, 0x80]].concat();
    let of = table(&columns(&[("id", BIGINT)]), &events(&proto, &[]));
    let piped = source(&Stdin::new(Cursor::new(stream)), &of).unwrap();
    let opened = context();
    let mut flow = piped.open(&nth(0), None, &opened).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["1", "2"]);
    assert_eq!(bad(&opened)[0].0, "stdin:3");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let scratch = Scratch::new("proto-refused");
    let (path, proto) = (scratch.write("t.pb", b""), proto());
    let of = |schema, options: &[(&str, &str)]| {
        let of = table(schema, options);
        let read = refused(source(&FileConnector::default(), &of)).to_string();
        let written = refused(FileConnector::default().sink(&of)).to_string();
        (read, written)
    };
    let id = columns(&[("id", BIGINT)]);
    let (read, written) = of(&id, &[("path", &path), ("format", "protobuf")]);
    assert!(read.contains("message-class-name") && written == read, "{read} {written}");
    let other = columns(&[("ident", BIGINT)]);
    let (read, written) = of(&other, &events(&proto, &[("path", &path)]));
    assert!(read.contains("'ident'") && written.contains("'ident'"), "{read} {written}");
    let kind = columns(&[("numbers", BIGINT)]);
    let (read, written) = of(&kind, &events(&proto, &[("path", &path)]));
    assert!(read.contains("declare an ARRAY") && written.contains("ARRAY"), "{read} {written}");
}
