//! Jobs whose nodes are started again: by `run --nodes`, and as ranks of a launcher. Their rows are
//! those of a run that nothing happened to.

mod bucket;
mod launchers;
mod rescale;
mod signals;

use rustix::process::Signal;

use crate::rig::{Dir, Running, await_some, await_that, reported, runs, set_rank, signal};

/// A job of windows over `rows` rows, which writes into the directory `out/`.
fn windows(rows: u32, rate: &str) -> String {
    format!(
        "SET 'millstream.checkpoint' = '100 ms';
         CREATE TABLE bids (
           ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '{rows}', {rate} 'interval' = '10ms',
           'fields.auction.max' = '99', 'fields.price.max' = '1000000');
         CREATE TABLE written (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT, hi BIGINT)
           WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         INSERT INTO written SELECT window_start, auction, count(*), sum(price), max(price)
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
           GROUP BY window_start, window_end, auction;"
    )
}

/// The rows of a run of [`windows`] that nothing happens to, without checkpoints.
fn undisturbed(name: &str, rows: u32) -> Vec<String> {
    let dir = Dir::new(&format!("supervised-{name}-undisturbed"));
    dir.write("q.sql", &windows(rows, ""));
    let (code, message) = dir.run(&["run", "q.sql", "--workers", "2"]);
    assert_eq!(code, Some(0), "{message}");
    let rows = dir.rows("out");
    assert!(rows.len() > 500, "{}", rows.len());
    rows
}
