//! Workers of any hosts over RDMA: InfiniBand, RoCE, and Soft-RoCE where there is no hardware.
//!
//! Speaks to libibverbs, which is opened at run time: the program starts without it, and says what
//! is missing when this transport is asked for. [`survey`] lists devices, ports and addresses and
//! says what would be used and why.
//!
//! ```text
//!   post ─▶ batch ──doorbell──▶ send queue ══ reliable connection ══▶ peer's memory, its receives
//!   Local ◀──────── completion queue ◀─────── acknowledged by the peer's device
//! ```
//!
//! **Connections.** Two offers meet over a TCP socket, tell each other queue pair, address and
//! limits, and bring the queue pairs up. The socket stays open and silent: its end is how an idle
//! side learns that the peer is gone.
//!
//! **Receives.** All connections of a fabric take theirs from one shared queue. What a peer may use
//! it is told by messages that need receives themselves; some are kept aside for them, and who has
//! used up these looks at the peer's counter by a read before it sends another. No credit is ever
//! written to a word of the peer, where two of them might land reversed (G3).
//!
//! **Keys.** Each export is a region of its own, so that taking a key back takes it from the
//! device. Keys are bound to the protection domain of the fabric, that is to the job. That a key
//! serves only its own connection is checked by the side that uses it, and not by the device.
//!
//! **How a write becomes known.** [`Publish::InOrderPoll`] only where both devices say that the
//! bytes of a write appear in order, on a processor that keeps that order, and without relaxed
//! ordering; else [`Publish::Notify`]. A completion at the sender never means more than that the
//! source is free (G5).
//!
//! **Failure.** The first bad completion, the end of the socket or an event of the device ends the
//! connection: the queue pair goes to error, gives back what it can, and is destroyed before
//! anything is reported. A new connection has a new queue pair, new packet numbers and new keys, so
//! that nothing of the old one is taken for its own (G8).

mod device;
mod endpoint;
mod events;
mod handshake;
mod library;
mod memory;
mod objects;
mod options;
mod queue;
mod receives;
mod survey;
mod sys;

use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lobby::{Lobby, PEER_OPS_MAX, Place};
use crate::token::Token;
use crate::{Atomics, Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Publish, Slab};
use device::{Opened, choose, open_all};
use endpoint::{CONTROL_OPS, CONTROL_RECEIVES, Terms, VerbsEndpoint};
use events::Events;
use handshake::{Hello, MAGIC, swap, weaker, weakness};
use library::Library;
use memory::DeviceMemory;
use objects::{Domain, Wire};
use queue::SendQueue;
use receives::{MESSAGE_BYTES, Receives};

pub use device::{Choice, DeviceInfo, GidInfo, GidKind, PortInfo};
pub use options::VerbsOptions;
pub use survey::{Survey, probe, survey};

/// Bytes of [`Src::Inline`](crate::Src): what devices carry in a request, or else a copy of ours.
const INLINE_MAX: usize = 220;
/// Bytes of one operation, where the port allows as much.
const MESSAGE_MAX: usize = 1 << 30;
/// Reads and atomics of a connection at a time; more wait in the device.
const READS_MAX: u32 = 16;
/// Receives that one connection can promise, where there are many.
const PROMISE_MAX: u32 = 4096;
/// Attempts to deliver a packet after the first.
const RETRIES: u8 = 7;
/// Attempts while the peer has no receive: without end, although it must never happen (G9).
const RETRIES_NOT_READY: u8 = 7;
/// How long a peer waits then: code 13 is about a millisecond. Code 0 would be 655 ms.
const NOT_READY_TIMER: u8 = 13;
/// Routers that a packet may pass.
const HOPS: u8 = 64;

/// The RDMA connections of one process: one device, one port, one protection domain.
pub struct VerbsFabric {
    options: VerbsOptions,
    domain: Arc<Domain>,
    limits: Limits,
    choice: Choice,
    receives: Arc<Receives>,
    events: Arc<Events>,
    reachable: SocketAddr,
    lobby: Arc<Lobby>,
}

/// What the device gives.
#[derive(Debug, Clone, Copy)]
struct Limits {
    ops_max: u32,
    message_max: usize,
    /// Reads that the device answers, and asks, at a time.
    reads: (u8, u8),
    atomics: u8,
    /// Completions beyond those of the send queue.
    receives_max: u32,
    lid: u16,
}

impl VerbsFabric {
    /// Memory of each endpoint besides what it exports, in bytes.
    pub const ENDPOINT_BYTES: usize = (256 + CONTROL_OPS as usize) * MESSAGE_BYTES + 4096;

    /// Opens a device and listens.
    ///
    /// # Errors
    /// [`FabricError::Device`] when libibverbs or a fitting device is missing,
    /// [`FabricError::Memory`] when memory cannot be pinned, [`FabricError::Connect`] when the
    /// address cannot be bound.
    pub fn new(options: VerbsOptions) -> Result<Arc<Self>, FabricError> {
        let missing = |detail: String| FabricError::Device { detail };
        let library = Library::open().map_err(|error| missing(error.to_string()))?;
        let (opened, refused) = open_all(&library);
        let devices: Vec<DeviceInfo> = opened.iter().map(|device| device.info.clone()).collect();
        let choice = choose(&devices, &options)
            .map_err(|reason| missing([&[reason], &refused[..]].concat().join("; ")))?;
        let device = opened.into_iter().find(|device| device.info.name == choice.device);
        let device = device.ok_or_else(|| missing(format!("{} is gone", choice.device)))?;
        Self::on(device, choice, options)
    }

    fn on(device: Opened, choice: Choice, options: VerbsOptions) -> Result<Arc<Self>, FabricError> {
        let refused = |source: io::Error| FabricError::Device {
            detail: format!("{}: {source}", choice.device),
        };
        let failed =
            |source| FabricError::Connect { link: format!("anybody at {}", options.bind), source };
        let (limits, entries) = limits(&device.info, &choice, &options);
        let domain = Arc::new(device.into_domain().map_err(refused)?);
        let receives = Receives::new(&domain, entries)?;
        let events = Events::new(&domain).map_err(refused)?;
        let listener = TcpListener::bind((options.bind, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let reachable = SocketAddr::new(options.advertise.unwrap_or(options.bind), port);
        let lobby = Arc::new(Lobby::new(listener).map_err(failed)?);
        Ok(Arc::new(Self { options, domain, limits, choice, receives, events, reachable, lobby }))
    }

    /// What is used, and why.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Shared receives that no connection has promised to its peer or keeps for itself.
    pub fn receives_free(&self) -> u32 {
        self.receives.free()
    }
}

/// What the options and the device allow, and the entries of the shared receives.
fn limits(device: &DeviceInfo, choice: &Choice, options: &VerbsOptions) -> (Limits, u32) {
    let port = device.ports.iter().find(|port| port.number == choice.port);
    let (message_max, lid) = port.map_or((0, 0), |port| (port.message_max, port.lid));
    let entries = options.receives_max.clamp(CONTROL_RECEIVES, device.shared_receives_max.max(8));
    let room = device.requests_max.saturating_sub(CONTROL_OPS).max(1);
    let ops_max = options.ops_max.clamp(1, room.min(PEER_OPS_MAX));
    let completions = device.completions_max.saturating_sub(ops_max + CONTROL_OPS);
    let receives_max = entries.min(PROMISE_MAX).min(completions.saturating_sub(CONTROL_RECEIVES));
    let reads = [device.reads_max.0, device.reads_max.1].map(|n| n.min(READS_MAX) as u8);
    let limits = Limits {
        ops_max,
        message_max: MESSAGE_MAX.min(message_max as usize),
        reads: (reads[0], reads[1]),
        atomics: device.atomics,
        receives_max,
        lid,
    };
    (limits, entries)
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn caps(&self) -> Caps {
        Caps {
            publish: self.options.publish.unwrap_or(Publish::Notify),
            atomics: atomics(self.limits.atomics),
            ordered_completions: true,
            max_inline: INLINE_MAX,
            max_msg: self.limits.message_max,
            max_send: MESSAGE_BYTES,
            max_ops: self.limits.ops_max,
        }
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        DeviceMemory::slab(&self.domain, bytes)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let ops_max = self.limits.ops_max;
        let place = Place::new(&self.lobby, link, MAGIC, self.reachable, ops_max);
        Ok(Box::new(VerbsOffer {
            place: place.map_err(failed)?,
            caps: self.caps(),
            options: self.options.clone(),
            domain: self.domain.clone(),
            limits: self.limits,
            choice: self.choice.clone(),
            receives: self.receives.clone(),
            events: self.events.clone(),
        }))
    }
}

fn atomics(code: u8) -> Atomics {
    match code {
        0 => Atomics::None,
        1 => Atomics::Nic,
        _ => Atomics::Global,
    }
}

/// A place in the lobby, and what a connection is made of.
struct VerbsOffer {
    place: Place,
    caps: Caps,
    options: VerbsOptions,
    domain: Arc<Domain>,
    limits: Limits,
    choice: Choice,
    receives: Arc<Receives>,
    events: Arc<Events>,
}

impl Offer for VerbsOffer {
    fn address(&self) -> Vec<u8> {
        self.place.address()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let deadline = Instant::now() + self.options.connect_timeout;
        let (stream, _) = self.place.meet(peer, deadline)?;
        let kept = Kept::new(&self.receives);
        let made = kept.and_then(|kept| self.bring_up(stream, deadline, kept));
        made.map_err(|source| self.place.failed(source))
    }
}

/// Receives that a connection keeps for control, given back if it does not come about.
struct Kept(Option<Arc<Receives>>);

impl Kept {
    fn new(receives: &Arc<Receives>) -> io::Result<Self> {
        match receives.reserve(CONTROL_RECEIVES) {
            CONTROL_RECEIVES => Ok(Self(Some(receives.clone()))),
            less => {
                receives.release(less);
                Err(io::Error::other("all shared receives are promised; raise receives_max"))
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(receives) = &self.0 {
            receives.release(CONTROL_RECEIVES);
        }
    }
}

impl VerbsOffer {
    fn bring_up(
        &self,
        mut stream: TcpStream,
        deadline: Instant,
        mut kept: Kept,
    ) -> io::Result<Box<dyn Endpoint>> {
        let sends = self.limits.ops_max + CONTROL_OPS;
        let completions = sends + self.limits.receives_max + CONTROL_RECEIVES;
        let (mut wire, inline) = Wire::new(&self.domain, &self.receives, sends, completions)?;
        let queue = SendQueue::new(&self.domain, sends, inline)?;
        let hello = self.hello(&wire, &queue)?;
        self.initialise(&mut wire)?;
        let said = swap(&mut stream, &hello.encode(), deadline)?;
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let peer = Hello::decode(&said).map_err(invalid)?;
        if peer.roce != hello.roce {
            return Err(invalid("one side is on Ethernet and the other on InfiniBand"));
        }
        self.ready_to_receive(&mut wire, &hello, &peer)?;
        self.ready_to_send(&mut wire, &hello, &peer)?;
        let ours = self.promise(&wire);
        let [theirs] = swap(&mut stream, &[weakness(ours)], deadline)?;
        let publish = weaker(ours, theirs)
            .ok_or_else(|| invalid("the peer promises what this version does not know"))?;
        prepare(&stream)?;
        let caps = Caps {
            publish,
            atomics: atomics(peer.atomics),
            max_msg: self.limits.message_max.min(peer.message_max as usize),
            ..self.caps
        };
        let terms = Terms {
            caps,
            tag: hello.tag,
            peer_tag: peer.tag,
            peer_counter: peer.counter,
            access: self.access(),
            relaxed: self.options.relaxed_ordering,
            receives_max: self.limits.receives_max,
        };
        let (domain, events) = (self.domain.clone(), self.events.clone());
        let endpoint = VerbsEndpoint::new(terms, domain, events, wire, queue, stream)?;
        kept.0 = None;
        Ok(Box::new(endpoint))
    }

    fn hello(&self, wire: &Wire, queue: &SendQueue) -> io::Result<Hello> {
        let random = Token::random()?.word();
        Ok(Hello {
            gid: self.choice.gid.address.octets(),
            queue_pair: wire.number(),
            psn: random as u32 & 0x00ff_ffff,
            tag: (random >> 32) as u32,
            message_max: self.limits.message_max as u32,
            counter: queue.counter(),
            lid: self.limits.lid,
            mtu: self.choice.mtu as u16,
            reads_max: self.limits.reads.0,
            roce: self.choice.gid.kind != GidKind::Infiniband,
            atomics: self.limits.atomics,
        })
    }

    /// What peers may do with exported memory.
    fn access(&self) -> c_int {
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;
        if self.limits.atomics > 0 { access | sys::ACCESS_REMOTE_ATOMIC } else { access }
    }

    fn initialise(&self, wire: &mut Wire) -> io::Result<()> {
        let mut attr = attributes(sys::QPS_INIT);
        attr.pkey_index = self.options.pkey_index;
        attr.port_num = self.choice.port;
        attr.qp_access_flags = (self.access() & !sys::ACCESS_LOCAL_WRITE) as u32;
        let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        wire.modify(&mut attr, mask).map_err(|error| said("the device does not start", &error))
    }

    fn ready_to_receive(&self, wire: &mut Wire, own: &Hello, peer: &Hello) -> io::Result<()> {
        let mut attr = attributes(sys::QPS_RTR);
        attr.path_mtu = match own.mtu.min(peer.mtu) {
            256 => 1,
            512 => 2,
            1024 => 3,
            2048 => 4,
            _ => 5,
        };
        attr.dest_qp_num = peer.queue_pair;
        attr.rq_psn = peer.psn;
        attr.max_dest_rd_atomic = self.limits.reads.0;
        attr.min_rnr_timer = NOT_READY_TIMER;
        let ah = &mut attr.ah_attr;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| peer.gid[at + i]));
        ah.dgid = [word(0), word(8)];
        ah.sgid_index = self.choice.gid.index as u8;
        ah.hop_limit = HOPS;
        ah.traffic_class = self.options.traffic_class;
        ah.dlid = peer.lid;
        ah.sl = self.options.service_level;
        ah.is_global = u8::from(own.roce);
        ah.port_num = self.choice.port;
        let mask = sys::QP_STATE
            | sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        wire.modify(&mut attr, mask).map_err(|error| {
            let peer = std::net::Ipv6Addr::from(peer.gid);
            let own = &self.choice.gid;
            let what = format!(
                "there is no way from {} ({}, gid index {}) to {peer}; choose the gid index of an \
                 address in the peer's network",
                own.address, own.kind, own.index
            );
            said(&what, &error)
        })
    }

    fn ready_to_send(&self, wire: &mut Wire, own: &Hello, peer: &Hello) -> io::Result<()> {
        let mut attr = attributes(sys::QPS_RTS);
        attr.timeout = self.options.ack_timeout.clamp(1, 31);
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES_NOT_READY;
        attr.sq_psn = own.psn;
        attr.max_rd_atomic = self.limits.reads.1.min(peer.reads_max).max(1);
        let mask = sys::QP_STATE
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        wire.modify(&mut attr, mask).map_err(|error| said("the device does not send", &error))
    }

    /// The strongest mode that this side can promise for what it receives.
    fn promise(&self, wire: &Wire) -> Publish {
        let keeps_order = cfg!(target_arch = "x86_64") && !self.options.relaxed_ordering;
        match self.options.publish {
            None | Some(Publish::InOrderPoll) if keeps_order && wire.writes_in_order() => {
                Publish::InOrderPoll
            }
            None | Some(Publish::InOrderPoll | Publish::Notify) => Publish::Notify,
            Some(Publish::NotifyCounted) => Publish::NotifyCounted,
        }
    }
}

fn attributes(state: c_int) -> sys::QpAttr {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut attr: sys::QpAttr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr
}

fn said(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The socket is silent from here on; the system asks a silent peer whether it is there.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    Ok(())
}
