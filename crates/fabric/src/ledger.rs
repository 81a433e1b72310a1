//! Operations from post to `Local`, retired in the order in which they were posted.

use std::collections::VecDeque;

use crate::{Completion, ErrorKind, OpId};

/// Position of an operation among all of its endpoint.
pub(crate) type Seq = u64;

/// What was posted and not yet retired.
#[derive(Default)]
pub(crate) struct Ledger {
    ops: VecDeque<Posted>,
    /// Position of the first of `ops`.
    first: Seq,
}

struct Posted {
    id: OpId,
    signalled: bool,
    done: bool,
}

impl Ledger {
    /// Operations that take a place in the queue.
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Books a new operation.
    pub(crate) fn post(&mut self, id: OpId, signalled: bool) -> Seq {
        self.ops.push_back(Posted { id, signalled, done: false });
        self.first + self.ops.len() as u64 - 1
    }

    /// The operation's source or destination is the caller's again.
    pub(crate) fn done(&mut self, seq: Seq) {
        if let Some(op) = seq.checked_sub(self.first).and_then(|i| self.ops.get_mut(i as usize)) {
            op.done = true;
        }
    }

    /// The caller's name of an operation that is not retired.
    pub(crate) fn id(&self, seq: Seq) -> Option<OpId> {
        Some(self.ops.get(seq.checked_sub(self.first)? as usize)?.id)
    }

    /// True when [`Ledger::retire`] would report something.
    pub(crate) fn has_news(&self) -> bool {
        self.ops.iter().take_while(|op| op.done).any(|op| op.signalled)
    }

    /// Reports what is done up to the first operation that is not.
    pub(crate) fn retire(&mut self, out: &mut Vec<Completion>) {
        while let Some(op) = self.ops.front().filter(|op| op.done) {
            if op.signalled {
                out.push(Completion::Local { id: op.id });
            }
            self.ops.pop_front();
            self.first += 1;
        }
    }

    /// Reports all that is outstanding as flushed, except for the operation that is to blame and
    /// what is done but was not to be signalled.
    pub(crate) fn flush(&mut self, mut blamed: Option<OpId>, out: &mut Vec<Completion>) {
        self.first += self.ops.len() as u64;
        for op in self.ops.drain(..) {
            if blamed == Some(op.id) {
                blamed = None;
            } else if op.signalled || !op.done {
                out.push(Completion::Error { id: Some(op.id), kind: ErrorKind::Flushed });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_retire_in_order_and_only_signalled_ones_are_reported() {
        let (mut ledger, mut out) = (Ledger::default(), Vec::new());
        let read = ledger.post(OpId(1), true);
        let plain = ledger.post(OpId(2), false);
        let write = ledger.post(OpId(3), true);
        ledger.done(plain);
        ledger.done(write);
        ledger.retire(&mut out);
        assert_eq!((out.len(), ledger.len(), ledger.has_news()), (0, 3, false));
        ledger.done(read);
        assert!(ledger.has_news());
        ledger.retire(&mut out);
        let local = |id| Completion::Local { id: OpId(id) };
        assert_eq!((out, ledger.len()), (vec![local(1), local(3)], 0));
        assert_eq!(ledger.post(OpId(4), true), 3);
    }

    #[test]
    fn a_failure_flushes_each_outstanding_operation_once() {
        let (mut ledger, mut out) = (Ledger::default(), Vec::new());
        let done = ledger.post(OpId(1), false);
        ledger.post(OpId(2), false);
        ledger.post(OpId(3), true);
        ledger.post(OpId(3), true);
        ledger.done(done);
        ledger.flush(Some(OpId(3)), &mut out);
        let flushed = |id| Completion::Error { id: Some(OpId(id)), kind: ErrorKind::Flushed };
        assert_eq!((out, ledger.len()), (vec![flushed(2), flushed(3)], 0));
    }
}
