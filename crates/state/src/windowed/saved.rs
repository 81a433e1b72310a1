//! All groups of windows as they are between two of them, to be saved and loaded again.
//!
//! Groups leave as deltas do: keys and partial states, with the key of their slice. They are loaded
//! by merging, so that groups of several savers come together, and those of one go apart by their
//! keys. What is running for cumulating windows is groups of the first slice of these.
//!
//! Groups on a disk are not read for it: a batch there never changes, and is read when it is
//! stored, on another thread.

use std::collections::BTreeMap;

use super::Windowed;
use crate::saved::SavedBlock;
use crate::{GroupColumns, SaveRound, SavedGroups, StateError, WindowBounds, Windows};

/// Of the bytes that are free, the part that a copy of a slice may take: more rows come.
const COPIED_PART: usize = 2;

impl Windowed {
    /// Gives all groups, which stay, with the key of their slice: nothing for sessions that a later
    /// slice may continue. It is called when [`trigger`](Self::trigger) and [`early`](Self::early)
    /// have nothing to give. Where there is a disk, slices are copied as long as there is room in
    /// the budget for the copies too, and the others are written to the disk. Groups that stay in
    /// memory (open sessions, the running window of cumulating ones) are copied to it then.
    ///
    /// # Errors
    /// Errors of accumulators, of a disk and of `each`; [`StateError::BeingDrained`] while a window
    /// is given out.
    pub fn save<E: From<StateError>>(
        &mut self,
        round: SaveRound,
        mut each: impl FnMut(Option<i64>, SavedGroups) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.firing.is_some() || self.early.is_giving() {
            return Err(StateError::BeingDrained.into());
        }
        let keys: Vec<i64> = self.slices.starts().collect();
        let mut copied = 0;
        for key in keys {
            let room = self.budget.saturating_sub(self.bytes()).saturating_sub(copied);
            self.saves += 1;
            self.slices.save(key, room / COPIED_PART, (round, self.saves), |part| {
                copied += part.bytes();
                each(Some(key), part)
            })?;
        }
        let room = self.budget.saturating_sub(self.bytes()).saturating_sub(copied) / COPIED_PART;
        let Self { slices, running, sessions, windows, saves, .. } = self;
        if let (Some(windows), Some((ran, slice))) = (windows, running) {
            let key = windows.slice_key(ran.start);
            *saves += 1;
            let sizes = (slice.bytes(), room);
            let save =
                |to: &mut dyn FnMut(SavedBlock) -> Result<(), E>| slice.save(round, *saves, to);
            slices.save_resident(sizes, save, |part| each(Some(key), part))?;
        }
        let Some(sessions) = sessions else { return Ok(()) };
        *saves += 1;
        let sizes = (sessions.bytes(), room);
        let save =
            |to: &mut dyn FnMut(SavedBlock) -> Result<(), E>| sessions.save(round, *saves, to);
        slices.save_resident(sizes, save, |part| each(None, part))
    }

    /// Adds groups that were saved.
    ///
    /// # Errors
    /// As [`Slices::merge`](crate::Slices::merge).
    pub fn load(&mut self, key: Option<i64>, part: &GroupColumns) -> Result<(), StateError> {
        match (key, &mut self.sessions) {
            (Some(key), _) => {
                self.share(0);
                self.slices.merge(key, &part.keys, &part.states)
            }
            (None, Some(sessions)) => sessions.load(part),
            (None, None) => {
                Err(StateError::Shape { what: "sessions that were saved", expected: 0, got: 1 })
            }
        }
    }

    /// Windows that end no later than `watermark` have triggered, wherever that was.
    pub fn resume_at(&mut self, watermark: i64) {
        self.triggered = self.triggered.max(watermark);
    }

    /// The ends of the windows with groups that have not triggered, and whether an early result of
    /// each has been emitted since it changed last.
    pub fn early_emitted(&mut self) -> Vec<(i64, bool)> {
        let Some(windows) = self.windows.filter(|windows| windows.gap().is_none()) else {
            return vec![];
        };
        let mut ends = vec![];
        let looked = self.early.looked.take();
        while let Some(window) = self.open_after(&windows) {
            self.early.looked = Some(window.end);
            let changed = self.changed_of(&windows, window);
            ends.push((window.end, self.early.emitted.get(&window.end) == Some(&changed)));
        }
        self.early.looked = looked;
        ends
    }

    /// Of windows, by their ends, an early result of all groups has been emitted, wherever these
    /// were, since they changed last; where that is said. Nothing must come before that.
    pub fn load_early(&mut self, ends: &BTreeMap<i64, bool>) {
        let Some(windows) = self.windows.filter(|windows| windows.gap().is_none()) else { return };
        for &end in ends.iter().filter(|(_, latest)| **latest).map(|(end, _)| end) {
            let changed = self.changed_of(&windows, windows.window_at(end));
            if changed > 0 {
                self.early.emitted.insert(end, changed);
            }
        }
    }

    /// When a window changed last.
    fn changed_of(&self, windows: &Windows, window: WindowBounds) -> u64 {
        let running = self.running.as_ref().filter(|(ran, _)| ran.start == window.start);
        let before = running.map_or(0, |_| self.early.running);
        let keys = self.keys_of(windows, window);
        keys.iter().map(|&key| self.slices.changed(key)).fold(before, u64::max)
    }
}
