//! Tables of a pool, read and written by jobs that go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
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
