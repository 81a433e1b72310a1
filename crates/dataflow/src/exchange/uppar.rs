//! The exchange `uppar` (S13), the baseline of Slash: half of the workers read, and the others lead
//! the keys. It is a [`Shuffle`](super::Shuffle) with another partition: see
//! [`halves`](crate::job::halves).

use super::Partition;

/// Leads rows by the columns `keys` to half of the workers.
pub(crate) fn partition(keys: &[usize], worker: u32, workers: u32) -> Partition {
    Partition::by_half(keys, worker, workers)
}
