//! Jobs whose state is many times their memory and lies on a disk: a checkpoint of it takes no
//! memory that the job does not have, and the job goes on with it after its node was killed. A job
//! that holds more than it may ends with an error.

use std::fs;

use rustix::process::Signal;

use crate::rig::{Dir, signal};

/// Bytes of state that the job may have in memory.
const BUDGET: u64 = 256 << 10;

/// Rows a second. On a machine that others use, all may have come before there is a checkpoint
/// that the job is to be killed behind: then they come slower.
const RATES: [u32; 3] = [15_000, 3_000, 600];

/// Whether a checkpoint of the chain refers to segments of earlier ones.
fn refers(dir: &Dir) -> bool {
    let records = dir.names("state/q/chain").into_iter();
    let mut texts = records.map(|name| dir.text(&format!("state/q/chain/{name}")));
    texts.any(|text| text.contains("\"referred\":[{"))
}

/// Bytes of all segments of the state.
fn segment_bytes(dir: &Dir) -> u64 {
    let whole = dir.names("state/q/seg").into_iter().filter(|name| !name.starts_with('.'));
    // A segment may have been collected since.
    let files = whole.filter_map(|name| fs::metadata(dir.0.join("state/q/seg").join(name)).ok());
    files.map(|file| file.len()).sum()
}

/// Everything is in one window, which is over with the input.
fn query((columns, select): (&str, &str), settings: &str, rate: u32) -> String {
    let sessions = select.contains("SESSION");
    let (keys, delay) = if sessions { (999, "600") } else { (1_000_000_000, "1") };
    format!(
        "{settings}CREATE TABLE bids (
           ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '{delay}' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '150000', 'rate' = '{rate}', 'interval' = '10ms',
           'fields.auction.max' = '{keys}', 'fields.price.max' = '1000000000');
         CREATE TABLE written ({columns}) WITH (
           'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         INSERT INTO written {select};"
    )
}

/// Runs a job whose state is many times its memory `budget`, and kills it behind a checkpoint of
/// state that is `times` as large.
fn killed(name: &str, of: (&str, &str), (budget, times): (u64, u64)) {
    let whole = Dir::new(&format!("{name}-whole"));
    whole.write("q.sql", &query(of, "", RATES[0]));
    let (code, message) = whole.run(&["run", "q.sql", "--workers", "1"]);
    assert_eq!(code, Some(0), "{message}");

    let settings = format!(
        "SET 'millstream.checkpoint' = '100 ms';
         SET 'millstream.state_bytes' = '{budget}';
         SET 'millstream.spill_dir' = './spill';\n"
    );
    let began = RATES.iter().find_map(|&rate| {
        let dir = Dir::new(name);
        dir.write("q.sql", &query(of, &settings, rate));
        let run = ["run", "q.sql", "--state", "state", "--workers", "1"];
        let mut job = dir.start(dir.command(&run));
        let mut has_ended = false;
        dir.await_that(|| {
            has_ended = job.has_ended();
            has_ended || segment_bytes(&dir) >= (times + 4) * budget && refers(&dir)
        });
        if has_ended {
            assert_eq!(job.ends(), Some(0), "{}", dir.log());
            return None;
        }
        Some((dir, job))
    });
    let (dir, mut job) = began.expect("no such checkpoint before the last row");
    for node in job.below() {
        signal(node, Signal::KILL);
    }
    let code = job.ends();
    let log = dir.log();
    assert_eq!(code, Some(0), "{log}");
    let resumed = log.lines().find_map(|line| line.split_once("splits of sources, "));
    let bytes = resumed.and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| bytes > times * budget), "{log}");
    assert!(!log.contains("given up"), "{log}");
    assert!(dir.rows("out") == whole.rows("out"), "{log}");
}

#[test]
fn groups_beyond_memory_are_saved_and_go_on() {
    let columns = "auction BIGINT, n BIGINT, s BIGINT, hi BIGINT";
    let select = "SELECT auction, count(*), sum(price), max(price)
         FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' HOUR)
         GROUP BY window_start, window_end, auction";
    killed("groups", (columns, select), (BUDGET, 8));
}

#[test]
fn rows_beyond_memory_are_saved_and_go_on() {
    let columns = "auction BIGINT, price BIGINT, nth BIGINT";
    let select = "SELECT auction, price, CAST(nth AS BIGINT) FROM (
           SELECT auction, price, ROW_NUMBER() OVER (
             PARTITION BY window_start, window_end, auction ORDER BY price) AS nth
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' HOUR)) WHERE nth <= 2";
    killed("rows", (columns, select), (BUDGET, 8));
}

#[test]
fn sessions_whose_rows_wait_on_a_disk_go_on_as_they_were() {
    // Rows that the filter drops make sessions longer: only the spans of their times are kept.
    let columns = "ws TIMESTAMP(3), we TIMESTAMP(3), auction BIGINT, price BIGINT, nth BIGINT";
    let select = "SELECT window_start, window_end, auction, price, CAST(nth AS BIGINT) FROM (
           SELECT *, ROW_NUMBER() OVER (
             PARTITION BY window_start, window_end, auction ORDER BY price, ts) AS nth
           FROM SESSION(TABLE bids PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '8' SECOND)
           WHERE price < 500000000) WHERE nth <= 2";
    killed("sessions", (columns, select), (4 * BUDGET, 1));
}
