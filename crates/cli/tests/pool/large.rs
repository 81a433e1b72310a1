//! Joins of two large tables, neither of which every process has room for (I11): their buckets meet
//! where they lie, or the rows of one go where the buckets of the other are.

use super::bed::{Pool, script};

/// Keys of which both sides have several rows, those of the left side twice as many keys.
const LEFT: i64 = 100_000;
const RIGHT: i64 = 50_000;

/// The same rows, distributed by their key and not.
const LOAD: &str = "
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '300000', 'fields.n.kind' = 'sequence');
    CREATE TABLE l8 DISTRIBUTED BY HASH(k) INTO 8 BUCKETS WITH ('connector' = 'pool') AS
        SELECT n % 100000 AS k, n % 10 AS v FROM numbers;
    CREATE TABLE l0 WITH ('connector' = 'pool') AS SELECT k, v FROM l8;
    CREATE TABLE r8 DISTRIBUTED BY HASH(k) INTO 8 BUCKETS WITH ('connector' = 'pool') AS
        SELECT n % 50000 AS k, n % 11 AS w FROM numbers WHERE n < 200000;
    CREATE TABLE r4 DISTRIBUTED BY HASH(k) INTO 4 BUCKETS WITH ('connector' = 'pool') AS
        SELECT k, w FROM r8;
    CREATE TABLE r0 WITH ('connector' = 'pool') AS SELECT k, w FROM r8;";

fn joined(pool: &Pool, left: &str, right: &str) -> String {
    let spilled = pool.dir.0.join("spilled");
    format!(
        "SET 'millstream.state_bytes' = '3000000';
         SET 'millstream.spill_dir' = '{}';
         CREATE TABLE {left} WITH ('connector' = 'pool');
         CREATE TABLE {right} WITH ('connector' = 'pool');
         SELECT l.k % 7 AS rest, count(*) AS pairs, sum(v) AS v, sum(w) AS w
         FROM {left} AS l LEFT JOIN {right} AS r ON l.k = r.k GROUP BY l.k % 7 ORDER BY rest;",
        spilled.display()
    )
}

/// The rows of [`joined`], by hand.
fn expected() -> String {
    let mut sums = [[0_i64; 3]; 7];
    for k in 0..LEFT {
        let v: i64 = (0..3).map(|n| (k + n * LEFT) % 10).sum();
        let right: Vec<i64> = (0..4).filter(|_| k < RIGHT).map(|n| (k + n * RIGHT) % 11).collect();
        let pairs = right.len().max(1) as i64;
        let sum = &mut sums[(k % 7) as usize];
        let w: i64 = right.iter().sum();
        *sum = [sum[0] + 3 * pairs, sum[1] + v * pairs, sum[2] + 3 * w];
    }
    let rows = sums.iter().enumerate();
    let rows = rows.map(|(rest, [pairs, v, w])| format!("{rest},{pairs},{v},{w}\n"));
    "rest,pairs,v,w\n".to_owned() + &rows.collect::<String>()
}

#[test]
fn two_large_tables_meet_by_their_buckets_or_where_the_buckets_of_one_are() {
    let pool = Pool::start("large", &["--bytes", "128MiB"]);
    pool.rows(LOAD, &["--workers", "1"]);
    let ways: [&[&str]; 3] = [
        &["--workers", "1"],
        &["--nodes", "2", "--workers", "2"],
        &["--nodes", "4", "--workers", "1"],
    ];
    // The tables, and how many of them stay on the worker that reads their buckets.
    for (left, right, stay) in [("l8", "r8", 2), ("l8", "r4", 2), ("l8", "r0", 1), ("l0", "r0", 0)]
    {
        let sql = joined(&pool, left, right);
        for args in ways {
            assert_eq!(pool.rows(&sql, args), expected(), "{left}, {right}, {args:?}");
            if args == ways[0] {
                continue;
            }
            let script = script(&pool.dir, &sql);
            let args = [&["explain", script.to_str().unwrap()], args].concat();
            let plan = pool.command(&args).output().unwrap();
            let plan = String::from_utf8(plan.stdout).unwrap();
            let placed = plan.matches("placed: each worker reads its own partitions, by k").count();
            let stays = plan.matches("forward: rows of equal keys are on one worker already");
            assert_eq!((placed, stays.count()), (stay, stay), "{left}, {right}, {plan}");
            assert!(!plan.contains("pull: "), "{plan}");
        }
    }
}
