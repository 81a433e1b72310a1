//! Filters on values that are never the same twice, such as `random() < 0.5`, stay where they are
//! written.
//!
//! DataFusion moves a filter that reads no column below any node. Below one that emits a row
//! several times, all of these would share one decision; below one that looks at several rows, the
//! others would not be seen.

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// DataFusion's rule for all other filters.
#[derive(Debug, Default)]
pub(crate) struct PushDownStableFilter(PushDownFilter);

impl OptimizerRule for PushDownStableFilter {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = &plan else { return self.0.rewrite(plan, config) };
        // Of filters above each other the rule makes one.
        let mut parts = split_conjunction_owned(filter.predicate.clone());
        let mut input = &filter.input;
        while let LogicalPlan::Filter(below) = input.as_ref() {
            parts.extend(split_conjunction_owned(below.predicate.clone()));
            input = &below.input;
        }
        let (volatile, stable): (Vec<_>, Vec<_>) = parts.into_iter().partition(Expr::is_volatile);
        let Some(volatile) = conjunction(volatile).filter(|_| matters(input)) else {
            return self.0.rewrite(plan, config);
        };
        let Some(stable) = conjunction(stable) else { return Ok(Transformed::no(plan)) };
        let below = LogicalPlan::Filter(Filter::try_new(stable, input.clone())?);
        let below = self.0.rewrite(below, config)?;
        if !below.transformed {
            return Ok(Transformed::no(plan));
        }
        below.map_data(|below| Ok(LogicalPlan::Filter(Filter::try_new(volatile, below.into())?)))
    }
}

/// Whether a node emits rows several times, or looks at several rows.
fn matters(node: &LogicalPlan) -> bool {
    matches!(
        node,
        LogicalPlan::Extension(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Unnest(_)
            | LogicalPlan::Window(_)
    )
}
