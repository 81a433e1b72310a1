//! The right answer of a workload, computed row by row in the order of event time, without the
//! engine: no SQL, no windows, no state of ours, no exchange.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int8Type, Int64Type, Schema, TimestampMillisecondType};
use arrow::record_batch::RecordBatch;
use connectors::Generator;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, ReaderContext, SplitReader};
use fabric::clock::MonotonicClock;

use crate::checksums::ChecksumTotals;
use crate::memory;
use crate::task::WorkloadTask;
use crate::workload::{Workload, WorkloadSize, options_of};

mod groups;
mod join;
mod ratio;

/// Rows asked for at a time.
const BATCH_ROWS: usize = 8192;

/// Sums over the result of a workload.
///
/// # Errors
/// When the generator refuses the size.
pub fn sums(workload: Workload, size: &WorkloadSize) -> Result<ChecksumTotals, ConnectorError> {
    sums_of(workload, &workload.sql(size))
}

/// Bytes that the sums of a workload take at most, and those that this machine has free, if that is
/// too few.
pub fn beyond_memory(workload: Workload, size: &WorkloadSize) -> Option<[u64; 2]> {
    let WorkloadTask::Groups(shape) = workload.task() else { return None };
    let (needed, free) = (groups::bytes(shape, size.keys), memory::available()?);
    (needed > free).then_some([needed, free])
}

/// Sums over the result of a workload whose tables are those of `sql`.
pub(crate) fn sums_of(workload: Workload, sql: &str) -> Result<ChecksumTotals, ConnectorError> {
    match workload.task() {
        WorkloadTask::Groups(shape) => {
            let mut rows = TableRows::open(sql, shape.table, &shape.columns())?;
            groups::sums(shape, &mut rows)
        }
        WorkloadTask::Ratio(ratio) => ratio::sums(&ratio, sql),
        WorkloadTask::Join(join) => join::sums(&join, sql),
    }
}

/// The rows of a table, in the order of event time.
pub(crate) struct TableRows(Box<dyn SplitReader>);

impl TableRows {
    /// Of a table that `sql` makes.
    pub(crate) fn open(sql: &str, table: &str, columns: &[&str]) -> Result<Self, ConnectorError> {
        let mut options = options_of(sql, table);
        // The rows are the same, however they lie in memory.
        for key in ["connector", "layout", "fixed.record_bytes"] {
            options.remove(key);
        }
        // Rows that come again and again are better kept.
        if !options.contains_key("repeat") {
            options.remove("preload");
        }
        let schema = Generator.infer(&options)?.unwrap_or_else(|| Arc::new(Schema::empty()));
        let projection: Result<Vec<usize>, _> =
            columns.iter().map(|name| schema.index_of(name).map_err(|_| missing(name))).collect();
        let table = TableDef {
            name: "reference".into(),
            schema,
            options,
            metadata: Default::default(),
            buckets: vec![],
        };
        let source = Generator.source(&table, &projection?)?;
        let splits = source.splits(1, None)?;
        let context = ReaderContext::new(Arc::new(MonotonicClock::new()), Arc::default());
        Ok(Self(source.open(&splits[0], None, &context)?))
    }

    /// The next of them; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        match self.0.next(BATCH_ROWS)? {
            Next::Batch(batch) => Ok(Some(batch)),
            Next::Pending | Next::Wait { .. } | Next::End => Ok(None),
        }
    }
}

fn missing(column: &str) -> ConnectorError {
    let message = "the workload has no such column".into();
    ConnectorError::Column { column: column.into(), message, hint: None }
}

fn numbers(column: &dyn Array) -> &[i64] {
    column.as_primitive::<Int64Type>().values()
}

fn times(column: &dyn Array) -> &[i64] {
    column.as_primitive::<TimestampMillisecondType>().values()
}

/// Which rows have the word.
fn has_word(column: &dyn Array, word: &str) -> Vec<bool> {
    let column = column.as_dictionary::<Int8Type>();
    let words = column.values().as_string::<i32>();
    let is: Vec<bool> = words.iter().map(|value| value == Some(word)).collect();
    column.keys().values().iter().map(|&key| is[key as usize]).collect()
}
