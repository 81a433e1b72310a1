//! Batches on a disk: groups of an aggregation and rows of a join are written and read back alike.
//!
//! A file holds sections, each of one batch. A [`SpillWriter`] gathers batches of each input, so
//! that sections are not tiny, and writes them whole or split by a hash of their keys. A file is
//! deleted with the last of its [`SpilledBatch`]es.

use std::fmt;
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::section::{self, Appending, Section, SpillCounters};
use super::{Disk, DiskFile, PARTITIONS, Spilled};
use crate::partition::{Partitioner, RowsByOwner};
use crate::{GroupColumns, StateError};

/// The part of a budget that a writer gathers before it writes, and the least and most bytes of it.
const GATHERED_PART: usize = 16;
const GATHERED_BYTES_MIN: usize = 1 << 16;
const GATHERED_BYTES_MAX: usize = 1 << 24;

/// The batches of one operator on a disk.
#[derive(Debug)]
pub struct SpillStore {
    disk: Arc<dyn Disk>,
    /// By input the columns of its key.
    keys: Vec<Vec<usize>>,
    counters: Arc<SpillCounters>,
}

/// Batches that were written at once, in one file. It is deleted when this is dropped.
pub(crate) struct SpillRun {
    file: Box<dyn DiskFile>,
    /// How often what is in it had been split before.
    level: u32,
    /// By input the columns as they were before they were written.
    schemas: Vec<Option<SchemaRef>>,
    entries: Vec<Entry>,
    /// The counters of its store.
    counters: Arc<SpillCounters>,
    /// Its number among the runs of its store.
    number: u64,
}

/// A section of a run.
#[derive(Debug, Clone, Copy)]
struct Entry {
    section: Section,
    input: u16,
    /// The hash partition; `None` where rows of any keys are together.
    partition: Option<u8>,
}

/// A batch on a disk, which is read back by itself.
#[derive(Clone)]
pub struct SpilledBatch {
    run: Arc<SpillRun>,
    entry: u32,
}

impl SpillStore {
    /// On this disk, nothing yet; `keys` has the columns of the key of each input.
    pub fn new(disk: Arc<dyn Disk>, keys: Vec<Vec<usize>>) -> Self {
        Self { disk, keys, counters: Arc::default() }
    }

    /// Writes each of some batches of an input, which have one schema, as it is; together in one
    /// file.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub fn write(
        &self,
        input: usize,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<Vec<SpilledBatch>, StateError> {
        let mut writer = self.writer(None, 0);
        for batch in batches {
            writer.write(input, &batch)?;
        }
        writer.finish()
    }

    /// Begins a file of batches that are gathered, within a part of `budget` bytes. With a `level`
    /// they are split by the hash of their keys, which is another for each level.
    pub fn writer(&self, level: Option<u32>, budget: usize) -> SpillWriter<'_> {
        SpillWriter {
            store: self,
            split: level.map(|level| Split {
                level,
                partitioner: Partitioner::salted(PARTITIONS.into(), level),
            }),
            gathered_max: (budget / GATHERED_PART).clamp(GATHERED_BYTES_MIN, GATHERED_BYTES_MAX),
            gathered: self.keys.iter().map(|_| Gathered::default()).collect(),
            bytes: 0,
            file: Appending::new(&*self.disk, &self.counters),
            entries: vec![],
        }
    }

    /// The rows of a batch.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be read; [`StateError::Damaged`] if they are not what
    /// was written.
    pub fn read(&self, batch: &SpilledBatch) -> Result<RecordBatch, StateError> {
        batch.read()
    }

    /// Bytes written and read so far.
    pub fn spilled(&self) -> Spilled {
        self.counters.spilled()
    }
}

impl SpillRun {
    /// Its batches, in the order in which they were written.
    pub(crate) fn batches(self: &Arc<Self>) -> impl Iterator<Item = SpilledBatch> {
        (0..self.entries.len() as u32).map(|entry| SpilledBatch { run: Arc::clone(self), entry })
    }

    /// Bytes of memory: of what is known about the file.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<Entry>()
    }
}

impl SpilledBatch {
    /// Bytes of memory: of what is known about a batch.
    pub const HELD_BYTES: usize = size_of::<Self>() + size_of::<Entry>();

    /// A number that no other batch of its store has, now or later: its rows never change.
    pub fn id(&self) -> (u64, u32) {
        (self.run.number, self.entry)
    }

    /// Its rows. They can be read on any thread, also when the store is gone.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be read; [`StateError::Damaged`] if they are not what
    /// was written.
    pub fn read(&self) -> Result<RecordBatch, StateError> {
        let Entry { section, input, .. } = self.entry();
        let plain = section::read(&*self.run.file, section, &self.run.counters)?;
        match &self.run.schemas[usize::from(*input)] {
            Some(schema) => section::recast(&plain, schema),
            None => Ok(plain),
        }
    }

    /// Bytes on the disk.
    pub fn bytes(&self) -> usize {
        self.entry().section.bytes
    }

    /// The number of its input.
    pub fn input(&self) -> usize {
        self.entry().input.into()
    }

    /// The partition that it is of, if it was split by the hash of this level.
    pub(super) fn partition_at(&self, level: u32) -> Option<usize> {
        self.entry().partition.filter(|_| self.run.level == level).map(usize::from)
    }

    fn entry(&self) -> &Entry {
        &self.run.entries[self.entry as usize]
    }
}

impl fmt::Debug for SpilledBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SpilledBatch");
        shown.field("file", &self.run.file.name()).field("entry", self.entry());
        shown.finish_non_exhaustive()
    }
}

/// Writes a file of batches.
pub struct SpillWriter<'a> {
    store: &'a SpillStore,
    split: Option<Split>,
    /// How many bytes are gathered before they are written.
    gathered_max: usize,
    /// By input.
    gathered: Vec<Gathered>,
    /// Bytes of `gathered`.
    bytes: usize,
    file: Appending<'a>,
    entries: Vec<Entry>,
}

/// How batches are split.
struct Split {
    level: u32,
    partitioner: Partitioner,
}

/// Batches of an input.
#[derive(Default)]
struct Gathered {
    /// As they lie on a disk.
    batches: Vec<RecordBatch>,
    /// The columns of the first of all as they were before.
    schema: Option<SchemaRef>,
}

impl SpillWriter<'_> {
    /// Adds a batch of an input.
    ///
    /// # Errors
    /// [`StateError::Disk`] if batches cannot be written.
    pub fn add(&mut self, input: usize, batch: &RecordBatch) -> Result<(), StateError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let plain = section::recast(batch, &section::plain_schema(&batch.schema()))?;
        self.bytes += plain
            .columns()
            .iter()
            .map(|column| column.to_data().get_slice_memory_size().unwrap_or(0))
            .sum::<usize>();
        let gathered = &mut self.gathered[input];
        gathered.schema.get_or_insert_with(|| batch.schema());
        gathered.batches.push(plain);
        if self.bytes >= self.gathered_max { self.flush() } else { Ok(()) }
    }

    /// Writes a batch of an input as it is. Batches that are gathered may come behind it.
    ///
    /// # Errors
    /// [`StateError::Disk`] if it cannot be written.
    pub fn write(&mut self, input: usize, batch: &RecordBatch) -> Result<(), StateError> {
        let plain = section::recast(batch, &section::plain_schema(&batch.schema()))?;
        self.gathered[input].schema.get_or_insert_with(|| batch.schema());
        self.append(input, &plain, None)
    }

    /// The batches that were written.
    ///
    /// # Errors
    /// [`StateError::Disk`] if they cannot be written.
    pub fn finish(self) -> Result<Vec<SpilledBatch>, StateError> {
        Ok(self.finish_run()?.iter().flat_map(SpillRun::batches).collect())
    }

    /// The same as one; nothing if no batch was added.
    ///
    /// # Errors
    /// As [`SpillWriter::finish`].
    pub(crate) fn finish_run(mut self) -> Result<Option<Arc<SpillRun>>, StateError> {
        self.flush()?;
        let level = self.level();
        let Some((file, number)) = self.file.finish()? else { return Ok(None) };
        let (mut entries, gathered) = (self.entries, self.gathered);
        entries.shrink_to_fit();
        let schemas = gathered.into_iter().map(|gathered| gathered.schema).collect();
        let counters = Arc::clone(&self.store.counters);
        Ok(Some(Arc::new(SpillRun { file, level, schemas, entries, counters, number })))
    }

    /// The batches that were added and `spilled` ones, by their partition. Those that were split by
    /// this hash when they were written stay as they are. Without a level all are in the first.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn finish_partitions(
        mut self,
        spilled: Vec<SpilledBatch>,
    ) -> Result<Vec<Vec<SpilledBatch>>, StateError> {
        let level = self.level();
        let mut partitions: Vec<Vec<SpilledBatch>> = (0..PARTITIONS).map(|_| vec![]).collect();
        for batch in spilled {
            match batch.partition_at(level) {
                Some(number) => partitions[number].push(batch),
                None => self.add(batch.input(), &self.store.read(&batch)?)?,
            }
        }
        for batch in self.finish()? {
            let number = batch.partition_at(level).unwrap_or(0);
            partitions[number].push(batch);
        }
        Ok(partitions)
    }

    /// How often what it writes was split before.
    pub(super) fn level(&self) -> u32 {
        self.split.as_ref().map_or(0, |split| split.level)
    }

    /// Writes what was gathered.
    fn flush(&mut self) -> Result<(), StateError> {
        self.bytes = 0;
        for input in 0..self.gathered.len() {
            let batches = std::mem::take(&mut self.gathered[input].batches);
            let Some(first) = batches.first() else { continue };
            let whole = concat_batches(&first.schema(), &batches)?;
            drop(batches);
            let Some(Split { partitioner, .. }) = &mut self.split else {
                self.append(input, &whole, None)?;
                continue;
            };
            let keys = self.store.keys[input].iter();
            let keys = keys.map(|&key| whole.column(key).clone()).collect();
            let mut rows = RowsByOwner::default();
            partitioner.split(&GroupColumns { keys, states: vec![] }, &mut rows)?;
            for partition in (0..PARTITIONS).filter(|&at| rows.rows(at.into()) > 0) {
                let own = rows.select_rows(partition.into(), &whole)?;
                self.append(input, &own, Some(partition))?;
            }
        }
        Ok(())
    }

    /// Writes a section.
    fn append(
        &mut self,
        input: usize,
        plain: &RecordBatch,
        partition: Option<u8>,
    ) -> Result<(), StateError> {
        let (section, input) = (self.file.append(plain)?, input as u16);
        self.entries.push(Entry { section, input, partition });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, DictionaryArray, Int64Array, StringViewArray};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;
    use crate::sim::{SimDisk, SimDiskOptions};

    fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
        let text = |at: i64| (at % 3 > 0).then(|| format!("a text that is not short, {at}"));
        let words: DictionaryArray<Int32Type> =
            numbers.clone().map(|at| ["one", "two", "three"][at as usize % 3]).collect();
        let texts: StringViewArray = numbers.clone().map(text).collect();
        RecordBatch::try_from_iter_with_nullable([
            ("number", Arc::new(Int64Array::from_iter_values(numbers)) as ArrayRef, false),
            ("text", Arc::new(texts), true),
            ("word", Arc::new(words), true),
        ])
        .expect("columns of equal lengths")
    }

    fn store(options: SimDiskOptions) -> (Arc<SimDisk>, SpillStore) {
        let disk = SimDisk::new(options);
        // Of the second input the key is another column.
        (disk.clone(), SpillStore::new(disk, vec![vec![0], vec![1, 2]]))
    }

    #[test]
    fn rows_come_back_one_batch_at_a_time() {
        let (disk, store) = store(SimDiskOptions::default());
        let batches = [rows(0..100), rows(100..101), rows(0..1000).slice(300, 50)];
        let spilled = store.write(1, batches.iter().cloned()).expect("room");
        assert_eq!(disk.files(), 1);
        for (spilled, batch) in spilled.iter().zip(&batches).rev() {
            assert_eq!(spilled.input(), 1);
            assert_eq!(&store.read(spilled).expect("it is there"), batch);
        }
        let all = spilled.iter().map(SpilledBatch::bytes).sum::<usize>() as u64;
        assert_eq!(store.spilled(), Spilled { runs: 1, bytes: all, read_bytes: all });
        drop(spilled);
        assert_eq!(disk.files(), 0);
        assert!(store.write(0, []).expect("nothing").is_empty());
        assert_eq!(disk.files(), 0);
    }

    #[test]
    fn batches_that_are_gathered_come_back_as_one_of_each_input() {
        let (_, store) = store(SimDiskOptions::default());
        let mut writer = store.writer(None, 0);
        for (input, batch) in [(1, rows(0..10)), (0, rows(10..20)), (1, rows(20..30))] {
            writer.add(input, &batch).expect("room");
        }
        let spilled = writer.finish().expect("room");
        assert_eq!(spilled.iter().map(SpilledBatch::input).collect::<Vec<_>>(), [0, 1]);
        let numbers = |batch: &RecordBatch| {
            batch.column(0).as_primitive::<Int64Type>().values().iter().copied().collect::<Vec<_>>()
        };
        let second = store.read(&spilled[1]).expect("it is there");
        assert_eq!(numbers(&second), (0..10).chain(20..30).collect::<Vec<_>>());
        assert_eq!(second.schema(), rows(0..1).schema());
    }

    #[test]
    fn rows_of_one_key_are_in_one_partition_whenever_they_were_written() {
        let (disk, store) = store(SimDiskOptions::default());
        let mut of_key = std::collections::BTreeMap::<i64, u32>::new();
        for level in [0, 1] {
            let mut early = store.writer(Some(level), 0);
            early.add(0, &rows(0..2_000)).expect("room");
            let early = early.finish().expect("room");
            let other = store.write(0, [rows(1_000..3_000)]).expect("room");
            let (read, unsplit) = (store.spilled().read_bytes, other[0].bytes() as u64);
            let mut writer = store.writer(Some(level), 0);
            writer.add(0, &rows(0..500)).expect("room");
            let split = writer.finish_partitions([early, other].concat()).expect("room");
            assert_eq!(store.spilled().read_bytes - read, unsplit, "what is split is not read");
            assert!(split.len() == usize::from(PARTITIONS) && split.iter().all(|of| of.len() >= 2));
            of_key.clear();
            let mut all = 0;
            for (number, batches) in (0..).zip(split) {
                for batch in batches {
                    let batch = store.read(&batch).expect("it is there");
                    all += batch.num_rows();
                    for &key in batch.column(0).as_primitive::<Int64Type>().values() {
                        assert_eq!(*of_key.entry(key).or_insert(number), number, "key {key}");
                    }
                }
            }
            assert_eq!(all, 4_500);
        }
        assert_eq!(disk.files(), 0);
    }

    #[test]
    fn a_damaged_byte_is_an_error() {
        let (_, store) = store(SimDiskOptions { damages_at: Some(0), ..SimDiskOptions::default() });
        let spilled = store.write(0, [rows(0..9)]).expect("room");
        assert!(matches!(store.read(&spilled[0]), Err(StateError::Damaged { .. })));
    }
}
