//! The groups of a slice as blocks of ids, which are saved one by one: a block that has not changed
//! since a round that was recorded is not copied again.
//!
//! Changes are noted from the first save on: without checkpoints a batch costs one comparison more.
//! A block that was copied in a round is copied in each later one too, until one of these rounds is
//! known to be recorded. So a round that is given up loses nothing.

use std::ops::Range;

use super::Slice;
use crate::saved::{CopiedGroups, SaveRound, SavedBlock, SavedId};
use crate::{Ids, StateError};

/// A block with fewer groups than one in this many of its ids is saved anew each time: the place of
/// a small section costs as much as its rows.
const FEW_PART: usize = 16;
/// The bit that numbers of blocks have, and numbers of batches on a disk do not.
const BLOCKS: u64 = 1 << 63;

/// The blocks of a slice at its last save, and the changes since.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// By block whether it has changed since. Blocks beyond have come since.
    changed: Vec<u8>,
    /// By block its groups as they were saved.
    saved: Vec<Saved>,
    /// An id without this many of its lowest bits is the number of its block.
    shift: u32,
}

/// A block that was saved.
#[derive(Debug, Clone, Copy)]
struct Saved {
    /// The number of its groups, unless there are too few.
    id: Option<SavedId>,
    /// Whether there are any.
    any: bool,
    /// The first round in which they were saved: each round since has them.
    round: u64,
    /// Bytes of the copy.
    bytes: usize,
}

impl Blocks {
    /// Whether changes are noted.
    #[inline]
    pub(super) fn are_watched(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Whether changes are noted of one block alone.
    pub(super) fn is_one(&self) -> bool {
        self.changed.len() == 1
    }

    /// The groups of these ids change.
    pub(super) fn change(&mut self, ids: Ids<'_>) {
        let (one, each) = match ids {
            Ids::One { ref id, .. } => (std::slice::from_ref(id), &[][..]),
            Ids::Each(ids) => (&[][..], ids),
        };
        for &id in one.iter().chain(each) {
            if let Some(changed) = self.changed.get_mut((id >> self.shift) as usize) {
                *changed = 1;
            }
        }
    }

    /// Groups of this range of ids may change.
    pub(super) fn change_within(&mut self, ids: Range<usize>) {
        let end = ids.end.div_ceil(1 << self.shift).min(self.changed.len());
        if let Some(changed) = self.changed.get_mut(ids.start >> self.shift..end) {
            changed.fill(1);
        }
    }

    /// Any groups may change.
    pub(super) fn change_any(&mut self) {
        self.changed.fill(1);
    }

    /// All groups are gone.
    pub(super) fn forget(&mut self) {
        self.changed.clear();
        self.saved.clear();
    }

    /// A block that is as it was saved.
    fn unchanged(&self, block: usize) -> Option<Saved> {
        let changed = *self.changed.get(block)?;
        (changed == 0).then(|| self.saved[block])
    }
}

impl Slice {
    /// Gives all groups, which stay, block by block: copies, and the numbers of blocks that have
    /// not changed since a round that was recorded. New numbers are made of `serial`, which no
    /// other save of the operator has.
    ///
    /// # Errors
    /// Errors of accumulators and of `each`; [`StateError::BeingDrained`].
    pub(crate) fn save<E: From<StateError>>(
        &mut self,
        round: SaveRound,
        serial: u64,
        mut each: impl FnMut(SavedBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.giving.is_some() {
            return Err(StateError::BeingDrained.into());
        }
        self.settle()?;
        let shift = self.spec.options.block_ids.max(1).ilog2();
        let total = if self.started { self.index.total() } else { 0 };
        let mut all = Vec::with_capacity(total.div_ceil(1 << shift));
        for (block, start) in (0..total).step_by(1 << shift).enumerate() {
            let ids = start..total.min(start + (1 << shift));
            let before = self.blocks.unchanged(block);
            match before {
                Some(Saved { id: Some(id), round: of, bytes, .. })
                    if Some(of) <= round.recorded =>
                {
                    all.extend(before);
                    each(SavedBlock::Unchanged { id, bytes })?;
                    continue;
                }
                Some(Saved { any: false, .. }) => {
                    all.extend(before);
                    continue;
                }
                _ => {}
            }
            let new = (Some((BLOCKS | serial, block as u32)), round.round);
            let (id, round) = before.map_or(new, |saved| (saved.id, saved.round));
            let copied = self.copied(ids, id)?;
            let id = copied.as_ref().and_then(CopiedGroups::id);
            let bytes = copied.as_ref().map_or(0, CopiedGroups::bytes);
            all.push(Saved { id, any: copied.is_some(), round, bytes });
            copied.map_or(Ok(()), |copied| each(SavedBlock::Copied(copied)))?;
        }
        let changed = vec![0; all.len()];
        self.blocks = Blocks { changed, saved: all, shift };
        Ok(())
    }

    /// A copy of the groups of a block, if there are any: of its tables, or of its columns where an
    /// accumulator gives nothing else. With few groups it has no number.
    fn copied(
        &mut self,
        ids: Range<usize>,
        id: Option<SavedId>,
    ) -> Result<Option<CopiedGroups>, StateError> {
        let occupied = self.occupied(ids.clone());
        let rows = occupied.as_ref().map_or(ids.len(), |marks| marks.count_set_bits());
        if rows == 0 {
            return Ok(None);
        }
        let occupied = occupied.filter(|_| rows < ids.len());
        let part = self.part(&ids, occupied.as_ref());
        let id = id.filter(|_| rows >= self.spec.options.block_ids / FEW_PART);
        let copies = self.accumulators.iter().map(|of| of.copied(ids.clone()));
        let Some(copies) = copies.collect::<Option<Vec<_>>>() else {
            let columns = self.columns_of(&part, |accumulator, part| accumulator.state(part))?;
            return Ok(Some(CopiedGroups::of_columns(id, columns)));
        };
        let keys = self.index.copied(&self.spec.keys, &part)?;
        Ok(Some(CopiedGroups::of_tables(id, ids, occupied, keys, copies)))
    }
}
