//! Groups that are saved: copies, or where they lie on a disk.

use arrow::array::Array;

use crate::{GroupColumns, SpilledBatch};

/// Some groups that are saved.
#[derive(Debug)]
pub enum SavedGroups {
    /// A copy of groups in memory, for which there is room in the budget where there is a disk.
    Held(GroupColumns),
    /// A copy of groups that never go to a disk, however much room there is.
    Resident(GroupColumns),
    /// Groups on a disk: a batch of their keys and states. It outlives the window.
    Spilled(SpilledBatch),
}

impl SavedGroups {
    /// Bytes of memory that they take beside the state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Held(GroupColumns { keys, states })
            | Self::Resident(GroupColumns { keys, states }) => {
                keys.iter().chain(states).map(|column| column.get_array_memory_size()).sum()
            }
            Self::Spilled(_) => SpilledBatch::HELD_BYTES,
        }
    }
}
