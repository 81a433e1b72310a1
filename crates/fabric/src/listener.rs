//! Accepts connections: one listener for all offers of a fabric that connects over sockets.
//!
//! A client has to greet with the token of an offer; until then it costs one socket and a few
//! bytes, both bounded, and no thread waits for it. Any thread that waits for its peer serves the
//! listener for all offers; it has no thread of its own.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::token::Token;
use crate::{FabricError, LinkId};

/// First bytes of a greeting: name and version of the protocol.
const MAGIC: [u8; 8] = *b"MLSTCP\x00\x02";
/// The bit of a greeting that asks for checksums.
const CHECKED: u32 = 1;
/// Operations that a peer may announce to have outstanding.
pub(crate) const PEER_OPS_MAX: u32 = 1 << 16;

/// Sockets that have not greeted yet; beyond that the oldest has to go.
const STRANGERS_MAX: usize = 256;
/// How long a client may take to greet.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before asking again for connections that the system refuses to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The first message of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The pair as the greeter sees it.
    pub(crate) link: LinkId,
    /// The offer that is greeted.
    pub(crate) to: Token,
    /// The offer of the greeter.
    pub(crate) from: Token,
    /// Reads and atomics that the greeter may have outstanding.
    pub(crate) ops_max: u32,
    /// The greeter wants checksums. They are there where one of both does.
    pub(crate) checked: bool,
}

impl Greeting {
    /// Bytes on the wire.
    pub(crate) const BYTES: usize = 60;
    /// Where its own checksum is.
    const CHECK: usize = 56;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.link.local.to_le_bytes());
        out[12..16].copy_from_slice(&self.link.remote.to_le_bytes());
        out[16..32].copy_from_slice(self.to.bytes());
        out[32..48].copy_from_slice(self.from.bytes());
        out[48..52].copy_from_slice(&self.ops_max.to_le_bytes());
        out[52..Self::CHECK].copy_from_slice(&(CHECKED * u32::from(self.checked)).to_le_bytes());
        let check = crc32c::crc32c(&out[..Self::CHECK]);
        out[Self::CHECK..].copy_from_slice(&check.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let quad = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let token = |at: usize| bytes[at..at + 16].try_into().map(Token::from_bytes).ok();
        let intact = crc32c::crc32c(&bytes[..Self::CHECK]) == quad(Self::CHECK)?;
        (bytes[..8] == MAGIC && intact).then_some(())?;
        Some(Self {
            link: LinkId { local: quad(8)?, remote: quad(12)? },
            to: token(16)?,
            from: token(32)?,
            ops_max: quad(48)?,
            checked: quad(52)? & CHECKED != 0,
        })
    }
}

/// An offer that the listener knows, until it is dropped.
pub(crate) struct PendingOffer {
    link: LinkId,
    token: Token,
    /// First bytes of an address: name and version of the transport.
    magic: [u8; 8],
    reachable: SocketAddr,
    ops_max: u32,
    checked: bool,
    listener: Arc<OfferListener>,
}

impl PendingOffer {
    /// Lets the peer of the link greet at the address `reachable`. `checked` asks for
    /// checksums.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub(crate) fn new(
        listener: &Arc<OfferListener>,
        link: LinkId,
        magic: [u8; 8],
        reachable: SocketAddr,
        ops_max: u32,
        checked: bool,
    ) -> io::Result<Self> {
        let token = Token::random()?;
        listener.lock().offers.insert(token, None);
        Ok(Self { link, token, magic, reachable, ops_max, checked, listener: listener.clone() })
    }

    /// See [`address`].
    pub(crate) fn address(&self) -> Vec<u8> {
        address(&self.magic, &self.token, self.reachable)
    }

    /// Connects to the peer of this address: returns a blocking socket to it, and its greeting.
    ///
    /// # Errors
    /// [`FabricError::Malformed`] for an address of another transport, [`FabricError::Connect`] at
    /// the deadline and when the peer is not there.
    pub(crate) fn rendezvous(
        &self,
        peer: &[u8],
        deadline: Instant,
    ) -> Result<(TcpStream, Greeting), FabricError> {
        let parsed = parse(&self.magic, peer);
        let (peer, place) = parsed.ok_or(FabricError::Malformed { what: "address" })?;
        // Both sides come to the same decision; the tokens differ where a worker connects with
        // itself.
        let dials = (self.link.local, self.token) < (self.link.remote, peer);
        let connected =
            if dials { self.dial(&peer, place, deadline) } else { self.answer(&peer, deadline) };
        connected.map_err(|source| self.failed(source))
    }

    /// The pair.
    pub(crate) fn link(&self) -> LinkId {
        self.link
    }

    /// The name of the connection with this greeter: the same at both ends.
    pub(crate) fn name(&self, greeting: &Greeting) -> [u8; Token::BYTES] {
        let theirs = greeting.from.bytes();
        std::array::from_fn(|at| self.token.bytes()[at] ^ theirs[at])
    }

    /// An error that names the pair.
    pub(crate) fn failed(&self, source: io::Error) -> FabricError {
        FabricError::Connect { link: self.link.to_string(), source }
    }

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
                Ok(0) => return Err(broken(LEFT)),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(broken(LEFT));
                }
                // Linux reports a timed-out read as one that would block.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        match Greeting::decode(&bytes).filter(|greeting| self.is_peer(greeting, peer)) {
            Some(greeting) => Ok((stream, greeting)),
            None => Err(broken(refusal(&MAGIC, &bytes))),
        }
    }

    fn answer(&self, peer: &Token, deadline: Instant) -> io::Result<(TcpStream, Greeting)> {
        loop {
            let (mut stream, greeting) = self.listener.wait(&self.token, deadline)?;
            if self.is_peer(&greeting, peer) {
                stream.set_nonblocking(false)?;
                stream.write_all(&self.greeting(peer).encode())?;
                return Ok((stream, greeting));
            }
        }
    }

    fn greeting(&self, peer: &Token) -> Greeting {
        let &Self { link, token, ops_max, checked, .. } = self;
        Greeting { link, to: *peer, from: token, ops_max, checked }
    }

    fn is_peer(&self, greeting: &Greeting, peer: &Token) -> bool {
        let link = LinkId { local: self.link.remote, remote: self.link.local };
        greeting.ops_max <= PEER_OPS_MAX
            && *greeting == Greeting { link, to: self.token, from: *peer, ..*greeting }
    }
}

impl Drop for PendingOffer {
    fn drop(&mut self) {
        self.listener.lock().offers.remove(&self.token);
    }
}

/// Why a peer that was dialled is not the peer.
pub(crate) const LEFT: &str = "the peer left in the middle of its greeting";

/// The reason why the greeting of a dialled peer is refused.
pub(crate) fn refusal(magic: &[u8; 8], greeting: &[u8]) -> &'static str {
    match greeting.split_first_chunk::<8>() {
        Some((theirs, _)) if theirs != magic && theirs[..6] == magic[..6] => {
            "the peer speaks another version of the protocol: run the same release everywhere"
        }
        _ => "the greeting is not the peer's: something else, or another job, listens there",
    }
}

/// An error of a peer that does not keep to the protocol.
pub(crate) fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where an offer is met: magic, token, port, 4 or 16 bytes of the IP address.
pub(crate) fn address(magic: &[u8; 8], token: &Token, at: SocketAddr) -> Vec<u8> {
    let mut out = [&magic[..], token.bytes()].concat();
    out.extend_from_slice(&at.port().to_le_bytes());
    match at.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out
}

/// The inverse of [`address`]; `None` for one of another transport.
pub(crate) fn parse(magic: &[u8; 8], address: &[u8]) -> Option<(Token, SocketAddr)> {
    let (theirs, rest) = address.split_first_chunk::<8>()?;
    let (token, rest) = rest.split_first_chunk::<{ Token::BYTES }>()?;
    let (port, ip) = rest.split_first_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    let place = SocketAddr::new(ip, u16::from_le_bytes(*port));
    (theirs == magic).then_some((Token::from_bytes(*token), place))
}

/// Whether descriptors or memory are short for now: unidentified sockets may hold them, and they
/// expire after a while.
fn is_short(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

pub(crate) fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The listener and the offers that wait for their peers.
pub(crate) struct OfferListener {
    listener: TcpListener,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Offers that wait, and the connections that have come for them.
    offers: HashMap<Token, Option<(TcpStream, Greeting)>>,
    /// Sockets that have not greeted; `None` while a thread serves them.
    strangers: Option<Vec<Stranger>>,
}

struct Stranger {
    stream: TcpStream,
    greeting: [u8; Greeting::BYTES],
    filled: usize,
    deadline: Instant,
}

impl OfferListener {
    /// # Errors
    /// When the listener cannot be made non-blocking.
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let state = State { strangers: Some(Vec::new()), ..State::default() };
        Ok(Self { listener, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Waits until a peer greets this offer.
    ///
    /// # Errors
    /// At the deadline, or when the listener fails.
    fn wait(&self, offer: &Token, deadline: Instant) -> io::Result<(TcpStream, Greeting)> {
        let mut state = self.lock();
        loop {
            if let Some(arrived) = state.offers.get_mut(offer).and_then(Option::take) {
                return Ok(arrived);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(mut strangers) = state.strangers.take() else {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(state);
            let served = self.serve(&mut strangers, left);
            state = self.lock();
            state.strangers = Some(strangers);
            self.changed.notify_all();
            for (stream, greeting) in served? {
                if let Some(place) = state.offers.get_mut(&greeting.to) {
                    *place = Some((stream, greeting));
                }
            }
        }
    }

    /// Waits once for events of the listener and of sockets that have not greeted; returns those
    /// that have.
    fn serve(
        &self,
        strangers: &mut Vec<Stranger>,
        left: Duration,
    ) -> io::Result<Vec<(TcpStream, Greeting)>> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        fds.extend(
            strangers.iter().map(|s| PollFd::from_borrowed_fd(s.stream.as_fd(), PollFlags::IN)),
        );
        let timeout = Timespec::try_from(left.min(GREETING_TIMEOUT))
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // No more at a time, so that accepted sockets are served.
        for _ in 0..STRANGERS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if strangers.len() == STRANGERS_MAX {
                        strangers.remove(0);
                    }
                    strangers.extend(Stranger::new(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_short(&error) => {
                    std::thread::sleep(ACCEPT_PAUSE.min(left));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let mut greeted = Vec::new();
        for mut stranger in std::mem::take(strangers) {
            match stranger.listen() {
                Ok(Some(greeting)) => greeted.push((stranger.stream, greeting)),
                Ok(None) => strangers.push(stranger),
                Err(_) => {}
            }
        }
        Ok(greeted)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stranger {
    fn new(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let deadline = Instant::now() + GREETING_TIMEOUT;
        Some(Self { stream, greeting: [0; Greeting::BYTES], filled: 0, deadline })
    }

    /// Reads on; an error means that this is none of ours.
    fn listen(&mut self) -> io::Result<Option<Greeting>> {
        while self.filled < Greeting::BYTES {
            match self.stream.read(&mut self.greeting[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let in_time = Instant::now() < self.deadline;
                    return if in_time { Ok(None) } else { Err(io::ErrorKind::TimedOut.into()) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Greeting::decode(&self.greeting).map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }
}
