//! Windowed aggregation state in columns, merged late (S8–S12).
//!
//! Every executor aggregates all rows that it reads into state of its own, and once an epoch hands
//! over what belongs to others:
//!
//! ```text
//!  helper                                      leader of a partition
//!  rows ─ Windows::assign ─ Slices::update     Slices::merge ─ Windowed::fire ─ rows
//!                             │ end of epoch     ▲             ▲ VectorClock::least ≥ window end
//!                           give_away            │
//!                             │                Leader::accept: epoch = clock + 1, once
//!                           Partitioner::split ─► Helper::close ── (some fabric) ─┘
//! ```
//!
//! - [`Slice`] holds one slice of time: an index from keys to dense group ids ([`KeyMode`]) and one
//!   columnar [`Accumulator`] per aggregate; a batch is one to three tight loops. [`Slices`] orders
//!   them by time, and [`Windowed`] makes windows of them.
//! - [`epoch`] is the protocol by which deltas are merged exactly once, without I/O, clock or
//!   randomness.
//! - [`KeyTable`] gives keys of any types dense ids, for what keeps rows by key and folds none;
//!   [`KeySpan`] those that lie close together, without a table.
//! - [`KeyRows`] are keys as bytes, equal where the keys are: one zero, one NaN.
//! - [`Partitioner`] says which node leads a key.
//!
//! # Invariants
//! - Merging is commutative and associative, and empty state is its zero, so the merged result
//!   equals the sequential one (P2 of S12) whatever the epochs and the order of helpers. Sums of
//!   floats are the exception that they always are: their last digits depend on the order.
//! - A slice is emitted in parts that fit the cache: there is never a second copy of all groups.
//! - Dropping a slice costs nothing per key; there are no timestamps per key.
//! - In steady state a batch allocates nothing, but where Arrow encodes wide keys of several
//!   columns.
//!
//! It does not know SQL, where batches come from, how deltas travel, or what a disk is: groups that
//! do not fit memory go to a [`Disk`] that somebody gives.
#![deny(unsafe_code)]

mod aggregate;
pub mod aggregates;
pub mod epoch;
mod error;
mod frequent;
mod fused;
mod gather;
mod groups;
mod hash;
mod index;
mod kernel;
mod key_map;
mod key_span;
mod key_table;
mod keys;
mod part;
#[cfg(test)]
mod part_tests;
mod partition;
pub mod recycled;
mod saved;
mod sessions;
pub mod sim;
mod slice;
#[cfg(test)]
mod slice_tests;
mod slices;
mod spec;
mod spill;
mod table;
pub mod vector;
mod windowed;
mod windows;
mod words;

pub use aggregate::{Accumulator, Aggregate, SparseIds};
pub use error::StateError;
pub use frequent::Frequent;
pub use fused::{ConsumedRows, DenseRows, KeyOf, RawRows, Scale, Times};
pub use gather::gather;
pub use groups::{Groups, Ids};
pub use index::{KeyMode, KeyModes};
pub use kernel::prefetch;
pub use key_map::KeyMap;
pub use key_span::KeySpan;
pub use key_table::{KeyTable, NullKeys, without_dictionary};
pub use keys::{KeyRows, canonical, has_floats, with_one_nan};
pub use part::Part;
pub use partition::{Partitioner, RowsByOwner};
pub use saved::{CopiedGroups, SaveRound, SavedId};
pub use slice::Slice;
pub use slices::{SavedGroups, Slices};
pub use spec::{GroupBy, GroupColumns, StateOptions};
pub use spill::{
    Disk, DiskFile, SpillPartition, SpillPartitions, SpillStore, SpillWriter, Spilled, SpilledBatch,
};
pub use windowed::{Triggered, Windowed};
pub use windows::{RowPlace, Selections, SliceAssignment, WindowBounds, Windows};
pub use words::is_word;
