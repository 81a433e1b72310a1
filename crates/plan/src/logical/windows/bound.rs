//! Windows as they stand in a plan: calls of functions that give their bounds.

use std::cell::Cell;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::unary;
use arrow::datatypes::{
    ArrowTimestampType, DataType, Field, FieldRef, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use dataflow::time::last_tick;
use datafusion::common::{ScalarValue, exec_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use state::vector::least_greatest;

use super::{Bound, Site, WindowShape};
use crate::logical::errors::PlanError;
use crate::text::interval::tick_ns;
use crate::text::types::sql_name;

/// A window as it stands in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowCall {
    pub(crate) shape: WindowShape,
    pub(crate) bound: Bound,
    pub(crate) time: Expr,
    /// Of sessions what they are of.
    pub(crate) keys: Vec<Expr>,
    pub(crate) lengths: Lengths,
    /// How long rows may be late, if that was written.
    pub(crate) lateness_ns: Option<i64>,
}

/// Where the windows of a function begin and end, as far as that does not depend on rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lengths {
    /// The slide or step; of other windows, the size.
    pub(crate) slide_ns: i64,
    /// The size; of sessions, the gap.
    pub(crate) size_ns: i64,
    pub(crate) offset_ns: i64,
}

impl WindowCall {
    /// The window that an expression computes, if it is a call of one of the functions here.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        let Expr::ScalarFunction(call) = expr else { return None };
        let (shape, bound) = WindowShape::of(call.func.name())?;
        let [time, Expr::Literal(size, _), Expr::Literal(offset, _), rest @ ..] = &call.args[..]
        else {
            return None;
        };
        let (size_ns, offset_ns) = (nanos(size)?, nanos(offset)?);
        let (slide_ns, keys, lateness) = match (shape, rest) {
            (WindowShape::Session, [lateness, keys @ ..]) => {
                (size_ns, keys.to_vec(), Some(lateness))
            }
            (WindowShape::Tumble, rest) => (size_ns, vec![], rest.first()),
            (_, [Expr::Literal(slide, _), rest @ ..]) => (nanos(slide)?, vec![], rest.first()),
            _ => return None,
        };
        let lateness_ns = lateness.and_then(written_ns);
        let lengths = Lengths { slide_ns, size_ns, offset_ns };
        Some(Self { shape, bound, time: time.clone(), keys, lengths, lateness_ns })
    }

    /// A bound of the same window.
    pub(crate) fn expr(&self, bound: Bound) -> Expr {
        let udf = ScalarUDF::from(BoundOf::new(self.shape, bound));
        let (time, keys) = (vec![self.time.clone()], self.keys.clone());
        let lengths = arguments(self.shape, self.lengths, self.lateness_ns);
        let arguments = [time, lengths, keys].concat();
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), arguments))
    }

    /// Whether both are of the same window.
    pub(crate) fn same_window(&self, other: &Self) -> bool {
        let bound = self.bound;
        *self == Self { bound, ..other.clone() }
    }

    /// The sites that it may come from, those over a time of its name first.
    pub(crate) fn sites<'a>(&self, sites: &'a [Site]) -> impl Iterator<Item = &'a Site> {
        let Lengths { slide_ns, size_ns, offset_ns } = self.lengths;
        let shape = self.shape;
        let fits = move |site: &&Site| {
            site.shape == shape
                && site.size.ns == size_ns
                && site.offset.map_or(0, |o| o.ns) == offset_ns
                && site.slide.is_none_or(|slide| slide.ns == slide_ns)
        };
        let named = |site: &&Site| match &self.time {
            Expr::Column(column) => column.name == site.time.text,
            _ => false,
        };
        let fitting: Vec<&Site> = sites.iter().filter(fits).collect();
        let (first, others): (Vec<_>, Vec<_>) = fitting.into_iter().partition(named);
        first.into_iter().chain(others)
    }
}

/// The arguments of a call between its time and its keys.
pub(super) fn arguments(
    shape: WindowShape,
    Lengths { slide_ns, size_ns, offset_ns }: Lengths,
    lateness_ns: Option<i64>,
) -> Vec<Expr> {
    let lateness = lateness_ns.map(|ns| ns.to_string());
    // Keys come behind the lateness, so that there always is one.
    let lateness = lateness.or_else(|| (shape == WindowShape::Session).then(String::new));
    let slide = matches!(shape, WindowShape::Hop | WindowShape::Cumulate).then_some(slide_ns);
    let lengths = [Some(size_ns), Some(offset_ns), slide].into_iter().flatten();
    let lengths = lengths.map(|ns| ns.to_string()).chain(lateness);
    lengths.map(|length| Expr::Literal(ScalarValue::from(length), None)).collect()
}

/// The column in SQL of the bound that a function of this name gives.
pub(crate) fn bound_named(function: &str) -> Option<&'static str> {
    let of = |bound: Bound| {
        let names = |shape: &WindowShape| [shape.function(bound), shape.written(bound)];
        WindowShape::ALL.iter().flat_map(names).any(|name| name == function).then(|| bound.column())
    };
    Bound::ALL.into_iter().find_map(of)
}

/// The lateness that is written in a call of a function here.
pub(crate) fn lateness_of(expr: &Expr) -> Option<i64> {
    WindowCall::of(expr)?.lateness_ns
}

fn written_ns(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(value, _) => nanos(value),
        _ => None,
    }
}

pub(crate) fn nanos(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Utf8(Some(text)) => text.parse().ok(),
        _ => None,
    }
}

/// `__tumble_…(time, size, offset)`: a bound of the window of `time`, of the same type;
/// `__hop_…(time, size, offset, slide)` and `__cumulate_…(time, size, offset, step)`, which stand
/// in relations for all windows of a row; `__session_…(time, gap, 0, lateness, keys…)`, which
/// stands there for the session of a row, with an empty string for no lateness. The others have a
/// lateness at the end if one was written.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct BoundOf {
    shape: WindowShape,
    bound: Bound,
    signature: Signature,
}

impl BoundOf {
    pub(crate) fn new(shape: WindowShape, bound: Bound) -> Self {
        // A bound that cannot be computed must not be folded where a time is constant.
        let volatility = match shape {
            WindowShape::Tumble => Volatility::Immutable,
            WindowShape::Hop | WindowShape::Cumulate | WindowShape::Session => Volatility::Stable,
        };
        Self { shape, bound, signature: Signature::variadic_any(volatility) }
    }
}

impl ScalarUDFImpl for BoundOf {
    fn name(&self) -> &str {
        self.shape.function(self.bound)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        exec_err!("the type of a window's bound depends on its arguments")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let Some(time) = args.arg_fields.first() else {
            return exec_err!("a window needs a time");
        };
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return Err(PlanError::WindowOf(sql_name(time.data_type())).into());
        };
        // Behind time and lengths are the keys of sessions.
        let count = if self.shape == WindowShape::Session { 3 } else { 4 };
        let lengths = args.scalar_arguments.iter().skip(1).take(count).flatten();
        if lengths.filter_map(|ns| nanos(ns)).any(|ns| ns % tick_ns(*unit) != 0) {
            return Err(PlanError::WindowFiner(*unit, sql_name(time.data_type())).into());
        }
        Ok(Arc::new(Field::new(self.name(), time.data_type().clone(), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.shape != WindowShape::Tumble {
            return exec_err!("{} gives a row no window of its own", self.shape.word());
        }
        let [time, ColumnarValue::Scalar(size), ColumnarValue::Scalar(offset), ..] = &args.args[..]
        else {
            return exec_err!("a window's size is constant");
        };
        let (Some(size), Some(offset)) = (nanos(size), nanos(offset)) else {
            return exec_err!("a window's size is a number");
        };
        let is_constant = matches!(time, ColumnarValue::Scalar(_));
        let time = time.to_array(args.number_rows)?;
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return exec_err!("a window needs a time");
        };
        let (bounds, is_same) = match unit {
            TimeUnit::Second => bounds::<TimestampSecondType>(&time, self.bound, size, offset),
            TimeUnit::Millisecond => {
                bounds::<TimestampMillisecondType>(&time, self.bound, size, offset)
            }
            TimeUnit::Microsecond => {
                bounds::<TimestampMicrosecondType>(&time, self.bound, size, offset)
            }
            TimeUnit::Nanosecond => {
                bounds::<TimestampNanosecondType>(&time, self.bound, size, offset)
            }
        }?;
        Ok(if is_constant || is_same {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&bounds, 0)?)
        } else {
            ColumnarValue::Array(bounds)
        })
    }
}

/// Computes a bound for each time; if it is the same for all, which are not NULL, only one.
fn bounds<T: ArrowTimestampType>(
    time: &ArrayRef,
    bound: Bound,
    size_ns: i64,
    offset_ns: i64,
) -> Result<(ArrayRef, bool)> {
    let tick = tick_ns(T::UNIT);
    let (size, offset) = (size_ns / tick, offset_ns / tick);
    if size * tick != size_ns || offset * tick != offset_ns {
        return Err(DataFusionError::Execution("a window is finer than its time".into()));
    }
    let shift = match bound {
        Bound::Start => 0,
        Bound::End => size,
        Bound::Time => size - last_tick(T::UNIT),
    };
    let start_of = |t: i64| t.wrapping_sub(t.wrapping_sub(offset).rem_euclid(size));
    // Most rows are of the window of the row before: a look is cheaper than a division.
    let start = Cell::new(start_of(0));
    let of = |t: i64| {
        if t.wrapping_sub(start.get()) as u64 >= size as u64 {
            start.set(start_of(t));
        }
        start.get().wrapping_add(shift)
    };
    let ticks = arrow::compute::cast(time, &DataType::Int64)?;
    let mut ticks = ticks.as_primitive::<Int64Type>().clone();
    let range = least_greatest(ticks.values()).filter(|_| ticks.null_count() == 0);
    let is_same = range.is_some_and(|(least, most)| start_of(least) == start_of(most));
    if is_same {
        ticks = ticks.slice(0, 1);
    }
    let values = unary::<_, _, T>(&ticks, of);
    let zone = match time.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    Ok((Arc::new(values.with_timezone_opt(zone)) as ArrayRef, is_same))
}

#[cfg(test)]
mod tests {
    use arrow::array::TimestampMillisecondArray;

    use super::*;

    #[test]
    fn windows_start_at_multiples_of_their_size_also_before_1970() {
        let of = |t: i64, bound, offset| {
            let time: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(t), None]));
            let of = bounds::<TimestampMillisecondType>(&time, bound, 10_000_000, offset);
            let (of, is_same) = of.expect("bounds");
            assert!(of.is_null(1) && !is_same);
            of.as_primitive::<TimestampMillisecondType>().value(0)
        };
        assert_eq!(of(25, Bound::Start, 0), 20);
        assert_eq!(of(25, Bound::End, 0), 30);
        assert_eq!(of(25, Bound::Time, 0), 29);
        assert_eq!(of(-1, Bound::Start, 0), -10);
        assert_eq!(of(25, Bound::Start, 6_000_000), 16);
        assert_eq!(of(25, Bound::Start, -14_000_000), 16);
    }

    #[test]
    fn a_row_has_its_own_window_whatever_the_row_before_has() {
        let times = [25, 29, 30, 21, -1, -10, 0, 9, 8, 40, 19, 10, 12];
        let time: ArrayRef = Arc::new(TimestampMillisecondArray::from(times.to_vec()));
        let starts = bounds::<TimestampMillisecondType>(&time, Bound::Start, 10_000_000, 0);
        let (starts, is_same) = starts.expect("bounds");
        assert!(!is_same);
        let expected = times.map(|time: i64| 10 * time.div_euclid(10));
        assert_eq!(starts.as_primitive::<TimestampMillisecondType>().values(), &expected);
    }

    #[test]
    fn of_a_batch_in_one_window_there_is_one_bound() {
        let of = |times: &[i64]| {
            let time: ArrayRef = Arc::new(TimestampMillisecondArray::from(times.to_vec()));
            let of = bounds::<TimestampMillisecondType>(&time, Bound::End, 10_000_000, 0);
            let (of, is_same) = of.expect("bounds");
            (of.as_primitive::<TimestampMillisecondType>().values().to_vec(), is_same)
        };
        assert_eq!(of(&[25, 20, 29]), (vec![30], true));
        assert_eq!(of(&[-10, -1]), (vec![0], true));
        assert_eq!(of(&[25, 19]), (vec![30, 20], false));
        assert_eq!(of(&[25, 30]), (vec![30, 40], false));
        assert_eq!(of(&[]), (vec![], false));
    }
}
