//! A listener that waits for nodes: it refuses other connections, and none of them delays a node.
//!
//! Until it has said a proper hello, a connection costs one socket and a few bytes; both are
//! bounded, and so is the time.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{ClusterError, NodeFailure};
use crate::frame::ControlFrame;
use crate::launch::Exits;
use crate::mesh::{
    ANOTHER_JOB, HELLO, Hello, Invitation, JOINED_ALREADY, JoinDeadline, LOOK, welcome,
};
use crate::rendezvous::left;
use crate::secure::{SecureStream, objection};

/// Connections that have not said hello, at most; the oldest is dropped for one more.
const UNIDENTIFIED_MAX: usize = 64;

/// A node that said a proper hello and waits for its welcome.
pub(crate) struct JoinedNode {
    pub(crate) hello: Hello,
    pub(crate) stream: SecureStream,
}

/// Accepts the ranks above this node's own. Other connections are refused and delay no node.
pub(crate) struct Acceptor<'a> {
    listener: &'a TcpListener,
    own: &'a Invitation,
    exits: Option<&'a Exits>,
    /// Whether nodes are welcomed as they join, or later by the caller.
    welcomes: bool,
    joined: Vec<JoinedNode>,
    /// Ranks of nodes that had joined and died.
    lost: BTreeSet<u32>,
    unidentified: Vec<Unidentified>,
    /// Why the last connection was refused.
    refused: Option<String>,
}

struct Unidentified {
    stream: SecureStream,
    bytes: [u8; Hello::BYTES],
    filled: usize,
    since: Instant,
}

impl<'a> Acceptor<'a> {
    /// # Errors
    /// When the listener cannot be asked without waiting.
    pub(crate) fn new(
        listener: &'a TcpListener,
        own: &'a Invitation,
        exits: Option<&'a Exits>,
    ) -> Result<Self, ClusterError> {
        listener.set_nonblocking(true).map_err(ClusterError::system("a socket option"))?;
        Ok(Self {
            listener,
            own,
            exits,
            welcomes: false,
            joined: Vec::new(),
            lost: BTreeSet::new(),
            unidentified: Vec::new(),
            refused: None,
        })
    }

    /// Welcomes each node as soon as it has joined, so that it can go on to the next one.
    pub(crate) fn welcoming(self) -> Self {
        Self { welcomes: true, ..self }
    }

    /// Waits until all ranks above this one have joined, or one that rank 0 started has died.
    pub(crate) fn receive(
        mut self,
        deadline: JoinDeadline,
    ) -> Result<Vec<JoinedNode>, ClusterError> {
        while self.missing().is_some() {
            self.turn()?;
            if let Some((rank, process, cause)) = self.exits.and_then(Exits::first) {
                return Err(NodeFailure { rank, process, cause }.into());
            }
            if let Some(rank) = self.missing()
                && left(deadline).is_none()
            {
                return Err(self.late(rank, deadline));
            }
        }
        Ok(self.joined)
    }

    /// The lowest rank that has not joined.
    fn missing(&self) -> Option<u32> {
        (self.own.rank + 1..self.own.nodes).find(|&rank| !self.has_joined(rank))
    }

    pub(crate) fn has_joined(&self, rank: u32) -> bool {
        self.joined.iter().any(|node| node.hello.rank == rank)
    }

    /// The nodes that have joined.
    pub(crate) fn into_joined(self) -> Vec<JoinedNode> {
        self.joined
    }

    /// Says that a rank has not joined in time.
    pub(crate) fn late(&self, rank: u32, deadline: JoinDeadline) -> ClusterError {
        let seconds = deadline.limit.as_secs_f32();
        let detail = match &self.refused {
            None => format!("it has sent nothing for {seconds} s"),
            Some(why) => format!("a connection was refused within {seconds} s: {why}"),
        };
        ClusterError::Join { rank, detail }
    }

    /// Waits for a connection or a hello, for [`LOOK`] at most, and takes what has come.
    pub(crate) fn turn(&mut self) -> Result<(), ClusterError> {
        self.await_event()?;
        self.accept()?;
        // Before the hellos: a process that was started again may be the next of its rank.
        self.forget_closed();
        for socket in std::mem::take(&mut self.unidentified) {
            self.listen_to(socket);
        }
        Ok(())
    }

    /// Forgets nodes that have joined and died since: their ranks may join again.
    pub(crate) fn forget_closed(&mut self) {
        let closed = self.joined.extract_if(.., |node| node.stream.is_closed());
        self.lost.extend(closed.map(|node| node.hello.rank));
    }

    /// Whether a node of this rank had joined and died.
    pub(crate) fn has_lost(&self, rank: u32) -> bool {
        self.lost.contains(&rank)
    }

    fn await_event(&self) -> Result<(), ClusterError> {
        let mut fds = vec![PollFd::new(self.listener, PollFlags::IN)];
        for socket in &self.unidentified {
            fds.push(PollFd::from_borrowed_fd(socket.stream.as_fd(), PollFlags::IN));
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(ClusterError::system("a wait")(errno.into())),
        }
    }

    fn accept(&mut self) -> Result<(), ClusterError> {
        // No more at a time, so that accepted connections are served.
        for _ in 0..UNIDENTIFIED_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream
                        .set_nonblocking(true)
                        .map_err(ClusterError::system("a socket option"))?;
                    if self.unidentified.len() == UNIDENTIFIED_MAX {
                        self.unidentified.remove(0);
                    }
                    let (bytes, since) = ([0; Hello::BYTES], Instant::now());
                    let stream = self.own.security.server(stream);
                    let stream = stream.map_err(ClusterError::system("a connection of TLS"))?;
                    self.unidentified.push(Unidentified { stream, bytes, filled: 0, since });
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
        Ok(())
    }

    fn listen_to(&mut self, mut socket: Unidentified) {
        while socket.filled < Hello::BYTES {
            match socket.stream.read(&mut socket.bytes[socket.filled..]) {
                Ok(0) => return,
                Ok(n) => socket.filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if socket.since.elapsed() < HELLO {
                        self.unidentified.push(socket);
                    }
                    return;
                }
                Err(error) => {
                    if let Some(why) = objection(&error) {
                        tracing::warn!(%why, "refused a connection");
                        self.refused = Some(why);
                    }
                    return;
                }
            }
        }
        let mut stream = socket.stream;
        match Hello::decode(&socket.bytes).and_then(|hello| self.check(hello)) {
            Ok(hello) => {
                let welcomed = !self.welcomes || welcome(&mut stream, hello.rank, &[]).is_ok();
                // A node that is gone already may come again, until the time is up.
                if welcomed {
                    self.joined.push(JoinedNode { hello, stream });
                }
            }
            Err(reason) => {
                tracing::warn!(%reason, "refused a connection");
                self.refused = Some(reason.clone());
                let mut bytes = Vec::new();
                ControlFrame::Refuse { reason }.encode(&mut bytes);
                // Delivery of the reason is best effort.
                let _ = stream.write(&bytes);
            }
        }
    }

    fn check(&self, hello: Hello) -> Result<Hello, String> {
        let own = self.own;
        if !hello.token.same(&own.token)
            || (hello.generation, hello.nodes) != (own.generation, own.nodes)
        {
            return Err(ANOTHER_JOB.into());
        }
        if hello.rank <= own.rank || hello.rank >= own.nodes {
            return Err(format!("rank {} is not a node of this job", hello.rank));
        }
        if self.has_joined(hello.rank) {
            return Err(JOINED_ALREADY.into());
        }
        Ok(hello)
    }
}
