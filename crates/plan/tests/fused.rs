//! The planner says of each scan whether it is fused with the aggregate behind it, or why not.

use dataflow::fusion::fuse;
use dataflow::job::{NotFused, OperatorKind};
use plan::Stage;

use crate::support;

const TABLES: &str = "
    CREATE TABLE events (
      ts TIMESTAMP(3), at TIMESTAMP(3), ad BIGINT, place BIGINT, price BIGINT, size INT,
      kind STRING, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
    ) WITH ('connector' = 'memory', 'bounded' = 'false');
    CREATE TABLE bids (ad BIGINT, price BIGINT, size INT, kind STRING)
      WITH ('connector' = 'memory');
    CREATE TABLE ads (id BIGINT, number INT, campaign BIGINT, owner STRING)
      WITH ('connector' = 'memory');";

const WINDOWED: &str = "FROM TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' HOUR) #1
    GROUP BY window_start, window_end, ";

fn plan_on(workers: u32, sql: &str) -> Stage {
    let (mut planner, _) = support::planner(workers);
    planner.plan(TABLES).expect("the tables");
    match planner.plan(sql) {
        Ok(mut stages) => stages.remove(0),
        Err(errors) => {
            panic!("{}", errors.iter().map(|e| e.render("", sql, false)).collect::<String>())
        }
    }
}

/// The fusion of the first source of a job, or why it has none, in the words of EXPLAIN.
fn fusion(workers: u32, sql: &str) -> String {
    let stage = plan_on(workers, sql);
    let mut operators = stage.job.operators.iter();
    let scan = operators.find(|operator| matches!(operator.kind, OperatorKind::Source(_)));
    let fused = scan.expect("a source").fusion.is_ok();
    let text = stage.explain.text();
    assert_eq!(text.contains("FusedScan "), fused, "{sql}\n{text}");
    let lines = text.lines().map(|line| line.trim_start_matches([' ', '│']));
    let mut found = lines.filter(|line| line.starts_with("fused") || line.starts_with("not fused"));
    found.next().unwrap_or_default().to_owned()
}

/// The same of `SELECT #0 FROM … #1 GROUP BY window_start, window_end, #2`.
fn windowed(workers: u32, [value, more, key]: [&str; 3]) -> String {
    let from = WINDOWED.replace("#1", more);
    fusion(workers, &format!("SELECT {value} {from} {key}"))
}

#[test]
fn scans_are_fused() {
    let one = "fused with: aggregate [1]";
    for (asked, expected) in [
        (["count(*)", "", "ad"], one),
        (["max(price)", "", "ad"], one),
        (["min(size)", "", "ad"], one),
        (["avg(price)", "", "ad"], one),
        (["count(*)", "WHERE kind = 'view'", "ad"], "fused with: filter, aggregate [1]"),
        (["count(*)", "", "ad / 10"], "fused with: division, aggregate [1]"),
        (["count(*)", "WHERE price > 5", "ad / 10"], "fused with: filter, division, aggregate [1]"),
        (["count(*)", "JOIN ads ON ad = id", "campaign"], "fused with: lookup [1], aggregate [2]"),
        (["count(*)", "JOIN ads ON ad = id", "number"], "fused with: lookup [1], aggregate [2]"),
        (
            ["count(*)", "JOIN ads ON ad = id WHERE kind = 'view'", "campaign"],
            "fused with: filter, lookup [1], aggregate [2]",
        ),
    ] {
        for workers in [1, 4] {
            assert_eq!(windowed(workers, asked), expected, "{asked:?} on {workers}");
        }
    }
    assert_eq!(fusion(4, "SELECT ad, count(*) FROM bids GROUP BY ad"), one);
    let hop = "SELECT count(*) FROM HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE,
        INTERVAL '1' HOUR) GROUP BY window_start, window_end, ad";
    assert_eq!(fusion(4, hop), one);
    // Each table of a union by itself.
    let union = "SELECT ad, count(*) FROM (SELECT ad FROM bids UNION ALL SELECT id FROM ads)
        GROUP BY ad";
    assert_eq!(fusion(4, union), "fused with: aggregate [2]");
}

#[test]
fn the_plan_says_why_scans_are_not_fused() {
    for (asked, expected) in [
        (["count(*)", "", "kind"], "the key is not a number or a time of 64 bits"),
        (["count(*)", "", "size"], "the key is not a number or a time of 64 bits"),
        (["count(*)", "", "ad, place"], "there are 2 keys"),
        (["count(*), max(price)", "", "ad"], "there are 2 aggregate functions"),
        (["sum(price)", "", "ad"], "the aggregate function is not count(*), max, min or avg"),
        (["count(price)", "", "ad"], "the aggregate function is not count(*), max, min or avg"),
        (["max(price)", "WHERE size > 5", "ad"], "the argument is behind a filter"),
        (["max(price + 1)", "", "ad"], "the argument is computed"),
        (
            ["max(price)", "", "ad / 10"],
            "the key is computed or looked up, and there is an argument",
        ),
        (["count(*)", "", "ad % 10"], "the key is computed otherwise than by a constant divisor"),
        (
            ["max(price)", "JOIN ads ON ad = id", "campaign"],
            "the key is computed or looked up, and there is an argument",
        ),
        (
            ["count(*)", "JOIN ads ON ad = id", "ad"],
            "the key is not a column of the table that is looked up",
        ),
        (
            ["count(*)", "LEFT JOIN ads ON ad = id", "campaign"],
            "the lookup is not an inner join on one key alone",
        ),
        (
            ["count(*)", "JOIN ads ON ad = id", "owner"],
            "the key is not a number or a time of 64 bits",
        ),
    ] {
        assert_eq!(windowed(1, asked), format!("not fused: {expected}"), "{asked:?}");
    }
    let sessions = "SELECT count(*) FROM SESSION(TABLE events PARTITION BY ad, DESCRIPTOR(ts),
        INTERVAL '1' HOUR) GROUP BY window_start, window_end, ad";
    assert_eq!(fusion(1, sessions), "not fused: windows are sessions");
    let mut job = plan_on(1, "SELECT ad, count(*) FROM bids GROUP BY ad").job;
    assert!(job.operators[0].fusion.is_ok());
    job.operators.push(job.operators[1].clone());
    fuse(&mut job, 1);
    assert_eq!(job.operators[0].fusion, Err(NotFused::Readers(2)));
    // Nothing is said of scans that no aggregate reads.
    assert_eq!(fusion(1, "SELECT ad FROM bids"), "");
}

#[test]
fn settings_and_the_exchange_decide_too() {
    let counted = ["count(*)", "", "ad"];
    let from = WINDOWED.replace("#1", counted[1]);
    let query = format!("SELECT count(*) {from} ad");
    let with = |workers: u32, setting: &str| fusion(workers, &format!("SET {setting};{query}"));
    let shuffled = "'millstream.exchange' = 'shuffle'";
    let sent = "not fused: rows are sent to other workers before they are aggregated";
    assert_eq!(with(4, shuffled), sent);
    assert_eq!(with(1, shuffled), "fused with: aggregate [1]");
    assert_eq!(with(4, "'millstream.exchange' = 'merge'"), "fused with: aggregate [1]");
    let spilled = with(1, "'millstream.spill_dir' = '/var/tmp'");
    assert_eq!(spilled, "not fused: groups may go to a disk");
    let mode = |mode: &str| with(1, &format!("'millstream.key_mode' = '{mode}'"));
    let refused = "not fused: millstream.key_mode asks for another way to find groups";
    for (asked, expected) in [
        ("array", "fused with: aggregate [1]"),
        ("tiny", "fused with: aggregate [1]"),
        ("hash", refused),
        ("ranges", refused),
        ("wide", refused),
    ] {
        assert_eq!(mode(asked), expected, "{asked}");
    }
}
