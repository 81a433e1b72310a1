//! Folds rows as they were read: one loop looks whether times are in order, filters, computes keys
//! and updates groups ([`RawRows`](state::RawRows)), where otherwise one loop after another waits
//! for memory.

use state::Folded;

use super::Grouping;
use super::fold::NO_WINDOW;
use crate::error::DataflowError;
use crate::job::{RawBatch, RawColumns};
use crate::operators::downstream::Downstream;
use crate::rows::Ahead;

/// When not all rows of a batch can be folded so, as many go the way of all others at once: what a
/// filter says of them was found for nothing.
const PAUSE: u32 = 16;

impl<D: Downstream> Grouping<D> {
    /// Folds in rows of a source as they were read, from the first on, as far as it can: `raw` says
    /// what is to be done to them, and `timed` that windows are over the source's own times. What
    /// is said of the rest comes with [`Grouping::push`].
    ///
    /// # Errors
    /// When a filter or state fails.
    pub(crate) fn fold_ahead(
        &self,
        raw: RawColumns<'_>,
        timed: bool,
        Ahead { batch, times }: Ahead<'_>,
    ) -> Result<Folded, DataflowError> {
        if let Some(left) = self.pause.get().checked_sub(1) {
            self.pause.set(left);
            return Ok(Folded::default());
        }
        let (key, arg) = match (&self.spec.keys[..], &self.spec.args[..]) {
            ([key], [args]) if args.len() < 2 => (*key, args.first().copied()),
            _ => return Ok(Folded::default()),
        };
        let slice = match &self.spec.window {
            None => Some(NO_WINDOW),
            Some(_) => times.filter(|_| timed).and_then(|times| self.slice_of(times.span()?)),
        };
        let Some(slice) = slice.filter(|_| !self.sends_rows()) else {
            return Ok(Folded::default());
        };
        if !self.bounded().slices().takes_raw(slice) {
            return Ok(Folded::default());
        }
        let of_type = |raw: &RawBatch| *raw.key_type() == self.spec.group_by.keys[0];
        let raw = raw(key, arg)?.filter(of_type);
        let rows = raw.as_ref().and_then(|raw| Some((raw.rows(times)?, raw.arg.as_slice())));
        let Some((rows, args)) = rows else { return Ok(Folded::default()) };
        let folded = self.bounded().slices().update_raw(slice, &rows, args)?;
        if folded.rows < batch.num_rows() {
            self.pause.set(PAUSE);
        }
        self.metrics.count_fused(self.instance.tag, folded.rows);
        self.publish_bytes()?;
        Ok(folded)
    }
}
