//! Groups of slices as they are saved: copies, numbers of groups that were saved before, or batches
//! on a disk.

use crate::saved::SavedBlock;
use crate::{CopiedGroups, SavedId, SpilledBatch};

/// Some groups that are saved.
#[derive(Debug)]
pub enum SavedGroups {
    /// A copy of groups in memory, for which there is room in the budget where there is a disk.
    Held(CopiedGroups),
    /// A copy of groups that never go to a disk, however much room there is.
    Resident(CopiedGroups),
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
    /// A block of a slice that may go to a disk.
    pub(crate) fn held(block: SavedBlock) -> Self {
        Self::of(block, Self::Held)
    }

    /// A block of a slice that stays in memory.
    pub(crate) fn resident(block: SavedBlock) -> Self {
        Self::of(block, Self::Resident)
    }

    fn of(block: SavedBlock, copied: impl FnOnce(CopiedGroups) -> Self) -> Self {
        match block {
            SavedBlock::Copied(groups) => copied(groups),
            SavedBlock::Unchanged { id, bytes } => Self::Unchanged { id, bytes },
        }
    }

    /// Bytes of memory that they take beside the state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Held(groups) | Self::Resident(groups) => groups.bytes(),
            Self::Unchanged { .. } => 0,
            Self::Spilled(_) => SpilledBatch::HELD_BYTES,
        }
    }
}
