//! An input of an operator, as its exchange has to know it.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use crate::job::{Distribution, MultiPartitioner, RowPartitioner};

/// An input whose rows travel, as its operator describes it.
pub(crate) struct Port {
    /// Its columns.
    pub(crate) schema: SchemaRef,
    /// The columns by which rows are led, unless otherwise said.
    pub(crate) keys: Vec<usize>,
    /// Where the rows go.
    pub(crate) distribution: Distribution,
    /// Leads rows in place of the keys.
    pub(crate) partitioner: Option<Arc<dyn RowPartitioner>>,
    /// Leads each row to some workers.
    pub(crate) multi_partitioner: Option<Arc<dyn MultiPartitioner>>,
    /// The column of the end of a row's window, if rows have one.
    pub(crate) window: Option<usize>,
    /// Whether its rows may have to wait in the operator before they are processed. The operator
    /// then calls [`consumed`](super::Inputs::consumed) for each [`Arrival`](super::Arrival). Rows
    /// that are broadcast have no window.
    pub(crate) waits: bool,
}
