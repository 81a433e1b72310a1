//! A number that `DOUBLE` would cut is a `DECIMAL`.
//!
//! DataFusion takes a number with a point, and one beyond 64 bits, for a `DOUBLE`: it keeps some 16
//! digits, and 12345678901234567890123 would equal its neighbour. A number whose digits a `DOUBLE`
//! keeps stays one, and so does one with an exponent.
//!
//! `DECIMAL '1.50'` has the digits that are written; by itself the type has none behind the point.

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, ExactNumberInfo, Expr, Ident, Query, Select, SelectItem, Spanned, Value,
    VisitMut, VisitorMut,
};

use super::refused;

/// Digits of a `DECIMAL`.
const DIGITS_MAX: usize = 38;

/// Writes such numbers of a query as texts that are cast.
///
/// # Errors
/// At a number with more digits than a `DECIMAL` has.
pub(super) fn rewrite(query: &mut Query) -> Result<()> {
    match VisitMut::visit(query, &mut Numbers) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Numbers;

impl VisitorMut for Numbers {
    type Break = DataFusionError;

    /// A column that is such a number is called by it.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr @ Expr::Value(_)) = item
                && let Expr::Value(value) = &*expr
                && let Value::Number(text, _) = &value.value
                && digits(text).is_some()
            {
                let alias = Ident::with_quote_and_span('"', expr.span(), text.clone());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        if let Expr::TypedString(literal) = expr {
            let text = literal.value.clone().into_string().unwrap_or_default();
            if let DataType::Decimal(of) | DataType::Numeric(of) | DataType::Dec(of) =
                &mut literal.data_type
                && *of == ExactNumberInfo::None
                && let Some(written) = written(&text)
            {
                *of = written;
            }
        }
        let Expr::Value(value) = expr else { return ControlFlow::Continue(()) };
        let Value::Number(text, _) = &value.value else { return ControlFlow::Continue(()) };
        let Some((whole, behind)) = digits(text) else { return ControlFlow::Continue(()) };
        if whole + behind > DIGITS_MAX {
            let message = format!("the number {text} has more than {DIGITS_MAX} digits");
            let hint = "write it with an exponent for a DOUBLE: 1e40";
            return ControlFlow::Break(refused(&[], &message, hint));
        }
        let precision = (whole + behind) as u64;
        let of = ExactNumberInfo::PrecisionAndScale(precision, behind as i64);
        value.value = Value::SingleQuotedString(text.clone());
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(expr.clone()),
            data_type: DataType::Decimal(of),
            array: false,
            format: None,
        };
        ControlFlow::Continue(())
    }
}

/// The digits of a text that is a number with them and a point.
fn written(text: &str) -> Option<ExactNumberInfo> {
    let number = text.trim().trim_start_matches(['+', '-']);
    let (whole, behind) = number.split_once('.').unwrap_or((number, ""));
    let all = || whole.bytes().chain(behind.bytes());
    if all().next().is_none() || !all().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = whole.trim_start_matches('0').len() + behind.len();
    Some(ExactNumberInfo::PrecisionAndScale(digits.max(1) as u64, behind.len() as i64))
}

/// How many digits stand before and behind the point of a number that DataFusion would take for a
/// `DOUBLE` with others; `None` of all other numbers.
fn digits(text: &str) -> Option<(usize, usize)> {
    let (whole, behind) = text.split_once('.').unwrap_or((text, ""));
    let all = whole.bytes().chain(behind.bytes());
    if !all.clone().all(|byte| byte.is_ascii_digit()) || text.parse::<u64>().is_ok() {
        return None;
    }
    let (whole, kept) = (whole.trim_start_matches('0'), behind.trim_end_matches('0'));
    let double = text.parse::<f64>().ok()?.to_string();
    let (before, after) = double.split_once('.').unwrap_or((&double, ""));
    if before.trim_start_matches('0') == whole && after == kept {
        return None;
    }
    Some((whole.len(), behind.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_double_cuts() {
        let kept =
            ["1", "0.1", "1.50", ".5", "5.", "1e30", "1.5e-3", "18446744073709551615", "0xff"];
        for text in kept.into_iter().chain(["0.0", "00.25", "1000000000000000.5"]) {
            assert_eq!(digits(text), None, "{text}");
        }
        assert_eq!(digits("18446744073709551617"), Some((20, 0)));
        assert_eq!(digits("12345678901234567890.12"), Some((20, 2)));
        assert_eq!(digits("0.12345678901234567890"), Some((0, 20)));
        assert_eq!(digits("100000000000000000000"), None, "a double is that very number");
    }

    #[test]
    fn a_decimal_in_quotes_has_the_digits_that_are_written() {
        let of = |digits, behind| Some(ExactNumberInfo::PrecisionAndScale(digits, behind));
        let cases = [("1.50", of(3, 2)), ("-12", of(2, 0)), ("0.001", of(3, 3)), (".5", of(1, 1))];
        for (text, expected) in cases.into_iter().chain([("0", of(1, 0)), ("1e3", None)]) {
            assert_eq!(written(text), expected, "{text}");
        }
        assert!(["", "x", "1.2.3", "."].into_iter().all(|text| written(text).is_none()));
    }
}
