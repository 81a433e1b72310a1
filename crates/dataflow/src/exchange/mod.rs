//! How rows of different workers meet at an operator.
//!
//! An exchange talks to the operator on its own worker as a [`Member`]. The merge exchange, which
//! ships partial states instead of rows, belongs to the aggregate and lies there.
//!
//! Rows of one input may each go to the leader of its key, or all to every worker (`broadcast`), in
//! turn to one after the other, or nowhere: see [`Lead`](crate::job::Lead).

mod acks;
mod broadcast;
mod buffer;
mod port;
mod shuffle;

use std::cell::RefCell;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::epoch::{END_OF_STREAM, Leader, Presence, Progress};

pub(crate) use self::acks::Acks;
pub(crate) use self::port::Port;
pub(crate) use self::shuffle::Shuffle;
use crate::error::DataflowError;
use crate::rows::wire::detach;
use crate::runtime::frame::{Colour, Envelope, Frame};
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

    /// Takes rows that belong here and lie in memory of their own, which others may share.
    ///
    /// # Errors
    /// When state cannot be updated.
    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError>;

    /// As [`Member::keep`], of rows that may lie in a ring's slot. Arrays that stay must not hold
    /// it, for then the sender would wait for it forever.
    ///
    /// # Errors
    /// As [`Member::keep`].
    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, detach(&batch))
    }

    /// Takes a payload of groups of another worker that are merged here.
    ///
    /// # Errors
    /// When it is malformed or state cannot be updated.
    fn take_groups(&self, from: u32, _: &Bytes) -> Result<(), DataflowError> {
        let detail = "this operator does not merge groups".into();
        Err(DataflowError::Frame { worker: from, detail })
    }

    /// A frame of an input of this operator, whose rows are of this worker's round.
    fn envelope(&self, port: u32, frame: Frame) -> Envelope {
        let colour = self.net().colour();
        Envelope { operator: self.tag(), port, colour, more: false, frame }
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

/// Where rows come from that an operator takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The input.
    pub(crate) port: usize,
    /// The worker that has read them, or made them.
    pub(crate) source: u32,
    /// Their round.
    pub(crate) colour: Colour,
    /// The slice of all of them, some of whose windows have fired; if nothing, each row belongs to
    /// the slice of its time.
    pub(crate) slice: Option<i64>,
}

impl Arrival {
    /// Of rows of this worker.
    pub(crate) fn local(member: &impl Member, port: usize) -> Self {
        Self { port, source: member.worker(), colour: member.net().colour(), slice: None }
    }
}

/// The progress of a worker that has not ended.
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
