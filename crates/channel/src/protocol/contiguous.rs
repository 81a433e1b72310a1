//! A set of positions that is filled in any order and read as "all below".

/// Remembers which positions are done and the first one that is not: how slots are released, how
/// staging memory is retired and how notices arrive, in whatever order, while only the contiguous
/// part counts.
///
/// At most [`SLOTS_MAX`](super::SLOTS_MAX) positions from the first one that is not done can be
/// marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Contiguous {
    below: u64,
    /// Bit `i` stands for position `below + i`; bit 0 is never set.
    ahead: u64,
}

impl Contiguous {
    /// All positions below this one are done, and no other.
    pub fn starting_at(below: u64) -> Self {
        Self { below, ahead: 0 }
    }

    /// All positions below this one are done, and this one is not.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// How many are done beyond the contiguous part.
    pub fn ahead(&self) -> u32 {
        self.ahead.count_ones()
    }

    /// True when `position` is done.
    pub fn has(&self, position: u64) -> bool {
        position < self.below
            || (position - self.below < 64 && self.ahead >> (position - self.below) & 1 == 1)
    }

    /// Marks one position; one that is done already stays so.
    ///
    /// # Panics
    /// When `position` is 64 or more beyond [`below`](Self::below).
    pub fn mark(&mut self, position: u64) {
        if position < self.below {
            return;
        }
        let bit = position - self.below;
        assert!(bit < 64, "position {position} is too far beyond {}", self.below);
        self.ahead |= 1 << bit;
        let run = self.ahead.trailing_ones();
        self.below += u64::from(run);
        self.ahead = self.ahead.checked_shr(run).unwrap_or(0);
    }

    /// Marks all positions below `end`.
    pub fn mark_below(&mut self, end: u64) {
        if end <= self.below {
            return;
        }
        let shift = u32::try_from(end - self.below).unwrap_or(u32::MAX);
        self.ahead = self.ahead.checked_shr(shift).unwrap_or(0);
        self.below = end;
        let run = self.ahead.trailing_ones();
        self.below += u64::from(run);
        self.ahead = self.ahead.checked_shr(run).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_contiguous_part_counts() {
        let mut set = Contiguous::default();
        set.mark(1);
        set.mark(2);
        assert_eq!((set.below(), set.ahead()), (0, 2));
        set.mark(0);
        assert_eq!((set.below(), set.ahead()), (3, 0));
        set.mark(1);
        assert_eq!(set.below(), 3);
    }

    #[test]
    fn a_whole_word_can_be_ahead() {
        let mut set = Contiguous::default();
        for position in (0..64).rev() {
            assert!(!set.has(position));
            set.mark(position);
            assert!(set.has(position));
        }
        assert_eq!((set.below(), set.ahead()), (64, 0));
    }

    #[test]
    fn marking_below_swallows_what_was_ahead() {
        let mut set = Contiguous::default();
        set.mark(3);
        set.mark(6);
        set.mark_below(3);
        assert_eq!((set.below(), set.ahead()), (4, 1));
        set.mark_below(2);
        assert_eq!(set.below(), 4);
        set.mark_below(1_000_000_000_000);
        assert_eq!((set.below(), set.ahead()), (1_000_000_000_000, 0));
    }

    #[test]
    #[should_panic(expected = "too far")]
    fn beyond_the_bound_is_our_bug() {
        Contiguous::default().mark(64);
    }
}
