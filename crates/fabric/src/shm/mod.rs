//! Workers of one host, in one process or in several, over shared memory.
//!
//! A slab is a memfd; exporting it sends the descriptor over a UNIX socket, and the peer maps it. A
//! write is then a copy by the writer's own processor, finished when the call returns, whose last
//! aligned word is stored with release: [`Publish::InOrderPoll`]. Notices and messages go through a
//! ring of words in the receiver's [`inbox`]. The socket carries descriptors, wakes a peer that
//! sleeps, and tells when a process has died. Published ranges stand on a [`registry`] that all
//! peers map; their memory is mapped to be read.
//!
//! ```text
//!   process a                                        process b
//!   slab ──copy──▶ mapping of b's slab  ═ memfd ═    slab
//!   Sender ───────▶ entries, touched    ═ memfd ═    Receiver     b's inbox
//!   export, wake ─▶ ─────────── UNIX socket ──────── ▶ poll, arm
//! ```
//!
//! **Invariants.** Nobody changes exported memory after `revoke` or `close` returned: the writer
//! announces itself before it looks at the key, see [`inbox`]. A receiver that sleeps is woken by
//! everything that is submitted, also by writes without a notice, see [`spsc`]. Who sleeps looks at
//! its memory after `poll` and before `arm`.
//!
//! **Trust.** The two processes belong to one user and trust each other: bounds, keys and
//! everything in the inbox is checked against mistakes, so that no honest peer's fault corrupts or
//! crashes this side, but a process that ignores the protocol keeps its mapping and can write to a
//! slab after it was revoked, unless the slab was sealed since: the kernel refuses the seal as long
//! as that mapping is there. A peer that is stopped in the middle of a copy holds up `revoke` and
//! `close` until it goes on or dies: to return earlier would break G8.
//!
//! Every peer of a fabric finds the keys of all that it has published on the registry, which the
//! kernel lets nobody else write. Sealed memory, too, cannot be written by anybody. Published
//! memory that is not sealed is sent by a descriptor to read: that stops mistakes, and not a
//! process of the same user, which may open the memory anew.
//!
//! **Left behind.** Nothing: memfds and abstract sockets vanish with the last process that holds
//! them.

mod endpoint;
mod inbox;
mod limits;
mod map;
mod publications;
mod registry;
mod slabs;
mod socket;
mod spsc;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::listener::{broken, refusal};
use crate::token::Token;
use crate::{
    Atomics, Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Publish, RemoteKey, Slab,
    SlabRange,
};
use endpoint::ShmEndpoint;
use inbox::{OwnInbox, PeerInbox};
use limits::refused;
use map::SharedMemory;
use publications::{Publications, shared};
use socket::{Listener, Socket};

/// First bytes of an address and of a greeting: name and version of the protocol.
const MAGIC: [u8; 8] = *b"MLSSHM\x00\x02";
/// Magic and token.
const ADDRESS_BYTES: usize = MAGIC.len() + Token::BYTES;
/// Magic, local and remote worker, token of who is greeted, token of who greets.
const GREETING_BYTES: usize = MAGIC.len() + 8 + 2 * Token::BYTES;

/// How a [`ShmFabric`] behaves.
#[derive(Debug, Clone)]
pub struct ShmOptions {
    /// Touch all pages of a slab when it is made or mapped, so that no page fault falls into the
    /// run.
    pub prefault: bool,
    /// How long `connect` waits for the peer.
    pub connect_timeout: Duration,
    /// Operations that can be outstanding on an endpoint.
    pub ops_max: u32,
    /// The value of [`Caps::publish`]. The transport keeps the strongest promise in any case.
    pub publish: Publish,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            prefault: false,
            connect_timeout: Duration::from_secs(10),
            ops_max: 1024,
            publish: Publish::InOrderPoll,
        }
    }
}

/// Shared memory of one host. Cheap to share; workers of one process may use one or have one each.
pub struct ShmFabric {
    options: ShmOptions,
    publications: Arc<Publications>,
}

impl ShmFabric {
    /// Bytes of shared memory that each endpoint has besides its slabs: its inbox.
    pub const ENDPOINT_BYTES: usize = inbox::BYTES;

    /// A fabric of this process.
    ///
    /// # Errors
    /// [`FabricError::Memory`] when the operating system has no shared memory to give.
    pub fn new(options: ShmOptions) -> Result<Arc<Self>, FabricError> {
        let fabric = Self { options, publications: Arc::default() };
        fabric.slab(rustix::param::page_size())?;
        Ok(Arc::new(fabric))
    }
}

impl Fabric for ShmFabric {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn caps(&self) -> Caps {
        Caps {
            publish: self.options.publish,
            atomics: Atomics::Global,
            ordered_completions: true,
            names_refused: true,
            max_inline: 256,
            max_msg: 1 << 30,
            max_send: inbox::MESSAGE_MAX,
            max_ops: self.options.ops_max,
        }
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        let memory = SharedMemory::new(bytes, self.options.prefault)
            .map_err(|source| refused(bytes, source))?;
        Ok(Slab::new(Arc::new(memory)))
    }

    fn check_limits(&self, slabs: u64) -> Result<(), FabricError> {
        limits::check(slabs)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.publications.publish(range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.publications.unpublish(&key);
    }

    fn seal(&self, slab: Slab) -> Result<Slab, FabricError> {
        if slab.is_sealed() {
            return Ok(slab);
        }
        let bytes = slab.len();
        let slab = slab.into_sealed()?;
        let memory = shared(slab.backing()).ok_or(FabricError::ForeignSlab)?;
        let fd = memory.descriptor().map_err(|source| refused(bytes, source))?;
        // Our own mapping can write, too.
        drop(slab);
        Slab::new(Arc::new(SharedMemory::sealed(fd, bytes)?)).into_sealed()
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let token = Token::random().map_err(failed)?;
        let listener = Listener::bind(&socket_name(&token)).map_err(failed)?;
        Ok(Box::new(ShmOffer {
            link,
            token,
            listener,
            caps: self.caps(),
            prefault: self.options.prefault,
            publications: self.publications.clone(),
            timeout: self.options.connect_timeout,
        }))
    }
}

/// A listening socket whose name is the token that the peer has to know.
struct ShmOffer {
    link: LinkId,
    token: Token,
    listener: Listener,
    caps: Caps,
    prefault: bool,
    publications: Arc<Publications>,
    timeout: Duration,
}

impl Offer for ShmOffer {
    fn address(&self) -> Vec<u8> {
        [&MAGIC[..], self.token.bytes()].concat()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let peer = parse_address(peer).ok_or(FabricError::Malformed { what: "address" })?;
        let failed = |source| FabricError::Connect { link: self.link.to_string(), source };
        let inbox = OwnInbox::new().map_err(failed)?;
        let deadline = Instant::now() + self.timeout;
        // Both sides come to the same decision; the tokens differ where a worker connects with
        // itself.
        let dials = (self.link.local, self.token) < (self.link.remote, peer);
        let (socket, theirs) = if dials {
            self.dial(&peer, &inbox, deadline)
        } else {
            self.answer(&peer, &inbox, deadline)
        }
        .map_err(failed)?;
        let (prefault, publications) = (self.prefault, self.publications);
        let end = ShmEndpoint::new(self.caps, prefault, publications, socket, inbox, theirs);
        Ok(Box::new(end))
    }
}

impl ShmOffer {
    fn dial(
        &self,
        peer: &Token,
        inbox: &OwnInbox,
        deadline: Instant,
    ) -> io::Result<(Socket, PeerInbox)> {
        let socket = Socket::dial(&socket_name(peer))?;
        socket.greet(&self.greeting(peer), inbox.fd())?;
        let theirs = self.greeted(&socket, peer, deadline)?;
        Ok((socket, theirs))
    }

    fn answer(
        &self,
        peer: &Token,
        inbox: &OwnInbox,
        deadline: Instant,
    ) -> io::Result<(Socket, PeerInbox)> {
        loop {
            let socket = self.listener.accept(deadline)?;
            // A socket that does not greet at once is not our peer, and is ignored.
            let timeout = deadline.min(Instant::now() + Duration::from_secs(1));
            if let Ok(theirs) = self.greeted(&socket, peer, timeout) {
                socket.greet(&self.greeting(peer), inbox.fd())?;
                return Ok((socket, theirs));
            }
        }
    }

    fn greeting(&self, peer: &Token) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.link.local.to_le_bytes());
        out[12..16].copy_from_slice(&self.link.remote.to_le_bytes());
        out[16..32].copy_from_slice(peer.bytes());
        out[32..].copy_from_slice(self.token.bytes());
        out
    }

    /// Awaits the greeting of the peer and maps its inbox.
    fn greeted(&self, socket: &Socket, peer: &Token, deadline: Instant) -> io::Result<PeerInbox> {
        let mut expected = [0; GREETING_BYTES];
        expected[..8].copy_from_slice(&MAGIC);
        expected[8..12].copy_from_slice(&self.link.remote.to_le_bytes());
        expected[12..16].copy_from_slice(&self.link.local.to_le_bytes());
        expected[16..32].copy_from_slice(self.token.bytes());
        expected[32..].copy_from_slice(peer.bytes());
        match socket.await_message(deadline)? {
            (bytes, len, Some(fd)) if bytes[..len] == expected => PeerInbox::new(fd.as_fd()),
            (bytes, len, _) => Err(broken(refusal(&MAGIC, &bytes[..len]))),
        }
    }
}

fn parse_address(bytes: &[u8]) -> Option<Token> {
    let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().ok()?;
    let (magic, token) = bytes.split_at(MAGIC.len());
    (magic == MAGIC).then_some(Token::from_bytes(token.try_into().ok()?))
}

/// The abstract name of an offer's socket.
fn socket_name(token: &Token) -> Vec<u8> {
    format!("millstream-{token}").into_bytes()
}
