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
//! side learns that the peer is gone. Or they meet by rdma_cm ([`Connect`]), which then says it.
//!
//! **Receives.** All connections of a fabric take theirs from one shared queue. The receives that a
//! peer may use are announced by messages that need receives themselves; some are reserved for
//! them, and who has used up these looks at the peer's counter by a read before it sends another.
//! No credit is ever written to a word of the peer, where two of them might land reversed (G3).
//!
//! **Groups.** Datagrams to many at once go by queue pairs of their own ([`Multicast`]).
//!
//! **Keys.** Each export is a region of its own, so that taking a key back takes it from the
//! device. Keys are bound to the protection domain of the fabric, that is to the job. That a key
//! serves only its own connection is checked by the side that uses it, and not by the device. A
//! published range is a region that can be read and nothing else; the domain is that of all
//! connections, so that one region serves all peers.
//!
//! **How a write becomes known.** [`Publish::InOrderPoll`] only where both devices say that the
//! bytes of a write appear in order, on a processor that keeps that order, and without relaxed
//! ordering; else [`Publish::Notify`]. Where a device carries no immediate data (iWARP), notices
//! are messages behind the writes that they cover. A completion at the sender never means more than
//! that the source is free (G5).
//!
//! **Failure.** The first bad completion, the end of the socket or an event of the device ends the
//! connection: the queue pair goes to error, gives back what it can, and is destroyed before
//! anything is reported. A new connection has a new queue pair, new packet numbers and new keys, so
//! that nothing of the old one is taken for its own (G8).

mod cm;
mod device;
mod endpoint;
mod events;
mod group;
mod handshake;
mod interface;
mod library;
mod line;
mod memory;
mod objects;
mod offer;
mod options;
mod published;
mod queue;
mod receives;
mod survey;
mod sys;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use crate::listener::{OfferListener, PEER_OPS_MAX, PendingOffer};
use crate::multicast::Multicast;
use crate::{
    Atomics, Caps, Fabric, FabricError, LinkId, Offer, Publish, RemoteKey, Slab, SlabRange,
};
use cm::{CmLibrary, CmPlace};
use device::{Opened, choose, open_all};
use endpoint::{CONTROL_OPS, CONTROL_RECEIVES};
use events::Events;
use handshake::MAGIC;
use library::Library;
use memory::DeviceMemory;
use objects::Domain;
use offer::{Rendezvous, VerbsOffer};
use published::PublishedRegions;
use receives::{HEAD_BYTES, MESSAGE_BYTES, Receives};

pub use device::{DeviceChoice, DeviceInfo, GidInfo, GidKind, PortInfo};
pub use options::{Connect, VerbsOptions};
pub use survey::{Survey, probe, probe_groups, survey};

/// Bytes of [`Src::Inline`](crate::Src): in the request where the device can, or else in a copy of
/// ours.
const INLINE_MAX: usize = 220;
/// Bytes of one operation, where the port allows as much.
const MESSAGE_MAX: usize = 1 << 30;
/// Reads and atomics of a connection at a time; more wait in the device.
const READS_MAX: u32 = 16;
/// Receives that one connection can promise, where there are many.
const PROMISE_MAX: u32 = 4096;
/// Attempts to deliver a packet after the first. Seven would be the most that a device counts, but
/// Soft-RoCE takes it to be without end, as it is of [`RETRIES_NOT_READY`].
const RETRIES: u8 = 6;
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
    choice: DeviceChoice,
    receives: Arc<Receives>,
    events: Arc<Events>,
    door: Door,
    /// The address by which the port is in groups, where it can be.
    groups_at: Option<Ipv4Addr>,
    published: PublishedRegions,
}

/// Where offers are met.
enum Door {
    Socket { reachable: SocketAddr, listener: Arc<OfferListener> },
    Cm { library: Arc<CmLibrary>, at: IpAddr },
}

impl Door {
    fn place(&self, link: LinkId, ops_max: u32) -> io::Result<Rendezvous> {
        Ok(match self {
            Door::Socket { reachable, listener } => Rendezvous::Socket(PendingOffer::new(
                listener, link, MAGIC, *reachable, ops_max, false,
            )?),
            Door::Cm { library, at } => Rendezvous::Cm(CmPlace::new(library, link, *at)?),
        })
    }
}

/// The limits of the device.
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
    /// It carries no immediate data, or is not asked to.
    headed: bool,
    iwarp: bool,
}

impl Limits {
    /// The limits of one connection, whose notices are messages or not. A write with a notice
    /// takes two requests then.
    fn caps(&self, headed: bool) -> Caps {
        let (head, requests) = if headed { (HEAD_BYTES, 2) } else { (0, 1) };
        Caps {
            publish: Publish::Notify,
            atomics: atomics(self.atomics),
            ordered_completions: true,
            names_refused: !self.iwarp,
            max_inline: INLINE_MAX,
            max_msg: self.message_max,
            max_send: MESSAGE_BYTES - head,
            max_ops: (self.ops_max / requests).max(1),
        }
    }
}

impl VerbsFabric {
    /// Memory of each endpoint besides what it exports, in bytes.
    pub const ENDPOINT_BYTES: usize = (256 + CONTROL_OPS as usize) * MESSAGE_BYTES + 4096;

    /// Memory of a member of a group, in bytes, at the largest MTU.
    pub const MEMBER_BYTES: usize = group::Layout { packet: 4096 }.bytes();

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

    fn on(
        device: Opened,
        choice: DeviceChoice,
        options: VerbsOptions,
    ) -> Result<Arc<Self>, FabricError> {
        let refused = |source: io::Error| FabricError::Device {
            detail: format!("{}: {source}", choice.device),
        };
        let failed =
            |source| FabricError::Connect { link: format!("anybody at {}", options.bind), source };
        let groups_at = group::interface(&device.info, &choice);
        let (limits, entries) = limits(&device.info, &choice, &options);
        let domain = Arc::new(device.into_domain().map_err(refused)?);
        let receives = Receives::new(&domain, entries)?;
        let events = Events::new(&domain).map_err(refused)?;
        let door = match options.connect {
            Connect::Tcp => {
                let listener = TcpListener::bind((options.bind, 0)).map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                let reachable = SocketAddr::new(options.advertise.unwrap_or(options.bind), port);
                let listener = Arc::new(OfferListener::new(listener).map_err(failed)?);
                Door::Socket { reachable, listener }
            }
            Connect::RdmaCm => {
                let missing = |detail: String| FabricError::Device { detail };
                let library = CmLibrary::open().map_err(|error| missing(error.to_string()))?;
                let at = cm::address_of(&choice, &options);
                cm::check(&library, &domain, at, &choice.device).map_err(missing)?;
                Door::Cm { library, at }
            }
        };
        let published = PublishedRegions::default();
        Ok(Arc::new(Self {
            options,
            domain,
            limits,
            choice,
            receives,
            events,
            door,
            groups_at,
            published,
        }))
    }

    /// The device in use, and the reason.
    pub fn choice(&self) -> &DeviceChoice {
        &self.choice
    }

    /// Shared receives that no connection has promised to its peer or keeps for itself.
    pub fn receives_free(&self) -> u32 {
        self.receives.free()
    }
}

/// The limits of options and device, and the entries of the shared receives.
fn limits(device: &DeviceInfo, choice: &DeviceChoice, options: &VerbsOptions) -> (Limits, u32) {
    let port = device.ports.iter().find(|port| port.number == choice.port);
    let (message_max, lid) = port.map_or((0, 0), |port| (port.message_max, port.lid));
    let entries = options.receives_max.clamp(CONTROL_RECEIVES, device.shared_receives_max.max(8));
    let room = device.requests_max.saturating_sub(CONTROL_OPS);
    let ops_max = options.ops_max.min(room).clamp(2, PEER_OPS_MAX);
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
        headed: !device.infiniband || options.send_only,
        iwarp: device.iwarp,
    };
    (limits, entries)
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn caps(&self) -> Caps {
        let publish = self.options.publish.unwrap_or(Publish::Notify);
        Caps { publish, ..self.limits.caps(self.limits.headed) }
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        DeviceMemory::slab(&self.domain, bytes)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.published.publish(&self.domain, range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.published.unpublish(&key);
    }

    fn multicast(&self) -> Option<&dyn Multicast> {
        self.groups_at.is_some().then_some(self)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let ops_max = self.limits.ops_max;
        let place = self.door.place(link, ops_max).map_err(failed)?;
        Ok(Box::new(VerbsOffer {
            link,
            place,
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
