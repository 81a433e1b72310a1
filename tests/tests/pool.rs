//! Tables of a pool in plans: what EXPLAIN says of them, and rows that need not travel.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use millstream::{Collected, FabricKind, Report, RowTarget, RunOptions, Session};

const TABLES: &str = "
SET 'millstream.table_bytes' = '64 KiB';
CREATE TABLE numbers (n BIGINT NOT NULL) WITH ('connector' = 'generator', 'rows' = '60000',
  'fields.n.kind' = 'sequence');
CREATE TABLE facts DISTRIBUTED BY HASH(a) INTO 16 BUCKETS, HASH(b) INTO 8 BUCKETS
WITH ('connector' = 'pool', 'strip.rows' = '256')
AS SELECT n, n % 5000 AS a, n % 7000 AS b FROM numbers;
CREATE TABLE wide DISTRIBUTED BY HASH(b) INTO 8 BUCKETS WITH ('connector' = 'pool')
AS SELECT n AS b, n * 2 AS twice FROM numbers;
CREATE TABLE plain WITH ('connector' = 'pool') AS SELECT n AS b, n + 1 AS next FROM numbers;
";

fn session(nodes: u32, workers: u32) -> Session {
    let mut session = session_of(&InMemoryPool::new(nodes * workers), nodes, workers);
    session.collect(TABLES).expect("the tables are loaded");
    session
}

/// A session over a pool that is there.
fn session_of(pool: &Arc<InMemoryPool>, nodes: u32, workers: u32) -> Session {
    pool.set_writers(nodes * workers);
    let pool = PoolConnector::new(Arc::clone(pool) as Arc<_>);
    let builder = Session::builder().nodes(nodes).workers(workers).fabric(FabricKind::Shm);
    builder.connector(Arc::new(pool)).build().expect("a session")
}

/// Runs a query; gives its rows and what was measured.
fn ran(session: &mut Session, sql: &str) -> (Vec<RecordBatch>, Report) {
    let rows = Collected::default();
    session.rows_to(RowTarget::Connector(Arc::new(rows.clone()))).expect("rows go there");
    let script = session.sql(sql).expect("a plan");
    let report = script.run(&RunOptions::default()).expect("it runs");
    (rows.take(), report)
}

/// The values of a result of one row.
fn values(batches: &[RecordBatch]) -> String {
    let columns = batches.iter().flat_map(|batch| batch.columns());
    let value =
        |column: &arrow::array::ArrayRef| array_value_to_string(column, 0).expect("a value");
    format!("[{}]", columns.map(value).collect::<Vec<_>>().join(", "))
}

#[test]
fn explain_tells_the_version_and_what_is_read_of_it() {
    let plan = session(1, 2).explain("SELECT sum(n) FROM facts WHERE a = 17").expect("a plan");
    assert!(plan.contains("pool 'facts', version 1: "), "{plan}");
    assert!(plan.contains("60000 rows; reads 2 of 3 columns: "), "{plan}");
    assert!(plan.contains("pruned: strips "), "{plan}");
}

#[test]
fn each_process_reads_a_small_table_itself() {
    let sql = "SELECT count(*), sum(n + twice) FROM facts JOIN wide ON facts.b = wide.b";
    for (nodes, workers) in [(1, 2), (2, 1), (2, 2), (3, 1)] {
        let mut session = session(nodes, workers);
        session.set("millstream.table_bytes", "64 MiB").expect("a setting");
        let plan = session.explain(sql).expect("a plan");
        let pulls = plan.contains("pull: each process reads the whole table itself");
        assert_eq!(pulls, nodes > 1, "{plan}");
        assert_eq!(values(&session.collect(sql).expect("rows")), "[60000, 2207910000]");
    }
}

#[test]
fn rows_that_are_stored_by_a_key_do_not_travel_for_it() {
    let join = "SELECT count(*), sum(n + twice) FROM facts JOIN wide ON facts.b = wide.b";
    let grouped =
        "SELECT count(*) FROM (SELECT b, count(*) AS c FROM facts GROUP BY b) WHERE c > 8";
    let one_side = "SELECT /*+ SHUFFLE(plain) */ count(*), sum(n + next) FROM facts \
                    JOIN plain ON facts.b = plain.b";
    for (nodes, workers) in [(1, 1), (1, 4), (2, 2), (1, 3)] {
        let mut session = session(nodes, workers);
        let placed = nodes * workers > 1 && workers != 3;
        // Both sides of the join stay, and the rows of the groups. Where both are led by the hint,
        // the strips of neither are placed.
        for (sql, expected, inputs) in [
            (join, "[60000, 2207910000]", 2),
            (grouped, "[4000]", 1),
            (one_side, "[60000, 2004000000]", 0),
        ] {
            let plan = session.explain(sql).expect("a plan");
            let is_placed = plan.contains("each worker reads its own partitions, by b");
            assert_eq!(is_placed, placed && inputs > 0, "{plan}");
            let stay = plan.matches("─ forward: rows of equal keys are on one worker already");
            assert_eq!(stay.count(), if placed { inputs } else { 0 }, "{plan}");
            let values = values(&session.collect(sql).expect("rows"));
            assert_eq!(values, expected, "{sql} on {nodes} x {workers}");
        }
    }
}

/// The line and the column of the hint in these queries.
const HINT: &str = "at 1:12";

#[test]
fn a_build_is_pulled_by_each_process_where_a_hint_asks_for_it() {
    let joined = |hint: &str| {
        format!(
            "SELECT /*+ {hint}(plain) */ count(*), sum(n + next) FROM facts \
             JOIN plain ON facts.b = plain.b"
        )
    };
    // 8 rows of each b below 4,000, and one more of those; rows of `few` are below 1,000.
    let outer = "SELECT /*+ PULL(few) */ count(*), count(few.b), count(DISTINCT few.twice) \
                 FROM facts LEFT JOIN few ON facts.b = few.b AND few.twice < 1000";
    // A small table is looked up, and a larger one is the build of a hash join.
    let ways = [
        ("PULL", "pull", "64 KiB", true),
        ("SHUFFLE", "shuffle", "64 KiB", false),
        ("PULL", "pull", "64 MiB", false),
        ("BROADCAST", "broadcast", "64 MiB", false),
    ];
    for (nodes, workers) in [(1, 2), (2, 1), (2, 2), (3, 1)] {
        let mut session = session(nodes, workers);
        session.collect(FEW).expect("the table is loaded");
        for (hint, strategy, table_bytes, pulls_scan) in ways {
            session.set("millstream.table_bytes", table_bytes).expect("a setting");
            let sql = joined(hint);
            let plan = session.explain(&sql).expect("a plan");
            let is_lookup = plan.contains("LookupJoin");
            // One process has nobody to share the memory with, and its workers read a table once.
            let strategy = if is_lookup && nodes == 1 { "broadcast" } else { strategy };
            let keys = if hint == "SHUFFLE" { "(plain.b)" } else { "" };
            let edge = format!("─ {strategy}{keys}: hint {hint}(plain) {HINT}");
            assert!(plan.contains(&edge), "{plan}");
            let is_pulled = plan.contains("pulled: each process reads all of it");
            assert_eq!(is_pulled, pulls_scan, "{plan}");
            assert_eq!(values(&session.collect(&sql).expect("rows")), "[60000, 2004000000]");
        }
        session.set("millstream.table_bytes", "1 KiB").expect("a setting");
        let plan = session.explain(outer).expect("a plan");
        assert!(plan.contains(&format!("─ pull: hint PULL(few) {HINT}")), "{plan}");
        assert_eq!(values(&session.collect(outer).expect("rows")), "[60000, 4500, 500]");
    }
}

/// A table of a pool with the numbers below 1,000, without those of `where` if there is one.
const FEW: &str = "CREATE TABLE few WITH ('connector' = 'pool') AS
SELECT n AS b, n * 2 AS twice FROM numbers WHERE n < 1000;
CREATE TABLE gaps WITH ('connector' = 'pool') AS
SELECT CASE WHEN n = 77 THEN NULL ELSE n END AS b FROM numbers WHERE n < 1000;";

#[test]
fn a_pulled_build_knows_the_nulls_of_all_workers() {
    let of = |table: &str| {
        format!(
            "SELECT /*+ PULL({table}) */ count(*) FROM facts WHERE b NOT IN (SELECT b FROM {table})"
        )
    };
    for (nodes, workers) in [(1, 2), (2, 2)] {
        let mut session = session(nodes, workers);
        session.collect(FEW).expect("the tables are loaded");
        for (table, expected) in [("few", "[51000]"), ("gaps", "[0]")] {
            let sql = of(table).replace(&format!("/*+ PULL({table}) */ "), "");
            assert_eq!(values(&session.collect(&sql).expect("rows")), expected, "{table}");
        }
    }
}

#[test]
fn a_build_is_pulled_where_that_reads_less_than_rows_would_move() {
    let sql = "SELECT count(*), sum(n + next) FROM facts JOIN plain ON n = plain.b \
               WHERE next % 2 = 0";
    for (nodes, workers) in [(1, 2), (2, 2)] {
        let mut session = session(nodes, workers);
        let plan = session.explain(sql).expect("a plan");
        let is_pulled = plan.contains("─ pull: pulled: the other processes read");
        assert_eq!(is_pulled, nodes > 1, "{plan}");
        assert_eq!(values(&session.collect(sql).expect("rows")), "[30000, 1800030000]");
    }
}

#[test]
fn a_side_that_no_pool_has_is_not_pulled() {
    let mut session = session(2, 1);
    let no_pool = "no table of the connector 'pool'";
    for (sql, why) in [
        (
            "SELECT /*+ PULL(numbers) */ count(*) FROM facts JOIN numbers ON facts.n = numbers.n",
            no_pool,
        ),
        (
            "SELECT /*+ PULL(g) */ count(*) FROM facts JOIN (SELECT b, count(*) AS c FROM plain \
          GROUP BY b) AS g ON facts.n = g.b",
            no_pool,
        ),
        (
            "SELECT /*+ PULL(facts) */ count(*) FROM facts LEFT JOIN plain ON facts.n = plain.b",
            "the join emits its rows without a partner",
        ),
        (
            "SELECT /*+ PULL(nothing) */ count(*) FROM facts JOIN plain ON facts.n = plain.b",
            "hints are about exchanges between workers",
        ),
    ] {
        let error = session.collect(sql).expect_err("it is refused");
        let millstream::Error::Sql(found) = &error else { panic!("{error}") };
        assert_eq!((found[0].line, found[0].column), (1, 12), "{found:?}");
        assert!(found[0].message.contains("PULL") || found[0].message.contains("pulled"));
        let detail = found[0].detail.as_deref().unwrap_or_default();
        assert!(detail.contains(why), "{sql}: {found:?}");
    }
}

/// Tables that are stored by the keys of two joins.
const STORED: &str = "
CREATE TABLE cells DISTRIBUTED BY HASH(a) INTO 16 BUCKETS, HASH(b) INTO 8 BUCKETS
WITH ('connector' = 'pool', 'strip.rows' = '256')
AS SELECT n % 256 AS a, CAST((n - n % 235) / 235 AS BIGINT) AS b FROM numbers;
CREATE TABLE by_a DISTRIBUTED BY HASH(a) INTO 4 BUCKETS WITH ('connector' = 'pool')
AS SELECT n AS a, n * 3 AS thrice FROM numbers;
CREATE TABLE first_b DISTRIBUTED BY HASH(b) INTO 8 BUCKETS WITH ('connector' = 'pool')
AS SELECT n AS b FROM numbers WHERE n < 100;";

#[test]
fn processes_read_the_buckets_of_builds_that_their_cells_need() {
    // The sums of n % 256 and of n / 235 are 7,642,320 and 7,629,600.
    let both = "SELECT /*+ PULL(wide), PULL(by_a) */ count(*), sum(thrice + twice) FROM cells \
                JOIN wide ON cells.b = wide.b JOIN by_a ON cells.a = by_a.a";
    let outer = "SELECT /*+ PULL(first_b) */ count(*), count(first_b.b) FROM cells \
                 LEFT JOIN first_b ON cells.b = first_b.b";
    // The parts by a and by b, and how often a row of a build is read.
    for (nodes, workers, cells, times) in [
        (1, 2, vec![], 2),
        (2, 1, vec!["1 of 2 parts by"], 3),
        (3, 1, vec![], 6),
        (4, 1, vec!["1 of 2 parts by a", "1 of 2 parts by b"], 4),
        (4, 2, vec!["1 of 2 parts by a", "1 of 2 parts by b"], 4),
    ] {
        let mut session = session(nodes, workers);
        session.collect(STORED).expect("the tables are loaded");
        let plan = session.explain(both).expect("a plan");
        for cell in &cells {
            assert!(plan.contains(cell), "{plan}");
        }
        assert_eq!(plan.contains(" parts by "), !cells.is_empty(), "{plan}");
        let (rows, report) = ran(&mut session, both);
        assert_eq!(values(&rows), "[60000, 38186160]", "{plan}");
        if nodes > 1 {
            assert_eq!(report.total.rows_in, 60_000 + times * 60_000, "{plan}");
        }
        assert_eq!(values(&session.collect(outer).expect("rows")), "[60000, 23500]");
    }
}

#[test]
fn groups_of_a_bucket_column_stay_behind_a_join_that_pulls() {
    let sql = "SELECT count(*), sum(c) FROM (SELECT /*+ PULL(plain) */ a, count(*) AS c FROM facts \
               JOIN plain ON facts.b = plain.b WHERE next % 2 = 1 GROUP BY a)";
    for (nodes, workers) in [(2, 1), (2, 2)] {
        let mut session = session(nodes, workers);
        session.set("millstream.table_bytes", "1 KiB").expect("a setting");
        let plan = session.explain(sql).expect("a plan");
        assert!(plan.contains("─ pull: hint PULL(plain)"), "{plan}");
        assert!(plan.contains("each worker reads its own partitions, by a"), "{plan}");
        // One aggregation: no partial one whose groups are merged.
        let together = "─ forward: rows of equal keys are on one worker already";
        assert_eq!(plan.matches(together).count(), 1, "{plan}");
        // The filter is a step of the compute server, behind the scan of all rows of the build.
        assert!(plan.contains("Filter next % 2 = 1"), "{plan}");
        // Rows whose b is even; 7,000 is even, so each n is even, and each of 2,500 a.
        assert_eq!(values(&session.collect(sql).expect("rows")), "[2500, 30000]");
    }
}

/// A fact table whose keys have the frequencies 1, 1/2, 1/3, …: value `k` of 64 occurs `6000 / k`
/// times.
const ZIPF: &str = "
CREATE TABLE ranks (k BIGINT NOT NULL) WITH ('connector' = 'generator', 'rows' = '64',
  'fields.k.kind' = 'sequence');
CREATE TABLE times (t BIGINT NOT NULL) WITH ('connector' = 'generator', 'rows' = '6000',
  'fields.t.kind' = 'sequence');
CREATE TABLE zipf DISTRIBUTED BY HASH(k) INTO 64 BUCKETS
WITH ('connector' = 'pool', 'strip.rows' = '256')
AS SELECT k, t FROM ranks JOIN times ON (k + 1) * t < 6000;";

#[test]
fn a_skewed_table_is_read_evenly_by_any_number_of_nodes() {
    let pool = InMemoryPool::new(1);
    let mut loader = session_of(&pool, 1, 1);
    loader.collect(ZIPF).expect("the table is loaded");
    let version = pool.newest("zipf").expect("a version").version;
    // The sum of ceil(6000 / k) over 1 to 64.
    let all: u64 = (1..=64_u64).map(|k| 6000_u64.div_ceil(k)).sum();
    for (nodes, workers) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)] {
        let mut session = session_of(&pool, nodes, workers);
        let declare = "CREATE TABLE zipf WITH ('connector' = 'pool');";
        let sql = format!("{declare} SELECT count(*), sum(t) FROM zipf WHERE t >= 0");
        let (rows, report) = ran(&mut session, &sql);
        let sum: u64 = (1..=64_u64).map(|k| 6000_u64.div_ceil(k)).map(|n| n * (n - 1) / 2).sum();
        assert_eq!(values(&rows), format!("[{all}, {sum}]"));
        let read: Vec<u64> = report.workers.iter().map(|of| of.counters.rows_in).collect();
        let most = read.iter().max().expect("a worker") * u64::from(nodes * workers);
        assert_eq!(read.iter().sum::<u64>(), all);
        assert!(most * 10 <= all * 11, "{read:?} rows on {nodes} x {workers} workers");
    }
    assert_eq!(pool.newest("zipf").expect("a version").version, version, "nothing was moved");
}

#[test]
fn blocks_that_are_read_and_left_out_are_counted() {
    let mut session = session(2, 1);
    let (rows, report) = ran(&mut session, "SELECT count(*), sum(n) FROM facts WHERE a = 17");
    // 17, 5017, … 55017.
    assert_eq!(values(&rows), "[12, 330204]");
    let operators = || report.workers.iter().flat_map(|worker| &worker.operators);
    let sum = |of: fn(&millstream::OperatorCounters) -> u64| operators().map(of).sum::<u64>();
    let (blocks, pruned) = (sum(|of| of.pool_blocks), sum(|of| of.pool_pruned_blocks));
    assert!(blocks > 0 && sum(|of| of.pool_bytes) > 0);
    assert_eq!(sum(|of| of.pool_mapped_blocks), 0, "this pool copies");
    assert_eq!(sum(|of| of.pool_leases), 0, "all readers have ended");
    // 128 partitions with a short strip each at least, of 3 columns, of which 2 are read.
    assert!(pruned > blocks, "{pruned} blocks pruned, {blocks} read");
    let text = session.collect("EXPLAIN ANALYZE SELECT max(n) FROM facts").expect("it runs");
    let lines = text.iter().flat_map(|batch| {
        let column = batch.column(0).clone();
        (0..batch.num_rows()).map(move |row| array_value_to_string(&column, row).expect("a line"))
    });
    let text: Vec<String> = lines.collect();
    let line = text.iter().find(|line| line.contains("blocks of the pool read"));
    // A column of each strip.
    assert!(line.is_some_and(|line| line.contains("0 % mapped; 0 pruned")), "{text:?}");
}

/// A stream without an end whose rows look up one row of a table of a pool.
const STREAM: &str = "
CREATE TABLE ticks (k BIGINT NOT NULL, p AS PROCTIME()) WITH ('connector' = 'generator',
  'rate' = '500', 'fields.k.min' = '1', 'fields.k.max' = '1');";

#[test]
fn a_stream_looks_rows_up_in_the_newest_version() {
    for (nodes, workers) in [(1, 1), (1, 2), (2, 2)] {
        for join in ["latest", "latest FOR SYSTEM_TIME AS OF ticks.p AS latest"] {
            let pool = InMemoryPool::new(1);
            let one = |value: u32| {
                let sql = format!(
                    "CREATE TABLE one (k BIGINT NOT NULL) WITH ('connector' = 'generator',
                     'rows' = '2', 'fields.k.kind' = 'sequence', 'fields.k.min' = '1');
                     CREATE TABLE latest WITH ('connector' = 'pool'){};",
                    match value {
                        1 => " AS SELECT k, 1 AS v FROM one".to_owned(),
                        _ => format!("; INSERT OVERWRITE latest SELECT k, {value} FROM one"),
                    }
                );
                session_of(&pool, 1, 1).collect(&sql).expect("the table is loaded");
            };
            one(1);
            let mut session = session_of(&pool, nodes, workers);
            let sql = format!(
                "{STREAM} CREATE TABLE latest WITH ('connector' = 'pool', 'refresh' = '20 ms');
                 SELECT v FROM ticks JOIN {join} ON ticks.k = latest.k WHERE v = 2 LIMIT 3"
            );
            let rows = Collected::default();
            session.rows_to(RowTarget::Connector(Arc::new(rows.clone()))).expect("rows go there");
            let script = session.sql(&sql).expect("a plan");
            let plan = script.explain();
            assert!(plan.contains("refresh: a newer version is asked for every 20 ms"), "{plan}");
            // The statement has pinned the first version, which has no row that it wants.
            one(2);
            let report = script.run(&RunOptions::default());
            let report = report.expect("it ends when it has met the second version");
            // Of the first one the bounds tell that no row is wanted, of the second one what v is.
            let operators = report.workers.iter().flat_map(|worker| &worker.operators);
            let blocks: u64 = operators.map(|of| of.pool_blocks).sum();
            assert_ne!(blocks, 0, "keys of the second version are read");
            let rows: usize = rows.take().iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, 3);
        }
    }
}

#[test]
fn a_stream_keeps_its_version_where_no_newer_one_is_asked_for() {
    let pool = InMemoryPool::new(1);
    let mut loader = session_of(&pool, 1, 1);
    loader
        .collect(
            "CREATE TABLE one (k BIGINT NOT NULL) WITH ('connector' = 'generator', 'rows' = '1',
               'fields.k.min' = '1', 'fields.k.max' = '1');
             CREATE TABLE latest WITH ('connector' = 'pool') AS SELECT k, 1 AS v FROM one;",
        )
        .expect("the table is loaded");
    let mut session = session_of(&pool, 1, 2);
    let sql = format!(
        "{STREAM} CREATE TABLE latest WITH ('connector' = 'pool');
         SELECT v FROM ticks JOIN latest ON ticks.k = latest.k LIMIT 5"
    );
    let rows = Collected::default();
    session.rows_to(RowTarget::Connector(Arc::new(rows.clone()))).expect("rows go there");
    let script = session.sql(&sql).expect("a plan");
    assert!(!script.explain().contains("refresh:"));
    loader.collect("INSERT OVERWRITE latest SELECT k, 2 FROM one").expect("it is replaced");
    script.run(&RunOptions::default()).expect("it ends");
    let values = rows.take();
    let values = values.iter().flat_map(|batch| {
        let column = batch.column(0).clone();
        (0..batch.num_rows()).map(move |row| array_value_to_string(&column, row).expect("a value"))
    });
    assert!(values.eq(["1"; 5]), "the first version");
}
