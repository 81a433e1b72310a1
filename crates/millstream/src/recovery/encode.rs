//! Snapshots of workers as sections of a segment, and back.
//!
//! Each worker has a section `worker` that lists what it keeps, and behind it Arrow streams of its
//! operators' state: of each operator those of its parts, as many as there are rows for.
//!
//! ```text
//! worker 0 │ aggregate-… part 0 │ aggregate-… part 0 │ aggregate-… part 1 │ worker 1 │ …
//! ```
//!
//! Rows that never change, as those on a disk, are not written again where a section of an earlier
//! checkpoint has them: the worker lists that section. Blocks of groups, which have a section each,
//! are [narrow](super::narrow).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use checkpoint::chain::{self, SectionPlace, SegmentUpload, StoredSection};
use checkpoint::segment::SectionEntry;
use checkpoint::{CheckpointError, ObjectName, SegmentEntry, Store};
use dataflow::checkpoint::{
    OperatorSnapshot, RowsId, SavedRows, SinkSnapshot, SplitSnapshot, StoredRows, WorkerSnapshot,
};
use dataflow::pieces;
use dataflow::source::Position;

use super::ids::OperatorId;
use super::loading::Loading;
use super::narrow::narrow;

/// The section that begins a worker.
const WORKER: &str = "worker";
/// The form of that section. Sections of its operators may be narrow.
const VERSION: u8 = 3;
/// The form in which it counted the sections of each operator, which had one batch each, and
/// referred to none.
const COUNTED: u8 = 1;
/// About how many bytes a section has beside its rows.
const HEAD_BYTES: usize = 2 << 10;
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

/// The snapshot of a worker, without rows; and the sections of earlier checkpoints that it refers
/// to.
fn listed(
    snapshot: &WorkerSnapshot,
    referred: &[&SectionPlace],
    names: OperatorNames<'_>,
) -> Vec<u8> {
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
    for SinkSnapshot { operator, staged, .. } in sinks {
        put.bytes(names.of(*operator).as_bytes());
        put.bytes(staged);
    }
    put.number(referred.len() as u64);
    for SectionPlace { segment, section } in referred {
        put.bytes(segment.file.as_bytes());
        put.bytes(section.operator.as_bytes());
        let of_segment = [segment.bytes, segment.crc.into()];
        let of_section =
            [section.part.into(), section.rows, section.offset, section.bytes, section.crc.into()];
        of_segment.into_iter().chain(of_section).for_each(|number| put.number(number));
    }
    put.0
}

/// A section of an earlier checkpoint.
fn place_from(take: &mut Take<'_>) -> Option<SectionPlace> {
    let (file, operator) = (take.text()?.to_owned(), take.text()?.to_owned());
    let small = |number: u64| u32::try_from(number).ok();
    let segment = SegmentEntry { file, bytes: take.number()?, crc: small(take.number()?)? };
    let (part, rows) = (small(take.number()?)?, take.number()?);
    let (offset, bytes, crc) = (take.number()?, take.number()?, small(take.number()?)?);
    let section = SectionEntry { operator, part, rows, offset, bytes, crc };
    Some(SectionPlace { segment, section })
}

/// The list of a worker: its snapshot without rows, and the places of sections elsewhere.
type Listed = (WorkerSnapshot, Vec<SectionPlace>);

fn unlisted(bytes: &[u8], names: OperatorNames<'_>) -> Option<Listed> {
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
        Some(operator.map(|operator| SinkSnapshot { operator, staged, unsynced: None }))
    })?;
    let splits = splits.into_iter().flatten().collect();
    let sinks = sinks.into_iter().flatten().collect();
    let operators = operators.into_iter().flatten().collect();
    let snapshot = WorkerSnapshot { worker, round, operators, splits, sinks, late, bad, last };
    let referred = if form == COUNTED { Some(Vec::new()) } else { take.list(place_from) }?;
    take.0.is_empty().then_some((snapshot, referred))
}

/// The sections of a segment whose rows need not be written again.
pub(super) type Sections = Vec<StoredSection<StoredId>>;

/// Rows of an operator that never change: worker, operator, and their number.
pub(super) type StoredId = (u32, u32, RowsId);

/// Rows of the sections that are being written.
pub(super) type NewSections = Vec<(SectionEntry, Vec<StoredId>)>;

/// The numbers of all rows of workers that never change.
pub(super) fn ids_of(workers: &[WorkerSnapshot]) -> BTreeSet<StoredId> {
    let mut ids = BTreeSet::new();
    for WorkerSnapshot { worker, operators, .. } in workers {
        for OperatorSnapshot { operator, stored, .. } in operators {
            let own = stored.iter().filter_map(|stored| stored.rows.id());
            ids.extend(own.map(|id| (*worker, *operator, id)));
        }
    }
    ids
}

/// The sections of earlier checkpoints, when the next one is written.
pub(super) struct Earlier<'a> {
    store: &'a dyn Store,
    job: &'a ObjectName,
    /// The sections that the next checkpoint refers to.
    refers: &'a Sections,
    /// The sections of the last checkpoint in the chain that have the rows of one number, by it.
    apart: BTreeMap<StoredId, &'a SectionPlace>,
    /// Whether a section that is in the chain could not be read.
    is_lost: bool,
}

impl<'a> Earlier<'a> {
    /// The sections of a job that are referred to, and those of the last checkpoint in the chain.
    pub(super) fn new(
        (store, job): (&'a dyn Store, &'a ObjectName),
        refers: &'a Sections,
        recorded: &'a [StoredSection<StoredId>],
    ) -> Self {
        let apart = recorded.iter().filter_map(|of| match of.rows[..] {
            [id] => Some((id, &of.place)),
            _ => None,
        });
        Self { store, job, refers, apart: apart.collect(), is_lost: false }
    }

    /// Whether rows could not be read that are in the chain.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The section with the rows of a number, and its bytes.
    fn read(&mut self, id: StoredId) -> Result<(&'a SectionPlace, Bytes), CheckpointError> {
        let place = self.apart.get(&id).copied();
        let read = place.ok_or_else(|| {
            let reason = "no checkpoint in the chain has rows that have not changed".to_owned();
            CheckpointError::Invalid { reason }
        });
        let read = read.and_then(|place| {
            let SectionPlace { segment, section } = place;
            Ok((place, chain::read_section(self.store, self.job, segment, section)?))
        });
        self.is_lost |= read.is_err();
        read
    }
}

/// Writes what workers keep to a segment, worker by worker, but for the rows that are in sections
/// of earlier checkpoints, to which it refers. Sections with rows that only such a checkpoint has
/// are copied where it does not. Rows are dropped when they have been written, and rows on a disk
/// are read a batch at a time: beside the snapshots of workers, no more is in memory than
/// [`SECTION_BYTES`], a batch, and the pieces of the upload. Gives the sections that later
/// checkpoints may refer to.
///
/// # Errors
/// When rows cannot be read or encoded, the segment exceeds a bound, or the store fails.
pub(super) fn encode(
    workers: Vec<WorkerSnapshot>,
    names: OperatorNames<'_>,
    earlier: &mut Earlier<'_>,
    segment: &mut SegmentUpload<'_>,
) -> Result<NewSections, CheckpointError> {
    let refers = earlier.refers;
    let referred: BTreeSet<&StoredId> = refers.iter().flat_map(|of| &of.rows).collect();
    let mut new = NewSections::new();
    for snapshot in workers {
        let worker = snapshot.worker;
        let is_own = |of: &&StoredSection<StoredId>| {
            of.rows.first().is_some_and(|(saver, ..)| *saver == worker)
        };
        let places: Vec<&SectionPlace> = refers.iter().filter(is_own).map(|of| &of.place).collect();
        segment.section(WORKER, worker, 0, vec![listed(&snapshot, &places, names).into()])?;
        for OperatorSnapshot { operator, parts, stored, .. } in snapshot.operators {
            let name = names.of(operator);
            let mut sections = OperatorSections { name, segment, open: None, new: &mut new };
            for saved in parts {
                sections.add(saved)?;
            }
            for stored in stored {
                match stored.rows.id().map(|id| (worker, operator, id)) {
                    Some(id) if referred.contains(&id) => {}
                    Some(id) if stored.rows.is_recorded() => {
                        sections.copy(earlier.read(id)?, id)?
                    }
                    id => sections.add_stored(&stored, id)?,
                }
            }
            sections.close()?;
        }
    }
    Ok(new)
}

/// The sections of an operator of one worker: rows of a part are gathered until there are
/// [`SECTION_BYTES`] of them. Rows that never change are apart from others.
struct OperatorSections<'s, 'u> {
    name: &'s str,
    segment: &'s mut SegmentUpload<'u>,
    open: Option<OpenSection>,
    new: &'s mut NewSections,
}

struct OpenSection {
    part: u32,
    schema: SchemaRef,
    rows: u64,
    /// The rows in it, if they never change.
    ids: Vec<StoredId>,
    writer: StreamWriter<Vec<u8>>,
}

impl OperatorSections<'_, '_> {
    fn add(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), CheckpointError> {
        for piece in pieces(&rows, SECTION_BYTES) {
            self.begin(part, &piece, None)?;
            self.write(&piece)?;
        }
        Ok(())
    }

    /// Adds a section of an earlier checkpoint, which has the rows of one number.
    fn copy(
        &mut self,
        (place, bytes): (&SectionPlace, Bytes),
        id: StoredId,
    ) -> Result<(), CheckpointError> {
        self.close()?;
        let SectionEntry { part, rows, .. } = place.section;
        self.segment.section(self.name, part, rows, vec![bytes])?;
        self.new.extend(self.segment.last().map(|section| (section.clone(), vec![id])));
        Ok(())
    }

    /// Adds rows that are read now, those of a number to one section.
    fn add_stored(
        &mut self,
        stored: &StoredRows,
        id: Option<StoredId>,
    ) -> Result<(), CheckpointError> {
        let is_apart = id.is_some() && stored.rows.is_apart();
        if is_apart {
            self.close()?;
        }
        let mut is_first = true;
        let saved = stored.read().map_err(|error| self.failed(&error))?;
        let saved: Vec<SavedRows> = saved.collect();
        // Other rows of a section would have other least values.
        let is_alone = is_apart && saved.len() == 1;
        for saved in saved {
            if id.is_none() {
                self.add(saved)?;
                continue;
            }
            let count = saved.rows.num_rows();
            for mut piece in pieces(&saved.rows, SECTION_BYTES) {
                if is_alone && piece.num_rows() == count {
                    piece = narrow(&piece).map_err(|error| self.failed(&error))?;
                }
                if std::mem::take(&mut is_first) {
                    self.begin(saved.part, &piece, id)?;
                }
                self.write(&piece)?;
            }
        }
        if is_apart { self.close() } else { Ok(()) }
    }

    /// Makes room for rows in the section that is open, or opens another one.
    fn begin(
        &mut self,
        part: u32,
        rows: &RecordBatch,
        id: Option<StoredId>,
    ) -> Result<(), CheckpointError> {
        let fits = |open: &OpenSection| {
            open.part == part
                && open.schema == rows.schema()
                && open.ids.is_empty() == id.is_none()
                && open.writer.get_ref().len() < SECTION_BYTES
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.close()?;
            let opened = OpenSection::new(part, rows);
            self.open = Some(opened.map_err(|error| self.failed(&error))?);
        }
        if let Some(open) = &mut self.open {
            open.ids.extend(id);
        }
        Ok(())
    }

    fn write(&mut self, rows: &RecordBatch) -> Result<(), CheckpointError> {
        let written = self.open.as_mut().map_or(Ok(()), |open| open.add(rows));
        written.map_err(|error| self.failed(&error))
    }

    fn close(&mut self) -> Result<(), CheckpointError> {
        let Some(OpenSection { part, rows, ids, writer, .. }) = self.open.take() else {
            return Ok(());
        };
        let bytes = writer.into_inner().map_err(|error| self.failed(&error))?;
        self.segment.section(self.name, part, rows, vec![bytes.into()])?;
        if let Some(section) = self.segment.last().filter(|_| !ids.is_empty()) {
            self.new.push((section.clone(), ids));
        }
        Ok(())
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> CheckpointError {
        CheckpointError::Invalid { reason: format!("rows of '{}': {error}", self.name) }
    }
}

impl OpenSection {
    /// A section that begins with these rows.
    fn new(part: u32, rows: &RecordBatch) -> Result<Self, ArrowError> {
        let schema = rows.schema();
        let room = Vec::with_capacity(rows.get_array_memory_size() + HEAD_BYTES);
        let writer = StreamWriter::try_new(room, &schema)?;
        Ok(Self { part, schema, rows: 0, ids: Vec::new(), writer })
    }

    fn add(&mut self, rows: &RecordBatch) -> Result<(), ArrowError> {
        self.rows += rows.num_rows() as u64;
        self.writer.write(rows)
    }
}

/// The state of a checkpoint, as its workers have saved it.
#[derive(Default)]
pub(super) struct Decoded {
    /// Their snapshots.
    pub(super) workers: Vec<WorkerSnapshot>,
    /// The segments that they refer to.
    pub(super) referred: BTreeSet<SegmentEntry>,
    /// By the name of an operator the bytes of its sections, also where they are referred to.
    pub(super) bytes: BTreeMap<String, u64>,
}

/// The inverse of [`encode`]. Rows of operators that the job does not have are skipped. With a
/// `loading`, rows of the others are read when they are needed; without it, only the lists of
/// workers are read.
///
/// # Errors
/// When the store fails or the segment is damaged.
pub(super) fn decode(
    store: &dyn Store,
    job: &ObjectName,
    entry: &SegmentEntry,
    names: OperatorNames<'_>,
    loading: Option<&Arc<Loading>>,
    into: &mut Decoded,
) -> Result<(), CheckpointError> {
    let segment = chain::open_segment(store, job, entry)?;
    let mut worker: Option<WorkerSnapshot> = None;
    let Decoded { workers, referred, bytes } = into;
    let mut count = |of: &SectionEntry| {
        *bytes.entry(of.operator.clone()).or_default() += of.bytes;
    };
    for section in segment.sections() {
        let damaged = |reason: &str| {
            let (file, reason) = (entry.file.clone(), reason.to_owned());
            CheckpointError::Damaged { file, offset: section.offset, reason }
        };
        if section.operator == WORKER {
            let listed = unlisted(&segment.read(section)?, names);
            let listed = listed.ok_or_else(|| damaged("it does not list what a worker keeps"));
            let (mut next, places) = listed?;
            for SectionPlace { segment, section } in &places {
                let known = add_rows(&mut next, job, segment, section, names, loading);
                known.ok_or_else(|| damaged("it refers to rows of an operator that it has not"))?;
                referred.insert(segment.clone());
                count(section);
            }
            workers.extend(worker.replace(next));
            continue;
        }
        let Some(worker) = &mut worker else { return Err(damaged("rows of no worker")) };
        let known = add_rows(worker, job, entry, section, names, loading);
        known.ok_or_else(|| damaged("its worker does not list the operator"))?;
        count(section);
    }
    workers.extend(worker);
    Ok(())
}

/// Adds the rows of a section to those of their operator, if the job has it; `None` if the worker
/// does not list it.
fn add_rows(
    worker: &mut WorkerSnapshot,
    job: &ObjectName,
    entry: &SegmentEntry,
    section: &SectionEntry,
    names: OperatorNames<'_>,
    loading: Option<&Arc<Loading>>,
) -> Option<()> {
    let (Some(loading), Some(number)) = (loading, names.number(&section.operator)) else {
        return Some(());
    };
    let operator = worker.operators.iter_mut().find(|operator| operator.operator == number)?;
    let rows = loading.rows(job, entry, section);
    operator.stored.push(StoredRows { part: section.part, rows: Arc::new(rows) });
    Some(())
}

#[cfg(test)]
mod tests;
