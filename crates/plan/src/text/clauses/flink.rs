//! Forms of Flink's SQL, written as what the planner knows.
//!
//! | Flink | written as |
//! |---|---|
//! | `IF(c, a, b)` | `CASE WHEN c THEN a ELSE b END` |
//! | `LISTAGG(x)`, `LISTAGG(x, sep)` | `string_agg(x, ',')`, `string_agg(x, sep)` |
//! | `TIMESTAMPDIFF(DAY, a, b)`, `TIMESTAMPADD(DAY, n, t)` | the same, of the text `'day'` |
//! | `FLOOR(t TO HOUR)`, `CEIL(t TO HOUR)` | functions of `'hour'` and `t` |
//! | `TO_TIMESTAMP(x, 'yyyy-MM-dd')` | `to_timestamp_millis(x, '%Y-%m-%d')` |
//! | `TO_DATE(x, 'yyyy-MM-dd')` | `to_date(x, '%Y-%m-%d')` |
//! | `JSON_VALUE(x, '$.a' RETURNING INT)` | `TRY_CAST(json_value(x, '$.a') AS INT)` |
//!
//! A column of a result is called by what the user wrote.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CaseWhen, CastKind, CeilFloorKind, DataType, DateTimeField, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentClause, FunctionArgumentList, FunctionArguments, Ident,
    JsonReturningClause, ObjectName, Select, SelectItem, Spanned, Value, ValueWithSpan, Visit,
    VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::{Span, TokenWithSpan};

use super::times::{UNITS, UNITS_HINT};
use super::{At, Checked, Refused, flow};
use crate::text::java_pattern::strftime;
use crate::text::syntax::{function_call, is_word};

/// The function that `FLOOR(t TO unit)` is written as.
pub(crate) const FLOOR: &str = "__floor_to";
/// The function that `CEIL(t TO unit)` is written as.
pub(crate) const CEIL: &str = "__ceil_to";
pub(crate) const TIMESTAMPADD: &str = "timestampadd";
pub(crate) const TIMESTAMPDIFF: &str = "timestampdiff";

/// The names of functions that are written as something else.
pub(crate) const NAMES: [&str; 2] = ["if", "listagg"];

/// Writes these forms of a query or an expression.
///
/// # Errors
/// At a unit that there is not.
pub(super) fn rewrite(tree: &mut impl VisitMut, tokens: &[TokenWithSpan]) -> ControlFlow<Refused> {
    tree.visit(&mut Forms { tokens })
}

struct Forms<'a> {
    tokens: &'a [TokenWithSpan],
}

impl VisitorMut for Forms<'_> {
    type Break = Refused;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Refused> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && Visit::visit(expr, &mut IsRenamed).is_break()
            {
                let alias = Ident::with_quote_and_span('"', expr.span(), expr.to_string());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Refused> {
        flow(form(expr, self.tokens))
    }
}

/// Breaks off at a form after which DataFusion would call a column by another name.
struct IsRenamed;

impl Visitor for IsRenamed {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let is_renamed = match expr {
            Expr::Function(call) => match name_of(call).as_str() {
                "if" | "listagg" | TIMESTAMPADD | TIMESTAMPDIFF => true,
                "to_date" | "to_timestamp" => java_pattern(&mut call.clone()).is_some(),
                _ => false,
            },
            Expr::Floor { field, .. } | Expr::Ceil { field, .. } => unit_of(field).is_some(),
            _ => false,
        };
        if is_renamed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn form(expr: &mut Expr, tokens: &[TokenWithSpan]) -> Checked {
    match expr {
        Expr::Function(call) => match name_of(call).as_str() {
            "if" => *expr = as_case(call)?,
            "json_value" => {
                if let Some(data_type) = returned(call) {
                    *expr = try_cast(expr.clone(), data_type);
                }
            }
            "listagg" => list_agg(call),
            TIMESTAMPADD | TIMESTAMPDIFF => unit_as_text(call)?,
            name @ ("to_date" | "to_timestamp") => with_pattern(call, name)?,
            _ => {}
        },
        Expr::Floor { expr: time, field } => {
            if let Some(unit) = unit_of(field) {
                *expr = rounded(FLOOR, &["FLOOR"], time, unit, tokens)?;
            }
        }
        Expr::Ceil { expr: time, field } => {
            if let Some(unit) = unit_of(field) {
                *expr = rounded(CEIL, &["CEIL", "CEILING"], time, unit, tokens)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The name of a function, in small letters.
fn name_of(call: &Function) -> String {
    let [part] = &call.name.0[..] else { return String::new() };
    part.as_ident().map_or_else(String::new, |part| part.value.to_ascii_lowercase())
}

/// A call of a function of the unit and the time, which stands where one of the words does.
fn rounded(
    function: &str,
    words: &[&str],
    time: &Expr,
    unit: String,
    tokens: &[TokenWithSpan],
) -> Result<Expr, Refused> {
    if !UNITS.contains(&unit.as_str()) {
        let message = format!("a time is not rounded to a {unit}");
        return Refused::with_hint("TO", At::Behind(time.span()), &message, UNITS_HINT);
    }
    let is_own = |token: &&TokenWithSpan| {
        let is_before = token.span.start < time.span().start;
        is_before && words.iter().any(|word| is_word(token, word))
    };
    let own = tokens.iter().rfind(is_own).map_or(Span::empty(), |token| token.span);
    let args = vec![text(unit, Span::empty()), time.clone()];
    Ok(function_call(Ident::with_span(own, function), args))
}

/// `IF` as `CASE`.
fn as_case(call: &Function) -> Result<Expr, Refused> {
    let arguments = arguments(call);
    let Some([condition, result, otherwise]) = arguments.as_deref() else {
        let (at, message) = (At::Here(call.name.span()), "IF takes three arguments");
        let hint = "write IF(condition, value, value otherwise)";
        return Refused::with_hint("IF", at, message, hint);
    };
    let [condition, result, otherwise] = [condition, result, otherwise].map(|&expr| expr.clone());
    Ok(Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![CaseWhen { condition, result }],
        else_result: Some(Box::new(otherwise)),
    })
}

/// Takes the type behind `RETURNING` from a call.
fn returned(call: &mut Function) -> Option<DataType> {
    let FunctionArguments::List(list) = &mut call.args else { return None };
    match &list.clauses[..] {
        [FunctionArgumentClause::JsonReturningClause(JsonReturningClause { data_type })] => {
            let data_type = data_type.clone();
            list.clauses.clear();
            Some(data_type)
        }
        _ => None,
    }
}

fn try_cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast {
        kind: CastKind::TryCast,
        expr: Box::new(expr),
        data_type,
        array: false,
        format: None,
    }
}

/// The arguments of a call that has nothing else.
fn arguments(call: &Function) -> Option<Vec<&Expr>> {
    let FunctionArguments::List(list) = &call.args else { return None };
    let FunctionArgumentList { duplicate_treatment: None, args, clauses } = list else {
        return None;
    };
    let exprs = args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    exprs.collect::<Option<_>>().filter(|_| clauses.is_empty())
}

fn set_name(call: &mut Function, name: &str) {
    call.name = ObjectName::from(vec![Ident::with_span(call.name.span(), name)]);
}

/// The second of two arguments, if it is a constant pattern of Java.
fn java_pattern(call: &mut Function) -> Option<(&mut String, Span)> {
    let FunctionArguments::List(list) = &mut call.args else { return None };
    match &mut list.args[..] {
        [
            _,
            FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(ValueWithSpan {
                value: Value::SingleQuotedString(pattern),
                span,
            }))),
        ] if !pattern.contains('%') => Some((pattern, *span)),
        _ => None,
    }
}

/// Writes a pattern of Java as DataFusion writes it. The time has milliseconds then, as in Flink.
fn with_pattern(call: &mut Function, name: &str) -> Checked {
    let Some((pattern, span)) = java_pattern(call) else { return Ok(()) };
    *pattern = strftime(pattern).map_err(|error| {
        let (words, at, message) = (String::new(), At::Here(span), Some(error));
        Refused { words, at, message, hint: None }
    })?;
    if name == "to_timestamp" {
        set_name(call, "to_timestamp_millis");
    }
    Ok(())
}

/// Gives a call the other name, and the comma that Flink puts between the texts.
fn list_agg(call: &mut Function) {
    set_name(call, "string_agg");
    if let FunctionArguments::List(list) = &mut call.args
        && list.args.len() == 1
    {
        let comma = text(",".into(), Span::empty());
        list.args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(comma)));
    }
}

/// Writes the unit that is the first argument as a text.
fn unit_as_text(call: &mut Function) -> Checked {
    let FunctionArguments::List(list) = &mut call.args else { return Ok(()) };
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(first))) = list.args.first_mut() else {
        return Ok(());
    };
    let (word, span) = match &*first {
        Expr::Identifier(Ident { value, span, .. })
        | Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(value), span }) => {
            (value.to_ascii_lowercase(), *span)
        }
        other => (String::new(), other.span()),
    };
    let unit = word.strip_prefix("sql_tsi_").unwrap_or(&word);
    if !UNITS.contains(&unit) {
        let message = format!("{} begins with a unit of time", call.name);
        return Refused::with_hint("", At::Here(span), &message, UNITS_HINT);
    }
    *first = text(unit.into(), span);
    Ok(())
}

/// The unit to which a time is rounded, in small letters; `None` where a number is rounded.
fn unit_of(field: &CeilFloorKind) -> Option<String> {
    match field {
        CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) | CeilFloorKind::Scale(_) => None,
        CeilFloorKind::DateTimeField(field) => Some(field.to_string().to_ascii_lowercase()),
    }
}

fn text(text: String, span: Span) -> Expr {
    Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), span })
}
