//! Builds that take long, and the rows that scans skip by the keys of builds: in the simulated
//! network, on clusters of several sizes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::metrics::Metrics;
use tests::cases::cases;
use tests::cluster::{Cluster, Run};
use tests::memory::{Event, Memory, Table};
use tests::random::Random;
use tests::rows::sorted;
use tests::scenario::plan;

const SECOND: u64 = 1_000_000_000;

type Row = (Option<i64>, i64);

fn schema() -> SchemaRef {
    let fields = [("k", true), ("v", false)];
    let field = |(name, is_null)| Field::new(name, DataType::Int64, is_null);
    Arc::new(Schema::new(fields.map(field).to_vec()))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let keys: Int64Array = rows.iter().map(|row| row.0).collect();
    let values: Int64Array = rows.iter().map(|row| Some(row.1)).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(values)];
    RecordBatch::try_new(schema(), columns).expect("the columns fit")
}

/// A table in some flows, each of which pauses so long between its batches.
fn table(rows: &[Row], flows: usize, pause_ns: u64) -> Table {
    let flow = |rows: &[Row]| {
        let events = rows.chunks(50).flat_map(|rows| {
            let pause = (pause_ns > 0).then_some(Event::Silence(pause_ns));
            pause.into_iter().chain([Event::Rows(batch(rows))])
        });
        events.collect()
    };
    let each = rows.len().div_ceil(flows).max(1);
    let mut flows_of: Vec<Vec<Event>> = rows.chunks(each).map(flow).collect();
    flows_of.resize(flows, vec![]);
    Table { schema: schema(), bounded: true, flows: flows_of }
}

/// Runs a query over tables of two columns; gives its rows in order.
fn run(
    tables: &[(&str, &Table)],
    sql: &str,
    cluster: &Cluster,
) -> (Vec<String>, Run, Vec<Vec<dataflow::job::ProbedBuild>>) {
    let memory = Memory::new(None);
    let mut script = "SET millstream.stall_timeout = '500 ms';".to_owned();
    for (name, table) in tables {
        memory.add(name, (*table).clone());
        script +=
            &format!("CREATE TABLE {name} (k BIGINT, v BIGINT) WITH ('connector' = 'memory');");
    }
    script += sql;
    let stage = plan(&memory, &script, cluster.nodes, cluster.workers);
    let builds = stage.job.operators.iter().map(|operator| operator.builds.clone()).collect();
    // A job may run twice: its filters are those of a run.
    let job = Arc::new(stage.job);
    cluster.run(&job).expect("it runs");
    let first = sorted(&memory.all_committed());
    memory.clear();
    let run = cluster.run(&job).expect("it runs again");
    let rows = sorted(&memory.all_committed());
    assert_eq!(first, rows, "{sql}");
    (rows, run, builds)
}

/// The rows that scans skipped because no build has their key.
fn unmatched(run: &Run) -> u64 {
    let of = |metrics: &Arc<Metrics>| -> u64 {
        let operators = metrics.operators().iter();
        operators.map(|of| of.unmatched_rows.load(std::sync::atomic::Ordering::Relaxed)).sum()
    };
    run.metrics.iter().map(of).sum()
}

#[test]
fn a_build_may_take_longer_than_the_stall_timeout() {
    let numbers = |rows: i64, step: i64| -> Vec<Row> {
        (0..rows).map(|row| (Some(row * step), row)).collect()
    };
    let probe = table(&numbers(3_000, 1), 3, 0);
    let (d, e) = (table(&numbers(300, 4), 2, 2 * SECOND), table(&numbers(200, 6), 3, 3 * SECOND));
    let tables = [("t", &probe), ("d", &d), ("e", &e)];
    let grouped = |name: &str| format!("(SELECT k, max(v) AS v FROM {name} GROUP BY k) AS {name}");
    let [d, e] = ["d", "e"].map(grouped);
    let select = |hints: &str, d: &str, e: &str| {
        format!("SELECT {hints} t.v, d.v, e.v FROM t JOIN {d} ON t.k = d.k JOIN {e} ON t.k = e.k;")
    };
    let expected: Vec<String> = {
        let of = |k: i64| format!("{k}|{}|{}", k / 4, k / 6);
        let mut rows: Vec<String> = (0..1_200).filter(|k| k % 12 == 0).map(of).collect();
        rows.sort();
        rows
    };
    for (nodes, workers) in [(1, 1), (2, 2), (4, 1)] {
        let cluster = Cluster::seeded(nodes, workers, 7);
        for (sql, skips) in [
            (select("/*+ LEADING(t, d, e), BROADCAST(d), BROADCAST(e) */", &d, &e), true),
            (select("/*+ LEADING(t, d, e), BROADCAST(d), BROADCAST(e) */", "d", "e"), true),
            (format!("SET millstream.exchange = 'shuffle'; {}", select("", &d, &e)), false),
        ] {
            let (rows, run, _) = run(&tables, &sql, &cluster);
            assert_eq!(rows, expected, "{nodes} x {workers}: {sql}");
            assert!(run.elapsed_ns > 5 * SECOND, "the builds took {} ns", run.elapsed_ns);
            let skipped = if skips || nodes * workers == 1 { 2_900 } else { 0 };
            assert_eq!(unmatched(&run), skipped, "{nodes} x {workers}: {sql}");
        }
    }
}

/// Some rows, whose keys lie in a range, with NULL among them.
fn rows_of(random: &mut Random, count: u64, keys: u64) -> Vec<Row> {
    let row = |v| ((!random.chance(8)).then(|| random.below(keys) as i64), v as i64);
    (0..count).map(row).collect()
}

/// Random joins of three tables, with and without rows, by each kind of join, against loops over
/// all pairs.
#[test]
fn no_row_with_a_partner_is_skipped() {
    let (mut results, mut skipped, mut listening) = (0, 0, 0);
    let mut cases = cases(120);
    for seed in &mut cases {
        let mut random = Random::new(seed + 640_000);
        let keys = *random.one_of(&[3, 40, 1_000]);
        let count = *random.one_of(&[0, 1, 30, 200]);
        let probe = rows_of(&mut random, 300, keys);
        let [d, e] = [count, 25].map(|count| rows_of(&mut random, count, keys));
        let kind = *random.one_of(&["", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"]);
        let may_broadcast = !matches!(kind, "RIGHT" | "FULL");
        let hints = ["", "/*+ SHUFFLE(x) */", "/*+ BROADCAST(x) */"];
        let hint = *random.one_of(&hints[..2 + usize::from(may_broadcast)]);
        let second = *random.one_of(&["", "AND t.k IN (SELECT k FROM e)"]);
        let named = match random.below(2) {
            0 => "(SELECT k, v FROM d UNION ALL SELECT k, v FROM d WHERE v < 0) AS x",
            _ => "d AS x",
        };
        let columns = if kind.len() > 5 { "t.v, t.v" } else { "t.v, x.v" };
        let sql = format!(
            "SELECT {hint} {columns} FROM t {kind} JOIN {named} ON t.k = x.k
             WHERE coalesce(t.v, 0) >= 0 {second};"
        );
        let expected = joined(&probe, &d, &e, kind, !second.is_empty());
        let tables = [
            ("t", &table(&probe, 3, 1_000)),
            ("d", &table(&d, 2, SECOND)),
            ("e", &table(&e, 1, 0)),
        ];
        let (nodes, workers) = *random.one_of(&[(1, 1), (2, 2), (4, 1)]);
        let (rows, run, builds) = run(&tables, &sql, &Cluster::seeded(nodes, workers, seed));
        assert_eq!(rows, expected, "seed {seed}, {nodes} x {workers}: {sql}");
        results += rows.len();
        skipped += unmatched(&run);
        listening += usize::from(builds.iter().any(|builds| !builds.is_empty()));
    }
    let met = results > 5_000 && skipped > 5_000 && listening > 30;
    cases.met(met, &format!("{results} rows, {skipped} skipped, {listening} jobs with filters"));
}

fn joined(t: &[Row], d: &[Row], e: &[Row], kind: &str, second: bool) -> Vec<String> {
    let mut partners: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (k, v) in d.iter().filter_map(|(k, v)| Some(((*k)?, *v))) {
        partners.entry(k).or_default().push(v);
    }
    let shown = |v: Option<i64>| v.map_or("NULL".into(), |v| v.to_string());
    let line = |a: Option<i64>, b: Option<i64>| format!("{}|{}", shown(a), shown(b));
    let passes = |k: Option<i64>| !second || k.is_some() && e.iter().any(|row| row.0 == k);
    let mut lines = vec![];
    for &(k, v) in t.iter().filter(|row| passes(row.0)) {
        let of: &[i64] = k.and_then(|k| partners.get(&k)).map_or(&[], Vec::as_slice);
        match (kind, of) {
            ("LEFT SEMI", [_, ..]) | ("LEFT ANTI", []) => lines.push(line(Some(v), Some(v))),
            ("LEFT SEMI" | "LEFT ANTI", _) => {}
            ("LEFT" | "FULL", []) => lines.push(line(Some(v), None)),
            (_, of) => lines.extend(of.iter().map(|other| line(Some(v), Some(*other)))),
        }
    }
    if matches!(kind, "RIGHT" | "FULL") && !second {
        let alone = |row: &&Row| row.0.is_none() || !t.iter().any(|of| of.0 == row.0);
        lines.extend(d.iter().filter(alone).map(|row| line(None, Some(row.1))));
    }
    lines.sort();
    lines
}
