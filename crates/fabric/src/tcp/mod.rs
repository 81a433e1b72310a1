//! Workers of any hosts over TCP sockets.
//!
//! One-sided operations are frames that the target's `poll` applies: there is no thread and no
//! system call outside of `submit` and `poll`. A write goes from the slab to the socket and from
//! the socket into the slab; only headers and small bodies are copied in between.
//!
//! ```text
//!   post ─▶ outbox ──writev──▶ socket ──readv──▶ slab, notices, replies       (peer's poll)
//!   Local ◀─ acknowledged                  credit, acks, read data, NAK ─▶ outbox
//! ```
//!
//! The invariants of frames stand at the head of `frames`. [`Publish::InOrderPoll`] holds; the
//! default is nevertheless [`Publish::Notify`], so that protocols are not written against the
//! strongest transport by accident.
//!
//! **Not done here.** Neither encryption nor authentication beyond the offer's random token, which
//! travels over the control plane; do not bind beyond loopback without a trusted network.

mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::frames::{BUFFER_BYTES, COMPACT_BYTES, FrameEndpoint, MESSAGE_MAX};
use crate::listener::{OfferListener, PEER_OPS_MAX, PendingOffer};
use crate::published::PublishedTable;
use crate::pulse::Pulses;
use crate::{
    Atomics, Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Publish, RemoteKey, Slab,
    SlabRange,
};
use wire::Socket;

/// First bytes of an address: name and version of the protocol.
const MAGIC: [u8; 8] = *b"MLSTCP\x00\x01";

/// After so long without a byte the system asks whether the other end is there, …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// … again after each of these, …
const KEEPALIVE_BETWEEN: Duration = Duration::from_secs(5);
/// … and gives the connection up when it was asked so often in vain.
const KEEPALIVE_PROBES: u32 = 4;

/// How a [`TcpFabric`] behaves.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Where to listen; a port is chosen by the system.
    pub bind: IpAddr,
    /// Where peers reach this process, if that is not `bind`.
    pub advertise: Option<IpAddr>,
    /// The value of [`Caps::publish`]. The transport keeps the strongest promise in any case.
    pub publish: Publish,
    /// How long `connect` waits for the peer.
    pub connect_timeout: Duration,
    /// Operations that can be outstanding on an endpoint.
    pub ops_max: u32,
    /// Bytes of the socket's send and receive buffers; `None` leaves them to the system, which
    /// adapts them.
    pub socket_bytes: Option<usize>,
    /// Whether frames carry checksums (CRC-32C), header and body. They do where one end wants it.
    /// Bytes that arrive otherwise than they were sent end the connection ([`ErrorKind::Damaged`]).
    ///
    /// [`ErrorKind::Damaged`]: crate::ErrorKind::Damaged
    pub checksum: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertise: None,
            publish: Publish::Notify,
            connect_timeout: Duration::from_secs(10),
            ops_max: 1024,
            socket_bytes: None,
            checksum: true,
        }
    }
}

/// The TCP connections of one process.
pub struct TcpFabric {
    options: TcpOptions,
    reachable: SocketAddr,
    listener: Arc<OfferListener>,
    pulses: Arc<Pulses>,
    published: Arc<PublishedTable>,
}

impl TcpFabric {
    /// Bytes that each endpoint has besides its slabs, as long as the socket takes what is posted:
    /// the buffer that frames are read through, and headers and small bodies that wait to be sent.
    /// One that answers reads has a copy of an answer besides.
    pub const ENDPOINT_BYTES: usize = BUFFER_BYTES + COMPACT_BYTES;

    /// Listens.
    ///
    /// # Errors
    /// [`FabricError::Connect`] when the address cannot be bound.
    pub fn new(options: TcpOptions) -> Result<Arc<Self>, FabricError> {
        let failed =
            |source| FabricError::Connect { link: format!("anybody at {}", options.bind), source };
        let listener = TcpListener::bind((options.bind, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let reachable = SocketAddr::new(options.advertise.unwrap_or(options.bind), port);
        let listener = Arc::new(OfferListener::new(listener).map_err(failed)?);
        let (pulses, published) = (Arc::default(), Arc::default());
        Ok(Arc::new(Self { options, reachable, listener, pulses, published }))
    }
}

impl Fabric for TcpFabric {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn caps(&self) -> Caps {
        Caps {
            publish: self.options.publish,
            atomics: Atomics::Global,
            ordered_completions: true,
            names_refused: true,
            max_inline: 256,
            max_msg: 1 << 30,
            max_send: MESSAGE_MAX,
            max_ops: self.options.ops_max.min(PEER_OPS_MAX),
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

    fn pulses(&self) -> Option<&Pulses> {
        Some(&self.pulses)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let caps = self.caps();
        let checked = self.options.checksum;
        let place =
            PendingOffer::new(&self.listener, link, MAGIC, self.reachable, caps.max_ops, checked);
        let place =
            place.map_err(|source| FabricError::Connect { link: link.to_string(), source })?;
        Ok(Box::new(TcpOffer {
            place,
            caps,
            checked,
            pulses: Arc::clone(&self.pulses),
            published: Arc::clone(&self.published),
            timeout: self.options.connect_timeout,
            socket_bytes: self.options.socket_bytes,
        }))
    }
}

/// A place in the listener.
struct TcpOffer {
    place: PendingOffer,
    caps: Caps,
    checked: bool,
    pulses: Arc<Pulses>,
    published: Arc<PublishedTable>,
    timeout: Duration,
    socket_bytes: Option<usize>,
}

impl Offer for TcpOffer {
    fn address(&self) -> Vec<u8> {
        self.place.address()
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let (stream, greeting) = self.place.rendezvous(peer, Instant::now() + self.timeout)?;
        self.prepare(&stream).map_err(|source| self.place.failed(source))?;
        let checked = self.checked || greeting.checked;
        let pulse = self.pulses.add(self.place.name(&greeting), self.place.link(), stream);
        let wire = Socket::new(pulse);
        let (caps, published) = (self.caps, self.published);
        Ok(Box::new(FrameEndpoint::new(caps, wire, published, greeting.ops_max, checked)))
    }
}

impl TcpOffer {
    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // A middlebox keeps a connection only as long as it sees traffic. There is no limit
        // for what is sent and not acknowledged (TCP_USER_TIMEOUT): it would also end connections
        // whose other end is busy and reads nothing; see `pulse`.
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_BETWEEN)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
        if let Some(bytes) = self.socket_bytes {
            sockopt::set_socket_send_buffer_size(stream, bytes)?;
            sockopt::set_socket_recv_buffer_size(stream, bytes)?;
        }
        Ok(())
    }
}
