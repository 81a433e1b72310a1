//! The share of rows for which a predicate holds, by the bounds of the columns that it reads.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Like, Operator};

use super::estimate::{ColumnEstimate, Knowledge};

/// The share of a predicate that cannot be estimated.
pub(crate) const UNKNOWN: f64 = 0.2;

/// The share of `<` and the like, if the range of the column is unknown.
const HALF_OPEN: f64 = 1.0 / 3.0;

/// The share of `LIKE` with a pattern.
const LIKE: f64 = 0.1;

/// The share of NULLs in a column.
const NULLS: f64 = 0.05;

/// The least and the greatest value of a column for which a predicate holds.
type Interval = [f64; 2];

/// The estimate of a column; `None` if these rows do not have it.
pub(crate) type Lookup<'a> = &'a dyn Fn(&Column) -> Option<ColumnEstimate>;

/// The share of rows for which a predicate holds.
pub(crate) fn selectivity(predicate: &Expr, columns: Lookup<'_>) -> f64 {
    let mut intervals: BTreeMap<&Column, Interval> = BTreeMap::new();
    let mut share = 1.0;
    for part in split_conjunction(predicate) {
        // The two ends of a range are one condition.
        match interval(part) {
            Some((column, [least, greatest])) => {
                let known = intervals.entry(column).or_insert([f64::MIN, f64::MAX]);
                *known = [known[0].max(least), known[1].min(greatest)];
            }
            None => share *= of_condition(part, columns),
        }
    }
    for (column, interval) in intervals {
        share *= of_interval(columns(column), interval);
    }
    share.clamp(0.0, 1.0)
}

/// The column that a comparison bounds, and its bounds.
fn interval(predicate: &Expr) -> Option<(&Column, Interval)> {
    let least_and_greatest = |operator: &Operator, value: f64| match operator {
        Operator::Lt => Some([f64::MIN, value - 1.0]),
        Operator::LtEq => Some([f64::MIN, value]),
        Operator::Gt => Some([value + 1.0, f64::MAX]),
        Operator::GtEq => Some([value, f64::MAX]),
        _ => None,
    };
    match predicate {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (column(left), column(right)) {
            (Some(column), None) => Some((column, least_and_greatest(op, ticks(right)?)?)),
            (None, Some(column)) => Some((column, least_and_greatest(&op.swap()?, ticks(left)?)?)),
            _ => None,
        },
        Expr::Between(between) if !between.negated => {
            let bounds = [ticks(&between.low)?, ticks(&between.high)?];
            Some((column(&between.expr)?, bounds))
        }
        _ => None,
    }
}

/// The share of rows in which a column is within bounds.
fn of_interval(column: Option<ColumnEstimate>, [least, greatest]: Interval) -> f64 {
    let Some([from, to]) = column.and_then(|column| column.range) else {
        let ends = usize::from(least > f64::MIN) + usize::from(greatest < f64::MAX);
        return if ends == 2 { UNKNOWN } else { HALF_OPEN };
    };
    let values = to - from + 1.0;
    let within = greatest.min(to) - least.max(from) + 1.0;
    (within / values).clamp(0.0, 1.0)
}

fn of_condition(condition: &Expr, columns: Lookup<'_>) -> f64 {
    match condition {
        Expr::Literal(ScalarValue::Boolean(Some(true)), _) => 1.0,
        Expr::Literal(..) => 0.0,
        Expr::Column(_) => 0.5,
        Expr::Not(inner) => 1.0 - selectivity(inner, columns),
        Expr::IsNull(_) => NULLS,
        Expr::IsNotNull(_) => 1.0 - NULLS,
        Expr::Alias(alias) => selectivity(&alias.expr, columns),
        Expr::Like(like) => of_like(like, columns),
        Expr::InList(list) => {
            let each = of_value(&list.expr, columns);
            let share = (each * list.list.len() as f64).min(1.0);
            if list.negated { 1.0 - share } else { share }
        }
        Expr::Between(between) if between.negated => 1.0 - UNKNOWN,
        Expr::BinaryExpr(binary) => of_comparison(binary, columns),
        _ => UNKNOWN,
    }
}

fn of_comparison(BinaryExpr { left, op, right }: &BinaryExpr, columns: Lookup<'_>) -> f64 {
    match op {
        Operator::And => selectivity(left, columns) * selectivity(right, columns),
        Operator::Or => {
            let neither = (1.0 - selectivity(left, columns)) * (1.0 - selectivity(right, columns));
            1.0 - neither
        }
        Operator::Eq | Operator::IsNotDistinctFrom => of_equality(left, right, columns),
        Operator::NotEq | Operator::IsDistinctFrom => 1.0 - of_equality(left, right, columns),
        Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => HALF_OPEN,
        Operator::RegexMatch | Operator::RegexIMatch => LIKE,
        Operator::RegexNotMatch | Operator::RegexNotIMatch => 1.0 - LIKE,
        _ => UNKNOWN,
    }
}

fn of_equality(left: &Expr, right: &Expr, columns: Lookup<'_>) -> f64 {
    let literal = match (column(left), column(right)) {
        (Some(_), Some(_)) => {
            return of_value(left, columns).min(of_value(right, columns));
        }
        (Some(_), None) => ticks(right),
        (None, _) => ticks(left),
    };
    let side = if column(left).is_some() { left } else { right };
    let range = column(side).and_then(columns).and_then(|column| column.range);
    match range.zip(literal) {
        Some(([from, to], value)) if value < from || value > to => 0.0,
        _ => of_value(side, columns),
    }
}

/// The share of rows in which an expression has one given value.
fn of_value(expr: &Expr, columns: Lookup<'_>) -> f64 {
    match column(expr).and_then(columns) {
        Some(column) if column.known != Knowledge::Guessed => 1.0 / column.distinct.max(1.0),
        _ => UNKNOWN,
    }
}

fn of_like(like: &Like, columns: Lookup<'_>) -> f64 {
    let pattern = match like.pattern.as_ref() {
        Expr::Literal(pattern, _) => pattern.try_as_str().flatten(),
        _ => None,
    };
    let share = match pattern {
        Some(pattern) if !pattern.contains(['%', '_']) => of_value(&like.expr, columns),
        _ => LIKE,
    };
    if like.negated { 1.0 - share } else { share }
}

/// The column that an expression is, possibly cast or under an alias.
pub(crate) fn column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Cast(cast) => column(&cast.expr),
        Expr::TryCast(cast) => column(&cast.expr),
        Expr::Alias(alias) => column(&alias.expr),
        _ => None,
    }
}

/// A constant as a number of ticks of its type.
fn ticks(expr: &Expr) -> Option<f64> {
    let Expr::Literal(value, _) = expr else { return None };
    match value.data_type() {
        DataType::Date32 | DataType::Timestamp(..) => {}
        of if of.is_integer() => {}
        _ => return None,
    }
    match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(ticks))) => Some(ticks as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{col, lit};

    use super::*;

    /// `day` from 1 to 100, with 10 counted values; `id` with as many values as rows; `name`
    /// without statistics.
    fn columns(column: &Column) -> Option<ColumnEstimate> {
        let unknown = ColumnEstimate::unknown(1_000.0);
        let known = |distinct: f64, known: Knowledge, range: [f64; 2]| {
            Some(ColumnEstimate { distinct, known, range: Some(range), ..unknown })
        };
        match column.name.as_str() {
            "day" => known(10.0, Knowledge::Counted, [1.0, 100.0]),
            "id" => known(1_000.0, Knowledge::Bounded, [0.0, 999.0]),
            "name" => Some(unknown),
            _ => None,
        }
    }

    fn share(predicate: &Expr) -> String {
        format!("{:.3}", selectivity(predicate, &columns))
    }

    #[test]
    fn ranges_are_shares_of_the_range_and_both_ends_are_one_condition() {
        assert_eq!(share(&col("day").lt_eq(lit(50))), "0.500");
        assert_eq!(share(&lit(50).lt(col("day"))), "0.500");
        let both = col("day").gt(lit(20)).and(col("day").lt_eq(lit(30)));
        assert_eq!(share(&both), "0.100");
        assert_eq!(share(&col("day").between(lit(21), lit(30))), "0.100");
        assert_eq!(share(&col("day").gt(lit(100))), "0.000");
        assert_eq!(share(&col("name").gt(lit(3))), "0.333");
        assert_eq!(share(&col("name").gt(lit(3)).and(col("name").lt(lit(9)))), "0.200");
    }

    #[test]
    fn equalities_ask_for_one_of_all_values() {
        assert_eq!(share(&col("day").eq(lit(5))), "0.100");
        assert_eq!(share(&col("day").eq(lit(500))), "0.000", "there is no such day");
        assert_eq!(share(&col("day").not_eq(lit(5))), "0.900");
        assert_eq!(share(&col("day").in_list(vec![lit(1), lit(2), lit(3)], false)), "0.300");
        assert_eq!(share(&col("name").eq(lit("a"))), "0.200");
        assert_eq!(share(&col("day").eq(col("id"))), "0.001");
    }

    #[test]
    fn other_conditions_have_their_shares() {
        assert_eq!(share(&col("name").like(lit("a%"))), "0.100");
        assert_eq!(share(&col("name").not_like(lit("a%"))), "0.900");
        assert_eq!(share(&col("day").like(lit("a"))), "0.100", "it is an equality");
        assert_eq!(share(&col("day").is_null()), "0.050");
        assert_eq!(share(&col("day").is_not_null()), "0.950");
        assert_eq!(share(&col("name").eq(lit("a")).or(col("day").eq(lit(5)))), "0.280");
        assert_eq!(share(&lit(true)), "1.000");
        assert_eq!(share(&lit(false)), "0.000");
    }
}
