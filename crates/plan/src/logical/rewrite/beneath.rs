//! Subqueries of `ORDER BY`, of windows and of aggregates, as columns of a projection beneath.
//!
//! DataFusion makes a join of a subquery that looks at the row around it where rows are filtered or
//! their columns computed, and nowhere else. What has a subquery is therefore computed as a column
//! of the rows that come in; a projection behind drops it where the node would hand it on.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{
    AggregateFunctionParams, Sort as Order, WindowFunctionParams,
};
use datafusion::logical_expr::utils::find_out_reference_exprs;
use datafusion::logical_expr::{
    Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, Projection, Sort, Window, ident,
};

use super::{correlated, refused};

/// How the names of such columns begin.
const COLUMN: &str = "__beneath_";

/// Takes the subqueries out of a node that sorts, groups or looks at the rows around one.
pub(super) fn rewrite(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !node.expressions().iter().any(asks) {
        return Ok(Transformed::no(node));
    }
    match node {
        LogicalPlan::Sort(sort) => sorted(sort).map(Transformed::yes),
        LogicalPlan::Window(window) => framed(window).map(Transformed::yes),
        LogicalPlan::Aggregate(aggregate) => grouped(aggregate).map(Transformed::yes),
        node => Ok(Transformed::no(node)),
    }
}

/// Whether an expression has the value of a subquery in it.
fn asks(expr: &Expr) -> bool {
    let subquery = |part: &Expr| Ok(matches!(part, Expr::ScalarSubquery(_)));
    expr.exists(subquery).unwrap_or(true)
}

/// The columns that go beneath a node.
#[derive(Default)]
struct Beneath(Vec<Expr>);

impl Beneath {
    /// The column of an expression that has a subquery; any other stays as it is.
    fn take(&mut self, expr: &mut Expr) {
        if !asks(expr) {
            return;
        }
        let at = self.0.iter().position(|known| known == expr).unwrap_or_else(|| {
            self.0.push(expr.clone());
            self.0.len() - 1
        });
        *expr = ident(format!("{COLUMN}{at}"));
    }

    fn take_orders(&mut self, orders: &mut [Order]) {
        orders.iter_mut().for_each(|order| self.take(&mut order.expr));
    }

    /// A key of a grouping, which is called as it was.
    fn take_key(&mut self, key: &mut Expr) {
        if asks(key) {
            let name = key.schema_name().to_string();
            self.take(key);
            *key = std::mem::take(key).alias(name);
        }
    }

    fn take_aggregate(&mut self, params: &mut AggregateFunctionParams) {
        params.args.iter_mut().for_each(|arg| self.take(arg));
        params.filter.iter_mut().for_each(|filter| self.take(filter));
        self.take_orders(&mut params.order_by);
    }

    fn take_window(&mut self, params: &mut WindowFunctionParams) {
        params.args.iter_mut().for_each(|arg| self.take(arg));
        params.partition_by.iter_mut().for_each(|key| self.take(key));
        params.filter.iter_mut().for_each(|filter| self.take(filter));
        self.take_orders(&mut params.order_by);
    }

    /// The rows of `input` with these columns.
    fn over(self, input: Arc<LogicalPlan>) -> Result<LogicalPlanBuilder> {
        let columns = input.schema().columns().into_iter().map(Expr::Column);
        let named = self.0.into_iter().enumerate();
        let named = named.map(|(at, expr)| expr.alias(format!("{COLUMN}{at}")));
        let columns = columns.chain(named).collect::<Vec<_>>();
        let projected = LogicalPlanBuilder::from(input).project(columns)?.build()?;
        Ok(LogicalPlanBuilder::from(correlated::rewrite(projected)?.data))
    }
}

fn sorted(mut sort: Sort) -> Result<LogicalPlan> {
    let columns = sort.input.schema().columns();
    let input = with_what_is_looked_at(sort.input, &sort.expr)?;
    let mut beneath = Beneath::default();
    beneath.take_orders(&mut sort.expr);
    let input = beneath.over(input)?.build()?;
    let sorted = LogicalPlan::Sort(Sort { input: Arc::new(input), ..sort });
    LogicalPlanBuilder::from(sorted).project(columns.into_iter().map(Expr::Column))?.build()
}

/// The rows that are sorted, with the columns that subqueries look at and the result has not.
fn with_what_is_looked_at(input: Arc<LogicalPlan>, orders: &[Order]) -> Result<Arc<LogicalPlan>> {
    let mut missing: Vec<Column> = vec![];
    for order in orders {
        order.expr.apply(|part| {
            if let Expr::ScalarSubquery(asked) = part {
                for outer in asked.outer_ref_columns.iter().flat_map(find_out_reference_exprs) {
                    let Expr::OuterReferenceColumn(_, column) = outer else { continue };
                    if !input.schema().has_column(&column) && !missing.contains(&column) {
                        missing.push(column);
                    }
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    if missing.is_empty() {
        return Ok(input);
    }
    match input.as_ref() {
        LogicalPlan::Projection(Projection { expr, input: from, .. })
            if missing.iter().all(|column| from.schema().has_column(column)) =>
        {
            let exprs = expr.iter().cloned().chain(missing.into_iter().map(Expr::Column));
            let wider =
                LogicalPlanBuilder::from(from.clone()).project(exprs.collect::<Vec<_>>())?;
            wider.build().map(Arc::new)
        }
        LogicalPlan::Distinct(_) => {
            let message = "behind DISTINCT, a subquery of ORDER BY looks at columns of the result";
            Err(refused(&["ORDER"], message, "select what it looks at too"))
        }
        _ => Ok(input),
    }
}

fn framed(window: Window) -> Result<LogicalPlan> {
    let columns = window.schema.columns();
    let mut beneath = Beneath::default();
    let mut functions = window.window_expr;
    for function in &mut functions {
        let name = function.schema_name().to_string();
        let mut inner = std::mem::take(function).unalias();
        if let Expr::WindowFunction(call) = &mut inner {
            beneath.take_window(&mut call.params);
        }
        *function = inner.alias(name);
    }
    let input = beneath.over(window.input)?;
    input.window(functions)?.project(columns.into_iter().map(Expr::Column))?.build()
}

fn grouped(aggregate: Aggregate) -> Result<LogicalPlan> {
    let Aggregate { input, mut group_expr, mut aggr_expr, .. } = aggregate;
    let mut beneath = Beneath::default();
    for key in &mut group_expr {
        match key {
            Expr::GroupingSet(GroupingSet::Rollup(keys) | GroupingSet::Cube(keys)) => {
                keys.iter_mut().for_each(|key| beneath.take_key(key));
            }
            Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
                sets.iter_mut().flatten().for_each(|key| beneath.take_key(key));
            }
            key => beneath.take_key(key),
        }
    }
    for function in &mut aggr_expr {
        let name = function.schema_name().to_string();
        let mut inner = std::mem::take(function).unalias();
        if let Expr::AggregateFunction(call) = &mut inner {
            beneath.take_aggregate(&mut call.params);
        }
        *function = inner.alias(name);
    }
    beneath.over(input)?.aggregate(group_expr, aggr_expr)?.build()
}
