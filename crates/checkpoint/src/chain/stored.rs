//! Requests of the chain as calls to a store, and segments by their names.

use std::thread;

use bytes::Bytes;

use super::decide::{ChainReply, ChainRequest, Claim, RECORD_RETAINED_MS};
use super::names::{
    chain_folder, collected_folder, record_name, record_number, segment_file, segment_name,
};
use super::view::repeated;
use super::{CLAIMS_MAX, PAUSE, PAUSE_MAX};
use crate::error::{CheckpointError, StoreError, WriteEffect};
use crate::record::{RECORD_BYTES_MAX, Record, SegmentEntry};
use crate::segment::{self, EncodedSegment, SectionEntry, SegmentReader, SegmentWriter};
use crate::store::{Created, ObjectName, ObjectWriter, Store};

/// How often a segment is written whose answer was lost: the same bytes take the same name.
const PUTS_MAX: u32 = 5;
/// Bytes of a segment that are gathered before they are written. A segment of fewer is written by
/// one request.
pub const PIECE_BYTES: usize = 8 << 20;

/// Asks the store.
pub(super) fn ask(
    store: &dyn Store,
    job: &ObjectName,
    request: &ChainRequest<Bytes>,
) -> Result<ChainReply<Bytes>, StoreError> {
    Ok(match request {
        ChainRequest::Greatest => ChainReply::Greatest(greatest(store, &chain_folder(job))?),
        ChainRequest::Read(number) => ChainReply::Record(read_record(store, job, *number)?),
        ChainRequest::Create(number, record) => {
            ChainReply::Created(store.create(&record_name(job, *number), record)?)
        }
        ChainRequest::CollectedBelow => {
            ChainReply::CollectedBelow(greatest(store, &collected_folder(job))?)
        }
    })
}

/// The greatest number of a record, or of a marker; 0 if there is none.
fn greatest(store: &dyn Store, folder: &ObjectName) -> Result<u64, StoreError> {
    let listed = store.list(Some(folder))?;
    Ok(listed.iter().filter_map(|object| record_number(&object.name)).max().unwrap_or(0))
}

/// The bytes of a record, if it is there: one more than a record may have at most.
pub(super) fn read_record(
    store: &dyn Store,
    job: &ObjectName,
    number: u64,
) -> Result<Option<Bytes>, StoreError> {
    store.get(&record_name(job, number), Some(0..RECORD_BYTES_MAX as u64 + 1))
}

/// The record of a number, of its bytes.
pub(super) fn decode_record(
    store: &dyn Store,
    job: &ObjectName,
    number: u64,
    bytes: &[u8],
) -> Result<Record, CheckpointError> {
    let file = store.place(&record_name(job, number));
    Record::decode(&file, bytes)?.belongs(&file, job.as_str(), Some(number), None)
}

/// Deletes a record of a process that is fenced, if it is there and nothing is behind it. It was
/// created in the place of one that was collected or dropped, and would be taken for the head of a
/// chain that begins anew. A failure leaves it.
pub(super) fn remove_stray(store: &dyn Store, job: &ObjectName, number: u64, record: &Bytes) {
    let is_own = matches!(read_record(store, job, number), Ok(Some(found)) if found == *record);
    if is_own && matches!(read_record(store, job, number + 1), Ok(None)) {
        let _ = repeated(|| store.delete(&record_name(job, number)));
    }
}

/// Refuses a store that does not honour the condition of a create.
pub(super) fn probe(
    store: &dyn Store,
    job: &ObjectName,
    nonce: u64,
) -> Result<(), CheckpointError> {
    let folder = ObjectName::known(format!("{job}/probe"));
    let name = ObjectName::known(format!("{folder}/{nonce:016x}"));
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    let created = repeated(|| store.create(&name, &first))
        .and_then(|_| repeated(|| store.create(&name, &second)))
        .and_then(|again| Ok((again, store.get(&name, None)?)));
    let listed = store.list(Some(&folder));
    let deleted = repeated(|| store.delete(&name));
    let (again, found) = created?;
    deleted?;
    // Processes that died while they probed have left objects. A young one may be another run's.
    let listed = listed?;
    let now_ms = listed.iter().map(|object| object.modified_ms).max().unwrap_or(0);
    for object in listed {
        if now_ms.saturating_sub(object.modified_ms) > RECORD_RETAINED_MS {
            repeated(|| store.delete(&object.name))?;
        }
    }
    if again == Created::Exists && found == Some(first) {
        return Ok(());
    }
    Err(CheckpointError::Unconditional { place: store.place(&name) })
}

/// Goes on until the head is found. Reads that fail are an error; nothing was written.
pub(super) fn find_head(
    store: &dyn Store,
    job: &ObjectName,
    claim: &mut Claim<Bytes>,
) -> Result<(), CheckpointError> {
    let (mut listings, mut pause) = (0, PAUSE);
    while !matches!(claim, Claim::Found(_) | Claim::Beginning(_) | Claim::Begun(_)) {
        let Some(request) = claim.request() else { break };
        if request == ChainRequest::Greatest {
            listings += 1;
            if listings == CLAIMS_MAX {
                let reason = "its listings do not show the records that are there";
                return Err(StoreError::refused(store.place(&chain_folder(job)), reason).into());
            }
            if listings > 1 {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        claim.reply(ask(store, job, &request)?);
    }
    Ok(())
}

/// Stores the segment of a node for a checkpoint, and gives the entry for its manifest. A write
/// whose answer was lost is repeated.
///
/// # Errors
/// When the store fails.
pub fn store_segment(
    store: &dyn Store,
    job: &ObjectName,
    at: (u64, u32, u64),
    segment: &EncodedSegment,
) -> Result<SegmentEntry, CheckpointError> {
    let (generation, node, number) = at;
    put_segment(store, job, segment_file(generation, node, number), segment)
}

fn put_segment(
    store: &dyn Store,
    job: &ObjectName,
    file: String,
    segment: &EncodedSegment,
) -> Result<SegmentEntry, CheckpointError> {
    let name = name_of(job, &file)?;
    let (mut tries, mut pause) = (0, PAUSE);
    loop {
        match store.put(&name, &segment.parts) {
            Ok(()) => return Ok(SegmentEntry { file, bytes: segment.bytes, crc: segment.crc }),
            Err(error) if error.effect == WriteEffect::Unknown && tries < PUTS_MAX => {
                tries += 1;
                thread::sleep(pause);
                pause *= 2;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A segment that is stored while it is written. A small one is stored by one request when it is
/// finished. A larger one is stored piece by piece: at most [`PIECE_BYTES`] and the last section of
/// it are in memory.
pub struct SegmentUpload<'a> {
    store: &'a dyn Store,
    job: ObjectName,
    file: String,
    writer: SegmentWriter,
    /// The object in the store, once the segment is larger than a piece.
    object: Option<Box<dyn ObjectWriter + 'a>>,
}

impl<'a> SegmentUpload<'a> {
    /// Begins the segment of a node for a checkpoint; `at` is generation, node and number of the
    /// checkpoint.
    #[must_use]
    pub fn new(store: &'a dyn Store, job: &ObjectName, at: (u64, u32, u64)) -> Self {
        let (generation, node, number) = at;
        let (job, file) = (job.clone(), segment_file(generation, node, number));
        Self { store, job, file, writer: SegmentWriter::default(), object: None }
    }

    /// Appends a section: see [`SegmentWriter::section`].
    ///
    /// # Errors
    /// When the section exceeds a bound, or the store fails. Then nothing of the segment is seen.
    pub fn section(
        &mut self,
        operator: &str,
        part: u32,
        rows: u64,
        bytes: Vec<Bytes>,
    ) -> Result<(), CheckpointError> {
        self.writer.section(operator, part, rows, bytes)?;
        if self.writer.waiting() < PIECE_BYTES {
            return Ok(());
        }
        let object = match &mut self.object {
            Some(object) => object,
            None => {
                let name = name_of(&self.job, &self.file)?;
                self.object.insert(self.store.writer(&name)?)
            }
        };
        for bytes in self.writer.take() {
            object.write(bytes)?;
        }
        Ok(())
    }

    /// The section that was appended last.
    #[must_use]
    pub fn last(&self) -> Option<&SectionEntry> {
        self.writer.last()
    }

    /// Stores the rest of the segment, and gives the entry for its manifest.
    ///
    /// # Errors
    /// When the footer exceeds its bound, or the store fails.
    pub fn finish(self) -> Result<SegmentEntry, CheckpointError> {
        let Self { store, job, file, writer, object } = self;
        let segment = writer.finish()?;
        let Some(mut object) = object else { return put_segment(store, &job, file, &segment) };
        let entry = SegmentEntry { file, bytes: segment.bytes, crc: segment.crc };
        for bytes in segment.parts {
            object.write(bytes)?;
        }
        match object.finish() {
            // Its pieces are gone, but it may be there.
            Err(error) if error.effect == WriteEffect::Unknown => {
                open_segment(store, &job, &entry).map_err(|_| error)?;
            }
            finished => finished?,
        }
        Ok(entry)
    }
}

/// Reads a section of a segment of a manifest, whose footer was read by [`open_segment`].
///
/// # Errors
/// When the store fails, or the section is not what was written.
pub fn read_section(
    store: &dyn Store,
    job: &ObjectName,
    entry: &SegmentEntry,
    section: &SectionEntry,
) -> Result<Bytes, CheckpointError> {
    segment::read_section(store, &name_of(job, &entry.file)?, section)
}

/// Opens a segment that a manifest names.
///
/// # Errors
/// When the store fails, or when the segment is missing or not the one that was written.
pub fn open_segment<'a>(
    store: &'a dyn Store,
    job: &ObjectName,
    entry: &SegmentEntry,
) -> Result<SegmentReader<'a>, CheckpointError> {
    SegmentReader::open(store, name_of(job, &entry.file)?, entry)
}

fn name_of(job: &ObjectName, file: &str) -> Result<ObjectName, CheckpointError> {
    let wrong = || CheckpointError::invalid(format!("{file:?} is no name of a segment"));
    segment_name(job, file).ok_or_else(wrong)
}
