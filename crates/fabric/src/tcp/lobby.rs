//! Where connections come in: one listener for all offers of a fabric.
//!
//! A stranger has to greet with the token of an offer; until then it costs one socket and a few
//! bytes, both bounded, and nobody waits for it. Whichever thread waits for its peer serves the
//! listener for all of them; no thread of its own is needed.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::LinkId;
use crate::token::Token;

/// First bytes of an address and of a greeting: name and version of the protocol.
pub(super) const MAGIC: [u8; 8] = *b"MLSTCP\x00\x01";

/// Sockets that have not greeted yet; beyond that the oldest has to go.
const STRANGERS_MAX: usize = 256;
/// How long a stranger may take to greet.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// What both sides say first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The pair as the greeter sees it.
    pub(super) link: LinkId,
    /// The offer that is greeted.
    pub(super) to: Token,
    /// The offer of the greeter.
    pub(super) from: Token,
    /// Reads and atomics that the greeter may have outstanding.
    pub(super) ops_max: u32,
}

impl Greeting {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 52;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.link.local.to_le_bytes());
        out[12..16].copy_from_slice(&self.link.remote.to_le_bytes());
        out[16..32].copy_from_slice(self.to.bytes());
        out[32..48].copy_from_slice(self.from.bytes());
        out[48..].copy_from_slice(&self.ops_max.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let quad = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let token = |at: usize| bytes[at..at + 16].try_into().map(Token::from_bytes).ok();
        (bytes[..8] == MAGIC).then_some(())?;
        Some(Self {
            link: LinkId { local: quad(8)?, remote: quad(12)? },
            to: token(16)?,
            from: token(32)?,
            ops_max: quad(48)?,
        })
    }
}

/// The listener and who waits for whom.
pub(super) struct Lobby {
    listener: TcpListener,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Offers that wait, and who came for them.
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

impl Lobby {
    /// # Errors
    /// When the listener cannot be made non-blocking.
    pub(super) fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let state = State { strangers: Some(Vec::new()), ..State::default() };
        Ok(Self { listener, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Lets strangers greet this offer.
    pub(super) fn expect(&self, offer: Token) {
        self.lock().offers.insert(offer, None);
    }

    /// The opposite of [`Lobby::expect`].
    pub(super) fn forget(&self, offer: &Token) {
        self.lock().offers.remove(offer);
    }

    /// Waits until somebody greets this offer.
    ///
    /// # Errors
    /// At the deadline, or when the listener fails.
    pub(super) fn wait(
        &self,
        offer: &Token,
        deadline: Instant,
    ) -> io::Result<(TcpStream, Greeting)> {
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

    /// Waits for news of the listener and the strangers, once; returns who has greeted.
    fn serve(
        &self,
        strangers: &mut Vec<Stranger>,
        left: Duration,
    ) -> io::Result<Vec<(TcpStream, Greeting)>> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        fds.extend(
            strangers.iter().map(|s| PollFd::from_borrowed_fd(s.stream.as_fd(), PollFlags::IN)),
        );
        let timeout = Timespec::try_from(left.min(STRANGER_PATIENCE))
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => strangers.extend(Stranger::new(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let surplus = strangers.len().saturating_sub(STRANGERS_MAX);
        strangers.drain(..surplus);
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
        let deadline = Instant::now() + STRANGER_PATIENCE;
        Some(Self { stream, greeting: [0; Greeting::BYTES], filled: 0, deadline })
    }

    /// Reads on; an error means that this is none of ours.
    fn listen(&mut self) -> io::Result<Option<Greeting>> {
        while self.filled < Greeting::BYTES {
            match self.stream.read(&mut self.greeting[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let patient = Instant::now() < self.deadline;
                    return if patient { Ok(None) } else { Err(io::ErrorKind::TimedOut.into()) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Greeting::decode(&self.greeting).map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }
}
