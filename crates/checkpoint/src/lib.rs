//! Layer 2: the durable half of recovery.
//!
//! A job stores *checkpoints* under a directory or in a bucket. A checkpoint is a record in the
//! *chain* of the job, and *segments*, which hold the state of its operators:
//!
//! ```text
//! <job>/chain/00000000000000000412   a record: a line with its checksum, then JSON
//! <job>/seg/g7-n2-000031.seg         sections of all workers of a node, of one checkpoint
//! <job>/keep/<name>                  a record copied under a name: never collected
//! <job>/collected/00000000000000000400   records below this one were deleted
//! ```
//!
//! A record is created once and never replaced. Each run of a job is a *generation*, and its first
//! record is `begin`; a process of an older generation finds that record where its own next one
//! would go, and has lost ([`chain`]). There is no leader election and no lock server.
//!
//! The decisions are values without input and output ([`chain::Claim`], [`chain::Append`]), which
//! `models/tests/chain.rs` explores; [`chain::Chain`] runs them on a [`Store`].
//!
//! Out of scope: what a section means, when a checkpoint is taken, Arrow, SQL, async runtimes.
#![forbid(unsafe_code)]

pub mod chain;
pub mod conformance;
mod error;
pub mod hostile;
mod process;
pub mod record;
pub mod secrets;
pub mod segment;
pub mod store;

pub use error::{CheckpointError, StoreError, WriteEffect};
pub use record::{
    BaseCheckpoint, Begin, CheckpointManifest, Holder, OperatorEntry, Record, RecordBody,
    SegmentEntry, SinkEntry, SourceEntry, SplitEntry, StagedPart, TableEntry,
};
pub use store::{
    Created, DirectoryStore, MemoryStore, ObjectName, ObjectWriter, Store, StoredObject,
};
