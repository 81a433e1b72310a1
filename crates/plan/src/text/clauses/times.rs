//! Checks of lengths of time and of the parts of a time.

use std::str::FromStr;

use arrow::compute::kernels::cast_utils::IntervalUnit;
use datafusion::sql::sqlparser::ast::{
    DateTimeField, Expr, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    Interval, Spanned, Value, ValueWithSpan,
};

use super::{At, Checked, Refused};

/// The parts that DataFusion's `date_part` knows besides the units of intervals.
const PARTS: [&str; 7] = ["isoyear", "qtr", "quarter", "doy", "dow", "isodow", "epoch"];

/// The units of functions that cut times, count between them or add to them.
pub(crate) const UNITS: [&str; 10] = [
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "microsecond",
];

pub(super) const UNITS_HINT: &str = "there are year, quarter, month, week, day, hour, minute, \
                                     second, millisecond, microsecond";

/// Refuses a length that is computed, and a number without a unit: it would be seconds, and what
/// was meant for a unit, such as `MINUTS`, an alias.
pub(super) fn interval(interval: &Interval) -> Checked {
    let Interval {
        value,
        leading_field,
        leading_precision: _,
        last_field: _,
        fractional_seconds_precision: _,
    } = interval;
    if !matches!(**value, Expr::Value(_) | Expr::BinaryOp { .. } | Expr::UnaryOp { .. }) {
        let message = "the length of an INTERVAL is a number or a text";
        let hint = "to compute it: n * INTERVAL '1' MINUTE";
        return Refused::with_hint("INTERVAL", At::Before(value.span()), message, hint);
    }
    let Expr::Value(ValueWithSpan { value, span }) = &**value else { return Ok(()) };
    let (Value::SingleQuotedString(text) | Value::Number(text, _)) = value else { return Ok(()) };
    if leading_field.is_some() || text.trim().parse::<f64>().is_err() {
        return Ok(());
    }
    let message = "an INTERVAL of a number takes a unit";
    Refused::with_hint(text, At::Here(*span), message, "write INTERVAL '5' MINUTE")
}

/// Refuses `EXTRACT(part FROM …)` of a part that a time does not have.
pub(super) fn extract(field: &DateTimeField, from: &Expr) -> Checked {
    let text = field.to_string();
    if is_part(&text) {
        return Ok(());
    }
    let at = match field {
        DateTimeField::Custom(name) => At::Here(name.span),
        _ => At::Before(from.span()),
    };
    no_part(&text, at)
}

/// Refuses a call of `date_part` or `date_trunc` whose constant names no part of a time.
pub(super) fn call(name: &str, args: &FunctionArguments) -> Checked {
    let FunctionArguments::List(FunctionArgumentList { duplicate_treatment: _, args, clauses: _ }) =
        args
    else {
        return Ok(());
    };
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(ValueWithSpan {
        value: Value::SingleQuotedString(text),
        span,
    })))) = args.first()
    else {
        return Ok(());
    };
    let named = |names: [&str; 2]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    if named(["date_part", "datepart"]) && !is_part(text) {
        return no_part(text, At::Here(*span));
    }
    let cuts = |unit: &&str| unit.eq_ignore_ascii_case(text);
    if named(["date_trunc", "datetrunc"]) && !UNITS.iter().any(cuts) {
        let message = format!("DATE_TRUNC has no unit '{text}'");
        return Refused::with_hint(text, At::Here(*span), &message, UNITS_HINT);
    }
    Ok(())
}

/// Whether a time has the part, which may stand between quotes.
fn is_part(text: &str) -> bool {
    let bare = text.trim_matches(['\'', '"']);
    match IntervalUnit::from_str(bare) {
        Ok(IntervalUnit::Century | IntervalUnit::Decade) => false,
        Ok(_) => true,
        Err(_) => PARTS.iter().any(|part| part.eq_ignore_ascii_case(bare)),
    }
}

fn no_part(text: &str, at: At) -> Checked {
    let message = format!("a time has no part '{text}'");
    let hint = "there are year, quarter, month, week, day, doy, dow, hour, minute, second, \
                millisecond, microsecond, nanosecond, epoch, isoyear, isodow";
    Refused::with_hint(text, at, &message, hint)
}
