//! A table that a job with checkpoints writes, whose nodes are killed: it has each row once.

use rustix::process::Signal;

use super::bed::{Pool, assert_ends, script};
use crate::rig::{await_some, signal};

#[test]
fn killed_nodes_of_a_job_that_writes_a_table_lose_and_double_nothing() {
    let pool = Pool::start("recovering", &["--bytes", "256MiB"]);
    let sql = "SET 'millstream.checkpoint' = '100 ms';
        CREATE TABLE numbers (n BIGINT, half BIGINT) WITH (
          'connector' = 'generator', 'rows' = '40000', 'rate' = '8000',
          'fields.n.kind' = 'sequence', 'fields.half.max' = '9');
        CREATE TABLE t (n BIGINT, half BIGINT)
        WITH ('connector' = 'pool', 'commit.interval' = '1 h');
        INSERT INTO t SELECT n, n / 2 AS half FROM numbers;";
    let script = script(&pool.dir, sql);
    let args = ["--state", "state", "--nodes", "2", "--workers", "2", "--progress", "none"];
    let command = pool.command(&[&["run", script.to_str().unwrap()], &args[..]].concat());
    let mut job = pool.dir.start(command);
    let (mut kills, mut seen) = (0, 0);
    let rows = || pool.table()["rows"].as_u64().unwrap_or(0);
    let ended = || {
        if let Some(status) = job.0.try_wait().unwrap() {
            return Some(status.code());
        }
        let rows = rows();
        if rows > seen && kills < 4 {
            seen = rows;
            // Another one each time: node 0, which publishes, is among them.
            let nodes = job.below();
            if let Some(node) = nodes.get(kills % nodes.len().max(1)) {
                signal(*node, Signal::KILL);
                kills += 1;
            }
        }
        None
    };
    let code = await_some(ended, || format!("{} rows", rows()));
    let log = pool.dir.log();
    assert_eq!(code, Some(0), "{log}");
    assert!(kills > 0 && log.contains("goes on from checkpoint"), "{kills} kills: {log}");
    assert!(!log.contains("at least once"), "{log}");
    let sums = (0..40_000_u64).sum::<u64>();
    let halves = (0..40_000_u64).map(|n| n / 2).sum::<u64>();
    assert_eq!(pool.sums(&[]), format!("40000,{sums},{halves}"), "{log}");
    assert_ends(&pool.command(&["pool", "verify", "t"]).output().unwrap(), 0);
}
