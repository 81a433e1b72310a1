//! Scalar functions of Flink that DataFusion has not, or has by another meaning.
//!
//! - `MOD(a, b)` is `a % b`.
//! - `YEAR(t)`, `QUARTER`, `MONTH`, `WEEK`, `DAYOFYEAR`, `DAYOFMONTH`, `DAYOFWEEK`, `HOUR`,
//!   `MINUTE` and `SECOND` are parts of a time, `BIGINT`; Sunday is day 1 of a week.
//! - `DATE_FORMAT(t, 'yyyy-MM-dd')` is a time as text, by a pattern of Java; a pattern with `%` is
//!   that of `to_char`.
//! - `REGEXP_EXTRACT(s, pattern, group)` is what a group matched, group 0 being all; NULL without a
//!   match.
//! - `SPLIT_INDEX(s, separator, at)` is the part at a place, from 0; NULL if there are fewer.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::compute::kernels::numeric::rem;
use arrow::compute::{DatePart, cast, date_part};
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::datetime::to_char;
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;
use regex::Regex;

use crate::expr::columnar::over_arrays;
use crate::text::java_pattern::strftime;

/// Parts of a time, under the names of their functions.
const PARTS: [(&str, DatePart); 10] = [
    ("year", DatePart::Year),
    ("quarter", DatePart::Quarter),
    ("month", DatePart::Month),
    ("week", DatePart::Week),
    ("dayofyear", DatePart::DayOfYear),
    ("dayofmonth", DatePart::Day),
    ("dayofweek", DatePart::DayOfWeekSunday1),
    ("hour", DatePart::Hour),
    ("minute", DatePart::Minute),
    ("second", DatePart::Second),
];

/// All of them.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let parts = (0..PARTS.len()).map(Which::Part);
    let others = [Which::Mod, Which::DateFormat, Which::RegexpExtract, Which::SplitIndex];
    let function = |which| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Function { which, signature }))
    };
    parts.chain(others).map(function).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    /// By its place in [`PARTS`].
    Part(usize),
    Mod,
    DateFormat,
    RegexpExtract,
    SplitIndex,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.which {
            Which::Part(part) => PARTS[part].0,
            Which::Mod => "mod",
            Which::DateFormat => "date_format",
            Which::RegexpExtract => "regexp_extract",
            Which::SplitIndex => "split_index",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let text = || DataType::Utf8;
        match (self.which, given) {
            (Which::Part(_), [time]) if is_time(time) => Ok(vec![time_of(time)]),
            (Which::Mod, [a, b]) => {
                let (a, b) = BinaryTypeCoercer::new(a, &Operator::Modulo, b).get_input_types()?;
                Ok(vec![a, b])
            }
            (Which::DateFormat, [time, _]) if is_time(time) => Ok(vec![time_of(time), text()]),
            (Which::RegexpExtract, [_, _]) => Ok(vec![text(), text()]),
            (Which::RegexpExtract, [_, _, _]) => Ok(vec![text(), text(), DataType::Int64]),
            (Which::SplitIndex, [_, code, _]) if code.is_integer() => {
                Ok(vec![text(), DataType::Int64, DataType::Int64])
            }
            (Which::SplitIndex, [_, _, _]) => Ok(vec![text(), text(), DataType::Int64]),
            (which, _) => plan_err!("{}", which.form()),
        }
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match (self.which, args) {
            (Which::Part(_), _) => Ok(DataType::Int64),
            (Which::Mod, [a, b]) => {
                BinaryTypeCoercer::new(a, &Operator::Modulo, b).get_result_type()
            }
            _ => Ok(DataType::Utf8),
        }
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.which {
            Which::Mod => apply(&args.args[0], &args.args[1], rem),
            Which::DateFormat => {
                args.args[1] = in_strftime(&args.args[1])?;
                if let ColumnarValue::Array(_) = args.args[1] {
                    // A constant time has several forms then, which `to_char` does not know.
                    let arrays = ColumnarValue::values_to_arrays(&args.args)?;
                    args.args = arrays.into_iter().map(ColumnarValue::Array).collect();
                }
                to_char().invoke_with_args(args)
            }
            Which::Part(part) => over_arrays(&args.args, |times| {
                Ok(cast(&date_part(&times[0], PARTS[part].1)?, &DataType::Int64)?)
            }),
            Which::RegexpExtract => {
                over_arrays(&args.args, |arrays| Ok(Arc::new(extracted(arrays)?)))
            }
            Which::SplitIndex => over_arrays(&args.args, |arrays| Ok(Arc::new(parts(arrays)))),
        }
    }
}

impl Which {
    /// The text of the pattern.
    fn form(self) -> String {
        match self {
            Self::Part(part) => format!("write {}(time)", PARTS[part].0.to_uppercase()),
            Self::Mod => "write MOD(a, b)".into(),
            Self::DateFormat => "write DATE_FORMAT(time, 'yyyy-MM-dd HH:mm:ss')".into(),
            Self::RegexpExtract => "write REGEXP_EXTRACT(text, 'pattern', group)".into(),
            Self::SplitIndex => "write SPLIT_INDEX(text, 'separator', place)".into(),
        }
    }
}

fn is_time(given: &DataType) -> bool {
    given.is_temporal() || given.is_string() || given.is_null()
}

/// Text is read as a time.
fn time_of(given: &DataType) -> DataType {
    match given {
        DataType::Null => DataType::Timestamp(TimeUnit::Millisecond, None),
        text if text.is_string() => DataType::Timestamp(TimeUnit::Microsecond, None),
        time => time.clone(),
    }
}

/// The match of a pattern's group in each text.
fn extracted(args: &[ArrayRef]) -> Result<StringArray> {
    let (texts, patterns) = (args[0].as_string::<i32>(), args[1].as_string::<i32>());
    let groups = args.get(2).map(|groups| groups.as_primitive::<Int64Type>());
    let mut compiled: Option<(&str, Regex)> = None;
    let mut all = Vec::with_capacity(texts.len());
    for row in 0..texts.len() {
        let group = value_at(groups, row, 0);
        let (false, false, Some(group)) = (texts.is_null(row), patterns.is_null(row), group) else {
            all.push(None);
            continue;
        };
        let pattern = patterns.value(row);
        if compiled.as_ref().is_none_or(|(known, _)| *known != pattern) {
            compiled = match Regex::new(pattern) {
                Ok(regex) => Some((pattern, regex)),
                Err(error) => return exec_err!("'{pattern}' is no regular expression: {error}"),
            };
        }
        let found = compiled.as_ref().and_then(|(_, regex)| regex.captures(texts.value(row)));
        let group = usize::try_from(group).ok();
        all.push(found.and_then(|found| Some(found.get(group?)?.as_str())));
    }
    Ok(all.into_iter().collect())
}

/// The part of each text at a place.
fn parts(args: &[ArrayRef]) -> StringArray {
    let (texts, places) = (args[0].as_string::<i32>(), args[2].as_primitive::<Int64Type>());
    let part = |row: usize| {
        let place = usize::try_from(value_at(Some(places), row, 0)?).ok()?;
        let text = texts.is_valid(row).then(|| texts.value(row)).filter(|text| !text.is_empty())?;
        if args[1].is_null(row) {
            return None;
        }
        match args[1].as_string_opt::<i32>().map(|separators| separators.value(row)) {
            Some("") => Some(text).filter(|_| place == 0),
            Some(separator) => text.split(separator).nth(place),
            // The code of a character.
            None => {
                let code = args[1].as_primitive::<Int64Type>().value(row);
                let separator = char::from_u32(u32::try_from(code).ok()?)?;
                text.split(separator).nth(place)
            }
        }
    };
    (0..texts.len()).map(part).collect()
}

/// A number of a column, or `default` if there is no such column.
fn value_at(column: Option<&Int64Array>, row: usize, default: i64) -> Option<i64> {
    match column {
        Some(column) => column.is_valid(row).then(|| column.value(row)),
        None => Some(default),
    }
}

/// Patterns of Java as those of `to_char`.
fn in_strftime(patterns: &ColumnarValue) -> Result<ColumnarValue> {
    let known = |pattern: &str| strftime(pattern).or_else(|error| exec_err!("{error}"));
    match patterns {
        ColumnarValue::Scalar(ScalarValue::Utf8(pattern)) => {
            let pattern = pattern.as_deref().map(known).transpose()?;
            Ok(ColumnarValue::Scalar(ScalarValue::Utf8(pattern)))
        }
        ColumnarValue::Array(patterns) => {
            let patterns = patterns.as_string::<i32>().iter();
            let patterns = patterns.map(|pattern| pattern.map(known).transpose());
            let patterns = patterns.collect::<Result<StringArray>>()?;
            Ok(ColumnarValue::Array(Arc::new(patterns)))
        }
        other => Ok(other.clone()),
    }
}
