//! A listener that waits for nodes: strangers are refused and do not hold anybody up.
//!
//! Until it has said a proper hello, a connection costs one socket and a few bytes; both are
//! bounded, and so is the time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{ClusterError, NodeFailure};
use crate::frame::Frame;
use crate::launch::Exits;
use crate::mesh::{ANOTHER_JOB, HELLO, Hello, Invitation, LOOK, Patience, welcome};
use crate::secure::{Stream, objection};

/// Connections that have not said hello, at most; the oldest is dropped for one more.
const STRANGERS_MAX: usize = 64;

/// A node that said a proper hello and waits for its welcome.
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    pub(crate) stream: Stream,
}

/// Waits at a listener for the ranks above one's own. Strangers are refused and do not hold anybody
/// up.
pub(crate) struct Reception<'a> {
    listener: &'a TcpListener,
    host: &'a Invitation,
    exits: Option<&'a Exits>,
    /// Whether guests are welcomed as they come, or later by the caller.
    welcomes: bool,
    guests: Vec<Guest>,
    strangers: Vec<Stranger>,
    /// Why the last connection was refused.
    refused: Option<String>,
}

struct Stranger {
    stream: Stream,
    bytes: [u8; Hello::BYTES],
    filled: usize,
    since: Instant,
}

impl<'a> Reception<'a> {
    pub(crate) fn new(
        listener: &'a TcpListener,
        host: &'a Invitation,
        exits: Option<&'a Exits>,
    ) -> Self {
        let (guests, strangers) = (Vec::new(), Vec::new());
        Self { listener, host, exits, welcomes: false, guests, strangers, refused: None }
    }

    /// Welcomes each guest as soon as it has come, so that it can go on to the next node.
    pub(crate) fn welcoming(self) -> Self {
        Self { welcomes: true, ..self }
    }

    pub(crate) fn receive(mut self, patience: Patience) -> Result<Vec<Guest>, ClusterError> {
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
            if Instant::now() >= patience.until {
                let came = |rank| self.guests.iter().any(|guest| guest.hello.rank == rank);
                let rank = (self.host.rank + 1..self.host.nodes).find(|&rank| !came(rank));
                let seconds = patience.limit.as_secs_f32();
                let detail = match &self.refused {
                    None => format!("nothing was heard of it for {seconds} s"),
                    Some(why) => format!("a connection was refused within {seconds} s: {why}"),
                };
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
        // No more at a time, so that who has come is listened to.
        for _ in 0..STRANGERS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream
                        .set_nonblocking(true)
                        .map_err(ClusterError::system("a socket option"))?;
                    if self.strangers.len() == STRANGERS_MAX {
                        self.strangers.remove(0);
                    }
                    let (bytes, since) = ([0; Hello::BYTES], Instant::now());
                    let stream = self.host.security.server(stream);
                    let stream = stream.map_err(ClusterError::system("a connection of TLS"))?;
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
        Ok(())
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
                Err(error) => {
                    if let Some(why) = objection(&error) {
                        tracing::warn!(%why, "refused a connection");
                        self.refused = Some(why);
                    }
                    return;
                }
            }
        }
        let mut stream = stranger.stream;
        match Hello::decode(&stranger.bytes).and_then(|hello| self.check(hello)) {
            Ok(hello) => {
                let welcomed = !self.welcomes || welcome(&mut stream, hello.rank, &[]).is_ok();
                // Who is gone already may come again, until the time is up.
                if welcomed {
                    self.guests.push(Guest { hello, stream });
                }
            }
            Err(reason) => {
                tracing::warn!(%reason, "refused a connection");
                self.refused = Some(reason.clone());
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
            return Err(ANOTHER_JOB.into());
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
