//! Each source announces whether it is read on from positions, and keeps to that: a job that takes
//! checkpoints of a source without positions could not go on.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use connectors::pool::in_memory::InMemoryPool;
use connectors::{
    DeltaConnector, FileConnector, FlightConnector, Generator, Http, PoolConnector, Socket, Stdin,
};
use dataflow::connector::{Connector, TableDef};
use dataflow::sink::{Room, WriterContext};
use dataflow::source::Next;

use crate::bed::*;
use crate::servers::flight::Tables;
use crate::servers::peer::{Peer, Then, answer};
use crate::servers::s3::{KEY, S3};

fn numbers() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20));
    batch(&[("a", numbers)])
}

fn of(options: &[(&str, &str)]) -> TableDef {
    table(&columns(&[("a", BIGINT)]), options)
}

/// The connectors that were read.
#[derive(Default)]
struct Checked(BTreeSet<&'static str>);

impl Checked {
    /// Gives a batch of the first split that has one, and compares.
    fn check(&mut self, connector: &dyn Connector, table: &TableDef, replays: bool) {
        let name = connector.name();
        let source = source(connector, table).unwrap();
        let context = context();
        let splits = source.splits(1, None).unwrap();
        let mut reader = source.open(&splits[0], None, &context).unwrap();
        let announced = source.replays();
        assert_eq!(reader.position().can_be_replayed(), announced, "{name} at its beginning");
        while !matches!(reader.next(5).unwrap(), Next::Batch(_)) {
            std::thread::yield_now();
        }
        assert_eq!(reader.position().can_be_replayed(), announced, "{name}: {:?}", table.options);
        assert_eq!(announced, replays, "{name}: {:?}", table.options);
        assert!(!(announced && source.comes_once()), "{name}");
        self.0.insert(name);
    }

    /// Writes rows through a sink.
    fn written(connector: &dyn Connector, table: &TableDef) {
        let mut writer = connector.sink(table).unwrap().open(&WriterContext::of(0)).unwrap();
        put(&mut *writer, &numbers()).unwrap();
        while writer.drain().unwrap() == Room::Full {}
        writer.commit().unwrap();
    }
}

#[test]
fn every_source_announces_what_its_positions_are() {
    let (mut checked, scratch) = (Checked::default(), Scratch::new("announced"));
    let files = FileConnector::default();
    for name in ["t.csv", "t.json", "t.csv.gz", "t.parquet", "t.arrow", "t.arrows", "t.dat"] {
        let path = scratch.path(name);
        let fixed: &[(&str, &str)] = &[("path", &path), ("format", "fixed")];
        let table = of(if name == "t.dat" { fixed } else { &fixed[..1] });
        Checked::written(&files, &table);
        checked.check(&files, &table, true);
    }
    std::fs::create_dir(scratch.path("in")).unwrap();
    scratch.write("in/1.csv", "a\n1\n2\n");
    let watched = [("path", &*scratch.path("in/")), ("watch", "10ms"), ("watch.settle", "0s")];
    checked.check(&files, &of(&watched), true);
    let path = scratch.path("pipe.csv");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let to = path.clone();
    let writer = std::thread::spawn(move || {
        OpenOptions::new().write(true).open(to).unwrap().write_all(b"a\n1\n").unwrap();
    });
    checked.check(&files, &of(&[("path", &path)]), false);
    writer.join().unwrap();

    let store = S3::start();
    store.put("/bucket/t.csv", "a\n1\n2\n");
    let (endpoint, region) = (store.endpoint(), ("s3.region", "eu-west-1"));
    let key = [("s3.access_key_id", KEY), ("s3.secret_access_key", "hush")];
    let object = [("path", "s3://bucket/t.csv"), ("s3.endpoint", endpoint.as_str()), region];
    checked.check(&files, &of(&[&object[..], &key].concat()), true);

    let lake = of(&[("path", &scratch.path("lake"))]);
    Checked::written(&DeltaConnector, &lake);
    checked.check(&DeltaConnector, &lake, true);

    for options in [&[][..], &[("rows", "100")], &[("rows", "100"), ("preload", "true")]] {
        checked.check(&Generator, &of(options), true);
    }
    checked.check(&Stdin::new(&b"a\n1\n"[..]), &of(&[]), false);
    let peer = Peer::lines(vec![("1\n2\n", Then::Close)]);
    checked.check(&Socket, &of(&[("address", &peer.address)]), false);
    let text = answer("200 OK", "", "[{\"a\":1}]");
    let peer = Peer::http(vec![(&text, Then::Close)]);
    checked.check(&Http, &of(&[("url", &peer.url())]), false);

    let tables = Tables::default();
    tables.tables.lock().unwrap().insert("x".into(), vec![numbers()]);
    let serving = tables.serve();
    let uri = format!("grpc://{}", serving.address);
    checked.check(&FlightConnector, &of(&[("uri", &uri), ("path", "x")]), false);

    let pool = PoolConnector::new(InMemoryPool::new(1));
    let columns = columns(&[("a", DataType::Int64)]);
    let table = table(&columns, &[("table", "t")]);
    Checked::written(&pool, &table);
    checked.check(&pool, &table, true);

    let all = connectors::all();
    let read =
        all.iter().map(|one| one.name()).filter(|name| !["stdout", "blackhole"].contains(name));
    assert_eq!(checked.0, read.collect(), "a connector is missing here");
}
