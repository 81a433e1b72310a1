//! The part of a filter that the source of a scan can use: [`ColumnPredicate`]s of the columns
//! read.
//!
//! The filter stays where it is. A part without a translation counts as true, so the predicate may
//! let more rows pass than the filter and never fewer.

use arrow::datatypes::Schema;
use dataflow::predicate::{ColumnPredicate, ColumnRange, RangeEnd, in_order};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Like, Operator};

use crate::lower::step::column_index;

/// Values of an `IN` list at most; a longer list has no predicate.
const LIST_MAX: usize = 1_000;

/// The predicate of a filter over the columns of `schema`, if it has one.
pub(crate) fn predicate(filter: &Expr, schema: &Schema) -> Option<ColumnPredicate> {
    let column = |expr: &Expr| column_index(expr, schema);
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            let parts = [left, right].into_iter().filter_map(|part| predicate(part, schema));
            all(parts.collect())
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let mut parts = vec![];
            for part in [left, right] {
                match predicate(part, schema)? {
                    ColumnPredicate::Any(more) => parts.extend(more),
                    part => parts.push(part),
                }
            }
            Some(ColumnPredicate::Any(parts))
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            compared(left, *op, right, schema).or_else(|| compared(right, op.swap()?, left, schema))
        }
        Expr::Between(Between { expr, negated: false, low, high }) => {
            let from = compared(expr, Operator::GtEq, low, schema);
            let to = compared(expr, Operator::LtEq, high, schema);
            all(from.into_iter().chain(to).collect())
        }
        Expr::InList(InList { expr, list, negated: false }) if list.len() <= LIST_MAX => {
            let column = column(expr)?;
            let values = list.iter().map(|value| literal(value, column, schema));
            let values: Vec<ScalarValue> = values.collect::<Option<_>>()?;
            let values = in_order(&ScalarValue::iter_to_array(values).ok()?)?;
            Some(ColumnPredicate::In { column, values })
        }
        Expr::Like(Like { negated: false, expr, pattern, escape_char: None, case_insensitive }) => {
            let prefix = (!case_insensitive).then(|| prefix_of(pattern))??;
            let column = column(expr)?;
            Some(ColumnPredicate::Prefix { column, prefix })
        }
        Expr::IsNull(expr) => Some(ColumnPredicate::Null(column(expr)?)),
        Expr::IsNotNull(expr) => Some(ColumnPredicate::NotNull(column(expr)?)),
        Expr::IsTrue(expr) => boolean(column(expr)?, true),
        Expr::IsFalse(expr) => boolean(column(expr)?, false),
        Expr::Not(expr) => boolean(column(expr)?, false),
        expr => boolean(column(expr)?, true),
    }
}

fn boolean(column: usize, value: bool) -> Option<ColumnPredicate> {
    let value = ScalarValue::Boolean(Some(value)).to_array().ok()?;
    Some(ColumnPredicate::Range(ColumnRange::equal(column, value)))
}

/// All of these, with ranges of one column as one.
fn all(parts: Vec<ColumnPredicate>) -> Option<ColumnPredicate> {
    let mut merged: Vec<ColumnPredicate> = vec![];
    let flat = parts.into_iter().flat_map(|part| match part {
        ColumnPredicate::All(parts) => parts,
        part => vec![part],
    });
    for part in flat {
        let ColumnPredicate::Range(range) = &part else {
            merged.push(part);
            continue;
        };
        let open = merged.iter_mut().find_map(|known| match known {
            ColumnPredicate::Range(known) if known.column == range.column => {
                let fits = |a: &Option<RangeEnd>, b: &Option<RangeEnd>| a.is_none() || b.is_none();
                (fits(&known.from, &range.from) && fits(&known.to, &range.to)).then_some(known)
            }
            _ => None,
        });
        match open {
            Some(known) => {
                known.from = known.from.take().or_else(|| range.from.clone());
                known.to = known.to.take().or_else(|| range.to.clone());
            }
            None => merged.push(part),
        }
    }
    match merged.len() {
        0 | 1 => merged.pop(),
        _ => Some(ColumnPredicate::All(merged)),
    }
}

/// A column compared with a literal.
fn compared(left: &Expr, op: Operator, right: &Expr, schema: &Schema) -> Option<ColumnPredicate> {
    let column = column_index(left, schema)?;
    let value = literal(right, column, schema)?;
    if value.is_null() {
        // Such a comparison is never true: it is left to the filter.
        return None;
    }
    // NaN has no order, and the two zeros may be equal or not.
    if double(&value).is_some_and(|value| value.is_nan() || value == 0.0) {
        return None;
    }
    let value = value.to_array().ok()?;
    let end = |inclusive| Some(RangeEnd { value: value.clone(), inclusive });
    let range = |from, to| Some(ColumnPredicate::Range(ColumnRange { column, from, to }));
    match op {
        Operator::Eq | Operator::IsNotDistinctFrom => range(end(true), end(true)),
        Operator::Lt => range(None, end(false)),
        Operator::LtEq => range(None, end(true)),
        Operator::Gt => range(end(false), None),
        Operator::GtEq => range(end(true), None),
        _ => None,
    }
}

fn double(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Float64(value) => *value,
        ScalarValue::Float32(value) => value.map(f64::from),
        ScalarValue::Float16(value) => value.map(f64::from),
        _ => None,
    }
}

/// A literal as a value of a column's type, if the type has this value.
fn literal(expr: &Expr, column: usize, schema: &Schema) -> Option<ScalarValue> {
    let Expr::Literal(value, _) = expr else { return None };
    let of = schema.field(column).data_type();
    if value.data_type() == *of {
        return Some(value.clone());
    }
    let cast = value.cast_to(of).ok()?;
    let back = cast.cast_to(&value.data_type()).ok()?;
    (back == *value).then_some(cast)
}

/// The text in front of the first placeholder of a pattern, unless it is empty.
fn prefix_of(pattern: &Expr) -> Option<String> {
    let Expr::Literal(value, _) = pattern else { return None };
    let pattern = value.try_as_str()??;
    let end = pattern.find(['%', '_', '\\']).unwrap_or(pattern.len());
    (end > 0).then(|| pattern[..end].to_owned())
}
