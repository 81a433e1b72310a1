//! Where the tables of a plan were named.
//!
//! The nodes of DataFusion's plans have no places, and the optimizer makes others of them; what
//! stays are the tables that they read. So each of them carries where it was named: in the query,
//! and in the views and `WITH` queries through which the query came to it. A node is of the part of
//! the text that names all of its tables and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::sql::sqlparser::ast::{Spanned, TableFactor};

use crate::catalog::{Named, ScannedTable};
use crate::text::diagnostics::Place;

/// Writes into the tables of a plan where they were named.
#[derive(Debug)]
pub(crate) struct Naming {
    /// The number of the script.
    script: u64,
    /// Whether the next table is left to DataFusion.
    passes: AtomicBool,
}

impl Naming {
    pub(crate) fn new(script: u64) -> Self {
        Self { script, passes: AtomicBool::new(false) }
    }
}

impl RelationPlanner for Naming {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let is_table = matches!(relation, TableFactor::Table { args: None, .. });
        if !is_table || self.passes.swap(false, Ordering::Relaxed) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let TableFactor::Table { name, .. } = &relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let named = Named { script: self.script, place: Place::of(name.span()) };
        self.passes.store(true, Ordering::Relaxed);
        let plan = named_in(context.plan(relation)?, named)?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
    }
}

/// The plan, whose tables have been named there.
fn named_in(plan: LogicalPlan, named: Named) -> Result<LogicalPlan> {
    let named = plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::TableScan(mut scan) => match scan.source.downcast_ref::<ScannedTable>() {
            Some(source) => {
                scan.source = Arc::new(source.named_in(named));
                Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
            }
            None => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
        },
        other => Ok(Transformed::no(other)),
    })?;
    Ok(named.data)
}
