//! The lookup as a stage of a chain, and the end of its rows when the query is stopped.

use super::LookupRun;
use crate::error::DataflowError;
use crate::exchange::Task;
use crate::operators::downstream::{Downstream, emit_made};
use crate::operators::keyed::TURN_BATCHES;
use crate::operators::probe_chain::TURN_LOOKUPS;
use crate::operators::probe_stage::{EmittedRows, ProbeBuild, ProbeOutput, ProbeStage};
use crate::rows::selection::Selection;
use crate::runtime::metrics::OperatorMetrics;
use crate::runtime::scheduler::yield_now;

/// Batches of the partners of one batch that are emitted when the query is stopped, or that stages
/// of its chain look up; the others are dropped, and so is what is not complete without them.
const BATCHES_AFTER_STOP_MAX: usize = 64;

impl<D: Downstream> LookupRun<D> {
    /// Emits what `next` gives until there is no more, or the query is stopped.
    pub(super) async fn emit_all<'a, T>(
        &'a self,
        mut next: impl FnMut() -> Result<ProbeOutput<T>, DataflowError>,
        emit: impl Fn(T) -> Task<'a>,
    ) -> Result<(), DataflowError> {
        let (mut taken, mut yielded) = (0, 0);
        loop {
            match next()? {
                ProbeOutput::Rows(rows) => {
                    emit(rows).await?;
                    taken += 1;
                }
                ProbeOutput::Yield => taken += TURN_LOOKUPS,
                ProbeOutput::End => break,
            }
            if self.behind.is_satisfied() {
                break;
            }
            if taken > BATCHES_AFTER_STOP_MAX && self.signals.is_stopped() {
                self.is_cut.set(true);
                break;
            }
            // A row may have any number of partners.
            if taken - yielded >= TURN_BATCHES {
                yielded = taken;
                yield_now().await;
            }
        }
        Ok(())
    }
}

impl<D: Downstream> ProbeStage for LookupRun<D> {
    fn build(&self) -> Option<ProbeBuild> {
        let hashed = self.table.borrow().clone().filter(|_| !self.is_cut.get())?;
        Some(ProbeBuild { hashed, passes: EmittedRows::All })
    }

    fn counters(&self) -> Option<&OperatorMetrics> {
        self.metrics.operators().get(self.instance.tag as usize)
    }

    fn next(&self) -> Option<&dyn ProbeStage> {
        self.behind.next_stage()
    }

    fn emit(&self, rows: Selection) -> Task<'_> {
        emit_made(&self.behind, rows)
    }
}
