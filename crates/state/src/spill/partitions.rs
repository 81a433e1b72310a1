//! Hash partitions of what does not fit: each is processed by itself, and split by another hash if
//! it does not fit either.

use super::{SpillWriter, SpilledBatch};
use crate::StateError;

/// How often a partition is split: 32⁵ partitions are of one key each. What does not fit then never
/// will, and is processed all the same: the holder of the budget says so.
const LEVELS_MAX: u32 = 5;

/// Partitions that wait for their turn.
#[derive(Debug, Default)]
pub struct SpillPartitions {
    /// The next is the last.
    waiting: Vec<SpillPartition>,
}

/// Batches with all rows of their keys.
#[derive(Debug)]
pub struct SpillPartition {
    /// How often it was split.
    level: u32,
    /// The batches on the disk.
    pub batches: Vec<SpilledBatch>,
}

impl SpillPartitions {
    /// Batches that were not split yet, if there are any.
    pub(crate) fn new(batches: Vec<SpilledBatch>) -> Self {
        let whole = (!batches.is_empty()).then_some(SpillPartition { level: 0, batches });
        Self { waiting: whole.into_iter().collect() }
    }

    /// Takes the next partition.
    pub fn pop(&mut self) -> Option<SpillPartition> {
        self.waiting.pop()
    }

    /// Splits what a writer was given, and batches on the disk. The partitions are the next ones.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn split(
        &mut self,
        writer: SpillWriter<'_>,
        spilled: Vec<SpilledBatch>,
    ) -> Result<(), StateError> {
        let level = writer.level() + 1;
        let partitions = writer.finish_partitions(spilled)?.into_iter().rev();
        let partitions = partitions.filter(|batches| !batches.is_empty());
        self.waiting.extend(partitions.map(|batches| SpillPartition { level, batches }));
        Ok(())
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of memory: of what is known about batches.
    pub fn bytes(&self) -> usize {
        let batches = self.waiting.iter().map(|partition| partition.batches.len());
        batches.sum::<usize>() * SpilledBatch::HELD_BYTES
    }
}

impl SpillPartition {
    /// Bytes on the disk.
    pub fn bytes(&self) -> usize {
        self.batches.iter().map(SpilledBatch::bytes).sum()
    }

    /// The level of the hash that splits it next.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Whether it is split no more.
    pub fn is_last(&self) -> bool {
        self.level == LEVELS_MAX
    }

    /// Whether some batches were split by the next hash when they were written.
    pub(crate) fn is_split(&self) -> bool {
        self.batches.iter().any(|batch| batch.partition_at(self.level).is_some())
    }
}
