//! Rewrites of SQL that DataFusion would give another meaning than the standard does.
//!
//! Each rule is a file. It works on the tokens of a query, on its syntax tree or on its plan before
//! that is optimized: whichever has what the rule needs. What a rule cannot write in another way
//! that is right, it refuses with a place. A rule leaves alone what it has written itself, because
//! a view is rewritten when it is defined and again in each query that names it.

mod bags;
mod beneath;
pub(crate) mod called;
pub(crate) mod casts;
pub(crate) mod comparisons;
pub(crate) mod conditions;
mod correlated;
mod decimals;
pub(crate) mod files;
mod frames;
mod intervals;
mod named_windows;
mod numbers;
mod overflow;
mod pinned;
pub(crate) mod replaced;
pub(crate) mod sorts;
mod subqueries;
mod timestamps;
mod titles;
mod using;
pub(crate) mod versions;
mod volatile;

pub(crate) use using::MergingJoins;

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::sql::sqlparser::ast::Query;

use crate::expr::growth::joined;
use crate::logical::errors::PlanError;

/// Rewrites the syntax tree; gives what plans its joins. The columns `alone`, without a table, are
/// those that joins merge.
///
/// # Errors
/// An expression that cannot be rewritten so that it is right.
pub(crate) fn tree(query: &mut Query, alone: &HashSet<String>) -> Result<Arc<MergingJoins>> {
    named_windows::rewrite(query)?;
    titles::rewrite(query);
    timestamps::rewrite(query);
    numbers::rewrite(query)?;
    Ok(Arc::new(using::rewrite(query, alone)))
}

/// Rewrites the plan before its types are coerced.
///
/// # Errors
/// As [`tree`].
pub(crate) fn before_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    conditions::check(&plan)?;
    comparisons::check(&plan)?;
    let plan = pinned::rewrite(subqueries::rewrite(called::rewrite(plan)?)?)?;
    decimals::rewrite(frames::rewrite(bags::rewrite(versions::rewrite(plan)?)?)?)
}

/// Rewrites the plan when its types are final.
///
/// # Errors
/// As [`tree`].
pub(crate) fn after_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = casts::rewrite(intervals::rewrite(plan)?)?;
    overflow::check(&plan)?;
    joined::bounded(plan)
}

/// The rules of the optimizer: DataFusion's, with filters pushed down as they may be.
pub(crate) fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    let stable: Arc<dyn OptimizerRule + Send + Sync> =
        Arc::new(volatile::PushDownStableFilter::default());
    for rule in &mut rules {
        if rule.name() == stable.name() {
            *rule = stable.clone();
        }
    }
    rules
}

/// The error that something is not carried out, at the first of `words`.
fn refused(words: &'static [&'static str], message: &str, hint: &'static str) -> DataFusionError {
    PlanError::Refused { words, message: message.into(), hint }.into()
}
