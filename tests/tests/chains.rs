//! Chains of joins in one pass, against SQLite, in the simulated network on clusters of several
//! sizes: the order of the builds follows the data, and the rows stay what they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use dataflow::job::OperatorKind;
use dataflow::metrics::OperatorMetrics;
use rusqlite::Connection;
use state::sim::{SimDisk, SimDiskOptions};
use tests::cluster::{Cluster, Run};
use tests::memory::{Event, Memory, Table};
use tests::rows::sorted;
use tests::scenario::plan;

/// A row: keys, and a number of its own.
type Row = (Vec<Option<i64>>, i64);

/// A table whose keys are floating point numbers: no scan skips rows of such keys, so that all of
/// them come to the joins.
struct Keyed {
    name: &'static str,
    keys: &'static [&'static str],
    rows: Vec<Row>,
}

impl Keyed {
    fn table(&self) -> Table {
        let mut fields: Vec<Field> =
            self.keys.iter().map(|key| Field::new(*key, DataType::Float64, true)).collect();
        fields.push(Field::new("v", DataType::Int64, true));
        let schema = Arc::new(Schema::new(fields));
        let batch = |rows: &[Row]| {
            let key = |at: usize| -> ArrayRef {
                let keys = rows.iter().map(|row| row.0[at].map(|key| key as f64));
                Arc::new(keys.collect::<Float64Array>())
            };
            let mut columns: Vec<ArrayRef> = (0..self.keys.len()).map(key).collect();
            columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))));
            Event::Rows(RecordBatch::try_new(schema.clone(), columns).expect("the columns fit"))
        };
        let each = self.rows.len().div_ceil(4).max(1);
        let mut flows: Vec<Vec<Event>> =
            self.rows.chunks(each).map(|rows| rows.chunks(50).map(batch).collect()).collect();
        flows.resize(4, vec![]);
        Table { schema: schema.clone(), bounded: true, flows }
    }

    fn declared(&self) -> String {
        let keys: String = self.keys.iter().map(|key| format!("{key} DOUBLE, ")).collect();
        format!("CREATE TABLE {} ({keys}v BIGINT) WITH ('connector' = 'memory');", self.name)
    }
}

/// A build whose keys are these, each with a number.
fn build(name: &'static str, keys: &[Option<i64>]) -> Keyed {
    let rows = keys.iter().enumerate().map(|(at, key)| (vec![*key], 100 + at as i64)).collect();
    Keyed { name, keys: &["k"], rows }
}

/// A probe side with keys from 0 to 7, evenly and with some NULL, and builds that have all of them,
/// half of them, and one; one with keys that come twice, an empty one, and one of a single row.
fn tables() -> Vec<Keyed> {
    let key = |row: i64, of: i64| (row % 97 != of).then_some(row / 8_i64.pow(of as u32) % 8);
    // Each batch has keys of all kinds.
    let mixed = |row: i64| row * 2_749 % 4_096;
    let rows = (0..4_096).map(|row| ((0..3).map(|of| key(mixed(row), of)).collect(), row));
    let rows = rows.collect();
    let some = |keys: std::ops::Range<i64>| keys.map(Some).collect::<Vec<_>>();
    let linked = (0..8).map(|key| (vec![Some(key), Some(key % 3)], 10 * key)).collect();
    vec![
        Keyed { name: "t", keys: &["a", "b", "c"], rows },
        build("d", &some(0..8)),
        build("e", &some(2..6)),
        build("f", &some(5..6)),
        build("twice", &[some(0..4), some(2..3), vec![None]].concat()),
        build("no_rows", &[]),
        build("one_row", &[Some(3)]),
        Keyed { name: "linked", keys: &["k", "j"], rows: linked },
    ]
}

fn sqlite(tables: &[Keyed]) -> Connection {
    let connection = Connection::open_in_memory().expect("SQLite");
    for Keyed { name, keys, rows } in tables {
        let columns: String = keys.iter().map(|key| format!("{key} REAL, ")).collect();
        let mut sql = format!("BEGIN; CREATE TABLE {name} ({columns}v INTEGER);");
        for (keys, v) in rows {
            let key = |key: &Option<i64>| key.map_or("NULL, ".into(), |key| format!("{key}.0, "));
            let keys: String = keys.iter().map(key).collect();
            sql += &format!("INSERT INTO {name} VALUES ({keys}{v});");
        }
        connection.execute_batch(&(sql + "COMMIT;")).expect("a table");
    }
    connection
}

/// The rows of a query by SQLite, whose columns are numbers.
fn expected(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<String> {
        let values: Result<Vec<String>, _> =
            (0..columns).map(|at| row.get::<_, i64>(at).map(|value| value.to_string())).collect();
        Ok(values?.join("|"))
    };
    let rows = statement.query_map([], row).expect("a query");
    let mut rows = rows.collect::<Result<Vec<String>, _>>().expect("rows");
    rows.sort();
    rows
}

/// The rows of a query, what its run counted, and its chains by the numbers of their joins.
fn run(tables: &[Keyed], sql: &str, cluster: &Cluster) -> (Vec<String>, Run, Vec<Vec<usize>>) {
    let memory = Memory::new(None);
    let mut script = String::new();
    for table in tables {
        memory.add(table.name, table.table());
        script += &table.declared();
    }
    let settings = cluster.disk.as_ref().map_or("", |_| "SET millstream.state_bytes = '512 KiB'; ");
    script = format!("{settings}{script}{sql};");
    let stage = plan(&memory, &script, cluster.nodes, cluster.workers);
    let chains = stage.job.operators.iter().enumerate().filter_map(|(at, operator)| {
        let chain = operator.chain.as_ref().ok()?;
        assert!(matches!(operator.kind, OperatorKind::HashJoin(_) | OperatorKind::Lookup(_)));
        (chain.joins[0] == at).then(|| chain.joins.clone())
    });
    let chains = chains.collect();
    let job = Arc::new(stage.job);
    let run = cluster.run(&job).unwrap_or_else(|error| panic!("{sql}: {error}"));
    (sorted(&memory.all_committed()), run, chains)
}

fn counted(run: &Run, operator: usize, of: impl Fn(&OperatorMetrics) -> u64) -> u64 {
    run.metrics.iter().map(|metrics| of(&metrics.operators()[operator])).sum()
}

const SHAPES: [(u32, u32); 3] = [(1, 1), (2, 2), (4, 1)];

/// Sides that are built of a grouping, for hash joins; tables are looked up.
fn grouped(name: &str) -> String {
    format!("(SELECT k, max(v) AS v FROM {name} GROUP BY k) AS {name}")
}

#[test]
fn the_order_of_a_chain_follows_the_data_and_the_rows_stay() {
    let tables = tables();
    let oracle = sqlite(&tables);
    let [d, e, f] = ["d", "e", "f"].map(grouped);
    for [d, e, f] in [["d", "e", "f"], [&d, &e, &f], ["d", &e, "f"]] {
        let sql = format!(
            "SELECT /*+ LEADING(t, d, e, f), BROADCAST(d), BROADCAST(e), BROADCAST(f) */ t.v, d.v, \
             e.v, f.v FROM t JOIN {d} ON t.a = d.k JOIN {e} ON t.b = e.k JOIN {f} ON t.c = f.k"
        );
        let expected = expected(&oracle, &sql);
        assert!(expected.len() > 200, "{}", expected.len());
        for (nodes, workers) in SHAPES {
            let cluster = Cluster::seeded(nodes, workers, 3);
            let (rows, first, chains) = run(&tables, &sql, &cluster);
            let place = format!("{nodes} x {workers}: {sql}");
            assert_eq!(rows, expected, "{place}");
            let [chain] = &chains[..] else { panic!("{chains:?}, {place}") };
            let [head, .., last] = chain[..] else { panic!("{chains:?}, {place}") };
            assert_eq!(chain.len(), 3, "{place}");
            let changes = |of: &OperatorMetrics| of.order_changes.load(Ordering::Relaxed);
            assert!(counted(&first, head, changes) >= u64::from(nodes * workers), "{place}");
            // The plan begins with the build that has all keys, and the run with the one of one.
            let looked_up = |of: &OperatorMetrics| of.chain_rows.load(Ordering::Relaxed);
            let [of_head, of_last] = [head, last].map(|at| counted(&first, at, looked_up));
            assert!(2 * of_head < of_last, "{of_head} and {of_last}, {place}");
            // A run is a function of the seed.
            let (again, second, _) = run(&tables, &sql, &cluster);
            assert_eq!((again, second.trace), (rows, first.trace), "{place}");
        }
    }
}

/// Queries whose rows SQLite gives too.
const QUERIES: [&str; 11] = [
    // Several partners of a row, in two builds.
    "SELECT t.v, x.v, y.v FROM t JOIN twice AS x ON t.a = x.k JOIN twice AS y ON t.b = y.k",
    // With and without a partner, and rows whose key is NULL.
    "SELECT t.v, d.v FROM t JOIN d ON t.a = d.k WHERE EXISTS (SELECT 1 FROM e WHERE e.k = t.b) \
     AND NOT EXISTS (SELECT 1 FROM f WHERE f.k = t.c)",
    "SELECT t.v, d.v FROM t JOIN d ON t.a = d.k WHERE t.b IN (SELECT k FROM e) \
     AND t.c NOT IN (SELECT k FROM f)",
    "SELECT t.v, d.v FROM t JOIN d ON t.a = d.k WHERE t.c NOT IN (SELECT k FROM twice)",
    // Empty builds, and one row.
    "SELECT t.v, d.v, n.v FROM t JOIN d ON t.a = d.k JOIN no_rows AS n ON t.b = n.k",
    "SELECT t.v, d.v FROM t JOIN d ON t.a = d.k WHERE t.c NOT IN (SELECT k FROM no_rows)",
    "SELECT o.v, d.v, e.v FROM one_row AS o JOIN d ON o.k = d.k JOIN e ON o.k = e.k",
    // A key that is a column of a build, behind a build that drops less.
    "SELECT /*+ LEADING(t, l, x, e) */ t.v, l.v, x.v, e.v FROM t JOIN linked AS l ON t.a = l.k \
     JOIN twice AS x ON l.j = x.k JOIN e ON t.b = e.k",
    // Joins that end a chain: a condition, and rows without a partner.
    "SELECT t.v, d.v, e.v, f.v FROM t JOIN d ON t.a = d.k \
     JOIN e ON t.b = e.k AND t.v < 20 * e.v JOIN f ON t.c = f.k",
    "SELECT t.v, d.v, coalesce(e.v, -1), f.v FROM t JOIN d ON t.a = d.k \
     LEFT JOIN e ON t.b = e.k JOIN f ON t.c = f.k",
    // Groups behind a chain, of a hash join and lookups.
    "SELECT d.v, count(*), sum(t.v + x.v) FROM t JOIN d ON t.a = d.k \
     JOIN (SELECT k, max(v) AS v FROM twice GROUP BY k) AS x ON t.b = x.k \
     JOIN e ON t.c = e.k GROUP BY d.v",
];

#[test]
fn chains_of_all_kinds_give_the_rows_of_sqlite() {
    let tables = tables();
    let oracle = sqlite(&tables);
    let (mut chained, mut given) = (0, 0);
    for sql in QUERIES {
        let expected = expected(&oracle, sql);
        for ((nodes, workers), exchange) in
            SHAPES.into_iter().flat_map(|shape| [(shape, "auto"), (shape, "shuffle")])
        {
            let script = format!("SET millstream.exchange = '{exchange}'; {sql}");
            let (rows, run, chains) = run(&tables, &script, &Cluster::seeded(nodes, workers, 5));
            assert_eq!(rows, expected, "{nodes} x {workers}: {script}");
            chained += chains.len();
            let looked_up = |of: &OperatorMetrics| of.chain_rows.load(Ordering::Relaxed);
            given += chains.concat().iter().map(|&at| counted(&run, at, looked_up)).sum::<u64>();
        }
    }
    assert!(chained > 20 && given > 20_000, "{chained} chains, {given} rows in them");
}

#[test]
fn a_build_on_the_disk_takes_its_rows_out_of_the_chain() {
    let mut tables = tables();
    // 20 KiB and more of a build, of which a worker may hold a part.
    let large = (0..6_000).map(|row| (vec![Some(row % 8 + 8 * (row / 8))], row)).collect();
    tables.push(Keyed { name: "large", keys: &["k"], rows: large });
    let oracle = sqlite(&tables);
    let [d, large] = ["d", "large"].map(grouped);
    let sql = format!(
        "SELECT /*+ LEADING(t, d, large) */ t.v, d.v, large.v FROM t JOIN {d} ON t.a = d.k \
         JOIN {large} ON t.b = large.k"
    );
    let expected = expected(&oracle, &sql);
    for (nodes, workers) in SHAPES {
        let disk = Some(SimDisk::new(SimDiskOptions::default()));
        let cluster = Cluster { disk, ..Cluster::seeded(nodes, workers, 7) };
        let (rows, run, _) = run(&tables, &sql, &cluster);
        assert_eq!(rows, expected, "{nodes} x {workers}");
        let spilled = |of: &OperatorMetrics| of.spilled_bytes.load(Ordering::Relaxed);
        let joins = run.metrics[0].operators().len();
        assert!((0..joins).any(|at| counted(&run, at, spilled) > 0), "{nodes} x {workers}");
    }
}
