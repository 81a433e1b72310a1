//! Tables of a pool, read and written by jobs that go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use millstream::checkpoint::{
    Created, DirectoryStore, ObjectName, Store, StoreError, StoredObject,
};
use millstream::pool::{At, Client, MemoryOptions, MemoryServer, PoolAccess, PoolOptions};
use millstream::{RunOptions, Session};

use crate::plans::{SLOW, bids, script};
use crate::rig::{Dir, Run, Until};

const COLUMNS: &str = "name STRING, price BIGINT";
const QUERY: &str = "SELECT name, price FROM bids JOIN names ON auction = id";

fn server() -> MemoryServer {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = MemoryOptions { bytes: 64 << 20, listen, ..MemoryOptions::default() };
    MemoryServer::start(options).unwrap()
}

/// Loads names of auctions, in place of the names that are there.
fn load(pool: SocketAddr, name: &str, creates: bool) {
    let options = PoolOptions::new(vec![pool.to_string()]);
    let mut session = Session::builder().pool(options).build().unwrap();
    let rows: Vec<String> = (0..10).map(|id| format!("({id}, '{name}')")).collect();
    let rows = format!("SELECT * FROM (VALUES {}) AS v (id, name)", rows.join(", "));
    let sql = if creates {
        format!("CREATE TABLE names WITH ('connector' = 'pool') AS {rows};")
    } else {
        format!("CREATE TABLE names WITH ('connector' = 'pool'); INSERT OVERWRITE names {rows};")
    };
    session.sql(&sql).unwrap().run(&RunOptions::default()).unwrap();
}

/// How many rows have each name, and the prices of all.
fn seen(dir: &Dir) -> (BTreeMap<String, usize>, Vec<i64>) {
    let (mut names, mut prices) = (BTreeMap::new(), Vec::new());
    for row in dir.rows("out") {
        let (name, price) = row.split_once(',').unwrap();
        *names.entry(name.to_owned()).or_default() += 1;
        prices.push(price.parse().unwrap());
    }
    prices.sort_unstable();
    (names, prices)
}

#[test]
fn the_version_of_a_checkpoint_is_pinned_again_while_the_pool_has_it() {
    let server = server();
    let pool = server.address();
    load(pool, "old", true);
    let dir = Dir::new("pool");
    let made = format!("{} CREATE TABLE names WITH ('connector' = 'pool');", bids(SLOW));
    let sql = script(&dir, &made, COLUMNS, QUERY);
    let run = Run { pool: Some(pool), until: Until::Stop, ..Run::of(&dir) };
    run.sql(&sql).unwrap();

    // Another reader has the old version still.
    let reader = Client::new(PoolOptions::new(vec![pool.to_string()])).unwrap();
    let old = reader.pin("names", At::Newest).unwrap();
    load(pool, "new", false);
    run.sql(&sql).unwrap();
    let (names, _) = seen(&dir);
    assert_eq!(names.keys().collect::<Vec<_>>(), ["old"], "{names:?}");

    drop(old);
    // The server hears of the end of a lease without an answer.
    while let Ok(pinned) = reader.pin("names", At::Version(1)) {
        drop(pinned);
        std::thread::sleep(Duration::from_millis(5));
    }
    let run = Run { until: Until::End, ..run };
    let refused = run.sql(&sql).unwrap_err().to_string();
    for part in ["'names' has no version 1", "saved with it", "--pin latest"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let latest = Run { pins_latest: true, ..run };
    latest.sql(&sql).unwrap();
    let (names, prices) = seen(&dir);
    assert_eq!(names.keys().collect::<Vec<_>>(), ["new", "old"], "{names:?}");
    assert!(prices.into_iter().eq(0..30_000));
}

#[test]
fn a_table_that_grows_is_not_left_out_before_its_rows_are_visible() {
    let server = server();
    let dir = Dir::new("pool-grows");
    let grows = "CREATE TABLE grown (auction BIGINT, price BIGINT)
                   WITH ('connector' = 'pool', 'commit.interval' = '1 h');";
    let (bids, query) = (bids(SLOW), "SELECT auction, price FROM bids");
    let sql = format!("{bids} {grows} INSERT INTO grown {query};");
    let run = Run { pool: Some(server.address()), until: Until::Drop, ..Run::of(&dir) };
    run.sql(&sql).unwrap();

    let run = Run { until: Until::End, ..run };
    let other = script(&dir, &bids, "auction BIGINT, price BIGINT", query);
    let refused = Run { evolve: true, ..run }.sql(&other).unwrap_err().to_string();
    for part in ["may not be visible yet", "Sink grown"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let run = Run { evolve: false, ..run };
    run.sql(&sql).unwrap();
    let read = format!("{grows} SELECT price FROM grown ORDER BY price");
    let rows = run.session().collect(&read).unwrap();
    let prices = rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values());
    assert!(prices.copied().eq(0..30_000));
}

/// A store that breaks down when a record with these words is created.
struct Breaking {
    store: DirectoryStore,
    at: &'static str,
    /// The server that ends when the record is there; without one the record is refused.
    server: Mutex<Option<MemoryServer>>,
}

impl Store for Breaking {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        let is_it = String::from_utf8_lossy(bytes).contains(self.at);
        let ends = is_it.then(|| self.server.lock().unwrap().take()).flatten();
        if is_it && ends.is_none() {
            return Err(StoreError::refused(self.place(name), "as if the job were killed"));
        }
        self.store.create(name, bytes)
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        self.store.put(name, parts)
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        self.store.get(name, range)
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        self.store.list(prefix)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.store.delete(name)
    }

    fn place(&self, name: &ObjectName) -> String {
        self.store.place(name)
    }
}

const LOADED: &str = "CREATE TABLE loaded (price BIGINT) WITH ('connector' = 'pool');";

/// A script that loads the prices of all bids.
fn loads(mode: &str) -> String {
    let bids = bids("");
    match mode {
        "CREATE" => {
            format!(
                "{bids} CREATE TABLE loaded WITH ('connector' = 'pool') AS SELECT price FROM bids;"
            )
        }
        mode => format!("{bids} {LOADED} INSERT {mode} loaded SELECT price FROM bids;"),
    }
}

/// The prices in the table, sorted.
fn loaded(run: &Run<'_>) -> Vec<i64> {
    let rows = run.session().collect(&format!("{LOADED} SELECT price FROM loaded")).unwrap();
    let prices = rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values());
    let mut prices: Vec<i64> = prices.copied().collect();
    prices.sort_unstable();
    prices
}

#[test]
fn a_load_that_was_published_and_not_recorded_as_done_is_not_made_again() {
    for mode in ["CREATE", "INTO", "OVERWRITE"] {
        let (server, dir) = (server(), Dir::new("pool-done"));
        let sql = loads(mode);
        let (at, server_ends) = ("\"kind\":\"done\"", Mutex::default());
        let breaking = Breaking { store: dir.store(), at, server: server_ends };
        let breaking: Arc<dyn Store> = Arc::new(breaking);
        let run = Run { pool: Some(server.address()), ..Run::of(&dir) };
        let mut times = 1;
        if mode == "INTO" {
            // The rows of another job are there before.
            let other = Dir::new("pool-done-before");
            let before = Run { pool: Some(server.address()), ..Run::of(&other) };
            before.sql(&sql).unwrap();
            times = 2;
        }
        let expected: Vec<i64> = (0..30_000).flat_map(|n| vec![n; times]).collect();
        Run { store: Some(&breaking), ..run }.sql(&sql).unwrap();
        assert_eq!(loaded(&run), expected, "{mode}: the version is there");
        let lines = run.sql(&sql).unwrap();
        assert_eq!(lines, ["job 'job' had ended; its output is published"]);
        assert_eq!(loaded(&run), expected, "{mode}");
    }
}

#[test]
fn a_load_that_was_recorded_and_not_published_is_made_again() {
    let (first, dir) = (server(), Dir::new("pool-lost"));
    let sql = loads("INTO");
    let (pool, at) = (first.address(), "\"ended\":1");
    let breaking = Breaking { store: dir.store(), at, server: Mutex::new(Some(first)) };
    let breaking: Arc<dyn Store> = Arc::new(breaking);
    let run = Run { pool: Some(pool), store: Some(&breaking), ..Run::of(&dir) };
    run.sql(&sql).unwrap_err();
    let second = server();
    let run = Run { pool: Some(second.address()), store: None, ..run };
    let lines = run.sql(&sql).unwrap();
    assert!(lines[0].contains("were not published: it begins anew"), "{lines:?}");
    assert!(loaded(&run).into_iter().eq(0..30_000));
    let lines = run.sql(&sql).unwrap();
    assert_eq!(lines, ["job 'job' has ended: --from none begins it anew"]);
}
