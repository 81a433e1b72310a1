//! Operations behind a read whose memory has not come.
//!
//! They start in the order in which they were posted: a fence among them, and a notice that covers
//! the writes before it, need nothing else.

use std::collections::VecDeque;

use super::ShmEndpoint;
use crate::posted::PostedOperation;
use crate::shm::slabs::Reach;
use crate::shm::spsc::Entry;
use crate::{ErrorKind, OpId, PostError};

/// The operations that wait, the first of them for its memory.
#[derive(Default)]
pub(super) struct Held {
    ops: VecDeque<Posted>,
    /// Those that take a receive of the peer's.
    notices: u64,
}

struct Posted {
    id: OpId,
    signalled: bool,
    what: PostedOperation,
}

impl Held {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(super) fn notices(&self) -> u64 {
        self.notices
    }

    /// The operations that will never start.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = OpId> + use<> {
        self.notices = 0;
        std::mem::take(&mut self.ops).into_iter().map(|op| op.id)
    }
}

fn notifies(what: &PostedOperation) -> bool {
    matches!(what, PostedOperation::Write { notice: Some(_), .. } | PostedOperation::Send(_))
}

impl ShmEndpoint {
    /// Queues an operation behind those that wait.
    pub(super) fn hold(
        &mut self,
        what: PostedOperation,
        id: OpId,
        signalled: bool,
    ) -> Result<(), PostError> {
        self.held.notices += u64::from(notifies(&what));
        self.held.ops.push_back(Posted { id, signalled, what });
        Ok(())
    }

    /// Starts what does not have to wait any more.
    pub(super) fn run_held(&mut self) {
        while let Some(op) = self.held.ops.pop_front() {
            let Reach::Here(outcome) = self.run(&op.what) else {
                return self.held.ops.push_front(op);
            };
            self.held.notices -= u64::from(notifies(&op.what));
            self.settle(outcome, op.id, op.signalled);
        }
    }

    fn run(&mut self, what: &PostedOperation) -> Reach<Result<(), ErrorKind>> {
        Reach::Here(match what {
            PostedOperation::Write { src, dst, notice } => self.put(src.get(), dst).map(|()| {
                if let Some(imm) = notice {
                    self.push(Entry::Notice(*imm));
                }
            }),
            PostedOperation::Read { dst, src } => return self.fetch(dst, src),
            PostedOperation::Add { dst, add, old } => self.add(dst, *add, old),
            PostedOperation::Swap { dst, expect, swap, old } => self.swap(dst, *expect, *swap, old),
            PostedOperation::Send(bytes) => {
                self.say(bytes);
                Ok(())
            }
        })
    }
}
