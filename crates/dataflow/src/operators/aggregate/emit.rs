//! Gives out the result rows of a window.

use std::iter::repeat_n;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, StringArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use state::epoch::END_OF_STREAM;
use state::{Triggered, WindowBounds};

use super::{Grouping, sessions};
use crate::error::DataflowError;
use crate::exchange::Member;
use crate::job::FINAL;
use crate::operators::downstream::Downstream;
use crate::rows::Rows;
use crate::rows::time::last_tick;

/// The worker that gives out the one row of an aggregate without keys over no rows.
const TOTAL_WORKER: u32 = 0;

impl<D: Downstream> Grouping<D> {
    /// Assembles keys, values and window columns, and emits. `kind` is [`EARLY`](crate::job::EARLY)
    /// or [`FINAL`].
    pub(super) async fn emit(
        &self,
        fired: Vec<Triggered>,
        kind: &str,
    ) -> Result<(), DataflowError> {
        let batches = fired.into_iter().map(|fired| self.assemble(fired, kind));
        let batches = batches.collect::<Result<Vec<_>, _>>()?;
        let batch = match batches.as_slice() {
            [one] => one.clone(),
            many => concat_batches(&self.spec.schema, many)?,
        };
        self.emitted.set(self.emitted.get() || batch.num_rows() > 0);
        let mut done = 0;
        while done < batch.num_rows() && !self.behind.is_satisfied() {
            let take = self.rows_max.min(batch.num_rows() - done);
            self.behind.push(Rows::on_time(batch.slice(done, take))).await?;
            done += take;
            crate::runtime::scheduler::yield_now().await;
        }
        Ok(())
    }

    fn assemble(&self, fired: Triggered, kind: &str) -> Result<RecordBatch, DataflowError> {
        let rows = fired.columns.rows();
        let mut arrays = fired.columns.keys;
        let mut values = fired.columns.states;
        match self.spec.window.as_ref().and_then(|window| window.windows.gap()) {
            Some(gap) => {
                let bounds = sessions::bounds_of(&mut values, gap)?;
                arrays.extend(values.into_iter().chain(bounds));
            }
            None => {
                arrays.extend(values);
                self.append_window(fired.window, rows, &mut arrays);
            }
        }
        if self.spec.early_ns.is_some() {
            arrays.push(Arc::new(StringArray::from_iter_values(repeat_n(kind, rows))));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.spec.schema.clone(), arrays, &options)?)
    }

    /// Whether this worker gives out the one row of a grouping without keys or window.
    pub(super) fn is_total(&self) -> bool {
        let total = self.spec.keys.is_empty() && self.spec.window.is_none();
        total && self.instance.worker == TOTAL_WORKER
    }

    /// SQL: an aggregate without keys or window over no rows has one row all the same.
    pub(super) async fn emit_total_of_nothing(&self) -> Result<(), DataflowError> {
        let complete = self.least() == END_OF_STREAM;
        if !self.is_total() || !complete || self.emitted.get() {
            return Ok(());
        }
        let states = self.spec.group_by.of_nothing()?;
        let columns = state::GroupColumns { keys: Vec::new(), states };
        self.emit(vec![Triggered { window: None, first: true, columns }], FINAL).await
    }

    fn append_window(&self, of: Option<WindowBounds>, rows: usize, columns: &mut Vec<ArrayRef>) {
        let (Some(window), Some(of)) = (&self.spec.window, of) else { return };
        let DataType::Timestamp(unit, zone) = &window.time_type else { return };
        let last = of.end - last_tick(*unit);
        for tick in [of.start, of.end, last] {
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
