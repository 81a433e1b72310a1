//! The tables of a suite in a pool, which are loaded once.

use millstream::cluster::Control;
use millstream::pool::{Client, PoolAccess, PoolOptions};
use millstream::{FabricKind, RowTarget, Session};

use super::run::{SuiteLayout, SuitePlan, control_of, run_once};
use super::{Suite, SuiteConnector};
use crate::run::BenchError;

impl Suite {
    /// The statements that declare its tables of a scale as they lie in a pool.
    pub(super) fn declarations_in_pool(self, scale: f64, strip_rows: Option<u32>) -> String {
        let declare = |table: &&str| {
            let name = self.name_in_pool(table, scale, strip_rows);
            format!("CREATE TABLE {table} WITH ('connector' = 'pool', 'table' = '{name}');\n")
        };
        self.tables().iter().map(declare).collect()
    }

    /// The name of a table in a pool: `ssb-0.1.date`, or `ssb-0.1-256.date` with strips of so many
    /// rows.
    fn name_in_pool(self, table: &str, scale: f64, strip_rows: Option<u32>) -> String {
        let strips = strip_rows.map_or(String::new(), |rows| format!("-{rows}"));
        format!("{self}-{scale}{strips}.{table}")
    }
}

/// Loads the tables of a plan into its pool, unless they are there. Every node makes this call; no
/// table is whole before all nodes of the first layout have loaded their parts of it, and the nodes
/// of the others wait until they have.
pub(super) fn load(plan: &SuitePlan, controls: &[&Control]) -> Result<(), BenchError> {
    let (Some(pool), Some(layout)) = (&plan.pool, plan.layouts.first()) else { return Ok(()) };
    if let Some(control) = control_of(controls, layout.nodes) {
        load_as(plan, pool, *layout, control)?;
    }
    for control in controls {
        control.all_gather("loaded", Vec::new())?;
    }
    Ok(())
}

/// Loads the tables as one layout of processes and workers.
fn load_as(
    plan: &SuitePlan,
    pool: &PoolOptions,
    layout: SuiteLayout,
    control: &Control,
) -> Result<(), BenchError> {
    let pool = PoolOptions { workers: layout.nodes * layout.workers, ..pool.clone() };
    let client = Client::new(pool.clone()).map_err(|error| BenchError::Pool(error.to_string()))?;
    let there = client.tables().map_err(|error| BenchError::Pool(error.to_string()))?;
    let SuitePlan { suite, scale, strip_rows, .. } = *plan;
    let strips = strip_rows.map_or(String::new(), |rows| format!(", 'strip.rows' = '{rows}'"));
    let connector = SuiteConnector::new(suite);
    for table in suite.tables() {
        let name = suite.name_in_pool(table, scale, strip_rows);
        if there.iter().any(|known| known.name == name) {
            continue;
        }
        let mut session = Session::builder()
            .nodes(layout.nodes)
            .workers(layout.workers)
            .fabric(plan.fabrics.first().copied().unwrap_or(FabricKind::Shm))
            .rows_to(RowTarget::default())
            .connector(std::sync::Arc::new(connector.clone()))
            .pool(pool.clone())
            .build()?;
        let sql = format!(
            "{}CREATE TABLE {table}_kept WITH ('connector' = 'pool', 'table' = '{name}'{strips}) \
             AS SELECT * FROM {table};",
            suite.declarations(scale)
        );
        run_once(&session.sql(&sql)?, control)?;
        connector.forget();
    }
    Ok(())
}
