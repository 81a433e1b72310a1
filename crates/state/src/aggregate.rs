//! What an aggregate function is to this crate.
//!
//! An [`Aggregate`] is a factory that all slices share; an [`Accumulator`] holds one aggregate for
//! all groups of one slice, in columns. Its state is a CRDT (S10): empty state is the zero, and
//! [`Accumulator::merge`] is commutative and associative, so that partial states may meet in any
//! order. Idempotence is not asked of it: the epoch protocol merges every delta once
//! ([`crate::epoch`]).

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::DataType;

use crate::{ConsumedRows, DenseRows, Groups, Part, StateError};

/// An aggregate function with its argument types: makes an [`Accumulator`] per slice.
pub trait Aggregate: Send + Sync + Debug {
    /// The types of the columns of its state.
    fn state_types(&self) -> Vec<DataType>;

    /// The type of its result.
    fn output_type(&self) -> DataType;

    /// An accumulator without groups.
    fn create(&self) -> Box<dyn Accumulator>;

    /// Whether an accumulator may keep arrays that it was given: then whoever passes arrays that
    /// lie in borrowed memory copies them first.
    fn keeps_arrays(&self) -> bool {
        true
    }

    /// Whether its accumulators take rows whose groups were not looked for
    /// ([`Accumulator::update_near`]).
    fn is_fusible(&self) -> bool {
        false
    }

    /// Whether ids without rows may lie between ids with rows.
    fn sparse_ids(&self) -> SparseIds {
        SparseIds::Refused
    }
}

/// What an accumulator makes of ids that no row was ever given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparseIds {
    /// Ids must be dense: each id below `total` had a row before `update` or `merge` returned.
    Refused,
    /// They cost a slot of this many bytes; what comes out for them is thrown away. Promised only
    /// while no argument has a null.
    Allowed(usize),
    /// As `Allowed`, and [`Accumulator::occupied`] tells them apart from ids with rows, as long as
    /// [`Accumulator::shows`] says so.
    Reported(usize),
}

/// One aggregate for all groups of one slice. A group is a row: group `g` has the state in row `g`.
pub trait Accumulator: Send {
    /// Adds rows: row `i` of `args` to group `groups[i]`. `total` is the number of groups that
    /// exist by now.
    ///
    /// # Errors
    /// [`StateError::Type`] or [`StateError::Shape`] if `args` do not fit.
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError>;

    /// Adds rows without nulls as [`Accumulator::update`] does, up to the first that is not as
    /// `near` has it, or some less: gives how many. `None` where rows are to come with their
    /// groups; then nothing has happened.
    fn update_near(&mut self, args: &[ArrayRef], near: &DenseRows<'_>) -> Option<ConsumedRows> {
        let _ = (args, near);
        None
    }

    /// Merges partial states: row `i` of `states` into group `groups[i]`.
    ///
    /// # Errors
    /// [`StateError::Type`] or [`StateError::Shape`] if `states` do not fit.
    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError>;

    /// The states of the groups of a part, which stay as they are. Each part is behind the one
    /// before until rows come; ids between two parts may be left out.
    ///
    /// # Errors
    /// [`StateError::Arrow`] if a column cannot be built.
    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError>;

    /// The results of the groups of a part. Parts follow one another without gaps; once results
    /// were read, there are only more results and [`Accumulator::clear`].
    ///
    /// # Errors
    /// [`StateError::Arrow`] if the column cannot be built.
    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError>;

    /// A copy of the groups `ids`, numbered from 0, whose states can be read later, on any thread.
    /// `None` where states can only be read by [`Accumulator::state`].
    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let _ = ids;
        None
    }

    /// Forgets all groups: each restarts from zero (S9 step 5). Groups from `total` on have had no
    /// rows. Memory may be kept.
    fn clear(&mut self, total: usize);

    /// Forgets the groups of a part: each is as if it had had no rows. Only asked where ids may
    /// have holes, hence of aggregates that stand them ([`Aggregate::sparse_ids`]) and before any
    /// null.
    fn forget(&mut self, part: &Part) {
        let _ = part;
    }

    /// Says that few groups are to be kept as many are, of which no row takes turns with another
    /// ([`crate::KeyMode::Tiny`]).
    fn keep_unreplicated(&mut self) {}

    /// Bytes held.
    fn bytes(&self) -> usize;

    /// Whether [`Accumulator::occupied`] tells all ids that rows or partial states have come for
    /// since the last [`Accumulator::clear`]. Asked after each batch.
    fn shows(&self) -> bool {
        true
    }

    /// The `ids` that had a row, if [`Aggregate::sparse_ids`] says [`SparseIds::Reported`].
    fn occupied(&self, ids: Range<usize>) -> Option<BooleanBuffer> {
        let _ = ids;
        None
    }
}
