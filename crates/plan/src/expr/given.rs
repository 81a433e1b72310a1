//! The functions and aggregates of the program that a query calls, for reports and for recovery.

use std::sync::Arc;
use std::time::Duration;

use dataflow::job::JobFunction;
use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};

use crate::expr::batch::{self, BatchFunction, FunctionVolatility};
use crate::expr::batch_aggregate::{self, BatchAggregate};

/// A function that the program has given.
#[derive(Clone)]
pub(crate) enum GivenFunction {
    Scalar(Arc<dyn BatchFunction>),
    Aggregate(Arc<dyn BatchAggregate>),
}

/// How a function of the program was called in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FunctionUsage {
    /// Calls, each with a batch.
    pub calls: u64,
    /// Rows of all batches.
    pub rows: u64,
    /// The time within it, over all workers.
    pub ran: Duration,
    /// The time of waiting for a lock that it holds while it runs, over all workers.
    pub waited: Duration,
}

impl FunctionUsage {
    /// The usage since an earlier one.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            rows: self.rows.saturating_sub(before.rows),
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

/// A function of the program, and how it was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalledFunction {
    /// Its name in SQL.
    pub name: String,
    /// How it was called.
    pub usage: FunctionUsage,
}

impl GivenFunction {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Scalar(function) => function.name(),
            Self::Aggregate(aggregate) => aggregate.name(),
        }
    }

    pub(crate) fn called(&self) -> CalledFunction {
        let usage = match self {
            Self::Scalar(function) => function.usage(),
            Self::Aggregate(aggregate) => aggregate.usage(),
        };
        CalledFunction { name: self.name().to_owned(), usage }
    }

    pub(crate) fn of_job(&self) -> JobFunction {
        let (fingerprint, volatile) = match self {
            Self::Scalar(function) => {
                (function.fingerprint(), function.volatility() == FunctionVolatility::Volatile)
            }
            Self::Aggregate(aggregate) => (aggregate.fingerprint(), false),
        };
        JobFunction { name: self.name().to_owned(), fingerprint, volatile }
    }

    /// Adds the functions that are not there yet.
    pub(crate) fn add_new(to: &mut Vec<Self>, functions: Vec<Self>) {
        for function in functions {
            if to.iter().all(|known| known.name() != function.name()) {
                to.push(function);
            }
        }
    }

    /// Adds the functions that a plan calls and that are not there yet, in the order of their
    /// names.
    pub(crate) fn add_used(to: &mut Vec<Self>, plan: &LogicalPlan) -> Result<()> {
        plan.apply_with_subqueries(|node| {
            node.apply_expressions(|expr| {
                expr.apply(|part| {
                    if let Some(function) = given(part)
                        && to.iter().all(|known| known.name() != function.name())
                    {
                        to.push(function);
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        to.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(())
    }
}

fn given(expr: &Expr) -> Option<GivenFunction> {
    match expr {
        Expr::ScalarFunction(call) => {
            batch::given(call.func.inner().as_ref()).map(GivenFunction::Scalar)
        }
        Expr::AggregateFunction(call) => {
            batch_aggregate::given(&call.func).map(GivenFunction::Aggregate)
        }
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => {
                batch_aggregate::given(function).map(GivenFunction::Aggregate)
            }
            WindowFunctionDefinition::WindowUDF(_) => None,
        },
        _ => None,
    }
}
