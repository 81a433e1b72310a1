//! The steps of streams: functions of batches, fused on the edge to the next operator.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, PrimitiveArray, RecordBatch, RecordBatchOptions, UInt32Array,
};
use arrow::compute::{filter_record_batch, prep_null_mask_filter, take};
use arrow::datatypes::{
    DataType, SchemaRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use dataflow::error::DataflowError;
use dataflow::job::{Origin, Property, Step, Stepped};
use dataflow::time::{last_tick, ticks};
use state::Windows;

/// Says which rows of a batch stay: NULL is no.
pub(crate) type Predicate =
    dyn Fn(&RecordBatch) -> Result<BooleanArray, DataflowError> + Send + Sync;

/// New columns, and of which row of the batch each of their rows is made.
pub type Expanded = (Option<UInt32Array>, Vec<ArrayRef>);

/// Makes new columns of a batch.
pub(crate) type Function = dyn Fn(&RecordBatch) -> Result<Expanded, DataflowError> + Send + Sync;

/// Lets some rows through.
pub(crate) struct Filter {
    pub(crate) schema: SchemaRef,
    pub(crate) predicate: Box<Predicate>,
    pub(crate) text: Property,
}

impl Step for Filter {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let mask = (self.predicate)(batch)?;
        if mask.len() != batch.num_rows() {
            let (got, rows) = (mask.len(), batch.num_rows());
            let message = format!("a filter gave {got} values for {rows} rows");
            return Err(DataflowError::Expression(message));
        }
        let mask = if mask.null_count() == 0 { mask } else { prep_null_mask_filter(&mask) };
        if mask.true_count() == mask.len() {
            return Ok(Stepped { batch: batch.clone(), origin: Origin::All });
        }
        Ok(Stepped { batch: filter_record_batch(batch, &mask)?, origin: Origin::Mask(mask) })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![self.text.clone()]
    }
}

/// Keeps some columns and makes new ones behind them.
pub(crate) struct Expand {
    pub(crate) schema: SchemaRef,
    /// Of the input.
    pub(crate) keep: Vec<usize>,
    /// Without one there are no new columns.
    pub(crate) function: Option<Box<Function>>,
    pub(crate) text: Property,
}

impl Step for Expand {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let (origin, new) = match &self.function {
            Some(function) => function(batch)?,
            None => (None, vec![]),
        };
        let rows = origin.as_ref().map_or(batch.num_rows(), |origin| origin.len());
        let kept = self.keep.iter().map(|&column| batch.column(column));
        let mut columns: Vec<ArrayRef> = match &origin {
            None => kept.cloned().collect(),
            Some(origin) => {
                kept.map(|column| take(column, origin, None)).collect::<Result<_, _>>()?
            }
        };
        columns.extend(new);
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        Ok(Stepped { batch, origin: origin.map_or(Origin::All, Origin::Taken) })
    }

    fn rows_of_one(&self) -> Option<u64> {
        self.function.is_none().then_some(1)
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        self.keep.get(output).copied()
    }

    fn describe(&self) -> Vec<Property> {
        vec![self.text.clone()]
    }
}

/// The windows of rows, as columns: start, end, and the window's time. A row of several windows
/// comes several times, one of none not at all.
pub(crate) fn windows_of(
    column: usize,
    windows: Windows,
) -> impl Fn(&RecordBatch) -> Result<Expanded, DataflowError> {
    move |batch| {
        let times = batch.column(column);
        let (Some(all), DataType::Timestamp(unit, zone)) = (ticks(times), times.data_type()) else {
            return Err(DataflowError::Expression("a time is not a timestamp".into()));
        };
        let (mut rows, mut starts, mut ends) = (vec![], vec![], vec![]);
        for (row, &time) in all.iter().enumerate().filter(|(row, _)| times.is_valid(*row)) {
            for end in windows.ends_of(windows.slice_start(time), i64::MIN) {
                rows.push(row as u32);
                starts.push(windows.window_at(end).start);
                ends.push(end);
            }
        }
        let last: Vec<i64> = ends.iter().map(|end| end - last_tick(*unit)).collect();
        let columns = [starts, ends, last].map(|ticks| timestamps(ticks, *unit, zone.clone()));
        let in_order = rows.len() == all.len() && rows.iter().copied().eq(0..all.len() as u32);
        let origin = (!in_order).then(|| UInt32Array::from(rows));
        Ok((origin, columns.to_vec()))
    }
}

fn timestamps(ticks: Vec<i64>, unit: TimeUnit, zone: Option<Arc<str>>) -> ArrayRef {
    macro_rules! of {
        ($unit:ty) => {
            Arc::new(PrimitiveArray::<$unit>::from(ticks).with_timezone_opt(zone))
        };
    }
    match unit {
        TimeUnit::Second => of!(TimestampSecondType),
        TimeUnit::Millisecond => of!(TimestampMillisecondType),
        TimeUnit::Microsecond => of!(TimestampMicrosecondType),
        TimeUnit::Nanosecond => of!(TimestampNanosecondType),
    }
}
