//! Subqueries in conditions, where DataFusion makes a join of them that says something else.
//!
//! - `EXISTS` and `IN` of a correlated aggregate without `GROUP BY`: the aggregate has a row for
//!   every row around it, and the join none where nothing matches. They become `TRUE`, or a
//!   comparison with the scalar.
//! - `x IN (…)` where NULL is not FALSE: the join knows no NULL. It becomes three counts.
//! - `x > ANY (…)`, `x >= ALL (…)` over no rows and NULLs: the least or greatest, and counts.
//! - `EXISTS` outside of `WHERE`: there is no join for it. It becomes a count.
//!
//! Those that stand for a value then go [`beneath`] what sorts or groups, and are made such that
//! DataFusion has a join for them ([`correlated`]).
//!
//! In a condition of `WHERE` or `HAVING` that must be true, NULL and FALSE are the same; there `IN`
//! and `EXISTS` stay as they are.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::{count, max, min};
use datafusion::logical_expr::expr::{InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, GroupingSet, Join, JoinType, LogicalPlan,
    LogicalPlanBuilder, Operator, SkipType, Subquery, ident, lit, not, out_ref_col,
    scalar_subquery, when,
};

use super::{beneath, correlated, refused};
use crate::logical::errors::PlanError;

/// The column of a subquery.
const VALUE: &str = "__value";

/// Where a condition stands.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// It must be true itself.
    Top,
    /// It stands under AND and OR: NULL is as good as FALSE.
    Within,
    /// Below something else in a condition.
    Below,
    /// It is a value.
    Value,
}

/// Rewrites the subqueries of all conditions.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(in_node).map(|rewritten| rewritten.data)
}

fn in_node(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let scalar = |part: &Expr| matches!(part, Expr::ScalarSubquery(_));
    let any = |expr: &Expr| expr.exists(|part| Ok(asks(part) || scalar(part))).unwrap_or(true);
    if !node.expressions().iter().any(any) {
        return Ok(Transformed::no(node));
    }
    let node = match node {
        LogicalPlan::Join(join) => return behind_join(join),
        node => node,
    };
    let mut scope = DFSchema::empty();
    node.inputs().iter().for_each(|input| scope.merge(input.schema()));
    // A key of ORDER BY may be no column of the result.
    if !matches!(node, LogicalPlan::Sort(_)) {
        node.expressions().iter().try_for_each(|expr| looks_at(expr, &scope))?;
    }
    let node = conditions(node, &scope)?;
    let node = beneath::rewrite(node)?.data;
    correlated::rewrite(node)?.data.recompute_schema().map(Transformed::yes)
}

/// Whether an expression asks whether a subquery has rows, or which.
fn asks(expr: &Expr) -> bool {
    matches!(expr, Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_))
}

/// Refuses a subquery that looks at what is not there.
fn looks_at(expr: &Expr, scope: &DFSchema) -> Result<()> {
    expr.apply(|part| {
        let outer = match part {
            Expr::InSubquery(asked) => &asked.subquery.outer_ref_columns,
            Expr::Exists(asked) => &asked.subquery.outer_ref_columns,
            Expr::SetComparison(asked) => &asked.subquery.outer_ref_columns,
            Expr::ScalarSubquery(asked) => &asked.outer_ref_columns,
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        for column in outer {
            if let Expr::OuterReferenceColumn(_, column) = column
                && !scope.has_column(column)
            {
                let name = column.flat_name();
                return Err(PlanError::OutOfSight(name).into());
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map(drop)
}

/// Rewrites what asks for rows of subqueries.
fn conditions(node: LogicalPlan, scope: &DFSchema) -> Result<LogicalPlan> {
    let asking = |expr: &Expr| expr.exists(|part| Ok(asks(part))).unwrap_or(true);
    if !node.expressions().iter().any(asking) {
        return Ok(node);
    }
    let at = if matches!(node, LogicalPlan::Filter(_)) { At::Top } else { At::Value };
    let names = NamePreserver::new(&node);
    let rewritten = node.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(Transformed::yes(name.restore(condition(expr, at, scope)?)))
    })?;
    rewritten.data.recompute_schema()
}

/// Puts what a join asks of subqueries behind it: a filter of its rows, if it keeps no others.
fn behind_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let asks = |part: &Expr| match part {
        Expr::ScalarSubquery(asked) => !asked.outer_ref_columns.is_empty(),
        other => asks(other),
    };
    let asking = |expr: &Expr| expr.exists(|part| Ok(asks(part))).unwrap_or(true);
    if !join.filter.iter().any(asking) {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    if join.join_type != JoinType::Inner {
        let message = "a subquery in the condition of an outer join is not supported";
        let hint = "join with a view or subquery that has its value as a column";
        return Err(refused(&["ON"], message, hint));
    }
    let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (asked, stay): (Vec<_>, Vec<_>) = conditions.into_iter().partition(asking);
    join.filter = conjunction(stay);
    let Some(asked) = conjunction(asked) else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    let joined = LogicalPlan::Join(join);
    let filtered = LogicalPlanBuilder::from(joined).filter(asked)?.build()?;
    in_node(filtered).map(|rewritten| Transformed::yes(rewritten.data))
}

fn condition(expr: Expr, at: At, scope: &DFSchema) -> Result<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if at != At::Value =>
        {
            let at = match (at, op) {
                (At::Top, Operator::And) => At::Top,
                (At::Below, _) => At::Below,
                _ => At::Within,
            };
            let (left, right) = (condition(*left, at, scope)?, condition(*right, at, scope)?);
            Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right))))
        }
        Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => {
            let Expr::InSubquery(mut asked) = *inner else { return Ok(not(*inner)) };
            asked.negated = !asked.negated;
            condition(Expr::InSubquery(asked), at, scope)
        }
        Expr::Exists(asked) => {
            let exists = exists(asked.subquery, at)?;
            Ok(if asked.negated { negated(exists) } else { exists })
        }
        Expr::InSubquery(asked) => is_in(asked, at, scope),
        Expr::SetComparison(asked) => compared(asked, scope),
        other => {
            let below = if at == At::Value { At::Value } else { At::Below };
            other
                .map_children(|part| condition(part, below, scope).map(Transformed::yes))
                .map(|rewritten| rewritten.data)
        }
    }
}

fn negated(expr: Expr) -> Expr {
    match expr {
        Expr::Exists(mut asked) => {
            asked.negated = !asked.negated;
            Expr::Exists(asked)
        }
        other => not(other),
    }
}

fn exists(subquery: Subquery, at: At) -> Result<Expr> {
    match rows_of(&subquery.subquery) {
        Rows::One | Rows::Some => return Ok(lit(true)),
        Rows::OneIf(kept) => return Ok(kept.is_true()),
        Rows::Any => {}
    }
    check(&subquery, &["EXISTS"], false)?;
    if at == At::Value {
        return Ok(number(&subquery.subquery, None)?.gt(lit(0_i64)));
    }
    Ok(Expr::Exists(datafusion::logical_expr::expr::Exists { subquery, negated: false }))
}

fn is_in(asked: InSubquery, at: At, scope: &DFSchema) -> Result<Expr> {
    let InSubquery { expr, subquery, negated } = asked;
    let plan = &subquery.subquery;
    let signed = |expr| if negated { not(expr) } else { expr };
    let correlated = !subquery.outer_ref_columns.is_empty();
    if correlated {
        let equal = || expr.as_ref().clone().eq(scalar_subquery(plan.clone()));
        match rows_of(plan) {
            Rows::One => return Ok(signed(equal())),
            Rows::OneIf(kept) => return Ok(signed(kept.is_true().and(equal()))),
            Rows::Some | Rows::Any => check(&subquery, &["IN"], true)?,
        }
    }
    let stays = if negated {
        // The join that knows NULL does not know which rows belong to the row around it, and takes
        // a constant for a condition of the other side alone.
        at == At::Top && !correlated && !expr.column_refs().is_empty()
    } else {
        at == At::Top || at == At::Within
    };
    if stays {
        // Of nothing but such values, the join would be a condition of the other side.
        if expr.column_refs().is_empty() {
            once(&expr)?;
        }
        return Ok(Expr::InSubquery(InSubquery { expr, subquery, negated }));
    }
    once(&expr)?;
    let plan = &values_of(plan)?;
    let outer = outer(expr.as_ref().clone(), scope)?;
    let met = number(plan, Some(ident(VALUE).eq(outer)))?;
    let unknown = expr.is_null().or(number(plan, Some(ident(VALUE).is_null()))?.gt(lit(0_i64)));
    let value = when(met.gt(lit(0_i64)), lit(true))
        .when(number(plan, None)?.eq(lit(0_i64)), lit(false))
        .when(unknown, lit(ScalarValue::Boolean(None)))
        .otherwise(lit(false))?;
    Ok(signed(value))
}

/// `x op ANY (…)` and `x op ALL (…)`. What is not true of all is true of one: `x op ALL` is not
/// `x (not op) ANY`.
fn compared(asked: SetComparison, scope: &DFSchema) -> Result<Expr> {
    let SetComparison { expr, subquery, op, quantifier } = asked;
    let all = quantifier == SetQuantifier::All;
    let of_one = if all { op.negate() } else { Some(op) };
    let Some(op) = of_one else {
        let message = "ANY and ALL compare by =, <>, <, <=, > and >=";
        return Err(refused(&["ANY", "ALL", "SOME"], message, "write it with EXISTS"));
    };
    let asked = |expr| if all { not(expr) } else { expr };
    if op == Operator::Eq {
        let one = InSubquery { expr, subquery, negated: all };
        return is_in(one, At::Value, scope);
    }
    check(&subquery, &["ANY", "ALL", "SOME"], true)?;
    once(&expr)?;
    let plan = &values_of(&subquery.subquery)?;
    let column = ident(VALUE);
    let aggregate = |function: Expr| -> Result<Expr> {
        let plan = LogicalPlanBuilder::from(plan.as_ref().clone())
            .aggregate(Vec::<Expr>::new(), [function])?
            .build()?;
        Ok(scalar_subquery(Arc::new(plan)))
    };
    let binary =
        |op, right: Expr| Expr::BinaryExpr(BinaryExpr::new(expr.clone(), op, Box::new(right)));
    let (least, most) = (aggregate(min(column.clone()))?, aggregate(max(column.clone()))?);
    let met = match op {
        Operator::Lt | Operator::LtEq => binary(op, most),
        Operator::Gt | Operator::GtEq => binary(op, least),
        _ => binary(op, least).or(binary(op, most)),
    };
    let rows = number(plan, None)?;
    let unknown = expr.clone().is_null().or(rows.clone().gt(aggregate(count(column))?));
    let value = when(rows.eq(lit(0_i64)), lit(false))
        .when(met, lit(true))
        .when(unknown, lit(ScalarValue::Boolean(None)))
        .otherwise(lit(false))?;
    Ok(asked(value))
}

/// Refuses what cannot be looked at more than once, and within the subquery: a value that is
/// another one each time, and one of a subquery that looks at the row around it.
fn once(expr: &Expr) -> Result<()> {
    let looks = |part: &Expr| match part {
        Expr::ScalarSubquery(asked) => Ok(!asked.outer_ref_columns.is_empty()),
        _ => Ok(false),
    };
    let message = if expr.is_volatile() {
        "what is compared with the rows of a subquery is another value each time"
    } else if expr.exists(looks)? {
        "what is compared with the rows of a subquery is a subquery that looks at the row around it"
    } else {
        return Ok(());
    };
    let hint = "compute it as a column of a subquery in FROM";
    Err(refused(&["IN", "ANY", "ALL", "SOME"], message, hint))
}

/// How many rows of a subquery there are, of those that meet a condition.
fn number(plan: &Arc<LogicalPlan>, condition: Option<Expr>) -> Result<Expr> {
    let mut rows = LogicalPlanBuilder::from(plan.as_ref().clone());
    if let Some(condition) = condition {
        rows = rows.filter(condition)?;
    }
    let counted = rows.aggregate(Vec::<Expr>::new(), [count(lit(1_i64))])?.build()?;
    Ok(scalar_subquery(Arc::new(counted)))
}

/// A subquery whose column has a name that no column around it has.
fn values_of(plan: &Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
    let column = plan.schema().columns().into_iter().next();
    let value = Expr::Column(column.unwrap_or_else(|| Column::new_unqualified(VALUE)));
    let named = LogicalPlanBuilder::from(plan.as_ref().clone()).project([value.alias(VALUE)])?;
    Ok(Arc::new(named.build()?))
}

/// An expression over the columns around a subquery, within it.
fn outer(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    let rewritten = expr.transform(|part| match part {
        Expr::Column(column) => {
            let of = scope.field_from_column(&column)?.data_type().clone();
            Ok(Transformed::yes(out_ref_col(of, column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(rewritten.data)
}

/// How many rows a subquery has, whatever its input.
enum Rows {
    One,
    /// One where this scalar is true, else none.
    OneIf(Expr),
    /// At least one.
    Some,
    Any,
}

fn rows_of(plan: &Arc<LogicalPlan>) -> Rows {
    match plan.as_ref() {
        LogicalPlan::Projection(node) => rows_of(&node.input),
        LogicalPlan::SubqueryAlias(node) => rows_of(&node.input),
        LogicalPlan::Sort(node) if node.fetch.is_none() => rows_of(&node.input),
        LogicalPlan::Distinct(node) => rows_of(node.input()),
        LogicalPlan::Filter(node) if is_aggregate(&node.input) => {
            let kept = LogicalPlanBuilder::from(node.input.as_ref().clone())
                .project([node.predicate.clone().alias("kept")])
                .and_then(LogicalPlanBuilder::build);
            kept.map_or(Rows::Any, |kept| Rows::OneIf(scalar_subquery(Arc::new(kept))))
        }
        LogicalPlan::Aggregate(node) if node.group_expr.is_empty() => Rows::One,
        LogicalPlan::Aggregate(node) if has_empty_set(node) => Rows::Some,
        _ => Rows::Any,
    }
}

/// Whether these are the columns of an aggregate without groups.
fn is_aggregate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(node) => is_aggregate(&node.input),
        LogicalPlan::Aggregate(node) => node.group_expr.is_empty(),
        _ => false,
    }
}

/// Whether an aggregate has a group that is there without rows.
pub(super) fn has_empty_set(node: &Aggregate) -> bool {
    match &node.group_expr[..] {
        [] => true,
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().any(Vec::is_empty),
        [Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_))] => true,
        _ => false,
    }
}

/// Refuses a correlated subquery in which a row comes of nothing, or that takes only some rows.
fn check(subquery: &Subquery, words: &'static [&'static str], values: bool) -> Result<()> {
    if subquery.outer_ref_columns.is_empty() {
        return Ok(());
    }
    let mut wrong = None;
    subquery.subquery.apply(|node| {
        let correlated = || !node.all_out_ref_exprs().is_empty();
        wrong = match node {
            LogicalPlan::Aggregate(node) if has_empty_set(node) && correlated() => {
                Some("has a row where nothing matches")
            }
            LogicalPlan::Limit(limit)
                if correlated()
                    && (values || !matches!(limit.get_skip_type(), Ok(SkipType::Literal(0)))) =>
            {
                Some("takes some rows only")
            }
            LogicalPlan::Window(_) if correlated() => Some("has an OVER"),
            LogicalPlan::Distinct(Distinct::On(_)) if correlated() => Some("has a DISTINCT ON"),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    })?;
    let Some(wrong) = wrong else { return Ok(()) };
    let message =
        format!("a subquery that looks at the row around it and {wrong} is not supported");
    Err(refused(words, &message, "join with the aggregate, grouped by what must be equal"))
}
