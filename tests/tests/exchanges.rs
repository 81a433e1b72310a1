//! One job on one to four processes, by every exchange and over every transport: the rows are those
//! of loops over the rows that it reads.
//!
//! Here are processes over shared memory and TCP, and the simulator; `scripts/test-mpi.sh` has the
//! same job over MPI, `scripts/rdma-guest-init.sh` over verbs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use connectors::Generator;
use millstream::Session;
use plan::{Planner, Workers};
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::command::{Dir, run, run_sql};
use tests::memory::Memory;
use tests::rows::sorted;

/// The job, with the hints of a broadcast.
const JOB: &str = include_str!("../exchanges/exchanges.sql");

/// Rows of each window, of milliseconds.
const WINDOW_MS: i64 = 10_000;
/// The gap of a session.
const GAP_MS: i64 = 2_000;

/// How rows meet.
const EXCHANGES: [&str; 4] = ["merge", "shuffle", "uppar", "broadcast"];

/// The job by an exchange, and the value of `millstream.exchange`: the groups of a broadcast join
/// are shuffled.
fn job(exchange: &str) -> (String, &str) {
    if exchange == "broadcast" {
        return (JOB.to_owned(), "shuffle");
    }
    let parts = JOB.split("/*+").enumerate();
    let without = parts.map(|(at, part)| match part.split_once("*/") {
        Some((_, rest)) if at > 0 => rest,
        _ => part,
    });
    (without.collect(), exchange)
}

/// A row that is read.
#[derive(Debug, Clone, Copy)]
struct Read {
    n: i64,
    k: Option<i64>,
    v: i64,
    ts: i64,
}

/// The rows of a stream, of one worker.
fn read(table: &str) -> Vec<Read> {
    let tables = JOB.split("CREATE VIEW").next().unwrap_or_default();
    let sql = format!("{tables} SELECT n, k, v, ts FROM {table};");
    let batches = Session::builder().workers(1).build().unwrap().collect(&sql).unwrap();
    let mut rows = Vec::new();
    for batch in &batches {
        let number = |column: usize| batch.column(column).as_primitive::<Int64Type>();
        let (n, k, v) = (number(0), number(1), number(2));
        let ts = batch.column(3).as_primitive::<TimestampMillisecondType>();
        rows.extend((0..batch.num_rows()).map(|row| Read {
            n: n.value(row),
            k: k.is_valid(row).then(|| k.value(row)),
            v: v.value(row),
            ts: ts.value(row),
        }));
    }
    rows
}

/// The kind of each key of the table that ends.
fn kinds() -> BTreeMap<i64, i64> {
    let tables = JOB.split("CREATE VIEW").next().unwrap_or_default();
    let sql = format!("{tables} SELECT k, kind FROM c;");
    let batches = Session::builder().workers(1).build().unwrap().collect(&sql).unwrap();
    let pairs = batches.iter().flat_map(|batch| {
        let [k, kind] = [0, 1].map(|column| batch.column(column).as_primitive::<Int64Type>());
        k.values().iter().copied().zip(kind.values().iter().copied()).collect::<Vec<_>>()
    });
    pairs.collect()
}

/// The rows that the job has to give, sorted: computed by loops over its input.
fn expected() -> Vec<String> {
    let (a, b, kinds) = (read("a"), read("b"), kinds());
    assert_eq!((a.len(), b.len(), kinds.len()), (4_000, 400, 15));
    assert!(a.iter().any(|row| row.k.is_none()), "no key is NULL");
    let shown = |what: &str, at: i64, k: Option<i64>, p: i64, q: i64| {
        format!("{what},{at},{},{p},{q}", k.map_or(String::new(), |k| k.to_string()))
    };
    let window = |row: &Read| row.ts.div_euclid(WINDOW_MS) * WINDOW_MS;
    let mut rows = Vec::new();
    let mut groups = BTreeMap::<_, (i64, i64)>::new();
    let mut of_key = BTreeMap::<_, Vec<Read>>::new();
    for row in &a {
        let group = groups.entry((window(row), row.k)).or_default();
        *group = (group.0 + 1, group.1 + row.v);
        of_key.entry(row.k).or_default().push(*row);
        let partners = b.iter().filter(|other| window(other) == window(row));
        let partners = partners.filter(|other| row.k.is_some() && other.k == row.k);
        rows.extend(partners.map(|other| shown("join", window(row), row.k, row.n, other.n)));
        let kind = row.k.and_then(|k| kinds.get(&k));
        rows.extend(kind.map(|kind| shown("table", row.ts, row.k, *kind, row.n)));
    }
    rows.extend(groups.iter().map(|((at, k), (n, sum))| shown("window", *at, *k, *n, *sum)));
    for (k, mut all) in of_key {
        all.sort_by_key(|row| row.ts);
        for session in all.chunk_by(|row, next| next.ts - GAP_MS <= row.ts) {
            let sum = session.iter().map(|row| row.v).sum();
            rows.push(shown("session", session[0].ts, k, session.len() as i64, sum));
        }
    }
    rows.sort();
    for (what, most) in [("join", 5_000), ("table", 2_000), ("window", 200), ("session", 80)] {
        let count = rows.iter().filter(|row| row.starts_with(what)).count();
        assert!(count > most, "{count} rows of {what}");
    }
    rows
}

/// Fails at the first row that is another one.
#[track_caller]
fn assert_rows(got: &[String], expected: &[String], at: &str) {
    let apart = got.iter().zip(expected).find(|(got, expected)| got != expected);
    assert!(apart.is_none() && got.len() == expected.len(), "{at}: {} rows, {apart:?}", got.len());
}

#[test]
fn one_to_four_processes_give_the_same_rows_by_every_exchange() {
    let expected = expected();
    let dir = Dir::new("exchanges");
    for exchange in EXCHANGES {
        let (sql, set) = job(exchange);
        let set = format!("millstream.exchange={set}");
        for (nodes, workers) in [("1", "2"), ("2", "1"), ("3", "1"), ("4", "1")] {
            // One process has no transport.
            let fabrics = if nodes == "1" { &["shm"][..] } else { &["shm", "tcp"] };
            for fabric in fabrics {
                let layout = ["--nodes", nodes, "--workers", workers, "--fabric", fabric];
                let options = ["--format", "csv", "--quiet", "--set", &set];
                let args = [&layout[..], &options].concat();
                let outcome = run_sql(&dir, &sql, &args).ended(0);
                let mut rows: Vec<_> = outcome.out.lines().skip(1).map(str::to_owned).collect();
                rows.sort();
                assert_rows(&rows, &expected, &format!("{exchange}, {layout:?}"));
            }
        }
        // The rows meet as the name says.
        let args = ["explain", "q.sql", "--nodes", "3", "--workers", "1", "--set", &set];
        let plan = run(&dir, &args).ended(0).out;
        let is_there = match exchange {
            "broadcast" => plan.matches("broadcast: hint BROADCAST(").count() == 2,
            _ => plan.matches(&format!("─ {exchange}(")).count() >= 4,
        };
        assert!(is_there, "{exchange}:\n{plan}");
    }
}

/// The same in virtual time, over a network that loses the order of what may lose it.
#[test]
fn simulated_clusters_give_the_same_rows_by_every_exchange() {
    let expected = expected();
    let mut cases = cases(16);
    let mut sent = 0;
    for seed in &mut cases {
        let exchange = EXCHANGES[seed as usize % EXCHANGES.len()];
        let nodes = 1 + (seed / 4 % 4) as u32;
        let workers = if nodes == 1 { 2 } else { 1 + (seed / 16 % 2) as u32 };
        let memory = Memory::new(None);
        let sink = Arc::new(memory.clone());
        let size = Workers { nodes, per_node: workers };
        let mut planner = Planner::new(vec![sink.clone(), Arc::new(Generator)], size);
        planner.set_default_sink(sink, Default::default());
        let (sql, set) = job(exchange);
        let script = format!("SET millstream.exchange = {set};\n{sql}");
        let mut stages = planner.plan(&script).expect("the job can be planned");
        let stage = stages.remove(0);
        assert!(stages.is_empty() && !stage.explain.text().contains("Batch"), "one stage");
        let ran = Cluster::seeded(nodes, workers, seed).run(&Arc::new(stage.job));
        let at = format!("seed {seed}: {exchange}, {nodes}x{workers}");
        let ran = ran.unwrap_or_else(|error| panic!("{at}: {error}"));
        sent += if nodes > 1 { ran.sum(|metrics| &metrics.bytes_sent) } else { 0 };
        let rows = sorted(&memory.all_committed());
        let mut rows: Vec<String> =
            rows.iter().map(|row| row.replace('|', ",").replace("NULL", "")).collect();
        rows.sort();
        assert_rows(&rows, &expected, &at);
    }
    cases.met(sent > 100_000, &format!("only {sent} bytes were sent"));
}
