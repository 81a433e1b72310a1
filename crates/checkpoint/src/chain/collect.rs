//! Collection: the records and segments that nobody goes on from are deleted (rule C7).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::Chain;
use super::decide::{CHECKPOINTS_RETAINED, RECORD_RETAINED_MS, retained_from};
use super::names::{
    chain_folder, collected_folder, collected_marker, record_number, segment_folder, segment_name,
    segment_numbers,
};
use super::view::{ChainView, kept, look, read_checkpoint, repeated};
use crate::error::CheckpointError;
use crate::record::{BaseCheckpoint, CheckpointManifest};
use crate::store::{ObjectName, Store, StoredObject};

/// The checkpoints of a run from one collection of everything to the next: that one lists the
/// records of an hour, which are many where checkpoints are frequent. Before the first of them
/// everything is collected at the first checkpoint, and as soon as those of the run are enough to
/// be retained: those of the run before have the state once more, and are not needed then.
const COLLECTED_EVERY: u32 = 64;

/// The segments of the checkpoints that a run has recorded, as far as it knows them without a
/// listing.
#[derive(Debug, Default)]
pub(super) struct OwnSegments {
    /// By checkpoint that is retained, the oldest first: the files that it needs, with their bytes.
    retained: VecDeque<Vec<(String, u64)>>,
    /// Files of earlier checkpoints that were still needed at the last collection.
    superseded: BTreeMap<String, u64>,
    /// Checkpoints until everything is collected.
    until_all: u32,
    /// Whether everything was collected since there are as many as are retained.
    has_enough: bool,
    /// The last checkpoint.
    last: u64,
}

impl OwnSegments {
    /// A checkpoint is recorded. Where the one before was given up, parts of that may be there.
    pub(super) fn recorded(&mut self, manifest: &CheckpointManifest) {
        if manifest.number != self.last + 1 {
            self.until_all = 0;
        }
        self.last = manifest.number;
        let files = manifest.all_segments().map(|segment| (segment.file.clone(), segment.bytes));
        self.retained.push_back(files.collect());
        while self.retained.len() > CHECKPOINTS_RETAINED {
            self.superseded.extend(self.retained.pop_front().into_iter().flatten());
        }
    }

    /// The files that no checkpoint of this run needs that is retained.
    fn unneeded(&self) -> Vec<(String, u64)> {
        let needed: BTreeSet<&str> =
            self.retained.iter().flatten().map(|(file, _)| &**file).collect();
        let all = self.superseded.iter().map(|(file, bytes)| (file.clone(), *bytes));
        all.filter(|(file, _)| !needed.contains(&**file)).collect()
    }
}

/// The objects that a collection has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectedObjects {
    /// Records.
    pub records: u64,
    /// Segments.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Chain {
    /// Deletes the segments that this run's checkpoints have superseded, without a look at the
    /// chain; and at the first checkpoint, at the first that has enough before it, and then every
    /// few dozen, all that [`collect`](Self::collect) deletes. It is called when a checkpoint was
    /// [recorded](Self::append).
    ///
    /// A run that has begun meanwhile goes on from a checkpoint that this one retains too, for its
    /// record stands behind the last one of this run.
    ///
    /// # Errors
    /// As [`collect`](Self::collect).
    pub fn collect_superseded(&mut self) -> Result<CollectedObjects, CheckpointError> {
        let is_enough = self.own.retained.len() == CHECKPOINTS_RETAINED;
        if self.own.until_all == 0 || is_enough && !self.own.has_enough {
            let collected = self.collect()?;
            self.own.has_enough = is_enough && self.pending.is_none();
            self.own.superseded.clear();
            self.own.until_all = COLLECTED_EVERY;
            return Ok(collected);
        }
        self.own.until_all -= 1;
        let mut collected = CollectedObjects::default();
        let unneeded = self.own.unneeded();
        if unneeded.is_empty() || self.pending.is_some() {
            return Ok(collected);
        }
        let store = self.store.as_ref();
        let needed = needed_segments(store, &self.job, &[])?;
        for (file, bytes) in unneeded {
            let Some(name) = segment_name(&self.job, &file) else { continue };
            if !needed.contains(&file) {
                repeated(|| store.delete(&name))?;
                collected.segments += 1;
                collected.bytes += bytes;
            }
            // Those that are kept under a name are collected with all others, when it is dropped.
            self.own.superseded.remove(&file);
        }
        Ok(collected)
    }

    /// Deletes what nobody goes on from. It keeps the last checkpoints
    /// ([`CHECKPOINTS_RETAINED`]), those that were kept under a name,
    /// and records that are younger than an hour by the clock of the store.
    ///
    /// Nothing depends on it but the space that is used. It may be called at any time, and run to
    /// any point.
    ///
    /// # Errors
    /// When the store fails or a record that is needed for it is damaged; then nothing that a kept
    /// checkpoint needs was deleted. When this generation is fenced: nothing was deleted.
    pub fn collect(&mut self) -> Result<CollectedObjects, CheckpointError> {
        let store = self.store.as_ref();
        let view = look(store, &self.job)?;
        if view.head != self.last.number && self.pending.is_none() {
            return Err(self.fenced(self.last.number + 1));
        }
        let retained = view.retained(store)?;
        let mut collected = CollectedObjects::default();
        self.collect_records(&view, &retained, &mut collected)?;
        self.collect_segments(&retained, &mut collected)?;
        Ok(collected)
    }

    fn collect_records(
        &self,
        view: &ChainView,
        retained: &[BaseCheckpoint],
        collected: &mut CollectedObjects,
    ) -> Result<(), CheckpointError> {
        let store = self.store.as_ref();
        let listed = store.list(Some(&chain_folder(&self.job)))?;
        let mut records: Vec<(u64, StoredObject)> = listed
            .into_iter()
            .filter_map(|object| Some((record_number(&object.name)?, object)))
            .collect();
        records.sort();
        // The store's clock: that of this machine may be another one.
        let now_ms = records.iter().map(|(_, object)| object.modified_ms).max().unwrap_or(0);
        let is_young =
            |object: &StoredObject| now_ms.saturating_sub(object.modified_ms) < RECORD_RETAINED_MS;
        let young = records.iter().find(|(_, object)| is_young(object));
        let young = young.map_or(view.head, |(number, _)| *number);
        let base = view.checkpoint.as_ref().filter(|base| base.kept.is_none());
        let mut numbers: Vec<u64> = retained.iter().map(|base| base.record).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let from = retained_from(&numbers, base.map(|base| base.record), young);
        let old: Vec<_> = records.into_iter().filter(|(number, _)| *number < from).collect();
        if old.is_empty() {
            return Ok(());
        }
        // Before the first one goes: whoever creates a record in the place of one sees the marker.
        repeated(|| store.create(&collected_marker(&self.job, from), &Bytes::new()))?;
        for (_, object) in old {
            // The next one goes after this one is known to be gone.
            repeated(|| store.delete(&object.name))?;
            collected.records += 1;
            collected.bytes += object.bytes;
        }
        // The greatest marker says all that the others do.
        for marker in store.list(Some(&collected_folder(&self.job)))? {
            if record_number(&marker.name).is_some_and(|number| number < from) {
                repeated(|| store.delete(&marker.name))?;
            }
        }
        Ok(())
    }

    fn collect_segments(
        &self,
        retained: &[BaseCheckpoint],
        collected: &mut CollectedObjects,
    ) -> Result<(), CheckpointError> {
        let store = self.store.as_ref();
        let needed = needed_segments(store, &self.job, retained)?;
        for object in store.list(Some(&segment_folder(&self.job)))? {
            let file = object.name.last_part();
            // Files that have other names are not ours to delete.
            let Some((generation, number)) = segment_numbers(file) else { continue };
            // One of this generation behind the last checkpoint may belong to the next one.
            let is_over = generation < self.generation
                || (generation == self.generation && number <= self.greatest);
            if is_over && self.pending.is_none() && !needed.contains(file) {
                repeated(|| store.delete(&object.name))?;
                collected.segments += 1;
                collected.bytes += object.bytes;
            }
        }
        Ok(())
    }
}

/// The segments that a checkpoint names or refers to which is retained, or was kept under a name.
fn needed_segments(
    store: &dyn Store,
    job: &ObjectName,
    retained: &[BaseCheckpoint],
) -> Result<BTreeSet<String>, CheckpointError> {
    let mut needed = BTreeSet::new();
    for base in retained {
        let manifest = read_checkpoint(store, job, base)?;
        needed.extend(manifest.all_segments().map(|segment| segment.file.clone()));
    }
    for entry in kept(store, job)? {
        // Nobody knows which segments a damaged record names: none is deleted.
        needed.extend(entry.manifest?.all_segments().map(|segment| segment.file.clone()));
    }
    Ok(needed)
}
