//! Windows of event time, cut into slices.
//!
//! A slice is the longest span such that every window is a whole number of slices: the greatest
//! common divisor of size and slide. State is kept per slice; a tumbling window is one slice, a
//! hopping or cumulating one combines several (S5). Times are ticks of any unit.
//!
//! Sessions have no windows of their own: slices of half a gap hold the parts that they are put
//! together from.
//!
//! A row is in several windows, which do not fire at the same time. As in Flink, it is late when
//! the last of them has triggered; until then it counts for those that have not
//! ([`Windows::place`]).

use std::collections::HashMap;

/// Windows of event time: tumbling, hopping or cumulating; or the slices of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    size: i64,
    slide: i64,
    offset: i64,
    cumulate: bool,
    /// Of sessions; else zero.
    gap: i64,
}

/// A window, from its start to its end, exclusively. Windows of one kind differ in their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowBounds {
    /// Its first tick.
    pub start: i64,
    /// The tick behind its last.
    pub end: i64,
}

/// Where a row belongs that met some watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// To this slice: its own, or a later one that is in just the windows that have not triggered.
    Slice(i64),
    /// To the windows of its slice that end after the watermark: see [`Windows::ends_of`].
    Windows,
    /// To none: all of them have triggered.
    Late,
}

/// Where the rows of a batch belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceAssignment {
    /// All to the slice that starts here.
    OneSlice(i64),
    /// To several slices, or there are no rows: see [`Windows::split`].
    Mixed,
}

impl Windows {
    /// Windows of `size` one after another. `None` unless `size` is positive.
    pub fn tumbling(size: i64, offset: i64) -> Option<Self> {
        Self::hopping(size, size, offset)
    }

    /// Windows of `size`, one every `slide`, shifted by `offset` from the epoch. Size and slide
    /// need not divide each other; where `slide` is longer, rows between windows are in none.
    /// `None` unless both are positive.
    pub fn hopping(size: i64, slide: i64, offset: i64) -> Option<Self> {
        let offset = if slide > 0 { offset.rem_euclid(slide) } else { 0 };
        (size > 0 && slide > 0).then_some(Self { size, slide, offset, cumulate: false, gap: 0 })
    }

    /// Slices for sessions that end when no row has come for `gap`. A slice is half a gap wide, so
    /// that rows of a key in one slice are of one session, and sessions are over soon after they
    /// might be. `None` unless the gap is positive.
    pub fn sessions(gap: i64) -> Option<Self> {
        let width = gap / 2 + gap % 2;
        Self::tumbling(width, 0).map(|slices| Self { gap, ..slices })
    }

    /// Windows of `step`, 2 `step`, … `size` from each multiple of `size` on, shifted by `offset`.
    /// `None` unless both are positive and `step` divides `size`.
    pub fn cumulating(size: i64, step: i64, offset: i64) -> Option<Self> {
        let fits = size > 0 && step > 0 && size % step == 0;
        let of = |offset| Self { size, slide: step, offset, cumulate: true, gap: 0 };
        fits.then(|| of(offset.rem_euclid(size)))
    }

    /// The length of a window; of a cumulating one, of the longest.
    pub fn size(&self) -> i64 {
        self.size
    }

    /// The distance of the ends of two windows.
    pub fn slide(&self) -> i64 {
        self.slide
    }

    /// By how many ticks windows begin after the multiples of their slide.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Whether windows that begin together grow by steps.
    pub fn cumulate(&self) -> bool {
        self.cumulate
    }

    /// The gap that ends a session, if these are the slices of sessions.
    pub fn gap(&self) -> Option<i64> {
        (self.gap > 0).then_some(self.gap)
    }

    /// Of sessions the least time of rows to come when all flows have reached `watermark`. A row is
    /// late when the gap behind it was over before it came. Until then it may continue or join
    /// sessions, which stay open for it: so they do not depend on the order in which flows are
    /// read.
    pub fn horizon(&self, watermark: i64) -> i64 {
        match watermark {
            i64::MIN | i64::MAX => watermark,
            _ => watermark.saturating_sub(self.gap).saturating_add(1),
        }
    }

    /// The length of a slice.
    pub fn width(&self) -> i64 {
        let (mut a, mut b) = (self.size, self.slide);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    /// The start of the slice of time `at`: the greatest multiple of the width, shifted by the
    /// offset, that is not after `at`. A start before the beginning of time is the beginning.
    pub fn slice_start(&self, at: i64) -> i64 {
        floor(at, self.width(), self.offset)
    }

    /// Where the slice that starts at `start` ends, exclusively.
    pub fn slice_end(&self, start: i64) -> i64 {
        start.saturating_add(self.width())
    }

    /// The first window that has the slice that starts at `slice` and ends after `after`.
    pub fn window_after(&self, slice: i64, after: i64) -> Option<WindowBounds> {
        let (size, x) = (i128::from(self.size), i128::from(slice.max(after)));
        let (start, end) = if self.cumulate {
            let start = grid(slice.into(), self.size, self.offset);
            let end = grid(x, self.slide, self.offset) + i128::from(self.slide);
            if end > start + size {
                return None;
            }
            (start, end)
        } else {
            let start = grid(x - size, self.slide, self.offset) + i128::from(self.slide);
            if start > i128::from(slice) {
                return None;
            }
            (start, start + size)
        };
        let window = WindowBounds { start: clamp(start), end: clamp(end) };
        // At the end of time windows are cut off, and there is none behind.
        (window.end > after).then_some(window)
    }

    /// Whether a window ends after `from` and no later than `to`; of sessions, whether a slice is
    /// complete at `to` that was not at `from`.
    pub fn ends_between(&self, from: i64, to: i64) -> bool {
        if self.gap > 0 {
            return self.slice_start(self.horizon(from)) < self.slice_start(self.horizon(to));
        }
        let shift = if self.cumulate { 0 } else { i128::from(self.size) };
        let before = |at: i64| grid(i128::from(at) - shift, self.slide, self.offset);
        before(from) < before(to)
    }

    /// Where the last window ends that has the slice that starts at `slice`; `None` if none has.
    pub fn last_end(&self, slice: i64) -> Option<i64> {
        let period = if self.cumulate { self.size } else { self.slide };
        let end = grid(slice.into(), period, self.offset) + i128::from(self.size);
        (end > i128::from(slice)).then(|| clamp(end))
    }

    /// The window that ends at `end`.
    pub fn window_at(&self, end: i64) -> WindowBounds {
        let end128 = i128::from(end);
        let start = if self.cumulate {
            grid(end128 - 1, self.size, self.offset)
        } else {
            end128 - i128::from(self.size)
        };
        WindowBounds { start: clamp(start), end }
    }

    /// Where the windows end that have the slice that starts at `slice`, as far as after `after`;
    /// ascending.
    pub fn ends_of(&self, slice: i64, after: i64) -> impl Iterator<Item = i64> {
        let next = move |after| self.window_after(slice, after).map(|window| window.end);
        std::iter::successors(next(after), move |&end| next(end))
    }

    /// Where a row of time `at` belongs that met `watermark`: windows that end at or before that
    /// have triggered, as far as the row's own flow can tell. Which windows those are does not
    /// depend on when they really fire, so that the result does not depend on it either.
    pub fn place(&self, at: i64, watermark: i64) -> RowPlace {
        let slice = self.slice_start(at);
        match self.window_after(slice, i64::MIN) {
            Some(first) if first.end <= watermark => {}
            // Between windows there is nothing to be late for.
            _ => return RowPlace::Slice(slice),
        }
        match self.last_end(slice) {
            Some(last) if last <= watermark => RowPlace::Late,
            // The windows that have the slice in which the watermark is are those that are left.
            _ if self.cumulate => RowPlace::Slice(self.slice_start(watermark)),
            _ => RowPlace::Windows,
        }
    }

    /// The key under which [`crate::Slices`] hold the slice that starts at `start`. It is that
    /// start, or twice that where slices are one tick wide.
    pub fn slice_key(&self, start: i64) -> i64 {
        start.saturating_mul(self.key_scale())
    }

    /// The key of what belongs to the window that ends at `end` alone; no slice has it.
    pub fn window_key(&self, end: i64) -> i64 {
        end.saturating_mul(self.key_scale()) - 1
    }

    /// The meaning of a key.
    pub(crate) fn piece(&self, key: i64) -> WindowPiece {
        let scale = self.key_scale();
        let behind = i128::from(key) + 1 - i128::from(self.offset) * i128::from(scale);
        let step = i128::from(self.width()) * i128::from(scale);
        if self.overlaps() && behind.rem_euclid(step) == 0 && key != i64::MIN {
            WindowPiece::Window(((i128::from(key) + 1) / i128::from(scale)) as i64)
        } else {
            WindowPiece::Slice(key / scale)
        }
    }

    fn key_scale(&self) -> i64 {
        if self.width() == 1 && self.overlaps() { 2 } else { 1 }
    }

    /// Whether a slice may be in windows that begin at different times.
    fn overlaps(&self) -> bool {
        !self.cumulate && self.size > self.slide
    }

    /// Whether all of `times` are in one slice, which in most batches they are.
    pub fn assign(&self, times: &[i64]) -> SliceAssignment {
        let Some(&first) = times.first() else { return SliceAssignment::Mixed };
        let (start, width) = (self.slice_start(first), self.width());
        if start.checked_add(width).is_none() {
            let mut starts = times.iter().map(|&time| self.slice_start(time));
            let one = starts.all(|other| other == start);
            return if one { SliceAssignment::OneSlice(start) } else { SliceAssignment::Mixed };
        }
        // The sign is set if a time is before the start or after the end. There is no 64-bit
        // minimum in the vector instructions that every x86-64 has, but there is a subtraction.
        let sign = times.iter().fold(0, |sign, time| {
            let since = time.wrapping_sub(start);
            sign | since | (width - 1).wrapping_sub(since)
        });
        if sign >= 0 { SliceAssignment::OneSlice(start) } else { SliceAssignment::Mixed }
    }

    /// Sorts the rows of `times` by slice. `selections` is reused: in steady state nothing is
    /// allocated.
    pub fn split(&self, times: &[i64], selections: &mut Selections) {
        selections.clear();
        // The bounds of the slice of the row before, which in most cases is that of the next too.
        let (mut start, mut end, mut at) = (0, 0, 0);
        for (row, &time) in times.iter().enumerate() {
            if time < start || time >= end {
                start = self.slice_start(time);
                end = self.slice_end(start);
                at = selections.open(start);
            }
            selections.rows[at].push(row as u32);
        }
    }
}

/// The meaning of a key of [`crate::Slices`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowPiece {
    /// The slice that starts here.
    Slice(i64),
    /// The slice of the window that ends here alone.
    Window(i64),
}

/// The greatest number not above `at` that is `offset` beyond a multiple of `step`.
fn grid(at: i128, step: i64, offset: i64) -> i128 {
    let (step, offset) = (i128::from(step), i128::from(offset));
    (at - offset).div_euclid(step) * step + offset
}

fn clamp(at: i128) -> i64 {
    at.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The greatest number not above `at` that is `offset` beyond a multiple of `step`, at least
/// `i64::MIN`.
fn floor(at: i64, step: i64, offset: i64) -> i64 {
    clamp(grid(at.into(), step, offset))
}

/// Rows by slice.
#[derive(Debug, Default)]
pub struct Selections {
    starts: Vec<i64>,
    /// Rows of each of `starts`; beyond that empty ones to be reused.
    rows: Vec<Vec<u32>>,
    index: HashMap<i64, usize>,
}

impl Selections {
    /// Each slice's start and rows, in order of first appearance; rows ascend.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &[u32])> {
        self.starts.iter().copied().zip(self.rows.iter().map(Vec::as_slice))
    }

    fn clear(&mut self) {
        self.rows.iter_mut().take(self.starts.len()).for_each(Vec::clear);
        self.starts.clear();
        self.index.clear();
    }

    fn open(&mut self, start: i64) -> usize {
        let next = self.starts.len();
        let at = *self.index.entry(start).or_insert(next);
        if at == next {
            self.starts.push(start);
            if self.rows.len() == next {
                self.rows.push(vec![]);
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_before_the_epoch_round_down() {
        let windows = Windows::tumbling(10, 3).unwrap();
        assert_eq!(windows.slice_start(3), 3);
        assert_eq!(windows.slice_start(2), -7);
        assert_eq!(windows.slice_start(-7), -7);
        assert_eq!(windows.slice_start(-8), -17);
        assert_eq!(windows.slice_start(i64::MIN), i64::MIN);
        assert_eq!(windows.slice_end(windows.slice_start(i64::MAX)), i64::MAX);
    }

    #[test]
    fn slices_of_hopping_windows_are_shared() {
        let windows = Windows::hopping(6, 4, 0).unwrap();
        assert_eq!(windows.width(), 2);
        assert_eq!(windows.ends_of(4, i64::MIN).collect::<Vec<_>>(), [6, 10]);
        assert_eq!(windows.ends_of(6, i64::MIN).collect::<Vec<_>>(), [10]);
        assert_eq!(windows.window_at(10), WindowBounds { start: 4, end: 10 });
        assert_eq!(Windows::hopping(2, 5, 0).unwrap().ends_of(2, i64::MIN).count(), 0, "a gap");
        assert!(Windows::tumbling(0, 0).is_none() && Windows::hopping(1, -1, 0).is_none());
        assert!(Windows::cumulating(10, 3, 0).is_none(), "a step divides the size");
    }

    #[test]
    fn a_row_counts_for_the_windows_that_have_not_triggered() {
        let hop = Windows::hopping(10, 5, 0).unwrap();
        assert_eq!(hop.place(3, 4), RowPlace::Slice(0));
        assert_eq!(hop.place(3, 5), RowPlace::Windows);
        assert_eq!(hop.ends_of(0, 5).collect::<Vec<_>>(), [10]);
        assert_eq!(hop.place(3, 10), RowPlace::Late);
        let day = Windows::cumulating(24, 6, 1).unwrap();
        assert_eq!(day.place(2, 6), RowPlace::Slice(1));
        assert_eq!(day.place(2, 14), RowPlace::Slice(13), "in the windows up to 19 and 25");
        assert_eq!(day.place(2, 25), RowPlace::Late);
        let rare = Windows::hopping(2, 5, 0).unwrap();
        assert_eq!(rare.place(3, 100), RowPlace::Slice(3), "in no window, so not late");
    }

    #[test]
    fn no_rows_and_the_end_of_time() {
        let windows = Windows::tumbling(10, 0).unwrap();
        assert_eq!(windows.assign(&[]), SliceAssignment::Mixed);
        let last = windows.slice_start(i64::MAX);
        assert_eq!(windows.assign(&[i64::MAX, i64::MAX - 1]), SliceAssignment::OneSlice(last));
        assert_eq!(windows.assign(&[i64::MAX, i64::MIN]), SliceAssignment::Mixed);
        let mut selections = Selections::default();
        windows.split(&[i64::MAX, i64::MIN, i64::MAX], &mut selections);
        assert_eq!(selections.iter().count(), 2);
    }

    proptest! {
        #[test]
        fn every_row_is_in_its_slice_once(
            size in 1i64..50, slide in 1i64..50, offset in -60i64..60,
            batches in prop::collection::vec(prop::collection::vec(-200i64..200, 0..40), 1..4),
        ) {
            let windows = Windows::hopping(size, slide, offset).unwrap();
            let mut selections = Selections::default();
            for times in batches {
                windows.split(&times, &mut selections);
                let mut seen = vec![0; times.len()];
                for (start, rows) in selections.iter() {
                    prop_assert!(!rows.is_empty());
                    for &row in rows {
                        let time = times[row as usize];
                        prop_assert!(start <= time && time < windows.slice_end(start));
                        prop_assert_eq!((start - offset).rem_euclid(windows.width()), 0);
                        seen[row as usize] += 1;
                    }
                }
                prop_assert!(seen.iter().all(|&n| n == 1));
                match windows.assign(&times) {
                    SliceAssignment::OneSlice(start) => {
                        let starts: Vec<_> = selections.iter().map(|s| s.0).collect();
                        prop_assert_eq!(starts, [start]);
                    }
                    SliceAssignment::Mixed => prop_assert!(selections.iter().count() != 1),
                }
            }
        }

        #[test]
        fn a_slice_is_in_the_windows_that_have_it(
            size in 1i64..30, slide in 1i64..30, offset in -40i64..40, at in -100i64..100,
            after in -120i64..150, cumulate in any::<bool>(),
        ) {
            let windows = if cumulate {
                Windows::cumulating(size * slide, slide, offset)
            } else {
                Windows::hopping(size, slide, offset)
            };
            let windows = windows.unwrap();
            let slice = windows.slice_start(at);
            let on_grid = |at: i64, step: i64| (at - offset).rem_euclid(step) == 0;
            let every: Vec<WindowBounds> = (-1_100..1_100)
                .filter(|&start| on_grid(start, if cumulate { size * slide } else { slide }))
                .flat_map(|start| {
                    let steps = if cumulate { 1..=size } else { 1..=1 };
                    steps.map(move |n| if cumulate { n * slide } else { size })
                        .map(move |size| WindowBounds { start, end: start + size })
                })
                .filter(|window| window.start <= at && at < window.end)
                .collect();
            let last = every.iter().map(|window| window.end).max();
            prop_assert_eq!(windows.last_end(slice), last);
            let ends: Vec<i64> = windows.ends_of(slice, after).collect();
            prop_assert!(ends.is_sorted());
            if after > slice {
                let ended = every.iter().any(|w| w.end > slice && w.end <= after);
                prop_assert!(!ended || windows.ends_between(slice, after));
            }
            for window in &every {
                prop_assert!(windows.ends_between(window.end - 1, window.end));
                let others = windows.ends_between(window.end, window.end + slide - 1);
                prop_assert!(!others, "the next one ends a slide later");
            }
            let left: Vec<WindowBounds> = every.iter().copied().filter(|w| w.end > after).collect();
            let found: Vec<WindowBounds> = ends.iter().map(|&end| windows.window_at(end)).collect();
            prop_assert_eq!(&found, &left);
            match windows.place(at, after) {
                RowPlace::Slice(slice) => {
                    let ends: Vec<i64> = windows.ends_of(slice, i64::MIN).collect();
                    prop_assert_eq!(ends, left.iter().map(|w| w.end).collect::<Vec<_>>());
                }
                RowPlace::Windows => prop_assert!(!left.is_empty() && left.len() < every.len()),
                RowPlace::Late => prop_assert!(left.is_empty() && !every.is_empty()),
            }
            prop_assert_eq!(windows.piece(windows.slice_key(slice)), WindowPiece::Slice(slice));
            for end in ends.into_iter().filter(|_| windows.overlaps()) {
                prop_assert_eq!(windows.piece(windows.window_key(end)), WindowPiece::Window(end));
            }
        }
    }
}
