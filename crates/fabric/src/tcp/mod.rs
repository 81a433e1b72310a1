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
//! `Local` waits for the peer's cumulative acknowledgement, as on RDMA's reliable connections, so
//! that an operation that the peer refuses ends once, with its error. Acknowledgements ride on what
//! the peer sends next, or leave at its next poll.
//!
//! **Invariants.** Frames are applied in the order in which they were posted, so that
//! [`Publish::InOrderPoll`] holds; the default is nevertheless [`Publish::Notify`], so that
//! protocols are not written against the strongest transport by accident. The peer is hostile until
//! checked: keys are random, belong to one connection and are looked up with bounds at each frame;
//! what it can make this side hold is bounded by `max_send` and by the operations that it may have
//! outstanding. A breach ends the connection with a `Nak` that names the operation.
//!
//! **Not done here.** Neither encryption nor authentication beyond the offer's random token, which
//! travels over the control plane; do not bind beyond loopback without a trusted network.

mod apply;
mod endpoint;
mod frame;
mod ledger;
mod lobby;
mod outbox;
mod parser;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::token::Token;
use crate::{Atomics, Caps, Endpoint, Fabric, FabricError, LinkId, Offer, Publish, Slab};
use endpoint::TcpEndpoint;
use lobby::{Greeting, Lobby, MAGIC};

/// Bytes of one `send`.
const MESSAGE_MAX: usize = 1024;
/// Operations that a peer may announce to have outstanding.
const PEER_OPS_MAX: u32 = 1 << 16;

/// How a [`TcpFabric`] behaves.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Where to listen; a port is chosen by the system.
    pub bind: IpAddr,
    /// Where peers reach this process, if that is not `bind`.
    pub advertise: Option<IpAddr>,
    /// What [`Caps::publish`] says. The transport keeps the strongest promise in any case.
    pub publish: Publish,
    /// How long `connect` waits for the peer.
    pub connect_timeout: Duration,
    /// Operations that can be outstanding on an endpoint.
    pub ops_max: u32,
    /// Bytes of the socket's send and receive buffers; `None` leaves them to the system, which
    /// adapts them.
    pub socket_bytes: Option<usize>,
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
        }
    }
}

/// The TCP connections of one process.
pub struct TcpFabric {
    options: TcpOptions,
    reachable: SocketAddr,
    lobby: Arc<Lobby>,
}

impl TcpFabric {
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
        let lobby = Arc::new(Lobby::new(listener).map_err(failed)?);
        Ok(Arc::new(Self { options, reachable, lobby }))
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
            max_inline: 256,
            max_msg: 1 << 30,
            max_send: MESSAGE_MAX,
            max_ops: self.options.ops_max.min(PEER_OPS_MAX),
        }
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        Slab::heap(bytes)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let failed = |source| FabricError::Connect { link: link.to_string(), source };
        let token = Token::random().map_err(failed)?;
        self.lobby.expect(token);
        Ok(Box::new(TcpOffer {
            link,
            token,
            caps: self.caps(),
            reachable: self.reachable,
            lobby: self.lobby.clone(),
            timeout: self.options.connect_timeout,
            socket_bytes: self.options.socket_bytes,
        }))
    }
}

/// A token in the lobby.
struct TcpOffer {
    link: LinkId,
    token: Token,
    caps: Caps,
    reachable: SocketAddr,
    lobby: Arc<Lobby>,
    timeout: Duration,
    socket_bytes: Option<usize>,
}

impl Offer for TcpOffer {
    fn address(&self) -> Vec<u8> {
        encode_address(&self.token, self.reachable)
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let (peer, place) =
            decode_address(peer).ok_or(FabricError::Malformed { what: "address" })?;
        let failed = |source| FabricError::Connect { link: self.link.to_string(), source };
        let deadline = Instant::now() + self.timeout;
        // Both sides come to the same decision; the tokens differ where a worker connects with
        // itself.
        let dials = (self.link.local, self.token) < (self.link.remote, peer);
        let (stream, greeting) = match dials {
            true => self.dial(&peer, place, deadline),
            false => self.answer(&peer, deadline),
        }
        .map_err(failed)?;
        self.prepare(&stream).map_err(failed)?;
        Ok(Box::new(TcpEndpoint::new(self.caps, stream, greeting.ops_max)))
    }
}

impl TcpOffer {
    fn dial(
        &self,
        peer: &Token,
        place: SocketAddr,
        deadline: Instant,
    ) -> io::Result<(TcpStream, Greeting)> {
        let mut stream = TcpStream::connect_timeout(&place, time_left(deadline)?)?;
        stream.write_all(&self.greeting(peer).encode())?;
        let mut bytes = [0; Greeting::BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            stream.set_read_timeout(Some(time_left(deadline)?))?;
            match stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Linux reports a timed-out read as one that would block.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        match Greeting::decode(&bytes).filter(|greeting| self.is_peer(greeting, peer)) {
            Some(greeting) => Ok((stream, greeting)),
            None => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the greeting is not the peer's"))
            }
        }
    }

    fn answer(&self, peer: &Token, deadline: Instant) -> io::Result<(TcpStream, Greeting)> {
        loop {
            let (mut stream, greeting) = self.lobby.wait(&self.token, deadline)?;
            if self.is_peer(&greeting, peer) {
                stream.set_nonblocking(false)?;
                stream.write_all(&self.greeting(peer).encode())?;
                return Ok((stream, greeting));
            }
        }
    }

    fn greeting(&self, peer: &Token) -> Greeting {
        Greeting { link: self.link, to: *peer, from: self.token, ops_max: self.caps.max_ops }
    }

    fn is_peer(&self, greeting: &Greeting, peer: &Token) -> bool {
        let link = LinkId { local: self.link.remote, remote: self.link.local };
        greeting.ops_max <= PEER_OPS_MAX
            && *greeting == Greeting { link, to: self.token, from: *peer, ..*greeting }
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if let Some(bytes) = self.socket_bytes {
            rustix::net::sockopt::set_socket_send_buffer_size(stream, bytes)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(stream, bytes)?;
        }
        Ok(())
    }
}

impl Drop for TcpOffer {
    fn drop(&mut self) {
        self.lobby.forget(&self.token);
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Magic, token, port, 4 or 16 bytes of the IP address.
fn encode_address(token: &Token, place: SocketAddr) -> Vec<u8> {
    let mut out = [&MAGIC[..], token.bytes()].concat();
    out.extend_from_slice(&place.port().to_le_bytes());
    match place.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out
}

fn decode_address(bytes: &[u8]) -> Option<(Token, SocketAddr)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (token, rest) = rest.split_first_chunk::<{ Token::BYTES }>()?;
    let (port, ip) = rest.split_first_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    let place = SocketAddr::new(ip, u16::from_le_bytes(*port));
    (*magic == MAGIC).then_some((Token::from_bytes(*token), place))
}
