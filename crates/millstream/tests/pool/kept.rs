//! Servers with directories whose tables lie on both.

use std::net::SocketAddr;
use std::path::Path;

use millstream::pool::{Client, MemoryServer, PoolAccess, PoolError, PoolOptions};
use pool::access::LoadMode;

use crate::rig::{Dir, awaited, load, options, sums};

const ROWS: u64 = 300_000;

fn serve(name: &str, directory: &Path) -> MemoryServer {
    let name = name.to_owned();
    MemoryServer::start(millstream::pool::MemoryOptions { name, ..options(Some(directory)) })
        .unwrap()
}

fn client(servers: &[SocketAddr]) -> Client {
    Client::new(PoolOptions::new(servers.iter().map(ToString::to_string).collect())).unwrap()
}

/// Servers m0 and m1 with these directories, and a client of both.
fn started(dirs: &[Dir; 2]) -> ([MemoryServer; 2], Client) {
    let servers = [serve("m0", &dirs[0].0), serve("m1", &dirs[1].0)];
    let client = client(&servers.each_ref().map(MemoryServer::address));
    (servers, client)
}

fn stop((servers, client): ([MemoryServer; 2], Client)) {
    drop(client);
    servers.into_iter().for_each(|server| drop(server.stop()));
}

#[test]
fn a_part_that_is_lost_damages_its_table_until_it_is_loaded_again() {
    type Harm = (&'static str, fn(&Dir));
    let damage = |file: &Path, at: usize| {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[at] ^= 16;
        std::fs::write(file, bytes).unwrap();
    };
    let harms: [Harm; 4] = [
        ("an extent is gone", |dir| std::fs::remove_file(&dir.files(".extent")[0]).unwrap()),
        ("an extent is longer", |dir| {
            let file = &dir.files(".extent")[0];
            let bytes = std::fs::read(file).unwrap();
            std::fs::write(file, [&bytes[..], &[0]].concat()).unwrap();
        }),
        ("the part is gone", |dir| std::fs::remove_file(&dir.files(".part")[0]).unwrap()),
        ("the part is cut", |dir| std::fs::write(&dir.files(".part")[0], [7]).unwrap()),
    ];
    for (harm, apply) in harms {
        let dirs = [Dir::new(), Dir::new()];
        let running = started(&dirs);
        load(&running.1, "t", LoadMode::Create, 0..ROWS).unwrap();
        stop(running);
        let holder = usize::from(dirs[1].files(".table").is_empty());
        assert!(!dirs[holder].files(".part").is_empty(), "{harm}");
        apply(&dirs[holder]);
        let running = started(&dirs);
        let is_damaged = || running.1.tables().unwrap()[0].damaged;
        awaited(harm, is_damaged);
        let error = sums(&running.1, "t").unwrap_err();
        let PoolError::Damaged { table, reason } = &error else { panic!("{harm}: {error}") };
        let names_it = reason.contains(&format!("memory server 'm{holder}' has lost its part"));
        assert!(table == "t" && names_it, "{harm}: {reason}");
        let append = load(&running.1, "t", LoadMode::Append, 0..1).unwrap_err();
        assert!(matches!(append, PoolError::Damaged { .. }), "{harm}: {append}");
        load(&running.1, "t", LoadMode::Overwrite, 0..ROWS).unwrap();
        stop(running);
        let running = started(&dirs);
        let all = (2, ROWS, ROWS * (ROWS - 1) / 2);
        assert_eq!(sums(&running.1, "t").unwrap(), all, "{harm}");
        running.1.drop_table("t").unwrap();
        awaited("all is free", || running.1.stat().unwrap().iter().all(|of| of.bytes == 0));
        stop(running);
    }
    let dirs = [Dir::new(), Dir::new()];
    let running = started(&dirs);
    load(&running.1, "t", LoadMode::Create, 0..ROWS).unwrap();
    stop(running);
    let holder = usize::from(dirs[1].files(".table").is_empty());
    damage(&dirs[holder].files(".extent")[0], 100);
    let running = started(&dirs);
    awaited("a bit is another one", || running.1.tables().unwrap()[0].damaged);
    // What is dropped is gone on both.
    running.1.drop_table("t").unwrap();
    awaited("all is free", || running.1.stat().unwrap().iter().all(|of| of.bytes == 0));
}

#[test]
fn a_copy_of_a_directory_and_a_damaged_identity_are_refused() {
    let (first, copy) = (Dir::new(), Dir::new());
    serve("m0", &first.0).stop();
    serve("m1", &copy.0).stop();
    let [identity, other] = [&first, &copy].map(|dir| dir.0.join("identity"));
    std::fs::copy(&identity, &other).unwrap();
    let servers = [serve("m0", &first.0), serve("m1", &copy.0)];
    let client = client(&servers.each_ref().map(MemoryServer::address));
    let refused = client.tables().unwrap_err();
    assert!(refused.to_string().contains("is a copy of that of 'm0'"), "{refused}");
    servers.into_iter().for_each(|server| drop(server.stop()));
    let whole = std::fs::read(&identity).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&identity, &whole[..len]).unwrap();
        let refused = MemoryServer::start(options(Some(&first.0))).expect_err("it is cut");
        assert!(refused.to_string().contains("its file 'identity' is damaged"), "{refused}");
    }
    std::fs::write(&identity, &whole).unwrap();
    serve("m0", &first.0).stop();
}

/// Servers m0 to m2 with these directories, and a client of some of them.
fn three(dirs: &[Dir; 3], named: &[usize]) -> (Vec<MemoryServer>, Client) {
    let names = ["m0", "m1", "m2"].into_iter().zip(dirs);
    let servers: Vec<MemoryServer> = names.map(|(name, dir)| serve(name, &dir.0)).collect();
    let named: Vec<SocketAddr> = named.iter().map(|at| servers[*at].address()).collect();
    let client = client(&named);
    (servers, client)
}

/// The name of a table, with one row, of the server with this directory.
fn made_in(dir: &Dir, client: &Client, prefix: &str) -> String {
    for number in 0.. {
        let (name, before) = (format!("{prefix}{number}"), dir.files(".table").len());
        load(client, &name, LoadMode::Create, 0..1).unwrap();
        if dir.files(".table").len() > before {
            return name;
        }
        client.drop_table(&name).unwrap();
    }
    unreachable!()
}

#[test]
fn a_dropped_table_that_was_damaged_leaves_nothing_on_any_server() {
    let dirs = [Dir::new(), Dir::new()];
    let running = started(&dirs);
    load(&running.1, "t", LoadMode::Create, 0..ROWS).unwrap();
    let home = usize::from(dirs[0].files(".table").is_empty());
    for name in 0..8 {
        load(&running.1, &format!("other{name}"), LoadMode::Create, 0..ROWS).unwrap();
    }
    // Both have parts of tables of the other, and one of two tables of a home is damaged.
    let table = dirs[home].files(".table")[0].clone();
    stop(running);
    let bytes = std::fs::read(&table).unwrap();
    std::fs::write(&table, &bytes[..bytes.len() - 1]).unwrap();
    let running = started(&dirs);
    let others = || {
        for name in 0..8 {
            let sums = sums(&running.1, &format!("other{name}")).unwrap();
            assert_eq!(sums, (1, ROWS, ROWS * (ROWS - 1) / 2));
        }
    };
    let damaged = sums(&running.1, "t").unwrap_err();
    assert!(matches!(damaged, PoolError::Damaged { .. }), "{damaged}");
    others();
    running.1.drop_table("t").unwrap();
    others();
    (0..8).for_each(|name| running.1.drop_table(&format!("other{name}")).unwrap());
    awaited("all is free", || running.1.stat().unwrap().iter().all(|of| of.bytes == 0));
    let is_left = |dir: &Dir| !dir.files(".extent").is_empty() || !dir.files(".part").is_empty();
    awaited("no file is left", || !dirs.iter().any(is_left));
    stop(running);
}

#[test]
fn the_file_of_a_damaged_table_is_put_back_beside_tables_that_were_loaded_meanwhile() {
    let dirs = [Dir::new(), Dir::new(), Dir::new()];
    let running = three(&dirs, &[0, 1, 2]);
    let first = made_in(&dirs[0], &running.1, "a");
    load(&running.1, &first, LoadMode::Overwrite, 0..ROWS).unwrap();
    let stop = |(servers, client): (Vec<MemoryServer>, Client)| {
        drop(client);
        servers.into_iter().for_each(|server| drop(server.stop()));
    };
    stop(running);
    for dir in &dirs[1..] {
        assert!(!dir.files(".part").is_empty(), "the table lies on all servers");
    }
    let own = dirs[0].files(".extent").pop().unwrap();
    let away = dirs[0].0.join("away");
    std::fs::rename(&own, &away).unwrap();
    // It would give the third server the number of the second, if it did not remember it.
    let running = three(&dirs, &[0, 2]);
    let damaged = sums(&running.1, &first).unwrap_err();
    assert!(matches!(damaged, PoolError::Damaged { .. }), "{damaged}");
    let second = made_in(&dirs[0], &running.1, "b");
    load(&running.1, &second, LoadMode::Append, 1..2 * ROWS).unwrap();
    stop(running);
    assert!(!own.exists(), "its number is not used again");
    std::fs::rename(&away, &own).unwrap();
    let running = three(&dirs, &[0, 1, 2]);
    for (table, rows) in [(&first, ROWS), (&second, 2 * ROWS)] {
        let all = (2, rows, rows * (rows - 1) / 2);
        assert_eq!(sums(&running.1, table).unwrap(), all, "{table}");
    }
    stop(running);
}
