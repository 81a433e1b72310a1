//! Groups of a slice that are saved: copies, or the numbers of what was saved before.
//!
//! A worker copies its tables as they are, block by block, and only blocks that have changed. Their
//! columns are made of the copy when it is stored, on another thread.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use arrow::array::{Array, ArrayRef};
use arrow::buffer::BooleanBuffer;

use crate::index::CopiedKeys;
use crate::{Accumulator, GroupColumns, Part, StateError};

/// The number of groups that do not change as long as they have it. No other groups of an operator
/// on one worker have it, be they in memory or on a disk.
pub type SavedId = (u64, u32);

/// The round in which groups are saved.
#[derive(Debug, Clone, Copy, Default)]
pub struct SaveRound {
    /// Its number; numbers ascend.
    pub round: u64,
    /// The last round that is known to be recorded: it is not given up any more, and its groups can
    /// be read where they are stored. Groups that were saved in it, or before it and in each round
    /// since, are not copied again if they have not changed.
    pub recorded: Option<u64>,
}

/// A block of groups of a slice, or some part of it, that is saved.
#[derive(Debug)]
pub(crate) enum SavedBlock {
    /// A copy.
    Copied(CopiedGroups),
    /// The same groups as in a round that was recorded.
    Unchanged {
        /// Their number.
        id: SavedId,
        /// About how many bytes a copy of them would have.
        bytes: usize,
    },
}

/// Groups that are read when they are stored.
pub(crate) trait UnreadGroups: Send + Sync {
    /// Keys and partial states.
    ///
    /// # Errors
    /// Those of the disk.
    fn read(&self) -> Result<GroupColumns, StateError>;

    /// Bytes of memory that they take until then.
    fn held_bytes(&self) -> usize;
}

/// A copy of groups: their columns are made when they are asked for.
pub struct CopiedGroups(Copied);

enum Copied {
    Columns {
        id: Option<SavedId>,
        columns: GroupColumns,
    },
    Tables {
        id: Option<SavedId>,
        ids: Range<usize>,
        /// Which of the ids have rows, if not all.
        occupied: Option<BooleanBuffer>,
        keys: CopiedKeys,
        /// The groups of the ids, numbered from 0. An accumulator is read by one thread at a time.
        accumulators: Mutex<Vec<Box<dyn Accumulator>>>,
        bytes: usize,
    },
    /// On a disk, where there is no room for it in memory.
    OnDisk {
        id: Option<SavedId>,
        copy: Box<dyn UnreadGroups>,
    },
}

impl CopiedGroups {
    /// A copy of groups as columns.
    pub(crate) fn of_columns(id: Option<SavedId>, columns: GroupColumns) -> Self {
        Self(Copied::Columns { id, columns })
    }

    /// A copy of the groups `ids`, of which those have rows that are `occupied`, if not all.
    pub(crate) fn of_tables(
        id: Option<SavedId>,
        ids: Range<usize>,
        occupied: Option<BooleanBuffer>,
        keys: CopiedKeys,
        accumulators: Vec<Box<dyn Accumulator>>,
    ) -> Self {
        let states = accumulators.iter().map(|accumulator| accumulator.bytes()).sum::<usize>();
        let bytes = states + keys.bytes();
        let accumulators = Mutex::new(accumulators);
        Self(Copied::Tables { id, ids, occupied, keys, accumulators, bytes })
    }

    /// A copy on a disk.
    pub(crate) fn on_disk(id: Option<SavedId>, copy: impl UnreadGroups + 'static) -> Self {
        Self(Copied::OnDisk { id, copy: Box::new(copy) })
    }

    /// Their number, if other rounds may have the same groups.
    #[must_use]
    pub fn id(&self) -> Option<SavedId> {
        match &self.0 {
            Copied::Columns { id, .. } | Copied::Tables { id, .. } | Copied::OnDisk { id, .. } => {
                *id
            }
        }
    }

    /// Keys and partial states.
    ///
    /// # Errors
    /// Errors of accumulators, and of a disk.
    pub fn columns(&self) -> Result<GroupColumns, StateError> {
        let (ids, occupied, keys, accumulators) = match &self.0 {
            Copied::Columns { columns, .. } => return Ok(columns.clone()),
            Copied::OnDisk { copy, .. } => return copy.read(),
            Copied::Tables { ids, occupied, keys, accumulators, .. } => {
                (ids, occupied, keys, accumulators)
            }
        };
        let part = |ids: Range<usize>| match occupied {
            Some(marks) => Part::marked(ids.clone(), ids.end, marks),
            None => Part::all(ids.clone(), ids.end),
        };
        let keys = keys.columns(&part(ids.clone()))?;
        let part = part(0..ids.len());
        let mut states: Vec<ArrayRef> = Vec::new();
        for accumulator in &mut *accumulators.lock().unwrap_or_else(PoisonError::into_inner) {
            states.extend(accumulator.state(&part)?);
        }
        Ok(GroupColumns { keys, states })
    }

    /// Bytes of memory that the copy takes beside the state.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Copied::Columns { columns: GroupColumns { keys, states }, .. } => {
                // A part of columns that other blocks have too counts as itself.
                let bytes = |column: &ArrayRef| match column.to_data().get_slice_memory_size() {
                    Ok(bytes) => bytes,
                    Err(_) => column.get_array_memory_size(),
                };
                keys.iter().chain(states).map(bytes).sum()
            }
            Copied::Tables { bytes, .. } => *bytes,
            Copied::OnDisk { copy, .. } => copy.held_bytes(),
        }
    }
}

impl From<GroupColumns> for CopiedGroups {
    fn from(columns: GroupColumns) -> Self {
        Self::of_columns(None, columns)
    }
}

impl std::fmt::Debug for CopiedGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopiedGroups").field("id", &self.id()).finish_non_exhaustive()
    }
}
