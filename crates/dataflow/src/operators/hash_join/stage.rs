//! Rows of the probe side look up the build: of this join alone, or of all joins of its chain.

use super::HashJoinRun;
use crate::error::DataflowError;
use crate::exchange::{Member, Task};
use crate::job::hash_join::PROBE;
use crate::operators::downstream::{Downstream, emit_made};
use crate::operators::probe_stage::{EmittedRows, ProbeBuild, ProbeStage};
use crate::pairing::Pairing;
use crate::rows::selection::Selection;
use crate::rows::wire::compact;
use crate::runtime::metrics::OperatorMetrics;

impl<D: Downstream> HashJoinRun<D> {
    /// Looks up the partners of rows of the probe side, and emits the results.
    pub(super) async fn probe(&self, rows: Selection) -> Result<(), DataflowError> {
        if let Some(chain) = &self.chain
            && let Some(mut pass) = chain.pass(self, &rows)?
        {
            return self.give(pass.last(), || pass.next()).await;
        }
        self.count_probed(rows.len());
        let passes = self.table.borrow().as_ref().map_or(EmittedRows::None, |of| of.passes);
        let Some(rows) = passes.of_rows(rows, &self.spec.sides[PROBE].keys)? else {
            return Ok(());
        };
        let Some(rows) = self.spill_probe(rows)? else { return self.account() };
        if let Some(pairing) = self.table.borrow_mut().as_mut().and_then(|of| of.pairing.as_mut()) {
            pairing.push(rows);
        }
        let next = |pairing: &mut Pairing| pairing.next_probed(self.terms(), self.rows_max);
        self.give(self, || Ok(self.of_table(next)?.into())).await
    }

    /// Writes rows of the probe side to the disk if the build is there; otherwise returns them.
    fn spill_probe(&self, rows: Selection) -> Result<Option<Selection>, DataflowError> {
        let share = self.accounting.share(self.instance.tag);
        match &mut *self.spilled.borrow_mut() {
            Some(spilled) => {
                spilled.push(PROBE, compact(rows.materialized()?), share)?;
                Ok(None)
            }
            None => Ok(Some(rows)),
        }
    }
}

impl<D: Downstream> ProbeStage for HashJoinRun<D> {
    /// Rows of a build on the disk meet those of the probe side there.
    fn build(&self) -> Option<ProbeBuild> {
        let table = self.table.borrow();
        let table = table.as_ref().filter(|_| self.spilled.borrow().is_none())?;
        Some(ProbeBuild { hashed: table.pairing.as_ref()?.shared(), passes: table.passes })
    }

    fn count_probed(&self, rows: usize) {
        self.count(|of| &of.probe_rows, rows as u64);
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
