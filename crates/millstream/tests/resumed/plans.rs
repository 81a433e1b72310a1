//! Plans that were chosen anew: the state is found again whatever the optimizer, settings, hints,
//! statistics or the layout say.

use std::collections::BTreeMap;
use std::fs;

use millstream::FabricKind;

use crate::rig::{Dir, Layout, ONE, Run, Until};

/// Rows of the stream, ten milliseconds apart.
const ROWS: i64 = 30_000;

/// A stream of numbers from 0 on: `auction` is their last digit.
pub fn bids(rate: &str) -> String {
    format!(
        "SET 'millstream.checkpoint' = '50 ms';
         CREATE TABLE made (
           ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '{ROWS}', 'interval' = '10ms', 'flows' = '4', {rate}
           'fields.n.kind' = 'sequence');
         CREATE VIEW bids AS SELECT ts, n % 10 AS auction, n AS price FROM made;
         CREATE VIEW pauses AS SELECT * FROM bids WHERE price % 1000 < 900;"
    )
}

/// A rate at which a job has a second to do, and is stopped before that. It is part of a position.
pub const SLOW: &str = "'rate' = '20000',";

const QUERIES: [(&str, &str, &str); 6] = [
    (
        "tumble",
        "ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT",
        "SELECT window_start, auction, count(*), sum(price)
         FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
         GROUP BY window_start, window_end, auction",
    ),
    (
        "session",
        "ws TIMESTAMP(3), auction BIGINT, n BIGINT",
        "SELECT window_start, auction, count(*)
         FROM SESSION(TABLE pauses PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '900' MILLISECOND)
         GROUP BY window_start, window_end, auction",
    ),
    (
        "interval",
        "a BIGINT, l BIGINT, r BIGINT",
        "SELECT l.auction, l.price, r.price FROM bids AS l
         JOIN (SELECT * FROM bids WHERE price % 7 = 0) AS r ON l.auction = r.auction
          AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '1' SECOND",
    ),
    (
        "over",
        "auction BIGINT, price BIGINT, s BIGINT",
        "SELECT auction, price, sum(price) OVER (
           PARTITION BY auction ORDER BY ts ROWS BETWEEN 20 PRECEDING AND CURRENT ROW) FROM bids",
    ),
    (
        "top",
        "ws TIMESTAMP(3), auction BIGINT, price BIGINT, nth BIGINT",
        "SELECT window_start, auction, price, CAST(nth AS BIGINT) FROM (
           SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, auction
                                        ORDER BY price DESC) AS nth
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) WHERE nth <= 3",
    ),
    (
        "deduplicated",
        "auction BIGINT, n BIGINT, d BIGINT",
        "SELECT auction, count(*), count(DISTINCT price) FROM bids GROUP BY auction",
    ),
];

/// A script that writes the rows of a query into the directory `out`.
pub fn script(dir: &Dir, made: &str, columns: &str, query: &str) -> String {
    format!(
        "{made} CREATE TABLE written ({columns}) WITH (
           'connector' = 'file', 'path' = '{}/', 'format' = 'csv');
         INSERT INTO written {query};",
        dir.path("out")
    )
}

/// The rows of a run that nothing happens to, on one worker.
pub fn undisturbed(name: &str, sql: &dyn Fn(&Dir) -> String) -> Vec<String> {
    let dir = Dir::new(&format!("{name}-undisturbed"));
    let mut session = millstream::Session::builder().build().unwrap();
    let script = session.sql(&sql(&dir)).unwrap();
    script.run(&millstream::RunOptions::default()).unwrap();
    let rows = dir.rows("out");
    assert!(!rows.is_empty());
    rows
}

/// A layout, settings, and a text that replaces another.
type StartCase = (Layout, &'static [(&'static str, &'static str)], &'static str);

/// The layouts and settings of the starts of a job.
const STARTS: [StartCase; 3] = [
    (ONE, &[("millstream.exchange", "merge")], ""),
    (
        Layout { nodes: 2, workers: 1, fabric: FabricKind::Tcp },
        &[("millstream.exchange", "shuffle"), ("millstream.key_mode", "hash")],
        "",
    ),
    (Layout { nodes: 1, workers: 3, fabric: FabricKind::Shm }, &[], "/*+ EXCHANGE('shuffle') */"),
];

#[test]
fn state_is_found_by_other_strategies_layouts_and_fabrics() {
    for (name, columns, query) in QUERIES {
        let expected = undisturbed(name, &|dir| script(dir, &bids(""), columns, query));
        let dir = Dir::new(name);
        for (at, (layout, settings, hint)) in STARTS.into_iter().enumerate() {
            let until = [Until::Stop, Until::Drop, Until::End][at];
            // A hint is no part of what state means. It needs a grouping or a join.
            let hint = if query.contains("OVER") { "" } else { hint };
            let query = query.replacen("SELECT", &format!("SELECT {hint}"), 1);
            let run = Run { layout, settings, until, ..Run::of(&dir) };
            let lines = run.sql(&script(&dir, &bids(SLOW), columns, &query));
            let lines = lines.unwrap_or_else(|error| panic!("{name}, start {at}: {error}"));
            let goes_on = lines.iter().any(|line| line.starts_with("goes on from checkpoint"));
            assert_eq!(goes_on, at > 0, "{name}, start {at}: {lines:?}");
        }
        assert!(dir.rows("out") == expected, "{name}");
    }
}

/// A table of names with `rows` rows. The first ten are the names of auctions.
fn write_names(dir: &Dir, rows: usize) {
    let rows: String = (0..rows).map(|id| format!("{id},name {id}\n")).collect();
    fs::write(dir.0.join("names.csv"), format!("id,name\n{rows}")).unwrap();
}

#[test]
fn the_table_of_a_lookup_may_grow_beyond_the_bound_by_which_it_is_one() {
    // Neither side has event time, so that statistics alone choose between the joins.
    let sql = |dir: &Dir| {
        format!(
            "SET 'millstream.checkpoint' = '50 ms';
             SET 'millstream.table_bytes' = '2 KiB';
             CREATE TABLE made (n BIGINT) WITH (
               'connector' = 'generator', 'rows' = '{ROWS}', 'flows' = '4', {SLOW}
               'fields.n.kind' = 'sequence');
             CREATE TABLE names (id BIGINT, name STRING) WITH (
               'connector' = 'file', 'path' = '{}');
             CREATE TABLE written (name STRING, n BIGINT, s BIGINT) WITH (
               'connector' = 'file', 'path' = '{}/', 'format' = 'csv');
             INSERT INTO written SELECT name, count(*), sum(n)
             FROM made JOIN names ON n % 10 = id GROUP BY name;",
            dir.path("names.csv"),
            dir.path("out")
        )
    };
    let mut sums = BTreeMap::<i64, (i64, i64)>::new();
    for n in 0..ROWS {
        let sum = sums.entry(n % 10).or_default();
        *sum = (sum.0 + 1, sum.1 + n);
    }
    let expected: Vec<String> =
        sums.iter().map(|(id, (count, sum))| format!("name {id},{count},{sum}")).collect();
    for until in [Until::Stop, Until::Drop] {
        let dir = Dir::new("grown");
        write_names(&dir, 10);
        let run = Run { until, ..Run::of(&dir) };
        assert!(run.session().explain(&sql(&dir)).unwrap().contains("LookupJoin"));
        run.sql(&sql(&dir)).unwrap();
        write_names(&dir, 1000);
        // A run that begins now would build hash tables of both sides, which are not saved.
        let explained = run.session().explain(&sql(&dir)).unwrap();
        assert!(!explained.contains("LookupJoin"), "{explained}");
        let lines = Run::of(&dir).sql(&sql(&dir)).unwrap();
        assert!(lines.iter().any(|line| line.starts_with("goes on from")), "{lines:?}");
        assert_eq!(dir.rows("out"), expected);
    }
}
