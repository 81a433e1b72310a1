//! Links whose connection broke while the job runs: a worker gives such a link away, goes on with
//! all that does not need it, and takes it back over another connection.
//!
//! ```text
//!   Disconnected ─▶ Mender::mend(link) ··· other nodes, another connection ··· News::Mended(link)
//!                                                                              News::Declined
//!   News::Lost: the other end has seen it first                                News::Failed
//! ```
//!
//! What had been sent and not taken goes out again by itself ([`Link::renew`]), and no frame comes
//! twice, so that nothing above the link knows of it. While a link is away nothing is sent to its
//! worker, as if there were no credit.
//!
//! A worker that has heard the goodbye of the other end needs no link any more, and declines: the
//! other end then knows that its own goodbye was heard.

use channel::{Link, LinkError};

use crate::error::DataflowError;

/// Makes links whole again. Each worker has one of its own; no call blocks.
pub trait Mender: Send {
    /// Takes the link with another worker, which `cause` has ended.
    fn mend(&mut self, worker: u32, link: Link, cause: LinkError);

    /// The link with this worker has ended, and is not needed any more.
    fn decline(&mut self, worker: u32);

    /// What has happened since the last call, one thing at a time.
    fn news(&mut self) -> Option<News>;
}

/// What a worker is told of a link.
pub enum News {
    /// The other end has lost the connection, which may seem to stand at this one.
    Lost {
        /// The worker at the other end.
        worker: u32,
    },
    /// It goes on over another connection.
    Mended {
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
