//! The windows within which a worker sends rows of an input.

use std::cell::RefCell;

use channel::protocol::{Breach, SendWindow};

/// The windows of an input, by worker.
pub(crate) struct SendWindows(RefCell<Vec<SendWindow>>);

impl SendWindows {
    pub(crate) fn new(windows: Vec<SendWindow>) -> Self {
        Self(RefCell::new(windows))
    }

    /// Counts a frame with such a payload, if there is room for it.
    pub(super) fn reserve(&self, to: u32, payload: usize) -> bool {
        self.0.borrow_mut()[to as usize].reserve(payload)
    }

    /// A worker says how far it has processed what was sent to it.
    ///
    /// # Errors
    /// When that was not sent.
    pub(crate) fn consumed(&self, from: u32, position: u64) -> Result<(), Breach> {
        self.0.borrow_mut()[from as usize].consumed(position)
    }

    /// A worker takes whatever is sent to it.
    pub(crate) fn open(&self, to: u32) {
        self.0.borrow_mut()[to as usize].open();
    }

    /// Bytes of the largest payload of which a window holds several.
    pub(super) fn payload_max(&self, to: u32) -> usize {
        self.0.borrow()[to as usize].payload_max()
    }
}
