//! Workers of the processes that `mpirun` started, over MPI's messages between two points (A2).
//!
//! A connection is a pair of channels, one in each direction, and a channel is a tag: its receiver
//! numbers its channels, and tells the number in its address. The paper packs the identity of a
//! channel into eight bits of the tag; here all of the tag is one number of 32 bits, of which MPI
//! promises the lower fifteen and Open MPI and MPICH give 31 and 28. A number is used once.
//!
//! ```text
//!   post ─▶ outbox ─▶ MPI_Isend(rank, channel) ─▶ MPI_Irecv, posted beforehand ─▶ parser
//! ```
//!
//! `frames` defines the meaning of the bytes, and its invariants hold here. MPI makes progress when
//! `submit` and `poll` ask whether a message is done: there is no thread and no call that waits.
//! MPI wakes nobody either, so that a sleeper naps, longer and longer up to a millisecond, instead
//! of keeping a processor busy.
//!
//! **Not done here.** Neither encryption nor authentication: the processes of an `mpirun` trust
//! each other. A process that dies is the launcher's affair, which ends all others. The library is
//! opened when it is asked for, and one program works with Open MPI and with MPICH.

mod library;
mod wire;
mod world;

use std::ffi::c_int;
use std::sync::Arc;

use crate::frames::{BUFFER_BYTES, COMPACT_BYTES, FrameEndpoint, MESSAGE_MAX};
use crate::listener::PEER_OPS_MAX;
use crate::published::PublishedTable;
use crate::{
    Atomics, Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Publish, RemoteKey, Slab,
    SlabRange,
};
use wire::{MpiWire, Pair};
use world::World;

pub use world::finish;

/// First bytes of an address: name and version of the protocol.
const MAGIC: [u8; 8] = *b"MLSMPI\x00\x01";
/// Operations that can be outstanding on an endpoint.
const OPS_MAX: u32 = 1024;

/// The MPI connections of one process.
pub struct MpiFabric {
    world: Arc<World>,
    publish: Publish,
    published: Arc<PublishedTable>,
}

impl MpiFabric {
    /// Bytes that each endpoint has besides its slabs, as long as MPI takes what is posted.
    /// One that answers reads has a copy of an answer besides.
    pub const ENDPOINT_BYTES: usize = BUFFER_BYTES + COMPACT_BYTES + wire::WIRE_BYTES;

    /// Initialises MPI, unless this process did already. `publish` is what [`Caps::publish`] says;
    /// the transport keeps the strongest promise in any case.
    ///
    /// # Errors
    /// [`FabricError::Library`] when the MPI library is missing or cannot be used.
    pub fn new(publish: Publish) -> Result<Arc<Self>, FabricError> {
        let world = World::get().map_err(|detail| FabricError::Library { detail })?;
        Ok(Arc::new(Self { world, publish, published: Arc::default() }))
    }

    /// This process among those of its `mpirun`, and how many they are.
    pub fn rank_and_size(&self) -> (u32, u32) {
        (self.world.rank.cast_unsigned(), self.world.size.cast_unsigned())
    }
}

impl Fabric for MpiFabric {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn caps(&self) -> Caps {
        Caps {
            publish: self.publish,
            atomics: Atomics::Global,
            ordered_completions: true,
            names_refused: true,
            max_inline: 256,
            max_msg: 1 << 30,
            max_send: MESSAGE_MAX,
            max_ops: OPS_MAX,
        }
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        Slab::heap(bytes)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.published.publish(range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.published.unpublish(&key);
    }

    fn served(&self) -> (u64, u64) {
        self.published.served()
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let channel = self.world.channel().map_err(failed)?;
        let (world, published) = (self.world.clone(), self.published.clone());
        Ok(Box::new(MpiOffer { world, published, link, channel, caps: self.caps() }))
    }
}

/// A channel that a peer may use.
struct MpiOffer {
    world: Arc<World>,
    published: Arc<PublishedTable>,
    link: LinkId,
    channel: u32,
    caps: Caps,
}

impl Offer for MpiOffer {
    /// Magic; rank, channel, the link's two workers and operations, little-endian.
    fn address(&self) -> Vec<u8> {
        let Self { world, link, channel, caps, .. } = self;
        let rank = world.rank.cast_unsigned();
        let words = [rank, *channel, link.local, link.remote, caps.max_ops];
        [&MAGIC[..], words.map(u32::to_le_bytes).as_flattened()].concat()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let malformed = || FabricError::Malformed { what: "address of mpi" };
        let words = peer.strip_prefix(&MAGIC).ok_or_else(malformed)?;
        let (words, rest) = words.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let [rank, theirs, local, remote, ops_max] = words[..] else { return Err(malformed()) };
        let rank = c_int::try_from(rank).ok().filter(|rank| *rank < self.world.size);
        let peer = rank.ok_or_else(malformed)?;
        let right = rest.is_empty()
            && (local, remote) == (self.link.remote, self.link.local)
            && theirs <= self.world.channels_max
            && ops_max <= PEER_OPS_MAX;
        if !right {
            return Err(malformed());
        }
        let pair = Pair { peer, ours: self.channel, theirs };
        let wire = MpiWire::new(self.world, pair)
            .map_err(|source| FabricError::Connect { link: self.link.to_string(), source })?;
        Ok(Box::new(FrameEndpoint::new(self.caps, wire, self.published, ops_max, false)))
    }
}
