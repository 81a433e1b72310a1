//! Early results of windows that have not ended.
//!
//! Nothing is taken out: a window is put together of copies, in a slice of its own that is then
//! emitted and emptied; or, if that does not fit, of what is on disk by then. So a window is a
//! snapshot, whatever comes while its parts are written; and it costs what firing it would, and the
//! memory of one window.

use std::collections::BTreeMap;

use super::{Source, Triggered, Windowed};
use crate::windows::WindowPiece;
use crate::{Slice, StateError, WindowBounds, Windows};

/// The early results that were emitted.
#[derive(Default)]
pub(super) struct Early {
    /// By its end, of each window that was emitted the last change that it had.
    pub(super) emitted: BTreeMap<i64, u64>,
    /// Of what is running, the last change.
    pub(super) running: u64,
    /// Windows that end no later have been looked at in this round.
    pub(super) looked: Option<i64>,
    giving: Option<Giving>,
}

/// A window that is being emitted.
struct Giving {
    window: WindowBounds,
    from: Source,
    begun: bool,
}

impl Early {
    /// Whether a window is being emitted.
    pub(super) fn is_giving(&self) -> bool {
        self.giving.is_some()
    }

    /// Bytes held beside the numbers.
    pub(super) fn bytes(&self) -> usize {
        self.giving.as_ref().map_or(0, |giving| giving.from.bytes())
    }
}

impl Windowed {
    /// The next groups of a window that has not triggered and has changed since it was emitted here
    /// last. `None` ends a round, in which each such window came once, by its end; the next call
    /// begins another. Call it when [`trigger`](Self::trigger) has nothing to give, and to the end
    /// of a round before that is called again. A session has no window before it is over: there are
    /// none here.
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn early(&mut self) -> Result<Option<Triggered>, StateError> {
        let Some(windows) = self.windows.filter(|windows| windows.gap().is_none()) else {
            return Ok(None);
        };
        if self.early.looked.is_none() {
            self.early.emitted = self.early.emitted.split_off(&self.triggered.saturating_add(1));
        }
        loop {
            self.share(self.early.bytes());
            if let Some(giving) = &mut self.early.giving {
                if let Some(columns) = giving.from.take(&mut self.slices)? {
                    let first = !std::mem::replace(&mut giving.begun, true);
                    return Ok(Some(Triggered { window: Some(giving.window), first, columns }));
                }
                if let Some(Giving { from: Source::Merged(slice), .. }) = self.early.giving.take() {
                    self.recycled = Some(*slice);
                }
            }
            let Some(window) = self.open_after(&windows) else {
                self.early.looked = None;
                return Ok(None);
            };
            self.early.looked = Some(window.end);
            if let Some(from) = self.so_far(&windows, window)? {
                self.early.giving = Some(Giving { window, from, begun: false });
            }
        }
    }

    /// The first window with groups that has not triggered and was not looked at in this round.
    pub(super) fn open_after(&self, windows: &Windows) -> Option<WindowBounds> {
        let after = self.triggered.max(self.early.looked.unwrap_or(i64::MIN));
        let running = self.running.as_ref();
        let mut next = running.and_then(|(ran, _)| windows.window_after(ran.start, after));
        let first = windows.slice_key(after.saturating_sub(windows.size()));
        for key in self.slices.starts_from(first) {
            // Later slices are in no earlier window.
            if next.is_some_and(|next| key >= windows.slice_key(next.end)) {
                break;
            }
            let window = match windows.piece(key) {
                WindowPiece::Window(end) => (end > after).then(|| windows.window_at(end)),
                WindowPiece::Slice(start) => windows.window_after(start, after),
            };
            next = next.into_iter().chain(window).min_by_key(|window| window.end);
        }
        next
    }

    /// The groups of a window, if it has changed.
    fn so_far(
        &mut self,
        windows: &Windows,
        window: WindowBounds,
    ) -> Result<Option<Source>, StateError> {
        let keys = self.keys_of(windows, window);
        if self.must_gather(&keys, window) {
            return self.gathered_so_far(windows, window);
        }
        let mut running = self.running.take_if(|(ran, _)| ran.start == window.start);
        let before = if running.is_some() { self.early.running } else { 0 };
        let changed = keys.iter().map(|&key| self.slices.changed(key)).fold(before, u64::max);
        let emitted = self.early.emitted.insert(window.end, changed);
        let merged = if emitted == Some(changed) {
            Ok(None)
        } else {
            let copy = self.copied(running.as_mut().map(|(_, slice)| slice), &keys);
            copy.map(|copy| Some(Source::Merged(Box::new(copy))))
        };
        self.running = running.or_else(|| self.running.take());
        merged
    }

    /// As [`Windowed::so_far`], of a window that does not fit.
    fn gathered_so_far(
        &mut self,
        windows: &Windows,
        window: WindowBounds,
    ) -> Result<Option<Source>, StateError> {
        if self.running.as_ref().is_some_and(|(ran, _)| ran.start == window.start) {
            self.put_back(windows, window)?;
        }
        let keys = self.keys_of(windows, window);
        let changed = keys.iter().map(|&key| self.slices.changed(key)).fold(0, u64::max);
        if self.early.emitted.insert(window.end, changed) == Some(changed) {
            return Ok(None);
        }
        let keys = keys.into_iter().map(|key| (key, false));
        let gathering = self.slices.gather(keys)?;
        Ok(Some(Source::Gathered(Box::new(gathering))))
    }

    fn copied(&mut self, running: Option<&mut Slice>, keys: &[i64]) -> Result<Slice, StateError> {
        let mut merged = self.empty();
        if let Some(running) = running {
            merged.merge_all_of(running)?;
        }
        for &key in keys {
            self.slices.merge_into(key, &mut merged)?;
        }
        Ok(merged)
    }
}
