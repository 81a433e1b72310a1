//! Rows that a worker has read for other leaders, until their epoch ends (S7).

use std::collections::BTreeMap;

/// The rows of one leader, by input and window: a window is the end of it, and `None` where an
/// input has no windows. Rows of one input and window are in the order in which they were read.
pub type RowsOfLeader<R> = BTreeMap<(u32, Option<i64>), Vec<R>>;

/// Rows of the open epoch by leader, input and window. `R` is a batch of rows.
///
/// A plain value: it neither sends nor copies rows. [`Helper`](super::Helper) keeps them from
/// the end of the epoch on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeldRows<R> {
    leaders: Vec<RowsOfLeader<R>>,
    bytes: usize,
}

impl<R> HeldRows<R> {
    /// No rows for any of `leaders` leaders.
    pub fn new(leaders: u32) -> Self {
        Self { leaders: (0..leaders).map(|_| BTreeMap::new()).collect(), bytes: 0 }
    }

    /// Adds rows of `bytes` bytes for a leader.
    ///
    /// # Panics
    /// When there is no such leader.
    pub fn push(&mut self, leader: u32, input: u32, window: Option<i64>, rows: R, bytes: usize) {
        let of_leader = &mut self.leaders[leader as usize];
        of_leader.entry((input, window)).or_default().push(rows);
        self.bytes += bytes;
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes all rows out, by leader: the epoch ends.
    pub fn take(&mut self) -> Vec<RowsOfLeader<R>> {
        self.bytes = 0;
        self.leaders.iter_mut().map(std::mem::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_by_leader_input_and_window_in_their_order() {
        let mut held = HeldRows::new(3);
        assert_eq!(held.take(), vec![BTreeMap::new(); 3], "of nothing");
        for (leader, input, window, rows) in
            [(2, 0, Some(20), 'a'), (2, 1, None, 'b'), (0, 0, Some(10), 'c'), (2, 0, Some(10), 'd')]
        {
            held.push(leader, input, window, rows, 4);
        }
        held.push(2, 0, Some(20), 'e', 1);
        assert_eq!(held.bytes(), 17);
        let rows = held.take();
        let of = |leader: usize| rows[leader].clone().into_iter().collect::<Vec<_>>();
        assert_eq!(of(0), [((0, Some(10)), vec!['c'])]);
        assert_eq!(of(1), []);
        let expected =
            [((0, Some(10)), vec!['d']), ((0, Some(20)), vec!['a', 'e']), ((1, None), vec!['b'])];
        assert_eq!(of(2), expected);
        assert_eq!((held.bytes(), held), (0, HeldRows::new(3)), "each row leaves once");
    }
}
