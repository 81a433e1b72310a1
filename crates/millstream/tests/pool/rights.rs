//! Rights to read tables, and to load and drop them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use millstream::FabricKind;
use millstream::cluster::certs;
use millstream::pool::{Client, MemoryServer, PoolAccess, PoolError, PoolOptions};
use pool::access::{LoadMode, TableLoad};
use pool::manifest::{Definition, Layout};
use pool::wire::{ClientRequest, Rights, ServerResponse, StatementId};

use crate::rig::{Dir, Raw, client, load, options, sums, token, token_file};

const REFUSED: &str = "this client may read tables, and neither load nor drop them";

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, PoolError>) {
    let refused = result.expect_err("it may not do that").to_string();
    assert!(refused.contains(REFUSED), "{refused}");
}

/// That a client reads a table, and changes nothing.
fn assert_reads_alone(reader: &Client) {
    assert_eq!(sums(reader, "t").unwrap(), (1, 1000, 499_500));
    assert_refused(load(reader, "u", LoadMode::Create, 0..5));
    assert_refused(load(reader, "t", LoadMode::Append, 0..5));
    assert_refused(reader.drop_table("t"));
    let stat = reader.stat().unwrap().remove(0);
    assert!(stat.refusals >= 3 && stat.loads == 0 && stat.tables == 1, "{stat:?}");
}

#[test]
fn who_shows_the_token_of_readers_reads_and_changes_nothing() {
    let dir = Dir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("readers.token");
    let mut options = options(None);
    options.read_token = Some(file.clone());
    let server = MemoryServer::start(options.clone()).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    let there = MemoryServer::start(options).expect_err("the file is there").to_string();
    assert!(there.contains("readers.token"), "{there}");
    let at = server.address();
    load(&client(at, FabricKind::Tcp), "t", LoadMode::Create, 0..1000).unwrap();
    let with = |file: &Path| {
        let token_file = Some(file.to_owned());
        Client::new(PoolOptions { token_file, ..PoolOptions::new(vec![at.to_string()]) }).unwrap()
    };
    assert_reads_alone(&with(&file));
    // What it claims does not matter, and who begins no load takes part in none.
    let (mut raw, rights) = Raw::hello(at, token(&file), Rights::Write);
    assert_eq!(rights, Some(Rights::Read));
    let (columns, buckets) = (vec![Layout::Fixed(8)], vec![]);
    let definition = Definition { schema: vec![], columns, buckets, strip_rows: 1 };
    let (table, mode) = ("u".into(), LoadMode::Create);
    let load = TableLoad { table, definition, mode, origin: None };
    let snapshot = StatementId { job: 1, statement: 1 };
    for request in [
        ClientRequest::Begin { load, snapshot, writers: 1 },
        ClientRequest::Grant { load: 1, bytes: 64, part: false },
        ClientRequest::Grant { load: 1, bytes: 64, part: true },
        ClientRequest::Hold { load: 1, extents: vec![], unused: vec![] },
        ClientRequest::Seal { load: 1, extent: 0, used: 1, crc: 0 },
        ClientRequest::Commit { load: 1, writer: 0, strips: vec![], last: true },
        ClientRequest::HandIn { load: 1, writer: 0, strips: vec![], last: true },
        ClientRequest::Replace { load: 1, writer: 0, strips: vec![] },
        ClientRequest::Distribute { load: 1, servers: vec![] },
        ClientRequest::Abort { load: 1, reason: String::new() },
        ClientRequest::Release { extents: vec![] },
        ClientRequest::Drop { table: "t".into() },
        ClientRequest::Relocate { servers: vec![] },
        ClientRequest::Claim {
            identity: 1,
            name: "m1".into(),
            link: 1,
            extents: vec![],
            last: true,
        },
        ClientRequest::Forget { name: "m1".into(), living: None },
    ] {
        let refused = raw.ask(&request);
        let is = matches!(refused, ServerResponse::Failed(PoolError::Refused { .. }));
        assert!(is, "{request:?}: {refused:?}");
    }
    // A client of its own user may ask for less than it may have.
    let (_, rights) = Raw::hello(at, token(&token_file(at)), Rights::Read);
    assert_eq!(rights, Some(Rights::Read));
    let (_, rights) = Raw::hello(at, vec![7; 32], Rights::Read);
    assert_eq!(rights, None, "a token that nobody has");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = with(&file).stat().unwrap_err().to_string();
    assert!(open.contains("readers.token"), "everybody can read it: {open}");
    server.stop();
    assert!(!file.exists(), "it goes with the server");
}

#[test]
fn who_shows_the_certificate_of_a_reader_reads_and_changes_nothing() {
    let dir = Dir::new();
    let [authority, node, reader] = ["authority", "node", "reader"].map(|name| dir.0.join(name));
    certs::init(&authority, 2).unwrap();
    certs::issue(&authority, &node, 1).unwrap();
    certs::issue_reader(&authority, &reader, 1).unwrap();
    let mut options = options(None);
    options.certs = Some(node.clone());
    let server = MemoryServer::start(options.clone()).unwrap();
    let with = |certs: &Path, server: &MemoryServer| {
        let (certs, at) = (Some(certs.to_owned()), vec![server.address().to_string()]);
        Client::new(PoolOptions { certs, ..PoolOptions::new(at) }).unwrap()
    };
    load(&with(&node, &server), "t", LoadMode::Create, 0..1000).unwrap();
    assert_reads_alone(&with(&reader, &server));
    // Nobody takes a reader for a server.
    options.certs = Some(reader);
    let pretends = MemoryServer::start(options).unwrap();
    let refused = with(&node, &pretends).stat().unwrap_err();
    assert!(matches!(refused, PoolError::Unreachable { .. }), "{refused}");
}
