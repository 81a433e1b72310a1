//! `ORDER BY`, as data.

use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;

use super::{
    Copies, Deployment, DescribeContext, Description, OperatorSpec, RowRange, SavedState,
    StateEstimate, StateMemory, Statistics, Strategy, list,
};
use crate::rows::size::row_bytes;

/// Sorts rows: each worker sorts its own rows, and worker 0 merges the sorted rows of all.
#[derive(Debug, Clone)]
pub struct Sort {
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// The columns that order the rows.
    pub order: Vec<(usize, SortOptions)>,
    /// The range of the sorted rows that is emitted.
    pub range: RowRange,
}

impl OperatorSpec for Sort {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    /// Its inputs end, and all of their rows are needed for its first result.
    fn saved_state(&self) -> SavedState {
        SavedState::Rebuilt
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let order: Vec<String> =
            self.order.iter().map(|by| ordered_by(context.of(0), by)).collect();
        let mut properties = vec![("order by", order.join(", "))];
        properties.extend(self.range.properties());
        Description { name: "Sort", properties }
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        self.range.statistics(inputs)
    }

    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let rows = inputs.first().and_then(|rows| rows.rows_max);
        let workers = u64::from(deployment.workers);
        let first = self.range.needed().map(|needed| (needed as u64).saturating_mul(workers));
        vec![StateEstimate {
            unit: "row",
            which: String::new(),
            each_bytes: row_bytes(&self.schema),
            count_max: rows.into_iter().chain(first).min(),
            copies: Copies::ONE,
        }]
    }

    fn memory(&self) -> StateMemory {
        StateMemory::Spillable
    }

    fn waits_for_rows(&self) -> bool {
        true
    }

    fn strategy(&self, _: usize, workers: u32) -> Strategy {
        Strategy::Gather.on(workers)
    }

    /// The windows of worker 0.
    fn receive_windows(&self, workers: u32) -> u64 {
        u64::from(workers.saturating_sub(1))
    }

    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        let merged = "each worker sorts its rows, and worker 0 merges what they send";
        (strategy == Strategy::Gather).then_some(merged)
    }
}

/// A column and its order, as in SQL. The position of NULLs is shown if it is not the default.
fn ordered_by(columns: &[String], (at, options): &(usize, SortOptions)) -> String {
    let down = if options.descending { " DESC" } else { "" };
    let nulls = match options {
        SortOptions { descending: false, nulls_first: true } => " NULLS FIRST",
        SortOptions { descending: true, nulls_first: false } => " NULLS LAST",
        _ => "",
    };
    format!("{}{down}{nulls}", list(columns, &[*at]))
}
