//! The costs of the parts of a table, as the statements of a session have measured them (I8).
//!
//! ```text
//!   readers ─ take ─▶ the end of a job: all nodes have the costs of all ─ keep ─▶ later statements
//!   a job begins ─ fix ─▶ all nodes know the same: splits by cost          ◀──────┘
//!                     └─▶ else: splits as if nothing was measured
//! ```
//!
//! Nodes must cut a table alike, or rows are read twice or by nobody. So the costs of a job never
//! change once they are fixed, and are used only where all nodes have fixed the same.

/// The measured cost of the rows of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartCost {
    /// The part: of a table with buckets, the number of a partition.
    pub part: u32,
    /// The cost as it is known before anything is measured: bytes that were read, and rows.
    pub size: u64,
    /// Processor time of the workers, in nanoseconds, from these rows to those of another part.
    pub work_ns: u64,
}

/// The measured costs of a source.
pub trait ReadCosts: Send + Sync {
    /// Fixes the costs by which [`splits_by_cost`](crate::source::Source::splits_by_cost) cuts the
    /// source: those that are known when this is called first. Gives a number that is the same for
    /// the same costs, and 0 if none are known.
    fn fix(&self) -> u64;

    /// Takes what the readers of this process have measured since this was called last: the parts
    /// with most work, [`PARTS_TAKEN_MAX`] at most.
    fn take(&self) -> Vec<PartCost>;

    /// Keeps the costs that all nodes have measured for statements that begin later. A part may
    /// come several times.
    fn keep(&self, costs: &[PartCost]);
}

/// Parts of a source whose costs are taken at a time. The others cost what the mean does.
pub const PARTS_TAKEN_MAX: usize = 1024;
