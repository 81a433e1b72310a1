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
use crate::LinkError;

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
