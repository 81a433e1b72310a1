//! How long windows and joins wait behind the watermark: `SET millstream.allowed_lateness`, and
//! `LATENESS => INTERVAL '…'` of a window.
//!
//! The watermarks of all tables of a statement are behind by the least lateness; what is asked to
//! wait longer has the rest on its edges ([`Edge::lateness`]). So where one is said for all, edges
//! have none. Rows that come from an operator which has waited for them are not late any more.

use arrow::datatypes::DataType;
use dataflow::job::Edge;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::logical::windows::{WindowAssign, lateness_of};
use crate::lower::Lowering;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::relation::{LowerError, Relation};
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;

impl Lowering<'_> {
    /// The least lateness of a plan.
    pub(crate) fn waits_ns(&self, plan: &LogicalPlan) -> i64 {
        let mut least = self.default_ns();
        // The closure never fails, so neither does the walk.
        let _ = plan.apply_with_subqueries(|node| {
            let assigned = WindowAssign::of(node).and_then(|assign| assign.of.lateness_ns);
            least = assigned.map_or(least, |ns| least.min(ns));
            Ok(TreeNodeRecursion::Continue)
        });
        least
    }

    /// The value of SET.
    fn default_ns(&self) -> i64 {
        i64::try_from(self.settings.allowed_lateness_ns).unwrap_or(i64::MAX)
    }
}

/// Lets watermarks be behind on the edges of rows that come from tables, by what the window
/// among `requested` says beyond what the tables wait.
pub(crate) fn wait(
    cx: &Context<'_>,
    job: &JobBuilder,
    relation: &Relation,
    requested: &[Expr],
    time: Option<&Expr>,
    edges: &mut [Edge],
) -> Result<(), LowerError> {
    let asked = written(relation, requested);
    let reads: Vec<bool> = edges.iter().map(|edge| reads(job, edge.from)).collect();
    if asked.is_some() && !reads.contains(&true) {
        let message = "LATENESS is of a window over rows of a table";
        return Err(Refusal::new(&["LATENESS"], message)
            .always()
            .detail("what comes from another window or join has waited for its rows already")
            .hint("say it of the window that is next to the table")
            .into());
    }
    let Some(time) = time.filter(|_| edges.iter().any(|edge| edge.timed)) else {
        return Ok(());
    };
    let more = asked.unwrap_or_else(|| cx.lowering.default_ns()) - cx.waits_ns;
    let tick = match time.get_type(&relation.scan) {
        Ok(DataType::Timestamp(unit, _)) => tick_ns(unit),
        _ => 1,
    };
    let ticks = more.unsigned_abs().div_ceil(tick.unsigned_abs());
    let ticks = i64::try_from(ticks).unwrap_or(i64::MAX);
    for (edge, _) in edges.iter_mut().zip(reads).filter(|(edge, reads)| edge.timed && *reads) {
        edge.lateness = ticks;
    }
    Ok(())
}

/// Whether rows of an operator come from a table without having waited.
fn reads(job: &JobBuilder, operator: usize) -> bool {
    let Some(operator) = job.operators.get(operator) else { return false };
    !operator.spec().waits_for_rows()
        && operator.inputs.iter().flatten().all(|edge| reads(job, edge.from))
}

/// The lateness that is written for the window of rows.
fn written(relation: &Relation, requested: &[Expr]) -> Option<i64> {
    let mut found = relation.lateness_ns;
    let outputs = relation.outputs.iter().map(|(_, expr)| expr);
    for expr in requested.iter().chain(outputs).chain(&relation.filters) {
        // The closure never fails, so neither does the walk.
        let _ = expr.apply(|part| {
            found = found.or_else(|| lateness_of(part));
            Ok(TreeNodeRecursion::Continue)
        });
    }
    found
}
