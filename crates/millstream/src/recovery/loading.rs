//! Sections of a checkpoint, as the workers of a node load them.
//!
//! Each worker looks at all rows that may be its own, and takes those that are. So that a section
//! is not read by each of them again, its rows stay in memory until all workers of the node have
//! had them, as long as those of all sections are no more than [`LOADED_BYTES_MAX`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayData};
use arrow::buffer::NullBuffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use checkpoint::chain;
use checkpoint::segment::SectionEntry;
use checkpoint::{CheckpointError, ObjectName, SegmentEntry, Store};
use dataflow::checkpoint::UnreadRows;
use dataflow::error::DataflowError;

use super::narrow::widen;

/// Bytes of the rows that wait for other workers at most, as they are in memory: sections have
/// less. Each worker holds the rows of one section more.
const LOADED_BYTES_MAX: usize = 256 << 20;

/// The loading of a checkpoint by the workers of one node.
pub(super) struct Loading {
    store: Arc<dyn Store>,
    /// The workers that read each section.
    readers: u32,
    /// Bytes of the rows that wait. A sum alone: nothing else is ordered by it.
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
    /// The rows that wait, and their bytes.
    rows: Option<(Vec<RecordBatch>, usize)>,
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
        if let Some((_, bytes)) = shared.rows.take() {
            self.loading.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl UnreadRows for SectionRows {
    fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
        // A worker that comes while another one reads waits for its rows.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.reads += 1;
        let is_last = shared.reads >= self.loading.readers;
        if let Some((rows, _)) = &shared.rows {
            let rows = rows.clone();
            if is_last {
                self.forget(&mut shared);
            }
            return Ok(rows);
        }
        let rows = self.load().map_err(|error| DataflowError::Recovery(error.to_string()))?;
        if !is_last {
            let bytes = memory_of(&rows);
            let before = self.loading.bytes.fetch_add(bytes, Ordering::Relaxed);
            shared.rows = Some((rows.clone(), bytes));
            if before.saturating_add(bytes) > LOADED_BYTES_MAX {
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

/// The bytes of rows in memory. The columns of a section that was read share a buffer: it counts
/// once.
fn memory_of(rows: &[RecordBatch]) -> usize {
    let mut buffers = BTreeMap::new();
    for column in rows.iter().flat_map(RecordBatch::columns) {
        add_buffers(&column.to_data(), &mut buffers);
    }
    buffers.values().sum()
}

/// Adds the buffers of a column, by where they begin.
fn add_buffers(column: &ArrayData, buffers: &mut BTreeMap<usize, usize>) {
    let validity = column.nulls().map(NullBuffer::buffer);
    for buffer in column.buffers().iter().chain(validity) {
        buffers.insert(buffer.data_ptr().addr().get(), buffer.capacity());
    }
    column.child_data().iter().for_each(|child| add_buffers(child, buffers));
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::ipc::writer::StreamWriter;
    use checkpoint::MemoryStore;
    use checkpoint::chain::SegmentUpload;

    use super::super::narrow::narrow;
    use super::*;

    const ROWS: usize = 16_384;

    /// Rows whose section has a few bytes.
    fn narrowed() -> RecordBatch {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let times: ArrayRef = Arc::new(Int64Array::from_iter_values(vec![7; ROWS]));
        let counts = (0..ROWS as i64).map(|row| row % 9);
        let counts: ArrayRef = Arc::new(Int64Array::from_iter_values(counts));
        let columns = [("key", keys), ("time", times), ("count", counts)];
        narrow(&RecordBatch::try_from_iter(columns).unwrap()).unwrap()
    }

    fn section_of(rows: &RecordBatch) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema()).unwrap();
        writer.write(rows).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn the_bytes_that_wait_are_those_of_the_rows_in_memory() {
        const BYTES: usize = 3 * 8 * ROWS;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let job = ObjectName::job("j").unwrap();
        let narrow = narrowed();
        let mut segment = SegmentUpload::new(&*store, &job, (1, 0, 1));
        segment.section("groups", 0, ROWS as u64, vec![section_of(&narrow).into()]).unwrap();
        let entry = segment.finish().unwrap();
        let section = chain::open_segment(&*store, &job, &entry).unwrap().sections()[0].clone();
        let loading = Loading::new(store, 2);
        let waiting = || loading.bytes.load(Ordering::Relaxed);
        let rows = loading.rows(&job, &entry, &section);
        assert!(BYTES > 15 * rows.bytes(), "{}", rows.bytes());
        let read = rows.read().unwrap();
        assert_eq!(read, [widen(narrow).unwrap()]);
        assert!((BYTES..2 * BYTES).contains(&waiting()), "{}", waiting());
        assert_eq!(rows.read().unwrap(), read);
        assert_eq!(waiting(), 0, "both workers had them");

        // One worker reads more than may wait: the rows of the last ones do not.
        let sections = 1 + LOADED_BYTES_MAX / BYTES;
        let all: Vec<_> = (0..sections).map(|_| loading.rows(&job, &entry, &section)).collect();
        assert!(all.iter().map(UnreadRows::bytes).sum::<usize>() < LOADED_BYTES_MAX / 10);
        all.iter().for_each(|rows| drop(rows.read().unwrap()));
        assert!((LOADED_BYTES_MAX - 2 * BYTES..=LOADED_BYTES_MAX).contains(&waiting()));
        assert_eq!(all[sections - 1].read().unwrap(), read);
        drop(all);
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn columns_that_share_a_buffer_count_it_once() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a longer text"); 1000]));
        let columns: Vec<_> = (0..50).map(|at| (at.to_string(), texts.clone())).collect();
        let section = section_of(&RecordBatch::try_from_iter(columns).unwrap());
        let read = rows_of(&section).unwrap();
        let bytes = memory_of(&read);
        assert!((section.len() / 2..2 * section.len()).contains(&bytes), "{bytes}");
    }
}
