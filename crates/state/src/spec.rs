//! The specification that the slices of an operator have in common.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use crate::{Aggregate, KeyMode, Part, SparseIds, StateError};

/// The part of the budget that is a sparse array's share, if nobody says otherwise.
pub(crate) const ARRAY_PART: usize = 8;

/// What rows are grouped by and what is computed of each group: shared by all slices of an
/// operator.
#[derive(Debug)]
pub struct GroupBy {
    /// The types of the keys.
    pub keys: Vec<DataType>,
    /// The aggregates.
    pub aggregates: Vec<Arc<dyn Aggregate>>,
    /// Limits and preferences.
    pub options: StateOptions,
}

/// Limits and preferences of state.
#[derive(Debug, Clone)]
pub struct StateOptions {
    /// How many bytes all slices of an operator may hold. Exceeded by at most what one batch adds.
    pub budget_bytes: usize,
    /// How many keys the range of an array may have, at most 2³⁰.
    pub array_range_max: usize,
    /// The key mode to use wherever the keys allow it.
    pub key_mode: Option<KeyMode>,
    /// How many ids of groups make a block, which is saved as a whole where one of them has
    /// changed: a power of two.
    pub block_ids: usize,
}

impl Default for StateOptions {
    /// 1 GiB, arrays up to 128 Mi keys, key modes by what the data are like, blocks of 16 Ki ids.
    fn default() -> Self {
        let (budget_bytes, array_range_max) = (1 << 30, 128 << 20);
        Self { budget_bytes, array_range_max, key_mode: None, block_ids: 1 << 14 }
    }
}

/// Groups as columns: row `i` of each column is of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupColumns {
    /// The keys, in their original types.
    pub keys: Vec<ArrayRef>,
    /// The states of all aggregates one after another, or one column of values per aggregate.
    pub states: Vec<ArrayRef>,
}

impl GroupColumns {
    /// How many groups.
    pub fn rows(&self) -> usize {
        self.keys.first().or(self.states.first()).map_or(0, |column| column.len())
    }
}

impl GroupBy {
    /// The key mode to use, if one is forced that keys of these types can be found by.
    pub fn forced_mode(&self) -> Option<KeyMode> {
        self.options.key_mode.filter(|mode| mode.suits(&self.keys))
    }

    /// Whether one loop may find the groups of rows and update them ([`crate::RawRows`]), by the
    /// key mode that is forced, if one is; `has_args` tells whether the aggregate has an argument.
    pub fn fuses(&self, has_args: bool) -> bool {
        match self.forced_mode() {
            None | Some(KeyMode::Tiny | KeyMode::Array) => true,
            // Rows without arguments wait there.
            Some(KeyMode::Ranges) => has_args,
            Some(KeyMode::One | KeyMode::Hash | KeyMode::Packed | KeyMode::Wide) => false,
        }
    }

    /// The types of the columns of a delta's `states`.
    pub fn state_types(&self) -> Vec<DataType> {
        self.aggregates.iter().flat_map(|aggregate| aggregate.state_types()).collect()
    }

    /// Whether an aggregate may keep arrays that it was given ([`Aggregate::keeps_arrays`]).
    pub fn keeps_arrays(&self) -> bool {
        self.aggregates.iter().any(|aggregate| aggregate.keeps_arrays())
    }

    /// The types of the values.
    pub fn output_types(&self) -> Vec<DataType> {
        self.aggregates.iter().map(|aggregate| aggregate.output_type()).collect()
    }

    /// The values of a group without rows: what a query without keys answers over no input.
    ///
    /// # Errors
    /// Those of [`crate::Accumulator::values`].
    pub fn of_nothing(&self) -> Result<Vec<ArrayRef>, StateError> {
        let one = Part::all(0..1, 1);
        self.aggregates.iter().map(|aggregate| aggregate.create().values(&one)).collect()
    }

    /// The memory of a key of an array's range, if ids may be sparse.
    pub(crate) fn hole_bytes(&self) -> Option<usize> {
        let emitted =
            self.aggregates.iter().any(|a| matches!(a.sparse_ids(), SparseIds::Reported(_)));
        let marks = usize::from(!emitted);
        self.aggregates.iter().try_fold(marks, |sum, aggregate| match aggregate.sparse_ids() {
            SparseIds::Refused => None,
            SparseIds::Allowed(bytes) | SparseIds::Reported(bytes) => Some(sum + bytes),
        })
    }

    /// The memory of a key of an array's range: with dense ids, its entry in the table of ids.
    pub(crate) fn id_bytes(&self) -> usize {
        self.hole_bytes().unwrap_or(size_of::<u32>())
    }
}
