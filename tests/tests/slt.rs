//! Every record of `slt/*.slt`, through a `Session`: what it gives must not depend on how many
//! workers there are, on how many nodes, on the fabric, or on the exchange.
//!
//! The type of a column is a letter: `I` integer, `R` decimal or floating point, `T` text, `B`
//! boolean, `D` date, `P` timestamp, `?` anything else. The tables of the suites `tpch`, `ssb` and
//! `tpcc` are read by connectors of these names. Paths are relative to this crate;
//! `$__TEST_DIR__` is a directory that is removed at the end.

use std::fmt;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bench::analytics::{Suite, SuiteConnector};
use connectors::PoolConnector;
use connectors::pool::in_memory::InMemoryPool;
use millstream::{Diagnostic, FabricKind, Session};
use sqllogictest::{ColumnType, DB, DBOutput, Record, Runner};

/// Records of all files together at least.
const RECORDS_MIN: usize = 1_100;

/// A letter that says what a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind(char);

impl ColumnType for Kind {
    fn from_char(letter: char) -> Option<Self> {
        "IRTBDP?".contains(letter).then_some(Self(letter))
    }

    fn to_char(&self) -> char {
        self.0
    }
}

impl Kind {
    fn of(data_type: &DataType) -> Self {
        Self(match data_type {
            DataType::Boolean => 'B',
            DataType::Date32 | DataType::Date64 => 'D',
            DataType::Timestamp(..) => 'P',
            DataType::Float32 | DataType::Float64 | DataType::Decimal128(..) => 'R',
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 'T',
            other if other.is_integer() => 'I',
            _ => '?',
        })
    }
}

/// What went wrong, with the hint that the user is given.
#[derive(Debug)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<millstream::Error> for Failure {
    fn from(error: millstream::Error) -> Self {
        let millstream::Error::Sql(all) = &error else {
            let hint = error.hint().map(|hint| format!("; hint: {hint}"));
            return Self(format!("{error}{}", hint.unwrap_or_default()));
        };
        let one = |error: &Diagnostic| {
            let Diagnostic { line, column, message, detail, hint, .. } = error;
            let detail = detail.as_ref().map(|text| format!("; detail: {text}"));
            let hint = hint.as_ref().map(|text| format!("; hint: {text}"));
            let (detail, hint) = (detail.unwrap_or_default(), hint.unwrap_or_default());
            format!("at {line}:{column} {message}{detail}{hint}")
        };
        Self(all.iter().map(one).collect::<Vec<_>>().join(" | "))
    }
}

struct Database {
    session: Session,
    /// Whether the tables of the suites are loaded into a pool, and read from there.
    from_pool: bool,
}

impl Database {
    /// The statements that make a table of a suite in the pool, where `sql` makes one.
    fn loaded(&self, sql: &str) -> Option<String> {
        let rest = sql.strip_prefix("CREATE TABLE ").filter(|_| self.from_pool)?;
        let (name, with) = rest.split_once(" WITH ('connector' = ")?;
        let is_of_suite = Suite::ALL.iter().any(|suite| with.starts_with(&format!("'{suite}'")));
        is_of_suite.then(|| {
            format!(
                "CREATE TABLE {name}_made WITH ('connector' = {with}; \
                 CREATE TABLE {name} WITH ('connector' = 'pool', 'strip.rows' = '256') \
                 AS SELECT * FROM {name}_made"
            )
        })
    }
}

impl DB for Database {
    type Error = Failure;
    type ColumnType = Kind;

    fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, Failure> {
        let loaded = self.loaded(sql);
        let batches = self.session.collect(loaded.as_deref().unwrap_or(sql))?;
        let types = batches.first().map_or_else(Vec::new, |first| {
            first.schema().fields().iter().map(|field| Kind::of(field.data_type())).collect()
        });
        let mut rows = Vec::new();
        for batch in &batches {
            rows.extend(shown(batch).map_err(|error| Failure(error.to_string()))?);
        }
        Ok(DBOutput::Rows { types, rows })
    }
}

/// The values of a batch as text.
fn shown(batch: &RecordBatch) -> Result<Vec<Vec<String>>, ArrowError> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options))
        .collect::<Result<_, _>>()?;
    let value = |text: String| if text.is_empty() { "(empty)".to_owned() } else { text };
    let row = |row| columns.iter().map(|column| value(column.value(row).to_string())).collect();
    Ok((0..batch.num_rows()).map(row).collect())
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("slt").unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "slt"))
        .collect();
    files.sort();
    files
}

/// Runs all files with sessions of this kind; reports every record that failed.
fn run_all(nodes: u32, workers: u32, fabric: FabricKind, exchange: &str) {
    run_with(nodes, workers, fabric, &[("millstream.exchange", exchange)]);
}

fn run_with(nodes: u32, workers: u32, fabric: FabricKind, settings: &[(&str, &str)]) {
    let count = run_files(&files(), (nodes, workers, fabric), settings, false);
    assert!(count >= RECORDS_MIN, "{count} records are too few");
}

/// Runs files; reports every record that failed. Gives how many there are.
fn run_files(
    files: &[PathBuf],
    (nodes, workers, fabric): (u32, u32, FabricKind),
    settings: &[(&str, &str)],
    from_pool: bool,
) -> usize {
    let suites = Suite::ALL.map(|suite| Arc::new(SuiteConnector::new(suite)));
    let session = || {
        let builder = Session::builder().nodes(nodes).workers(workers).fabric(fabric);
        let builder =
            suites.iter().fold(builder, |builder, suite| builder.connector(suite.clone()));
        let pool = PoolConnector::new(InMemoryPool::new(nodes * workers));
        let builder = builder.connector(Arc::new(pool));
        settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value)).build()
    };
    let (mut count, mut failures) = (0, Vec::new());
    for file in files {
        let records = sqllogictest::parse_file::<Kind>(file).unwrap();
        let database = |session| Database { session, from_pool };
        let mut runner = Runner::new(|| ready(session().map(database).map_err(Failure::from)));
        // Without rows there is nothing to tell the types by.
        runner.with_column_validator(|actual, expected| actual.is_empty() || actual == expected);
        for record in records {
            count += usize::from(matches!(record, Record::Statement { .. } | Record::Query { .. }));
            if let Err(error) = runner.run(record) {
                failures.push(error.display(false).to_string());
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    count
}

/// The suites, whose tables are loaded into a pool first.
fn run_suites_from_a_pool(nodes: u32, workers: u32, fabric: FabricKind) {
    let suites = ["slt/ssb.slt", "slt/tpcc.slt", "slt/tpch.slt"].map(PathBuf::from);
    assert!(run_files(&suites, (nodes, workers, fabric), &[], true) >= 50);
}

#[test]
fn suites_from_a_pool_on_one_worker() {
    run_suites_from_a_pool(1, 1, FabricKind::Shm);
}

#[test]
fn suites_from_a_pool_on_four_workers() {
    run_suites_from_a_pool(1, 4, FabricKind::Shm);
}

#[test]
fn suites_from_a_pool_on_two_nodes() {
    run_suites_from_a_pool(2, 2, FabricKind::Tcp);
}

#[test]
fn one_worker() {
    run_all(1, 1, FabricKind::Shm, "auto");
}

#[test]
fn three_workers_over_shared_memory() {
    run_all(1, 3, FabricKind::Shm, "merge");
}

#[test]
fn three_workers_with_a_shuffle() {
    run_all(1, 3, FabricKind::Shm, "shuffle");
}

#[test]
fn three_workers_of_two_kinds() {
    run_all(1, 3, FabricKind::Shm, "uppar");
}

#[test]
fn four_workers_of_which_one_only_reads() {
    run_with(2, 2, FabricKind::Shm, &[("millstream.readers", "1")]);
}

#[test]
fn two_nodes_over_tcp() {
    run_all(2, 1, FabricKind::Tcp, "merge");
}

#[test]
fn two_nodes_whose_workers_share_a_connection() {
    let settings = [("millstream.exchange", "shuffle"), ("millstream.frequent_keys", "on")];
    run_with(2, 2, FabricKind::Tcp, &settings);
}

#[test]
fn two_nodes_whose_connection_a_thread_moves() {
    run_with(2, 2, FabricKind::Tcp, &[("millstream.progress", "thread")]);
}
