//! The end of a fused scan: one loop looks whether times are in order, filters, computes keys and
//! updates groups ([`RawRows`](state::RawRows)), where otherwise one loop after another waits for
//! memory.

use state::ConsumedRows;

use super::Grouping;
use super::fold::NO_WINDOW;
use crate::error::DataflowError;
use crate::operators::downstream::Downstream;
use crate::operators::operator::Fused;
use crate::rows::FusedRows;

/// Batches that are pushed without trying the loop after it could not take all rows of one: the
/// filter was evaluated for nothing.
const PAUSE: u32 = 16;

impl<D: Downstream> Grouping<D> {
    /// Folds rows of a fused scan, from the first on, as far as it can: `raw` says what their keys
    /// and arguments are made of. The rest comes with [`Grouping::push`].
    pub(super) fn fold_fused(
        &self,
        Fused { rows: FusedRows { batch, times }, raw, .. }: Fused<'_>,
    ) -> Result<ConsumedRows, DataflowError> {
        debug_assert!(!self.sends_rows(), "such a scan is not fused");
        if let Some(left) = self.pause.get().checked_sub(1) {
            self.pause.set(left);
            return Ok(ConsumedRows::default());
        }
        let slice = match &self.spec.window {
            None => Some(NO_WINDOW),
            Some(_) => times.and_then(|times| self.key_of(times.span()?)),
        };
        let Some(slice) = slice else { return Ok(ConsumedRows::default()) };
        if !self.bounded().slices().takes_raw(slice) {
            return Ok(ConsumedRows::default());
        }
        let raw = raw()?;
        let rows = raw.as_ref().and_then(|raw| Some((raw.rows(times)?, raw.arg.as_slice())));
        let Some((rows, args)) = rows else { return Ok(ConsumedRows::default()) };
        let folded = self.bounded().slices().update_raw(slice, &rows, args)?;
        if folded.rows < batch.num_rows() {
            self.pause.set(PAUSE);
        }
        self.metrics.count_fused(self.instance.tag, folded.rows);
        self.publish_bytes()?;
        Ok(folded)
    }
}
