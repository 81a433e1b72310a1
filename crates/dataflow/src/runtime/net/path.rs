//! What joins a worker with one other.

use std::cell::RefCell;

use bytes::Bytes;
use channel::{Header, Link, LinkError};
use fabric::Armed;

use crate::runtime::local_exchange::{End, Load};

/// How frames go to another worker, and come from it.
pub(super) enum Path {
    /// Through rings, to one of another process.
    Link(Box<Joint>),
    /// By reference, to one of this process.
    Queue(End),
}

/// The place of a link, which is empty while the link is reconnected.
pub(super) struct Joint {
    pub(super) link: RefCell<Option<Link>>,
    payload_max: usize,
}

impl Path {
    pub(super) fn of(link: Link) -> Self {
        let payload_max = link.config().payload_max();
        Path::Link(Box::new(Joint { link: RefCell::new(Some(link)), payload_max }))
    }

    /// Makes progress, if there is something to do; what that posts starts at the next
    /// [`Path::submit`]. `None` if there is nothing to do, else whether anything happened.
    pub(super) fn poll(&self) -> Result<Option<bool>, LinkError> {
        match self {
            Path::Link(joint) => {
                let mut link = joint.link.borrow_mut();
                let Some(link) = &mut *link else { return Ok(None) };
                link.has_news().then(|| link.poll_gathered()).transpose()
            }
            Path::Queue(end) => end.has_news().then(|| end.poll()).transpose(),
        }
    }

    /// Tells the peer of what was sent, which starts at the next [`Path::submit`].
    pub(super) fn gather(&self) {
        self.with_link(Link::gather);
    }

    /// Starts what was posted.
    pub(super) fn submit(&self) {
        self.with_link(Link::submit);
    }

    /// Does something with the link, if it is here.
    fn with_link(&self, act: impl FnOnce(&mut Link)) {
        if let Path::Link(joint) = self
            && let Some(link) = &mut *joint.link.borrow_mut()
        {
            act(link);
        }
    }

    /// The next frame, if there is one. That a connection has ended is for [`Path::poll`] to say.
    pub(super) fn recv(&self) -> Result<Option<(Header, Load)>, LinkError> {
        let joint = match self {
            Path::Link(joint) => joint,
            Path::Queue(end) => return Ok(end.take()),
        };
        let Some(link) = &mut *joint.link.borrow_mut() else { return Ok(None) };
        match link.recv() {
            Ok(frame) => Ok(frame.map(|f| (f.header, Load::Slot(Bytes::from_owner(f.payload))))),
            Err(LinkError::Disconnected { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Prepares to sleep. Nothing wakes the owner of a link that is away but the end of his sleep.
    pub(super) fn arm(&self) -> Armed {
        match self {
            Path::Link(joint) => joint.link.borrow_mut().as_mut().map_or(Armed::Virtual, Link::arm),
            Path::Queue(end) if end.has_news() => Armed::Ready,
            Path::Queue(_) => Armed::Virtual,
        }
    }

    /// Takes the link away, if it is here.
    pub(super) fn take(&self) -> Option<Link> {
        match self {
            Path::Link(joint) => joint.link.take(),
            Path::Queue(_) => None,
        }
    }

    /// Brings the link back.
    pub(super) fn restore(&self, link: Link) {
        if let Path::Link(joint) = self {
            joint.link.replace(Some(link));
        }
    }

    /// Whether everything that was sent has left.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Path::Link(joint) => joint.link.borrow().as_ref().is_some_and(Link::is_drained),
            // The queue outlives its ends.
            Path::Queue(_) => true,
        }
    }

    /// Bytes of a frame's payload at most, where it is encoded.
    pub(super) fn payload_max(&self) -> usize {
        match self {
            Path::Link(joint) => joint.payload_max,
            Path::Queue(end) => end.ring().payload_max(),
        }
    }

    pub(super) fn close(&self) {
        match self {
            Path::Link(_) => self.with_link(Link::close),
            Path::Queue(end) => end.close(),
        }
    }
}
