//! Analytical suites: TPC-H, the Star Schema Benchmark, and the three queries of Listing 1.1 of
//! the asynchronous shuffle's paper over TPC-C (Q10).
//!
//! ```text
//! Suite ─▶ tables: rows as functions of their number ─▶ in memory, or as Parquet files
//!   └────▶ queries: SQL by their names ─▶ run in turns ─▶ times, bytes, rows ─▶ checked
//! ```
//!
//! - Nothing is downloaded: rows are generated here, and are the same on every machine, for any
//!   number of workers and nodes. Each worker generates its own part.
//! - Results are compared with answers of another engine.

mod calendar;
pub mod check;
mod connector;
mod draws;
mod files;
mod pool;
mod query;
pub mod report;
pub mod run;
mod ssb;
mod table;
mod tpcc;
mod tpch;

use std::fmt;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

pub use connector::SuiteConnector;
pub use query::Query;
pub use report::SuiteReport;
pub use run::{SuiteLayout, SuitePlan};

/// The least scale.
pub const SCALE_MIN: f64 = 0.001;
/// The greatest scale: 8.6 GB of `lineitem` as text.
pub const SCALE_MAX: f64 = 100.0;

/// A suite of tables and queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// TPC-H: 22 queries.
    Tpch,
    /// The Star Schema Benchmark: 13 queries.
    Ssb,
    /// The tables of TPC-C with the three queries of Listing 1.1.
    Tpcc,
}

impl Suite {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tpch, Self::Ssb, Self::Tpcc];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Tpch => "tpch",
            Suite::Ssb => "ssb",
            Suite::Tpcc => "tpcc",
        }
    }

    /// The names of its tables.
    pub fn tables(self) -> &'static [&'static str] {
        match self {
            Suite::Tpch => &tpch::TABLES,
            Suite::Ssb => &ssb::TABLES,
            Suite::Tpcc => &tpcc::TABLES,
        }
    }

    /// The statements that declare its tables, with rows in memory.
    pub fn declarations(self, scale: f64) -> String {
        let declare = |table: &&str| {
            format!(
                "CREATE TABLE {table} WITH ('connector' = '{self}', 'table' = '{table}', \
                 'scale' = '{scale}');\n"
            )
        };
        self.tables().iter().map(declare).collect()
    }

    /// The columns of a table.
    pub fn schema(self, table: &str, scale: f64) -> SchemaRef {
        match self {
            Suite::Tpch => tpch::schema(table),
            Suite::Ssb => ssb::table(table, scale).schema(),
            Suite::Tpcc => tpcc::table(table, scale).schema(),
        }
    }

    /// The rows of a table; about as many if the rows are lines of orders.
    pub fn rows(self, table: &str, scale: f64) -> u64 {
        match self {
            Suite::Tpch => tpch::rows(table, scale),
            Suite::Ssb => ssb::table(table, scale).count(),
            Suite::Tpcc => tpcc::table(table, scale).count(),
        }
    }

    /// The least and the greatest value of a column, and its distinct values at most, if they are
    /// known.
    fn range(self, table: &str, column: &str, scale: f64) -> Option<([i64; 2], u64)> {
        match self {
            Suite::Tpch => tpch::range(column, scale),
            Suite::Ssb => ssb::table(table, scale).range(column),
            Suite::Tpcc => tpcc::table(table, scale).range(column),
        }
    }

    /// The rows of part number `part` of `parts` of a table.
    fn batches(
        self,
        table: &str,
        scale: f64,
        part: u32,
        parts: u32,
    ) -> Result<Vec<RecordBatch>, ArrowError> {
        match self {
            Suite::Tpch => tpch::batches(table, scale, part, parts),
            Suite::Ssb => ssb::table(table, scale).batches(part, parts),
            Suite::Tpcc => tpcc::table(table, scale).batches(part, parts),
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The scale that a text is.
///
/// # Errors
/// A hint, if it is none.
pub fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (SCALE_MIN..=SCALE_MAX).contains(scale));
    scale.ok_or_else(|| format!("write a number from {SCALE_MIN} to {SCALE_MAX}, such as 1"))
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn rows_do_not_depend_on_the_number_of_parts() {
        let scale = 0.002;
        for suite in Suite::ALL {
            for table in suite.tables() {
                let rows = |parts: u32| {
                    let parts = (0..parts)
                        .flat_map(|part| suite.batches(table, scale, part, parts).unwrap());
                    let schema = suite.schema(table, scale);
                    arrow::compute::concat_batches(&schema, &parts.collect::<Vec<_>>()).unwrap()
                };
                // These have one part.
                let parts = if ["nation", "region"].contains(table) { 1 } else { 3 };
                assert_eq!(rows(1), rows(parts), "{table} of {suite}");
            }
        }
    }

    /// Queries of SSB select the share of `lineorder` that its specification publishes. The queries
    /// left out select by too few parts, suppliers or days at this scale.
    #[test]
    fn the_queries_of_ssb_select_the_published_shares() {
        let shares = [
            ("q1.1", 0.0194805),
            ("q1.2", 0.00064935),
            ("q2.1", 1.0 / 125.0),
            ("q2.2", 1.0 / 625.0),
            ("q3.1", 6.0 / 175.0),
            ("q3.2", 6.0 / 4_375.0),
            ("q4.1", 2.0 / 125.0),
            ("q4.2", 4.0 / 875.0),
        ];
        let scale = 0.1;
        let connector = SuiteConnector::new(Suite::Ssb);
        let rows = |table| (table, connector.rows(table, scale).unwrap().to_vec());
        let tables = Suite::Ssb.tables().iter().map(|table| rows(table)).collect();
        let tables = oracle::Tables::new(tables).unwrap();
        let count = |sql: &str| {
            let rows = tables.rows(sql).unwrap();
            rows[0].column(0).as_primitive::<Int64Type>().value(0) as f64
        };
        let all = count("SELECT count(*) FROM lineorder");
        assert!((all / 600_000.0 - 1.0).abs() < 0.01, "{all} lines");
        for query in Suite::Ssb.queries() {
            let Some((_, share)) = shares.iter().find(|(name, _)| *name == query.name) else {
                continue;
            };
            let sql = query.sql(scale);
            let from = sql.find("FROM").unwrap();
            let end = sql.find("GROUP BY").unwrap_or(sql.len() - 1);
            let selected = count(&format!("SELECT count(*) {}", &sql[from..end])) / all;
            assert!(
                (selected / share - 1.0).abs() < 0.5,
                "{}: {selected}, not {share}",
                query.name
            );
        }
    }
}
