//! Joins whose build does not fit memory: rows of both sides go to a disk, and are joined partition
//! by partition.
//!
//! ```text
//! build ─▶ over half of the share ─▶ 32 partitions by the hash of the key ┐
//! probe ───────────────────────────▶ 32 partitions by the same hash ──────┴▶ one after another:
//!     its build fits ─▶ hash table ─▶ its rows of the probe side look it up
//!              └▶ else: 32 partitions by another hash, each as before
//!                       └▶ few keys: as many rows of the build as fit at a time ([`Passes`])
//! ```
//!
//! No row of the probe side is looked up before all of them have come.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use state::{Disk, SpillPartitions, SpillStore, Spilled, SpilledBatch};

use crate::error::DataflowError;
use crate::job::hash_join::{BUILD, HashJoin, PROBE};
use crate::pairing::{Hashed, Paired, Pairing, ProbeSide, Terms};
use crate::rows::wire::bytes_of;

/// The part of the share of memory that rows may take before they are written together, and the
/// part that the build of a partition may take, which takes as much again for its hash table.
const GATHERED_PART: usize = 8;
const ROOM_PART: usize = 4;

/// The most times that a partition is split. A partition that is still too large has few keys.
const LEVELS_MAX: u32 = 3;

/// The join that is made of the rows on a disk, and its bounds.
#[derive(Clone, Copy)]
pub(super) struct DiskJoin<'a> {
    pub(super) spec: &'a HashJoin,
    pub(super) terms: Terms<'a>,
    /// The most rows that are emitted together.
    pub(super) rows_max: usize,
    /// The bytes of memory that the join may hold.
    pub(super) share: usize,
}

impl DiskJoin<'_> {
    /// The bytes that the build of a partition may take.
    fn room(&self) -> usize {
        self.share / ROOM_PART
    }
}

/// Rows of both sides, on a disk.
pub(super) struct SpilledJoin {
    store: SpillStore,
    /// By input, the rows that are not yet written; and the bytes of all.
    gathered: [Vec<RecordBatch>; 2],
    bytes: usize,
    spilled: Vec<SpilledBatch>,
    partitions: SpillPartitions,
    passes: Option<Passes>,
}

/// The join of a partition: each pass takes as many rows of its build as there is room for.
struct Passes {
    build: VecDeque<SpilledBatch>,
    probe: Vec<SpilledBatch>,
    /// By batch of the probe side, whether each row has found a partner in the passes so far.
    met: Vec<Option<Vec<bool>>>,
    /// The build of this pass, and the number of batches of the probe side that were begun in it.
    pairing: Option<Pairing>,
    begun: usize,
    bytes: usize,
}

impl SpilledJoin {
    /// A join without rows.
    pub(super) fn new(disk: Arc<dyn Disk>, spec: &HashJoin) -> Self {
        let keys = spec.sides.iter().map(|side| side.keys.clone()).collect();
        Self {
            store: SpillStore::new(disk, keys),
            gathered: [vec![], vec![]],
            bytes: 0,
            spilled: vec![],
            partitions: SpillPartitions::default(),
            passes: None,
        }
    }

    /// Takes rows of an input; the join may hold `share` bytes.
    pub(super) fn push(
        &mut self,
        input: usize,
        batch: RecordBatch,
        share: usize,
    ) -> Result<(), DataflowError> {
        self.bytes += bytes_of(&batch);
        self.gathered[input].push(batch);
        if self.bytes > share / GATHERED_PART { self.write(share) } else { Ok(()) }
    }

    /// Writes the gathered rows.
    fn write(&mut self, share: usize) -> Result<(), DataflowError> {
        let mut writer = self.store.writer(Some(0), share);
        for (input, batches) in self.gathered.iter_mut().enumerate() {
            for batch in batches.drain(..) {
                writer.add(input, &batch)?;
            }
        }
        self.spilled.extend(writer.finish()?);
        self.bytes = 0;
        Ok(())
    }

    /// All rows of both sides have come.
    pub(super) fn finish(&mut self, share: usize) -> Result<(), DataflowError> {
        self.write(share)?;
        let spilled = std::mem::take(&mut self.spilled);
        Ok(self.partitions.split(self.store.writer(Some(0), share), spilled)?)
    }

    /// Takes the next partition, when all of both sides have come: its rows are then joined, or
    /// split if the build is too large. Gives whether there was a partition.
    pub(super) fn take_partition(&mut self, join: DiskJoin<'_>) -> Result<bool, DataflowError> {
        let Some(partition) = self.partitions.pop() else { return Ok(false) };
        let of_build = partition.batches.iter().filter(|batch| batch.input() == BUILD);
        let bytes: usize = of_build.map(SpilledBatch::bytes).sum();
        if bytes > join.room() && partition.level() < LEVELS_MAX {
            let writer = self.store.writer(Some(partition.level()), join.share);
            self.partitions.split(writer, partition.batches)?;
        } else {
            self.passes = Some(Passes::new(partition.batches));
        }
        Ok(true)
    }

    /// The next rows of the partition; `None` when there are no more.
    pub(super) fn next(&mut self, join: DiskJoin<'_>) -> Result<Option<Paired>, DataflowError> {
        let Some(passes) = &mut self.passes else { return Ok(None) };
        let rows = passes.next(&self.store, join)?;
        if rows.is_none() {
            self.passes = None;
        }
        Ok(rows)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let passes = self.passes.as_ref().map_or(0, |passes| passes.bytes);
        let spilled = self.spilled.len() * SpilledBatch::HELD_BYTES;
        self.bytes + spilled + self.partitions.bytes() + passes
    }

    /// Bytes written to the disk and read back.
    pub(super) fn spilled(&self) -> Spilled {
        self.store.spilled()
    }
}

impl Passes {
    fn new(batches: Vec<SpilledBatch>) -> Self {
        let (build, probe): (Vec<_>, Vec<_>) =
            batches.into_iter().partition(|batch| batch.input() == BUILD);
        let met = vec![None; probe.len()];
        Self { build: build.into(), probe, met, pairing: None, begun: 0, bytes: 0 }
    }

    /// The next rows of the partition; `None` when there are no more.
    fn next(
        &mut self,
        store: &SpillStore,
        join: DiskJoin<'_>,
    ) -> Result<Option<Paired>, DataflowError> {
        let DiskJoin { spec, terms, rows_max, .. } = join;
        loop {
            let is_last = self.build.is_empty();
            let Some(pairing) = &mut self.pairing else {
                self.pairing = Some(self.pass(store, spec, join.room())?);
                continue;
            };
            // Only after the last pass are the rows without a partner known.
            let rows = if is_last {
                pairing.next_probed(terms, rows_max)?
            } else {
                pairing.next_pairs(terms, rows_max)?
            };
            if rows.is_some() {
                return Ok(rows);
            }
            if !is_last && self.begun > 0 {
                self.met[self.begun - 1] = pairing.leave();
            }
            if let Some(batch) = self.probe.get(self.begun) {
                pairing.begin(store.read(batch)?, terms, self.met[self.begun].take())?;
                self.begun += 1;
                continue;
            }
            let rows = pairing.next_of_table(terms, rows_max)?;
            if rows.is_some() {
                return Ok(rows);
            }
            self.pairing = None;
            if is_last {
                return Ok(None);
            }
        }
    }

    /// Begins a pass with the next rows of the build that there is room for.
    fn pass(
        &mut self,
        store: &SpillStore,
        spec: &HashJoin,
        room: usize,
    ) -> Result<Pairing, DataflowError> {
        let (mut batches, mut bytes) = (vec![], 0);
        while bytes <= room
            && let Some(batch) = self.build.pop_front()
        {
            let rows = store.read(&batch)?;
            bytes += bytes_of(&rows);
            batches.push(rows);
        }
        let side = &spec.sides[BUILD];
        let hashed = Hashed::new(batches, &side.schema, &side.keys, spec.nulls)?;
        let of_met = self.met.iter().flatten().map(Vec::len).sum::<usize>();
        (self.begun, self.bytes) = (0, hashed.bytes() + of_met);
        let probe = ProbeSide { side: PROBE, keys: &spec.sides[PROBE].keys };
        Ok(Pairing::new(probe, [], Arc::new(hashed), spec.kind))
    }
}
