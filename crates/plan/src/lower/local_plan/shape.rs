//! The nodes that can run in parts, and the distribution of rows that this requires.

use std::sync::Arc;

use dataflow::job::Property;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Distinct, Expr, GroupingSet, Join, LogicalPlan};

use crate::explain::plain;

/// The distribution that a node requires of an input.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RequiredDistribution {
    /// Rows are partitioned by these expressions over the columns of the input.
    Key(Vec<Expr>),
    /// Rows go to every worker if this is the smaller of two inputs; else they stay.
    Smaller,
    /// Rows go to every worker.
    Everywhere,
    /// Rows stay where they are.
    Stay,
    /// Rows go to one worker.
    One,
}

/// A node as an operator of each worker.
pub(super) struct Shape<'a> {
    /// For EXPLAIN and errors.
    pub(super) name: &'static str,
    pub(super) properties: Vec<Property>,
    pub(super) inputs: Vec<(&'a LogicalPlan, RequiredDistribution)>,
}

impl<'a> Shape<'a> {
    /// The shape of a node, if it can run in parts, or over all rows on one worker.
    pub(super) fn of(plan: &'a LogicalPlan) -> Option<Self> {
        match plan {
            LogicalPlan::Window(window) => Some(Self {
                name: "Window",
                properties: vec![("functions", shown(&window.window_expr))],
                inputs: vec![(
                    &*window.input,
                    RequiredDistribution::by(partition_of(&window.window_expr)?),
                )],
            }),
            LogicalPlan::Aggregate(aggregate) => {
                let keys = keys_of(&aggregate.group_expr);
                let mut properties = vec![];
                if !aggregate.group_expr.is_empty() {
                    properties.push(("group by", shown(&aggregate.group_expr)));
                }
                properties.push(("aggregates", shown(&aggregate.aggr_expr)));
                let inputs = vec![(&*aggregate.input, RequiredDistribution::by(keys))];
                Some(Self { name: "Aggregate", properties, inputs })
            }
            LogicalPlan::Join(join) if join.on.is_empty() => Some(Self::of_join(join)),
            LogicalPlan::Unnest(unnest) => Some(Self {
                name: "Unnest",
                properties: vec![],
                inputs: vec![(&*unnest.input, RequiredDistribution::Stay)],
            }),
            LogicalPlan::Distinct(Distinct::On(distinct)) => Some(Self {
                name: "DistinctOn",
                properties: vec![("keys", shown(&distinct.on_expr))],
                inputs: vec![(
                    &*distinct.input,
                    RequiredDistribution::by(distinct.on_expr.clone()),
                )],
            }),
            LogicalPlan::Filter(filter) => Some(Self {
                name: "Filter",
                properties: vec![("where", shown(std::slice::from_ref(&filter.predicate)))],
                inputs: vec![(&*filter.input, RequiredDistribution::Stay)],
            }),
            LogicalPlan::Projection(projection) => Some(Self {
                name: "Projection",
                properties: vec![("computes", shown(&projection.expr))],
                inputs: vec![(&*projection.input, RequiredDistribution::Stay)],
            }),
            _ => None,
        }
    }

    /// The shape of a join without an equality.
    fn of_join(join: &'a Join) -> Self {
        use RequiredDistribution::{Everywhere, One, Smaller, Stay};
        let condition = join.filter.as_ref();
        let properties = condition.map(|on| ("on", shown(std::slice::from_ref(on))));
        let required = match join.join_type {
            JoinType::Inner => [Smaller, Smaller],
            JoinType::Full => [One, One],
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                [Stay, Everywhere]
            }
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                [Everywhere, Stay]
            }
        };
        Self {
            name: if condition.is_some() { "NestedLoopJoin" } else { "CrossJoin" },
            properties: properties.into_iter().collect(),
            inputs: [&*join.left, &*join.right].into_iter().zip(required).collect(),
        }
    }
}

impl RequiredDistribution {
    fn by(keys: Vec<Expr>) -> Self {
        if keys.is_empty() { RequiredDistribution::One } else { RequiredDistribution::Key(keys) }
    }
}

fn shown(exprs: &[Expr]) -> String {
    let text = |expr: &Expr| plain(&expr.human_display().to_string(), &[]);
    exprs.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The expressions that the `PARTITION BY` of all functions of a node have.
fn partition_of(functions: &[Expr]) -> Option<Vec<Expr>> {
    let mut functions = functions.iter().map(function_of);
    let mut by = functions.next()??.params.partition_by.clone();
    for function in functions {
        let other = &function?.params.partition_by;
        by.retain(|expr| other.contains(expr));
    }
    Some(by)
}

fn function_of(mut expr: &Expr) -> Option<&WindowFunction> {
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    match expr {
        Expr::WindowFunction(function) => Some(function),
        _ => None,
    }
}

/// The expressions that all grouping sets have.
fn keys_of(by: &[Expr]) -> Vec<Expr> {
    match by {
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => {
            let mut sets = sets.iter();
            let mut keys = sets.next().cloned().unwrap_or_default();
            sets.for_each(|set| keys.retain(|key| set.contains(key)));
            keys
        }
        [Expr::GroupingSet(_)] => vec![],
        keys => keys.to_vec(),
    }
}

/// The scalar subqueries of a node's expressions; `None` if there are subqueries of another kind,
/// or subqueries that read columns of the node.
pub(super) fn subqueries_of(plan: &LogicalPlan) -> Option<Vec<Arc<LogicalPlan>>> {
    let (mut found, mut other) = (vec![], false);
    for expr in plan.expressions() {
        // The closure never fails.
        let _ = expr.apply(|part| {
            match part {
                Expr::ScalarSubquery(asked) if asked.outer_ref_columns.is_empty() => {
                    found.push(asked.subquery.clone());
                }
                Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..) => other = true,
                _ => return Ok(TreeNodeRecursion::Continue),
            }
            Ok(TreeNodeRecursion::Jump)
        });
    }
    (!other).then_some(found)
}
