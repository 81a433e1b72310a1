//! Windows that emit results before they end: `EMIT EVERY …`.
//!
//! Nothing is taken back, so that rows must not be taken for more than they are behind the grouping
//! whose windows these are: only filters, projections and `UNION ALL` may stand between it and the
//! statement's sink. `EMIT_KIND()` is a column of that grouping.

use datafusion::logical_expr::LogicalPlan;

use crate::logical::windows::{WindowAssign, WindowShape};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::grouping::GroupWindow;
use crate::lower::relation::{Base, LowerError, Relation};
use crate::text::emit::Emit;
use crate::text::refusal::Refusal;

/// How many windows of a row may be emitted early: each has a copy of its groups made for it,
/// every time.
const WINDOWS_OF_ROW_MAX: i64 = 100;

const MULTIPLIED: &str = "their rows are multiplied behind their grouping";

/// Refuses EMIT where the next operator on the way from the sink is no grouping.
pub(crate) fn check_emit(cx: &Context<'_>, plan: &LogicalPlan) -> Result<(), LowerError> {
    let Some(emit) = &cx.emit else { return Ok(()) };
    let behind = match plan {
        LogicalPlan::TableScan(_) => return Err(emit.without_windows().into()),
        LogicalPlan::Join(_) => "they are joined behind their grouping",
        LogicalPlan::Window(_) => "rows are numbered, or looked at together, behind their grouping",
        LogicalPlan::Unnest(_) => MULTIPLIED,
        other => match WindowAssign::of(other).map(|assign| assign.of.shape) {
            Some(WindowShape::Hop | WindowShape::Cumulate) => MULTIPLIED,
            Some(WindowShape::Session) => "rows wait for their session behind their grouping",
            Some(WindowShape::Tumble) | None => return Ok(()),
        },
    };
    Err(emit
        .refused(behind)
        .detail("what an early row went into could not be taken back")
        .hint("leave EMIT out, or INSERT the windows into a table and query that")
        .into())
}

/// Refuses EMIT for a grouping of which there is nothing to tell before its windows end.
pub(crate) fn can_emit(
    job: &JobBuilder,
    emit: &Emit,
    relation: &Relation,
    window: &Option<GroupWindow>,
) -> Result<(), LowerError> {
    match window {
        None => Err(emit.without_windows().into()),
        Some(GroupWindow::Call { call, .. }) if call.shape == WindowShape::Session => Err(emit
            .refused("a session that has not ended may still become part of another one")
            .hint("leave EMIT out, or take windows that do not depend on rows: TUMBLE, HOP")
            .into()),
        Some(GroupWindow::Call { call, .. }) => {
            let most = call.lengths.size_ns / call.lengths.slide_ns;
            if most <= WINDOWS_OF_ROW_MAX {
                return Ok(());
            }
            Err(emit
                .refused(&format!("each row is in {most} of them"))
                .detail(format!("{WINDOWS_OF_ROW_MAX} windows of a row are the most"))
                .hint("make the slide or step longer")
                .into())
        }
        Some(GroupWindow::Attached(_)) if !waits(job, relation) => Ok(()),
        Some(GroupWindow::Attached(_)) => Err(emit
            .refused("what they are made of comes when they have ended")
            .detail("it comes from another grouping, a join or a DISTINCT of the same windows")
            .hint("leave EMIT out; count(DISTINCT …) may be approx_distinct(…)")
            .into()),
    }
}

/// Whether rows wait in some operator before they come.
fn waits(job: &JobBuilder, relation: &Relation) -> bool {
    let keeps =
        |at: usize| job.operators.get(at).is_some_and(|operator| operator.spec().waits_for_rows());
    match &relation.base {
        Base::Operators { from, .. } => from.iter().any(|(at, _)| keeps(*at)),
        Base::Table(_) | Base::Lookup(_) => false,
        Base::United { parts, .. } => parts.iter().any(|part| waits(job, part)),
    }
}

/// Why a grouping has no early rows.
pub(crate) fn kind_unknown() -> Refusal {
    Refusal::new(&["EMIT_KIND"], "the grouping next to the statement's sink knows EMIT_KIND()")
        .hint("leave it out here")
}
