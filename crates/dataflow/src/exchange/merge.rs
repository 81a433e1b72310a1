//! The merge exchange: late merge by epochs (S3, S7, S9, S11).
//!
//! Every worker is a *helper*: it folds its own rows into states of all keys, or keeps the rows
//! that others lead ([`rows`]). An epoch ends after so many bytes of input, by how well rows
//! combine in it ([`EpochLength`](state::epoch::EpochLength)), or early when a window may fire or
//! is to be looked at; then the groups or rows of others are taken out by their *leader* and sent,
//! the helper's watermark behind them, and the next epoch begins without them. A leader merges the
//! deltas of each helper in the order of epochs, each once, into the state that holds its own rows,
//! which go on being folded.
//!
//! A helper keeps a delta until its leader has acknowledged it, not merely until it was sent: the
//! paper's order loses an epoch when the leader dies in between. So many epochs may be
//! unacknowledged; then the helper waits. A leader merges an epoch when all of it is there, never a
//! part. The decisions are those of [`state::epoch`], which is explored exhaustively; here they
//! meet rows and links. Nothing is made durable yet, so that an epoch counts as committed as soon
//! as it is merged.

mod content;
pub(crate) mod deltas;
mod groups;
mod rows;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use channel::Class;
use fabric::Clock;
use state::epoch::{Ended, Helper, Presence, Progress, Tag, Verdict};
use state::{GroupColumns, Partitioner};

use self::content::{Chunk, Content, Cut, ReceivedChunk, Staged};
use self::groups::MergedGroups;
use self::rows::MergedRows;
use super::acks::Acks;
use super::{Member, Outgoing, Port, RowExchange, refused};
use crate::error::DataflowError;
use crate::runtime::frame::Frame;
use crate::runtime::metrics::Metrics;
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;
use crate::runtime::scheduler::Event;

/// The input that acknowledgements are of, which are of all inputs.
const PORT: u32 = 0;

/// Workers do not come back from death yet: each lives its first life.
const INCARNATION: u64 = 0;

/// How large the part of the budget is that others may not have taken when an epoch ends because
/// memory is short.
const KEPT_PART: usize = 8;

/// The helper's and the leader's side of a merge on one worker.
pub(crate) struct Merge {
    content: Content,
    /// This worker as the helper of each leader; its own place stays unused.
    helpers: RefCell<Vec<Helper<Chunk>>>,
    /// Bytes of the chunks in `helpers`.
    kept_bytes: Cell<usize>,
    acknowledged: Event,
    staged: RefCell<Staged>,
    acks: Acks,
    announced: Cell<Progress>,
    clock: Arc<dyn Clock>,
    workers: u64,
    /// The counts of bytes that the worker had read, and of rows that had come to the operator,
    /// when this epoch began.
    began: Cell<(u64, u64)>,
    /// How far windows have fired at any leader, as far as told.
    reached: Cell<i64>,
}

impl Merge {
    /// Groups travel, to the leaders that `partitioner` tells.
    pub(crate) fn new(partitioner: Partitioner, place: &WorkerContext) -> Self {
        let groups = MergedGroups::new(partitioner, place.settings.epoch);
        Self::of(Content::Groups(groups), place)
    }

    /// Rows of these inputs travel as they are.
    pub(crate) fn of_rows(ports: Vec<Port>, place: &WorkerContext) -> Self {
        Self::of(Content::Rows(MergedRows::new(ports, place)), place)
    }

    fn of(content: Content, place: &WorkerContext) -> Self {
        let kept_max = place.settings.epochs_kept_max;
        let helper = |_| Helper::new(place.worker, INCARNATION, 0, kept_max);
        Self {
            content,
            helpers: RefCell::new((0..place.workers).map(helper).collect()),
            kept_bytes: Cell::new(0),
            acknowledged: Event::default(),
            staged: RefCell::new(Staged::new(place.workers)),
            acks: Acks::new(place.workers),
            announced: Cell::new(Progress::active(i64::MIN)),
            clock: place.clock.clone(),
            workers: place.workers.into(),
            began: Cell::new((0, 0)),
            reached: Cell::new(i64::MIN),
        }
    }

    /// An epoch of a helper is merged, and with it its clock has moved: tell it.
    fn commit(&self, member: &impl Member, from: u32) {
        let (leader, clock_moved) = member.leader();
        let mut leader = leader.borrow_mut();
        let cut = leader.cut();
        leader.committed(cut);
        self.acks.add(from, leader.acknowledged(from).unwrap_or(0));
        drop(leader);
        clock_moved.notify();
        if member.has_ended(from) {
            member.note_end(from);
        }
        if member.others_have_ended() {
            self.acks.close();
        }
    }

    fn acknowledge_epoch(&self, leader: u32, epoch: u64) -> Result<(), String> {
        let mut helpers = self.helpers.borrow_mut();
        let helper = &mut helpers[leader as usize];
        let before = helper.uncommitted();
        helper.acknowledge(epoch).map_err(|e| e.to_string())?;
        if helper.uncommitted() < before {
            let kept = helpers.iter().flat_map(Helper::chunks);
            self.kept_bytes.set(kept.map(Chunk::kept_bytes).sum());
            self.acknowledged.notify();
        }
        Ok(())
    }

    /// Ships this epoch's delta with the watermark.
    async fn close_epoch(
        &self,
        member: &impl Member,
        progress: Progress,
    ) -> Result<(), DataflowError> {
        // Lasts until it is dropped; nothing is inside it.
        let _epoch = tracing::info_span!("epoch", watermark = progress.watermark);
        for leader in member.net().peers() {
            let may_close = || self.helpers.borrow()[leader as usize].may_close();
            self.acknowledged.wait_for(|| may_close().then_some(())).await;
        }
        self.announced.set(progress);
        let since = self.clock.now_ns();
        let (bytes, rows) = self.read(member);
        let began = self.began.get();
        self.began.set((began.0 + bytes, began.1 + rows));
        let Cut { mut chunks, given, stayed } = self.content.cut(member)?;
        let mut delta_bytes = 0;
        for leader in member.net().peers() {
            let chunks = std::mem::take(&mut chunks[leader as usize]);
            delta_bytes += chunks.iter().map(Chunk::size).sum::<usize>() as u64;
            let kept: usize = chunks.iter().map(Chunk::kept_bytes).sum();
            self.kept_bytes.set(self.kept_bytes.get() + kept);
            let closed = self.helpers.borrow_mut()[leader as usize].close(progress, chunks);
            debug_assert!(closed.is_ok(), "may_close was awaited");
        }
        for leader in member.net().peers() {
            while let Some((tag, chunk)) = self.next_chunk(leader) {
                self.send(member, leader, tag, &chunk).await?;
                self.helpers.borrow_mut()[leader as usize].sent();
            }
        }
        // Leaders wait for it, while this worker may have more to do in its turn.
        member.net().flush();
        let rows = rows - rows / self.workers;
        let took_ns = self.clock.now_ns().saturating_sub(since);
        let ended = Ended { bytes, rows, groups: given, stayed, took_ns };
        self.measure(member, &ended, delta_bytes);
        Ok(())
    }

    /// Learns from an epoch how long the next one should be.
    fn measure(&self, member: &impl Member, ended: &Ended, delta_bytes: u64) {
        self.content.ended(member, ended, delta_bytes);
        let metrics = member.net().metrics();
        Metrics::add(&metrics.epochs, 1);
        if let Some(operator) = metrics.operators().get(member.tag() as usize) {
            Metrics::add(&operator.epochs, 1);
            operator.epoch_bytes.store(self.content.length(member), Ordering::Relaxed);
        }
    }

    fn next_chunk(&self, leader: u32) -> Option<(Tag, Chunk)> {
        let helpers = self.helpers.borrow();
        helpers[leader as usize].to_send().map(|(tag, chunk)| (tag, chunk.clone()))
    }

    async fn send(
        &self,
        member: &impl Member,
        leader: u32,
        tag: Tag,
        chunk: &Chunk,
    ) -> Result<(), DataflowError> {
        let Tag { epoch, chunk: number, last, progress, .. } = tag;
        let frame = Frame::Delta { epoch, chunk: number, last, progress };
        let envelope = member.envelope(chunk.port, frame);
        if chunk.is_empty() {
            member.net().send(leader, Class::Data, envelope).await;
            return Ok(());
        }
        self.content.send(member, leader, envelope, chunk).await
    }

    /// Bytes that the worker has read in this epoch, and rows that have come to the operator.
    fn read(&self, member: &impl Member) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = member.net().metrics();
        let operator = metrics.operators().get(member.tag() as usize);
        let (bytes, rows) = self.began.get();
        let rows_in = operator.map_or(rows, |operator| load(&operator.rows_in));
        (load(&metrics.bytes_in) - bytes, rows_in - rows)
    }

    /// Takes a part of an epoch; with the last one the epoch is merged.
    fn take(&self, member: &impl Member, tag: &Tag, message: Message) -> Result<(), DataflowError> {
        let (from, Message { envelope, load }) = (tag.helper, message);
        let chunk = ReceivedChunk { port: envelope.port, load };
        let verdict = member.leader().0.borrow_mut().accept(tag);
        match verdict {
            Verdict::Stage => {
                self.staged.borrow_mut().push(from, chunk);
                member.account()
            }
            Verdict::Complete => {
                let staged = self.staged.borrow_mut().take(from);
                // The last one is merged from where it landed.
                for chunk in staged.into_iter().chain([chunk]) {
                    self.content.merge(member, from, &envelope, chunk)?;
                }
                self.commit(member, from);
                Ok(())
            }
            Verdict::Refuse(refusal) => {
                let Tag { chunk, epoch, .. } = tag;
                let detail = format!("chunk {chunk} of epoch {epoch} is refused: {refusal:?}");
                Err(DataflowError::Frame { worker: from, detail })
            }
        }
    }
}

impl<M: Member> RowExchange<M> for Merge {
    async fn push(
        &self,
        member: &M,
        rows: Outgoing<'_>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        self.content.push(member, rows)?;
        Ok(None)
    }

    /// Ends the epoch where it is, so that leaders have what it has brought. An idle worker has
    /// brought nothing.
    async fn flush(&self, member: &M) -> Result<(), DataflowError> {
        let announced = self.announced.get();
        match announced.presence {
            Presence::Active => self.close_epoch(member, announced).await,
            Presence::Idle | Presence::Ended => Ok(()),
        }
    }

    /// Ends the epoch.
    async fn announce(&self, member: &M, progress: Progress) -> Result<(), DataflowError> {
        self.close_epoch(member, progress).await
    }

    fn carries_progress(&self, _: &M) -> bool {
        true
    }

    /// Ends an epoch that says that this worker is back, and waits until every leader has merged
    /// it.
    async fn resume(&self, member: &M, progress: Progress) -> Result<Option<i64>, DataflowError> {
        self.close_epoch(member, progress).await?;
        member.move_clock(member.worker(), progress);
        self.settle(member).await;
        Ok(Some(self.reached.get().max(member.least())))
    }

    fn receive(
        &self,
        member: &M,
        from: u32,
        message: Message,
    ) -> Result<Option<u32>, DataflowError> {
        match message.envelope.frame {
            Frame::Delta { epoch, chunk, last, progress } => {
                let incarnation = INCARNATION;
                let tag = Tag { helper: from, incarnation, epoch, chunk, last, progress };
                self.take(member, &tag, message)?;
            }
            Frame::EpochAck { epoch, watermark } => {
                self.reached.set(self.reached.get().max(watermark));
                let malformed = |detail| DataflowError::Frame { worker: from, detail };
                self.acknowledge_epoch(from, epoch).map_err(malformed)?;
            }
            frame => return Err(refused(from, frame)),
        }
        Ok(None)
    }

    async fn acknowledge(&self, member: &M) {
        let ack = |epoch, watermark| Frame::EpochAck { epoch, watermark };
        self.acks.run(member, PORT, ack).await;
    }

    /// Waits until every delta of this worker is acknowledged.
    async fn settle(&self, member: &M) {
        for leader in member.net().peers() {
            let settled = || self.helpers.borrow()[leader as usize].uncommitted() == 0;
            self.acknowledged.wait_for(|| settled().then_some(())).await;
        }
    }

    fn sends_rows(&self, _: &M) -> bool {
        false
    }

    /// Whether the epoch has read its bytes, or keeps its rows.
    fn is_long(&self, member: &M) -> bool {
        let (bytes, rows) = self.read(member);
        self.content.is_long(member, bytes, rows)
    }

    /// Ends the epoch; first the others must have taken most of what has been given to them.
    async fn relieve(&self, member: &M) -> Result<(), DataflowError> {
        let part = member.share() / KEPT_PART;
        self.acknowledged.wait_for(|| (self.kept_bytes.get() <= part).then_some(())).await;
        self.flush(member).await
    }

    fn bytes(&self, _: &M) -> usize {
        self.content.bytes() + self.kept_bytes.get() + self.staged.borrow().bytes()
    }

    fn led_here(&self, member: &M, groups: GroupColumns) -> Result<GroupColumns, DataflowError> {
        self.content.led_here(member, groups)
    }
}
