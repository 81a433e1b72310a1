//! `LIMIT` and `OFFSET`, as data.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::{
    DescribeContext, Description, OperatorSpec, Property, RowOwner, SavedPart, SavedParts,
    SavedState, Statistics, Strategy,
};

/// A range of a sequence of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowRange {
    /// The number of rows that are skipped first.
    pub skip: usize,
    /// The number of rows that are emitted then; `None` for all.
    pub fetch: Option<usize>,
}

impl RowRange {
    /// The number of first rows that are needed; `None` for all.
    pub fn needed(&self) -> Option<usize> {
        Some(self.fetch?.saturating_add(self.skip))
    }

    /// The range `next` of the rows of this range.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let left = self.fetch.map(|fetch| fetch.saturating_sub(next.skip));
        Self {
            skip: self.skip.saturating_add(next.skip),
            fetch: left.into_iter().chain(next.fetch).min(),
        }
    }

    /// For EXPLAIN.
    pub(super) fn properties(&self) -> Vec<Property> {
        let limit = self.fetch.map(|fetch| ("limit", fetch.to_string()));
        let offset = (self.skip > 0).then(|| ("offset", self.skip.to_string()));
        limit.into_iter().chain(offset).collect()
    }

    /// The statistics of the rows in the range.
    pub(super) fn statistics(&self, inputs: &[Statistics]) -> Statistics {
        inputs.first().cloned().unwrap_or_default().in_range(self)
    }
}

/// Emits a range of the rows of all workers on worker 0, in the order in which they come. When it
/// has all of its rows, the sources that only it reads end.
#[derive(Debug, Clone)]
pub struct Limit {
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// The range that is emitted.
    pub range: RowRange,
}

impl OperatorSpec for Limit {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    /// How many rows are still to be skipped and to be emitted.
    fn saved_state(&self) -> SavedState {
        let count = |name: &str| Field::new(name, DataType::UInt64, false);
        let schema = Arc::new(Schema::new(vec![count("skip"), count("left")]));
        let parts = vec![SavedPart { schema, owner: RowOwner::First }];
        SavedState::Parts(SavedParts { version: 1, parts })
    }

    fn describe(&self, _: &DescribeContext<'_>) -> Description {
        let mut properties = self.range.properties();
        if self.range.fetch.is_some() {
            properties.push(("ends", "sources that it alone reads, when it has its rows".into()));
        }
        Description { name: "Limit", properties }
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        self.range.statistics(inputs)
    }

    fn strategy(&self, _: usize, workers: u32) -> Strategy {
        Strategy::Gather.on(workers)
    }

    /// The windows of worker 0.
    fn receive_windows(&self, workers: u32) -> u64 {
        u64::from(workers.saturating_sub(1))
    }

    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        (strategy == Strategy::Gather).then_some("worker 0 counts the rows of all workers")
    }
}
