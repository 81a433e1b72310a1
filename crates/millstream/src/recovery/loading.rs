//! Sections of a checkpoint, as the workers of a node load them.
//!
//! Each worker looks at all rows that may be its own, and takes those that are. So that a section
//! is not read by each of them again, its rows stay in memory until all workers of the node have
//! had them, as long as those of all sections are no more than [`LOADED_BYTES_MAX`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use checkpoint::chain;
use checkpoint::segment::SectionEntry;
use checkpoint::{CheckpointError, ObjectName, SegmentEntry, Store};
use dataflow::checkpoint::UnreadRows;
use dataflow::error::DataflowError;

use super::narrow::widen;

/// Bytes of sections that wait for other workers at most. Each worker holds one section more.
const LOADED_BYTES_MAX: usize = 256 << 20;

/// The loading of a checkpoint by the workers of one node.
pub(super) struct Loading {
    store: Arc<dyn Store>,
    /// The workers that read each section.
    readers: u32,
    /// Bytes of sections that wait. A sum alone: nothing else is ordered by it.
    bytes: AtomicUsize,
}

/// The rows of a section.
pub(super) struct SectionRows {
    loading: Arc<Loading>,
    job: ObjectName,
    entry: SegmentEntry,
    section: SectionEntry,
    shared: Mutex<SharedRows>,
}

/// The rows of a section that its workers share.
#[derive(Default)]
struct SharedRows {
    reads: u32,
    rows: Option<Vec<RecordBatch>>,
}

impl Loading {
    /// Nothing is loaded yet; `readers` workers will read each section once.
    pub(super) fn new(store: Arc<dyn Store>, readers: u32) -> Arc<Self> {
        Arc::new(Self { store, readers, bytes: AtomicUsize::new(0) })
    }

    /// The rows of a section of a segment.
    pub(super) fn rows(
        self: &Arc<Self>,
        job: &ObjectName,
        entry: &SegmentEntry,
        section: &SectionEntry,
    ) -> SectionRows {
        SectionRows {
            loading: Arc::clone(self),
            job: job.clone(),
            entry: entry.clone(),
            section: section.clone(),
            shared: Mutex::default(),
        }
    }
}

impl SectionRows {
    fn load(&self) -> Result<Vec<RecordBatch>, CheckpointError> {
        let Self { loading, job, entry, section, .. } = self;
        let bytes = chain::read_section(&*loading.store, job, entry, section)?;
        rows_of(&bytes).map_err(|error| CheckpointError::Damaged {
            file: entry.file.clone(),
            offset: section.offset,
            reason: error.to_string(),
        })
    }

    fn forget(&self, shared: &mut SharedRows) {
        if shared.rows.take().is_some() {
            self.loading.bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
    }
}

impl UnreadRows for SectionRows {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        // A worker that comes while another one reads waits for its rows.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.reads += 1;
        let is_last = shared.reads >= self.loading.readers;
        if let Some(rows) = &shared.rows {
            let rows = rows.clone();
            if is_last {
                self.forget(&mut shared);
            }
            return Ok(rows);
        }
        let rows = self.load().map_err(|error| DataflowError::Recovery(error.to_string()))?;
        if !is_last {
            let before = self.loading.bytes.fetch_add(self.bytes(), Ordering::Relaxed);
            shared.rows = Some(rows.clone());
            if before.saturating_add(self.bytes()) > LOADED_BYTES_MAX {
                self.forget(&mut shared);
            }
        }
        Ok(rows)
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.section.bytes).unwrap_or(usize::MAX)
    }
}

impl Drop for SectionRows {
    fn drop(&mut self) {
        let mut shared =
            std::mem::take(self.shared.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.forget(&mut shared);
    }
}

fn rows_of(bytes: &[u8]) -> Result<Vec<RecordBatch>, ArrowError> {
    StreamReader::try_new(bytes, None)?.map(|rows| widen(rows?)).collect()
}
