//! Which statement of a session a frame is of, and whether links serve one more.
//!
//! Links outlive a statement. Whatever was sent in one and comes in a later one is dropped by its
//! number. Nodes agree on the next number before any of their workers sends a frame of it, so that
//! no frame of a statement comes before its receiver has begun that statement.

use super::Breach;

/// The statement that one end of a link takes part in, counted from 1 in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StatementNumber(u32);

impl StatementNumber {
    /// The statement of this number.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as frames carry it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether a frame of the statement `found` is of this one. One of a former statement is
    /// dropped.
    ///
    /// # Errors
    /// [`Breach::Statement`] for a frame of a statement that nobody has begun.
    pub fn has(self, found: u32) -> Result<bool, Breach> {
        if found > self.0 {
            return Err(Breach::Statement { found, current: self.0 });
        }
        Ok(found == self.0)
    }
}

/// What a node says of its links before a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KeptLinks {
    /// The statement that they served last, or the last one of the session if there are none.
    pub last: StatementNumber,
    /// Whether there are links, and each can carry frames.
    pub whole: bool,
}

/// What the nodes have agreed on for a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NextStatement {
    /// Its number: greater than that of any statement before.
    pub statement: StatementNumber,
    /// Whether it uses the links that are kept. Otherwise every node closes its links and makes
    /// others.
    pub reuses: bool,
}

impl KeptLinks {
    /// Bytes of [`encode`](Self::encode).
    pub const BYTES: usize = 5;

    /// The next statement by the messages of all nodes, equal at every node. Links are used again
    /// only if they are whole at every node, and served the same statement last: the two ends of
    /// a link are of the same set then.
    #[must_use]
    pub fn agree(all: &[KeptLinks]) -> NextStatement {
        let last = all.iter().map(|kept| kept.last).max().unwrap_or_default();
        let same = all.iter().all(|kept| kept.whole && kept.last == last);
        match last.0.checked_add(1) {
            Some(next) => NextStatement { statement: StatementNumber(next), reuses: same },
            // Numbers begin again, with links that have carried none.
            None => NextStatement { statement: StatementNumber(1), reuses: false },
        }
    }

    /// `last u32 | whole u8`.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.last.0.to_le_bytes();
        [a, b, c, d, self.whole.into()]
    }

    /// The inverse of [`encode`](Self::encode); `None` for any other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (last, rest) = bytes.split_first_chunk()?;
        let whole = match rest {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self { last: StatementNumber(u32::from_le_bytes(*last)), whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(last: u32, whole: bool) -> KeptLinks {
        KeptLinks { last: StatementNumber(last), whole }
    }

    #[test]
    fn a_frame_of_a_former_statement_is_dropped_and_one_of_a_later_is_refused() {
        let current = StatementNumber::new(7);
        assert_eq!(
            (current.has(7), current.has(6), current.has(0)),
            (Ok(true), Ok(false), Ok(false))
        );
        assert_eq!(current.has(8), Err(Breach::Statement { found: 8, current: 7 }));
    }

    #[test]
    fn links_are_used_again_if_all_are_whole_and_of_the_same_statement() {
        let next = |all: &[KeptLinks]| {
            let NextStatement { statement, reuses } = KeptLinks::agree(all);
            (statement.number(), reuses)
        };
        assert_eq!(next(&[kept(0, false); 3]), (1, false));
        assert_eq!(next(&[kept(4, true); 3]), (5, true));
        assert_eq!(next(&[kept(4, true), kept(4, false)]), (5, false));
        assert_eq!(next(&[kept(4, true), kept(3, true)]), (5, false));
        assert_eq!(next(&[kept(u32::MAX, true); 2]), (1, false));
        assert_eq!(next(&[]), (1, true), "a node alone has no links to make");
    }

    #[test]
    fn what_a_node_says_survives_the_wire() {
        for message in [kept(0, false), kept(u32::MAX, true)] {
            assert_eq!(KeptLinks::decode(&message.encode()), Some(message));
        }
        for bad in [&[][..], &[0; 4], &[0, 0, 0, 0, 2], &[0; 6]] {
            assert_eq!(KeptLinks::decode(bad), None, "{bad:?}");
        }
    }
}
