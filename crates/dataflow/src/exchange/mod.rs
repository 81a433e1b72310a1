//! How rows of different workers meet at an operator.
//!
//! An exchange talks to the operator on its own worker as a [`Member`]. The merge exchange, which
//! ships partial states instead of rows, belongs to the aggregate and lies there.
//!
//! Rows of one input may each go to the leader of its key, or all to every worker (`cast`), in turn
//! to one after the other, or nowhere: see [`Lead`](crate::job::Lead).

mod answers;
mod cast;
mod lane;
mod shuffle;
mod waiting;

use std::cell::RefCell;

use arrow::record_batch::RecordBatch;
use state::epoch::{END_OF_STREAM, Leader, Presence, Progress};

pub(crate) use self::answers::Answers;
pub(crate) use self::lane::Lane;
pub(crate) use self::shuffle::Shuffle;
use crate::error::DataflowError;
use crate::rows::wire::detach;
use crate::runtime::net::Net;
use crate::runtime::place::Place;
use crate::runtime::scheduler::Event;

/// An operator on one worker, as its exchange sees it.
pub(crate) trait Member {
    /// The operator's number on the wire.
    fn tag(&self) -> u32;

    /// This worker.
    fn worker(&self) -> u32;

    /// The links.
    fn net(&self) -> &Net;

    /// This worker as a leader, which knows how far every worker's rows are known to be here; and
    /// who waits for that.
    fn leader(&self) -> (&RefCell<Leader>, &Event);

    /// Whether something may become complete between two watermarks.
    fn crosses(&self, from: i64, to: i64) -> bool;

    /// Takes rows that belong here and lie in memory of their own, which others may share. Those of
    /// `key` are not of their slice: some of their windows have fired.
    ///
    /// # Errors
    /// When state cannot be updated.
    fn keep(&self, input: usize, batch: RecordBatch, key: Option<i64>)
    -> Result<(), DataflowError>;

    /// As [`Member::keep`], of rows that may lie in a ring's slot. Arrays that stay must not hold
    /// it, for then the sender would wait for it forever.
    ///
    /// # Errors
    /// As [`Member::keep`].
    fn take(
        &self,
        input: usize,
        batch: RecordBatch,
        key: Option<i64>,
    ) -> Result<(), DataflowError> {
        self.keep(input, detach(&batch), key)
    }

    /// A worker has said how far it is.
    fn move_clock(&self, worker: u32, said: Progress) {
        let (leader, moved) = self.leader();
        if leader.borrow_mut().advance(worker, said) {
            moved.notify();
        }
    }

    /// The watermark that all workers have passed, and whether no worker has rows any more.
    fn time(&self) -> (i64, bool) {
        let leader = self.leader().0.borrow();
        (leader.clock().least(), leader.clock().ended())
    }

    /// The watermark that all workers have passed.
    fn least(&self) -> i64 {
        self.time().0
    }

    /// Whether every other worker has ended its stream.
    fn others_have_ended(&self) -> bool {
        let leader = self.leader().0.borrow();
        let has_ended = |said: Progress| said.presence == Presence::Ended;
        self.net().peers().all(|worker| leader.clock().of(worker).is_some_and(has_ended))
    }
}

/// What a worker says that has not ended.
pub(crate) fn said(watermark: i64, idle: bool) -> Progress {
    if idle { Progress::idle(watermark) } else { Progress::active(watermark) }
}

/// A worker as a leader: of the rows of all, or of none but its own.
pub(crate) fn leader_of(place: &Place, alone: bool) -> Leader {
    let mut leader = Leader::new(place.workers);
    for other in (0..place.workers).filter(|&worker| alone && worker != place.worker) {
        leader.advance(other, Progress::ended(END_OF_STREAM));
    }
    leader
}
