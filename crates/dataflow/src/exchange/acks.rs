//! Acknowledgements that this worker has still to send: of epochs that are merged, and of the
//! return of workers that were idle.
//!
//! An acknowledgement is cumulative: one that waits for credit is replaced by the next, and nothing
//! piles up.

use std::cell::{Cell, RefCell};

use channel::Class;

use super::Member;
use crate::runtime::frame::Frame;
use crate::runtime::scheduler::Event;

/// Pending acknowledgements, by worker.
pub(super) struct Acks {
    pending: RefCell<Vec<Option<u64>>>,
    changed: Event,
    closed: Cell<bool>,
}

impl Acks {
    pub(super) fn new(workers: u32) -> Self {
        Self {
            pending: RefCell::new(vec![None; workers as usize]),
            changed: Event::default(),
            closed: Cell::new(false),
        }
    }

    /// Records that `to` awaits the acknowledgement of `number` and all before it.
    pub(super) fn add(&self, to: u32, number: u64) {
        if let Some(pending) = self.pending.borrow_mut().get_mut(to as usize) {
            *pending = Some(pending.map_or(number, |before| before.max(number)));
        }
        self.changed.notify();
    }

    /// No more acknowledgements will be added.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.changed.notify();
    }

    /// Sends the acknowledgements until closed and none is pending: `frame` makes one of a number
    /// and the watermark up to which windows have fired here.
    pub(super) async fn run(
        &self,
        member: &impl Member,
        port: u32,
        frame: impl Fn(u64, i64) -> Frame,
    ) {
        while let Some((to, number)) = self.next().await {
            let envelope = member.envelope(port, frame(number, member.least()));
            member.net().send(to, Class::Control, envelope).await;
        }
    }

    async fn next(&self) -> Option<(u32, u64)> {
        self.changed
            .wait_for(|| {
                let mut pending = self.pending.borrow_mut();
                let found = pending.iter().position(Option::is_some);
                match found {
                    Some(to) => Some(pending[to].take().map(|number| (to as u32, number))),
                    None if self.closed.get() => Some(None),
                    None => None,
                }
            })
            .await
    }
}
