//! `HOP` and `CUMULATE` as lists: the bounds of all windows of a row, for [`super::expanded`].

use std::sync::Arc;

use arrow::array::{Array, Int64Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use dataflow::time::{last_tick, ticks};
use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use state::Windows;

use super::{Bound, BoundOf, Lengths, WindowShape, nanos};
use crate::text::interval::tick_ns;

/// How many windows a row may come out of a step with: a batch grows by as much.
pub(crate) const WINDOWS_OF_ROW_MAX: i64 = 1_000;

/// The grid of windows that are not sessions, in ticks of `unit`; `None` if a length is no whole
/// number of them.
pub(crate) fn windows_of(shape: WindowShape, lengths: Lengths, unit: TimeUnit) -> Option<Windows> {
    let ticks = |ns: i64| ns / tick_ns(unit);
    let Lengths { slide_ns, size_ns, offset_ns } = lengths;
    let (size, slide, offset) = (ticks(size_ns), ticks(slide_ns), ticks(offset_ns));
    match shape {
        WindowShape::Tumble | WindowShape::Hop => Windows::hopping(size, slide, offset),
        WindowShape::Cumulate => Windows::cumulating(size, slide, offset),
        WindowShape::Session => Windows::sessions(size),
    }
}

pub(crate) fn no_windows() -> DataFusionError {
    DataFusionError::Plan("a window's lengths are whole ticks of its time".into())
}

/// `__hop_starts(time, size, offset, slide)` and its kin: a bound of each window of `time`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowsOf {
    shape: WindowShape,
    bound: Bound,
    signature: Signature,
    /// Checks the arguments.
    one: BoundOf,
}

impl WindowsOf {
    pub(super) fn new(shape: WindowShape, bound: Bound) -> Self {
        let signature = Signature::variadic_any(Volatility::Immutable);
        Self { shape, bound, signature, one: BoundOf::new(shape, bound) }
    }
}

impl ScalarUDFImpl for WindowsOf {
    fn name(&self) -> &str {
        self.shape.written(self.bound)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        exec_err!("the type of a window's bounds depends on its arguments")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        let bound = self.one.return_field_from_args(args)?;
        let item = Field::new_list_field(bound.data_type().clone(), true);
        Ok(Arc::new(Field::new(self.name(), DataType::List(Arc::new(item)), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let [time, ColumnarValue::Scalar(size), ColumnarValue::Scalar(offset), slide, ..] =
            &args.args[..]
        else {
            return exec_err!("a window's size is constant");
        };
        let ColumnarValue::Scalar(slide) = slide else {
            return exec_err!("a window's slide is constant");
        };
        let (Some(size_ns), Some(offset_ns), Some(slide_ns)) =
            (nanos(size), nanos(offset), nanos(slide))
        else {
            return exec_err!("a window's size is a number");
        };
        let time = time.to_array(args.number_rows)?;
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return exec_err!("a window needs a time");
        };
        let lengths = Lengths { slide_ns, size_ns, offset_ns };
        let windows = windows_of(self.shape, lengths, *unit).ok_or_else(no_windows)?;
        if windows.size() / windows.slide() > WINDOWS_OF_ROW_MAX {
            return exec_err!("a row has more than {WINDOWS_OF_ROW_MAX} windows");
        }
        let times = ticks(&time).ok_or_else(no_windows)?;
        let (mut bounds, mut counts) = (vec![], vec![]);
        for (row, &at) in times.iter().enumerate() {
            let before = bounds.len();
            if time.is_valid(row) {
                let ends = windows.ends_of(windows.slice_start(at), i64::MIN);
                bounds.extend(ends.map(|end| match self.bound {
                    Bound::Start => windows.window_at(end).start,
                    Bound::End => end,
                    Bound::Time => end.saturating_sub(last_tick(*unit)),
                }));
            }
            counts.push(bounds.len() - before);
        }
        let bounds = cast(&Int64Array::from(bounds), time.data_type())?;
        let item = Arc::new(Field::new_list_field(time.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(counts);
        Ok(ColumnarValue::Array(Arc::new(ListArray::try_new(item, offsets, bounds, None)?)))
    }
}
