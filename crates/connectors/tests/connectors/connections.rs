//! Formats that are no lines, over sockets and HTTP: messages of Protobuf, files of Avro.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::channel;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use connectors::{FileConnector, Http, Socket, Stdin};
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::{Next, ReaderContext, SplitReader};

use crate::bed::*;
use crate::formats::{container, fixture};
use crate::protobuf::behind_length;
use crate::servers::peer::{Peer, Then};

/// A table of `a` and `b`, of messages that have them as `id` and `name`.
fn events(options: &[(&str, &str)]) -> TableDef {
    let proto = fixture("event.proto").display().to_string();
    let own = [
        ("format", "protobuf"),
        ("protobuf.message-class-name", "Event"),
        ("protobuf.proto.file", &proto),
    ];
    table(&columns(&[("id", BIGINT), ("name", VARCHAR)]), &[&own[..], options].concat())
}

/// A message of it.
fn event(id: u8, name: &str) -> Vec<u8> {
    let name = [&[26, name.len() as u8], name.as_bytes()].concat();
    behind_length(&[&[8, id][..], &name].concat())
}

const AVRO: &str = r#"{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}"#;

/// A file with rows of less than 64.
fn avro(ids: &[u8]) -> Vec<u8> {
    let block: Vec<u8> = ids.iter().map(|id| id * 2).collect();
    container(AVRO, "null", ids.len() as i64, &block)
}

fn ids(options: &[(&str, &str)]) -> TableDef {
    table(&columns(&[("id", BIGINT)]), &[&[("format", "avro")], options].concat())
}

fn open(
    connector: &dyn Connector,
    table: &TableDef,
    context: &ReaderContext,
) -> Box<dyn SplitReader> {
    source(connector, table).unwrap().open(&nth(0), None, context).unwrap()
}

#[test]
fn a_connection_is_a_stream_of_messages_and_what_it_cuts_off_is_bad() {
    let (now, reset) = channel();
    let whole = [event(1, "x"), event(2, "y")].concat();
    let cut = |of: &[u8], more: &[u8]| [of, &more[..more.len() - 1]].concat();
    let peer = Peer::lines(vec![
        (cut(&whole, &event(3, "lost")), Then::Reset(reset)),
        (cut(&event(4, "é\n\0"), &event(5, "")), Then::Close),
    ]);
    let context = context();
    let mut flow = open(&Socket, &events(&[("address", &peer.address)]), &context);
    let mut read = vec![];
    while read.len() < 2 {
        read.extend(rows(&await_batch(&mut *flow).unwrap()));
    }
    now.send(()).unwrap();
    read.extend(rows(&drain(&mut *flow).unwrap()));
    assert_eq!(read, ["1|x", "2|y", "4|é\n\0"]);
    let places: Vec<String> = context.bad.kept().into_iter().map(|bad| bad.place).collect();
    assert_eq!(places, [3, 2].map(|at| format!("{}:{at}", peer.address)));
    assert!(bad(&context).iter().all(|bad| bad.1.starts_with("cut off: ")));
}

#[test]
fn a_connection_is_a_file_of_avro_and_what_it_cuts_off_is_bad() {
    let (now, reset) = channel();
    let (first, more) = (avro(&[1, 2]), avro(&[3]));
    // The block of another file has the same mark.
    let block = &more[more.len() - 19..];
    let peer = Peer::lines(vec![
        ([&first[..], &block[..3]].concat(), Then::Reset(reset)),
        ([&avro(&[4])[..], block, &block[..18]].concat(), Then::Close),
    ]);
    let context = context();
    let mut flow = open(&Socket, &ids(&[("address", &peer.address)]), &context);
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1", "2"]);
    now.send(()).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["4", "3"]);
    let bad = bad(&context);
    assert_eq!(bad[0].1, "cut off: 3 bytes of a block");
    assert_eq!(bad[1].1, "cut off: 18 bytes of a block");
    let places: Vec<String> = context.bad.kept().into_iter().map(|bad| bad.place).collect();
    assert_eq!(places, [3, 3].map(|at| format!("{}:{at}", peer.address)));
}

#[test]
fn a_connection_that_ends_before_its_rows_has_none() {
    for (bytes, bad_rows) in [(0, 0), (2, 1), (20, 1), (avro(&[]).len() - 19, 1)] {
        let peer = Peer::lines(vec![(&avro(&[1])[..bytes], Then::Close)]);
        let context = context();
        let mut flow = open(&Socket, &ids(&[("address", &peer.address)]), &context);
        assert_eq!(drain(&mut *flow).unwrap().num_rows(), 0, "{bytes}");
        assert_eq!(context.bad.count(), bad_rows, "{bytes}");
    }
    // Damage is none of the connection.
    let mut damaged = avro(&[1, 2]);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let peer = Peer::lines(vec![(damaged, Then::Close)]);
    let mut flow = open(&Socket, &ids(&[("address", &peer.address)]), &context());
    let error = refused(drain(&mut *flow)).to_string();
    assert!(error.contains("the mark behind a block"), "{error}");
    // Where bad rows are errors, so is what is cut off.
    let cut = avro(&[1])[..20].to_vec();
    let peer = Peer::lines(vec![(cut, Then::Close)]);
    let strict = ids(&[("address", &peer.address), ("on_bad", "fail")]);
    let error = refused(drain(&mut *open(&Socket, &strict, &context()))).to_string();
    assert!(error.contains("cut off: 20 bytes of its header"), "{error}");
}

/// An answer of which the last `missing` bytes are not sent.
fn answer(body: &[u8], missing: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), &body[..body.len() - missing]].concat()
}

#[test]
fn an_answer_is_a_file_of_avro_with_its_columns() {
    let file = fs::read(fixture("rows.snappy.avro")).unwrap();
    let peer = Peer::http(vec![
        (answer(&avro(&[1, 2]), 0), Then::Close),
        (answer(&avro(&[1, 2]), 0), Then::Close),
        (answer(&file, 0), Then::Close),
    ]);
    let url = peer.url();
    let of = ids(&[("url", &url)]);
    let inferred = Http.infer(&of.options).unwrap().unwrap();
    assert_eq!(inferred.field(0).data_type(), &BIGINT);
    let opened = context();
    assert_eq!(rows(&drain(&mut *open(&Http, &of, &opened)).unwrap()), ["1", "2"]);
    let read = drain(&mut *open(&Http, &of, &opened)).unwrap();
    assert_eq!((read.num_rows(), opened.bad.count()), (12, 0));
}

#[test]
fn an_answer_that_is_asked_for_once_is_whole_or_an_error() {
    let (first, more) = (avro(&[1, 2]), avro(&[3]));
    // The beginning of a block.
    let whole = [&first[..], &more[more.len() - 19..more.len() - 4]].concat();
    let messages = [event(1, "x"), event(2, "y")].concat();
    let peer = Peer::http(vec![
        (answer(&avro(&[1, 2]), 4), Then::Close),
        (answer(&messages, 4), Then::Close),
        (answer(&whole, 0), Then::Close),
    ]);
    let url = peer.url();
    for of in [ids(&[("url", &url)]), events(&[("url", &url)])] {
        let context = context();
        let error = refused(drain(&mut *open(&Http, &of, &context))).to_string();
        assert!(error.contains("the connection was lost"), "{error}");
        assert_eq!(context.bad.count(), 0);
    }
    let error = refused(drain(&mut *open(&Http, &ids(&[("url", &url)]), &context()))).to_string();
    assert!(error.contains("it ends within a block"), "{error}");
}

/// Reads until the next poll is to come.
fn until(flow: &mut dyn SplitReader, at: u64) -> Vec<String> {
    let mut read = vec![];
    loop {
        match flow.next(100).unwrap() {
            Next::Batch(batch) => read.extend(rows(&batch)),
            Next::Pending => std::thread::yield_now(),
            Next::Wait { until_ns } if until_ns == at => return read,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn answers_are_files_one_after_the_other_and_one_that_breaks_off_is_asked_for_again() {
    let messages = [event(1, "x"), event(2, "y")].concat();
    type Of = fn(&[(&str, &str)]) -> TableDef;
    let kinds: [(Of, Vec<u8>, [&str; 2], usize); 2] =
        [(ids, avro(&[1, 2]), ["1", "2"], 0), (events, messages, ["1|x", "2|y"], 1)];
    for (of, body, expected, before) in kinds {
        let peer = Peer::http(vec![
            (answer(&body, 1), Then::Close),
            (answer(&body, 0), Then::Close),
            (answer(&body, 0), Then::Close),
        ]);
        let clock = Arc::new(ManualClock::default());
        let context = ReaderContext::new(clock.clone(), Arc::default());
        let url = peer.url();
        let mut flow = open(&Http, &of(&[("url", &url), ("interval", "5ms")]), &context);
        assert_eq!(until(&mut *flow, 5_000_000), expected[..before]);
        assert_eq!(context.bad.count(), 1, "{:?}", bad(&context));
        for poll in 1..3 {
            clock.set(5_000_000 * poll);
            assert_eq!(until(&mut *flow, 5_000_000 * (poll + 1)), expected);
        }
        assert_eq!(context.bad.count(), 1);
    }
}

#[test]
fn columns_of_protobuf_are_known_before_anybody_is_asked() {
    let nobody = events(&[("url", "http://127.0.0.1:1/"), ("address", "127.0.0.1:1")]).options;
    for connector in [&Http as &dyn Connector, &Socket] {
        assert_eq!(connector.infer(&nobody).unwrap().unwrap().fields().len(), 22);
    }
}

#[test]
fn formats_that_are_not_read_somewhere_are_named_with_those_that_are() {
    let hints = |connector: &dyn Connector, options: &[(&str, &str)]| -> (String, String) {
        let of = table(&columns(&[("id", BIGINT)]), options);
        let error: ConnectorError = refused(source(connector, &of));
        (error.to_string(), hint(&error).to_owned())
    };
    for format in ["avro-confluent", "Protobuf-Confluent"] {
        let own = [("format", format), ("url", "http://h/"), ("address", "h:1"), ("path", "t")];
        let own_of = |connector| hints(connector, &own);
        let all: [(&dyn Connector, &str); 4] = [
            (&Socket, "csv, json, raw, avro, protobuf"),
            (&Http, "csv, json, raw, avro, protobuf"),
            (&Stdin::default(), "csv, json, raw, avro, protobuf, arrow, fixed"),
            (&FileConnector::default(), "csv, json, parquet"),
        ];
        for (connector, names) in all {
            let (error, hint) = own_of(connector);
            assert!(error.contains("'kafka'") && hint.contains(names), "{error} {hint}");
        }
    }
    for format in ["avro", "protobuf"] {
        let own = [("format", format), ("url", "http://h/"), ("mode", "sse")];
        let (error, hint) = hints(&Http, &own);
        assert!(error.contains("an event is a text"), "{error}");
        assert!(hint.ends_with("csv, json, raw"), "{hint}");
    }
    let (error, _) = hints(&Socket, &[("format", "parquet"), ("address", "h:1")]);
    assert!(error.contains("csv, json, raw, avro, protobuf"), "{error}");
}

fn sample() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["x", "", "two\nlines"]));
    batch(&[("id", ids), ("name", names)])
}

#[test]
fn a_sink_sends_what_a_file_of_the_format_has() {
    let scratch = Scratch::new("sent");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let of_avro = |options: &[(&str, &str)]| {
        let own = [("format", "avro"), ("avro.codec", "null")];
        table(&sample().schema(), &[&own[..], options].concat())
    };
    let of_proto: fn(&[(&str, &str)]) -> TableDef = events;
    for of in [&of_avro as &dyn Fn(&[(&str, &str)]) -> TableDef, &of_proto] {
        for rows_of in [sample(), sample().slice(0, 0)] {
            let sink = Socket.sink(&of(&[("address", &address)])).unwrap();
            let mut writer = sink.open(&WriterContext::of(0)).unwrap();
            let (mut socket, _) = listener.accept().unwrap();
            // Each flush sends the rows before it.
            for row in 0..rows_of.num_rows() {
                put(&mut *writer, &rows_of.slice(row, 1)).unwrap();
                writer.flush().unwrap();
            }
            writer.commit().unwrap();
            let mut sent = vec![];
            socket.read_to_end(&mut sent).unwrap();
            let path = scratch.write("t.sent", sent);
            let read_of = source(&FileConnector::default(), &of(&[("path", &path)])).unwrap();
            let opened = context();
            assert_eq!(rows(&read(&*read_of, 1, &opened)), rows(&rows_of));
            assert_eq!(bad(&opened), []);
        }
    }
}

#[test]
fn a_line_as_it_is_may_stand_beside_metadata() {
    let peer = Peer::lines(vec![("one\ntwo", Then::Close)]);
    let fields = columns(&[("line", VARCHAR), ("at", DataType::Int64)]);
    let mut of = table(&fields, &[("address", &peer.address), ("format", "raw")]);
    of.metadata = [(1, "record".to_owned())].into();
    let read = drain(&mut *open(&Socket, &of, &context())).unwrap();
    assert_eq!(rows(&read), ["one|1", "two|2"]);
}
