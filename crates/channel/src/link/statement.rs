//! A link that serves one statement after another.
//!
//! ```text
//!   rests? ─▶ the nodes agree (KeptLinks) ─▶ begin(number) ─▶ frames ─▶ rests? ─▶ …
//! ```
//!
//! A frame carries the number of its statement. One that was published in a former statement and
//! comes late, or again over a renewed connection, is dropped when it is accepted, and its slot is
//! free at once.

use super::Link;
use crate::LinkError;
use crate::protocol::StatementNumber;

impl Link {
    /// Begins a statement: frames that are published from now on are of it, and frames of former
    /// ones that have come or are to come are dropped. Both ends begin it before either publishes a
    /// frame.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn begin(&mut self, statement: StatementNumber) -> Result<(), LinkError> {
        self.drop_received();
        self.statement = statement;
        self.failed()
    }

    /// Lets a link rest between two statements, without an owner who polls it: drops frames that
    /// nobody has received. True if it can serve another statement: it is whole, attached, and no
    /// payload of it lives, which would keep a slot from the frames to come.
    pub fn rests(&mut self) -> bool {
        self.drop_received();
        self.collect();
        let is_whole = self.failure.is_none() && self.peer.is_some() && !self.posts_again();
        is_whole && self.consumer.held() == 0
    }

    /// The statement that this end takes part in.
    pub fn statement(&self) -> StatementNumber {
        self.statement
    }
}
