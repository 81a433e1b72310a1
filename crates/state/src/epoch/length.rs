//! How long an epoch is: as long as its rows keep meeting others of their groups, and no longer.
//!
//! What a delta costs is its groups. Of `rows` rows with `groups` keys, all as often, a delta has
//! [`distinct`] groups, so `rows / distinct` rows of a group meet in it: its *combine factor*. A
//! longer epoch never has a smaller one, but if there are far more groups than rows, hardly a
//! greater one either, and then a long epoch only takes memory and makes the end of a window wait.
//!
//! [`EpochLength`] measures each epoch at its end and takes half or twice the length for the next,
//! within [`LengthBounds`]. Between what makes it longer and what makes it shorter lies a band in
//! which it stays, so that it does not swing. It decides when state travels and never what it is:
//! results do not depend on it.
//!
//! S9 has one length, 64 MiB of input, and leaves open when another would be better.

/// This many rows of a group to a delta are enough: the rows cost far more than the group.
const ENOUGH: f64 = 16.0;
/// With this many times [`ENOUGH`] an epoch that was lengthened is shortened.
const PLENTY: f64 = 4.0;
/// By how much the longest epoch must combine better for an epoch to be lengthened.
const LONGER: f64 = 1.5;
/// If an epoch combines less than this much better than the shortest, it is shortened.
const SHORTER: f64 = 1.2;
/// Epochs of fewer rows than this tell nothing.
const ROWS_MIN: u64 = 64;

/// How many different ones there are on the average among `rows` draws of `groups` that are all as
/// likely; where some are likelier, there are fewer.
pub fn distinct(groups: f64, rows: f64) -> f64 {
    match groups {
        ..=1.0 => groups.min(rows),
        // groups * (1 - (1 - 1 / groups) ^ rows)
        _ => -groups * (rows * (-1.0 / groups).ln_1p()).exp_m1(),
    }
}

/// How many rows of a group meet among `rows` rows; at least one.
pub fn combine_factor(groups: f64, rows: f64) -> f64 {
    if rows > 0.0 { (rows / distinct(groups, rows)).max(1.0) } else { 1.0 }
}

/// Of how many groups `rows` draws had `distinct` different ones: the inverse of [`distinct`].
pub fn groups_behind(distinct_groups: f64, rows: f64) -> f64 {
    let (mut low, mut high) = (distinct_groups.max(1.0), 1e18);
    if distinct(high, rows) <= distinct_groups {
        return high;
    }
    // Each step halves the ratio of the two on a scale of logarithms.
    for _ in 0..64 {
        let middle = (low * high).sqrt();
        if distinct(middle, rows) < distinct_groups { low = middle } else { high = middle }
    }
    high
}

/// The bound on the length of epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthBounds {
    /// Bytes of input with which it begins.
    pub bytes: u64,
    /// By which factor it may become longer or shorter than that; 1 holds it where it is.
    pub stretch: u64,
    /// Nanoseconds in which the end of an epoch should be done.
    pub latency_ns: u64,
}

impl LengthBounds {
    fn least(&self) -> u64 {
        (self.bytes / self.stretch.max(1)).max(1)
    }

    fn most(&self) -> u64 {
        self.bytes.saturating_mul(self.stretch.max(1))
    }
}

/// The measurements of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    /// Bytes of input.
    pub bytes: u64,
    /// Rows of it that belong to groups of others.
    pub rows: u64,
    /// Groups of others that were given away.
    pub groups: u64,
    /// Groups that stayed, each of which was looked at.
    pub stayed: u64,
    /// Nanoseconds from its end until all of it was sent.
    pub took_ns: u64,
}

/// The length of the epochs of one helper.
#[derive(Debug, Clone)]
pub struct EpochLength {
    bounds: LengthBounds,
    bytes: u64,
    /// Whether an epoch has been measured.
    measured: bool,
}

impl EpochLength {
    /// Of the first epoch.
    pub fn new(bounds: LengthBounds) -> Self {
        Self { bounds, bytes: bounds.bytes.max(1), measured: false }
    }

    /// Bytes of input after which an epoch ends.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether an epoch ends that has read `bytes` and `rows`; `groups` counts those in memory, and
    /// is asked only of the first epoch, which goes on while it is likely to combine better.
    pub fn is_over(&mut self, bytes: u64, rows: u64, groups: impl Fn() -> u64) -> bool {
        while bytes >= self.bytes {
            if self.measured || self.bytes >= self.bounds.most() {
                return true;
            }
            let (rows, groups) = (rows as f64, (groups() as f64).max(1.0));
            // Where they are more than the rows, they are places of an array, which may be taken.
            let behind = if groups < rows { groups_behind(groups, rows) } else { groups };
            let most = rows * self.bounds.most() as f64 / bytes as f64;
            let better = combine_factor(behind, most) / combine_factor(behind, rows);
            if rows >= ENOUGH * groups || better < LONGER {
                return true;
            }
            self.bytes = self.bytes.saturating_mul(2).min(self.bounds.most());
        }
        false
    }

    /// An epoch has ended, for whatever reason.
    pub fn ended(&mut self, epoch: &Ended) {
        if epoch.rows < ROWS_MIN || epoch.groups == 0 {
            return;
        }
        self.measured = true;
        let next = match self.next(epoch) {
            Next::Longer => self.bytes.saturating_mul(2).min(self.bounds.most()),
            Next::Stay => self.bytes,
            Next::Shorter => (self.bytes / 2).max(self.bounds.least()),
        };
        self.bytes = next.max(1);
    }

    fn next(&self, epoch: &Ended) -> Next {
        let rows = epoch.rows as f64;
        let rows_of = |bytes: u64| rows * bytes as f64 / epoch.bytes.max(1) as f64;
        let stayed = epoch.stayed as f64;
        // Each end looks at what stays: a row should not pay for more than one look.
        if stayed > rows_of(self.bytes) {
            return Next::Longer;
        }
        let may_shorten = stayed <= rows_of(self.bytes / 2);
        let shorter = if may_shorten { Next::Shorter } else { Next::Stay };
        if epoch.took_ns > self.bounds.latency_ns {
            return shorter;
        }
        let met = (rows / epoch.groups as f64).max(1.0);
        if met >= ENOUGH {
            let lengthened = self.bytes > self.bounds.bytes;
            return if lengthened && met >= PLENTY * ENOUGH { shorter } else { Next::Stay };
        }
        // Whether few or no rows of a group have met is a matter of one more or less: doubts are in
        // favour of the length that there is.
        let factor = |groups: f64, bytes: u64| combine_factor(groups, rows_of(bytes));
        let better = |groups: f64, bytes: u64| {
            factor(groups, self.bounds.most()) >= LONGER * factor(groups, bytes)
        };
        let groups = epoch.groups as f64;
        let (fewest, most) =
            (groups_behind(groups, rows), groups_behind((groups + 1.0).min(rows), rows));
        // What takes half of the time may take all of it when the length is doubled.
        let in_time = epoch.took_ns <= self.bounds.latency_ns / 2;
        let alike = factor(fewest, self.bytes) < SHORTER * factor(fewest, self.bounds.least());
        if in_time && better(most, self.bytes) {
            Next::Longer
        } else if alike && !better(fewest, self.bytes / 2) {
            shorter
        } else {
            Next::Stay
        }
    }

    /// Where the length settles if `rows` rows are read in its first bytes, of `groups` groups that
    /// are all as likely.
    pub fn settled(bounds: LengthBounds, rows: f64, groups: f64) -> u64 {
        let mut length = Self::new(bounds);
        // Each step halves or doubles, so that all lengths are met by then.
        for _ in 0..u64::BITS {
            let bytes = length.bytes();
            let rows = rows * bytes as f64 / bounds.bytes.max(1) as f64;
            let groups = distinct(groups, rows) as u64;
            length.ended(&Ended { bytes, rows: rows as u64, groups, ..Ended::default() });
            if length.bytes() == bytes {
                break;
            }
        }
        length.bytes()
    }
}

enum Next {
    Longer,
    Stay,
    Shorter,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: LengthBounds = LengthBounds { bytes: 1 << 26, stretch: 16, latency_ns: 1 << 30 };
    /// Bytes of a row.
    const ROW: u64 = 16;

    /// The outcome of an epoch of this many bytes.
    fn epoch(bytes: u64, groups: f64) -> Ended {
        let rows = bytes / ROW;
        let groups = distinct(groups, rows as f64) as u64;
        Ended { bytes, rows, groups, ..Ended::default() }
    }

    /// The lengths of this many epochs, one after another.
    fn lengths(mut length: EpochLength, epochs: usize, of: impl Fn(u64) -> Ended) -> Vec<u64> {
        let mut all = vec![];
        for _ in 0..epochs {
            length.ended(&of(length.bytes()));
            all.push(length.bytes());
        }
        all
    }

    #[test]
    fn distinct_is_what_drawing_comes_to() {
        let mut state = 7u64;
        let mut draw = |groups: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % groups
        };
        for (groups, rows) in [(1, 10), (2, 3), (100, 50), (100, 1_000), (5_000, 20_000)] {
            let times = 200_000 / rows;
            let mut seen = 0;
            for _ in 0..times {
                seen += (0..rows).map(|_| draw(groups)).collect::<HashSet<_>>().len();
            }
            let (mean, expected) =
                (seen as f64 / times as f64, distinct(groups as f64, rows as f64));
            assert!((mean - expected).abs() < 0.02 * expected + 0.02, "{mean} {expected}");
        }
        assert_eq!(combine_factor(10.0, 0.0), 1.0);
    }

    #[test]
    fn the_first_epoch_goes_on_while_it_may_combine_better() {
        let over_at = |groups: f64, places: bool| {
            let mut length = EpochLength::new(BOUNDS);
            let mut bytes = 0;
            loop {
                bytes += 1 << 20;
                let rows = bytes / ROW;
                let seen = if places { groups } else { distinct(groups, rows as f64) };
                if length.is_over(bytes, rows, || seen as u64) {
                    return bytes;
                }
            }
        };
        // 100 keys meet often enough at once, ten million meet in the longest, and of a billion
        // hardly two rows ever do.
        assert_eq!(over_at(100.0, false), BOUNDS.bytes);
        assert_eq!(over_at(1e7, false), BOUNDS.most());
        assert_eq!(over_at(1e7, true), BOUNDS.most());
        assert_eq!(over_at(1e9, false), BOUNDS.bytes);
    }

    #[test]
    fn keys_without_number_make_epochs_short_and_many_keys_long() {
        let last = |groups: f64| {
            let all = lengths(EpochLength::new(BOUNDS), 20, |bytes| epoch(bytes, groups));
            assert_eq!(
                *all.last().unwrap(),
                EpochLength::settled(BOUNDS, (1 << 22) as f64, groups)
            );
            *all.last().unwrap()
        };
        assert_eq!(last(100.0), BOUNDS.bytes);
        assert_eq!(last(1e7), BOUNDS.most());
        assert_eq!(last(1e10), BOUNDS.least());
    }

    #[test]
    fn an_end_that_takes_too_long_makes_the_next_epoch_shorter() {
        // An end takes as long as there are groups, of which all are met anew in each epoch.
        let slow = |bytes: u64| Ended { took_ns: bytes * 40, ..epoch(bytes, 1e5) };
        let all = lengths(EpochLength::new(BOUNDS), 20, slow);
        let took = all.last().unwrap() * 40;
        assert!(took <= BOUNDS.latency_ns && took > BOUNDS.latency_ns / 4, "{took}");
        // But not if nearly all of the time went into what stays, whatever the length.
        let stays = |bytes: u64| Ended { took_ns: 1 << 31, stayed: 1 << 30, ..epoch(bytes, 1e5) };
        let all = lengths(EpochLength::new(BOUNDS), 20, stays);
        assert_eq!(*all.last().unwrap(), BOUNDS.most());
    }

    #[test]
    fn a_stretch_of_one_holds_the_length() {
        let bounds = LengthBounds { stretch: 1, ..BOUNDS };
        for groups in [1.0, 1e7, 1e12] {
            let all = lengths(EpochLength::new(bounds), 5, |bytes| epoch(bytes, groups));
            assert_eq!(all, [bounds.bytes; 5]);
        }
    }

    proptest! {
        #[test]
        fn groups_are_found_from_what_was_seen(groups in 1f64..1e9, times in 0.01f64..8.0) {
            let rows = (groups * times).max(1.0);
            let seen = distinct(groups, rows);
            prop_assert!(seen <= groups + 1e-6 && seen <= rows + 1e-6);
            let behind = groups_behind(seen, rows);
            prop_assert!((distinct(behind, rows) - seen).abs() <= 1e-3 * seen + 1e-3);
        }

        /// Whatever epochs come to, the length stays within its bounds; and with epochs that are
        /// alike it comes to rest.
        #[test]
        fn the_length_is_bounded_and_does_not_swing(
            wild in prop::collection::vec((0u64..1 << 40, 0u64..1 << 30, 0u64..1 << 30,
                                           0u64..1 << 32, 0u64..1 << 33), 0..50),
            groups in 1f64..1e11,
            stretch in 1u64..100,
        ) {
            let bounds = LengthBounds { stretch, ..BOUNDS };
            let mut length = EpochLength::new(bounds);
            for (bytes, rows, groups, stayed, took_ns) in wild {
                length.is_over(bytes, rows, || groups);
                length.ended(&Ended { bytes, rows, groups, stayed, took_ns });
                prop_assert!((bounds.least()..=bounds.most()).contains(&length.bytes()));
            }
            let all = lengths(length, 30, |bytes| epoch(bytes, groups));
            prop_assert_eq!(all[20], all[29]);
        }
    }
}
