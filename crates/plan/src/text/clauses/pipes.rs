//! `FROM t |> WHERE … |> AGGREGATE …`: what the operators behind a query carry out.

use datafusion::sql::sqlparser::ast::{
    ExprWithAlias, ExprWithAliasAndOrderBy, OrderByOptions, PipeOperator, Spanned,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::{At, Checked, Refused, from, order_by_exprs, select_item};

pub(super) fn pipe_operator(operator: &mut PipeOperator) -> Checked {
    let anywhere = || At::From(Span::empty());
    match operator {
        PipeOperator::Limit { expr: _, offset: _ } | PipeOperator::Where { expr: _ } => Ok(()),
        PipeOperator::OrderBy { exprs } => order_by_exprs(exprs),
        PipeOperator::Select { exprs } | PipeOperator::Extend { exprs } => {
            exprs.iter().try_for_each(select_item)
        }
        PipeOperator::As { alias: _ } => Ok(()),
        PipeOperator::Aggregate { full_table_exprs, group_by_expr } => {
            full_table_exprs.iter().chain(&*group_by_expr).try_for_each(unordered)
        }
        PipeOperator::Union { set_quantifier: _, queries: _ }
        | PipeOperator::Intersect { set_quantifier: _, queries: _ }
        | PipeOperator::Except { set_quantifier: _, queries: _ } => Ok(()),
        PipeOperator::Join(join) => from::join(join),
        PipeOperator::Set { assignments: _ } => Refused::new("|> SET", anywhere()),
        PipeOperator::Drop { columns: _ } => Refused::new("|> DROP", anywhere()),
        PipeOperator::TableSample { sample: _ } => Refused::new("|> TABLESAMPLE", anywhere()),
        PipeOperator::Rename { mappings: _ } => Refused::new("|> RENAME", anywhere()),
        PipeOperator::Call { function: _, alias: _ } => Refused::new("|> CALL", anywhere()),
        PipeOperator::Pivot {
            aggregate_functions: _,
            value_column: _,
            value_source: _,
            alias: _,
        } => Refused::new("|> PIVOT", anywhere()),
        PipeOperator::Unpivot { value_column: _, name_column: _, unpivot_columns: _, alias: _ } => {
            Refused::new("|> UNPIVOT", anywhere())
        }
    }
}

/// An aggregate or a key, whose rows no order is asked of.
fn unordered(of: &ExprWithAliasAndOrderBy) -> Checked {
    let ExprWithAliasAndOrderBy { expr, order_by } = of;
    let ExprWithAlias { expr, alias: _ } = expr;
    let OrderByOptions { asc, nulls_first } = order_by;
    let word = match (asc, nulls_first) {
        (Some(true), _) => "ASC",
        (Some(false), _) => "DESC",
        (None, Some(_)) => "NULLS",
        (None, None) => return Ok(()),
    };
    Refused::hinted(word, At::Behind(expr.span()), "write |> ORDER BY behind it")
}
