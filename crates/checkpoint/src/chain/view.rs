//! A chain as others than its leader see it: what it has, whether it is intact, what is kept of it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::decide::{CHECKPOINTS_RETAINED, ChainHead, Claim};
use super::names::{
    begun_name, chain_folder, collected_folder, kept_folder, record_name, record_number,
    segment_folder, segment_numbers,
};
use super::stored::{decode_record, find_head, open_segment, read_record};
use crate::error::{CheckpointError, StoreError, WriteEffect};
use crate::record::{
    BaseCheckpoint, Begin, CheckpointManifest, RECORD_BYTES_MAX, Record, RecordBody,
};
use crate::store::{Created, ObjectName, Store, StoredObject};

/// How often a write is repeated whose answer was lost.
const TRIES_MAX: u32 = 5;
/// The room for numbers of checkpoints that an unreadable record may have had.
const NUMBERS_SKIPPED: u64 = 1024;

/// The records whose times tell how often a job writes one.
const RECORDS_RECENT: usize = 4;

/// The end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainView {
    /// The job.
    pub job: ObjectName,
    /// The number of the last record; 0 if there is none.
    pub head: u64,
    /// The last record that could be read. It is the last one unless damage was passed over.
    pub record: Option<Record>,
    /// Damaged records at the end that were passed over.
    pub skipped: u64,
    /// The last generation; 0 before the first one.
    pub generation: u64,
    /// The checkpoint that a run goes on from.
    pub checkpoint: Option<BaseCheckpoint>,
}

/// A record of a listing.
#[derive(Debug, Clone)]
pub struct ChainRecord {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub object: StoredObject,
    /// Its content, or the reason why it cannot be read.
    pub record: Result<Record, CheckpointError>,
}

/// A checkpoint that was kept under a name.
#[derive(Debug, Clone)]
pub struct KeptCheckpoint {
    /// The name.
    pub name: String,
    /// Its file.
    pub object: StoredObject,
    /// The number of its record in the chain; 0 if it cannot be read.
    pub record: u64,
    /// Its content, or the reason why it cannot be read.
    pub manifest: Result<CheckpointManifest, CheckpointError>,
}

/// Reads the end of a job's chain. A job that nobody has begun has a view with the head 0.
///
/// # Errors
/// When the store fails or the last record is damaged.
pub fn look(store: &dyn Store, job: &ObjectName) -> Result<ChainView, CheckpointError> {
    let mut claim = Claim::Listing;
    find_head(store, job, &mut claim)?;
    let Claim::Found(head) = &claim else { unreachable!("nothing was begun") };
    ChainView::of(store, job, head, false)
}

impl ChainView {
    /// Decodes a head that was found. With `skips`, damaged records are passed over.
    pub(super) fn of(
        store: &dyn Store,
        job: &ObjectName,
        head: &ChainHead<Bytes>,
        skips: bool,
    ) -> Result<Self, CheckpointError> {
        let (mut number, mut bytes) = (head.number, head.record.clone());
        while let Some(read) = bytes {
            match decode_record(store, job, number, &read) {
                Ok(record) => {
                    let skipped = head.number - number;
                    return Ok(Self {
                        job: job.clone(),
                        head: head.number,
                        skipped,
                        // Each damaged record may have begun a generation.
                        generation: record.generation.saturating_add(skipped),
                        checkpoint: record.checkpoint(),
                        record: Some(record),
                    });
                }
                Err(CheckpointError::Damaged { .. }) if skips => {
                    number -= 1;
                    bytes = if number > 0 { read_record(store, job, number)? } else { None };
                }
                Err(error) => return Err(error),
            }
        }
        let skipped = head.number - number;
        let (job, head, record) = (job.clone(), head.number, None);
        Ok(Self { job, head, record, skipped, generation: skipped, checkpoint: None })
    }

    /// Whether the job has ended, and its output was published.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.record, Some(Record { body: RecordBody::Done(_), .. }))
    }

    /// Whether the last run has ended in good order: the job has ended or was stopped, and the
    /// output of its last checkpoint was published.
    #[must_use]
    pub fn is_over(&self) -> bool {
        use RecordBody::{Done, Settled};
        matches!(self.record, Some(Record { body: Done(_) | Settled(_), .. }))
    }

    /// The begin record of the last generation: who leads it. It is read from its copy, which is
    /// there for as long as the generation is the last one. `None` for an empty chain, and without
    /// a copy where the record was collected.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub fn begun(&self, store: &dyn Store) -> Result<Option<Begin>, CheckpointError> {
        let copy = begun_name(&self.job, self.generation);
        if let Some(bytes) = store.get(&copy, Some(0..RECORD_BYTES_MAX as u64 + 1))?
            && let Ok(Record { run, body: RecordBody::Begin(begin), .. }) =
                Record::decode(&store.place(&copy), &bytes)
            && self.record.as_ref().is_some_and(|record| record.run == run)
        {
            return Ok(Some(begin));
        }
        let (mut number, mut record) = (self.head - self.skipped, self.record.clone());
        while let Some(Record { body, generation, .. }) = record {
            match body {
                RecordBody::Begin(begin) => return Ok(Some(begin)),
                _ if number <= 1 || generation != self.generation => return Ok(None),
                _ => number -= 1,
            }
            record = decoded(store, &self.job, number)?;
        }
        Ok(None)
    }

    /// The checkpoint whose output may not be visible: the last one in the chain, if no record of
    /// its run shows that it is. Runs that have begun behind it without a checkpoint of their own
    /// do not show it either.
    pub(super) fn unpublished(&self, store: &dyn Store) -> Result<Option<u64>, CheckpointError> {
        let (mut number, mut record) = (self.head - self.skipped, self.record.clone());
        while let Some(found) = record {
            match found.body {
                RecordBody::Settled(_) | RecordBody::Done(_) => return Ok(None),
                RecordBody::Manifest(manifest) => return Ok(Some(manifest.number)),
                RecordBody::Begin(_) if number > 1 => number -= 1,
                RecordBody::Begin(_) => return Ok(None),
            }
            record = decoded(store, &self.job, number)?;
        }
        Ok(self.checkpoint.as_ref().map(|of| of.number))
    }

    /// The greatest number that a checkpoint of this chain has or may have had.
    pub(super) fn greatest(&self, store: &dyn Store) -> Result<u64, CheckpointError> {
        let (mut number, mut record) = (self.head - self.skipped, self.record.clone());
        let mut greatest = 0;
        while let Some(found) = record {
            match found.body {
                RecordBody::Begin(begin) => {
                    greatest = begin.round.saturating_sub(1);
                    break;
                }
                RecordBody::Manifest(manifest) => {
                    greatest = manifest.number;
                    break;
                }
                RecordBody::Settled(of) | RecordBody::Done(of) => {
                    greatest = greatest.max(of.number)
                }
            }
            number -= 1;
            record = if number > 0 { decoded(store, &self.job, number)? } else { None };
        }
        if self.skipped > 0 {
            let segments = store.list(Some(&segment_folder(&self.job)))?;
            let numbers = segments.iter().filter_map(|of| segment_numbers(of.name.last_part()));
            let segment = numbers.map(|(_, number)| number).max().unwrap_or(0);
            greatest = greatest.max(segment) + self.skipped * NUMBERS_SKIPPED;
        }
        Ok(greatest)
    }

    /// The checkpoint of a number, if it is one of the last [`CHECKPOINTS_RETAINED`].
    pub(super) fn find(
        &self,
        store: &dyn Store,
        number: u64,
    ) -> Result<BaseCheckpoint, CheckpointError> {
        let retained = self.retained(store)?;
        if let Some(base) = retained.iter().find(|base| base.number == number) {
            return Ok(base.clone());
        }
        let numbers: Vec<String> = retained.iter().map(|base| base.number.to_string()).collect();
        let there = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
        let what = format!("checkpoint {number} of job '{}' (it has {there})", self.job);
        Err(CheckpointError::NotFound { what })
    }

    /// The checkpoints whose segments are kept: the last [`CHECKPOINTS_RETAINED`], newest first,
    /// and the one that a run goes on from. Damaged records are passed over.
    ///
    /// # Errors
    /// When the store fails.
    pub fn retained(&self, store: &dyn Store) -> Result<Vec<BaseCheckpoint>, CheckpointError> {
        let mut retained = Vec::new();
        let mut number = self.head;
        while number > 0 && retained.len() < CHECKPOINTS_RETAINED {
            let Some(bytes) = read_record(store, &self.job, number)? else { break };
            if let Ok(record) = decode_record(store, &self.job, number, &bytes)
                && let RecordBody::Manifest(manifest) = record.body
            {
                let base = BaseCheckpoint { record: number, number: manifest.number, kept: None };
                retained.push(base);
            }
            number -= 1;
        }
        let base = self.checkpoint.iter().filter(|base| base.kept.is_none());
        let missing = base.filter(|base| !retained.contains(base)).cloned().collect::<Vec<_>>();
        retained.extend(missing);
        Ok(retained)
    }
}

fn decoded(
    store: &dyn Store,
    job: &ObjectName,
    number: u64,
) -> Result<Option<Record>, CheckpointError> {
    let Some(bytes) = read_record(store, job, number)? else { return Ok(None) };
    decode_record(store, job, number, &bytes).map(Some)
}

/// Reads a checkpoint where it is recorded.
///
/// # Errors
/// When the store fails, or the record is missing, damaged, or that of another checkpoint.
pub fn read_checkpoint(
    store: &dyn Store,
    job: &ObjectName,
    base: &BaseCheckpoint,
) -> Result<CheckpointManifest, CheckpointError> {
    let name = match &base.kept {
        Some(kept) => kept_folder(job).join(kept)?,
        None => record_name(job, base.record),
    };
    let (record, kept) = (Some(base.record), base.kept.as_deref());
    let (_, manifest) = read_manifest(store, job, &name, record, kept)?;
    if manifest.number == base.number {
        return Ok(manifest);
    }
    let reason = format!("it is checkpoint {}, and not {}", manifest.number, base.number);
    Err(CheckpointError::damaged(&store.place(&name), 0, reason))
}

/// Reads the record of a checkpoint, and its number in the chain.
fn read_manifest(
    store: &dyn Store,
    job: &ObjectName,
    name: &ObjectName,
    number: Option<u64>,
    kept: Option<&str>,
) -> Result<(u64, CheckpointManifest), CheckpointError> {
    let file = store.place(name);
    let bytes = store.get(name, Some(0..RECORD_BYTES_MAX as u64 + 1))?;
    let Some(bytes) = bytes else { return Err(CheckpointError::Missing { file }) };
    let record = Record::decode(&file, &bytes)?;
    let record = record.belongs(&file, job.as_str(), number, kept)?;
    match record.body {
        RecordBody::Manifest(manifest) => Ok((record.record, manifest)),
        _ => Err(CheckpointError::damaged(&file, 0, "it is not the record of a checkpoint")),
    }
}

/// The jobs of a store.
///
/// # Errors
/// When the store fails.
pub fn jobs(store: &dyn Store) -> Result<Vec<ObjectName>, StoreError> {
    let names = store.children(None)?;
    Ok(names.iter().filter_map(|name| ObjectName::job(name).ok()).collect())
}

/// The records of a chain, in order, also those that are damaged.
///
/// # Errors
/// When the store fails.
pub fn records(store: &dyn Store, job: &ObjectName) -> Result<Vec<ChainRecord>, CheckpointError> {
    let mut records = Vec::new();
    for object in store.list(Some(&chain_folder(job)))? {
        let Some(number) = record_number(&object.name) else { continue };
        let Some(bytes) = read_record(store, job, number)? else { continue };
        let record = decode_record(store, job, number, &bytes);
        records.push(ChainRecord { number, object, record });
    }
    Ok(records)
}

/// The checkpoints that were kept under names, also those that are damaged.
///
/// # Errors
/// When the store fails.
pub fn kept(store: &dyn Store, job: &ObjectName) -> Result<Vec<KeptCheckpoint>, CheckpointError> {
    let mut kept = Vec::new();
    for object in store.list(Some(&kept_folder(job)))? {
        let read =
            match read_manifest(store, job, &object.name, None, Some(object.name.last_part())) {
                Err(CheckpointError::Store(error)) => return Err(error.into()),
                other => other,
            };
        let record = read.as_ref().map_or(0, |(record, _)| *record);
        let (name, manifest) = (object.name.last_part().to_owned(), read.map(|read| read.1));
        kept.push(KeptCheckpoint { name, object, record, manifest });
    }
    Ok(kept)
}

/// Compares all bytes of a checkpoint's segments with what was written, and gives how many there
/// are.
///
/// # Errors
/// When the store fails, or the first file that is missing or damaged.
pub fn verify(
    store: &dyn Store,
    job: &ObjectName,
    manifest: &CheckpointManifest,
) -> Result<u64, CheckpointError> {
    let mut bytes = 0;
    for entry in manifest.all_segments() {
        bytes += open_segment(store, job, entry)?.verify()?;
    }
    Ok(bytes)
}

/// Keeps a checkpoint under a name: it and its segments stay until [`drop_kept`]. `number` is one
/// of the checkpoints that the chain retains, or `None` for the last one.
///
/// # Errors
/// When the store fails, when there is no such checkpoint, or when another one has the name.
pub fn keep(
    store: &dyn Store,
    job: &ObjectName,
    number: Option<u64>,
    name: &str,
) -> Result<CheckpointManifest, CheckpointError> {
    // A name of a job: it becomes part of a file's name, and of what a user types.
    ObjectName::job(name)?;
    let target = kept_folder(job).join(name)?;
    let view = look(store, job)?;
    let none = || CheckpointError::NotFound { what: format!("a checkpoint of job '{job}'") };
    let base = match number {
        Some(number) => view.find(store, number)?,
        None => view.checkpoint.clone().filter(|base| base.kept.is_none()).ok_or_else(none)?,
    };
    let manifest = read_checkpoint(store, job, &base)?;
    let record = decoded(store, job, base.record)?.ok_or_else(none)?;
    let bytes = Record { kept: Some(name.to_owned()), ..record }.encode()?;
    match repeated(|| store.create(&target, &bytes))? {
        Created::New => {}
        Created::Exists if store.get(&target, None)?.as_ref() == Some(&bytes) => {}
        Created::Exists => {
            let reason = format!("job '{job}' has another checkpoint with the name '{name}'");
            return Err(CheckpointError::invalid(reason));
        }
    }
    // Collection lists the kept ones before it deletes segments. A checkpoint that the chain still
    // retains was retained by every collection that may have missed this name.
    let later = look(store, job)?;
    if later.retained(store)?.contains(&base) {
        return Ok(manifest);
    }
    repeated(|| store.delete(&target))?;
    let what = format!("checkpoint {} of job '{job}' was collected meanwhile: it", base.number);
    Err(CheckpointError::NotFound { what })
}

/// Drops a checkpoint that was kept under a name. Its segments go with the next collection.
///
/// # Errors
/// When the store fails, when there is no such name, or when the job would go on from it.
pub fn drop_kept(store: &dyn Store, job: &ObjectName, name: &str) -> Result<(), CheckpointError> {
    let target = kept_folder(job).join(name)?;
    if store.get(&target, Some(0..0))?.is_none() {
        let what = format!("checkpoint '{name}' of job '{job}'");
        return Err(CheckpointError::NotFound { what });
    }
    let view = look(store, job)?;
    if view.checkpoint.is_some_and(|base| base.kept.as_deref() == Some(name)) {
        return Err(CheckpointError::invalid(format!(
            "job '{job}' goes on from '{name}', and has made no checkpoint since"
        )));
    }
    repeated(|| store.delete(&target))?;
    Ok(())
}

/// Drops a job with all its checkpoints, and gives how many files and bytes there were. A run that
/// is under way is fenced when it writes its next record.
///
/// # Errors
/// When the store fails; what is left then is dropped by another call.
pub fn drop_job(store: &dyn Store, job: &ObjectName) -> Result<(u64, u64), CheckpointError> {
    let (mut files, mut bytes) = (0, 0);
    // Records go first and in order, as collection deletes them: a run that is under way sees that
    // its last one is gone.
    let mut objects = store.list(Some(&chain_folder(job)))?;
    let markers = store.list(Some(&collected_folder(job)))?;
    let ordered: BTreeSet<StoredObject> = objects.iter().chain(&markers).cloned().collect();
    let rest = store.list(Some(job))?.into_iter().filter(|object| !ordered.contains(object));
    objects.extend(rest);
    objects.extend(markers);
    for object in objects {
        repeated(|| store.delete(&object.name))?;
        files += 1;
        bytes += object.bytes;
    }
    store.remove_folder(job)?;
    Ok((files, bytes))
}

/// The longest time that a run of a job has taken from one of its last records to the next, by the
/// clock of the store: zero if none of them has one behind it.
///
/// # Errors
/// When the store fails or a record is damaged.
pub fn recent_pause(store: &dyn Store, job: &ObjectName) -> Result<Duration, CheckpointError> {
    let listed = repeated(|| store.list(Some(&chain_folder(job))))?;
    let recent = &listed[listed.len().saturating_sub(RECORDS_RECENT)..];
    let mut longest = 0;
    for two in recent.windows(2) {
        let Some(number) = record_number(&two[1].name) else { continue };
        // The job may have been down for long before a run.
        let record = decoded(store, job, number)?;
        if record.is_some_and(|record| !matches!(record.body, RecordBody::Begin(_))) {
            longest = longest.max(two[1].modified_ms.saturating_sub(two[0].modified_ms));
        }
    }
    Ok(Duration::from_millis(longest.max(0).unsigned_abs()))
}

/// Repeats a call whose answer was lost. It must do the same when it takes effect twice.
pub(super) fn repeated<T>(
    mut call: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut tries = 0;
    loop {
        match call() {
            Err(error) if error.effect == WriteEffect::Unknown && tries < TRIES_MAX => tries += 1,
            other => return other,
        }
    }
}
