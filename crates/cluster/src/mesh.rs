//! How the nodes of a job find each other.
//!
//! Rank 0 listens; every other rank listens too, tells rank 0 its port, and learns all ports once
//! everybody has come. Then each connects with the ranks below its own. Whoever connects says
//! [`Hello`] first, and is refused unless it knows the job's token.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::control::Control;
use crate::error::{Cause, ClusterError, NodeFailure};
use crate::frame::Frame;
use crate::launch::Exits;

/// The environment variable that carries an [`Invitation`] to a node's process.
pub const INVITATION_VARIABLE: &str = "MILLSTREAM_INVITATION";

/// Within this time all nodes of a job have come.
const JOIN: Duration = Duration::from_secs(20);
/// Within this time a connection has said hello.
const HELLO: Duration = Duration::from_secs(2);
/// Connections that have not said hello, at most; the oldest is dropped for one more.
const STRANGERS_MAX: usize = 64;
/// How often a listener looks for children that died instead of coming.
const LOOK: Duration = Duration::from_millis(20);

const MAGIC: [u8; 8] = *b"MILLCTRL";
const VERSION: u32 = 1;

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) process: u32,
    /// Bytes that came behind the handshake.
    pub(crate) inbox: Vec<u8>,
}

/// What a process needs to join a job. It holds the job's secret: it goes through the environment,
/// which only the same user may read, and never over a command line.
#[derive(Clone)]
pub struct Invitation {
    pub(crate) rank: u32,
    pub(crate) nodes: u32,
    pub(crate) generation: u32,
    pub(crate) at: SocketAddr,
    /// The launcher, with which this process dies; 0 for none.
    pub(crate) parent: u32,
    pub(crate) token: Token,
}

/// 128 random bits that the nodes of a job share.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 16]);

impl Invitation {
    /// The invitation in the environment, if a launcher left one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn from_env() -> Result<Option<Self>, ClusterError> {
        match std::env::var_os(INVITATION_VARIABLE) {
            None => Ok(None),
            Some(text) => {
                text.to_str().and_then(Self::parse).map(Some).ok_or(ClusterError::Invitation)
            }
        }
    }

    /// The rank that this process will have.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// All nodes of the job.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Which start of the job this is; higher after each restart.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Connects with all other nodes. The calling thread should live as long as the process does:
    /// the kernel ties the process to its launcher by it.
    ///
    /// # Errors
    /// When rank 0 refuses, or nodes do not come within 20 s.
    pub fn join(&self) -> Result<Control, ClusterError> {
        self.die_with_parent()?;
        let deadline = Instant::now() + JOIN;
        let listener = listen(SocketAddr::new(self.at.ip(), 0))?;
        let port = listener.local_addr().map_err(ClusterError::system("a socket's address"))?;
        let hello = Hello::new(self, port.port());
        let (first, nodes) = connect(self.at, 0, hello, deadline)?;
        if nodes.len() != self.nodes as usize {
            let detail = format!("it speaks of {} nodes, not {}", nodes.len(), self.nodes);
            return Err(ClusterError::Join { rank: 0, detail });
        }
        let mut peers: Vec<Option<Peer>> = (0..self.nodes).map(|_| None).collect();
        peers[0] = Some(Peer { process: nodes[0].1, ..first });
        for rank in 1..self.rank {
            let (port, process) = nodes[rank as usize];
            let (peer, _) = connect(SocketAddr::new(self.at.ip(), port), rank, hello, deadline)?;
            peers[rank as usize] = Some(Peer { process, ..peer });
        }
        let guests = Reception::new(&listener, self, None).receive(deadline)?;
        for guest in guests {
            let mut stream = guest.stream;
            welcome(&mut stream, guest.hello.rank, &[])?;
            peers[guest.hello.rank as usize] =
                Some(Peer { stream, process: guest.hello.process, inbox: Vec::new() });
        }
        Control::start(self.rank, self.generation, peers, None)
    }

    fn die_with_parent(&self) -> Result<(), ClusterError> {
        if self.parent == 0 {
            return Ok(());
        }
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|errno| ClusterError::system("a death signal")(errno.into()))?;
        // It may have died before it could be asked for.
        let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        if parent == self.parent {
            Ok(())
        } else {
            Err(NodeFailure { rank: 0, process: self.parent, cause: Cause::Lost }.into())
        }
    }

    pub(crate) fn encode(&self) -> String {
        let Self { rank, nodes, generation, at, parent, token } = self;
        let token: String = token.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("1,{rank},{nodes},{generation},{at},{parent},{token}")
    }

    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(',').collect();
        let ["1", rank, nodes, generation, at, parent, token] = fields[..] else { return None };
        let invitation = Self {
            rank: rank.parse().ok()?,
            nodes: nodes.parse().ok()?,
            generation: generation.parse().ok()?,
            at: at.parse().ok()?,
            parent: parent.parse().ok()?,
            token: Token::parse(token)?,
        };
        let Self { rank, nodes, .. } = invitation;
        (rank > 0 && rank < nodes && nodes <= crate::NODES_MAX).then_some(invitation)
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invitation(node {} of {} at {})", self.rank, self.nodes, self.at)
    }
}

impl Token {
    pub(crate) fn random() -> Result<Self, ClusterError> {
        let mut bytes = [0; 16];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|errno| ClusterError::system("randomness")(errno.into()))?;
        assert_eq!(filled, bytes.len(), "the kernel gives up to 256 bytes at once");
        Ok(Self(bytes))
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        if hex.len() != 2 * bytes.len() || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Compares in a time that does not depend on where they differ.
    fn same(&self, other: &Token) -> bool {
        self.0.iter().zip(other.0).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

/// All nodes of a job in this process: for tests and for embedded use. Each belongs to a thread of
/// its own.
///
/// # Errors
/// When the number of nodes is out of bounds, or the operating system gives no sockets or threads.
pub fn in_process(nodes: u32) -> Result<Vec<Control>, ClusterError> {
    check_nodes(nodes)?;
    if nodes == 1 {
        return Ok(vec![Control::solo()?]);
    }
    let root = Root::listen(SocketAddr::from(([127, 0, 0, 1], 0)), nodes, 1, 0)?;
    let mut controls = std::thread::scope(|scope| {
        let joining: Vec<_> = (1..nodes)
            .map(|rank| {
                let invitation = root.invitation(rank);
                scope.spawn(move || invitation.join())
            })
            .collect();
        let first = root.gather(None);
        let others = joining
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(first).chain(others.collect::<Vec<_>>()).collect::<Result<Vec<_>, _>>()
    })?;
    controls.sort_by_key(Control::rank);
    Ok(controls)
}

pub(crate) fn check_nodes(nodes: u32) -> Result<(), ClusterError> {
    if nodes == 0 || nodes > crate::NODES_MAX {
        return Err(ClusterError::Nodes { nodes });
    }
    Ok(())
}

/// Rank 0 before the others have come.
pub(crate) struct Root {
    listener: TcpListener,
    /// An invitation to rank 0 itself: what all have in common.
    common: Invitation,
}

impl Root {
    pub(crate) fn listen(
        at: SocketAddr,
        nodes: u32,
        generation: u32,
        parent: u32,
    ) -> Result<Self, ClusterError> {
        if !at.ip().is_loopback() {
            return Err(ClusterError::NotLoopback { addr: at });
        }
        let listener = listen(at)?;
        let at = listener.local_addr().map_err(ClusterError::system("a socket's address"))?;
        let token = Token::random()?;
        let common = Invitation { rank: 0, nodes, generation, at, parent, token };
        Ok(Self { listener, common })
    }

    pub(crate) fn invitation(&self, rank: u32) -> Invitation {
        Invitation { rank, ..self.common.clone() }
    }

    /// Waits for all nodes, and tells each where the others are. `exits` knows of children that
    /// died instead of coming.
    pub(crate) fn gather(&self, exits: Option<Arc<Exits>>) -> Result<Control, ClusterError> {
        let deadline = Instant::now() + JOIN;
        let guests =
            Reception::new(&self.listener, &self.common, exits.as_deref()).receive(deadline)?;
        let mut peers: Vec<Option<Peer>> = (0..self.common.nodes).map(|_| None).collect();
        let mut nodes = vec![(0, std::process::id()); peers.len()];
        for guest in guests {
            let Hello { rank, port, process, .. } = guest.hello;
            nodes[rank as usize] = (port, process);
            peers[rank as usize] = Some(Peer { stream: guest.stream, process, inbox: Vec::new() });
        }
        for (rank, peer) in peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                welcome(&mut peer.stream, rank as u32, &nodes)?;
            }
        }
        Control::start(0, self.common.generation, peers, exits)
    }
}

fn listen(addr: SocketAddr) -> Result<TcpListener, ClusterError> {
    TcpListener::bind(addr).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => ClusterError::PortInUse { addr },
        _ => ClusterError::Listen { addr, source },
    })
}

/// The first bytes of a connection.
#[derive(Clone, Copy)]
struct Hello {
    generation: u32,
    nodes: u32,
    rank: u32,
    process: u32,
    port: u16,
    token: Token,
}

impl Hello {
    const BYTES: usize = 46;

    fn new(invitation: &Invitation, port: u16) -> Self {
        let &Invitation { rank, nodes, generation, token, .. } = invitation;
        Self { generation, nodes, rank, process: std::process::id(), port, token }
    }

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        let words = [VERSION, self.generation, self.nodes, self.rank, self.process];
        for (word, bytes) in words.iter().zip(out[8..28].as_chunks_mut::<4>().0) {
            *bytes = word.to_le_bytes();
        }
        out[28..30].copy_from_slice(&self.port.to_le_bytes());
        out[30..].copy_from_slice(&self.token.0);
        out
    }

    /// # Errors
    /// Why whoever sent this is refused.
    fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, String> {
        if bytes[..8] != MAGIC {
            return Err("it does not speak this protocol".into());
        }
        let mut words =
            bytes[8..28].as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word));
        let mut word = || words.next().unwrap_or(0);
        let version = word();
        if version != VERSION {
            return Err(format!("it speaks version {version} of the protocol, not {VERSION}"));
        }
        let (generation, nodes, rank, process) = (word(), word(), word(), word());
        let port = u16::from_le_bytes([bytes[28], bytes[29]]);
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[30..]);
        Ok(Self { generation, nodes, rank, process, port, token: Token(token) })
    }
}

/// A node that said a proper hello and waits for its welcome.
struct Guest {
    hello: Hello,
    stream: TcpStream,
}

/// Waits at a listener for the ranks above one's own. Strangers are refused and do not hold anybody
/// up.
struct Reception<'a> {
    listener: &'a TcpListener,
    host: &'a Invitation,
    exits: Option<&'a Exits>,
    guests: Vec<Guest>,
    strangers: Vec<Stranger>,
}

struct Stranger {
    stream: TcpStream,
    bytes: [u8; Hello::BYTES],
    filled: usize,
    since: Instant,
}

impl<'a> Reception<'a> {
    fn new(listener: &'a TcpListener, host: &'a Invitation, exits: Option<&'a Exits>) -> Self {
        Self { listener, host, exits, guests: Vec::new(), strangers: Vec::new() }
    }

    fn receive(mut self, deadline: Instant) -> Result<Vec<Guest>, ClusterError> {
        self.listener.set_nonblocking(true).map_err(ClusterError::system("a socket option"))?;
        let expected = (self.host.nodes - self.host.rank - 1) as usize;
        while self.guests.len() < expected {
            self.await_event()?;
            self.accept()?;
            for stranger in std::mem::take(&mut self.strangers) {
                self.listen_to(stranger);
            }
            if let Some((rank, process, cause)) = self.exits.and_then(Exits::first) {
                return Err(NodeFailure { rank, process, cause }.into());
            }
            if Instant::now() >= deadline {
                let came = |rank| self.guests.iter().any(|guest| guest.hello.rank == rank);
                let rank = (self.host.rank + 1..self.host.nodes).find(|&rank| !came(rank));
                let detail = format!("nothing was heard of it for {} s", JOIN.as_secs());
                return Err(ClusterError::Join { rank: rank.unwrap_or(0), detail });
            }
        }
        Ok(self.guests)
    }

    fn await_event(&self) -> Result<(), ClusterError> {
        let mut fds = vec![PollFd::new(self.listener, PollFlags::IN)];
        for stranger in &self.strangers {
            fds.push(PollFd::from_borrowed_fd(stranger.stream.as_fd(), PollFlags::IN));
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(ClusterError::system("a wait")(errno.into())),
        }
    }

    fn accept(&mut self) -> Result<(), ClusterError> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream
                        .set_nonblocking(true)
                        .map_err(ClusterError::system("a socket option"))?;
                    if self.strangers.len() == STRANGERS_MAX {
                        self.strangers.remove(0);
                    }
                    let (bytes, since) = ([0; Hello::BYTES], Instant::now());
                    self.strangers.push(Stranger { stream, bytes, filled: 0, since });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The connection is gone again, or descriptors are short: the next look may be
                // luckier.
                Err(error) => {
                    tracing::debug!(%error, "accept");
                    return Ok(());
                }
            }
        }
    }

    fn listen_to(&mut self, mut stranger: Stranger) {
        while stranger.filled < Hello::BYTES {
            match stranger.stream.read(&mut stranger.bytes[stranger.filled..]) {
                Ok(0) => return,
                Ok(n) => stranger.filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if stranger.since.elapsed() < HELLO {
                        self.strangers.push(stranger);
                    }
                    return;
                }
                Err(_) => return,
            }
        }
        let mut stream = stranger.stream;
        match Hello::decode(&stranger.bytes).and_then(|hello| self.check(hello)) {
            Ok(hello) => self.guests.push(Guest { hello, stream }),
            Err(reason) => {
                tracing::warn!(%reason, "refused a connection");
                let mut bytes = Vec::new();
                Frame::Refuse { reason }.encode(&mut bytes);
                // Whether it hears why is its own affair.
                let _ = stream.write(&bytes);
            }
        }
    }

    fn check(&self, hello: Hello) -> Result<Hello, String> {
        let host = self.host;
        if !hello.token.same(&host.token)
            || (hello.generation, hello.nodes) != (host.generation, host.nodes)
        {
            return Err("it belongs to another job".into());
        }
        if hello.rank <= host.rank || hello.rank >= host.nodes {
            return Err(format!("rank {} has no business here", hello.rank));
        }
        if self.guests.iter().any(|guest| guest.hello.rank == hello.rank) {
            return Err(format!("rank {} has come already", hello.rank));
        }
        Ok(hello)
    }
}

fn welcome(stream: &mut TcpStream, rank: u32, nodes: &[(u16, u32)]) -> Result<(), ClusterError> {
    let mut bytes = Vec::new();
    Frame::Welcome { nodes: nodes.to_vec() }.encode(&mut bytes);
    let mut write = || {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(HELLO))?;
        stream.write_all(&bytes)
    };
    write().map_err(|error| ClusterError::Join { rank, detail: format!("{error}") })
}

/// Connects, says hello and awaits the welcome.
fn connect(
    addr: SocketAddr,
    rank: u32,
    hello: Hello,
    deadline: Instant,
) -> Result<(Peer, Vec<(u16, u32)>), ClusterError> {
    let join = |error: std::io::Error| {
        let detail = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer".into(),
            _ => format!("{addr}: {error}"),
        };
        ClusterError::Join { rank, detail }
    };
    // A limit of zero would mean none.
    let left = || deadline.saturating_duration_since(Instant::now()).max(LOOK);
    let mut stream = TcpStream::connect_timeout(&addr, left()).map_err(join)?;
    stream.write_all(&hello.encode()).map_err(join)?;
    let mut inbox = Vec::new();
    loop {
        match Frame::decode(&inbox) {
            Ok(Some((Frame::Welcome { nodes }, len))) => {
                inbox.drain(..len);
                return Ok((Peer { stream, process: 0, inbox }, nodes));
            }
            Ok(Some((Frame::Refuse { reason }, _))) => {
                return Err(ClusterError::Refused { rank, addr, reason });
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                let detail = format!("{addr} does not speak this protocol");
                return Err(ClusterError::Join { rank, detail });
            }
        }
        stream.set_read_timeout(Some(left())).map_err(join)?;
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(join(ErrorKind::UnexpectedEof.into())),
            Ok(n) => inbox.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(join(error)),
        }
    }
}

#[cfg(test)]
mod tests;
