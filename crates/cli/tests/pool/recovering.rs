//! A table that a job with checkpoints writes, whose nodes are killed: it has each row once.

use std::fs;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::bed::{Pool, Process, TIMEOUT, assert_ends};

/// The processes that another one has started, and those that these have.
fn started_by(process: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let direct = lists.iter().flat_map(|list| list.split_whitespace());
    let direct: Vec<i32> = direct.filter_map(|pid| pid.parse().ok()).collect();
    let below: Vec<i32> = direct.iter().flat_map(|pid| started_by(*pid)).collect();
    [direct, below].concat()
}

fn rows_of(pool: &Pool) -> u64 {
    let output = pool.command(&["pool", "stat", "t", "--json"]).output().unwrap();
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    stat["rows"].as_u64().unwrap_or(0)
}

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
    let script = pool.dir.script(sql);
    let args = ["--state", "state", "--nodes", "2", "--workers", "2", "--progress", "none"];
    let mut command = pool.command(&[&["run", script.to_str().unwrap()], &args[..]].concat());
    let log = fs::File::create(pool.dir.0.join("log")).unwrap();
    let mut job = Process(command.stderr(log).spawn().unwrap());
    let (begun, mut kills, mut seen) = (Instant::now(), 0, 0);
    let code = loop {
        if let Some(status) = job.0.try_wait().unwrap() {
            break status.code();
        }
        assert!(begun.elapsed() < TIMEOUT, "{} rows", rows_of(&pool));
        let rows = rows_of(&pool);
        if rows > seen && kills < 4 {
            seen = rows;
            // Another one each time: node 0, which publishes, is among them.
            let nodes = started_by(job.0.id().cast_signed());
            if let Some(node) = nodes.get(kills % nodes.len().max(1)) {
                let _ = kill_process(Pid::from_raw(*node).unwrap(), Signal::KILL);
                kills += 1;
            }
        }
    };
    let log = fs::read_to_string(pool.dir.0.join("log")).unwrap();
    assert_eq!(code, Some(0), "{log}");
    assert!(kills > 0 && log.contains("goes on from checkpoint"), "{kills} kills: {log}");
    assert!(!log.contains("at least once"), "{log}");
    let sums = (0..40_000_u64).sum::<u64>();
    let halves = (0..40_000_u64).map(|n| n / 2).sum::<u64>();
    assert_eq!(pool.sums(&[]), format!("40000,{sums},{halves}"), "{log}");
    assert_ends(&pool.command(&["pool", "verify", "t"]).output().unwrap(), 0);
}
