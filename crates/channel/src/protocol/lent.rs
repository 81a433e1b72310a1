//! Frames whose payloads stay in a region of their producer until a reader has read them (W3).

use std::collections::VecDeque;

/// What one reader may still read of a region: by the position of the frame that names it on the
/// ring towards that reader.
///
/// The reader's credit is its tail: below it everything was read. A slot of the region is free when
/// no reader has it here, which is when the slowest of those that were sent it has read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lent<T>(VecDeque<(u64, T)>);

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Lent<T> {
    /// The frame at `position`, behind all before, names this.
    pub fn lend(&mut self, position: u64, what: T) {
        debug_assert!(self.0.back().is_none_or(|(last, _)| *last < position), "in order");
        self.0.push_back((position, what));
    }

    /// The reader has released all frames below `credit`, and so has read them.
    pub fn read_below(&mut self, credit: u64) {
        while self.0.pop_front_if(|(position, _)| *position < credit).is_some() {}
    }

    /// The reader has left: it reads nothing any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether the reader has read everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the reader may still read, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_ends_the_loans_below_it() {
        let mut lent = Lent::default();
        lent.lend(3, 'a');
        lent.lend(7, 'b');
        lent.read_below(3);
        assert_eq!(lent.iter().collect::<Vec<_>>(), [&'a', &'b'], "the frame at 3 is not read");
        lent.read_below(5);
        assert_eq!(lent.iter().collect::<Vec<_>>(), [&'b']);
        lent.read_below(1);
        assert!(!lent.is_empty(), "an old credit changes nothing");
        lent.clear();
        assert!(lent.is_empty());
    }
}
