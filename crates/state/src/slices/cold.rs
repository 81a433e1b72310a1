//! Slices that leave memory and come back when their window triggers.
//!
//! Over budget, the slices that have not changed for longest are written as runs until half of the
//! budget is free ([`crate::spill`]). They stay slices like any others: rows that come for one are
//! folded into a new part of it in memory, which is written in its turn.
//!
//! Where this worker leads only some of the keys, groups of the others that this epoch has brought
//! stay in memory: they are given away soon, and [`Slices::take_spilled`] tells whoever may end the
//! epoch that it is time.

use std::sync::Arc;

use super::Slices;
use crate::spill::groups::{Gathering, GroupStore};
use crate::spill::{Disk, SpillRun, Spilled};
use crate::{GroupColumns, Partitioner, SaveRound, SavedGroups, Slice, StateError};

/// A slice of less than this part of the budget, or this many bytes, is written whole: it is likely
/// to fit when it comes back.
const WHOLE_PART: usize = 8;
const WHOLE_BYTES: usize = 1 << 18;

/// Where groups go that do not fit.
pub(super) struct Cold {
    store: GroupStore,
    /// This worker and who leads which keys, if others lead some.
    own: Option<(u32, Partitioner)>,
    /// Whether groups were written since somebody asked.
    spilled: bool,
}

impl Slices {
    /// Lets groups go to a disk that do not fit the budget: all of them, or if `own` tells this
    /// worker and who leads which keys, those that it leads.
    pub fn spill_to(&mut self, disk: Arc<dyn Disk>, own: Option<(u32, Partitioner)>) {
        let store = GroupStore::new(disk, &self.spec);
        self.cold = Some(Cold { store, own, spilled: false });
    }

    /// Where groups go that do not fit, if there is a disk.
    pub(super) fn store(&self) -> Option<&GroupStore> {
        self.cold.as_ref().map(|cold| &cold.store)
    }

    /// Bytes written to disk and read back so far.
    pub fn spilled(&self) -> Spilled {
        self.cold.as_ref().map(|cold| cold.store.spilled()).unwrap_or_default()
    }

    /// Whether groups were written since the last call.
    pub fn take_spilled(&mut self) -> bool {
        self.cold.as_mut().is_some_and(|cold| std::mem::take(&mut cold.spilled))
    }

    /// Whether groups of the slice that starts at `start` are on disk.
    pub(crate) fn is_cold(&self, start: i64) -> bool {
        self.live.get(&start).is_some_and(|live| !live.runs.is_empty())
    }

    /// Whether slices must be gathered to be put together: some are on disk, or a copy of all, with
    /// `beside` bytes more, would not fit.
    pub(crate) fn must_gather(&self, keys: &[i64], beside: usize) -> bool {
        let copy: usize = keys.iter().filter_map(|&key| self.get(key)).map(Slice::bytes).sum();
        let fits = self.bytes.saturating_add(copy).saturating_add(beside) <= self.budget;
        self.cold.is_some() && (!fits || keys.iter().any(|&key| self.is_cold(key)))
    }

    /// Begins to put together the groups of slices; of each there is told whether it is needed no
    /// more.
    ///
    /// # Errors
    /// Those of the disk and of accumulators.
    pub(crate) fn gather(
        &mut self,
        keys: impl Iterator<Item = (i64, bool)>,
    ) -> Result<Gathering, StateError> {
        let mut runs = Vec::new();
        for (key, last) in keys {
            self.spill(key)?;
            runs.extend(self.live.get(&key).into_iter().flat_map(|live| live.runs.clone()));
            if last {
                self.drop_slice(key);
            }
        }
        let Some(cold) = &self.cold else { unreachable!("only what may spill is gathered") };
        Ok(Gathering::new(&cold.store, runs.iter()))
    }

    /// The next groups of a gathering, as `take` takes them from a slice.
    ///
    /// # Errors
    /// Those of the disk and of accumulators.
    pub(crate) fn gathered(
        &mut self,
        gathering: &mut Gathering,
        take: impl Fn(&mut Slice) -> Result<Option<GroupColumns>, StateError>,
    ) -> Result<Option<GroupColumns>, StateError> {
        loop {
            if let Some(part) = take(gathering.slice())? {
                return Ok(Some(part));
            }
            if !gathering.has_more() {
                return Ok(None);
            }
            // One half is for what comes meanwhile.
            if self.bytes > self.budget / 2 {
                self.spill_down()?;
            }
            let Some(cold) = &self.cold else { return Ok(None) };
            gathering.load(&cold.store, self.budget / 2)?;
        }
    }

    /// Saves all groups of the slice that starts at `start`, which keeps them: see [`Slice::save`].
    /// A group that is in several places comes several times. Groups in memory are copied if they
    /// have at most `room` bytes, or there is no disk; otherwise they are written to the disk.
    ///
    /// # Errors
    /// Those of the disk, of accumulators and of `each`; [`StateError::BeingDrained`].
    pub(crate) fn save<E: From<StateError>>(
        &mut self,
        start: i64,
        room: usize,
        (round, serial): (SaveRound, u64),
        mut each: impl FnMut(SavedGroups) -> Result<(), E>,
    ) -> Result<(), E> {
        let held = self.get(start).map_or(0, Slice::bytes);
        if self.cold.is_some() && held > room {
            self.spill(start)?;
        }
        let Some(live) = self.live.get_mut(&start) else { return Ok(()) };
        if let Some(slice) = &mut live.slice {
            let others = self.bytes - slice.bytes();
            let given = slice.save(round, serial, |block| each(block.into()));
            self.bytes = others + slice.bytes();
            given?;
        }
        let mut batches = live.runs.iter().flat_map(SpillRun::batches);
        batches.try_for_each(|batch| each(SavedGroups::Spilled(batch)))
    }

    /// Writes groups as if they had come for the slice that starts at `start`, which then has
    /// changed no earlier than at `changed`.
    ///
    /// # Errors
    /// Those of the disk and of accumulators.
    pub(crate) fn put_back(
        &mut self,
        start: i64,
        groups: Slice,
        changed: u64,
    ) -> Result<(), StateError> {
        let live = self.live.entry(start).or_default();
        live.changed = live.changed.max(changed);
        self.write(start, groups)
    }

    /// Writes the groups that have not changed for longest until half of the budget is free, or
    /// none is left that may be written.
    pub(super) fn spill_down(&mut self) -> Result<(), StateError> {
        let Some(cold) = &mut self.cold else { return Ok(()) };
        cold.spilled = true;
        self.free.drain(..).for_each(|slice| self.bytes -= slice.bytes());
        let resident = self.live.iter().filter(|(_, live)| live.slice.is_some());
        let mut oldest: Vec<_> = resident.map(|(start, live)| (live.changed, *start)).collect();
        oldest.sort_unstable();
        for (_, start) in oldest {
            if self.bytes <= self.budget / 2 {
                break;
            }
            self.spill(start)?;
        }
        Ok(())
    }

    /// Writes what is in memory of the slice that starts at `start`.
    pub(super) fn spill(&mut self, start: i64) -> Result<(), StateError> {
        let Some(live) = self.live.get_mut(&start) else { return Ok(()) };
        let Some(slice) = live.slice.take_if(|slice| !slice.is_being_drained()) else {
            return Ok(());
        };
        self.bytes -= slice.bytes();
        self.write(start, slice)
    }

    /// Writes all groups.
    #[cfg(test)]
    pub(crate) fn spill_all(&mut self) {
        let starts: Vec<i64> = self.starts().collect();
        starts.into_iter().for_each(|start| self.spill(start).unwrap());
    }

    /// Writes groups of the slice that starts at `start`; those of others come to lie there again.
    fn write(&mut self, start: i64, slice: Slice) -> Result<(), StateError> {
        let (Some(cold), Some(live)) = (&mut self.cold, self.live.get_mut(&start)) else {
            unreachable!("only what may spill is written");
        };
        let before = live.bytes();
        let level = (slice.bytes() > WHOLE_BYTES.max(self.budget / WHOLE_PART)).then_some(0);
        let mut writer = cold.store.writer(level, self.budget);
        let others = slice.spill(cold.own.as_mut(), &mut writer)?;
        live.runs.extend(writer.finish()?);
        live.slice = live.slice.take().or(others);
        self.bytes = self.bytes - before + live.bytes();
        Ok(())
    }
}
