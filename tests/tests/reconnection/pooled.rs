//! Tables of a memory server that is read and written over RDMA, by jobs over the same device.

use std::net::SocketAddr;

use arrow::array::ArrayRef;
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use millstream::pool::{Client, MemoryOptions, MemoryServer, PoolAccess, PoolOptions};
use millstream::{Error, FabricKind, Session};

/// How many tables there are.
const TABLES: usize = 2;

const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT NOT NULL) WITH ('connector' = 'generator', 'rows' = '60000',
        'fields.n.kind' = 'sequence');
    CREATE TABLE facts DISTRIBUTED BY HASH(b) INTO 8 BUCKETS
        WITH ('connector' = 'pool', 'strip.rows' = '256') AS SELECT n, n % 7000 AS b FROM numbers;
    CREATE TABLE plain WITH ('connector' = 'pool', 'strip.rows' = '256')
        AS SELECT n AS b, n + 1 AS next FROM numbers;
";

const DECLARE: &str = "
    CREATE TABLE facts WITH ('connector' = 'pool');
    CREATE TABLE plain WITH ('connector' = 'pool');
";

/// Queries with their rows: `facts` has 0 to 59,999, eight or nine for each `b` below 7,000.
fn queries() -> Vec<(String, String)> {
    let sum = |of: &dyn Fn(i64) -> i64| (0..60_000).map(of).sum::<i64>();
    let joined = sum(&|n| n + n % 7000 + 1);
    let join = |hint: &str| {
        format!(
            "SELECT /*+ {hint}(plain) */ count(*), sum(n + next) FROM facts \
             JOIN plain ON facts.b = plain.b"
        )
    };
    let all = "SELECT count(*), sum(n), sum(b) FROM facts".to_owned();
    let few = "SELECT count(*), min(n), max(n) FROM facts WHERE b = 17".to_owned();
    let mut queries = vec![
        (all, format!("60000, {}, {}", sum(&|n| n), sum(&|n| n % 7000))),
        (few, format!("9, 17, {}", 17 + 8 * 7000)),
    ];
    for hint in ["PULL", "SHUFFLE", "MULTICAST"] {
        queries.push((join(hint), format!("60000, {joined}")));
    }
    queries
}

/// The values of a result of one row.
fn values(batches: &[RecordBatch]) -> String {
    let columns = batches.iter().flat_map(|batch| batch.columns());
    let value = |column: &ArrayRef| array_value_to_string(column, 0).expect("a value");
    columns.map(value).collect::<Vec<_>>().join(", ")
}

struct Pool {
    server: MemoryServer,
}

impl Pool {
    fn start() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let fabric = FabricKind::Verbs;
        let options = MemoryOptions { bytes: 64 << 20, listen, fabric, ..MemoryOptions::default() };
        Self { server: MemoryServer::start(options).expect("a memory server") }
    }

    fn options(&self, fabric: FabricKind) -> PoolOptions {
        PoolOptions { fabric, ..PoolOptions::new(vec![self.server.address().to_string()]) }
    }

    /// Runs statements in a session of two nodes; gives the row of the last.
    fn run(&self, sql: &str) -> Result<String, Error> {
        let builder = Session::builder().nodes(2).workers(2).fabric(FabricKind::Verbs);
        let mut session = builder.pool(self.options(FabricKind::Verbs)).build()?;
        session.set("millstream.table_bytes", "64 KiB")?;
        Ok(values(&session.collect(sql)?))
    }

    /// Nobody has a lease or loads any more; drops the tables, behind which no byte is in use.
    fn is_left_empty(&self, client: &Client) {
        let stat = || client.stat().expect("the server lives").remove(0);
        while stat().leases > 0 || stat().loads > 0 {
            std::thread::yield_now();
        }
        for table in client.tables().expect("tables") {
            client.drop_table(&table.name).expect("it is there");
        }
        while stat().bytes > 0 {
            std::thread::yield_now();
        }
    }
}

/// A device that takes every liberty and breaks nothing.
pub fn whole() {
    let pool = Pool::start();
    pool.run(LOAD).expect("tables are loaded");
    for (sql, expected) in queries() {
        let values = pool.run(&format!("{DECLARE} {sql}")).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(values, expected, "{sql}");
    }
    // It needs no device: messages go over TCP.
    pool.is_left_empty(&Client::new(pool.options(FabricKind::Tcp)).expect("a client"));
}

/// Counts statements that had their rows, and those that failed with one error that names the
/// server.
#[derive(Default)]
struct Outcomes {
    well: usize,
    failed: usize,
}

impl Outcomes {
    /// Whether the statement has ended well, with these rows if any are said.
    fn ends_well(
        &mut self,
        sql: &str,
        ended: Result<String, Error>,
        expected: Option<&str>,
    ) -> bool {
        match ended {
            Ok(values) => {
                assert_eq!(values, expected.unwrap_or(&values), "{sql}");
                self.well += 1;
                true
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("memory server 'm0'"), "{sql}: {text}");
                self.failed += 1;
                false
            }
        }
    }
}

/// Queue pairs break: a statement has its rows, or fails with one error that names the server. A
/// table whose load has failed is not there.
pub fn breaks() {
    const ROUNDS_MAX: usize = 100;
    const ENOUGH: usize = 5;
    let pool = Pool::start();
    let client = Client::new(pool.options(FabricKind::Tcp)).expect("a client");
    let (mut loads, mut queries) = (Outcomes::default(), Outcomes::default());
    let is_enough = |of: &Outcomes| of.well.min(of.failed) >= ENOUGH;
    for round in 0.. {
        assert!(round < ROUNDS_MAX, "one of two outcomes is rare");
        let are_there = loads.ends_well(LOAD, pool.run(LOAD), None);
        let there = client.tables().expect("tables");
        assert_eq!(there.len() == TABLES, are_there, "{there:?}");
        for (sql, expected) in self::queries().iter().filter(|_| are_there) {
            let ended = pool.run(&format!("{DECLARE} {sql}"));
            queries.ends_well(sql, ended, Some(expected));
        }
        pool.is_left_empty(&client);
        if is_enough(&loads) && is_enough(&queries) {
            break;
        }
    }
}
