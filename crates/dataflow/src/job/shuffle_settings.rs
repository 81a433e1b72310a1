//! How the rows of an operator's inputs are sent from worker to worker.

/// How the rows of an operator's inputs are sent, where they do not stay on their worker. Operators
/// of one job may differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShuffleSettings {
    /// Bytes of rows for the same workers that are sent together (Q5).
    pub bytes: usize,
    /// How long such rows may wait for others, in nanoseconds (W4).
    pub wait_ns: u64,
    /// Whether rows of frequent keys are folded in front of a shuffle.
    pub frequent_keys: FrequentKeys,
}

impl Default for ShuffleSettings {
    fn default() -> Self {
        Self { bytes: 16 << 10, wait_ns: 10_000_000, frequent_keys: FrequentKeys::Auto }
    }
}

/// The treatment of rows of frequent keys in front of a shuffle to an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrequentKeys {
    /// They are folded where they are read, if a sample says that it pays; groups travel.
    Auto,
    /// They are, and any key is frequent that came just before.
    On,
    /// They are shuffled as all others.
    Off,
}
