//! A link: the two rings of a pair of workers over one endpoint.
//!
//! Owns what [`crate::protocol`] only reasons about: memory, the endpoint and its completions. One
//! thread owns a link; payloads that it hands out may be dropped anywhere.
//!
//! Three publish modes, by the endpoint's capabilities:
//!
//! * **A** `InOrderPoll`: a plain write a frame; the consumer polls the commit word. A consumer
//!   that goes to sleep says so by a notice, and gets one notice when there is more.
//! * **B** `Notify`: plain writes, and one notice a flush that covers them all (G4).
//! * **C** `NotifyCounted`: each write carries its notice.
//!
//! Where the consumer reads ([`Transfer::Read`]), a flush is announced as in mode B, and nothing is
//! written but notices; see `fetch`. Payloads for many may stay in a region of their producer
//! ([`Transfer::Region`]); see `borrow`.
//!
//! Credit travels in the trailers of the reverse ring; where that is silent, in notices of a
//! quarter ring each. It is never written to a word of the producer's memory: two such writes may
//! be placed in the wrong order (G3), and the older one would then stay there. Queue entries and
//! the peer's receives are counted before a slot is reserved, with a reserve for control, so that
//! publishing cannot fail for want of them (G9).

mod borrow;
mod fetch;
mod notices;
mod receive;
mod renew;
mod statement;
mod stats;
mod submit;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use fabric::{
    Armed, Budget, Caps, Completion, Endpoint, ErrorKind, Fabric, Flags, OpId, PostError, Publish,
    RemoteKey, RemoteRange, Src,
};

use crate::descriptor::{Descriptor, PeerMemory};
use crate::memory::{LinkMemory, Payload, Ring, Staging};
use crate::protocol::{
    Breach, Class, Consumer, Lent, Notice, Producer, Stall, StatementNumber, commit_word, slot_of,
};
use crate::region::{RegionFrame, SharedRegion};
use crate::trailer::{Header, TRAILER_BYTES, Trailer};
use crate::{LinkError, RingConfig, Transfer, Tuning};
use borrow::AcceptedFrame;
use fetch::Fetches;

pub use stats::LinkStats;
pub use writer::SlotWriter;

/// Queue entries and receives of the peer that data frames leave free.
const RESERVED: u32 = 8;

/// What an operation is, in the low bits of its name; above them stands how many frames were posted
/// up to it, or the position of the frame that is read. A hint is a notice that the peer needs for
/// frames to come, and for none that was published: of credit, or of sleep.
const NOTICE: u64 = 0;
const FRAME: u64 = 1;
const READ: u64 = 2;
const HINT: u64 = 3;
const KIND_BITS: u32 = 2;

/// A duplex link between two workers. See the head of the crate.
pub struct Link {
    endpoint: Box<dyn Endpoint>,
    caps: Caps,
    /// How the peer learns of frames; by notices where it reads them.
    publish: Publish,
    config: RingConfig,
    incarnation: u32,
    tuning: Tuning,
    staging: Staging,
    /// The frame in each staging slot.
    staged: Vec<StagedFrame>,
    /// Frames are of this statement, and those of former ones are dropped.
    statement: StatementNumber,
    /// Frames before this one were published before the connection was renewed, and have to be
    /// posted again.
    again: u64,
    ring: Arc<Ring>,
    key: RemoteKey,
    peer: Option<RemoteKey>,
    /// The region that this end lends, and the frames of it that the peer may still read.
    region: Option<Arc<SharedRegion>>,
    lent: Lent<RegionFrame>,
    /// The peer's region.
    peer_region: Option<RemoteKey>,
    producer: Producer,
    consumer: Consumer,
    fetches: Fetches,
    inbox: VecDeque<AcceptedFrame>,
    completions: Vec<Completion>,
    /// A flush is wanted whose notice could not be posted yet (mode B).
    flushing: bool,
    /// The peer sleeps and has to be told of frames (mode A).
    peer_sleeps: bool,
    /// There are frames that the sleeping peer has not seen.
    wake_due: bool,
    /// We told the peer that we sleep and have seen all below this.
    slept_at: Option<u64>,
    /// Operations since the last signalled one, and how many there may be.
    unsignalled: u32,
    unsignalled_max: u32,
    /// Bytes of the largest frame that is handed over by value.
    inline_max: usize,
    /// Notices of frames that have not completed; each is signalled.
    notices_open: u32,
    /// What could be posted when something was refused for want of room.
    cramped: Option<Budget>,
    /// Whether something was posted since the last `submit`.
    unsubmitted: bool,
    recvs_used: u32,
    failure: Option<Failure>,
    stats: LinkStats,
}

/// What was said of a frame, and its bytes.
#[derive(Debug, Clone, Copy, Default)]
struct StagedFrame {
    header: Header,
    statement: StatementNumber,
    len: usize,
    /// Its bytes are a reference to a payload in the region.
    borrowed: bool,
}

/// A received frame.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// What the sender said of it.
    pub header: Header,
    /// Its bytes. While it lives the slot is not free.
    pub payload: Payload,
}

/// Why a link is of no more use; made into a [`LinkError`] each time it is asked for.
enum Failure {
    Closed,
    Disconnected(ErrorKind),
    Protocol(String),
}

impl From<Breach> for Failure {
    fn from(breach: Breach) -> Self {
        Failure::Protocol(breach.to_string())
    }
}

impl Link {
    /// Makes this end of a link: registers its memory and exports its ring. `incarnation` is the
    /// same at both ends and another one after each reconnect.
    ///
    /// # Errors
    /// [`LinkError::Config`] for dimensions out of bounds or too large for the endpoint,
    /// [`LinkError::Fabric`] when memory is refused.
    pub fn new(
        fabric: &dyn Fabric,
        endpoint: Box<dyn Endpoint>,
        config: RingConfig,
        incarnation: u32,
    ) -> Result<Link, LinkError> {
        let memory = LinkMemory::new(fabric, &config)?;
        Self::within(memory, endpoint, incarnation)
    }

    /// As [`Link::new`], in memory that is there already.
    ///
    /// # Errors
    /// As [`Link::new`].
    pub fn within(
        memory: LinkMemory,
        mut endpoint: Box<dyn Endpoint>,
        incarnation: u32,
    ) -> Result<Link, LinkError> {
        let config = memory.config();
        let caps = endpoint.caps();
        if config.slot_bytes as usize > caps.max_msg || caps.max_ops < 4 {
            return Err(LinkError::Config {
                detail: format!(
                    "the endpoint carries {} bytes a write and {} operations",
                    caps.max_msg, caps.max_ops
                ),
            });
        }
        let (ring, staging) = memory.open();
        let key = open(&mut *endpoint, &config, &ring, &staging)?;
        let (slots, control_slots) = (config.slots, config.control_slots);
        let (publish, consumer) = match config.transfer {
            Transfer::Write | Transfer::Region => {
                let consumer = Consumer::new(slots, control_slots, incarnation, caps.publish);
                (caps.publish, consumer)
            }
            Transfer::Read => {
                (Publish::Notify, Consumer::reading(slots, control_slots, incarnation))
            }
        };
        let mut link = Link {
            tuning: Tuning::default(),
            staging,
            staged: vec![StagedFrame::default(); slots as usize],
            statement: StatementNumber::default(),
            again: 0,
            ring: Arc::new(ring),
            key,
            peer: None,
            region: None,
            lent: Lent::default(),
            peer_region: None,
            producer: Producer::new(config.slots, config.control_slots),
            consumer,
            fetches: Fetches::new(slots),
            publish,
            inbox: VecDeque::with_capacity(config.slots as usize),
            completions: Vec::new(),
            flushing: false,
            peer_sleeps: false,
            wake_due: false,
            slept_at: None,
            unsignalled: 0,
            unsignalled_max: 1,
            inline_max: 0,
            notices_open: 0,
            cramped: None,
            unsubmitted: false,
            recvs_used: 0,
            failure: None,
            stats: LinkStats::default(),
            endpoint,
            caps,
            config,
            incarnation,
        };
        link.tune();
        Ok(link)
    }

    /// Takes other decisions for this end; before the first frame.
    #[must_use]
    pub fn tuned(mut self, tuning: Tuning) -> Link {
        self.tuning = tuning;
        self.tune();
        self
    }

    /// Decides as far as the endpoint allows.
    fn tune(&mut self) {
        let tuning = self.tuning;
        self.inline_max = tuning.inline_bytes.min(self.caps.max_inline);
        // A quarter of the queue, and of the ring: a staging slot is retired before its next turn.
        let most = if self.caps.ordered_completions {
            (self.caps.max_ops / 4).min(self.config.slots / 4).max(1)
        } else {
            1
        };
        self.unsignalled_max = match tuning.signal_every {
            0 => most,
            every => every.min(most),
        };
        if tuning.credit_slots > 0 {
            self.consumer.returning_every(tuning.credit_slots, self.config.control_slots);
        }
    }

    /// What the peer needs to attach. Goes over the control plane.
    pub fn descriptor(&self) -> Vec<u8> {
        self.own().encode()
    }

    /// Takes the peer's descriptor; from now on frames can be sent, behind those that were
    /// published before a [`renew`](Self::renew) and that the peer had not taken.
    ///
    /// # Errors
    /// [`LinkError::Descriptor`] for another version or dimensions, [`LinkError::Incarnation`] for
    /// one from before or after a reconnect, [`LinkError::Protocol`] when the peer cannot have
    /// taken what it says.
    pub fn attach(&mut self, peer: &[u8]) -> Result<(), LinkError> {
        let PeerMemory { taken, ring: key, region } = self.own().check(peer)?;
        let published = self.producer.published();
        self.producer.renew(taken)?;
        self.lent.read_below(taken);
        self.again = self.again.max(published);
        (self.peer, self.peer_region) = (Some(key), region);
        self.flush();
        Ok(())
    }

    /// A slot to be filled, or `None` while there is no credit, no staging slot or no room in the
    /// queue: flush, poll and try again. The slot is taken at [`SlotWriter::publish`], and not
    /// before.
    pub fn reserve(&mut self, class: Class) -> Option<SlotWriter<'_>> {
        let peer = self.peer?;
        if self.failure.is_some() || self.posts_again() {
            return None;
        }
        let position = match self.producer.reserve(class) {
            Ok(position) => position,
            Err(Stall::Credit) => {
                self.stats.credit_stalls += 1;
                return None;
            }
            Err(Stall::Staging) => {
                self.stats.staging_stalls += 1;
                return None;
            }
        };
        if !self.queue_has_room(class) {
            self.stats.queue_stalls += 1;
            return None;
        }
        Some(SlotWriter { link: self, peer, position, class })
    }

    /// Tells the peer of everything published, and starts it.
    pub fn flush(&mut self) {
        self.gather();
        self.submit();
    }

    /// Makes progress: completions, credit, arrived frames. True when anything happened.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] or [`LinkError::Disconnected`], now and ever after; what arrived
    /// before can still be [received](Self::recv).
    pub fn poll(&mut self) -> Result<bool, LinkError> {
        let polled = self.progress();
        self.submit();
        polled
    }

    /// Makes progress and starts nothing.
    fn progress(&mut self) -> Result<bool, LinkError> {
        let mut completions = std::mem::take(&mut self.completions);
        self.endpoint.poll(&mut completions);
        self.stats.completions += completions.len() as u64;
        let mut progress = !completions.is_empty();
        for completion in completions.drain(..) {
            if let Err(failure) = self.complete(completion) {
                self.fail(failure);
            }
        }
        self.completions = completions;
        self.fetch();
        self.read_borrowed();
        while self.take_in() {
            progress = true;
        }
        progress |= self.collect();
        self.post_again();
        self.post_recvs();
        self.ring_doorbells();
        self.failed().map(|()| progress)
    }

    /// The next frame, in the order of publication; `None` when there is none yet.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), once all frames that arrived before were received.
    pub fn recv(&mut self) -> Result<Option<ReceivedFrame>, LinkError> {
        if let Some(frame) = self.take_out() {
            return Ok(Some(frame));
        }
        if self.inbox.is_empty()
            && self.take_in()
            && let Some(frame) = self.take_out()
        {
            return Ok(Some(frame));
        }
        self.failed().map(|()| None)
    }

    /// Prepares to sleep until a frame or credit arrives; see [`Endpoint::arm`]. Flush and poll
    /// before.
    pub fn arm(&mut self) -> Armed {
        self.collect();
        self.ring_doorbells();
        let ready = self.inbox.front().is_some_and(AcceptedFrame::is_here)
            || self.take_in()
            || self.failure.is_some()
            || !self.announce_sleep();
        self.submit();
        if ready {
            return Armed::Ready;
        }
        let armed = self.endpoint.arm();
        // Room that has come since it was lacking wakes nobody.
        match self.cramped.take() {
            Some(before) if self.endpoint.budget() != before => Armed::Ready,
            _ => armed,
        }
    }

    /// Ends the link. When this returns the peer cannot change our memory any more. What arrived
    /// before can still be received.
    pub fn close(&mut self) {
        self.endpoint.close();
        self.lent.clear();
        self.fail(Failure::Closed);
    }

    /// True when each frame published was announced, and its write and notice are known to have
    /// completed: at the latest after a control frame and a flush behind it. What that says of the
    /// peer is up to the endpoint (G5); over TCP and shared memory its endpoint has them.
    pub fn is_drained(&self) -> bool {
        let announced = self.publish != Publish::Notify || self.producer.unannounced().is_none();
        // Where the peer reads, only its credit says that it has read.
        let moved = match self.config.transfer {
            Transfer::Write => self.producer.all_retired(),
            Transfer::Region => {
                let read = self.lent.is_empty() && self.consumer.has_returned_borrowed();
                self.producer.all_retired() && read
            }
            Transfer::Read => self.producer.in_flight() == 0,
        };
        let attached = self.peer.is_some() && !self.posts_again();
        attached && announced && !self.wake_due && self.notices_open == 0 && moved
    }

    /// The dimensions.
    pub fn config(&self) -> &RingConfig {
        &self.config
    }

    /// Which connection of the link this is: greater after each [`renew`](Self::renew).
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    fn own(&self) -> Descriptor {
        Descriptor {
            config: self.config,
            publish: self.publish,
            incarnation: self.incarnation,
            taken: self.consumer.accepted(),
            ring: self.key,
            region: self.region.as_ref().map(|region| region.key()),
        }
    }

    /// The first failure is the one that counts.
    fn fail(&mut self, failure: Failure) {
        if !matches!(failure, Failure::Disconnected(_)) {
            // The peer reads nothing any more.
            self.lent.clear();
        }
        self.failure.get_or_insert(failure);
    }

    fn failed(&self) -> Result<(), LinkError> {
        match &self.failure {
            None => Ok(()),
            Some(Failure::Closed) => Err(LinkError::Closed),
            Some(Failure::Disconnected(kind)) => Err(LinkError::Disconnected { kind: *kind }),
            Some(Failure::Protocol(detail)) => Err(LinkError::Protocol { detail: detail.clone() }),
        }
    }

    /// Whether a frame and its notice can be posted, leaving the reserve for control and credit.
    fn queue_has_room(&mut self, class: Class) -> bool {
        let reserved = match class {
            Class::Data => RESERVED.min(self.caps.max_ops / 4),
            Class::Control => 0,
        };
        let budget = self.endpoint.budget();
        let notices = match self.publish {
            Publish::NotifyCounted => 1 + reserved,
            Publish::InOrderPoll | Publish::Notify => 0,
        };
        let has_room = budget.ops >= 2 + reserved && budget.notices >= notices;
        if !has_room {
            self.cramped = Some(budget);
        }
        has_room
    }

    /// Posts the write of a filled slot.
    fn post_frame(&mut self, peer: RemoteKey, position: u64, frame: StagedFrame) {
        let StagedFrame { header, statement, len, borrowed } = frame;
        self.collect();
        let slot_bytes = self.config.slot_bytes as usize;
        let slot = slot_of(position, self.config.slots.into()) as usize;
        let padded = len.next_multiple_of(64);
        let credit = self.consumer.credit();
        let commit = commit_word(self.incarnation, position);
        let payload = self.staging.payload_mut(slot);
        payload[len..padded].fill(0);
        let checked = if self.config.payload_crc { &payload[..len] } else { &[] };
        let statement = statement.number();
        let trailer = Trailer { header, statement, len: len as u32, borrowed, credit, commit };
        let words = trailer.encode(checked);
        let sealed = self.staging.seal(slot, padded, &words);
        self.producer.publish();
        self.consumer.returned(credit);
        self.staged[slot] = frame;
        if self.config.transfer == Transfer::Read {
            // It stays where it is until the peer has read it and returned credit.
            self.producer.retire(position);
            return;
        }
        self.stats.writes += 1;
        self.stats.ring_bytes_sent += sealed.1 as u64;
        let offset = ((slot + 1) * slot_bytes - TRAILER_BYTES - padded) as u64;
        let dst = RemoteRange { key: peer, offset };
        let (id, flags) = self.operation(FRAME);
        let range;
        let src = if sealed.1 <= self.inline_max {
            Src::Inline(self.staging.bytes(sealed))
        } else {
            range = match self.staging.range(sealed) {
                Ok(range) => range,
                Err(error) => unreachable!("a staging slot is inside of its slab: {error}"),
            };
            Src::Slab(&range)
        };
        let posted = match self.publish {
            Publish::InOrderPoll | Publish::Notify => self.endpoint.write(src, dst, id, flags),
            Publish::NotifyCounted => {
                self.stats.notices_sent += 1;
                let imm = Notice::Frame(position as u16).encode();
                self.endpoint.write_notify(src, dst, imm, id, flags)
            }
        };
        self.unsubmitted = true;
        if let Err(error) = posted {
            self.fail(refused(error));
            return;
        }
        self.wake_due |= self.peer_sleeps;
    }

    /// Asks for a completion of the next operation.
    fn signal_next(&mut self) {
        self.unsignalled = self.unsignalled_max;
    }

    /// Name and flags of the next operation.
    fn operation(&mut self, kind: u64) -> (OpId, Flags) {
        self.unsignalled += 1;
        let id = OpId(self.producer.published() << KIND_BITS | kind);
        if self.unsignalled < self.unsignalled_max {
            return (id, Flags::NONE);
        }
        self.unsignalled = 0;
        (id, Flags::SIGNAL)
    }

    fn post_recvs(&mut self) {
        if self.recvs_used >= recvs(&self.config) / 4 {
            self.endpoint.post_recvs(self.recvs_used);
            self.recvs_used = 0;
            self.unsubmitted = true;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens to the peer what it writes or reads, and posts receives.
fn open(
    endpoint: &mut dyn Endpoint,
    config: &RingConfig,
    ring: &Ring,
    staging: &Staging,
) -> Result<RemoteKey, LinkError> {
    let range = match config.transfer {
        Transfer::Write | Transfer::Region => ring.range(config)?,
        Transfer::Read => staging.all(config)?,
    };
    let key = endpoint.export(&range)?;
    endpoint.post_recvs(recvs(config));
    Ok(key)
}

/// Receives that a link keeps posted: a notice for each slot each way, and some for sleep and wake.
fn recvs(config: &RingConfig) -> u32 {
    2 * config.slots + 2 * RESERVED
}

/// What a refused post means: room was checked before, so only a closed endpoint may refuse.
fn refused(error: PostError) -> Failure {
    match error {
        PostError::Closed => Failure::Disconnected(ErrorKind::Disconnected),
        other => Failure::Protocol(format!("the endpoint refused an operation: {other}")),
    }
}
