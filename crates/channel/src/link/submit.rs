//! Many links of one thread that start together what they have posted.
//!
//! ```text
//!   poll_gathered, poll_gathered, …, then submit, submit, …     as poll of each
//!   gather, gather, …, then submit, submit, …                   as flush of each
//! ```
//!
//! Where links share a connection, the first `submit` starts what all of them have posted on it, by
//! one system call, and the others find nothing left to start.

use super::Link;
use crate::protocol::slot_of;
use crate::{LinkError, Transfer};

impl Link {
    /// As [`poll`](Self::poll); what it posts starts at the next [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_gathered(&mut self) -> Result<bool, LinkError> {
        let polled = self.progress();
        self.hand_over();
        polled
    }

    /// Whether [`poll`](Self::poll) may have something to do: who has many links leaves out those
    /// that say no. It may say yes in vain; see [`Endpoint::has_news`](fabric::Endpoint::has_news).
    pub fn has_news(&mut self) -> bool {
        let own = self.failure.is_some()
            || self.cramped.is_some()
            || self.config.transfer != Transfer::Write
            || self.ring.uncollected() > 0
            || self.posts_again()
            || self.announces()
            || self.consumer.credit_due().is_some();
        own || self.has_frame() || self.endpoint.has_news()
    }

    /// Whether the next frame has landed, or something that is none.
    fn has_frame(&self) -> bool {
        self.consumer.head().is_some_and(|position| {
            let slot = slot_of(position, self.config.slots.into()) as usize;
            !matches!(self.consumer.is_there(self.ring.commit(slot)), Ok(false))
        })
    }

    /// Tells the peer of everything published, as [`flush`](Self::flush); it starts at the next
    /// [`submit`](Self::submit).
    pub fn gather(&mut self) {
        self.post_again();
        self.flushing = true;
        self.ring_doorbells();
        self.hand_over();
    }

    /// Starts what was posted.
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.unsubmitted) {
            self.endpoint.submit();
        }
    }

    fn hand_over(&mut self) {
        if self.unsubmitted {
            self.endpoint.gather();
        }
    }
}
