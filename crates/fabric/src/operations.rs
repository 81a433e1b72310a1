//! Operations from post to `Local`, retired in the order in which they were posted.

use std::collections::VecDeque;

use crate::{Completion, ErrorKind, OpId};

/// Position of an operation among all of its endpoint.
pub(crate) type Seq = u64;

/// Operations that were posted and not yet retired.
#[derive(Default)]
pub(crate) struct OperationTable {
    ops: VecDeque<Posted>,
    /// Position of the first of `ops`.
    first: Seq,
}

struct Posted {
    id: OpId,
    signalled: bool,
    done: bool,
}

impl OperationTable {
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

    /// True when [`OperationTable::retire`] would report something.
    pub(crate) fn has_events(&self) -> bool {
        self.ops.iter().take_while(|op| op.done).any(|op| op.signalled)
    }

    /// Reports completed operations up to the first one that is not.
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
        let (mut operations, mut out) = (OperationTable::default(), Vec::new());
        let read = operations.post(OpId(1), true);
        let plain = operations.post(OpId(2), false);
        let write = operations.post(OpId(3), true);
        operations.done(plain);
        operations.done(write);
        operations.retire(&mut out);
        assert_eq!((out.len(), operations.len(), operations.has_events()), (0, 3, false));
        operations.done(read);
        assert!(operations.has_events());
        operations.retire(&mut out);
        let local = |id| Completion::Local { id: OpId(id) };
        assert_eq!((out, operations.len()), (vec![local(1), local(3)], 0));
        assert_eq!(operations.post(OpId(4), true), 3);
    }

    #[test]
    fn a_failure_flushes_each_outstanding_operation_once() {
        let (mut operations, mut out) = (OperationTable::default(), Vec::new());
        let done = operations.post(OpId(1), false);
        operations.post(OpId(2), false);
        operations.post(OpId(3), true);
        operations.post(OpId(3), true);
        operations.done(done);
        operations.flush(Some(OpId(3)), &mut out);
        let flushed = |id| Completion::Error { id: Some(OpId(id)), kind: ErrorKind::Flushed };
        assert_eq!((out, operations.len()), (vec![flushed(2), flushed(3)], 0));
    }
}
