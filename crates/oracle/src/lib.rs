//! DataFusion as a batch engine, with its own front end: the reference for the results of tests
//! and, on demand, of benchmarks.
//!
//! It knows nothing of ours. Who waits for its futures compiles its planner of SQL with them, so
//! they are waited for here, once for all tests: nothing public is generic.
#![forbid(unsafe_code)]

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::{Result, plan_err};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};

/// The errors of DataFusion.
pub use datafusion::error::DataFusionError as Error;

/// The rows of a query over tables of these names and rows.
///
/// # Panics
/// If DataFusion refuses the query or a table, or fails.
pub fn rows(sql: &str, tables: &[(&str, RecordBatch)]) -> Vec<RecordBatch> {
    let context = SessionContext::new();
    tables.iter().for_each(|(name, rows)| register(&context, name, rows.clone()));
    waited_for(async { context.sql(sql).await?.collect().await }).expect("a query")
}

/// Tables that several queries read.
pub struct Tables(SessionContext);

impl Tables {
    /// Tables of these names and rows. In queries a number with a point is a `DECIMAL`, as in the
    /// standard.
    ///
    /// # Errors
    /// DataFusion's, where there are no rows or batches differ in their columns.
    pub fn new(tables: Vec<(&str, Vec<RecordBatch>)>) -> Result<Self> {
        let config = SessionConfig::new();
        let config = config.set_bool("datafusion.sql_parser.parse_float_as_decimal", true);
        let context = SessionContext::new_with_config(config);
        for (name, rows) in tables {
            let schema = rows.first().map(RecordBatch::schema);
            let Some(schema) = schema else { return plan_err!("the table {name} has no rows") };
            context.register_table(name, Arc::new(MemTable::try_new(schema, vec![rows])?))?;
        }
        Ok(Self(context))
    }

    /// The rows of a query.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn rows(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        waited_for(async { self.0.sql(sql).await?.collect().await })
    }
}

/// The plan of a query, neither analyzed nor optimized.
///
/// # Errors
/// DataFusion's.
pub fn plan(context: &SessionContext, sql: &str) -> Result<LogicalPlan> {
    waited_for(context.sql(sql)).map(DataFrame::into_unoptimized_plan)
}

/// Adds a table of these rows.
///
/// # Panics
/// If there is one of that name.
pub fn register(context: &SessionContext, name: &str, rows: RecordBatch) {
    let table = MemTable::try_new(rows.schema(), vec![vec![rows]]).expect("a table");
    context.register_table(name, Arc::new(table)).expect("a name");
}

/// What comes of a future. DataFusion's ask for tokio.
fn waited_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}
