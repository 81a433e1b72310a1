//! Answers that this worker owes to others: acknowledged epochs, and for who was idle how far
//! windows have fired.
//!
//! An answer is cumulative, so that one that waits for credit is overtaken by the next and nothing
//! piles up.

use std::cell::{Cell, RefCell};

use channel::{Class, Header};

use super::Member;
use crate::runtime::frame::Kind;
use crate::runtime::scheduler::Event;

/// What is owed, by worker.
pub(crate) struct Answers {
    owed: RefCell<Vec<Option<u64>>>,
    changed: Event,
    closed: Cell<bool>,
}

impl Answers {
    pub(crate) fn new(workers: u32) -> Self {
        Self {
            owed: RefCell::new(vec![None; workers as usize]),
            changed: Event::default(),
            closed: Cell::new(false),
        }
    }

    /// Owes a worker the answer that `epoch` and all before it are merged.
    pub(crate) fn owe(&self, to: u32, epoch: u64) {
        if let Some(owed) = self.owed.borrow_mut().get_mut(to as usize) {
            *owed = Some(owed.map_or(epoch, |before| before.max(epoch)));
        }
        self.changed.notify();
    }

    /// Nothing more will be owed.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.changed.notify();
    }

    /// Sends what is owed, until closed and nothing is owed any more.
    pub(crate) async fn run(&self, member: &impl Member) {
        while let Some((to, epoch)) = self.next().await {
            let header = Header {
                kind: Kind::Ack as u8,
                tag: member.tag(),
                epoch,
                watermark: member.least(),
                ..Header::default()
            };
            member.net().send(to, Class::Control, header).await;
        }
    }

    async fn next(&self) -> Option<(u32, u64)> {
        self.changed
            .wait_for(|| {
                let mut owed = self.owed.borrow_mut();
                let found = owed.iter().position(Option::is_some);
                match found {
                    Some(to) => Some(owed[to].take().map(|epoch| (to as u32, epoch))),
                    None if self.closed.get() => Some(None),
                    None => None,
                }
            })
            .await
    }
}
