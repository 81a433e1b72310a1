//! Snapshots of workers as sections of a segment, and back.
//!
//! Each worker has a section `worker` that lists what it keeps, and behind it Arrow streams of its
//! operators' state: of each operator those of its parts, as many as there are rows for.
//!
//! ```text
//! worker 0 │ aggregate-… part 0 │ aggregate-… part 0 │ aggregate-… part 1 │ worker 1 │ …
//! ```

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use checkpoint::chain::{self, SegmentUpload};
use checkpoint::{CheckpointError, ObjectName, SegmentEntry, Store};
use dataflow::checkpoint::{
    OperatorSnapshot, SavedRows, SinkSnapshot, SplitSnapshot, StoredRows, WorkerSnapshot,
};
use dataflow::pieces;
use dataflow::source::Position;

use super::ids::OperatorId;
use super::loading::Loading;

/// The section that begins a worker.
const WORKER: &str = "worker";
/// The form of that section.
const VERSION: u8 = 2;
/// The form in which it counted the sections of each operator, which had one batch each.
const COUNTED: u8 = 1;
/// Bytes of a section, but for its last batch, which has about as many at most.
const SECTION_BYTES: usize = 4 << 20;

/// A job's operators by name and number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperatorNames<'a>(pub(crate) &'a [OperatorId]);

impl OperatorNames<'_> {
    fn of(&self, operator: u32) -> &str {
        self.0.get(operator as usize).map_or("", |id| &id.id)
    }

    fn number(&self, id: &str) -> Option<u32> {
        let found = self.0.iter().position(|operator| operator.id == id && !id.is_empty());
        found.map(|at| at as u32)
    }
}

#[derive(Default)]
struct Put(Vec<u8>);

impl Put {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        // Each takes a byte at least: a length that lies reserves nothing.
        (0..count).map(|_| each(self)).collect()
    }
}

/// The snapshot of a worker, without rows.
fn listed(snapshot: &WorkerSnapshot, names: OperatorNames<'_>) -> Vec<u8> {
    let WorkerSnapshot { worker, round, operators, splits, sinks, late, bad, last } = snapshot;
    let mut put = Put(vec![VERSION]);
    for number in [u64::from(*worker), *round, *late, *bad, u64::from(*last)] {
        put.number(number);
    }
    put.number(operators.len() as u64);
    for OperatorSnapshot { operator, version, watermark, .. } in operators {
        put.bytes(names.of(*operator).as_bytes());
        put.number(u64::from(*version));
        put.number(watermark.cast_unsigned());
    }
    put.number(splits.len() as u64);
    for SplitSnapshot { operator, position, greatest, ended, readers } in splits {
        put.bytes(names.of(*operator).as_bytes());
        put.bytes(&position.to_bytes());
        put.number(u64::from(greatest.is_some()));
        put.number(greatest.unwrap_or_default().cast_unsigned());
        put.number(u64::from(*ended));
        put.number(u64::from(*readers));
    }
    put.number(sinks.len() as u64);
    for SinkSnapshot { operator, staged } in sinks {
        put.bytes(names.of(*operator).as_bytes());
        put.bytes(staged);
    }
    put.0
}

fn unlisted(bytes: &[u8], names: OperatorNames<'_>) -> Option<WorkerSnapshot> {
    let (&form, rest) = bytes.split_first()?;
    if !(COUNTED..=VERSION).contains(&form) {
        return None;
    }
    let mut take = Take(rest);
    let worker = u32::try_from(take.number()?).ok()?;
    let (round, late, bad, last) =
        (take.number()?, take.number()?, take.number()?, take.number()? != 0);
    let operators = take.list(|take| {
        let operator = names.number(take.text()?);
        let version = u32::try_from(take.number()?).ok()?;
        let watermark = take.number()?.cast_signed();
        if form == COUNTED {
            // Of its sections, which are there or not.
            take.number()?;
        }
        let (parts, stored) = (Vec::new(), Vec::new());
        Some(operator.map(|operator| OperatorSnapshot {
            operator,
            version,
            watermark,
            parts,
            stored,
        }))
    })?;
    let splits = take.list(|take| {
        let operator = names.number(take.text()?);
        let position = Position::from_bytes(take.bytes()?).ok()?;
        let (has, greatest) = (take.number()?, take.number()?.cast_signed());
        let (ended, readers) = (take.number()? != 0, u32::try_from(take.number()?).ok()?);
        let greatest = (has != 0).then_some(greatest);
        Some(operator.map(|operator| SplitSnapshot {
            operator,
            position,
            greatest,
            ended,
            readers,
        }))
    })?;
    let sinks = take.list(|take| {
        let (operator, staged) = (names.number(take.text()?), take.bytes()?.to_vec());
        Some(operator.map(|operator| SinkSnapshot { operator, staged }))
    })?;
    let splits = splits.into_iter().flatten().collect();
    let sinks = sinks.into_iter().flatten().collect();
    let operators = operators.into_iter().flatten().collect();
    let snapshot = WorkerSnapshot { worker, round, operators, splits, sinks, late, bad, last };
    take.0.is_empty().then_some(snapshot)
}

/// Writes what workers keep to a segment, worker by worker. What has been written is dropped, and
/// what lies on a disk is read a batch at a time: beside what the workers hold, no more is in
/// memory than [`SECTION_BYTES`], a batch, and what the upload keeps.
///
/// # Errors
/// When rows cannot be read or encoded, the segment exceeds a bound, or the store fails.
pub(super) fn encode(
    workers: Vec<WorkerSnapshot>,
    names: OperatorNames<'_>,
    segment: &mut SegmentUpload<'_>,
) -> Result<(), CheckpointError> {
    for worker in workers {
        segment.section(WORKER, worker.worker, 0, vec![listed(&worker, names).into()])?;
        for OperatorSnapshot { operator, parts, stored, .. } in worker.operators {
            let name = names.of(operator);
            let failed = |error: &dyn std::fmt::Display| CheckpointError::Invalid {
                reason: format!("rows of '{name}': {error}"),
            };
            let mut sections = OperatorSections { name, segment, open: None };
            for saved in parts {
                sections.add(saved)?;
            }
            for stored in stored {
                for saved in stored.read().map_err(|error| failed(&error))? {
                    sections.add(saved)?;
                }
            }
            sections.close()?;
        }
    }
    Ok(())
}

/// The sections of an operator of one worker: rows of a part are gathered until there are
/// [`SECTION_BYTES`] of them.
struct OperatorSections<'s, 'u> {
    name: &'s str,
    segment: &'s mut SegmentUpload<'u>,
    open: Option<OpenSection>,
}

struct OpenSection {
    part: u32,
    schema: SchemaRef,
    rows: u64,
    writer: StreamWriter<Vec<u8>>,
}

impl OperatorSections<'_, '_> {
    fn add(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), CheckpointError> {
        for rows in pieces(&rows, SECTION_BYTES) {
            let fits = |open: &OpenSection| {
                open.part == part
                    && open.schema == rows.schema()
                    && open.writer.get_ref().len() < SECTION_BYTES
            };
            if !self.open.as_ref().is_some_and(fits) {
                self.close()?;
            }
            let written = match &mut self.open {
                Some(open) => open.add(&rows),
                None => OpenSection::new(part, &rows).map(|open| self.open = Some(open)),
            };
            written.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), CheckpointError> {
        let Some(OpenSection { part, rows, writer, .. }) = self.open.take() else { return Ok(()) };
        let bytes = writer.into_inner().map_err(|error| self.failed(&error))?;
        self.segment.section(self.name, part, rows, vec![bytes.into()])
    }

    fn failed(&self, error: &ArrowError) -> CheckpointError {
        CheckpointError::Invalid { reason: format!("rows of '{}': {error}", self.name) }
    }
}

impl OpenSection {
    fn new(part: u32, rows: &RecordBatch) -> Result<Self, ArrowError> {
        let schema = rows.schema();
        let writer = StreamWriter::try_new(Vec::new(), &schema)?;
        let mut open = Self { part, schema, rows: 0, writer };
        open.add(rows)?;
        Ok(open)
    }

    fn add(&mut self, rows: &RecordBatch) -> Result<(), ArrowError> {
        self.rows += rows.num_rows() as u64;
        self.writer.write(rows)
    }
}

/// What [`encode`] has made a segment of. Rows of operators that the job does not have are left
/// out. Those of the others are read when they are needed, if there is a `loading` of them;
/// without it, only what workers list is read.
///
/// # Errors
/// When the store fails or the segment is damaged.
pub(super) fn decode(
    store: &dyn Store,
    job: &ObjectName,
    entry: &SegmentEntry,
    names: OperatorNames<'_>,
    loading: Option<&Arc<Loading>>,
) -> Result<Vec<WorkerSnapshot>, CheckpointError> {
    let segment = chain::open_segment(store, job, entry)?;
    let mut workers: Vec<WorkerSnapshot> = Vec::new();
    for section in segment.sections() {
        let damaged = |reason: &str| {
            let (file, reason) = (entry.file.clone(), reason.to_owned());
            CheckpointError::Damaged { file, offset: section.offset, reason }
        };
        if section.operator == WORKER {
            let worker = unlisted(&segment.read(section)?, names);
            let worker = worker.ok_or_else(|| damaged("it does not list what a worker keeps"));
            workers.push(worker?);
            continue;
        }
        let Some(worker) = workers.last_mut() else { return Err(damaged("rows of no worker")) };
        let (Some(loading), Some(number)) = (loading, names.number(&section.operator)) else {
            continue;
        };
        let operator = worker.operators.iter_mut().find(|operator| operator.operator == number);
        let operator = operator.ok_or_else(|| damaged("its worker does not list the operator"))?;
        let rows = loading.rows(job, entry, section);
        operator.stored.push(StoredRows { part: section.part, rows: Arc::new(rows) });
    }
    Ok(workers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray, StringViewArray, UInt8Array};
    use bytes::Bytes;
    use checkpoint::MemoryStore;
    use checkpoint::chain::PIECE_BYTES;
    use dataflow::checkpoint::UnreadRows;
    use dataflow::error::DataflowError;

    use super::*;

    fn ids(names: &[&str]) -> Vec<OperatorId> {
        let id = |name: &&str| OperatorId {
            id: (*name).to_owned(),
            text: (*name).to_owned(),
            remembers: true,
        };
        names.iter().map(id).collect()
    }

    fn rows(from: i64) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(from), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["ü", ""]));
        RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap()
    }

    fn snapshot(worker: u32) -> WorkerSnapshot {
        let part = |part, from| SavedRows { part, rows: rows(from) };
        let operator = |operator, parts| OperatorSnapshot {
            operator,
            version: 4,
            watermark: i64::MIN + 7,
            parts,
            stored: vec![],
        };
        let position = Position::new("csv", 1, "a.csv", &[u64::from(worker), 9]);
        let (greatest, ended, readers) = (Some(-5), worker == 1, 2);
        let split = SplitSnapshot { operator: 0, position, greatest, ended, readers };
        WorkerSnapshot {
            worker,
            round: 12,
            operators: vec![
                operator(1, vec![part(0, 1), part(0, 2), part(3, 3)]),
                operator(2, vec![]),
            ],
            splits: vec![split],
            sinks: vec![SinkSnapshot { operator: 2, staged: vec![0, 255] }],
            late: 3,
            bad: 4,
            last: worker == 1,
        }
    }

    fn store(workers: Vec<WorkerSnapshot>, names: &[OperatorId]) -> (Arc<dyn Store>, SegmentEntry) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let mut segment = SegmentUpload::new(&*store, &job(), (1, 0, 12));
        encode(workers, OperatorNames(names), &mut segment).unwrap();
        let entry = segment.finish().unwrap();
        (store, entry)
    }

    fn job() -> ObjectName {
        ObjectName::job("j").unwrap()
    }

    /// What was stored, with all rows in memory.
    fn read(
        store: &Arc<dyn Store>,
        entry: &SegmentEntry,
        names: &[OperatorId],
    ) -> Vec<WorkerSnapshot> {
        let loading = Loading::new(store.clone(), 2);
        let mut workers =
            decode(&**store, &job(), entry, OperatorNames(names), Some(&loading)).unwrap();
        for operator in workers.iter_mut().flat_map(|worker| &mut worker.operators) {
            let mut parts = vec![];
            let keep = |saved| {
                parts.push(saved);
                Ok::<_, DataflowError>(())
            };
            operator.each(keep).unwrap();
            let again: usize =
                operator.stored.iter().map(|rows| rows.read().unwrap().count()).sum();
            assert_eq!(again, parts.len());
            (operator.parts, operator.stored) = (parts, vec![]);
        }
        workers
    }

    #[test]
    fn what_workers_keep_is_read_again_by_the_names_of_operators() {
        let names = ids(&["source", "groups", "sink"]);
        let workers = [snapshot(0), snapshot(1)];
        let (store, entry) = store(workers.to_vec(), &names);
        assert_eq!(format!("{:?}", read(&store, &entry, &names)), format!("{workers:?}"));

        // The operators have other numbers now, and one of them is gone.
        let names = ids(&["sink", "source"]);
        let workers = read(&store, &entry, &names);
        let first = &workers[0];
        assert_eq!((first.operators.len(), first.operators[0].operator), (1, 0));
        assert_eq!((first.splits[0].operator, first.sinks[0].operator), (1, 0));
        let listed = decode(&*store, &job(), &entry, OperatorNames(&names), None).unwrap();
        assert!(listed.iter().all(|worker| worker.operators.iter().all(|of| of.stored.is_empty())));
    }

    fn of_texts(texts: &ArrayRef) -> OperatorSnapshot {
        let rows = RecordBatch::try_from_iter([("text", texts.clone())]).unwrap();
        let slice = |at: usize| SavedRows { part: 0, rows: rows.slice(10 * at, 10) };
        let parts = (0..rows.num_rows() / 10).map(slice).collect();
        OperatorSnapshot { operator: 0, version: 1, watermark: 0, parts, stored: vec![] }
    }

    #[test]
    fn texts_are_written_once_however_many_slices_they_are_in() {
        let names = ids(&["rows"]);
        let texts: Vec<String> = (0..1000).map(|at| format!("{at:0>100}")).collect();
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
        let bytes = views.as_string_view().total_buffer_bytes_used() as u64;
        let operators = vec![of_texts(&views)];
        let snapshot = WorkerSnapshot { operators, ..WorkerSnapshot::default() };
        let (store, entry) = store(vec![snapshot], &names);
        assert!(bytes > 90_000 && entry.bytes < 2 * bytes, "{} of {bytes} bytes", entry.bytes);
        let read = read(&store, &entry, &names);
        let parts = read[0].operators[0].parts.iter();
        let read = parts.flat_map(|saved| saved.rows.column(0).as_string_view().iter());
        assert!(read.flatten().eq(texts.iter().map(String::as_str)));
    }

    /// Rows on a disk. It counts the bytes of those that were read and are not dropped.
    struct OnDisk {
        bytes: usize,
        held: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    /// Memory that is counted.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len(), Relaxed);
        }
    }

    impl UnreadRows for OnDisk {
        fn read(&self) -> Result<Vec<RecordBatch>, DataflowError> {
            let bytes = vec![1; self.bytes];
            let held = self.held.fetch_add(bytes.len(), Relaxed) + bytes.len();
            self.most.fetch_max(held, Relaxed);
            let bytes = Bytes::from_owner(Counted(bytes, self.held.clone()));
            let buffer = arrow::buffer::Buffer::from(bytes);
            let numbers: ArrayRef = Arc::new(UInt8Array::new(buffer.into(), None));
            Ok(vec![RecordBatch::try_from_iter([("number", numbers)])?])
        }
    }

    #[test]
    fn rows_on_a_disk_are_read_one_batch_at_a_time() {
        const BATCH: usize = 800_000;
        let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let on_disk = || OnDisk { bytes: BATCH, held: held.clone(), most: most.clone() };
        let stored = |part| StoredRows { part, rows: Arc::new(on_disk()) };
        let stored = (0..40).map(|at| stored(at / 20)).collect();
        let parts = vec![];
        let operator = OperatorSnapshot { operator: 0, version: 1, watermark: 0, parts, stored };
        let snapshot = WorkerSnapshot { operators: vec![operator], ..WorkerSnapshot::default() };
        let (store, entry) = store(vec![snapshot], &ids(&["rows"]));
        assert!(entry.bytes as usize > 40 * BATCH && entry.bytes as usize > 3 * PIECE_BYTES);
        assert_eq!((held.load(Relaxed), most.load(Relaxed)), (0, BATCH));
        let segment = chain::open_segment(&*store, &job(), &entry).unwrap();
        let sections = &segment.sections()[1..];
        let most = (SECTION_BYTES + 2 * BATCH) as u64;
        assert!(sections.iter().all(|section| section.bytes < most), "{sections:?}");
        assert_eq!(sections.iter().map(|section| section.rows).sum::<u64>(), 40 * BATCH as u64);
        assert!(sections.iter().all(|section| section.part < 2) && sections.len() >= 8);
        let read = read(&store, &entry, &ids(&["rows"]));
        assert_eq!(read[0].operators[0].parts.len(), 40);
    }

    #[test]
    fn a_list_that_is_cut_is_refused() {
        let names = ids(&["source", "groups", "sink"]);
        let bytes = listed(&snapshot(0), OperatorNames(&names));
        assert!(unlisted(&bytes, OperatorNames(&names)).is_some());
        for end in 0..bytes.len() {
            assert!(unlisted(&bytes[..end], OperatorNames(&names)).is_none(), "{end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(unlisted(&longer, OperatorNames(&names)).is_none());
        let later = [&[VERSION + 1], &bytes[1..]].concat();
        assert!(unlisted(&later, OperatorNames(&names)).is_none());
    }
}
