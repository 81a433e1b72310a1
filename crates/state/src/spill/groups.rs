//! Groups on a disk, and how they are put together, one hash partition at a time.
//!
//! A partition is merged into one slice if that stays within its room. If not, all of it is split
//! by the hash of its keys: what was merged already, what is still whole, and as they are the
//! batches that were split so when they were written. A key is in one partition only, so that each
//! is emitted once, whole.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::{Disk, SpillPartitions, SpillRun, SpillStore, SpillWriter, Spilled, SpilledBatch};
use crate::saved::UnreadGroups;
use crate::{GroupBy, GroupColumns, Slice, StateError};

/// The groups of an operator on a disk: batches of keys and partial states.
#[derive(Debug)]
pub(crate) struct GroupStore {
    store: SpillStore,
    spec: Arc<GroupBy>,
    /// Keys and states.
    schema: SchemaRef,
}

impl GroupStore {
    /// Nothing yet.
    pub(crate) fn new(disk: Arc<dyn Disk>, spec: &Arc<GroupBy>) -> Self {
        let types = spec.keys.iter().cloned().chain(spec.state_types());
        let field = |(at, of): (usize, DataType)| Field::new(at.to_string(), of, true);
        let schema = Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()));
        let store = SpillStore::new(disk, vec![(0..spec.keys.len()).collect()]);
        Self { store, spec: Arc::clone(spec), schema }
    }

    /// As [`SpillStore::writer`].
    pub(crate) fn writer(&self, level: Option<u32>, budget: usize) -> GroupWriter<'_> {
        GroupWriter { writer: self.store.writer(level, budget), schema: &self.schema }
    }

    /// Writes copies of groups, each as it is.
    pub(crate) fn copies(&self) -> GroupWriter<'_> {
        self.writer(None, 0)
    }

    /// Bytes written and read so far.
    pub(crate) fn spilled(&self) -> Spilled {
        self.store.spilled()
    }

    /// The groups of a batch.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be read.
    pub(crate) fn read(&self, batch: &SpilledBatch) -> Result<GroupColumns, StateError> {
        let mut keys = self.store.read(batch)?.columns().to_vec();
        let states = keys.split_off(self.spec.keys.len());
        Ok(GroupColumns { keys, states })
    }
}

/// Writes groups.
pub(crate) struct GroupWriter<'a> {
    writer: SpillWriter<'a>,
    schema: &'a SchemaRef,
}

impl GroupWriter<'_> {
    /// Adds groups.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub(crate) fn add(&mut self, groups: GroupColumns) -> Result<(), StateError> {
        let groups = self.batch(groups)?;
        self.writer.add(0, &groups)
    }

    /// Writes groups as a batch of their own.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub(crate) fn write(&mut self, groups: GroupColumns) -> Result<(), StateError> {
        let groups = self.batch(groups)?;
        self.writer.write(0, &groups)
    }

    fn batch(&self, groups: GroupColumns) -> Result<RecordBatch, StateError> {
        let options = RecordBatchOptions::new().with_row_count(Some(groups.rows()));
        let columns = groups.keys.into_iter().chain(groups.states).collect();
        Ok(RecordBatch::try_new_with_options(Arc::clone(self.schema), columns, &options)?)
    }

    /// The batches that were written one by one, in their order; their first `keys` columns are
    /// keys.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub(crate) fn finish_copies(self, keys: usize) -> Result<Vec<SpilledCopy>, StateError> {
        let batches = self.writer.finish()?.into_iter();
        Ok(batches.map(|batch| SpilledCopy { batch, keys }).collect())
    }

    /// The run; nothing if no group was added.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be written.
    pub(crate) fn finish(self) -> Result<Option<Arc<SpillRun>>, StateError> {
        self.writer.finish_run()
    }
}

/// A copy of groups on a disk. It can be read when the store is gone.
pub(crate) struct SpilledCopy {
    batch: SpilledBatch,
    /// The number of its columns that are keys.
    keys: usize,
}

impl UnreadGroups for SpilledCopy {
    fn read(&self) -> Result<GroupColumns, StateError> {
        let mut keys = self.batch.read()?.columns().to_vec();
        let states = keys.split_off(self.keys);
        Ok(GroupColumns { keys, states })
    }

    fn held_bytes(&self) -> usize {
        SpilledBatch::HELD_BYTES
    }
}

/// Groups that were spilled, and how far they are put together.
pub(crate) struct Gathering {
    partitions: SpillPartitions,
    /// The groups to emit.
    slice: Slice,
}

impl Gathering {
    /// The groups of all these runs, each of which may be in several.
    pub(crate) fn new<'a>(
        store: &GroupStore,
        runs: impl Iterator<Item = &'a Arc<SpillRun>>,
    ) -> Self {
        let batches = runs.flat_map(SpillRun::batches).collect();
        Self { partitions: SpillPartitions::new(batches), slice: Slice::new(&store.spec) }
    }

    /// The partition that is being emitted.
    pub(crate) fn slice(&mut self) -> &mut Slice {
        &mut self.slice
    }

    /// Whether there are partitions to load.
    pub(crate) fn has_more(&self) -> bool {
        !self.partitions.is_empty()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.slice.bytes() + self.partitions.bytes()
    }

    /// Takes a step towards the next partition that fits `room` bytes: merges one, or splits one.
    ///
    /// # Errors
    /// Those of the disk and of accumulators.
    pub(crate) fn load(&mut self, store: &GroupStore, room: usize) -> Result<(), StateError> {
        self.slice = Slice::spilling(&store.spec);
        let Some(partition) = self.partitions.pop() else { return Ok(()) };
        let (level, last) = (partition.level(), partition.is_last());
        // An index takes as much again as what it finds.
        if !last && partition.is_split() && partition.bytes().saturating_mul(2) > room {
            return self.split(store, level, partition.batches, room);
        }
        let mut batches = partition.batches.into_iter();
        while let Some(batch) = batches.next() {
            let held = self.slice.bytes();
            let full = held.saturating_mul(2).saturating_add(2 * batch.bytes()) > room;
            let merged = if full && !last {
                false
            } else {
                self.merge(
                    store,
                    &batch,
                    if last { usize::MAX } else { room.saturating_sub(held) },
                )?
            };
            if !merged {
                let left = [batch].into_iter().chain(batches).collect();
                return self.split(store, level, left, room);
            }
        }
        if self.slice.bytes() > room && !last {
            self.split(store, level, vec![], room)
        } else {
            Ok(())
        }
    }

    /// False, and nothing has happened, if an array would have to grow by more than `room`.
    fn merge(
        &mut self,
        store: &GroupStore,
        batch: &SpilledBatch,
        room: usize,
    ) -> Result<bool, StateError> {
        let groups = store.read(batch)?;
        self.slice.set_room(room);
        match self.slice.merge(&groups.keys, &groups.states) {
            Err(StateError::Growth { .. }) => Ok(false),
            merged => merged.map(|()| true),
        }
    }

    /// Splits what was merged of a partition, and its other batches.
    fn split(
        &mut self,
        store: &GroupStore,
        level: u32,
        batches: Vec<SpilledBatch>,
        room: usize,
    ) -> Result<(), StateError> {
        let mut slice = std::mem::replace(&mut self.slice, Slice::spilling(&store.spec));
        let mut writer = store.writer(Some(level), room);
        while let Some(groups) = slice.take_delta()? {
            writer.add(groups)?;
        }
        drop(slice);
        self.partitions.split(writer.writer, batches)
    }
}
