//! `date_trunc` and `date_bin` of any time that there is.
//!
//! DataFusion's own go by way of nanoseconds since 1970, which end in the year 2262: beyond it they
//! fail, or give NULL. These have their names and meaning, and compute in numbers that hold every
//! time. Times of a day, and days of a time zone, are left to DataFusion.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, IntervalUnit, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::datetime::{date_bin, date_trunc};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::expr::columnar::over_arrays;

const SECOND_NS: i128 = 1_000_000_000;
pub(super) const DAY_NS: i128 = 86_400 * SECOND_NS;

/// Both of them.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 2] {
    let function = |which, datafusion| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Function { which, datafusion, signature }))
    };
    [function(Which::Trunc, date_trunc()), function(Which::Bin, date_bin())]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Trunc,
    Bin,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    which: Which,
    datafusion: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.datafusion.name()
    }

    fn aliases(&self) -> &[String] {
        self.datafusion.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        match (self.which, given) {
            (Which::Trunc, [unit, time]) if is_text(unit) && is_time(time) => {
                Ok(vec![DataType::Utf8, time_of(time)])
            }
            (Which::Bin, [stride, times @ ..])
                if is_stride(stride)
                    && matches!(times.len(), 1 | 2)
                    && times.iter().all(is_time) =>
            {
                let stride = DataType::Interval(IntervalUnit::MonthDayNano);
                Ok([stride].into_iter().chain(times.iter().map(time_of)).collect())
            }
            (Which::Trunc, _) => plan_err!("write DATE_TRUNC('hour', time)"),
            (Which::Bin, _) => plan_err!("write DATE_BIN(INTERVAL '15' MINUTE, time, origin)"),
        }
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match args.get(1) {
            Some(time) => Ok(time.clone()),
            None => plan_err!("{} takes a time", self.name()),
        }
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        self.datafusion.output_ordering(input)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.datafusion.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let instants = args.args.get(1).and_then(|time| match time.data_type() {
            DataType::Timestamp(unit, zone) => Some((nanoseconds(unit), zone.is_some())),
            _ => None,
        });
        let step = match (self.which, instants, args.args.first()) {
            (Which::Trunc, Some((_, false)), Some(ColumnarValue::Scalar(unit))) => {
                unit.try_as_str().flatten().and_then(Step::named)
            }
            (Which::Bin, Some(_), Some(ColumnarValue::Scalar(stride))) => Step::stride(stride)?,
            _ => None,
        };
        let (Some(step), Some((unit_ns, _))) = (step, instants) else {
            return self.datafusion.invoke_with_args(args);
        };
        // The step, which is left out, is a constant.
        over_arrays(&args.args[1..], |arrays| step.of(&arrays[0], unit_ns, arrays.get(1)))
    }
}

fn is_text(given: &DataType) -> bool {
    given.is_string() || given.is_null()
}

fn is_stride(given: &DataType) -> bool {
    is_text(given) || matches!(given, DataType::Interval(_) | DataType::Duration(_))
}

fn is_time(given: &DataType) -> bool {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    is_text(given) || matches!(given, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..))
}

/// Days and text are read as instants.
fn time_of(given: &DataType) -> DataType {
    match given {
        DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) => given.clone(),
        _ => DataType::Timestamp(TimeUnit::Microsecond, None),
    }
}

pub(super) fn nanoseconds(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => SECOND_NS,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// How far one bin begins behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Months(i128),
    /// Nanoseconds, from the origin on.
    Time(i128),
    /// Weeks, which begin with a Monday.
    Weeks,
}

impl Step {
    /// That of a unit, `None` if it is unknown.
    pub(super) fn named(unit: &str) -> Option<Self> {
        Some(match unit.to_lowercase().as_str() {
            "year" => Self::Months(12),
            "quarter" => Self::Months(3),
            "month" => Self::Months(1),
            "week" => Self::Weeks,
            "day" => Self::Time(DAY_NS),
            "hour" => Self::Time(3600 * SECOND_NS),
            "minute" => Self::Time(60 * SECOND_NS),
            "second" => Self::Time(SECOND_NS),
            "millisecond" => Self::Time(1_000_000),
            "microsecond" => Self::Time(1_000),
            _ => return None,
        })
    }

    /// That of an interval, `None` if it is NULL.
    fn stride(stride: &ScalarValue) -> Result<Option<Self>> {
        let ScalarValue::IntervalMonthDayNano(Some(stride)) = stride else { return Ok(None) };
        let time = i128::from(stride.days) * DAY_NS + i128::from(stride.nanoseconds);
        match (stride.months, time) {
            (1.., 0) => Ok(Some(Self::Months(stride.months.into()))),
            (0, 1..) => Ok(Some(Self::Time(time))),
            _ => exec_err!("date_bin takes an interval above 0, of months or of days and times"),
        }
    }

    /// The beginning of the bin of each time. `origins`, if there are any, are beginnings.
    fn of(self, times: &ArrayRef, unit_ns: i128, origins: Option<&ArrayRef>) -> Result<ArrayRef> {
        let origin_ns = match origins.map(|origins| origins.data_type()) {
            Some(DataType::Timestamp(unit, _)) => nanoseconds(*unit),
            _ => 1,
        };
        let numbers = |array: &ArrayRef| cast(array, &DataType::Int64);
        let (numbered, origins) = (numbers(times)?, origins.map(numbers).transpose()?);
        let values = numbered.as_primitive::<Int64Type>();
        let origins = origins.as_ref().map(|origins| origins.as_primitive::<Int64Type>());
        let begin = |row: usize| {
            let origin = match origins {
                Some(origins) if origins.is_null(row) => return Ok(None),
                Some(origins) => i128::from(origins.value(row)) * origin_ns,
                None => 0,
            };
            if values.is_null(row) {
                return Ok(None);
            }
            let time = i128::from(values.value(row)) * unit_ns;
            let begin = self.begin(time, origin).div_euclid(unit_ns);
            match i64::try_from(begin) {
                Ok(begin) => Ok(Some(begin)),
                Err(_) => exec_err!("the time {} begins before all times", values.value(row)),
            }
        };
        let begins = (0..values.len()).map(begin).collect::<Result<Int64Array>>()?;
        Ok(cast(&begins, times.data_type())?)
    }

    pub(super) fn begin(self, time: i128, origin: i128) -> i128 {
        match self {
            Self::Time(step) => time - (time - origin).rem_euclid(step),
            Self::Weeks => {
                // The first day of 1970 was a Thursday.
                let day = time.div_euclid(DAY_NS);
                (day - (day + 3).rem_euclid(7)) * DAY_NS
            }
            Self::Months(step) => {
                let apart = Month::at(time) - Month::at(origin);
                let months = apart.div_euclid(step) * step;
                match later(origin, months) {
                    begin if begin > time => later(origin, months - step),
                    begin => begin,
                }
            }
        }
    }
}

/// The instant a number of months later, on the last day of a month that is too short.
pub(super) fn later(instant: i128, months: i128) -> i128 {
    let (Month(month), day) = Month::of(instant.div_euclid(DAY_NS));
    let (first, next) = (Month(month + months).first_day(), Month(month + months + 1).first_day());
    (first + day.min(next - first - 1)) * DAY_NS + instant.rem_euclid(DAY_NS)
}

/// A month, counted from January of the year 0, of the calendar of today at all times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Month(i128);

impl Month {
    /// The month of a day since 1970, and which of its days that is, from 0.
    fn of(day: i128) -> (Self, i128) {
        // 400 years are 4,800 months of 146,097 days; the lengths of months move it by one at most.
        let near = ((day + 719_528) * 4_800).div_euclid(146_097);
        let begins = |month: &i128| Self(*month).first_day() <= day;
        let month = Self((near - 1..=near + 1).rev().find(begins).unwrap_or(near - 2));
        (month, day - month.first_day())
    }

    /// The number of the month of an instant.
    pub(super) fn at(instant: i128) -> i128 {
        Self::of(instant.div_euclid(DAY_NS)).0.0
    }

    /// Its first day, in days since 1970.
    fn first_day(self) -> i128 {
        // Years that begin with March end with the day that some lack.
        let months = self.0 - 2;
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12));
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        365 * year + leap_days + (153 * month + 2) / 5 - 719_468
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_follow_each_other_without_a_gap() {
        for day in -800_000..3_000_000 {
            let (month, behind) = Month::of(day);
            assert!((0..31).contains(&behind), "{day}: {behind}");
            assert_eq!(month.first_day() + behind, day);
            let next = Month::of(day + 1);
            let follows = next == (month, behind + 1) || next == (Month(month.0 + 1), 0);
            assert!(follows, "{day}: {month:?} {behind}, then {next:?}");
        }
        assert_eq!(Month::of(0), (Month(1970 * 12), 0));
        assert_eq!(Month::of(19_782), (Month(2024 * 12 + 1), 28));
        assert_eq!(Month::of(2_932_896), (Month(9999 * 12 + 11), 30));
    }

    #[test]
    fn bins_of_months_begin_at_the_day_of_their_origin() {
        let day = |day: i128| day * DAY_NS;
        // From 31 January 2024 on: 29 February, 31 March.
        let begin = |at: i128| Step::Months(1).begin(day(at), day(19_753)) / DAY_NS;
        assert_eq!(
            [19_752, 19_753, 19_781, 19_782, 19_812].map(begin),
            [19_722, 19_753, 19_753, 19_782, 19_782]
        );
    }
}
