//! Statements that divide a table by what its partitions have cost the statement before.

use super::bed::{Pool, WAYS, assert_ends, script};

/// Much work for each row, of a bucket far more than of the others.
const WORK: &str = "SELECT count(*) AS c, sum(n) AS n, count(DISTINCT \
    CASE WHEN half = 3 THEN md5(md5(md5(CAST(n AS STRING)))) ELSE md5(CAST(n AS STRING)) END) AS d \
    FROM t;";

#[test]
fn each_row_is_read_once_by_nodes_that_divide_by_measured_costs() {
    let load = "
        CREATE TABLE numbers (n BIGINT) WITH (
            'connector' = 'generator', 'rows' = '200000', 'fields.n.kind' = 'sequence');
        CREATE TABLE t DISTRIBUTED BY HASH(half) INTO 8 BUCKETS WITH (
            'connector' = 'pool', 'strip.rows' = '1024')
        AS SELECT n, n % 10 AS half FROM numbers;";
    let pool = Pool::start("assigned", &["--bytes", "64MiB"]);
    pool.rows(load, WAYS[0]);
    let sql = format!("CREATE TABLE t WITH ('connector' = 'pool'); {WORK} {WORK} {WORK}");
    let script = script(&pool.dir, &sql);
    for way in WAYS {
        let args = [&["run", script.to_str().unwrap(), "-q", "--format", "csv"], way].concat();
        let mut command = pool.command(&args);
        let output = command.env("MILLSTREAM_LOG", "warn,millstream=debug").output().unwrap();
        assert_ends(&output, 0);
        let rows = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<&str> = rows.lines().filter(|line| line.starts_with('2')).collect();
        assert_eq!(rows, ["200000,19999900000,200000"; 3], "{way:?}");
        // The first statement knows no costs; each node says that the other ones do.
        let messages = String::from_utf8_lossy(&output.stderr);
        let nodes = if way.contains(&"--nodes") { 2 } else { 1 };
        let by_cost = messages.matches("divided among readers by measured costs").count();
        assert_eq!(by_cost, 2 * nodes, "{way:?}: {messages}");
    }
}
