//! How nodes that rank 0 started find each other, and what all nodes say when they connect.
//!
//! Rank 0 listens; every other rank listens too, tells rank 0 its port, and learns all ports once
//! everybody has come. Then each connects with the ranks below its own. Whoever connects says
//! [`Hello`] first, and is refused unless it knows the job's token.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::acceptor::Acceptor;
use crate::control::Control;
use crate::error::{Cause, ClusterError, NodeFailure};
use crate::frame::ControlFrame;
use crate::launch::Exits;
use crate::secure::{SecureStream, Security, objection};

/// The environment variable that carries an [`Invitation`] to a node's process.
pub const INVITATION_VARIABLE: &str = "MILLSTREAM_INVITATION";

/// Within this time all nodes of a job have come.
const JOIN: Duration = Duration::from_secs(20);
/// Within this time a connection has said hello.
pub(crate) const HELLO: Duration = Duration::from_secs(2);
/// How often a listener looks for children that died instead of coming.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Within this time a host answers that is there.
const DIAL: Duration = Duration::from_secs(3);

/// Why a node is refused that does not know the token.
pub(crate) const ANOTHER_JOB: &str = "it belongs to another job";
/// Why a node is refused while another one of its rank is connected.
pub(crate) const JOINED_ALREADY: &str = "a node of its rank has joined already";

const MAGIC: [u8; 8] = *b"MILLCTRL";
/// The version of all that nodes send each other: of this handshake, of the control plane, and of
/// the frames between workers. It rises when any of them changes.
const VERSION: u32 = 8;

/// The deadline for the other nodes to join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinDeadline {
    pub(crate) until: Instant,
    pub(crate) limit: Duration,
}

impl JoinDeadline {
    /// From now on.
    pub(crate) fn of(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, limit }
    }
}

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) stream: SecureStream,
    pub(crate) process: u32,
    /// Bytes that came behind the handshake.
    pub(crate) inbox: Vec<u8>,
}

/// The data that a process needs to join a job. It holds the job's secret: it goes through the
/// environment, which only the same user may read, and never over a command line.
#[derive(Clone)]
pub struct Invitation {
    pub(crate) rank: u32,
    pub(crate) nodes: u32,
    pub(crate) generation: u32,
    pub(crate) at: SocketAddr,
    /// The launcher, with which this process dies; 0 for none.
    pub(crate) parent: u32,
    pub(crate) token: JobToken,
    pub(crate) security: Security,
}

/// 128 random bits that the nodes of a job share.
#[derive(Clone, Copy)]
pub(crate) struct JobToken([u8; 16]);

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
        let deadline = JoinDeadline::of(JOIN);
        let listener = listen(SocketAddr::new(self.at.ip(), 0))?;
        let port = listener.local_addr().map_err(ClusterError::system("a socket's address"))?;
        let hello = Hello::new(self, port.port());
        let (first, nodes) = connect(self.at, 0, hello, &self.security, deadline)?;
        if nodes.len() != self.nodes as usize {
            let detail = format!("it speaks of {} nodes, not {}", nodes.len(), self.nodes);
            return Err(ClusterError::Join { rank: 0, detail });
        }
        let mut peers: Vec<Option<Peer>> = (0..self.nodes).map(|_| None).collect();
        peers[0] = Some(Peer { process: nodes[0].1, ..first });
        for rank in 1..self.rank {
            let (port, process) = nodes[rank as usize];
            let at = SocketAddr::new(self.at.ip(), port);
            let (peer, _) = connect(at, rank, hello, &self.security, deadline)?;
            peers[rank as usize] = Some(Peer { process, ..peer });
        }
        let joined = Acceptor::new(&listener, self, None)?.receive(deadline)?;
        for node in joined {
            let mut stream = node.stream;
            welcome(&mut stream, node.hello.rank, &[])?;
            peers[node.hello.rank as usize] =
                Some(Peer { stream, process: node.hello.process, inbox: Vec::new() });
        }
        Control::start(self, peers, None)
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
        let Self { rank, nodes, generation, at, parent, token, .. } = self;
        format!("1,{rank},{nodes},{generation},{at},{parent},{}", token.hex())
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
            token: JobToken::parse(token)?,
            security: Security::Token,
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

/// Says nothing of its bits.
impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken")
    }
}

impl JobToken {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn of(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub(crate) fn random() -> Result<Self, ClusterError> {
        let mut bytes = [0; 16];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|errno| ClusterError::system("randomness")(errno.into()))?;
        assert_eq!(filled, bytes.len(), "the kernel gives up to 256 bytes at once");
        Ok(Self(bytes))
    }

    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The inverse of [`JobToken::hex`].
    pub(crate) fn parse(hex: &str) -> Option<Self> {
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
    pub(crate) fn same(&self, other: &JobToken) -> bool {
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
    /// An invitation for rank 0 itself: the part that all have in common.
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
        let token = JobToken::random()?;
        let security = Security::Token;
        let common = Invitation { rank: 0, nodes, generation, at, parent, token, security };
        Ok(Self { listener, common })
    }

    pub(crate) fn invitation(&self, rank: u32) -> Invitation {
        Invitation { rank, ..self.common.clone() }
    }

    /// Waits for all nodes, and tells each where the others are. `exits` knows of children that
    /// died instead of coming.
    pub(crate) fn gather(&self, exits: Option<Arc<Exits>>) -> Result<Control, ClusterError> {
        let acceptor = Acceptor::new(&self.listener, &self.common, exits.as_deref())?;
        let joined = acceptor.receive(JoinDeadline::of(JOIN))?;
        let mut peers: Vec<Option<Peer>> = (0..self.common.nodes).map(|_| None).collect();
        let mut nodes = vec![(0, std::process::id()); peers.len()];
        for node in joined {
            let Hello { rank, port, process, .. } = node.hello;
            nodes[rank as usize] = (port, process);
            peers[rank as usize] = Some(Peer { stream: node.stream, process, inbox: Vec::new() });
        }
        for (rank, peer) in peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                welcome(&mut peer.stream, rank as u32, &nodes)?;
            }
        }
        Control::start(&self.common, peers, exits)
    }
}

pub(crate) fn listen(addr: SocketAddr) -> Result<TcpListener, ClusterError> {
    TcpListener::bind(addr).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => ClusterError::PortInUse { addr },
        _ => ClusterError::Listen { addr, source },
    })
}

/// The first bytes of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Hello {
    pub(crate) generation: u32,
    pub(crate) nodes: u32,
    pub(crate) rank: u32,
    pub(crate) process: u32,
    port: u16,
    pub(crate) token: JobToken,
}

impl Hello {
    pub(crate) const BYTES: usize = 46;

    pub(crate) fn new(invitation: &Invitation, port: u16) -> Self {
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
    /// The reason why the sender is refused.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, String> {
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
        Ok(Self { generation, nodes, rank, process, port, token: JobToken(token) })
    }
}

pub(crate) fn welcome(
    stream: &mut SecureStream,
    rank: u32,
    nodes: &[(u16, u32)],
) -> Result<(), ClusterError> {
    let mut bytes = Vec::new();
    ControlFrame::Welcome { nodes: nodes.to_vec() }.encode(&mut bytes);
    let mut write = || {
        stream.socket().set_nonblocking(false)?;
        stream.socket().set_write_timeout(Some(HELLO))?;
        stream.write_all(&bytes)?;
        stream.flush()
    };
    write().map_err(|error| ClusterError::Join { rank, detail: format!("{error}") })
}

/// Connects, says hello and awaits the welcome.
pub(crate) fn connect(
    addr: SocketAddr,
    rank: u32,
    hello: Hello,
    security: &Security,
    deadline: JoinDeadline,
) -> Result<(Peer, Vec<(u16, u32)>), ClusterError> {
    let join = |error: std::io::Error| {
        if let Some(detail) = objection(&error) {
            return ClusterError::Stranger { rank, addr, detail };
        }
        let detail = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer".into(),
            _ => format!("{addr}: {error}"),
        };
        ClusterError::Join { rank, detail }
    };
    let foreign = || {
        let detail = format!("{addr} does not speak this protocol, or asks for certificates");
        ClusterError::Join { rank, detail }
    };
    // A limit of zero would mean none.
    let left = || deadline.until.saturating_duration_since(Instant::now()).max(LOOK);
    let socket = TcpStream::connect_timeout(&addr, left().min(DIAL)).map_err(join)?;
    let mut stream = security.client(socket).map_err(join)?;
    stream.write_all(&hello.encode()).map_err(join)?;
    let mut inbox = Vec::new();
    loop {
        match ControlFrame::decode(&inbox) {
            Ok(Some((ControlFrame::Welcome { nodes }, len))) => {
                inbox.drain(..len);
                return Ok((Peer { stream, process: 0, inbox }, nodes));
            }
            Ok(Some((ControlFrame::Refuse { reason }, _))) => {
                return Err(ClusterError::Refused { rank, addr, reason });
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(foreign()),
        }
        stream.socket().set_read_timeout(Some(left())).map_err(join)?;
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) if inbox.is_empty() => return Err(join(ErrorKind::UnexpectedEof.into())),
            Ok(0) => return Err(foreign()),
            Ok(n) => inbox.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(join(error)),
        }
    }
}

#[cfg(test)]
mod tests;
