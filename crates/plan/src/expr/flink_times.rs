//! Functions of Flink over times.
//!
//! - `TIMESTAMPDIFF(MONTH, a, b)` is how many whole units lie between two times, `INT`; a month is
//!   whole at the same day and time, or at the last day of a month that lacks the day.
//! - `TIMESTAMPADD(MONTH, n, t)` is the time `n` units later. Of a `DATE` it is a `DATE`, and a
//!   `TIMESTAMP(3)` where the unit is less than a day.
//! - `FLOOR(t TO MONTH)` and `CEIL(t TO MONTH)` are the beginning of the unit in which a time lies,
//!   and of the next one. Weeks begin with Sundays there, and with Mondays in `date_trunc`.
//! - `TO_TIMESTAMP_LTZ(n, 3)` is the instant `n` milliseconds after 1970, `n` seconds with 0.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::expr::calendar::{DAY_NS, Month, Step, later, nanoseconds};
use crate::expr::columnar::over_arrays;
use crate::text::clauses::flink::{CEIL, FLOOR, TIMESTAMPADD, TIMESTAMPDIFF};
use crate::text::clauses::times::UNITS;

const WEEK_NS: i128 = 7 * DAY_NS;

/// All of them.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 5] {
    [Which::Diff, Which::Add, Which::Floor, Which::Ceil, Which::Instant].map(|which| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Function { which, signature }))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Diff,
    Add,
    Floor,
    Ceil,
    Instant,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.which {
            Which::Diff => TIMESTAMPDIFF,
            Which::Add => TIMESTAMPADD,
            Which::Floor => FLOOR,
            Which::Ceil => CEIL,
            Which::Instant => "to_timestamp_ltz",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let (text, number) = (DataType::Utf8, DataType::Int64);
        let is_number = |given: &DataType| given.is_integer() || given.is_null();
        match (self.which, given) {
            (Which::Diff, [_, from, to]) if is_time(from) && is_time(to) => {
                Ok(vec![text, time_of(from), time_of(to)])
            }
            (Which::Add, [_, count, time]) if is_number(count) && is_time(time) => {
                Ok(vec![text, number, time_of(time)])
            }
            (Which::Floor | Which::Ceil, [_, time]) if is_time(time) => {
                Ok(vec![text, time_of(time)])
            }
            (Which::Instant, [count, digits]) if is_number(count) && is_number(digits) => {
                Ok(vec![number.clone(), number])
            }
            (which, _) => plan_err!("write {}", which.form()),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("the type of {} depends on its unit", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let of = match (self.which, args.arg_fields.last()) {
            (Which::Diff, _) => DataType::Int32,
            (Which::Instant, _) => INSTANT,
            (Which::Add, Some(time)) => {
                let unit = args.scalar_arguments.first().copied().flatten();
                added_type(step(unit)?, time.data_type())
            }
            (_, Some(time)) => time.data_type().clone(),
            (which, None) => return plan_err!("write {}", which.form()),
        };
        Ok(Arc::new(Field::new(self.name(), of, true)))
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        Ok(match (self.which, input) {
            (Which::Floor | Which::Ceil, [_, time]) => time.sort_properties,
            _ => SortProperties::Unordered,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let step = || match &args.args[0] {
            ColumnarValue::Scalar(unit) => step(Some(unit)),
            ColumnarValue::Array(_) => step(None),
        };
        over_arrays(&args.args, |arrays| match self.which {
            Which::Diff => difference(step()?, &arrays[1], &arrays[2]),
            Which::Add => later_by(step()?, &arrays[1], &arrays[2]),
            Which::Floor => rounded(&arrays[1], begin(step()?)),
            Which::Ceil => rounded(&arrays[1], next(step()?)),
            Which::Instant => instant(&arrays[0], &arrays[1]),
        })
    }
}

impl Which {
    fn form(self) -> &'static str {
        match self {
            Self::Diff => "TIMESTAMPDIFF(SECOND, from, to)",
            Self::Add => "TIMESTAMPADD(SECOND, count, time)",
            Self::Floor => "FLOOR(time TO HOUR)",
            Self::Ceil => "CEIL(time TO HOUR)",
            Self::Instant => "TO_TIMESTAMP_LTZ(milliseconds, 3) or TO_TIMESTAMP_LTZ(seconds, 0)",
        }
    }
}

const INSTANT: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

fn is_time(given: &DataType) -> bool {
    given.is_string()
        || given.is_null()
        || matches!(given, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
}

/// Text is read as a time.
fn time_of(given: &DataType) -> DataType {
    match given {
        DataType::Timestamp(..) | DataType::Date32 => given.clone(),
        DataType::Date64 => DataType::Date32,
        text if text.is_string() => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => INSTANT,
    }
}

/// The step of a unit, which the syntax has checked.
fn step(unit: Option<&ScalarValue>) -> Result<Step> {
    let name = unit.and_then(|unit| unit.try_as_str().flatten());
    match name.filter(|name| UNITS.contains(name)).and_then(Step::named) {
        Some(step) => Ok(step),
        None => plan_err!("the unit is one of {}", UNITS.join(", ")),
    }
}

/// The type of a time that is some steps later.
fn added_type(step: Step, time: &DataType) -> DataType {
    match (step, time) {
        (Step::Time(length), DataType::Date32) if length < DAY_NS => INSTANT,
        _ => time.clone(),
    }
}

/// Nanoseconds of a unit of a type of times.
fn unit_ns(time: &DataType) -> i128 {
    match time {
        DataType::Timestamp(unit, _) => nanoseconds(*unit),
        _ => DAY_NS,
    }
}

/// The instants of times, in nanoseconds.
fn instants(times: &ArrayRef) -> Result<impl Fn(usize) -> Option<i128>> {
    let unit = unit_ns(times.data_type());
    let wide = match times.data_type() {
        DataType::Date32 => cast(times, &DataType::Int32)?,
        _ => times.clone(),
    };
    let numbers = cast(&wide, &DataType::Int64)?.as_primitive::<Int64Type>().clone();
    Ok(move |row: usize| numbers.is_valid(row).then(|| i128::from(numbers.value(row)) * unit))
}

/// Instants as times of a type; those between two of its times are the one before.
fn times(instants: impl Iterator<Item = Option<i128>>, of: &DataType) -> Result<ArrayRef> {
    let is_day = *of == DataType::Date32;
    let number = |instant: i128| {
        let number = i64::try_from(instant.div_euclid(unit_ns(of))).ok();
        match number.filter(|&number| !is_day || i32::try_from(number).is_ok()) {
            Some(number) => Ok(number),
            None => exec_err!("the time lies outside of those that a {of} can be"),
        }
    };
    let numbers = instants.map(|instant| instant.map(number).transpose());
    let numbers: ArrayRef = Arc::new(numbers.collect::<Result<Int64Array>>()?);
    let numbers = if is_day { cast(&numbers, &DataType::Int32)? } else { numbers };
    Ok(cast(&numbers, of)?)
}

fn difference(step: Step, from: &ArrayRef, to: &ArrayRef) -> Result<ArrayRef> {
    let rows = from.len();
    let (from, to) = (instants(from)?, instants(to)?);
    let apart = |row: usize| {
        let (Some(from), Some(to)) = (from(row), to(row)) else { return Ok(None) };
        let apart = match step {
            Step::Months(months) => months_between(from, to) / months,
            Step::Time(length) => (to - from) / length,
            Step::Weeks => (to - from) / WEEK_NS,
        };
        match i32::try_from(apart) {
            Ok(apart) => Ok(Some(apart)),
            Err(_) => exec_err!("TIMESTAMPDIFF is an INT, and these times are {apart} units apart"),
        }
    };
    Ok(Arc::new((0..rows).map(apart).collect::<Result<Int32Array>>()?))
}

/// Whole months from one instant to another.
fn months_between(from: i128, to: i128) -> i128 {
    if to < from {
        return -months_between(to, from);
    }
    let months = Month::at(to) - Month::at(from);
    months - i128::from(later(from, months) > to)
}

fn later_by(step: Step, counts: &ArrayRef, from: &ArrayRef) -> Result<ArrayRef> {
    let counts = counts.as_primitive::<Int64Type>();
    let instants = instants(from)?;
    let added = |row: usize| {
        let count = i128::from(counts.is_valid(row).then(|| counts.value(row))?);
        let instant = instants(row)?;
        Some(match step {
            Step::Months(months) => later(instant, count * months),
            Step::Time(length) => instant + count * length,
            Step::Weeks => instant + count * WEEK_NS,
        })
    };
    times((0..from.len()).map(added), &added_type(step, from.data_type()))
}

fn rounded(given: &ArrayRef, round: impl Fn(i128) -> i128) -> Result<ArrayRef> {
    let instants = instants(given)?;
    times((0..given.len()).map(|row| instants(row).map(&round)), given.data_type())
}

/// The beginning of the step in which an instant lies.
fn begin(step: Step) -> impl Fn(i128) -> i128 {
    move |instant| match step {
        // The first Sunday of 1970 was its fourth day.
        Step::Weeks => instant - (instant - 3 * DAY_NS).rem_euclid(WEEK_NS),
        step => step.begin(instant, 0),
    }
}

/// The instant itself where a step begins with it, or else the beginning of the next one.
fn next(step: Step) -> impl Fn(i128) -> i128 {
    move |instant| {
        let begin = begin(step)(instant);
        match step {
            _ if begin == instant => instant,
            Step::Months(months) => later(begin, months),
            Step::Time(length) => begin + length,
            Step::Weeks => begin + WEEK_NS,
        }
    }
}

fn instant(counts: &ArrayRef, digits: &ArrayRef) -> Result<ArrayRef> {
    let (counts, digits) = (counts.as_primitive::<Int64Type>(), digits.as_primitive::<Int64Type>());
    let millis = |row: usize| {
        if counts.is_null(row) || digits.is_null(row) {
            return Ok(None);
        }
        let factor = match digits.value(row) {
            0 => 1_000,
            3 => 1,
            other => return exec_err!("TO_TIMESTAMP_LTZ takes 0 or 3 digits, not {other}"),
        };
        match counts.value(row).checked_mul(factor) {
            Some(millis) => Ok(Some(millis)),
            None => exec_err!("{} seconds lie outside of all times", counts.value(row)),
        }
    };
    let millis = (0..counts.len()).map(millis).collect::<Result<Int64Array>>()?;
    Ok(cast(&millis, &INSTANT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instant of a day of 2024, from 1 January on, and an hour.
    fn at(day: i128, hour: i128) -> i128 {
        (19_723 + day) * DAY_NS + hour * DAY_NS / 24
    }

    #[test]
    fn months_are_whole_at_the_same_day_and_time() {
        // 31 January to 29 February, the last day of its month.
        assert_eq!(months_between(at(30, 0), at(58, 23)), 0);
        assert_eq!(months_between(at(30, 0), at(59, 0)), 1);
        assert_eq!(months_between(at(30, 1), at(59, 0)), 0);
        assert_eq!(months_between(at(59, 0), at(30, 0)), -1);
        assert_eq!(months_between(at(0, 0), at(366, 0)), 12);
        assert_eq!(months_between(at(0, 1), at(366, 0)), 11);
    }

    #[test]
    fn a_time_is_between_the_begin_of_its_unit_and_the_next_one() {
        for unit in UNITS {
            let step = step(Some(&ScalarValue::from(unit))).unwrap();
            for time in (-1_000..1_000).map(|number| number * 123_456_789_012_345_i128) {
                let (begin, end) = (begin(step)(time), next(step)(time));
                assert!(begin <= time && time <= end, "{unit}: {begin} {time} {end}");
                assert_eq!((super::begin(step)(begin), next(step)(end)), (begin, end), "{unit}");
                assert!(begin == end || super::begin(step)(end - 1) == begin, "{unit}: {time}");
            }
        }
        // 1 January 2024 was a Monday.
        let week = step(Some(&ScalarValue::from("week"))).unwrap();
        assert_eq!((begin(week)(at(0, 5)), next(week)(at(0, 5))), (at(-1, 0), at(6, 0)));
    }
}
