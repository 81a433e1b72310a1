//! Jobs whose nodes are killed by `kill -9` behind a checkpoint that a seed draws: every kind of
//! operator with state, by both exchanges, on both fabrics, into a directory, a file or a table of
//! Delta Lake. The rows of the output are those of a run that nothing happened to, text by text.
//!
//! `make cases` kills more: `KILLS=1000` nodes, and those of one seed by `SEED=17`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;

use crate::rig::{Dir, Random, Running, await_some, signal};

/// The number of jobs that `make test` tries: each loses one node or several.
const JOBS: u64 = 20;
/// The number of nodes to kill, in place of a number of jobs.
const KILLS: &str = "MILLSTREAM_KILLS";
/// The seed of the only job to try.
const SEED: &str = "MILLSTREAM_SEED";
/// Exchange and fabric.
const LAYOUTS: [(&str, &str); 4] =
    [("merge", "shm"), ("shuffle", "shm"), ("merge", "tcp"), ("shuffle", "tcp")];
/// Rows of each stream.
const ROWS: i64 = 16_000;
/// Milliseconds of event time between two rows of a stream.
const STEP_MS: i64 = 10;
/// The option by which a stream lasts for less than a second.
const RATE: &str = "'rate' = '20000',";
/// The output that is a table of Delta Lake.
const LAKE: &str = "lake";
/// Different auctions, which come in turn.
const AUCTIONS: i64 = 97;

/// A job: a name, the columns of its output, the query.
struct Job {
    name: &'static str,
    columns: &'static str,
    query: &'static str,
}

const WINDOWED: &str = "ws TIMESTAMP(3), we TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT";

/// The jobs. Their number has no factor in common with that of the layouts, so that the seeds go
/// through all pairs.
const ALL: [Job; 17] = [
    Job {
        name: "TUMBLE",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, count(*), sum(price)
                FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
                GROUP BY window_start, window_end, auction",
    },
    Job {
        name: "HOP",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, count(*), sum(price)
                FROM HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)
                GROUP BY window_start, window_end, auction",
    },
    Job {
        name: "CUMULATE",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, count(*), sum(price) FROM CUMULATE(
                  TABLE bids, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)
                GROUP BY window_start, window_end, auction",
    },
    Job {
        name: "TUMBLE of many keys",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, price, count(*), sum(auction)
                FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE)
                GROUP BY window_start, window_end, price",
    },
    Job {
        name: "CUMULATE of many keys",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, price % 5000, count(*), sum(price) FROM CUMULATE(
                  TABLE bids, DESCRIPTOR(ts), INTERVAL '40' SECOND, INTERVAL '160' SECOND)
                GROUP BY window_start, window_end, price % 5000",
    },
    Job {
        name: "SESSION of a key",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, count(*), sum(price)
                FROM SESSION(TABLE dear PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '3' SECOND)
                GROUP BY window_start, window_end, auction",
    },
    Job {
        name: "SESSION of all rows",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, 1, price
                FROM SESSION(TABLE dearest, DESCRIPTOR(ts), INTERVAL '1' SECOND)",
    },
    Job {
        name: "window join",
        columns: WINDOWED,
        query: "SELECT l.window_start, l.window_end, l.auction, l.price, r.price
                FROM (SELECT * FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND)) AS l
                LEFT JOIN (SELECT * FROM TUMBLE(TABLE asks, DESCRIPTOR(ts), INTERVAL '2' SECOND))
                  AS r ON l.window_start = r.window_start AND l.window_end = r.window_end
                  AND l.auction = r.auction",
    },
    Job {
        name: "window join, broadcast",
        columns: WINDOWED,
        query:
            "SELECT /*+ BROADCAST(r) */ l.window_start, l.window_end, l.auction, l.price, r.price
                FROM (SELECT * FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND)) AS l
                JOIN (SELECT * FROM TUMBLE(TABLE asks, DESCRIPTOR(ts), INTERVAL '2' SECOND))
                  AS r ON l.window_start = r.window_start AND l.window_end = r.window_end
                  AND l.auction = r.auction",
    },
    Job {
        name: "interval join",
        columns: WINDOWED,
        query: "SELECT l.ts, r.ts, l.auction, l.price, r.price FROM bids AS l LEFT JOIN asks AS r
                ON l.auction = r.auction AND r.ts BETWEEN l.ts - INTERVAL '1' SECOND AND l.ts",
    },
    Job {
        name: "ASOF join",
        columns: WINDOWED,
        query: "SELECT l.ts, r.ts, l.auction, l.price, r.price
                FROM bids AS l ASOF LEFT JOIN asks AS r ON l.auction = r.auction AND l.ts >= r.ts",
    },
    Job {
        name: "temporal join",
        columns: WINDOWED,
        query: "SELECT l.ts, r.ts, l.auction, l.price, r.price
                FROM bids AS l JOIN asks FOR SYSTEM_TIME AS OF l.ts AS r ON l.auction = r.auction",
    },
    Job {
        name: "OVER",
        columns: WINDOWED,
        query: "SELECT ts, lag(ts) OVER (PARTITION BY auction ORDER BY ts), auction,
                  count(*) OVER (PARTITION BY auction ORDER BY ts RANGE BETWEEN
                                 INTERVAL '3' SECOND PRECEDING AND CURRENT ROW),
                  sum(price) OVER (PARTITION BY auction ORDER BY ts) FROM bids",
    },
    Job {
        name: "Top-N",
        columns: WINDOWED,
        query: "SELECT window_start, window_end, auction, CAST(nth AS BIGINT), price FROM (
                  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end
                                               ORDER BY price DESC, ts) AS nth
                  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND)) WHERE nth <= 5",
    },
    Job {
        name: "lookup",
        columns: WINDOWED,
        query: "SELECT ts, ts, auction, price, seller FROM bids JOIN sellers ON auction = id",
    },
    Job {
        name: "late table",
        columns: WINDOWED,
        query: "SELECT ts, watermark, auction, 1, price FROM torn__late",
    },
    Job {
        name: "TPC-H q5",
        columns: "nation STRING, revenue DECIMAL(38, 4)",
        query: "SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
                FROM 'data/tpch-0.01/customer.parquet', 'data/tpch-0.01/orders.parquet',
                  'data/tpch-0.01/lineitem.parquet', 'data/tpch-0.01/supplier.parquet',
                  'data/tpch-0.01/nation.parquet', 'data/tpch-0.01/region.parquet'
                WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
                  AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey
                  AND n_regionkey = r_regionkey AND r_name = 'ASIA'
                  AND o_orderdate >= DATE '1994-01-01'
                  AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
                GROUP BY n_name",
    },
];

impl Job {
    /// Whether its input ends and it is built anew from all rows: it has no checkpoints.
    fn is_rebuilt(&self) -> bool {
        self.name == "TPC-H q5"
    }

    /// The script, with an output at `path`.
    fn script(&self, path: &str, settings: &str, rate: &str) -> String {
        let stream = |name: &str, options: &str| {
            format!(
                "CREATE TABLE {name} (ts TIMESTAMP(3), auction BIGINT, price BIGINT,
                   WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
                   'connector' = 'generator', 'rows' = '{ROWS}', 'flows' = '3', {rate}
                   'interval' = '{STEP_MS}ms', {options}
                   'fields.auction.kind' = 'sequence', 'fields.auction.max' = '{}',
                   'fields.price.max' = '1000000');\n",
                AUCTIONS - 1
            )
        };
        let output = match path {
            LAKE => {
                format!("'connector' = 'delta', 'path' = '{path}', 'checkpoint.interval' = '4'")
            }
            _ => format!("'connector' = 'file', 'path' = '{path}', 'format' = 'csv'"),
        };
        let mut script = settings.to_owned();
        script += &stream("bids", "");
        script += &stream("asks", "'seed' = '1',");
        script += &stream("torn", "'disorder' = '8s',");
        write!(
            script,
            "CREATE VIEW dear AS SELECT * FROM bids WHERE price > 500000;
             CREATE VIEW dearest AS SELECT * FROM bids WHERE price > 990000;
             CREATE TABLE sellers (id BIGINT, seller BIGINT) WITH (
               'connector' = 'file', 'path' = 'sellers.csv');
             CREATE TABLE written ({}) WITH ({output});
             INSERT INTO written {};",
            self.columns, self.query
        )
        .unwrap();
        script
    }
}

/// The rows of a table of sellers, which every second auction is in.
fn sellers() -> String {
    let rows = (0..AUCTIONS).step_by(2).map(|id| format!("{id},{}\n", id * id));
    format!("id,seller\n{}", rows.collect::<String>())
}

/// The files that a job reads.
fn prepared(dir: &Dir, job: &Job) {
    dir.write("sellers.csv", &sellers());
    if job.is_rebuilt() {
        std::os::unix::fs::symlink(tpch(), dir.0.join("data")).unwrap();
    }
}

/// The directory of the tables of TPC-H, which are made once.
fn tpch() -> &'static Path {
    static TABLES: OnceLock<Dir> = OnceLock::new();
    let dir = TABLES.get_or_init(|| {
        let dir = Dir::new("kills-tpch");
        let (code, message) = dir.run(&["bench", "tpch", "--scale", "0.01", "--write", "data"]);
        assert_eq!(code, Some(0), "{message}");
        dir
    });
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| dir.0.join("data"))
}

/// The rows of an output, sorted.
fn rows_of(dir: &Dir, job: &Job, output: &str) -> Vec<String> {
    if output != LAKE {
        return dir.rows(output);
    }
    let script = format!(
        "CREATE TABLE lake ({columns}) WITH ('connector' = 'delta', 'path' = 'lake');
         CREATE TABLE back ({columns})
           WITH ('connector' = 'file', 'path' = 'back/', 'format' = 'csv');
         INSERT INTO back SELECT * FROM lake;",
        columns = job.columns
    );
    dir.write("back.sql", &script);
    let (code, message) = dir.run(&["run", "back.sql", "--workers", "1", "--quiet"]);
    assert_eq!(code, Some(0), "{message}");
    dir.rows("back")
}

/// The rows of a run of a job that nothing happens to, sorted.
fn undisturbed(at: usize) -> Vec<String> {
    static ROWS_OF: [OnceLock<Vec<String>>; ALL.len()] = [const { OnceLock::new() }; ALL.len()];
    let made = || {
        let (job, dir) = (&ALL[at], Dir::new(&format!("kills-undisturbed-{at}")));
        prepared(&dir, job);
        // The rate decides which rows are a flow's, and so which are late.
        let rate = if job.name == "late table" { RATE } else { "" };
        dir.write("q.sql", &job.script("out/", "", rate));
        let (code, message) = dir.run(&["run", "q.sql", "--workers", "1", "--quiet"]);
        assert_eq!(code, Some(0), "{}: {message}", job.name);
        let rows = dir.rows("out");
        assert!(rows.len() > 4, "{}: {} rows", job.name, rows.len());
        if let Some(by_hand) = by_hand(job) {
            let mut known: Vec<Vec<i64>> = rows.iter().map(|row| known(row, job)).collect();
            known.sort();
            assert!(
                known == by_hand,
                "{}: {} rows and not {}",
                job.name,
                known.len(),
                by_hand.len()
            );
        }
        rows
    };
    ROWS_OF[at].get_or_init(made).clone()
}

/// The columns of a row that follow from the options of the streams: times in milliseconds, and
/// numbers. Prices do not.
fn known(row: &str, job: &Job) -> Vec<i64> {
    let fields: Vec<&str> = row.split(',').collect();
    let price = if job.name == "lookup" { 3 } else { 4 };
    let number = |(at, field): (usize, &&str)| {
        if at == price {
            return 0;
        }
        let Some((day, time)) = field.split_once(' ') else { return field.parse().unwrap_or(-1) };
        let midnight = if day == "2024-01-01" { 0 } else { -86_400_000 };
        let parts: Vec<f64> = time.split(':').map(|part| part.parse().unwrap()).collect();
        (parts.iter().fold(0.0, |sum, part| sum * 60.0 + part) * 1000.0).round() as i64 + midnight
    };
    fields.iter().enumerate().map(number).collect()
}

/// The same rows, made from the options of the streams alone.
fn by_hand(job: &Job) -> Option<Vec<Vec<i64>>> {
    let time = |row: i64| row * STEP_MS;
    let mut rows: Vec<Vec<i64>> = match job.name {
        "TUMBLE" | "HOP" | "CUMULATE" => {
            let mut groups = BTreeMap::new();
            for row in 0..ROWS {
                for (start, end) in windows(job.name, time(row)) {
                    *groups.entry((start, end, row % AUCTIONS)).or_insert(0) += 1;
                }
            }
            let row = |((start, end, auction), count)| vec![start, end, auction, count, 0];
            groups.into_iter().map(row).collect()
        }
        "lookup" => (0..ROWS)
            .filter(|row| row % AUCTIONS % 2 == 0)
            .map(|row| {
                let auction = row % AUCTIONS;
                vec![time(row), time(row), auction, 0, auction * auction]
            })
            .collect(),
        "OVER" => (0..ROWS)
            .map(|row| {
                let before = row - AUCTIONS;
                // An empty field is a NULL.
                let lag = if before < 0 { -1 } else { time(before) };
                let within = (row / AUCTIONS).min(3_000 / time(AUCTIONS)) + 1;
                vec![time(row), lag, row % AUCTIONS, within, 0]
            })
            .collect(),
        _ => return None,
    };
    rows.sort();
    Some(rows)
}

/// The windows of a time.
fn windows(of: &str, time: i64) -> Vec<(i64, i64)> {
    let seconds = |from: i64, to: i64| (from * 1_000, to * 1_000);
    let second = time / 1_000;
    match of {
        "TUMBLE" => vec![seconds(second / 10 * 10, second / 10 * 10 + 10)],
        "HOP" => {
            let last = second / 5 * 5;
            (0..4).map(|back| seconds(last - 5 * back, last - 5 * back + 20)).collect()
        }
        _ => {
            let start = second / 20 * 20;
            let steps = 1..=4;
            let ends = steps.map(|step| start + 5 * step).filter(|end| *end > second);
            ends.map(|end| seconds(start, end)).collect()
        }
    }
}

/// The number of the last checkpoint in the chain of a job, and of its last generation.
fn chain(dir: &Dir) -> (u64, u64) {
    let number = |text: &str, field: &str| {
        let rest = text.split_once(&format!("\"{field}\":"))?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let (mut checkpoint, mut generation) = (0, 0);
    for name in dir.names("state/q/chain") {
        // The record may have been collected since: it has no text then.
        let text = dir.text(&format!("state/q/chain/{name}"));
        generation = generation.max(number(&text, "generation").unwrap_or(0));
        if text.contains("\"kind\":\"manifest\"") {
            checkpoint = checkpoint.max(number(&text, "number").unwrap_or(0) + 1);
        }
    }
    (checkpoint, generation)
}

/// Waits for `more` further checkpoints, or for another generation of a job that has none; false if
/// the job has ended before.
fn awaits(dir: &Dir, job: &Job, running: &mut Running, more: u64, met: &mut (u64, u64)) -> bool {
    let found = || {
        let now = chain(dir);
        let has_more = now.0 >= met.0 + more && now.1 > 0;
        let is_there = if job.is_rebuilt() { now.1 > met.1 } else { has_more };
        if is_there && !running.below().is_empty() {
            *met = now;
            return Some(true);
        }
        running.has_ended().then_some(false)
    };
    await_some(found, || format!("{}: {:?}: {}", job.name, chain(dir), dir.log()))
}

/// Runs the job of a seed and kills nodes of it; gives their number.
fn case(seed: u64) -> u64 {
    let at = (seed % ALL.len() as u64) as usize;
    let (job, (exchange, fabric)) = (&ALL[at], LAYOUTS[(seed % LAYOUTS.len() as u64) as usize]);
    let mut random = Random(seed + 1);
    // The numbers of seeds that are near each other are alike at first.
    let _ = (0..8).map(|_| random.below(2)).last();
    let into = ["out.csv", LAKE, "out/", "out/"][random.below(4) as usize];
    let nodes = if random.below(4) == 0 { "3" } else { "2" };
    let expected = undisturbed(at);
    let dir = Dir::new(&format!("kills-{seed}"));
    prepared(&dir, job);
    let settings = format!(
        "SET 'millstream.checkpoint' = '40 ms'; SET 'millstream.exchange' = '{exchange}';\n"
    );
    dir.write("q.sql", &job.script(into, &settings, RATE));
    let what = format!(
        "seed {seed}: {}, {exchange} by {fabric} into {into} on {nodes} nodes; alone: \
         make cases SEED={seed} TEST=kills::",
        job.name
    );
    let args = ["run", "q.sql", "--state", "state", "--nodes", nodes, "--workers", "1"];
    let mut running = dir.start(dir.command(&[&args[..], &["--fabric", fabric]].concat()));
    let (mut met, mut killed) = ((0, 0), 0);
    for _ in 0..=random.below(3) {
        if !awaits(&dir, job, &mut running, 1 + random.below(4), &mut met) {
            break;
        }
        let nodes = running.below();
        let Some(&node) = nodes.get(random.below(nodes.len().max(1) as u64) as usize) else {
            break;
        };
        killed += u64::from(signal(node, Signal::KILL));
    }
    assert_eq!(running.ends(), Some(0), "{what}: {}", dir.log());
    let rows = rows_of(&dir, job, into);
    let beside = |these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|row| others.binary_search(row).is_err()).take(5).cloned().collect()
    };
    assert!(
        rows == expected,
        "{what}: {} rows and not {}; without {:?}, with {:?}: {}",
        rows.len(),
        expected.len(),
        beside(&expected, &rows),
        beside(&rows, &expected),
        dir.log()
    );
    killed
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}

/// The jobs of one layout: seeds that leave `layout` when they are divided by the number of
/// layouts.
fn layout(layout: u64) {
    let step = LAYOUTS.len() as u64;
    if let Some(seed) = number(SEED) {
        if seed % step == layout {
            case(seed);
        }
        return;
    }
    let (least, mut killed) = (number(KILLS).map(|kills| kills.div_ceil(step)), 0);
    for seed in (layout..).step_by(step as usize) {
        let over = match least {
            Some(least) => killed >= least,
            None => seed >= JOBS,
        };
        if over {
            break;
        }
        killed += case(seed);
    }
    println!("{killed} nodes were killed");
    assert!(killed >= least.unwrap_or(JOBS / step), "only {killed} nodes were killed");
}

#[test]
fn killed_nodes_change_no_row_merge_shm() {
    layout(0);
}

#[test]
fn killed_nodes_change_no_row_shuffle_shm() {
    layout(1);
}

#[test]
fn killed_nodes_change_no_row_merge_tcp() {
    layout(2);
}

#[test]
fn killed_nodes_change_no_row_shuffle_tcp() {
    layout(3);
}
