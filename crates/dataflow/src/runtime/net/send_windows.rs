//! The windows within which a worker sends rows of an input.

use std::cell::RefCell;

use channel::protocol::{Breach, SendWindow};

/// The windows of an input, by worker.
pub(crate) struct SendWindows(RefCell<Vec<SendWindow>>);

impl SendWindows {
    pub(crate) fn new(windows: Vec<SendWindow>) -> Self {
        Self(RefCell::new(windows))
    }

    /// Counts a frame with a payload of this length, if there is room for it.
    pub(super) fn reserve(&self, to: u32, payload: usize) -> bool {
        self.0.borrow_mut()[to as usize].reserve(payload)
    }

    /// A worker reports the position up to which it has processed the frames sent to it.
    ///
    /// # Errors
    /// When they were not sent.
    pub(crate) fn consumed(&self, from: u32, position: u64) -> Result<(), Breach> {
        self.0.borrow_mut()[from as usize].consumed(position)
    }

    /// A worker takes all frames from now on.
    pub(crate) fn open(&self, to: u32) {
        self.0.borrow_mut()[to as usize].open();
    }

    /// The most bytes of a payload such that a window holds two.
    pub(super) fn payload_max(&self, to: u32) -> usize {
        self.0.borrow()[to as usize].payload_max()
    }
}
