//! Checks of `GROUP BY`.

use std::ops::ControlFlow;

use datafusion::logical_expr::planner::ContextProvider;
use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, GroupByWithModifier, Query, Select, SelectItem, Spanned, Value,
    ValueWithSpan, Visit, Visitor,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::exprs::is_aggregate;
use super::{At, Checked, Refused};
use crate::text::bounds::GROUPING_SETS_MAX;

/// The keys, with what other systems write behind them.
pub(super) fn group_by(group_by: &mut GroupByExpr, start: Span) -> Checked {
    if let GroupByExpr::Expressions(keys, _) = group_by {
        let before = keys.len();
        keys.retain(|key| !matches!(key, Expr::Tuple(parts) if parts.is_empty()));
        if keys.is_empty() && before > 0 {
            keys.push(Expr::GroupingSets(vec![vec![]]));
        }
    }
    let (exprs, modifiers) = match group_by {
        GroupByExpr::All(modifiers) => (None, modifiers),
        GroupByExpr::Expressions(exprs, modifiers) => (Some(exprs), modifiers),
    };
    let Some(modifier) = modifiers.first() else { return Ok(()) };
    let (words, hint) = match modifier {
        GroupByWithModifier::Rollup => ("WITH ROLLUP", "write GROUP BY ROLLUP (…)"),
        GroupByWithModifier::Cube => ("WITH CUBE", "write GROUP BY CUBE (…)"),
        GroupByWithModifier::Totals => ("WITH TOTALS", "write GROUP BY GROUPING SETS ((…), ())"),
        GroupByWithModifier::GroupingSets(_) => {
            ("GROUPING SETS", "write GROUP BY GROUPING SETS (…) alone")
        }
    };
    let is_key = |expr: &Expr| {
        // A number would be the place of a column, which it is not within the brackets.
        !matches!(expr, Expr::Rollup(_) | Expr::Cube(_) | Expr::GroupingSets(_) | Expr::Value(_))
    };
    match exprs.filter(|exprs| modifiers.len() == 1 && exprs.iter().all(is_key)) {
        Some(exprs) if words == "WITH ROLLUP" || words == "WITH CUBE" => {
            let keys = std::mem::take(exprs).into_iter().map(|key| vec![key]).collect();
            exprs.push(if words == "WITH CUBE" { Expr::Cube(keys) } else { Expr::Rollup(keys) });
            modifiers.clear();
            Ok(())
        }
        _ => Refused::hinted(words, At::From(start), hint),
    }
}

/// Refuses a grouping by too many sets of keys.
pub(super) fn grouping_sets(group_by: &GroupByExpr, start: Span) -> Checked {
    let GroupByExpr::Expressions(exprs, _) = group_by else { return Ok(()) };
    let (mut sets, mut words) = (1usize, "GROUP BY");
    for expr in exprs {
        let (count, word) = match expr {
            Expr::Rollup(keys) => (keys.len() + 1, "ROLLUP"),
            Expr::Cube(keys) => {
                (1usize.checked_shl(keys.len() as u32).unwrap_or(usize::MAX), "CUBE")
            }
            Expr::GroupingSets(sets) => (sets.len(), "GROUPING SETS"),
            _ => continue,
        };
        (sets, words) = (sets.saturating_mul(count), word);
    }
    if sets <= GROUPING_SETS_MAX {
        return Ok(());
    }
    let message = format!("more than {GROUPING_SETS_MAX} grouping sets");
    let hint = "name those that you need: GROUPING SETS (…)";
    Refused::with_hint(words, At::From(start), &message, hint)
}

/// Refuses keys that are made of groups.
pub(super) fn aggregates(select: &Select, names: &dyn ContextProvider) -> Checked {
    let GroupByExpr::Expressions(keys, _) = &select.group_by else { return Ok(()) };
    for key in keys {
        let item = item(key, select).unwrap_or(key);
        if matches!(item.visit(&mut Aggregates { names, depth: 0 }), ControlFlow::Break(())) {
            let words = item.to_string();
            let message = format!("'{words}' is computed from groups: no group has it before");
            let hint = "group by columns of rows; to group results, write a query around this one";
            return Refused::with_hint(&words, At::Here(key.span()), &message, hint);
        }
    }
    Ok(())
}

/// The item of SELECT that a number stands for.
fn item<'a>(key: &Expr, select: &'a Select) -> Option<&'a Expr> {
    let Expr::Value(ValueWithSpan { value: Value::Number(number, _), .. }) = key else {
        return None;
    };
    let number: usize = number.to_string().parse().ok()?;
    match select.projection.get(number.checked_sub(1)?)? {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    }
}

/// Looks for an aggregate outside of subqueries.
struct Aggregates<'a> {
    names: &'a dyn ContextProvider,
    /// How many subqueries are around.
    depth: usize,
}

impl Visitor for Aggregates<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(call) if self.depth == 0 && is_aggregate(call, self.names) => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
