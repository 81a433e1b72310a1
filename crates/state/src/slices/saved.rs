//! Groups of slices as they are saved: copies, numbers of groups that were saved before, or batches
//! on a disk.

use super::Slices;
use crate::saved::SavedBlock;
use crate::{CopiedGroups, SavedId, SpilledBatch, StateError};

/// Some groups that are saved.
#[derive(Debug)]
pub enum SavedGroups {
    /// A copy of groups in memory. Where there is a disk, there is room for the copy in the budget,
    /// or the copy is on the disk.
    Held(CopiedGroups),
    /// Groups that are the same since a round that was recorded.
    Unchanged {
        /// Their number.
        id: SavedId,
        /// About how many bytes a copy of them would have.
        bytes: usize,
    },
    /// Groups on a disk: a batch of their keys and states. It outlives the window.
    Spilled(SpilledBatch),
}

impl SavedGroups {
    /// Bytes of memory that they take beside the state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Held(groups) => groups.bytes(),
            Self::Unchanged { .. } => 0,
            Self::Spilled(_) => SpilledBatch::HELD_BYTES,
        }
    }
}

impl From<SavedBlock> for SavedGroups {
    fn from(block: SavedBlock) -> Self {
        match block {
            SavedBlock::Copied(groups) => Self::Held(groups),
            SavedBlock::Unchanged { id, bytes } => Self::Unchanged { id, bytes },
        }
    }
}

/// A block whose copy is on its way to a disk.
enum WrittenBlock {
    /// It is there, behind those before it; its number.
    Copied(Option<SavedId>),
    /// It needs no copy.
    Unchanged(SavedGroups),
}

impl Slices {
    /// Saves groups of `bytes` bytes that stay in memory and are of none of these slices, as `save`
    /// gives them. Where there is a disk and they have more than `room` bytes, copies go there.
    ///
    /// # Errors
    /// Those of the disk, of accumulators, of `save` and of `each`.
    pub(crate) fn save_resident<E: From<StateError>>(
        &self,
        (bytes, room): (usize, usize),
        save: impl FnOnce(&mut dyn FnMut(SavedBlock) -> Result<(), E>) -> Result<(), E>,
        mut each: impl FnMut(SavedGroups) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(store) = self.store().filter(|_| bytes > room) else {
            return save(&mut |block| each(block.into()));
        };
        let mut writer = store.copies();
        let mut blocks = Vec::new();
        save(&mut |block| {
            blocks.push(match block {
                SavedBlock::Copied(groups) => {
                    writer.write(groups.columns()?)?;
                    WrittenBlock::Copied(groups.id())
                }
                unchanged => WrittenBlock::Unchanged(unchanged.into()),
            });
            Ok(())
        })?;
        let mut written = writer.finish_copies(self.spec.keys.len())?.into_iter();
        for block in blocks {
            match block {
                WrittenBlock::Unchanged(groups) => each(groups)?,
                WrittenBlock::Copied(id) => {
                    let Some(copy) = written.next() else { break };
                    each(SavedGroups::Held(CopiedGroups::on_disk(id, copy)))?;
                }
            }
        }
        Ok(())
    }
}
