//! A table as the planner of SQL sees it, with where it was named.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::TableSource;

use crate::catalog::Table;
use crate::text::diagnostics::Place;

/// Where a table, a view or a `WITH` query is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    /// The number of the script.
    pub(crate) script: u64,
    pub(crate) place: Place,
}

/// A table as DataFusion sees it.
pub(crate) struct ScannedTable {
    pub(crate) table: Arc<Table>,
    pub(crate) schema: SchemaRef,
    /// Where it is named: first itself, then the views and queries that it is read through.
    pub(crate) named: Vec<Named>,
}

impl ScannedTable {
    /// The same, which is read through what is named there.
    pub(crate) fn named_in(&self, named: Named) -> Self {
        let (table, schema) = (self.table.clone(), self.schema.clone());
        let named = self.named.iter().copied().chain([named]).collect();
        Self { table, schema, named }
    }
}

impl TableSource for ScannedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
