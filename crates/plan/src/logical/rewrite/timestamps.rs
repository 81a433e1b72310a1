//! `timestamp(x)`, a function of DB2 and Derby, is `CAST(x AS TIMESTAMP)`.
//!
//! A constant may also have the form of their timestamps: `2013-07-01-00.00.00.000000`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Query,
    TimezoneInfo, Value, VisitMut, VisitorMut,
};

/// Replaces these calls in a query by casts.
pub(super) fn rewrite(query: &mut Query) {
    // It never breaks off.
    let _ = VisitMut::visit(query, &mut Timestamps);
}

struct Timestamps;

impl VisitorMut for Timestamps {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let Some(argument) = argument(function) else { return ControlFlow::Continue(()) };
        let mut argument = argument.clone();
        if let Expr::Value(value) = &mut argument
            && let Value::SingleQuotedString(text) = &mut value.value
            && let Some(standard) = standard(text)
        {
            *text = standard;
        }
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(argument),
            data_type: DataType::Timestamp(None, TimezoneInfo::None),
            array: false,
            format: None,
        };
        ControlFlow::Continue(())
    }
}

/// The argument of a call of `timestamp`; `None` for another function.
fn argument(function: &Function) -> Option<&Expr> {
    let [name] = &function.name.0[..] else { return None };
    let is_named = name.as_ident().is_some_and(|name| name.value.eq_ignore_ascii_case("timestamp"));
    let FunctionArguments::List(list) = &function.args else { return None };
    match &list.args[..] {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] if is_named => Some(argument),
        _ => None,
    }
}

/// The standard form of a timestamp that has the form of DB2.
fn standard(text: &str) -> Option<String> {
    let (date, time) = text.split_at_checked(10)?;
    let (hour, rest) = time.strip_prefix('-')?.split_once('.')?;
    let (minute, second) = rest.split_once('.')?;
    let is_two = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    (is_two(hour) && is_two(minute)).then(|| format!("{date} {hour}:{minute}:{second}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_db2_becomes_that_of_the_standard() {
        let db2 = standard("2013-07-01-23.59.01.250000");
        assert_eq!(db2.as_deref(), Some("2013-07-01 23:59:01.250000"));
        for other in ["2013-07-01 00:00:00.000", "2013-07-01", "2013-07-01-00:00:00.5", "é-.", ""]
        {
            assert_eq!(standard(other), None, "{other}");
        }
    }
}
