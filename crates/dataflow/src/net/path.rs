//! What joins a worker with one other.

use std::cell::RefCell;

use bytes::Bytes;
use channel::{Header, Link, LinkError};

use crate::handover::{End, Load};

/// How frames go to another worker, and come from it.
pub(super) enum Path {
    /// Through rings, to one of another process.
    Link(Box<RefCell<Link>>),
    /// By reference, to one of this process.
    Queue(End),
}

impl Path {
    /// Makes progress. True when anything happened.
    pub(super) fn poll(&self) -> Result<bool, LinkError> {
        match self {
            Path::Link(link) => link.borrow_mut().poll(),
            Path::Queue(end) => end.poll(),
        }
    }

    /// Starts what was sent.
    pub(super) fn flush(&self) {
        if let Path::Link(link) = self {
            link.borrow_mut().flush();
        }
    }

    /// The next frame, if there is one.
    pub(super) fn recv(&self) -> Result<Option<(Header, Load)>, LinkError> {
        match self {
            Path::Link(link) => {
                let frame = link.borrow_mut().recv()?;
                Ok(frame.map(|f| (f.header, Load::Slot(Bytes::from_owner(f.payload)))))
            }
            Path::Queue(end) => Ok(end.take()),
        }
    }

    /// Whether everything that was sent has left.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Path::Link(link) => link.borrow().is_drained(),
            // The queue outlives its ends.
            Path::Queue(_) => true,
        }
    }

    /// Bytes of a frame's payload at most, where it is encoded.
    pub(super) fn payload_max(&self) -> usize {
        match self {
            Path::Link(link) => link.borrow().config().payload_max(),
            Path::Queue(end) => end.ring().payload_max(),
        }
    }

    pub(super) fn close(&self) {
        match self {
            Path::Link(link) => link.borrow_mut().close(),
            Path::Queue(end) => end.close(),
        }
    }
}
