//! Servers that keep their tables in a directory.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use millstream::FabricKind;
use millstream::pool::{MemoryServer, PoolAccess, PoolError};
use pool::access::LoadMode;

use crate::rig::{Dir, FABRICS, client, load, options, serve, sums};

/// The sum of the numbers below this one.
fn below(n: u64) -> u64 {
    n * (n - 1) / 2
}

#[test]
fn tables_are_there_again_with_all_of_their_rows() {
    let dir = Dir::new();
    let server = serve(Some(&dir.0));
    let writer = client(server.address(), FabricKind::Tcp);
    load(&writer, "t", LoadMode::Create, 0..300_000).unwrap();
    load(&writer, "t", LoadMode::Append, 300_000..400_000).unwrap();
    load(&writer, "gone", LoadMode::Create, 0..10).unwrap();
    load(&writer, "empty", LoadMode::Create, 0..0).unwrap();
    load(&writer, "o", LoadMode::Create, 0..100_000).unwrap();
    load(&writer, "o", LoadMode::Overwrite, 0..5).unwrap();
    writer.drop_table("gone").unwrap();
    let before = writer.stat().unwrap().remove(0);
    drop(writer);
    server.stop();
    for file in dir.files("") {
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{}", file.display());
    }
    for round in 0..3 {
        let server = serve(Some(&dir.0));
        for fabric in FABRICS {
            let reader = client(server.address(), fabric);
            assert_eq!(sums(&reader, "t").unwrap(), (2 + round, 400_000, below(400_000)));
            assert_eq!(sums(&reader, "o").unwrap(), (2, 5, 10));
            assert_eq!(sums(&reader, "empty").unwrap(), (1, 0, 0));
            let gone = sums(&reader, "gone").unwrap_err();
            assert!(matches!(gone, PoolError::NoTable { .. }), "{gone}");
        }
        let writer = client(server.address(), FabricKind::Shm);
        let after = writer.stat().unwrap().remove(0);
        assert_eq!((after.tables, after.damaged, after.versions), (3, 0, 3));
        assert!(after.bytes <= before.bytes, "{after:?}, {before:?}");
        load(&writer, "t", LoadMode::Overwrite, 0..400_000).unwrap();
    }
    let server = serve(Some(&dir.0));
    let writer = client(server.address(), FabricKind::Shm);
    ["t", "o", "empty"].into_iter().for_each(|table| writer.drop_table(table).unwrap());
    drop(writer);
    assert_eq!(server.stop().bytes, 0);
    assert!(dir.files(".extent").is_empty() && dir.files(".table").is_empty());
}

/// Two tables in a directory, of one extent or some, in the order of their files.
fn two_tables(dir: &Dir) {
    let server = serve(Some(&dir.0));
    let writer = client(server.address(), FabricKind::Tcp);
    load(&writer, "a", LoadMode::Create, 0..100_000).unwrap();
    load(&writer, "b", LoadMode::Create, 0..100_000).unwrap();
    drop(writer);
    server.stop();
}

/// Changes one bit in the middle of a file, and some bytes before its end.
fn damage(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 16;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_table_is_named_and_the_others_are_there() {
    type Harm = (&'static str, fn(&Dir));
    let harms: [Harm; 5] = [
        ("a", |dir| damage(&dir.files(".extent")[0], 1000)),
        ("a", |dir| std::fs::remove_file(&dir.files(".extent")[0]).unwrap()),
        ("a", |dir| {
            let file = dir.files(".extent")[0].clone();
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[1..]).unwrap();
        }),
        ("b", |dir| damage(&dir.files(".table")[1], 300)),
        ("file 1.table", |dir| damage(&dir.files(".table")[1], 9)),
    ];
    for (number, (name, harm)) in harms.iter().enumerate() {
        let dir = Dir::new();
        two_tables(&dir);
        harm(&dir);
        let server = serve(Some(&dir.0));
        let reader = client(server.address(), FabricKind::Shm);
        let damaged = sums(&reader, name).unwrap_err();
        assert!(matches!(&damaged, PoolError::Damaged { table, .. } if table == name), "{damaged}");
        let other = if *name == "a" { "b" } else { "a" };
        assert_eq!(sums(&reader, other).unwrap(), (1, 100_000, below(100_000)), "harm {number}");
        let listed = reader.tables().unwrap();
        let listed = listed.iter().map(|of| (of.name.as_str(), of.damaged));
        assert_eq!(listed.filter(|of| of.1).collect::<Vec<_>>(), [(*name, true)]);
        let again = load(&reader, name, LoadMode::Create, 0..3).unwrap_err();
        assert!(matches!(again, PoolError::Damaged { .. }), "{again}");
        reader.drop_table(name).unwrap();
        load(&reader, "c", LoadMode::Create, 0..3).unwrap();
        drop(reader);
        server.stop();
        let server = serve(Some(&dir.0));
        let reader = client(server.address(), FabricKind::Shm);
        assert_eq!(reader.stat().unwrap()[0].damaged, 0, "harm {number}");
        assert_eq!(sums(&reader, other).unwrap(), (1, 100_000, below(100_000)));
        assert_eq!(sums(&reader, "c").unwrap(), (1, 3, 3));
    }
}

#[test]
fn a_file_that_others_may_read_stops_the_start_and_is_not_taken_for_damage() {
    for end in [".extent", ".table"] {
        let dir = Dir::new();
        two_tables(&dir);
        let file = dir.files(end)[0].clone();
        let set_mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, mode).unwrap();
        };
        set_mode(0o644);
        let refused = MemoryServer::start(options(Some(&dir.0))).expect_err("it must not start");
        let (refused, name) = (refused.to_string(), file.file_name().unwrap().to_str().unwrap());
        assert!(refused.contains(name) && refused.contains("mode 0600"), "{refused}");
        set_mode(0o600);
        let server = serve(Some(&dir.0));
        let reader = client(server.address(), FabricKind::Shm);
        assert_eq!(reader.stat().unwrap()[0].damaged, 0);
        assert_eq!(sums(&reader, "a").unwrap(), (1, 100_000, below(100_000)));
        assert_eq!(sums(&reader, "b").unwrap(), (1, 100_000, below(100_000)));
    }
}

#[test]
fn an_older_file_of_a_table_does_not_come_back_when_the_table_is_dropped() {
    for older in ["7.table", "0.table"] {
        let dir = Dir::new();
        two_tables(&dir);
        let (first, copy) = (dir.0.join("0.table"), dir.0.join("copy"));
        std::fs::copy(&first, &copy).unwrap();
        let server = serve(Some(&dir.0));
        let writer = client(server.address(), FabricKind::Shm);
        load(&writer, "a", LoadMode::Append, 100_000..100_003).unwrap();
        drop(writer);
        server.stop();
        if older == "0.table" {
            std::fs::rename(&first, dir.0.join("7.table")).unwrap();
        }
        std::fs::rename(&copy, dir.0.join(older)).unwrap();
        for is_dropped in [false, true] {
            let server = serve(Some(&dir.0));
            let writer = client(server.address(), FabricKind::Shm);
            if is_dropped {
                writer.drop_table("a").unwrap();
            } else {
                assert_eq!(sums(&writer, "a").unwrap(), (2, 100_003, below(100_003)));
            }
        }
        let server = serve(Some(&dir.0));
        let reader = client(server.address(), FabricKind::Shm);
        let gone = sums(&reader, "a").unwrap_err();
        assert!(matches!(gone, PoolError::NoTable { .. }), "{gone}");
        assert_eq!(sums(&reader, "b").unwrap(), (1, 100_000, below(100_000)));
    }
}

#[test]
fn all_files_of_a_damaged_table_go_when_it_is_dropped() {
    // Where one is whole nobody knows whether it was the newer one.
    for damaged in [&["0.table", "7.table"][..], &["0.table"], &["7.table"]] {
        let dir = Dir::new();
        two_tables(&dir);
        std::fs::copy(dir.0.join("0.table"), dir.0.join("7.table")).unwrap();
        damaged.iter().for_each(|file| damage(&dir.0.join(file), 300));
        for is_dropped in [false, true] {
            let server = serve(Some(&dir.0));
            let client = client(server.address(), FabricKind::Shm);
            if is_dropped {
                client.drop_table("a").unwrap();
                let gone = sums(&client, "a").unwrap_err();
                assert!(matches!(gone, PoolError::NoTable { .. }), "{gone}");
                load(&client, "a", LoadMode::Create, 0..5).unwrap();
                continue;
            }
            let error = sums(&client, "a").unwrap_err().to_string();
            assert!(error.contains("0.table") && error.contains("7.table"), "{error}");
            assert_eq!(client.stat().unwrap()[0].damaged, 1);
            let listed = client.tables().unwrap();
            let listed = listed.iter().map(|of| (of.name.as_str(), of.damaged));
            assert_eq!(listed.collect::<Vec<_>>(), [("a", true), ("b", false)]);
        }
        let server = serve(Some(&dir.0));
        let reader = client(server.address(), FabricKind::Shm);
        assert_eq!(sums(&reader, "a").unwrap(), (1, 5, 10));
        assert_eq!(sums(&reader, "b").unwrap(), (1, 100_000, below(100_000)));
    }
}

#[test]
fn a_directory_has_one_server_of_one_user_with_enough_memory() {
    let dir = Dir::new();
    two_tables(&dir);
    let refused = |bytes| {
        let mut options = options(Some(&dir.0));
        options.bytes = bytes;
        MemoryServer::start(options).expect_err("it must not start").to_string()
    };
    let little = refused(1 << 20);
    assert!(little.contains("its tables need") && little.contains("--bytes says"), "{little}");
    let first = serve(Some(&dir.0));
    let second = refused(256 << 20);
    assert!(second.contains("another memory server uses it"), "{second}");
    first.stop();
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o770)).unwrap();
    let open = refused(256 << 20);
    assert!(open.contains("nobody else may change"), "{open}");
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let server = serve(Some(&dir.0));
    let reader = client(server.address(), FabricKind::Shm);
    assert_eq!(sums(&reader, "a").unwrap(), (1, 100_000, below(100_000)));
}

#[test]
fn what_a_server_was_doing_when_it_ended_leaves_nothing() {
    let dir = Dir::new();
    two_tables(&dir);
    let kept = dir.files("");
    std::fs::write(dir.0.join("1.table.tmp"), b"half").unwrap();
    let of_nobody = dir.0.join("00000fff.extent");
    std::fs::write(&of_nobody, b"of a load").unwrap();
    std::fs::set_permissions(&of_nobody, std::fs::Permissions::from_mode(0o600)).unwrap();
    serve(Some(&dir.0)).stop();
    assert_eq!(dir.files(""), kept);
}
