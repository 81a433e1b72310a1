//! Bounds of what brokers may answer.

/// Partitions of all topics that a table reads at most: each has a queue, a state and a split.
pub(crate) const PARTITIONS_OF_PATTERN: usize = 10_000;
