//! Exchanges: how the rows of an operator's inputs reach the workers that need them.
//!
//! | exchange | rows go | what travels |
//! |---|---|---|
//! | [`Forward`] | nowhere | nothing |
//! | [`Merge`] | nowhere: each worker folds its own | groups that others lead, by epochs |
//! | [`Merge`] of rows | nowhere before an epoch ends | rows that others lead, by epochs |
//! | [`Shuffle`] | to the leader of their key, by a function, or in turn | rows |
//! | `uppar` ([`uppar::partition`]) | as by shuffle, to half of the workers | rows |
//! | [`Broadcast`] | to every worker, or to some | rows, once to each process |
//! | [`Gather`] | to the worker that writes them | rows |
//!
//! The operator pushes rows and announces progress; its worker passes on the frames of others. On
//! the other side an exchange knows the operator as a [`Member`]. The exchanges of all inputs of an
//! operator are together in its [`Inputs`], which announce one progress for all.
//!
//! `docs/design/adding-an-exchange.md` says how to add one. What each of them promises is tested by
//! `conformance`.

mod acks;
mod broadcast;
mod buffer;
#[cfg(test)]
mod conformance;
mod connected;
mod edge;
mod forward;
mod gather;
mod inputs;
mod merge;
mod partition;
mod port;
mod rounds;
mod shuffle;
mod uppar;
mod window;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use state::epoch::{END_OF_STREAM, Leader, Presence, Progress};
use state::{Frequent, GroupColumns, Partitioner, RowsByOwner};

pub(crate) use self::broadcast::Broadcast;
pub(crate) use self::connected::{Connected, Task};
pub(crate) use self::edge::AnyExchange;
pub(crate) use self::forward::Forward;
pub(crate) use self::gather::{GATHERER, Gather};
pub(crate) use self::inputs::Inputs;
pub(crate) use self::merge::Merge;
pub(crate) use self::merge::deltas::{Delta, DeltaChunk, Deltas, part_of};
pub(crate) use self::partition::Partition;
pub(crate) use self::port::Port;
pub(crate) use self::rounds::{InstanceRounds, begin_next};
pub(crate) use self::shuffle::Shuffle;
pub(crate) use self::uppar::partition as uppar;
use crate::error::DataflowError;
use crate::rows::wire::detach;
use crate::runtime::frame::{Colour, Envelope, Frame};
use crate::runtime::net::{Message, Net};
use crate::runtime::place::WorkerContext;
use crate::runtime::scheduler::Event;

/// Moves the rows of one or several inputs between the instances of an operator.
///
/// Rows arrive once, before the progress that was announced behind them, and those of one sender
/// for the same workers in the order in which they were pushed. A push waits while the receivers
/// have no room.
pub(crate) trait RowExchange<M: Member> {
    /// Takes rows of this worker: keeps those that belong here and sends the others, at once or
    /// when more are together. Gives those that were set apart.
    ///
    /// # Errors
    /// When state cannot be updated, a partition cannot be computed, or a column cannot travel.
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError>;

    /// Sends whatever waits to be sent together.
    ///
    /// # Errors
    /// When a column cannot travel.
    async fn flush(&self, _: &M) -> Result<(), DataflowError> {
        Ok(())
    }

    /// This worker's progress is announced: what was pushed before is sent. With it the progress,
    /// if the exchange [carries](Self::carries_progress) that itself.
    ///
    /// # Errors
    /// As [`RowExchange::flush`].
    async fn announce(&self, member: &M, _: Progress) -> Result<(), DataflowError> {
        self.flush(member).await
    }

    /// Whether other workers learn of progress by the exchange itself, or need not know it. If not,
    /// the inputs announce it behind the rows.
    fn carries_progress(&self, _: &M) -> bool {
        false
    }

    /// This worker was idle and has rows again: announces the progress, and gives the watermark up
    /// to which windows have fired anywhere. Nothing if the exchange does not carry progress.
    ///
    /// # Errors
    /// As [`RowExchange::flush`].
    async fn resume(&self, _: &M, _: Progress) -> Result<Option<i64>, DataflowError> {
        Ok(None)
    }

    /// This worker will push nothing more; its end is announced.
    fn end(&self, _: &M) {}

    /// Takes a frame of another worker. Gives the worker of whose broadcast rows more have arrived.
    ///
    /// # Errors
    /// When it is malformed, or its rows cannot be taken.
    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError>;

    /// When rows that wait to be sent together have waited long enough.
    fn due(&self, _: &M) -> Option<u64> {
        None
    }

    /// Sends the rows that have waited long enough.
    ///
    /// # Errors
    /// As [`RowExchange::flush`].
    async fn send_due(&self, _: &M, _: u64) -> Result<(), DataflowError> {
        Ok(())
    }

    /// Acknowledges what other workers wait for, until they wait for nothing more.
    async fn acknowledge(&self, _: &M) {}

    /// Sends what waits for links, and passes on what others send, until all workers have ended.
    async fn relay(&self, _: &M) {}

    /// Takes rows that came without a frame. Gives the workers of whose rows more have arrived.
    ///
    /// # Errors
    /// When they are malformed or cannot be taken.
    fn poll(&self, _: &M) -> Result<Vec<u32>, DataflowError> {
        Ok(vec![])
    }

    /// Until when another worker must have taken something, if it has been waited for.
    ///
    /// # Errors
    /// [`DataflowError::Stalled`] when that time has come.
    fn deadline(&self, _: &M, _: u64) -> Result<Option<u64>, DataflowError> {
        Ok(None)
    }

    /// The operator has processed rows, and has room for others.
    fn consumed(&self, _: &M, _: Arrival) {}

    /// No other worker has rows any more.
    fn others_ended(&self, _: &M) {}

    /// The operator needs no more rows; reports that to the workers that send them.
    fn satisfied(&self, _: &M) {}

    /// Whether it was reported to this worker that no more of its rows are needed.
    fn is_satisfied(&self, _: &M) -> bool {
        false
    }

    /// Waits until no other worker needs anything that this one keeps.
    async fn settle(&self, _: &M) {}

    /// Frames for a worker that progress, which goes straight to it, may overtake.
    fn sent_before(&self, _: &M, _: u32) -> u64 {
        0
    }

    /// Such frames of a worker that have arrived.
    fn received_before(&self, _: &M, _: u32) -> u64 {
        u64::MAX
    }

    /// Whether this worker's rows travel, and not only what is made of them.
    fn sends_rows(&self, _: &M) -> bool {
        true
    }

    /// Whether enough was pushed to announce progress though no window ends.
    fn is_long(&self, _: &M) -> bool {
        false
    }

    /// Memory is short: sends what state holds for others, when they have taken what was sent
    /// before.
    ///
    /// # Errors
    /// As [`RowExchange::flush`].
    async fn relieve(&self, _: &M) -> Result<(), DataflowError> {
        Ok(())
    }

    /// Bytes of rows and groups that are kept for others, or staged.
    fn bytes(&self, _: &M) -> usize {
        0
    }

    /// Of some groups in this worker's state those that it leads.
    ///
    /// # Errors
    /// When a key cannot be hashed.
    fn led_here(&self, _: &M, groups: GroupColumns) -> Result<GroupColumns, DataflowError> {
        Ok(groups)
    }
}

/// Rows of this worker for an exchange.
pub(crate) struct Outgoing<'a> {
    /// The input.
    pub(crate) port: usize,
    /// The rows.
    pub(crate) batch: RecordBatch,
    /// The slice of all of them, if some of their windows have fired.
    pub(crate) slice: Option<i64>,
    /// Which keys are frequent, where rows of such keys are set apart.
    pub(crate) frequent: Option<&'a RefCell<Frequent>>,
}

impl Outgoing<'_> {
    /// Rows of an input, each in the slice of its time.
    pub(crate) fn of(port: usize, batch: RecordBatch) -> Self {
        Self { port, batch, slice: None, frequent: None }
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
    /// Bytes that they take of the window of their sender until [`Inputs::consumed`]; 0 if the
    /// input has no window.
    pub(crate) bytes: u64,
}

impl Arrival {
    /// Of rows of this worker.
    pub(crate) fn local(member: &impl Member, rows: &Outgoing<'_>) -> Self {
        let (source, colour) = (member.worker(), member.colour());
        Self { port: rows.port, source, colour, slice: rows.slice, bytes: 0 }
    }
}

/// The part of an operator on one worker that its exchanges use.
pub(crate) struct Instance {
    /// The operator's number in the job.
    pub(crate) tag: u32,
    /// This worker.
    pub(crate) worker: u32,
    /// The links.
    pub(crate) net: Rc<Net>,
    /// The exchanges of the operator's inputs.
    pub(crate) inputs: Inputs,
    /// This worker as a leader, which knows how far every worker's rows are known to be here.
    pub(crate) leader: RefCell<Leader>,
    /// The leader has advanced, or a round is complete.
    pub(crate) clock_moved: Event,
    /// The round of the rows that this worker pushes.
    round: Cell<u64>,
    /// The rounds, if the job has some.
    pub(crate) rounds: Option<InstanceRounds>,
}

impl Instance {
    /// An operator on the worker of `place`. Only rows of this worker come to it if it is `alone`.
    pub(crate) fn new(
        tag: u32,
        place: &WorkerContext,
        net: Rc<Net>,
        inputs: Inputs,
        alone: bool,
    ) -> Self {
        Self {
            tag,
            worker: place.worker,
            net,
            rounds: InstanceRounds::of(tag, place, &inputs),
            inputs,
            leader: RefCell::new(leader_of(tag, place, alone)),
            clock_moved: Event::default(),
            round: Cell::new(place.round),
        }
    }

    /// The same of an operator that markers pass through.
    pub(crate) fn passing(self) -> Self {
        Self { rounds: self.rounds.map(InstanceRounds::passing), ..self }
    }

    /// Rows that are pushed from now on belong to another round.
    pub(crate) fn begin_round(&self, round: u64) {
        self.round.set(round);
    }

    /// The round of the rows that this worker pushes.
    pub(crate) fn round(&self) -> u64 {
        self.round.get()
    }

    /// The round, if it is complete and not saved yet.
    pub(crate) fn completed(&self) -> Option<u64> {
        self.rounds.as_ref()?.completed()
    }

    /// Bytes of rows and groups that are kept apart for the next round.
    pub(crate) fn kept_apart(&self) -> usize {
        self.rounds.as_ref().map_or(0, InstanceRounds::bytes)
    }
}

/// An operator on one worker, as its exchanges see it.
pub(crate) trait Member {
    /// The part of it that they use.
    fn instance(&self) -> &Instance;

    /// Whether the operator pushes rows by a coroutine of its own, beside its node. Such rows are
    /// sent when there are enough, and at the end, but not because they have waited: a node would
    /// send them while others are pushed.
    fn pushes_beside(&self) -> bool {
        false
    }

    /// The operator's number in the job.
    fn tag(&self) -> u32 {
        self.instance().tag
    }

    /// This worker.
    fn worker(&self) -> u32 {
        self.instance().worker
    }

    /// The links.
    fn net(&self) -> &Net {
        &self.instance().net
    }

    /// The colour of the rows that this worker pushes.
    fn colour(&self) -> Colour {
        Colour::of_round(self.instance().round())
    }

    /// The exchanges of its inputs.
    fn inputs(&self) -> &Inputs {
        &self.instance().inputs
    }

    /// This worker as a leader, and the event that tells when that has advanced.
    fn leader(&self) -> (&RefCell<Leader>, &Event) {
        let Instance { leader, clock_moved, .. } = self.instance();
        (leader, clock_moved)
    }

    /// Whether something may become complete between two watermarks.
    fn crosses(&self, from: i64, to: i64) -> bool;

    /// Takes rows that belong here and lie in memory of their own, which others may share.
    ///
    /// # Errors
    /// When state cannot be updated.
    fn keep(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError>;

    /// As [`Member::keep`], of rows that have no others beside them in memory: they are kept where
    /// they are.
    ///
    /// # Errors
    /// As [`Member::keep`].
    fn adopt(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, batch)
    }

    /// As [`Member::keep`], of rows that may lie in a ring's slot. Arrays that stay must not hold
    /// it, for then the sender would wait for it forever.
    ///
    /// # Errors
    /// As [`Member::keep`].
    fn take(&self, arrival: Arrival, batch: RecordBatch) -> Result<(), DataflowError> {
        self.keep(arrival, detach(&batch))
    }

    /// Takes groups of another worker that are merged here, as a payload of [`Deltas`].
    ///
    /// # Errors
    /// When they are malformed or state cannot be updated.
    fn take_groups(&self, from: u32, _: &Bytes) -> Result<(), DataflowError> {
        let detail = "groups for an operator that merges none".into();
        Err(DataflowError::Frame { worker: from, detail })
    }

    /// Takes the groups of other leaders out of the state, slice by slice, and gives them with the
    /// start of the slice. Tells how many groups stay.
    ///
    /// # Errors
    /// When state fails, or what they are given to.
    fn take_remote_groups(
        &self,
        _: &mut Partitioner,
        _: &mut dyn FnMut(i64, &RowsByOwner, &GroupColumns) -> Result<(), DataflowError>,
    ) -> Result<usize, DataflowError> {
        Ok(0)
    }

    /// Groups in the state, at most.
    fn groups_max(&self) -> u64 {
        0
    }

    /// Bytes that the operator may have.
    fn share(&self) -> usize {
        usize::MAX
    }

    /// Called when it is reported to this worker that no more of its rows are needed.
    fn satisfied(&self) {}

    /// Publishes the bytes that the operator has, and holds them to their bound.
    ///
    /// # Errors
    /// When they exceed it.
    fn account(&self) -> Result<(), DataflowError> {
        Ok(())
    }

    /// A worker has announced its progress.
    fn move_clock(&self, worker: u32, progress: Progress) {
        let (leader, moved) = self.leader();
        if leader.borrow_mut().advance(worker, progress) {
            moved.notify();
        }
        if progress.presence == Presence::Ended {
            self.note_end(worker);
        }
    }

    /// A worker has ended: it marks no more rounds.
    fn note_end(&self, worker: u32) {
        if let Some(rounds) = &self.instance().rounds {
            rounds.end_peer(self, worker);
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

    /// Whether a worker has ended its stream.
    fn has_ended(&self, worker: u32) -> bool {
        let leader = self.leader().0.borrow();
        leader.clock().of(worker).is_some_and(|of| of.presence == Presence::Ended)
    }

    /// Whether every other worker has ended its stream.
    fn others_have_ended(&self) -> bool {
        self.net().peers().all(|worker| self.has_ended(worker))
    }

    /// A frame of an input of this operator, whose rows are of this worker's round.
    fn envelope(&self, port: u32, frame: Frame) -> Envelope {
        let colour = self.colour();
        Envelope { operator: self.tag(), port, colour, more: false, frame }
    }
}

/// The progress of a worker that has not ended.
pub(crate) fn progress_of(watermark: i64, idle: bool) -> Progress {
    if idle { Progress::idle(watermark) } else { Progress::active(watermark) }
}

/// A worker as a leader: of the rows of all, or of none but its own. In a job that goes on, windows
/// have fired up to where they had.
fn leader_of(tag: u32, place: &WorkerContext, alone: bool) -> Leader {
    let mut leader = Leader::beginning_at(place.workers, place.watermark(tag));
    for other in (0..place.workers).filter(|&worker| alone && worker != place.worker) {
        leader.advance(other, Progress::ended(END_OF_STREAM));
    }
    leader
}

/// A frame that an exchange does not take.
fn refused(from: u32, frame: Frame) -> DataflowError {
    let detail = format!("{frame:?} does not belong to the exchange");
    DataflowError::Frame { worker: from, detail }
}
