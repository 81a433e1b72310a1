//! The control thread: owns the sockets, turns bytes into frames and silence into failures.
//!
//! Silence is counted in beats of our own, not in time: a node that was itself stopped (Ctrl-Z, a
//! suspended machine) does not accuse the others when it wakes.
//!
//! The control plane decides once which node has died. Rank 0 knows how a process that it started
//! has ended, so it waits a moment for the exit status; the others wait a little longer for its
//! verdict before they settle for what they saw themselves. Only of rank 0's own death there is
//! nobody to wait for. Whoever settles tells all before it goes, so that those who have not decided
//! yet take over its verdict instead of its own end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{Ending, Shared, State};
use crate::error::{Cause, ClusterError, NodeFailure};
use crate::frame::ControlFrame;
use crate::launch::Exits;
use crate::mesh::Peer;
use crate::secure::SecureStream;

/// Between two beats.
const BEAT: Duration = Duration::from_millis(100);
/// Beats of our own without a byte from a peer, after which it counts as dead.
const SILENT_BEATS: u32 = 30;
/// The same for a peer that has not spoken yet: it may still be meeting others.
const SILENT_BEATS_FIRST: u32 = 600;
/// Beats that rank 0 waits for an exit status.
const EXIT_BEATS: u32 = 5;
/// Beats that another node waits for rank 0's verdict.
const VERDICT_BEATS: u32 = 12;
/// A node that falls silent is named by all within five seconds of its last sign.
const _: () = assert!((SILENT_BEATS + VERDICT_BEATS) as u128 * BEAT.as_millis() < 5000);
/// Beats that an orderly end waits for the others.
const CLOSE_BEATS: u32 = 50;
/// Beats in which a node that ends abruptly may still send its reason.
const FLUSH_BEATS: u32 = 5;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Reads of one peer before others have a turn.
const READS_PER_PEER: usize = 32;

/// The control thread: its sockets, and the verdict that it waits for.
pub(crate) struct ControlThread {
    shared: Arc<Shared>,
    peers: Vec<Option<Link>>,
    exits: Option<Arc<Exits>>,
    suspect: Option<Suspect>,
    beats_ending: u32,
    /// Where sockets are read into.
    chunk: Vec<u8>,
}

struct Link {
    stream: SecureStream,
    process: u32,
    inbox: Vec<u8>,
    silent: u32,
    /// It has spoken since the handshake.
    has_spoken: bool,
    /// It has sent its last frame.
    bye: bool,
}

/// A node that is gone, until it is known why.
struct Suspect {
    failure: NodeFailure,
    beats: u32,
}

impl ControlThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        peers: Vec<Option<Peer>>,
        exits: Option<Arc<Exits>>,
    ) -> Result<Self, ClusterError> {
        let link = |peer: Peer| -> std::io::Result<Link> {
            peer.stream.socket().set_nodelay(true)?;
            peer.stream.socket().set_nonblocking(true)?;
            let (stream, process, inbox) = (peer.stream, peer.process, peer.inbox);
            Ok(Link { stream, process, inbox, silent: 0, has_spoken: false, bye: false })
        };
        let peers = peers
            .into_iter()
            .map(|peer| peer.map(link).transpose())
            .collect::<Result<Vec<_>, _>>()
            .map_err(ClusterError::system("a socket option"))?;
        {
            let mut state = shared.lock();
            for (rank, peer) in peers.iter().enumerate() {
                state.closed[rank] = peer.is_none();
                state.gone[rank] = peer.is_none();
            }
        }
        let chunk = vec![0; READ_BYTES];
        Ok(Self { shared, peers, exits, suspect: None, beats_ending: 0, chunk })
    }

    pub(crate) fn run(mut self) {
        let mut next_beat = Instant::now() + BEAT;
        let ranks = self.peers.len() as u32;
        // Bytes that came together with the handshake.
        (0..ranks).for_each(|rank| self.decode(rank));
        loop {
            let left = next_beat.saturating_duration_since(Instant::now());
            if let Err(errno) = self.await_event(left) {
                self.shared.lock().ended = true;
                self.suspect(self.shared.rank, Cause::Reported(format!("poll failed: {errno}")));
                break;
            }
            if Instant::now() >= next_beat {
                self.beat();
                next_beat = Instant::now() + BEAT;
            }
            (0..ranks).for_each(|rank| self.receive(rank));
            (0..ranks).for_each(|rank| self.send(rank));
            self.judge();
            if self.may_end() {
                break;
            }
        }
        self.shared.lock().ended = true;
        self.shared.notify();
    }

    fn await_event(&self, limit: Duration) -> Result<(), rustix::io::Errno> {
        let mut fds = vec![PollFd::new(&self.shared.event_fd, PollFlags::IN)];
        {
            let state = self.shared.lock();
            for (rank, peer) in self.peers.iter().enumerate() {
                let Some(peer) = peer else { continue };
                let mut flags = PollFlags::IN;
                let waits = !state.outboxes[rank].is_empty() || peer.stream.holds_bytes();
                flags.set(PollFlags::OUT, waits);
                fds.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), flags));
            }
        }
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        // Clear the descriptor; it is no error if it was not signalled.
        let _ = rustix::io::read(&self.shared.event_fd, &mut [0u8; 8]);
        Ok(())
    }

    /// Every 100 ms: a sign of life, and a look for theirs.
    fn beat(&mut self) {
        let mut state = self.shared.lock();
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            peer.silent += 1;
            if state.outboxes[rank].is_empty() && state.ending.is_none() {
                state.send(rank as u32, &ControlFrame::Beat);
            }
        }
        if state.ending.is_some() {
            self.beats_ending += 1;
        }
        drop(state);
        if let Some(suspect) = &mut self.suspect {
            suspect.beats = suspect.beats.saturating_sub(1);
        }
        let limit = |peer: &Link| if peer.has_spoken { SILENT_BEATS } else { SILENT_BEATS_FIRST };
        let silent = |peer: &Link| !peer.bye && peer.silent >= limit(peer);
        let rank = self.peers.iter().position(|peer| peer.as_ref().is_some_and(silent));
        if let Some(rank) = rank {
            let beats = self.peers[rank].as_ref().map_or(SILENT_BEATS, limit);
            let ms = beats * BEAT.as_millis() as u32;
            self.lose(rank as u32, Cause::Silent(ms));
        }
    }

    fn receive(&mut self, rank: u32) {
        let Some(peer) = &mut self.peers[rank as usize] else { return };
        let mut lost = false;
        for _ in 0..READS_PER_PEER {
            match peer.stream.read(&mut self.chunk) {
                Ok(0) => lost = true,
                Ok(read) => {
                    peer.inbox.extend_from_slice(&self.chunk[..read]);
                    (peer.silent, peer.has_spoken) = (0, true);
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => lost = true,
            }
            break;
        }
        self.decode(rank);
        if lost {
            self.lose(rank, Cause::Lost);
        }
    }

    fn decode(&mut self, rank: u32) {
        let mut at = 0;
        loop {
            let Some(peer) = &mut self.peers[rank as usize] else { return };
            match ControlFrame::decode(&peer.inbox[at..]) {
                Ok(Some((frame, len))) => {
                    at += len;
                    if let Err(what) = self.take(rank, frame) {
                        return self.lose(rank, Cause::Malformed(what.into()));
                    }
                }
                Ok(None) => {
                    peer.inbox.drain(..at);
                    return;
                }
                Err(what) => return self.lose(rank, Cause::Malformed(what.into())),
            }
        }
    }

    fn take(&mut self, rank: u32, frame: ControlFrame) -> Result<(), &'static str> {
        let mut state = self.shared.lock();
        match frame {
            ControlFrame::Beat => {}
            ControlFrame::Gather { seq, step, bytes, .. } => {
                if state.peer_contributes(seq, rank, (step, bytes))? {
                    self.shared.notify();
                }
            }
            ControlFrame::Progress { bytes } => state.latest[rank as usize] = Some(bytes),
            ControlFrame::Message { topic, bytes, .. } => {
                state.messages.add(rank, topic, bytes)?;
                self.shared.notify();
            }
            ControlFrame::Cancel => self.shared.note_cancel(),
            ControlFrame::Fail { reason } => {
                drop(state);
                self.suspect(rank, Cause::Reported(reason));
            }
            ControlFrame::Verdict(failure) if failure.rank < self.shared.nodes => {
                self.shared.record(&mut state, failure);
            }
            ControlFrame::Bye => {
                if let Some(peer) = &mut self.peers[rank as usize] {
                    peer.bye = true;
                }
                state.closed[rank as usize] = true;
                self.shared.notify();
            }
            ControlFrame::Verdict(_) => return Err("a verdict on a node that is not there"),
            ControlFrame::Welcome { .. } | ControlFrame::Refuse { .. } => {
                return Err("a handshake out of turn");
            }
        }
        Ok(())
    }

    fn send(&mut self, rank: u32) {
        let Some(peer) = &mut self.peers[rank as usize] else { return };
        let mut state = self.shared.lock();
        let outbox = &mut state.outboxes[rank as usize];
        let mut sent = 0;
        let mut lost = false;
        while sent < outbox.len() {
            match peer.stream.write(&outbox[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    lost = true;
                    break;
                }
            }
        }
        outbox.drain(..sent);
        drop(state);
        let flushed = peer.stream.flush();
        lost |= flushed.is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
        if lost {
            // A reason that it sent before it went may still wait to be read.
            self.receive(rank);
            self.lose(rank, Cause::Lost);
        }
    }

    /// The connection with a node is of no use any more.
    fn lose(&mut self, rank: u32, cause: Cause) {
        let Some(peer) = self.peers[rank as usize].take() else { return };
        let mut state = self.shared.lock();
        state.gone[rank as usize] = true;
        state.outboxes[rank as usize].clear();
        let expected = peer.bye || state.ending.is_some();
        drop(state);
        if expected {
            self.shared.notify();
        } else {
            self.suspect_process(rank, peer.process, cause);
        }
    }

    fn suspect(&mut self, rank: u32, cause: Cause) {
        let process = self.peers[rank as usize].as_ref().map_or(0, |peer| peer.process);
        self.suspect_process(rank, process, cause);
    }

    fn suspect_process(&mut self, rank: u32, process: u32, cause: Cause) {
        let beats = match (self.shared.rank, &cause) {
            _ if rank == 0 => 0,
            (0, Cause::Lost) if self.exits.is_some() => EXIT_BEATS,
            (0, _) => 0,
            _ => VERDICT_BEATS,
        };
        if self.suspect.is_none() {
            self.suspect = Some(Suspect { failure: NodeFailure { rank, process, cause }, beats });
        }
    }

    /// Turns a suspicion into the job's failure as soon as nothing better can be learned.
    fn judge(&mut self) {
        let Some(suspect) = &mut self.suspect else { return };
        if suspect.failure.cause == Cause::Lost
            && let Some(exits) = &self.exits
            && let Some(cause) = exits.cause(suspect.failure.rank)
        {
            suspect.failure.cause = cause;
            suspect.beats = 0;
        }
        if suspect.beats == 0 {
            let failure = suspect.failure.clone();
            let mut state = self.shared.lock();
            self.shared.record(&mut state, failure);
            drop(state);
            (0..self.peers.len() as u32).for_each(|rank| self.send(rank));
        }
    }

    fn may_end(&self) -> bool {
        let state = self.shared.lock();
        let Some(ending) = state.ending else { return false };
        let holds = |peer: &Link| peer.stream.holds_bytes();
        let flushed =
            state.outboxes.iter().all(Vec::is_empty) && !self.peers.iter().flatten().any(holds);
        let (done, limit) = match ending {
            _ if state.failure.is_some() => (flushed, FLUSH_BEATS),
            Ending::Abrupt => (flushed, FLUSH_BEATS),
            Ending::Orderly => (flushed && self.all_said_bye(&state), CLOSE_BEATS),
        };
        done || self.beats_ending >= limit
    }

    fn all_said_bye(&self, state: &State) -> bool {
        state.closed.iter().zip(&state.gone).all(|(&closed, &gone)| closed || gone)
    }
}
