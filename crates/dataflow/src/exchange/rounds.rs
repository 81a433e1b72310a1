//! The rounds of an operator on one worker: what came of the next round before this one was
//! complete, and who waits for that.
//!
//! [`RoundAlignment`] decides; here it meets frames and coroutines. Edges that have marked wait in
//! front of the operator, frames of the next round are kept apart.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use arrow::record_batch::RecordBatch;
use state::SaveRound;
use state::epoch::{Arrives, RoundAlignment, RoundBreach};

use super::{Arrival, GATHERER, Inputs, Member};
use crate::error::DataflowError;
use crate::rows::wire::{bytes_of, detach};
use crate::runtime::frame::Frame;
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;
use crate::runtime::rounds::{SavedOperator, WorkerRounds};
use crate::runtime::scheduler::Event;

/// The rounds of an operator on one worker.
pub(crate) struct InstanceRounds {
    tag: u32,
    worker: Rc<WorkerRounds>,
    alignment: RefCell<RoundAlignment>,
    /// The workers that its markers go to.
    to: Vec<u32>,
    /// Whether markers pass through it at once, since it keeps nothing and emits only what it is
    /// given.
    passing: bool,
    /// When the first marker of the round came, until the last has.
    marked_ns: Cell<Option<u64>>,
    /// A round has begun.
    began: Event,
    kept: RefCell<KeptApart>,
}

/// Rows and frames of the next round.
#[derive(Default)]
struct KeptApart {
    /// Broadcast rows that were relayed or handed over.
    rows: Vec<(Arrival, RecordBatch)>,
    /// Frames of the links, in the order in which they came from each worker.
    frames: VecDeque<(u32, Message)>,
    bytes: usize,
}

impl InstanceRounds {
    /// Of the operator `tag`, whose rows travel by these inputs; nothing if the job has no rounds.
    pub(super) fn of(tag: u32, place: &WorkerContext, inputs: &Inputs) -> Option<Self> {
        let worker = place.rounds.clone()?;
        let others = || (0..place.workers).filter(|&other| other != place.worker);
        let (senders, to): (Vec<u32>, Vec<u32>) = match inputs {
            _ if inputs.is_local() => (vec![], vec![]),
            _ if inputs.gathers() && place.worker == GATHERER => (others().collect(), vec![]),
            _ if inputs.gathers() => (vec![], vec![GATHERER]),
            _ => (others().collect(), others().collect()),
        };
        let sends = (0..place.workers).map(|other| senders.contains(&other));
        let alignment = RoundAlignment::new(worker.first(), worker.edges(tag), sends);
        Some(Self {
            tag,
            alignment: RefCell::new(alignment),
            to,
            passing: false,
            marked_ns: Cell::default(),
            began: Event::default(),
            kept: RefCell::default(),
            worker,
        })
    }

    /// The same of an operator that markers pass through, whatever comes by its inputs.
    pub(super) fn passing(self) -> Self {
        let (round, edges) = (self.worker.first(), self.worker.edges(self.tag));
        let alignment = RefCell::new(RoundAlignment::new(round, edges, []));
        Self { alignment, to: vec![], passing: true, ..self }
    }

    /// Whether markers pass through it at once.
    pub(crate) fn is_passing(&self) -> bool {
        self.passing
    }

    /// The rounds of its worker.
    pub(crate) fn of_worker(&self) -> &WorkerRounds {
        &self.worker
    }

    /// The operator saves a round by `save`.
    ///
    /// # Errors
    /// Those of `save`.
    pub(crate) fn save(
        &self,
        round: u64,
        save: impl FnOnce() -> Result<SavedOperator, DataflowError>,
    ) -> Result<(), DataflowError> {
        self.worker.save_operator(self.tag, round, save)
    }

    /// The round that is under way.
    pub(crate) fn round(&self) -> u64 {
        self.alignment.borrow().round()
    }

    /// The same, with the last one that is known to be in the chain.
    pub(crate) fn save_round(&self) -> SaveRound {
        SaveRound { round: self.round(), recorded: self.worker.recorded() }
    }

    /// The round, if it is complete and not saved yet.
    pub(crate) fn completed(&self) -> Option<u64> {
        let alignment = self.alignment.borrow();
        alignment.is_complete().then(|| alignment.round())
    }

    /// Whether an edge may pass.
    pub(crate) fn passes(&self, edge: u32) -> bool {
        self.alignment.borrow().may_pass(edge as usize)
    }

    /// The operator has ended: it keeps nothing more from this round on.
    pub(crate) fn end(&self) {
        self.worker.end(self.tag, self.round(), None);
    }

    /// Waits until an edge may pass.
    pub(crate) async fn when_passes(&self, edge: u32) {
        self.began.wait_for(|| self.passes(edge).then_some(())).await;
    }

    /// Whether the own marker is sent and the round is not over: nothing may be sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.alignment.borrow().is_marked()
    }

    /// Waits until something may be sent.
    pub(crate) async fn when_loud(&self) {
        self.began.wait_for(|| (!self.is_quiet()).then_some(())).await;
    }

    /// An edge marks a round. True if the marker has to be sent.
    ///
    /// # Errors
    /// When it marks another round.
    pub(crate) fn mark_edge(&self, edge: u32, round: u64) -> Result<bool, DataflowError> {
        let marked = self.alignment.borrow_mut().mark_edge(edge as usize, round);
        self.marks();
        marked.map_err(|breach| DataflowError::Expression(breach.to_string()))
    }

    /// An edge has ended. True if the marker has to be sent. Where it is the last, the end is on
    /// its way to the peers in place of a marker: what is sent behind it would be of the next
    /// round.
    pub(super) fn end_edge(&self, member: &impl Member, edge: u32) -> bool {
        let due = self.alignment.borrow_mut().end_edge(edge as usize);
        self.look(member);
        due
    }

    /// The workers that markers go to.
    pub(super) fn to(&self) -> &[u32] {
        &self.to
    }

    /// The own marker is on its way.
    pub(crate) fn sent(&self, member: &impl Member) {
        self.alignment.borrow_mut().sent();
        self.look(member);
    }

    /// A peer has marked a round; so does this worker.
    pub(super) fn mark_peer(
        &self,
        member: &impl Member,
        from: u32,
        round: u64,
        broadcast_before: u64,
        received: u64,
    ) -> Result<(), RoundBreach> {
        self.alignment.borrow_mut().mark_peer(from, round, broadcast_before, received)?;
        self.marks();
        self.worker.hear(round);
        self.look(member);
        Ok(())
    }

    /// So many broadcast frames of a peer are here.
    pub(super) fn received(&self, member: &impl Member, from: u32, received: u64) {
        self.alignment.borrow_mut().received(from, received);
        self.look(member);
    }

    /// A peer has ended.
    pub(super) fn end_peer(&self, member: &(impl Member + ?Sized), from: u32) {
        self.alignment.borrow_mut().end_peer(from);
        self.look(member);
    }

    /// A marker has come.
    fn marks(&self) {
        self.marked_ns.set(self.marked_ns.get().or_else(|| Some(self.worker.now_ns())));
    }

    /// Wakes who saves, if the round is complete. All instances have heard the same then, and have
    /// the same time.
    fn look(&self, member: &(impl Member + ?Sized)) {
        if self.alignment.borrow().is_complete() {
            if let Some(since) = self.marked_ns.take() {
                self.worker.count_aligned(self.tag, since);
            }
            let (leader, moved) = member.leader();
            leader.borrow_mut().settle();
            moved.notify();
        }
    }

    /// Gives a frame back that belongs to this round, or to none; keeps it if it belongs to the
    /// next.
    pub(super) fn take_or_keep(
        &self,
        member: &impl Member,
        from: u32,
        message: Message,
    ) -> Result<Option<Message>, DataflowError> {
        let frame = message.envelope.frame;
        if frame.source(from).is_none() || frame.is_broadcast() {
            return Ok(Some(message));
        }
        let alignment = self.alignment.borrow();
        let arrives = alignment.arrives(from, message.envelope.colour.number());
        match arrives.map_err(|breach| malformed(from, frame, breach))? {
            Arrives::Now => Ok(Some(message)),
            Arrives::Later => {
                self.worker.hear(alignment.round());
                drop(alignment);
                let load = message.load.detached();
                self.keep(member, |kept| {
                    kept.bytes += size_of::<(u32, Message)>() + load.size();
                    let envelope = message.envelope;
                    kept.frames.push_back((from, Message { envelope, load }));
                })?;
                Ok(None)
            }
        }
    }

    /// When rows are taken that were broadcast.
    ///
    /// # Errors
    /// When they are of a round that cannot be under way.
    fn relayed(&self, arrival: &Arrival) -> Result<Arrives, DataflowError> {
        let arrives = self.alignment.borrow().relayed(arrival.colour.number());
        arrives.map_err(|breach| {
            let detail = format!("broadcast rows are refused: {breach}");
            DataflowError::Frame { worker: arrival.source, detail }
        })
    }

    fn keep(
        &self,
        member: &impl Member,
        add: impl FnOnce(&mut KeptApart),
    ) -> Result<(), DataflowError> {
        add(&mut self.kept.borrow_mut());
        member.account()
    }

    /// Bytes of what is kept apart.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.borrow().bytes
    }
}

fn malformed(from: u32, frame: Frame, breach: RoundBreach) -> DataflowError {
    DataflowError::Frame { worker: from, detail: format!("{frame:?} is refused: {breach}") }
}

/// Gives rows that were broadcast to the operator, or keeps them for the next round. `lands` says
/// that they may lie in a ring's slot.
pub(super) fn deliver(
    member: &impl Member,
    arrival: Arrival,
    batch: RecordBatch,
    lands: bool,
) -> Result<(), DataflowError> {
    let later = match &member.instance().rounds {
        Some(rounds) if rounds.relayed(&arrival)? == Arrives::Later => Some(rounds),
        _ => None,
    };
    match later {
        Some(rounds) => {
            let batch = if lands { detach(&batch) } else { batch };
            rounds.worker.hear(rounds.round());
            rounds.keep(member, |kept| {
                kept.bytes += bytes_of(&batch);
                kept.rows.push((arrival, batch));
            })
        }
        None if lands => member.take(arrival, batch),
        None => member.keep(arrival, batch),
    }
}

/// The round is saved, and the operators behind have its marker: begins the next one with what was
/// kept apart, and lets the edges go on.
///
/// # Errors
/// As [`Connected::receive`](super::Connected::receive).
pub(crate) fn begin_next(member: &impl Member) -> Result<(), DataflowError> {
    let Some(rounds) = &member.instance().rounds else { return Ok(()) };
    rounds.alignment.borrow_mut().begin_next();
    member.instance().begin_round(rounds.round());
    let KeptApart { rows, frames, .. } = rounds.kept.take();
    for (arrival, batch) in rows {
        deliver(member, arrival, batch, false)?;
    }
    for (from, message) in frames {
        member.inputs().receive(member, from, message)?;
    }
    rounds.began.notify();
    rounds.look(member);
    member.account()
}
