//! Tables of a pool in plans: what EXPLAIN says of them, and rows that need not travel.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use millstream::{FabricKind, Session};

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
    let pool = PoolConnector::new(InMemoryPool::new(nodes * workers));
    let builder = Session::builder().nodes(nodes).workers(workers).fabric(FabricKind::Shm);
    let mut session = builder.connector(Arc::new(pool)).build().expect("a session");
    session.collect(TABLES).expect("the tables are loaded");
    session
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
        // Both sides of the join stay, and the rows of the groups.
        for (sql, expected, inputs) in [
            (join, "[60000, 2207910000]", 2),
            (grouped, "[4000]", 1),
            (one_side, "[60000, 2004000000]", 0),
        ] {
            let plan = session.explain(sql).expect("a plan");
            let is_placed = plan.contains("each worker reads its own partitions, by b");
            assert_eq!(is_placed, placed, "{plan}");
            let stay = plan.matches("─ forward: rows of equal keys are on one worker already");
            assert_eq!(stay.count(), if placed { inputs } else { 0 }, "{plan}");
            let values = values(&session.collect(sql).expect("rows"));
            assert_eq!(values, expected, "{sql} on {nodes} x {workers}");
        }
    }
}
