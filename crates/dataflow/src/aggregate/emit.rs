//! Gives out the result rows of a window.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::Grouping;
use super::fold::NO_WINDOW;
use crate::error::DataflowError;
use crate::time::ticks_per_second;

/// The worker that gives out the one row of an aggregate without keys over no rows.
const TOTAL_WORKER: u32 = 0;

impl Grouping {
    /// Assembles keys, values and window columns, applies the step, and emits.
    pub(super) async fn emit(
        &self,
        start: i64,
        columns: state::Columns,
    ) -> Result<(), DataflowError> {
        let rows = columns.rows();
        self.emitted.set(self.emitted.get() || rows > 0);
        let arrays: Vec<ArrayRef> = columns.keys.into_iter().chain(columns.states).collect();
        let mut done = 0;
        while done < rows {
            let take = self.rows_max.min(rows - done);
            let mut part: Vec<ArrayRef> = arrays.iter().map(|a| a.slice(done, take)).collect();
            self.append_window(start, take, &mut part);
            let options = RecordBatchOptions::new().with_row_count(Some(take));
            let schema = self.spec.schema.clone();
            let mut batch = RecordBatch::try_new_with_options(schema, part, &options)?;
            if let Some(step) = &self.spec.step {
                batch = step.apply(&batch)?.batch;
            }
            self.output.emit(&batch).await?;
            done += take;
            crate::scheduler::yield_now().await;
        }
        Ok(())
    }

    /// SQL: an aggregate without keys or window over no rows has one row all the same.
    pub(super) async fn emit_total_of_nothing(&self) -> Result<(), DataflowError> {
        let total = self.spec.keys.is_empty() && self.spec.window.is_none();
        let complete = self.clocks.borrow().least() == i64::MAX;
        if !total || !complete || self.emitted.get() || self.worker != TOTAL_WORKER {
            return Ok(());
        }
        let states = self.spec.group_by.of_nothing()?;
        self.emit(NO_WINDOW, state::Columns { keys: Vec::new(), states }).await
    }

    fn append_window(&self, start: i64, rows: usize, columns: &mut Vec<ArrayRef>) {
        let Some(window) = &self.spec.window else { return };
        let DataType::Timestamp(unit, zone) = &window.time_type else { return };
        let end = window.windows.slice_end(start);
        // The last millisecond of the window, or its last tick where a tick is longer.
        let last = end - (ticks_per_second(*unit) / 1_000).max(1);
        for tick in [start, end, last] {
            columns.push(constant(tick, rows, *unit, zone.clone()));
        }
    }
}

fn constant(tick: i64, rows: usize, unit: TimeUnit, zone: Option<Arc<str>>) -> ArrayRef {
    match unit {
        TimeUnit::Second => {
            Arc::new(TimestampSecondArray::from_value(tick, rows).with_timezone_opt(zone))
        }
        TimeUnit::Millisecond => {
            Arc::new(TimestampMillisecondArray::from_value(tick, rows).with_timezone_opt(zone))
        }
        TimeUnit::Microsecond => {
            Arc::new(TimestampMicrosecondArray::from_value(tick, rows).with_timezone_opt(zone))
        }
        TimeUnit::Nanosecond => {
            Arc::new(TimestampNanosecondArray::from_value(tick, rows).with_timezone_opt(zone))
        }
    }
}
