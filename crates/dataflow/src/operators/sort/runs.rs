//! The rows of a worker in sorted runs: in memory, and on a disk if they do not fit.
//!
//! ```text
//! rows ─▶ gathered ── a part of the share of memory ──▶ sorted run, in memory
//!           runs of more than a quarter of it, merged ────▶ run on the disk, level 0
//!           RUNS_MERGED runs of a level, merged ──────────▶ run on the disk, next level
//! end ─▶ all runs, merged ─▶ rows in order
//! ```
//!
//! So a merge has few runs of each level, and holds one section of each: a small part of the share.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::RecordBatch;
use state::{Disk, SpillStore, Spilled, SpilledBatch};

use super::merge::{Merge, Merged};
use super::order::Order;
use crate::error::DataflowError;
use crate::operators::keyed::TURN_BATCHES;
use crate::rows::wire::bytes_of;
use crate::runtime::scheduler::yield_now;

/// Parts of the share of memory: of the rows that are gathered before they are sorted, which takes
/// as much again; of the runs in memory; and of a section of a run on the disk. And the least and
/// most bytes of gathered rows and of a section.
const GATHERED_PART: usize = 16;
const RUNS_PART: usize = 4;
const SECTION_PART: usize = 512;
const GATHERED_BYTES: [usize; 2] = [1 << 16, 4 << 20];
const SECTION_BYTES: [usize; 2] = [1 << 11, 1 << 18];

/// The most rows that are sorted at once: other coroutines wait meanwhile.
const SORTED_ROWS_MAX: usize = 1 << 17;

/// The runs of one level on the disk that are merged to one of the next level.
const RUNS_MERGED: usize = 16;

/// Rows of a worker.
pub(super) struct Runs {
    order: Rc<Order>,
    /// The number of first rows that are needed; `None` for all.
    most: Option<usize>,
    rows_max: usize,
    gathered: Vec<RecordBatch>,
    gathered_rows: usize,
    gathered_bytes: usize,
    /// In memory.
    runs: Vec<Run>,
    runs_bytes: usize,
    /// On the disk, by level.
    spilled: Vec<Vec<Run>>,
    store: Option<Rc<SpillStore>>,
    /// The number and bytes of all rows that came: their average width gives the rows of a section.
    rows_seen: u64,
    bytes_seen: u64,
}

/// Sorted rows.
enum Run {
    Memory(VecDeque<RecordBatch>),
    Disk(VecDeque<SpilledBatch>),
}

/// The rows of a worker in order.
pub(super) struct Sorted {
    merge: Merge,
    runs: Vec<Run>,
    store: Option<Rc<SpillStore>>,
    /// The most rows that are still to be emitted.
    left: usize,
    /// Bytes of the runs that are still in memory.
    runs_bytes: usize,
}

impl Runs {
    /// No runs. Batches that are made have at most `rows_max` rows.
    pub(super) fn new(
        order: Rc<Order>,
        most: Option<usize>,
        rows_max: usize,
        disk: Option<Arc<dyn Disk>>,
    ) -> Self {
        Self {
            order,
            most,
            rows_max,
            gathered: vec![],
            gathered_rows: 0,
            gathered_bytes: 0,
            runs: vec![],
            runs_bytes: 0,
            spilled: vec![],
            store: disk.map(|disk| Rc::new(SpillStore::new(disk, vec![vec![]]))),
            rows_seen: 0,
            bytes_seen: 0,
        }
    }

    /// Takes rows; the runs may hold `share` bytes.
    ///
    /// # Errors
    /// When they cannot be compared.
    pub(super) fn push(&mut self, batch: RecordBatch, share: usize) -> Result<(), DataflowError> {
        let bytes = bytes_of(&batch);
        self.rows_seen += batch.num_rows() as u64;
        self.bytes_seen += bytes as u64;
        self.gathered_rows += batch.num_rows();
        self.gathered_bytes += bytes;
        self.gathered.push(batch);
        let [least, most] = GATHERED_BYTES;
        if self.gathered_bytes >= (share / GATHERED_PART).clamp(least, most)
            || self.gathered_rows >= SORTED_ROWS_MAX
        {
            self.sort()?;
        }
        Ok(())
    }

    /// Whether the runs in memory are to go to the disk.
    pub(super) fn spills(&self, share: usize) -> bool {
        self.store.is_some() && self.runs_bytes > share / RUNS_PART
    }

    /// Sorts the gathered rows to a run.
    fn sort(&mut self) -> Result<(), DataflowError> {
        let gathered = std::mem::take(&mut self.gathered);
        (self.gathered_rows, self.gathered_bytes) = (0, 0);
        if !gathered.is_empty() {
            let sorted = self.order.sort(&gathered, self.most, self.rows_max)?;
            self.runs_bytes += sorted.iter().map(bytes_of).sum::<usize>();
            self.runs.push(Run::Memory(sorted.into()));
        }
        Ok(())
    }

    /// Writes the runs in memory as one, and merges the runs of a level if there are enough. It
    /// yields to other coroutines meanwhile. When it `is_over`, the rows are not needed any more.
    ///
    /// # Errors
    /// When rows cannot be compared, or the disk fails.
    pub(super) async fn spill(
        &mut self,
        share: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<(), DataflowError> {
        self.runs_bytes = 0;
        let mut level = 0;
        let mut merged = std::mem::take(&mut self.runs);
        while !merged.is_empty() && !is_over() {
            let run = self.write(merged, share, &is_over).await?;
            if self.spilled.len() == level {
                self.spilled.push(vec![]);
            }
            let runs = &mut self.spilled[level];
            runs.push(run);
            merged = if runs.len() >= RUNS_MERGED { std::mem::take(runs) } else { vec![] };
            level += 1;
        }
        Ok(())
    }

    /// Writes some runs as one.
    async fn write(
        &self,
        runs: Vec<Run>,
        share: usize,
        is_over: &impl Fn() -> bool,
    ) -> Result<Run, DataflowError> {
        let Some(store) = &self.store else { return Ok(Run::Memory(VecDeque::new())) };
        let [least, most] = SECTION_BYTES;
        let section = (share / SECTION_PART).clamp(least, most) as u64;
        let row_bytes = self.bytes_seen / self.rows_seen.max(1);
        let rows = (section / row_bytes.max(1)).max(1) as usize;
        let mut sorted = self.merged(runs, rows.min(self.rows_max));
        let mut writer = store.writer(None, 0);
        let mut sections = 0;
        while let Some(batch) = sorted.next()?.filter(|_| !is_over()) {
            writer.write(0, &batch)?;
            sections += 1;
            if sections % TURN_BATCHES == 0 {
                yield_now().await;
            }
        }
        Ok(Run::Disk(writer.finish()?.into()))
    }

    /// The rows of some runs in order.
    fn merged(&self, runs: Vec<Run>, rows_max: usize) -> Sorted {
        let runs_bytes = runs.iter().map(Run::bytes).sum();
        Sorted {
            merge: Merge::new(self.order.clone(), runs.len(), rows_max),
            runs,
            store: self.store.clone(),
            left: self.most.unwrap_or(usize::MAX),
            runs_bytes,
        }
    }

    /// All rows in order.
    ///
    /// # Errors
    /// When they cannot be compared.
    pub(super) fn sorted(mut self) -> Result<Sorted, DataflowError> {
        self.sort()?;
        let mut runs = std::mem::take(&mut self.runs);
        runs.extend(std::mem::take(&mut self.spilled).into_iter().flatten());
        Ok(self.merged(runs, self.rows_max))
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let spilled = self.spilled.iter().flatten().map(Run::bytes).sum::<usize>();
        self.gathered_bytes + self.runs_bytes + spilled
    }

    /// Bytes written to the disk and read back.
    pub(super) fn spilled(&self) -> Spilled {
        self.store.as_ref().map_or_else(Spilled::default, |store| store.spilled())
    }
}

impl Run {
    /// The next rows, and the bytes of memory that they took in the run.
    fn next(
        &mut self,
        store: Option<&SpillStore>,
    ) -> Result<Option<(RecordBatch, usize)>, DataflowError> {
        Ok(match (self, store) {
            (Run::Memory(batches), _) => batches.pop_front().map(|batch| {
                let bytes = bytes_of(&batch);
                (batch, bytes)
            }),
            (Run::Disk(batches), Some(store)) => match batches.pop_front() {
                Some(batch) => Some((store.read(&batch)?, SpilledBatch::HELD_BYTES)),
                None => None,
            },
            (Run::Disk(_), None) => None,
        })
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        match self {
            Run::Memory(batches) => batches.iter().map(bytes_of).sum(),
            Run::Disk(batches) => batches.len() * SpilledBatch::HELD_BYTES,
        }
    }
}

impl Sorted {
    /// The next rows.
    ///
    /// # Errors
    /// When they cannot be compared, or the disk fails.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>, DataflowError> {
        while self.left > 0 {
            match self.merge.next()? {
                Merged::Needs(stream) => {
                    let next = self.runs[stream].next(self.store.as_deref())?;
                    self.runs_bytes -= next.as_ref().map_or(0, |(_, bytes)| *bytes);
                    self.merge.push(stream, next.map(|(rows, _)| rows))?;
                }
                Merged::Rows(rows) => {
                    let rows = rows.slice(0, rows.num_rows().min(self.left));
                    self.left -= rows.num_rows();
                    return Ok(Some(rows));
                }
                Merged::End => break,
            }
        }
        Ok(None)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.runs_bytes + self.merge.bytes()
    }

    /// Bytes written to the disk and read back.
    pub(super) fn spilled(&self) -> Spilled {
        self.store.as_ref().map_or_else(Spilled::default, |store| store.spilled())
    }
}
