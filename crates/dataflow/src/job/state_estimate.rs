//! How large the state of an operator may become, from what is known before the start: the rows of
//! bounded tables, the bounds of their columns, the widths of rows and groups.

/// Where the state of an operator is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateMemory {
    /// It has none.
    Stateless,
    /// In memory.
    Resident,
    /// In memory, and on a disk where it does not fit and there is one.
    Spillable,
}

/// A part of an operator's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEstimate {
    /// The things that are counted, in the singular: `group`.
    pub unit: &'static str,
    /// The part of them that it keeps: ` of open windows`.
    pub which: String,
    /// Bytes of each.
    pub each_bytes: u64,
    /// How many there are at most over all workers; `None` where that is not known beforehand.
    pub count_max: Option<u64>,
    /// How many times all of them are kept, and by what.
    pub copies: Copies,
}

/// How many times something is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// So many times.
    pub count: u64,
    /// By each of these: `workers`.
    pub by: &'static str,
}

impl Copies {
    /// Something that is kept in one place, or in parts.
    pub const ONE: Self = Self { count: 1, by: "" };
}

impl StateEstimate {
    /// Bytes over all workers, at most.
    pub fn bytes_max(&self) -> Option<u64> {
        Some(self.count_max?.saturating_mul(self.each_bytes).saturating_mul(self.copies.count))
    }
}
