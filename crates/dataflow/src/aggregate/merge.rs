//! The merge exchange: late merge by epochs (S3, S9, S11).
//!
//! Every worker is a *helper*: it folds its own rows into states of all keys. An epoch ends after
//! so many bytes of input, or early when a window may fire; then the groups of others are taken out
//! by their *leader* and sent, the helper's watermark behind them, and start from zero. A leader
//! merges the deltas of each helper in the order of epochs, each once, into the state that holds
//! its own rows, which go on being folded.
//!
//! A helper keeps a delta until its leader has acknowledged it, not merely until it was sent: the
//! paper's order loses an epoch when the leader dies in between. So many epochs may be
//! unacknowledged; then the helper waits. A leader merges an epoch when all of it is there, never a
//! part. The decisions are those of [`state::epoch`], which is explored exhaustively; here they
//! meet rows and links. Nothing is made durable yet, so that an epoch counts as committed as soon
//! as it is merged.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use channel::{Class, Header};
use state::Partitioner;
use state::epoch::{Helper, Presence, Progress, Tag, Verdict};

use super::Grouping;
use super::delta::{Landed, Packer};
use crate::error::DataflowError;
use crate::exchange::{Answers, Member, said};
use crate::frame::{EPOCH_END, Kind, flags_of, said_in};
use crate::job::Aggregation;
use crate::metrics::Metrics;
use crate::net::Message;
use crate::scheduler::Event;
use crate::wire::{Decoder, Encoder};
use crate::worker::Place;

/// Workers do not come back from death yet: each lives its first life.
const INCARNATION: u64 = 0;

/// An epoch that brings together fewer rows of a group than this goes on beyond its bytes: with
/// many keys, 64 MiB of input have hardly two rows of any (a factor of 1.04 at 10 million uniform
/// keys), and shipping them costs more than it saves.
const ROWS_PER_GROUP_MIN: u64 = 16;
/// How many times its bytes an epoch goes on at most.
const STRETCH_MAX: u64 = 16;

/// Bytes of a payload's place in a list; payloads may be empty.
const KEPT_BYTES: usize = size_of::<Bytes>();

/// The helper's and the leader's side of a merge on one worker.
pub(super) struct Merge {
    partitioner: RefCell<Partitioner>,
    keys: usize,
    /// This worker as the helper of each leader; its own place stays unused.
    helpers: RefCell<Vec<Helper<Bytes>>>,
    /// Bytes of the chunks in `helpers`.
    kept_bytes: Cell<usize>,
    acknowledged: Event,
    staged: RefCell<Staged>,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    schema: SchemaRef,
    answers: Answers,
    announced: Cell<(i64, bool)>,
    /// Bytes of input after which an epoch ends, and the count of bytes at which this one began.
    epoch_bytes: u64,
    epoch_began: Cell<u64>,
    /// The count of rows at which this epoch began.
    epoch_began_rows: Cell<u64>,
    /// How far windows have fired at any leader, as far as told.
    reached: Cell<i64>,
}

/// By helper the chunks of an epoch that is not complete.
struct Staged {
    chunks: Vec<Vec<Bytes>>,
    /// Bytes of all of them, their places in the lists included.
    bytes: usize,
}

impl Staged {
    fn new(helpers: u32) -> Self {
        Self { chunks: vec![Vec::new(); helpers as usize], bytes: 0 }
    }

    fn push(&mut self, helper: u32, payload: Bytes) {
        self.bytes += KEPT_BYTES + payload.len();
        self.chunks[helper as usize].push(payload);
    }

    fn take(&mut self, helper: u32) -> Vec<Bytes> {
        let chunks = std::mem::take(&mut self.chunks[helper as usize]);
        self.bytes -= chunks.iter().map(|chunk| KEPT_BYTES + chunk.len()).sum::<usize>();
        chunks
    }
}

impl Merge {
    pub(super) fn new(spec: &Aggregation, place: &Place, partitioner: Partitioner) -> Self {
        let types = spec.group_by.keys.iter().cloned().chain(spec.group_by.state_types());
        let field = |(i, data_type): (usize, DataType)| Field::new(format!("{i}"), data_type, true);
        let schema = Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()));
        let kept_max = place.settings.epochs_kept_max;
        let helper = |_| Helper::new(place.worker, INCARNATION, 0, kept_max);
        Self {
            partitioner: RefCell::new(partitioner),
            keys: spec.group_by.keys.len(),
            helpers: RefCell::new((0..place.workers).map(helper).collect()),
            kept_bytes: Cell::new(0),
            acknowledged: Event::default(),
            staged: RefCell::new(Staged::new(place.workers)),
            encoder: RefCell::new(Encoder::new(&schema)),
            decoder: Decoder::new(&schema),
            schema,
            answers: Answers::new(place.workers),
            announced: Cell::new((i64::MIN, false)),
            epoch_bytes: place.settings.epoch_bytes,
            epoch_began: Cell::new(0),
            epoch_began_rows: Cell::new(0),
            reached: Cell::new(i64::MIN),
        }
    }

    pub(super) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Bytes of deltas that are kept for others, and of theirs that are staged.
    pub(super) fn bytes(&self) -> usize {
        self.kept_bytes.get() + self.staged.borrow().bytes
    }

    /// Ends the epoch if it is long enough, or if a window may fire.
    pub(super) async fn progress(
        &self,
        grouping: &Grouping,
        watermark: i64,
        idle: bool,
    ) -> Result<(), DataflowError> {
        let (announced, was_idle) = self.announced.get();
        if self.is_long(grouping) || idle != was_idle || grouping.crosses(announced, watermark) {
            let progress = said(watermark, idle);
            self.close_epoch(grouping, progress).await?;
            grouping.move_clock(grouping.worker, progress);
        }
        Ok(())
    }

    /// Ends an epoch that says that this worker is back, and waits until every leader has merged
    /// it.
    pub(super) async fn resume(&self, grouping: &Grouping) -> Result<i64, DataflowError> {
        let progress = Progress::active(self.announced.get().0);
        self.close_epoch(grouping, progress).await?;
        grouping.move_clock(grouping.worker, progress);
        self.settle(grouping).await;
        Ok(self.reached.get().max(grouping.least()))
    }

    /// Ends the last epoch.
    pub(super) async fn end(
        &self,
        grouping: &Grouping,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.close_epoch(grouping, Progress::ended(watermark)).await
    }

    /// Waits until every delta of this worker is acknowledged.
    pub(super) async fn settle(&self, grouping: &Grouping) {
        for leader in grouping.net.peers() {
            let settled = || self.helpers.borrow()[leader as usize].kept() == 0;
            self.acknowledged.wait_for(|| settled().then_some(())).await;
        }
    }

    pub(super) fn receive(
        &self,
        grouping: &Grouping,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
        let header = message.header;
        if message.kind == Kind::Ack {
            self.reached.set(self.reached.get().max(header.watermark));
            return self.acknowledge(from, header.epoch).map_err(malformed);
        }
        let last = header.flags & EPOCH_END != 0;
        let tag = Tag {
            helper: from,
            incarnation: INCARNATION,
            epoch: header.epoch,
            chunk: header.aux as u32,
            last,
            progress: said_in(&header),
        };
        let verdict = grouping.leader.borrow_mut().accept(&tag);
        match verdict {
            Verdict::Stage => {
                // What has to wait must not hold the ring's slots.
                let payload = Bytes::copy_from_slice(&message.payload);
                self.staged.borrow_mut().push(from, payload);
                grouping.account()?;
            }
            Verdict::Complete => {
                let staged = self.staged.borrow_mut().take(from);
                // The last one is merged from where it landed.
                for payload in staged.iter().chain([&message.payload]) {
                    self.merge(grouping, from, payload)?;
                }
                self.commit(grouping, from);
            }
            Verdict::Refuse(refusal) => {
                let place = format!("chunk {} of epoch {}", tag.chunk, tag.epoch);
                return Err(malformed(format!("{place} is refused: {refusal:?}")));
            }
        }
        Ok(())
    }

    /// An epoch of a helper is merged, and with it its clock has moved: tell it.
    fn commit(&self, grouping: &Grouping, from: u32) {
        let mut leader = grouping.leader.borrow_mut();
        let cut = leader.cut();
        leader.committed(cut);
        self.answers.owe(from, leader.acknowledged(from).unwrap_or(0));
        drop(leader);
        grouping.clock_moved.notify();
        if grouping.others_have_ended() {
            self.answers.close();
        }
    }

    fn acknowledge(&self, leader: u32, epoch: u64) -> Result<(), String> {
        let mut helpers = self.helpers.borrow_mut();
        let helper = &mut helpers[leader as usize];
        let before = helper.kept();
        helper.acknowledge(epoch).map_err(|e| e.to_string())?;
        if helper.kept() < before {
            let kept = helpers.iter().flat_map(Helper::chunks);
            self.kept_bytes.set(kept.map(Bytes::len).sum());
            self.acknowledged.notify();
        }
        Ok(())
    }

    fn merge(&self, grouping: &Grouping, from: u32, payload: &Bytes) -> Result<(), DataflowError> {
        if payload.is_empty() {
            return Ok(());
        }
        let landed = Landed::read(&self.decoder, self.keys, payload)
            .map_err(|detail| DataflowError::Frame { worker: from, detail })?
            .map(|groups| grouping.owned(groups));
        for (start, groups) in landed.runs() {
            grouping.merge_columns(start, &groups.keys, &groups.states)?;
        }
        Ok(())
    }

    /// Ships this epoch's delta with the watermark.
    async fn close_epoch(
        &self,
        grouping: &Grouping,
        progress: Progress,
    ) -> Result<(), DataflowError> {
        // Lasts until it is dropped; nothing is inside it.
        let _epoch = tracing::info_span!("epoch", watermark = progress.watermark);
        for leader in grouping.net.peers() {
            let may_close = || self.helpers.borrow()[leader as usize].may_close();
            self.acknowledged.wait_for(|| may_close().then_some(())).await;
        }
        self.announced.set((progress.watermark, progress.presence == Presence::Idle));
        self.epoch_began.set(grouping.metrics.bytes_in.load(Ordering::Relaxed));
        self.epoch_began_rows.set(grouping.metrics.rows_in.load(Ordering::Relaxed));
        Metrics::add(&grouping.metrics.epochs, 1);
        let mut delta = self.cut(grouping)?;
        for leader in grouping.net.peers() {
            let chunks = std::mem::take(&mut delta[leader as usize]);
            let bytes: usize = chunks.iter().map(Bytes::len).sum();
            self.kept_bytes.set(self.kept_bytes.get() + bytes);
            let closed = self.helpers.borrow_mut()[leader as usize].close(progress, chunks);
            debug_assert!(closed.is_ok(), "may_close was awaited");
        }
        for leader in grouping.net.peers() {
            while let Some((tag, chunk)) = self.next_chunk(leader) {
                self.send(grouping, leader, tag, &chunk).await;
                self.helpers.borrow_mut()[leader as usize].sent();
            }
        }
        Ok(())
    }

    fn next_chunk(&self, leader: u32) -> Option<(Tag, Bytes)> {
        let helpers = self.helpers.borrow();
        helpers[leader as usize].to_send().map(|(tag, chunk)| (tag, chunk.clone()))
    }

    async fn send(&self, grouping: &Grouping, leader: u32, tag: Tag, payload: &[u8]) {
        let header = Header {
            kind: Kind::Delta as u8,
            flags: flags_of(tag.progress) | if tag.last { EPOCH_END } else { 0 },
            tag: grouping.tag,
            epoch: tag.epoch,
            watermark: tag.progress.watermark,
            aux: u64::from(tag.chunk),
            ..Header::default()
        };
        match payload.is_empty() {
            true => grouping.net.send(leader, Class::Data, header, |_| 0).await,
            false => grouping.net.send_payload(leader, header, payload).await,
        }
    }

    /// Takes the groups that others lead out of the state, by leader.
    fn cut(&self, grouping: &Grouping) -> Result<Vec<Vec<Bytes>>, DataflowError> {
        let packer = |leader: u32| {
            let own = leader == grouping.worker;
            let room = if own { 0 } else { grouping.net.payload_max(leader) };
            Packer::new(&self.encoder, &self.schema, room)
        };
        let mut packers: Vec<_> = (0..grouping.net.size() as u32).map(packer).collect();
        let mut partitioner = self.partitioner.borrow_mut();
        grouping.bounded().slices().give_away(
            grouping.worker,
            &mut partitioner,
            |start, split, groups| {
                for leader in grouping.net.peers().filter(|&leader| split.rows(leader) > 0) {
                    packers[leader as usize].add(start, split.select(leader, groups)?)?;
                }
                Ok::<_, DataflowError>(())
            },
        )?;
        packers.into_iter().map(Packer::finish).collect()
    }

    /// Whether the epoch has read its bytes, and has combined them or given it up.
    fn is_long(&self, grouping: &Grouping) -> bool {
        let bytes = self.bytes_read(grouping);
        if bytes < self.epoch_bytes {
            return false;
        }
        let rows = grouping.metrics.rows_in.load(Ordering::Relaxed) - self.epoch_began_rows.get();
        let groups = grouping.merged.borrow_mut().slices().groups_at_most() as u64;
        rows >= ROWS_PER_GROUP_MIN.saturating_mul(groups)
            || bytes >= STRETCH_MAX.saturating_mul(self.epoch_bytes)
    }

    fn bytes_read(&self, grouping: &Grouping) -> u64 {
        grouping.metrics.bytes_in.load(Ordering::Relaxed) - self.epoch_began.get()
    }
}
