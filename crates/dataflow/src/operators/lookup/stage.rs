//! The lookup as a stage of a chain.

use super::LookupRun;
use crate::error::DataflowError;
use crate::exchange::Task;
use crate::operators::downstream::Downstream;
use crate::operators::probe_stage::{EmittedRows, ProbeBuild, ProbeStage};
use crate::rows::selection::Selection;
use crate::runtime::metrics::OperatorMetrics;

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
        Box::pin(async move {
            let pushed = self.behind.push_selection(rows).await;
            pushed.map_err(DataflowError::of_made_rows)
        })
    }
}
