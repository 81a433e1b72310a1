//! Windows of event time, cut into slices.
//!
//! A slice is the longest span such that every window is a whole number of slices: the greatest
//! common divisor of size and slide. State is kept per slice; a tumbling window is one slice, a
//! hopping one combines several (S5). Times are ticks of any unit.

use std::collections::HashMap;

/// Windows of `size` ticks, one beginning every `slide` ticks, shifted by `offset` from the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    size: i64,
    slide: i64,
    offset: i64,
}

/// Where the rows of a batch belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
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

    /// Windows of `size`, one every `slide`. `None` unless both are positive.
    pub fn hopping(size: i64, slide: i64, offset: i64) -> Option<Self> {
        (size > 0 && slide > 0).then(|| Self { size, slide, offset: offset.rem_euclid(slide) })
    }

    /// The length of a window.
    pub fn size(&self) -> i64 {
        self.size
    }

    /// The distance of two windows.
    pub fn slide(&self) -> i64 {
        self.slide
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

    /// Where the window that starts at `start` ends, exclusively.
    pub fn window_end(&self, start: i64) -> i64 {
        start.saturating_add(self.size)
    }

    /// The starts of the windows that contain the slice that starts at `slice`, the last window
    /// first.
    pub fn windows_of(&self, slice: i64) -> impl Iterator<Item = i64> {
        let (size, slide) = (self.size, self.slide);
        let last = floor(slice, slide, self.offset);
        std::iter::successors(Some(last), move |start| start.checked_sub(slide))
            .take_while(move |&start| i128::from(slice) - i128::from(start) < i128::from(size))
    }

    /// The starts of the slices of the window that starts at `window`.
    pub fn slices_of(&self, window: i64) -> impl Iterator<Item = i64> {
        let (width, end) = (self.width(), self.window_end(window));
        std::iter::successors(Some(window), move |start| start.checked_add(width))
            .take_while(move |&start| start < end)
    }

    /// Whether all of `times` are in one slice, which in most batches they are.
    pub fn assign(&self, times: &[i64]) -> Assignment {
        let Some(&first) = times.first() else { return Assignment::Mixed };
        let (start, width) = (self.slice_start(first), self.width());
        if start.checked_add(width).is_none() {
            let mut starts = times.iter().map(|&time| self.slice_start(time));
            let one = starts.all(|other| other == start);
            return if one { Assignment::OneSlice(start) } else { Assignment::Mixed };
        }
        // The sign is set if a time is before the start or after the end. There is no 64-bit
        // minimum in the vector instructions that every x86-64 has, but there is a subtraction.
        let sign = times.iter().fold(0, |sign, time| {
            let since = time.wrapping_sub(start);
            sign | since | (width - 1).wrapping_sub(since)
        });
        if sign >= 0 { Assignment::OneSlice(start) } else { Assignment::Mixed }
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

/// The greatest number not above `at` that is `offset` beyond a multiple of `step`, at least
/// `i64::MIN`.
fn floor(at: i64, step: i64, offset: i64) -> i64 {
    let (at, step, offset) = (i128::from(at), i128::from(step), i128::from(offset));
    let floor = (at - offset).div_euclid(step) * step + offset;
    floor.max(i128::from(i64::MIN)) as i64
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
        assert_eq!(windows.windows_of(4).collect::<Vec<_>>(), [4, 0]);
        assert_eq!(windows.windows_of(6).collect::<Vec<_>>(), [4]);
        assert_eq!(windows.slices_of(4).collect::<Vec<_>>(), [4, 6, 8]);
        assert_eq!(Windows::hopping(2, 5, 0).unwrap().windows_of(2).count(), 0, "a gap");
        assert!(Windows::tumbling(0, 0).is_none() && Windows::hopping(1, -1, 0).is_none());
    }

    #[test]
    fn no_rows_and_the_end_of_time() {
        let windows = Windows::tumbling(10, 0).unwrap();
        assert_eq!(windows.assign(&[]), Assignment::Mixed);
        let last = windows.slice_start(i64::MAX);
        assert_eq!(windows.assign(&[i64::MAX, i64::MAX - 1]), Assignment::OneSlice(last));
        assert_eq!(windows.assign(&[i64::MAX, i64::MIN]), Assignment::Mixed);
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
                    Assignment::OneSlice(start) => {
                        let starts: Vec<_> = selections.iter().map(|s| s.0).collect();
                        prop_assert_eq!(starts, [start]);
                    }
                    Assignment::Mixed => prop_assert!(selections.iter().count() != 1),
                }
            }
        }

        #[test]
        fn a_slice_is_in_the_windows_that_have_it(
            size in 1i64..30, slide in 1i64..30, offset in -40i64..40, at in -100i64..100,
        ) {
            let windows = Windows::hopping(size, slide, offset).unwrap();
            let slice = windows.slice_start(at);
            let mut starts: Vec<_> = windows.windows_of(slice).collect();
            starts.reverse();
            let expected: Vec<_> = (-200..200)
                .filter(|w| (w - offset).rem_euclid(slide) == 0 && *w <= at && at < w + size)
                .collect();
            prop_assert_eq!(&starts, &expected);
            for window in starts {
                prop_assert!(windows.slices_of(window).any(|s| s == slice));
            }
        }
    }
}
