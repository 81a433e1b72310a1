//! Links whose connection broke while the job runs. A worker gives such a link to its
//! [`Reconnector`], goes on with everything that does not need the link, and takes it back over
//! another connection.
//!
//! ```text
//!   Disconnected ─▶ Reconnector::reconnect(link) ··· another connection ··· Reconnected(link)
//!                                                                           Declined
//!   Lost: the other end has noticed it first                                Failed
//! ```
//!
//! What had been sent and not taken goes out again by itself ([`Link::renew`]), and no frame comes
//! twice, so nothing above the link notices. While a link is away nothing is sent to its worker, as
//! if there were no credit.
//!
//! A worker that has received the goodbye of the other end needs no link any more, and declines:
//! the other end then knows that its own goodbye arrived.

use std::task::Waker;

use channel::{Link, LinkError};

use crate::error::DataflowError;

/// Makes links whole again. Each worker has one of its own; no call blocks.
pub trait Reconnector: Send {
    /// Sets the waker of the worker, which is called when [`Reconnector::next_event`] has an event.
    /// Called once, before any other method.
    fn set_waker(&mut self, waker: Waker);

    /// Takes the link with another worker, which `cause` has ended.
    fn reconnect(&mut self, worker: u32, link: Link, cause: LinkError);

    /// The link with this worker has ended, and is not needed any more.
    fn decline(&mut self, worker: u32);

    /// What has happened since the last call, one thing at a time.
    fn next_event(&mut self) -> Option<LinkEvent>;
}

/// An event of a link.
pub enum LinkEvent {
    /// The other end has lost the connection, which may seem to stand at this one.
    Lost {
        /// The worker at the other end.
        worker: u32,
    },
    /// It goes on over another connection.
    Reconnected {
        /// The worker at the other end.
        worker: u32,
        /// The link.
        link: Box<Link>,
    },
    /// The other end needs nothing more of this one, and had said so.
    Declined {
        /// The worker at the other end.
        worker: u32,
    },
    /// No other connection could be made. The job fails.
    Failed(DataflowError),
}
