//! Windows over slices: which triggers next, and its groups.
//!
//! A window of one slice that no other window needs is emitted as it is. Any other is put
//! together from its slices in a slice of its own:
//!
//! - *hopping*: the states of its slices are merged; a slice goes with the last window that has it.
//! - *cumulating*: the windows that begin together share a running slice, into which each next
//!   slice is merged once.
//!
//! Sessions are chains of slices ([`Sessions`]).
//!
//! What is kept is what windows to come need, and one window. What windows have come to that have
//! not ended is put together in the same way, of copies ([`early`]). All of it can be read as it
//! is, and merged into another ([`saved`]).

mod early;
mod saved;

use std::sync::Arc;

use self::early::Early;
use crate::sessions::Sessions;
use crate::spill::groups::Gathering;
use crate::windows::WindowPiece;
use crate::{GroupBy, GroupColumns, Slice, Slices, StateError, WindowBounds, Windows};

/// The key of all rows, where there are no windows.
const ALL: i64 = 0;

/// Slices, and the windows that they make.
pub struct Windowed {
    spec: Arc<GroupBy>,
    windows: Option<Windows>,
    slices: Slices,
    /// Windows that end no later than this have triggered.
    triggered: i64,
    firing: Option<Firing>,
    /// Of cumulating windows that begin together, what the last one had.
    running: Option<(WindowBounds, Slice)>,
    /// An emptied slice for the next window.
    recycled: Option<Slice>,
    sessions: Option<Sessions>,
    early: Early,
    /// How often a slice was saved.
    saves: u64,
    /// Bytes that all of this may hold.
    budget: usize,
}

/// A window that is being emitted.
struct Firing {
    window: WindowBounds,
    from: Source,
    begun: bool,
}

enum Source {
    /// A slice that is the window.
    Key(i64),
    /// The merged slices of the window.
    Merged(Box<Slice>),
    /// The part-wise merge, where some of it is on disk or not all of it fits.
    Gathered(Box<Gathering>),
}

impl Source {
    fn take(&mut self, slices: &mut Slices) -> Result<Option<GroupColumns>, StateError> {
        match self {
            Self::Key(key) => slices.take_values(*key),
            Self::Merged(slice) => slice.take_values(),
            Self::Gathered(gathering) => slices.gathered(gathering, Slice::take_values),
        }
    }

    /// Bytes held beside the slices.
    fn bytes(&self) -> usize {
        match self {
            Self::Key(_) => 0,
            Self::Merged(slice) => slice.bytes(),
            Self::Gathered(gathering) => gathering.bytes(),
        }
    }
}

/// Groups of a window that has triggered.
#[derive(Debug, Clone, PartialEq)]
pub struct Triggered {
    /// The window; `None` if there are no windows, or each group has its own as sessions have.
    pub window: Option<WindowBounds>,
    /// Whether these are its first groups.
    pub first: bool,
    /// Keys and values.
    pub columns: GroupColumns,
}

impl Windowed {
    /// No groups. Without windows, all rows are together and fire at the end of time. Where the
    /// windows are sessions, the last two aggregates are the least and the greatest time of the
    /// rows: these are how a session is known.
    pub fn new(spec: &Arc<GroupBy>, windows: Option<Windows>) -> Self {
        let gap = windows.and_then(|windows| windows.gap().map(|gap| (windows, gap)));
        Self {
            sessions: gap.map(|(windows, gap)| Sessions::new(spec, windows, gap)),
            spec: Arc::clone(spec),
            windows,
            slices: Slices::new(spec),
            triggered: i64::MIN,
            firing: None,
            running: None,
            recycled: None,
            early: Early::default(),
            saves: 0,
            budget: spec.options.budget_bytes,
        }
    }

    /// Bytes that all of this may hold from now on; see [`Slices::set_budget`].
    pub fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
        self.share(0);
    }

    /// Leaves the slices what the budget has beside everything else, but for `except` bytes of it.
    fn share(&mut self, except: usize) {
        let beside = self.bytes() - self.slices.bytes() - except;
        self.slices.set_budget(self.budget.saturating_sub(beside));
    }

    /// The slices, for rows and deltas: by [`Windows::slice_key`] and [`Windows::window_key`], 0
    /// without windows.
    pub fn slices(&mut self) -> &mut Slices {
        &mut self.slices
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let firing = self.firing.as_ref().map_or(0, |firing| firing.from.bytes());
        let running = self.running.as_ref().map(|(_, slice)| slice);
        let own = running.into_iter().chain(&self.recycled).map(Slice::bytes).sum::<usize>();
        let sessions = self.sessions.as_ref().map_or(0, Sessions::bytes);
        self.slices.bytes() + firing + own + self.early.bytes() + sessions
    }

    /// The next groups of the first window that ends at or before `watermark`, whose groups are
    /// then forgotten as far as no later window needs them; or some of the sessions that no row can
    /// continue which comes when all flows have reached `watermark`. `None` if no window is left to
    /// fire.
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn trigger(&mut self, watermark: i64) -> Result<Option<Triggered>, StateError> {
        if let Some(sessions) = &mut self.sessions {
            let over = sessions.trigger(&mut self.slices, watermark)?;
            return Ok(over.map(|columns| Triggered { window: None, first: true, columns }));
        }
        loop {
            self.share(self.firing.as_ref().map_or(0, |firing| firing.from.bytes()));
            if let Some(firing) = &mut self.firing {
                let columns = firing.from.take(&mut self.slices)?;
                if let Some(columns) = columns {
                    let first = !std::mem::replace(&mut firing.begun, true);
                    let window = self.windows.map(|_| firing.window);
                    return Ok(Some(Triggered { window, first, columns }));
                }
                if let Some(Firing { from: Source::Merged(slice), .. }) = self.firing.take() {
                    self.recycled = Some(*slice);
                }
            }
            let Some(window) = self.next(watermark) else { return Ok(None) };
            let from = self.assemble(window)?;
            self.triggered = window.end;
            self.firing = Some(Firing { window, from, begun: false });
        }
    }

    /// The window that triggers next.
    fn next(&mut self, watermark: i64) -> Option<WindowBounds> {
        let Some(windows) = self.windows else {
            let all = WindowBounds { start: i64::MIN, end: i64::MAX };
            return (watermark == i64::MAX && !self.slices.is_empty()).then_some(all);
        };
        let triggered = self.triggered;
        let of = |start| windows.window_after(start, triggered);
        let running = self.running.as_ref().and_then(|(ran, _)| of(ran.start));
        let (mut alone, mut slice, mut useless) = (None, None, vec![]);
        for key in self.slices.starts() {
            // Later slices are in no earlier window, and what is of a window alone is within it.
            if slice.is_some_and(|first: WindowBounds| key >= windows.slice_key(first.end)) {
                break;
            }
            match windows.piece(key) {
                WindowPiece::Window(end) => _ = alone.get_or_insert_with(|| windows.window_at(end)),
                // Between windows, or left over of what has triggered.
                WindowPiece::Slice(start) if of(start).is_none() => useless.push(key),
                WindowPiece::Slice(start) => slice = slice.or_else(|| of(start)),
            }
        }
        let next = [running, alone, slice].into_iter().flatten().min_by_key(|window| window.end);
        for key in useless {
            self.slices.drop_slice(key);
        }
        next.filter(|window| window.end <= watermark)
    }

    /// Brings the groups of a window together.
    fn assemble(&mut self, window: WindowBounds) -> Result<Source, StateError> {
        let Some(windows) = self.windows else { return self.alone(ALL) };
        let keys = self.keys_of(&windows, window);
        let is_last = |key: i64| match windows.piece(key) {
            WindowPiece::Window(_) => true,
            WindowPiece::Slice(start) => {
                windows.last_end(start).is_none_or(|last| last <= window.end)
            }
        };
        if windows.cumulate() {
            return self.accumulate(&windows, window, &keys, windows.last_end(window.start));
        }
        if let [key] = keys[..]
            && is_last(key)
        {
            return self.alone(key);
        }
        if self.slices.must_gather(&keys, 0) {
            let keys = keys.into_iter().map(|key| (key, is_last(key)));
            return Ok(Source::Gathered(Box::new(self.slices.gather(keys)?)));
        }
        let mut merged = self.empty();
        for key in keys {
            if is_last(key) {
                self.drain(key, &mut merged)?;
            } else {
                self.slices.merge_into(key, &mut merged)?;
            }
        }
        Ok(Source::Merged(Box::new(merged)))
    }

    /// A window of one slice that nothing else needs.
    fn alone(&mut self, key: i64) -> Result<Source, StateError> {
        if self.slices.is_cold(key) {
            Ok(Source::Gathered(Box::new(self.slices.gather([(key, true)].into_iter())?)))
        } else {
            Ok(Source::Key(key))
        }
    }

    /// The keys of what a window is put together from, beside what is running.
    fn keys_of(&self, windows: &Windows, window: WindowBounds) -> Vec<i64> {
        let of_window = |key: &i64| match windows.piece(*key) {
            WindowPiece::Window(end) => end == window.end,
            WindowPiece::Slice(start) => window.start <= start && start < window.end,
        };
        let within = self.slices.starts().take_while(|&key| key < windows.slice_key(window.end));
        within.filter(of_window).collect()
    }

    /// Brings the groups of a cumulating window together.
    fn accumulate(
        &mut self,
        windows: &Windows,
        window: WindowBounds,
        keys: &[i64],
        last: Option<i64>,
    ) -> Result<Source, StateError> {
        if self.must_gather(keys, window) {
            self.put_back(windows, window)?;
            let keys = self.keys_of(windows, window).into_iter();
            let is_last = last == Some(window.end);
            return Ok(Source::Gathered(Box::new(
                self.slices.gather(keys.map(|key| (key, is_last)))?,
            )));
        }
        let mut running = match self.running.take() {
            Some((ran, running)) if ran.start == window.start => running,
            _ => {
                self.early.running = 0;
                self.empty()
            }
        };
        for &key in keys {
            self.early.running = self.early.running.max(self.slices.changed(key));
            self.drain(key, &mut running)?;
        }
        if last == Some(window.end) {
            return Ok(Source::Merged(Box::new(running)));
        }
        let mut merged = self.empty();
        merged.merge_all_of(&mut running)?;
        self.running = Some((window, running));
        Ok(Source::Merged(Box::new(merged)))
    }

    /// Whether a window must be put together part by part.
    fn must_gather(&self, keys: &[i64], window: WindowBounds) -> bool {
        let of_window = |(ran, _): &&(WindowBounds, Slice)| ran.start == window.start;
        let running = self.running.as_ref().filter(of_window);
        // It grows, and is copied.
        let beside = running.map_or(0, |(_, running)| 2 * running.bytes());
        self.slices.must_gather(keys, beside)
    }

    /// The running slice of a cumulating window becomes its first slice again.
    fn put_back(&mut self, windows: &Windows, window: WindowBounds) -> Result<(), StateError> {
        match self.running.take() {
            Some((ran, running)) if ran.start == window.start => {
                let key = windows.slice_key(ran.start);
                self.slices.put_back(key, running, self.early.running)
            }
            _ => Ok(()),
        }
    }

    fn drain(&mut self, key: i64, into: &mut Slice) -> Result<(), StateError> {
        while let Some(part) = self.slices.take_delta(key)? {
            into.merge(&part.keys, &part.states)?;
        }
        Ok(())
    }

    fn empty(&mut self) -> Slice {
        self.recycled.take().unwrap_or_else(|| Slice::new(&self.spec))
    }
}

#[cfg(test)]
pub(crate) mod tests;
