//! The traits that a transport implements; their contract stands at the head of the crate.

use std::fmt;
use std::os::fd::RawFd;

use crate::mapped::MappedRange;
use crate::multicast::Multicast;
use crate::pulse::Pulses;
use crate::{ErrorKind, FabricError, PostError, Slab, SlabRange};

/// A transport: memory and connections of one process.
pub trait Fabric: Send + Sync {
    /// The name that a user chooses it by: `shm`, `tcp`, `sim`.
    fn name(&self) -> &'static str;

    /// The best capabilities of this fabric's endpoints; an endpoint's own [`Endpoint::caps`]
    /// binds.
    fn caps(&self) -> Caps;

    /// Registers at least `bytes` of zeroed memory that never moves.
    ///
    /// # Errors
    /// [`FabricError::Memory`] when the operating system refuses.
    fn slab(&self, bytes: usize) -> Result<Slab, FabricError>;

    /// Prepares this side of a connection. Both sides offer, exchange their addresses over the
    /// control plane, and then connect.
    ///
    /// # Errors
    /// When the operating system gives no socket or queue.
    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError>;

    /// Lets every peer of this fabric read a range of a slab of this fabric, also those that
    /// connect later (G11). The key goes to them over the control plane. Any thread may call it
    /// while workers poll. One READ of it has at most
    /// [`PUBLISHED_READ_MAX`](crate::PUBLISHED_READ_MAX) bytes where this process answers READs.
    ///
    /// # Errors
    /// [`FabricError::ForeignSlab`] as for [`Endpoint::export`], [`FabricError::Memory`] when the
    /// system or the device has no room for another range.
    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError>;

    /// Takes the key back. When this returns, no read of the range is served any more: one that is
    /// under way ends its connection, as one by a key that was revoked. Any thread may call it.
    fn unpublish(&self, key: RemoteKey);

    /// READs of published ranges that this process has served, and their bytes; none where it does
    /// not take part in them.
    fn served(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Makes memory that nobody writes any more, neither this process nor a peer. The slab that is
    /// given away has to be the only handle on it: exports were revoked, clones and ranges dropped.
    ///
    /// Over shared memory the kernel sees to it, and refuses while a peer has the memory mapped:
    /// for writing ([`Endpoint::release`]), or for reading what was published before it was sealed.
    /// A peer that keeps its mapping prevents the seal: the slab is given up then, and its memory
    /// is free when that peer has gone. On other transports the seal binds this process alone; of
    /// peers no key is left that could write.
    ///
    /// # Errors
    /// [`FabricError::StillWritable`], [`FabricError::Memory`] when it cannot be mapped anew.
    fn seal(&self, slab: Slab) -> Result<Slab, FabricError> {
        slab.into_sealed()
    }

    /// Checks whether this process may have `slabs` slabs at a time: a look at its limits, so that
    /// they are told of at the start and not in the middle of the work.
    ///
    /// # Errors
    /// [`FabricError::Limits`].
    fn check_limits(&self, slabs: u64) -> Result<(), FabricError> {
        let _ = slabs;
        Ok(())
    }

    /// Its connections, where one may stand and carry nothing without any end noticing.
    fn pulses(&self) -> Option<&Pulses> {
        None
    }

    /// Datagrams to many at once, where the network has them.
    fn multicast(&self) -> Option<&dyn Multicast> {
        None
    }
}

/// One side of a connection that is being made.
pub trait Offer: Send {
    /// The address that the peer needs to connect, at most 1 KiB.
    fn address(&self) -> Vec<u8>;

    /// Connects to the peer whose address this is. May block until the peer connects too; a
    /// transport gives up after its own time limit.
    ///
    /// # Errors
    /// [`FabricError::Malformed`] for an address that is not of this fabric,
    /// [`FabricError::Connect`] otherwise.
    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError>;
}

/// One end of a connection, owned by one thread.
///
/// Posting never blocks. Operations may start at once or at [`submit`](Endpoint::submit), and
/// finish at some [`poll`](Endpoint::poll), which alone gives the place in the queue back. Dropping
/// an endpoint closes it.
pub trait Endpoint: Send {
    /// The capabilities of this connection.
    fn caps(&self) -> Caps;

    /// Lets the peer of this connection, and nobody else, write to and read from a range of a slab
    /// of this fabric. The key goes to the peer over the control plane.
    ///
    /// # Errors
    /// [`FabricError::ForeignSlab`] when the slab is of another fabric and this one cannot do
    /// without its own.
    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError>;

    /// Takes the key back. When this returns, nothing that the peer posted can change the range any
    /// more.
    fn revoke(&mut self, key: RemoteKey);

    /// As [`revoke`](Endpoint::revoke), of a key that the peer may use once more without fault,
    /// because it does not know of the end yet. Its later writes are lost, and the connection
    /// goes on, where the transport can tell; on a device it ends as after `revoke`.
    fn retire(&mut self, key: RemoteKey) {
        self.revoke(key);
    }

    /// Gives up a key that the peer exported, before the peer takes it back. Where memory is
    /// mapped, the slab of the key is unmapped, and no key of it opens any more; elsewhere nothing
    /// happens. All operations on it have completed.
    fn release(&mut self, key: RemoteKey) {
        let _ = key;
    }

    /// The peer's memory itself, where this process can map it and the peer has both published and
    /// sealed it; `None` where it has to be [`read`](Endpoint::read).
    ///
    /// The mapping lasts as long as a clone of it, whatever becomes of the key and of the
    /// connection: nobody can take it back, and the owner gives the memory out anew only when all
    /// who may have mapped it have said that they do not any more, or their processes are gone.
    ///
    /// # Errors
    /// [`PostError::Full`] when the peer has not sent what it takes: poll and try again, or, to
    /// sleep meanwhile, read a word of the range, whose `Local` comes with the memory;
    /// [`PostError::OutOfBounds`] when the peer does not publish the range, [`PostError::Closed`].
    fn mapped(&mut self, key: RemoteKey) -> Result<Option<MappedRange>, PostError> {
        let _ = key;
        Ok(None)
    }

    /// Copies `src` to the peer's memory. `src` must not change until `Local { id }`.
    ///
    /// # Errors
    /// Nothing was posted; see [`PostError`].
    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError>;

    /// As [`write`](Endpoint::write), and then delivers `imm` to the peer's `poll`. `src` may be
    /// empty, and `dst` is then not looked at. Uses one of the peer's posted receives.
    ///
    /// # Errors
    /// Nothing was posted; see [`PostError`].
    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError>;

    /// Copies from the peer's memory. `dst` is ours again after `Local { id }`.
    ///
    /// # Errors
    /// Nothing was posted; see [`PostError`].
    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError>;

    /// Adds to an aligned remote word and stores its old value into the first word of `old`.
    ///
    /// # Errors
    /// [`PostError::Unsupported`] where [`Caps::atomics`] is `None`; otherwise see [`PostError`].
    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError>;

    /// Replaces an aligned remote word if it equals `expect` and stores its old value into the
    /// first word of `old`.
    ///
    /// # Errors
    /// [`PostError::Unsupported`] where [`Caps::atomics`] is `None`; otherwise see [`PostError`].
    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError>;

    /// Sends a small message (at most [`Caps::max_send`] bytes) to the peer's `poll`, in order
    /// among sends. Uses one of the peer's posted receives. For control, not for data.
    ///
    /// # Errors
    /// Nothing was posted; see [`PostError`].
    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError>;

    /// Allows the peer `n` more notices or sends.
    fn post_recvs(&mut self, n: u32);

    /// Starts what was posted since the last call: one doorbell, one system call.
    fn submit(&mut self);

    /// Hands what was posted to the connection, where other endpoints share it, and starts nothing.
    /// A thread that has posted on several endpoints calls this on all of them before it calls
    /// [`submit`](Self::submit) on all: the first `submit` of a connection then starts what is
    /// there for all of its endpoints, by one system call.
    fn gather(&mut self) {}

    /// Makes progress and appends what happened to `out`; returns how many were appended.
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize;

    /// Whether [`poll`](Endpoint::poll) may have something to do or to tell: a caller with many
    /// endpoints leaves out those that say no. It costs a few loads, and no system call. It says
    /// yes behind [`arm`](Endpoint::arm), and it may say yes in vain; what it has said no to, it
    /// says yes to soon, at a later call. Nothing that is [ready](Armed::Ready) hides from it.
    fn has_news(&mut self) -> bool {
        true
    }

    /// Prepares to sleep: the caller waits on the descriptor and then polls. Between `arm` and the
    /// wait nothing is lost: a completion, or room to post, that comes later makes the descriptor
    /// readable. Room that came until then shows in [`budget`](Self::budget), at which who lacks
    /// some looks once more.
    fn arm(&mut self) -> Armed;

    /// How much can be posted now.
    fn budget(&self) -> Budget;

    /// Ends the connection. When this returns nothing that the peer posted can change memory that
    /// this endpoint exported; outstanding operations are flushed to the next `poll`.
    fn close(&mut self);
}

/// A pair of workers, numbered over the whole job, that a connection joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// The worker that makes the call.
    pub local: u32,
    /// The worker at the other end.
    pub remote: u32,
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} with worker {}", self.local, self.remote)
    }
}

/// The caller's name of an operation. The endpoint only carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// Where the bytes of a write come from.
#[derive(Debug, Clone, Copy)]
pub enum Src<'a> {
    /// Registered memory, read until the operation completes.
    Slab(&'a SlabRange),
    /// At most [`Caps::max_inline`] bytes, copied at the call.
    Inline(&'a [u8]),
    /// Nothing.
    Empty,
}

impl Src<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Src::Slab(range) => range.len(),
            Src::Inline(bytes) => bytes.len(),
            Src::Empty => 0,
        }
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The right to touch a range of a peer's memory, made by [`Endpoint::export`], or the right to
/// read it, made by [`Fabric::publish`]. Its 24 bytes mean something to the transport alone, and
/// count as hostile until it has checked them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// Names the registration.
    pub key: u64,
    /// First byte, as the transport counts.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

impl RemoteKey {
    /// Bytes of [`RemoteKey::encode`].
    pub const BYTES: usize = 24;
    /// Set in the base of a key that [`Fabric::publish`] made. No address and no offset has it.
    pub(crate) const PUBLISHED: u64 = 1 << 63;

    /// True when the range can be read, and nothing else.
    pub fn is_published(&self) -> bool {
        self.base & Self::PUBLISHED != 0
    }

    /// Little-endian key, base, length.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.key.to_le_bytes());
        out[8..16].copy_from_slice(&self.base.to_le_bytes());
        out[16..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// The inverse of [`RemoteKey::encode`].
    ///
    /// # Errors
    /// [`FabricError::Malformed`] for another number of bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FabricError> {
        let word =
            |i: usize| bytes.get(i..i + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        match (word(0), word(8), word(16), bytes.len()) {
            (Some(key), Some(base), Some(len), Self::BYTES) => Ok(Self { key, base, len }),
            _ => Err(FabricError::Malformed { what: "remote key" }),
        }
    }
}

/// A place in a peer's exported range; the length is the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// The export.
    pub key: RemoteKey,
    /// Bytes after the export's first byte.
    pub offset: u64,
}

/// Options of an operation; combine with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// No option.
    pub const NONE: Flags = Flags(0);
    /// Waits for the reads and atomics posted before; a read also waits for the writes.
    pub const FENCE: Flags = Flags(1);
    /// Asks for a `Local` completion. Without it the operation is retired by a later signalled one,
    /// where completions are ordered; so at least one of [`Caps::max_ops`] operations in a row must
    /// ask.
    pub const SIGNAL: Flags = Flags(2);
    /// More follows before `submit`.
    pub const MORE: Flags = Flags(4);

    /// True when all of `other` is set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// An event of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// A signalled operation's source (or a read's destination) is ours again.
    Local {
        /// The operation.
        id: OpId,
    },
    /// The peer notified; see G4 for what is visible.
    Notify {
        /// The peer's number.
        imm: u32,
    },
    /// The peer sent a message.
    Recv {
        /// The message.
        bytes: Vec<u8>,
    },
    /// An operation failed, or the connection did (`id` is `None`). Nothing can be posted any more.
    Error {
        /// The operation, where one is to blame.
        id: Option<OpId>,
        /// The kind of the failure.
        kind: ErrorKind,
    },
}

/// How to sleep until an endpoint has something to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Something is there already: poll.
    Ready,
    /// Readable when there is something to poll.
    Fd(RawFd),
    /// The transport cannot wake anybody (the simulator); ask its owner when to poll.
    Virtual,
}

/// How many posts succeed now without a `poll` between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Operations that fit the queue.
    pub ops: u32,
    /// Notices and sends that the peer has receives for.
    pub notices: u32,
}

/// The capabilities of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// How the peer may learn of a write.
    pub publish: Publish,
    /// Remote atomics.
    pub atomics: Atomics,
    /// Whether one `Local` retires all earlier operations.
    pub ordered_completions: bool,
    /// Whether the error of an operation that the peer refused names it. Over iWARP a write is done
    /// when it is on its way, and a refusal is the end of the connection.
    pub names_refused: bool,
    /// Bytes of [`Src::Inline`].
    pub max_inline: usize,
    /// Bytes of one write or read.
    pub max_msg: usize,
    /// Bytes of one `send`.
    pub max_send: usize,
    /// Operations that can be outstanding.
    pub max_ops: u32,
}

/// How a receiver may learn that a write is there, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Publish {
    /// Load the last word of the write with acquire (G2).
    InOrderPoll,
    /// Await a notice posted after the write on the same endpoint (G4).
    Notify,
    /// Each write carries its own notice; a notice says nothing of other writes.
    NotifyCounted,
}

/// Remote atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Atomics {
    /// There are none.
    None,
    /// Atomic among remote atomics of this device (G6).
    Nic,
    /// Atomic among remote atomics and the peer's CPU.
    Global,
}
