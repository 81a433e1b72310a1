//! Scalar subqueries that look at the row around them in a way that DataFusion makes no join of.
//!
//! It joins by what is equal on both sides, and knows aggregates only. So here
//!
//! - `(SELECT x FROM b WHERE b.k = a.k)` becomes the first value and the number of rows, which is
//!   looked at as the value is used: more than one is an error;
//! - `(SELECT x … ORDER BY y LIMIT 1)` becomes the first value in that order;
//! - of `(SELECT count(*) FROM b WHERE b.k > a.k)`, and where an aggregate computes with `a.k`, the
//!   rows are joined with the distinct values that `a.k` has, and what is compared with the row
//!   around them by `=` is that value.

use std::sync::{Arc, LazyLock};

use arrow::array::AsArray;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::expr_fn::coalesce;
use datafusion::functions_aggregate::expr_fn::{count, first_value};
use datafusion::logical_expr::expr::Sort as Order;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{
    conjunction, find_out_reference_exprs, split_conjunction_owned,
};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, ColumnarValue, Distinct, Expr, FetchType, Filter, LogicalPlan,
    LogicalPlanBuilder, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, SkipType, Subquery, Volatility, lit, scalar_subquery,
};

use super::refused;
use super::subqueries::has_empty_set;

/// How the names of columns begin that are values of the rows around.
const AROUND: &str = "__around_";

/// Rewrites the scalar subqueries of a projection or a filter.
pub(super) fn rewrite(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let input = match &node {
        LogicalPlan::Projection(node) => node.input.clone(),
        LogicalPlan::Filter(node) => node.input.clone(),
        _ => return Ok(Transformed::no(node)),
    };
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        let rewritten = expr.transform_up(|part| match part {
            Expr::ScalarSubquery(asked) if !asked.outer_ref_columns.is_empty() => {
                value(&asked, &input).map(Transformed::yes)
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(rewritten.update_data(|expr| name.restore(expr)))
    })
}

/// The value of a subquery as that of aggregates.
fn value(asked: &Subquery, input: &Arc<LogicalPlan>) -> Result<Expr> {
    let plan = &asked.subquery;
    check(plan)?;
    if let Some(computed) = computed(plan, input)? {
        return Ok(computed);
    }
    let joined = |plan| by_values(plan, input).map(|plan| scalar_subquery(Arc::new(plan)));
    if is_aggregate(plan) {
        return joined(plan.as_ref().clone());
    }
    if let LogicalPlan::Limit(limit) = plan.as_ref() {
        let one = matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(1))))
            && matches!(limit.get_skip_type(), Ok(SkipType::Literal(0)));
        return if one {
            joined(first(&limit.input)?)
        } else {
            Err(some_rows("takes some rows only"))
        };
    }
    let aggregated = |function: Expr| -> Result<Expr> {
        let rows = LogicalPlanBuilder::from(plan.clone());
        joined(rows.aggregate(Vec::<Expr>::new(), [function])?.build()?)
    };
    let Some(column) = plan.schema().columns().into_iter().next() else {
        return joined(plan.as_ref().clone());
    };
    let rows = aggregated(count(lit(1_i64)))?;
    let value = aggregated(first_value(Expr::Column(column), vec![]))?;
    Ok(ONLY.call(vec![value, rows]))
}

/// What a subquery computes of its one row and the row around it is computed around it, of
/// subqueries that give the columns of that row.
fn computed(plan: &Arc<LogicalPlan>, input: &Arc<LogicalPlan>) -> Result<Option<Expr>> {
    let LogicalPlan::Projection(node) = plan.as_ref() else { return Ok(None) };
    let [expr] = &node.expr[..] else { return Ok(None) };
    let one_row =
        |plan: &LogicalPlan| matches!(plan, LogicalPlan::Aggregate(a) if a.group_expr.is_empty());
    if !expr.contains_outer() || !one_row(&node.input) {
        return Ok(None);
    }
    let around = expr.clone().unalias().transform_up(|part| match part {
        Expr::OuterReferenceColumn(_, column) => Ok(Transformed::yes(Expr::Column(column))),
        Expr::Column(_) => {
            let of = LogicalPlanBuilder::from(node.input.clone()).project([part])?.build()?;
            match scalar_subquery(Arc::new(of)) {
                Expr::ScalarSubquery(asked) => value(&asked, input).map(Transformed::yes),
                other => Ok(Transformed::yes(other)),
            }
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(Some(around.data))
}

fn some_rows(does: &str) -> DataFusionError {
    let message = format!("a subquery that looks at the row around it and {does} is not supported");
    refused(&["SELECT"], &message, "join with the aggregate, grouped by what must be equal")
}

/// Refuses what would see the rows of all rows around it, or have none where it has to have one.
fn check(plan: &LogicalPlan) -> Result<()> {
    let looks = |node: &LogicalPlan| !node.all_out_ref_exprs().is_empty();
    let mut top = plan;
    loop {
        top = match top {
            LogicalPlan::Projection(node) => &node.input,
            LogicalPlan::SubqueryAlias(node) => &node.input,
            LogicalPlan::Filter(node) if matches!(*node.input, LogicalPlan::Aggregate(_)) => {
                if node.predicate.contains_outer() {
                    return Err(some_rows("compares an aggregate with it"));
                }
                &node.input
            }
            LogicalPlan::Aggregate(node) if node.group_expr.is_empty() => {
                top = &node.input;
                break;
            }
            _ => break,
        }
    }
    top.apply(|node| match node {
        LogicalPlan::Window(_) if looks(node) => Err(some_rows("has an OVER")),
        LogicalPlan::Distinct(Distinct::On(_)) if looks(node) => {
            Err(some_rows("has a DISTINCT ON"))
        }
        LogicalPlan::Aggregate(aggregate) if has_empty_set(aggregate) && looks(node) => {
            Err(some_rows("has a row where nothing matches, within another aggregate"))
        }
        _ => Ok(TreeNodeRecursion::Continue),
    })
    .map(drop)
}

/// Whether these are columns of an aggregate, of which DataFusion knows how many rows it has.
fn is_aggregate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(node) => is_aggregate(&node.input),
        LogicalPlan::SubqueryAlias(node) => is_aggregate(&node.input),
        LogicalPlan::Filter(node) => matches!(*node.input, LogicalPlan::Aggregate(_)),
        LogicalPlan::Aggregate(_) => true,
        _ => false,
    }
}

/// The first of sorted rows: of their one column, the first value in their order.
fn first(rows: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let column = |plan: &LogicalPlan| plan.schema().columns().into_iter().next().map(Expr::Column);
    let (value, order, input): (_, Vec<Order>, _) = match rows.as_ref() {
        LogicalPlan::Sort(sort) => (column(rows), sort.expr.clone(), &sort.input),
        LogicalPlan::Projection(node) => match node.input.as_ref() {
            LogicalPlan::Sort(sort) => (node.expr.first().cloned(), sort.expr.clone(), &sort.input),
            _ => (column(rows), vec![], rows),
        },
        _ => (column(rows), vec![], rows),
    };
    let Some(value) = value else { return Ok(rows.as_ref().clone()) };
    let first = first_value(value.unalias(), order);
    LogicalPlanBuilder::from(input.clone()).aggregate(Vec::<Expr>::new(), [first])?.build()
}

/// A subquery that compares with the row around it by `=`.
fn by_values(plan: LogicalPlan, input: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let mut around = Around { input, known: 0 };
    let rewritten = plan.transform_up(|node| match node {
        LogicalPlan::Filter(filter) => around.filtered(filter),
        LogicalPlan::Aggregate(aggregate) => around.aggregated(aggregate),
        // Columns that are joined by come up through a projection.
        LogicalPlan::SubqueryAlias(node) if !node.input.all_out_ref_exprs().is_empty() => {
            let columns = node.input.schema().columns().into_iter();
            let columns = columns.map(|column| {
                let name = column.name.clone();
                Expr::Column(column).alias_qualified(Some(node.alias.clone()), name)
            });
            let columns: Vec<_> = columns.collect();
            let named = LogicalPlanBuilder::from(node.input.clone()).project(columns)?;
            named.build().map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(rewritten.data)
}

/// The rows around a subquery.
struct Around<'a> {
    input: &'a Arc<LogicalPlan>,
    /// How many of their columns are joined.
    known: usize,
}

/// Rows that are joined with all values of columns around them.
struct Joined {
    plan: LogicalPlanBuilder,
    /// The columns, and what stands for each.
    columns: Vec<(Expr, Expr)>,
    /// Which of the values are those of the row around.
    own: Vec<Expr>,
}

impl Joined {
    /// An expression over the values in place of the row around.
    fn within(&self, expr: Expr) -> Result<Expr> {
        let rewritten = expr.transform(|part| {
            let value = self.columns.iter().find(|(column, _)| *column == part);
            Ok(match value {
                Some((_, value)) => Transformed::yes(value.clone()),
                None => Transformed::no(part),
            })
        })?;
        Ok(rewritten.data)
    }
}

impl Around<'_> {
    fn filtered(&mut self, filter: Filter) -> Result<Transformed<LogicalPlan>> {
        let conditions = split_conjunction_owned(filter.predicate.clone());
        let hard = |condition: &Expr| condition.contains_outer() && !joins(condition);
        let (hard, mut stay): (Vec<_>, Vec<_>) = conditions.into_iter().partition(hard);
        let Some(mut joined) = self.joined(&filter.input, &hard)? else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        for condition in hard {
            stay.push(joined.within(condition)?);
        }
        stay.append(&mut joined.own);
        let columns = filter.input.schema().columns().into_iter().map(Expr::Column);
        let Some(condition) = conjunction(stay) else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        joined.plan.filter(condition)?.project(columns)?.build().map(Transformed::yes)
    }

    fn aggregated(&mut self, aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
        let exprs = [&aggregate.group_expr[..], &aggregate.aggr_expr[..]].concat();
        // The values that rows beneath are compared with do not come up through another join.
        if self.known > 0 && exprs.iter().any(Expr::contains_outer) {
            return Err(some_rows("computes with it what it compares by other than ="));
        }
        let Some(mut joined) = self.joined(&aggregate.input, &exprs)? else {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        };
        let own = conjunction(std::mem::take(&mut joined.own));
        let named = |expr: Expr| -> Result<Expr> {
            let name = expr.schema_name().to_string();
            let within = joined.within(expr)?;
            Ok(if within.schema_name().to_string() == name { within } else { within.alias(name) })
        };
        let groups = aggregate.group_expr.into_iter().map(named).collect::<Result<Vec<_>>>()?;
        let functions = aggregate.aggr_expr.into_iter().map(named).collect::<Result<Vec<_>>>()?;
        let plan = match own {
            Some(own) => joined.plan.filter(own)?,
            None => joined.plan,
        };
        plan.aggregate(groups, functions)?.build().map(Transformed::yes)
    }

    /// `rows`, joined with the values that the columns have which `exprs` look at; none if they
    /// look at none, or these values cannot be asked for a second time.
    fn joined(&mut self, rows: &Arc<LogicalPlan>, exprs: &[Expr]) -> Result<Option<Joined>> {
        let mut outer: Vec<Expr> = vec![];
        for found in exprs.iter().flat_map(find_out_reference_exprs) {
            if !outer.contains(&found) {
                outer.push(found);
            }
        }
        if outer.is_empty() || !self.is_same_again()? {
            return Ok(None);
        }
        let (mut values, mut columns, mut own) = (vec![], vec![], vec![]);
        for outer in outer {
            let Expr::OuterReferenceColumn(field, column) = &outer else { return Ok(None) };
            if !self.input.schema().has_column(column) {
                return Ok(None);
            }
            let Ok(default) = ScalarValue::new_default(field.data_type()) else {
                return Ok(None);
            };
            let name = |what: &str| format!("{AROUND}{}{what}", self.known);
            let (value, key, none) = (name(""), name("_key"), name("_none"));
            self.known += 1;
            let key_of = |expr: Expr| coalesce(vec![expr, lit(default.clone())]);
            let inner = Expr::Column(column.clone());
            values.push(key_of(inner.clone()).alias(&key));
            values.push(inner.clone().is_null().alias(&none));
            values.push(inner.alias(&value));
            own.push(named(&key).eq(key_of(outer.clone())));
            own.push(named(&none).eq(outer.clone().is_null()));
            columns.push((outer, named(&value)));
        }
        let values = LogicalPlanBuilder::from(self.input.clone()).project(values)?.distinct()?;
        let plan = LogicalPlanBuilder::from(rows.clone()).cross_join(values.build()?)?;
        Ok(Some(Joined { plan, columns, own }))
    }

    /// Whether the rows around are the same when they are asked for again, and by themselves.
    fn is_same_again(&self) -> Result<bool> {
        let mut same = self.input.all_out_ref_exprs().is_empty();
        self.input.apply_with_subqueries(|node| {
            same &= !node.expressions().iter().any(Expr::is_volatile);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(same)
    }
}

fn named(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

/// Whether DataFusion joins by a condition above an aggregate.
fn joins(condition: &Expr) -> bool {
    let column = |expr: &Expr| match expr {
        Expr::Column(_) => true,
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Column(_)),
        _ => false,
    };
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
            column(left) && !right.any_column_refs() || column(right) && !left.any_column_refs()
        }
        _ => false,
    }
}

/// `__only(value, rows)`: the value, if there is no more than one row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Only {
    signature: Signature,
}

static ONLY: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::any(2, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Only { signature }))
});

impl ScalarUDFImpl for Only {
    fn name(&self) -> &str {
        "__only"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = args.arg_fields[0].as_ref().clone();
        Ok(field.with_name(self.name()).with_nullable(true).into())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.args[1].cast_to(&DataType::Int64, None)?.to_array(args.number_rows)?;
        let most = arrow::compute::max(rows.as_primitive::<Int64Type>());
        if most > Some(1) {
            let message = "a subquery that stands for a value has more than one row here";
            return Err(DataFusionError::Execution(message.into()));
        }
        Ok(args.args.into_iter().next().unwrap_or(ColumnarValue::Scalar(ScalarValue::Null)))
    }
}
