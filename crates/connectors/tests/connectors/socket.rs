//! Lines over TCP.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::channel;

use arrow::array::{ArrayRef, Int64Array};
use connectors::Socket;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, WriterContext};

use crate::bed::*;
use crate::servers::nobody;
use crate::servers::peer::{Peer, Then};

fn lines(options: &[(&str, &str)]) -> TableDef {
    table(&columns(&[("a", BIGINT), ("b", VARCHAR)]), options)
}

#[test]
fn each_address_is_a_flow_that_ends_with_its_stream() {
    let one = Peer::lines(vec![("1,x\n2,y\n", Then::Close)]);
    let other = Peer::lines(vec![("3,z\nfour,z\n5,last", Then::Close)]);
    let address = format!("{}, {}", one.address, other.address);
    let table = lines(&[("address", &address)]);
    let source = source(&Socket, &table).unwrap();
    assert!(!source.bounded());
    let names: Vec<String> =
        source.splits(2, None).unwrap().into_iter().map(|flow| flow.name).collect();
    assert_eq!(names, [one.address.clone(), other.address.clone()]);
    let context = context();
    // All flows of an unbounded source are open at the same time.
    let mut flows: Vec<_> =
        (0..2).map(|flow| source.open(&nth(flow), None, &context).unwrap()).collect();
    assert_eq!(rows(&drain(&mut *flows[0]).unwrap()), ["1|x", "2|y"]);
    assert_eq!(rows(&drain(&mut *flows[1]).unwrap()), ["3|z", "5|last"]);
    let reason = "column 'a': 'four' is not a valid BIGINT";
    let place = format!("{}:2", other.address);
    assert_eq!(bad(&context), [(place, reason.into(), "four,z".into())]);
}

#[test]
fn a_record_that_a_lost_connection_cut_off_is_bad_and_reading_goes_on() {
    let (now, reset) = channel();
    let peer = Peer::lines(vec![
        ("{\"a\":1}\n{\"a\":12", Then::Reset(reset)),
        ("{\"a\":3}\n", Then::Close),
    ]);
    let table = lines(&[("address", &peer.address), ("format", "json")]);
    let source = source(&Socket, &table).unwrap();
    let context = context();
    let mut flow = source.open(&nth(0), None, &context).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|NULL"]);
    now.send(()).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["3|NULL"]);
    let place = format!("{}:2", peer.address);
    let reason = "the connection was lost within the record";
    assert_eq!(bad(&context), [(place, reason.into(), "{\"a\":12".into())]);
}

#[test]
fn where_bad_rows_are_errors_so_is_a_record_that_was_cut_off() {
    let (now, reset) = channel();
    let peer = Peer::lines(vec![("1,x\n2", Then::Reset(reset))]);
    let table = lines(&[("address", &peer.address), ("on_bad", "fail")]);
    let source = source(&Socket, &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|x"]);
    now.send(()).unwrap();
    let error = refused(drain(&mut *flow));
    assert!(error.to_string().contains("within the record"), "{error}");
}

#[test]
fn a_header_is_read_anew_with_each_connection() {
    let (now, reset) = channel();
    let peer = Peer::lines(vec![("a,b\n1,x\n", Then::Reset(reset)), ("b,a\ny,2\n", Then::Close)]);
    let table = lines(&[("address", &peer.address), ("csv.header", "true")]);
    let source = source(&Socket, &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|x"]);
    now.send(()).unwrap();
    assert_eq!(rows(&drain(&mut *flow).unwrap()), ["2|y"]);
}

#[test]
fn where_nobody_listens_the_query_fails_after_the_retry_timeout() {
    let address = nobody();
    let table = lines(&[("address", &address), ("retry.timeout", "60ms")]);
    let source = source(&Socket, &table).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    let error = refused(drain(&mut *flow));
    assert!(matches!(&error, ConnectorError::Io { place, .. } if *place == address));
    assert!(error.to_string().contains("cannot connect: Connection refused"), "{error}");
    assert!(hint(&error).contains("'retry.timeout'"));
    let error = refused(Socket.sink(&table).unwrap().open(&WriterContext::of(0)).map(drop));
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[test]
fn who_stops_reading_hangs_up() {
    let peer = Peer::lines(vec![("1,x\n", Then::Hold)]);
    let source = source(&Socket, &lines(&[("address", &peer.address)])).unwrap();
    let mut flow = source.open(&nth(0), None, &context()).unwrap();
    assert_eq!(rows(&await_batch(&mut *flow).unwrap()), ["1|x"]);
    drop(flow);
    // Heard when the connection has ended.
    assert_eq!(peer.received.recv().unwrap(), "");
}

#[test]
fn addresses_are_checked() {
    for (address, wrong) in
        [("localhost", "no host and port"), ("a:1,:2", "':2'"), ("h:99999", "'h:99999'")]
    {
        let error = refused(source(&Socket, &lines(&[("address", address)])).map(drop));
        assert!(error.to_string().contains(wrong), "{error}");
    }
    assert!(hint(&refused(source(&Socket, &lines(&[])).map(drop))).contains("localhost:9000"));
    let error = refused(Socket.sink(&lines(&[("address", "a:1,b:2")])).map(drop));
    assert!(error.to_string().contains("a sink writes to one"), "{error}");
}

#[test]
fn a_sink_writes_lines_and_ends_the_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let a: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let batch = batch(&[("a", a)]);
    for (format, expected) in
        [("csv", "1\n\"\"\n3\n"), ("json", "{\"a\":1}\n{\"a\":null}\n{\"a\":3}\n")]
    {
        let options = [("address", &*address), ("format", format)];
        let sink = Socket.sink(&table(&batch.schema(), &options)).unwrap();
        assert_eq!(sink.placement(), Placement::Gather);
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        writer.write(&batch.slice(0, 1)).unwrap();
        writer.flush().unwrap();
        let mut first = [0; 1];
        socket.read_exact(&mut first).unwrap();
        writer.write(&batch.slice(1, 2)).unwrap();
        writer.commit().unwrap();
        let mut rest = String::new();
        socket.read_to_string(&mut rest).unwrap();
        assert_eq!(String::from_utf8_lossy(&first) + &*rest, expected);
    }
}
