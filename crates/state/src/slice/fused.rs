//! Rows that are folded in by one loop, which finds their groups itself: [`crate::fused`].

use arrow::array::{Array, ArrayRef};

use super::{Input, Slice};
use crate::index::Index;
use crate::{ConsumedRows, Groups, Ids, RawRows, StateError, words};

impl Slice {
    /// Whether rows that were read for the slice are likely to be taken by [`Slice::update_raw`].
    pub(crate) fn takes_raw(&self) -> bool {
        self.takes_near() && self.giving.is_none()
    }

    /// Adds rows as they were read, up to the first that is not as they have it, or some less: none
    /// where rows are to come in columns. `args` are the argument columns of the only aggregate.
    ///
    /// # Errors
    /// As [`Slice::update`].
    pub(crate) fn update_raw(
        &mut self,
        rows: &RawRows<'_>,
        args: &[ArrayRef],
    ) -> Result<ConsumedRows, StateError> {
        if !self.takes_raw() || args.iter().any(|arg| arg.logical_null_count() > 0) {
            return Ok(ConsumedRows::default());
        }
        self.clear_drained();
        self.fold_near(rows, args)
    }

    /// Folds in rows whose groups need not be looked for, up to the first of which this cannot be
    /// said: tells how many.
    pub(super) fn apply_near(
        &mut self,
        keys: &[ArrayRef],
        input: Input<'_>,
    ) -> Result<usize, StateError> {
        let (Input::Rows([args]), [key]) = (input, keys) else { return Ok(0) };
        if !self.takes_near() || key.null_count() > 0 {
            return Ok(0);
        }
        let mut scratch = std::mem::take(&mut self.words);
        let words = words::words(key, &mut scratch)?;
        let folded = self.fold_near(&RawRows::of(words), args)?;
        self.words = scratch;
        Ok(folded.rows)
    }

    /// Whether there may be rows whose groups need not be looked for.
    fn takes_near(&self) -> bool {
        // What may have to leave memory first is taken whole or not at all.
        !self.spills && self.occupancy.is_some() && self.accumulators.len() == 1 && self.is_direct()
    }

    fn fold_near(
        &mut self,
        rows: &RawRows<'_>,
        args: &[ArrayRef],
    ) -> Result<ConsumedRows, StateError> {
        let waits = args.is_empty() && self.is_far();
        let (Index::Array(index), [accumulator]) = (&mut self.index, &mut self.accumulators[..])
        else {
            return Ok(ConsumedRows::default());
        };
        let near = index.near(*rows).filter(|_| !waits);
        let folded = near.and_then(|near| accumulator.update_near(args, &near)).unwrap_or_default();
        if folded.passed > 0 {
            self.started = true;
            index.reached(folded.reach);
            let shows = accumulator.shows();
            let watched = self.blocks.are_watched() && !self.blocks.is_one();
            let noted = self.touched.remembers(folded.rows) || watched;
            if !shows || (rows.are_plain() && noted) {
                let mut ids = std::mem::take(&mut self.ids);
                debug_assert!(rows.are_plain(), "words are keys, and all count");
                index.intern(&rows.words[..folded.rows], None, &mut ids)?;
                self.touched.add(&ids);
                self.blocks.change(Ids::Each(&ids));
                if !shows {
                    self.mark_occupied();
                    self.mark(&Groups::each(&ids));
                }
                self.ids = ids;
            } else {
                self.touched.add_any();
                self.blocks.change_any();
            }
        }
        Ok(folded)
    }
}
