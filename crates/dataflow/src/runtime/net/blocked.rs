//! Frames of a worker that wait for credit, or for room in a window.

use std::cell::RefCell;

use crate::runtime::metrics::Metrics;
use crate::runtime::scheduler::Event;

/// The frames that wait, one entry for each.
#[derive(Default)]
pub(super) struct BlockedFrames(RefCell<Vec<BlockedFrame>>);

/// A frame that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockedFrame {
    pub(super) operator: u32,
    /// It waits for room in a window, and not for credit.
    pub(super) for_window: bool,
}

impl BlockedFrames {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Waits for a value of `check`.
    pub(super) async fn wait<T>(
        &self,
        waiting: BlockedFrame,
        event: &Event,
        check: impl FnMut() -> Option<T>,
    ) -> T {
        self.0.borrow_mut().push(waiting);
        let found = event.wait_for(check).await;
        let mut all = self.0.borrow_mut();
        if let Some(at) = all.iter().position(|&other| other == waiting) {
            all.swap_remove(at);
        }
        found
    }

    /// Adds time in which the worker only waited to the counters of the operators of the frames.
    pub(super) fn add_backpressured(&self, metrics: &Metrics, ns: u64) {
        let all = self.0.borrow();
        for (at, operator) in (0..).zip(metrics.operators()) {
            let mut frames = all.iter().filter(|frame| frame.operator == at).peekable();
            if frames.peek().is_some() {
                Metrics::add(&operator.backpressured_ns, ns);
            }
            if frames.any(|frame| frame.for_window) {
                Metrics::add(&operator.window_wait_ns, ns);
            }
        }
    }
}
