//! The columns of a query as the columns of the table that it is inserted into.
//!
//! By position, or by the names of `INSERT INTO t (a, b)`; columns that are not named are NULL. A
//! type is converted only where every value survives; anything else is an error that asks for a
//! CAST.

use arrow::datatypes::{DataType, Schema, TimeUnit};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::explain::shown_expr;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::names::plain;
use crate::text::syntax::{Ident, is_word};
use crate::text::types::sql_name;

/// A query, and the names of its columns.
pub(crate) struct NamedQuery {
    pub(crate) plan: LogicalPlan,
    pub(crate) names: Vec<String>,
}

/// Projects a query to the columns of `schema`, of which `named` are given, or all.
///
/// # Errors
/// A number of columns or a type that does not fit, at the item of `query` or at the table's name.
pub(crate) fn fit(
    NamedQuery { plan, names: called }: NamedQuery,
    schema: &Schema,
    named: &[Ident],
    table: &Ident,
    query: &[TokenWithSpan],
) -> Result<DfResult<LogicalPlan>, Diagnostic> {
    let items = select_items(query);
    let targets = targets(schema, named, &table.text)?;
    let given = plan.schema().columns();
    if given.len() != targets.len() {
        let place = named.first().map_or(table.place, |first| first.place);
        let names = |columns: Vec<&str>| columns.join(", ");
        let wanted = targets.iter().map(|&at| schema.field(at).name().as_str()).collect();
        let found: Vec<String> = called.iter().map(|name| plain(name)).collect();
        let found = found.iter().map(String::as_str).collect();
        let message = format!(
            "table '{}' takes {} columns here, and the query has {}",
            table.text,
            targets.len(),
            given.len()
        );
        return Err(Diagnostic::at(place, message).detail(format!(
            "the table's are {}; the query's are {}",
            names(wanted),
            names(found)
        )));
    }
    let mut sources = vec![None; schema.fields().len()];
    targets.iter().enumerate().for_each(|(from, &at)| sources[at] = Some(from));
    let mut exprs = vec![];
    for (at, field) in schema.fields().iter().enumerate() {
        let to = field.data_type();
        let Some(from) = sources[at] else {
            if !field.is_nullable() {
                let message = format!("column '{}' is NOT NULL and gets no value", field.name());
                return Err(Diagnostic::at(table.place, message));
            }
            exprs.push(cast(lit(ScalarValue::Null), to.clone()).alias(field.name()));
            continue;
        };
        let item = items.get(from).filter(|_| items.len() == given.len());
        let place = item.copied().unwrap_or(table.place);
        let source = plan.schema().field(from).data_type().clone();
        let column = Expr::Column(given[from].clone());
        exprs.push(if &source == to {
            column.alias(field.name())
        } else if lossless(&source, to) || constant_fits(&plan, from, to) {
            cast(column, to.clone()).alias(field.name())
        } else {
            let written = shown(&plan, from);
            let column = match &written {
                Some(ShownColumn { text, named: false }) => text.clone(),
                _ => plain(&called[from]),
            };
            let text = written.map_or_else(|| column.clone(), |written| written.text);
            let (from, to) = (sql_name(&source), sql_name(to));
            let field = field.name();
            let message =
                format!("column '{field}' is {to}, and the query gives '{column}', {from}");
            return Err(Diagnostic::at(place, message).hint(format!("CAST({text} AS {to})")));
        });
    }
    Ok(LogicalPlanBuilder::from(plan).project(exprs).and_then(LogicalPlanBuilder::build))
}

/// Where the items of `SELECT a, b, …` begin.
fn select_items(query: &[TokenWithSpan]) -> Vec<Place> {
    let mut items = vec![];
    let (mut depth, mut begins) = (0, true);
    if !query.first().is_some_and(|first| is_word(first, "SELECT")) {
        return items;
    }
    for token in &query[1..] {
        if depth == 0 && is_word(token, "FROM") {
            break;
        }
        if begins && !is_word(token, "DISTINCT") && !is_word(token, "ALL") {
            items.push(Place::of(token.span));
            begins = false;
        }
        match token.token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth -= 1,
            Token::Comma if depth == 0 => begins = true,
            _ => {}
        }
    }
    items
}

/// The expression of a query's column.
struct ShownColumn {
    /// As SQL has it.
    text: String,
    /// Whether it has a name, which cannot stand in the expression's place.
    named: bool,
}

/// The expression of a query's column; `None` where it is a column of a table.
fn shown(plan: &LogicalPlan, column: usize) -> Option<ShownColumn> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    match projection.expr.get(column)? {
        Expr::Column(_) => None,
        // DataFusion names `count(*)` itself: its name is what was written.
        Expr::Alias(alias) if !alias.name.chars().all(|c| c.is_alphanumeric() || c == '_') => None,
        Expr::Alias(alias) => {
            Some(ShownColumn { text: plain(&shown_expr(&alias.expr)), named: true })
        }
        computed => Some(ShownColumn { text: shown_expr(computed), named: false }),
    }
}

/// Which column of the table each column of the query is for.
fn targets(schema: &Schema, named: &[Ident], table: &str) -> Result<Vec<usize>, Diagnostic> {
    if named.is_empty() {
        return Ok((0..schema.fields().len()).collect());
    }
    let mut targets = vec![];
    for ident in named {
        let names = schema.fields().iter().map(|f| f.name().as_str());
        let at = schema.index_of(&ident.text).map_err(|_| {
            Diagnostic::at(ident.place, format!("table '{table}' has no column '{}'", ident.text))
                .nearest("columns", &ident.text, names)
        })?;
        if targets.contains(&at) {
            let message = format!("column '{}' is named twice", ident.text);
            return Err(Diagnostic::at(ident.place, message));
        }
        targets.push(at);
    }
    Ok(targets)
}

/// Whether a column of a query is a constant that fits a type; a `VALUES` list is judged when it is
/// computed.
fn constant_fits(plan: &LogicalPlan, column: usize, to: &DataType) -> bool {
    match plan {
        LogicalPlan::Values(_) => true,
        LogicalPlan::Projection(projection) => match projection.expr.get(column) {
            Some(Expr::Column(_)) => constant_fits(&projection.input, column, to),
            Some(expr) => match expr.clone().unalias() {
                Expr::Literal(value, _) => {
                    let back = |v: ScalarValue| v.cast_to(&value.data_type());
                    value.cast_to(to).and_then(back).is_ok_and(|same| same == value)
                }
                _ => false,
            },
            None => false,
        },
        _ => false,
    }
}

/// Whether every value of one type is a value of the other.
fn lossless(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, Date32, Decimal128, Dictionary, Float32, Float64, Int8, Int16, Int32, Int64,
        LargeBinary, LargeUtf8, Null, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    let rank = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    match (from, to) {
        (Null, _) => true,
        (Dictionary(_, value), _) => value.as_ref() == to || lossless(value, to),
        (Int8, Int16 | Int32 | Int64 | Float32 | Float64)
        | (Int16, Int32 | Int64 | Float32 | Float64)
        | (Int32, Int64 | Float64)
        | (UInt8, UInt16 | UInt32 | UInt64 | Int16 | Int32 | Int64 | Float32 | Float64)
        | (UInt16, UInt32 | UInt64 | Int32 | Int64 | Float32 | Float64)
        | (UInt32, UInt64 | Int64 | Float64)
        | (Float32, Float64)
        | (Utf8 | Utf8View | LargeUtf8, Utf8 | Utf8View | LargeUtf8)
        | (Binary | LargeBinary, Binary | LargeBinary)
        | (Date32, Timestamp(_, None)) => true,
        (Decimal128(p, s), Decimal128(tp, ts)) => {
            ts >= s && i16::from(*tp) - i16::from(*ts) >= i16::from(*p) - i16::from(*s)
        }
        (Timestamp(a, zone), Timestamp(b, other)) => {
            zone.is_some() == other.is_some() && rank(a) <= rank(b)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_types_that_keep_every_value_are_converted() {
        use DataType::{Decimal128, Float64, Int32, Int64, Timestamp, Utf8};
        use TimeUnit::{Millisecond, Second};
        for (from, to, fits) in [
            (Int32, Int64, true),
            (Int64, Int32, false),
            (Int64, Float64, false),
            (Int32, Float64, true),
            (Int32, Utf8, false),
            (Timestamp(Second, None), Timestamp(Millisecond, None), true),
            (Timestamp(Millisecond, None), Timestamp(Second, None), false),
            (Timestamp(Second, None), Timestamp(Second, Some("UTC".into())), false),
            (Decimal128(5, 2), Decimal128(7, 4), true),
            (Decimal128(5, 2), Decimal128(6, 4), false),
        ] {
            assert_eq!(lossless(&from, &to), fits, "{from} to {to}");
        }
    }
}
