//! Chunks through sockets: what the paper compares with (Q10), where a chunk is one row. One TCP
//! socket for each pair of workers, chunks with a word in front that names the shuffle, written to
//! the system and read from it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::IntoBytes;

use super::worker::{Kind, Means, ShufflePlan};
use super::{Gather, ShuffleError};

/// Bytes of a read.
const READ_BYTES: usize = 64 << 10;
/// Bytes that wait for a socket at most.
const OUT_BYTES_MAX: usize = 256 << 10;
/// How long a worker sleeps at most.
const SLEEP: Duration = Duration::from_secs(1);
const END: u64 = 1 << 8;

/// One socket.
struct Peer {
    stream: TcpStream,
    /// Bytes that the system has not accepted.
    out: VecDeque<u8>,
    /// Received words; of the last one maybe only some bytes.
    words: Vec<u64>,
    bytes: usize,
}

/// The sockets of a worker; none with itself.
pub(super) struct Sockets(Vec<Option<Peer>>);

impl Sockets {
    /// Joins this worker with all others: the lower rank dials.
    pub(super) fn join(size: &ShufflePlan, gather: &Gather<'_>) -> Result<Self, ShuffleError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let ports = gather("ports", port.to_le_bytes().to_vec()).map_err(ShuffleError::Control)?;
        let mut peers: Vec<Option<Peer>> = (0..size.nodes).map(|_| None).collect();
        for (rank, port) in ports.iter().enumerate().skip(size.rank + 1) {
            let port = u16::from_le_bytes([port[0], port[1]]);
            let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
            stream.write_all(&(size.rank as u32).to_le_bytes())?;
            peers[rank] = Some(Peer::new(stream)?);
        }
        for _ in 0..size.rank {
            let (mut stream, _) = listener.accept()?;
            let mut rank = [0; 4];
            stream.read_exact(&mut rank)?;
            let rank = u32::from_le_bytes(rank) as usize;
            let peer = peers.get_mut(rank).ok_or(io::Error::from(io::ErrorKind::InvalidData))?;
            *peer = Some(Peer::new(stream)?);
        }
        Ok(Self(peers))
    }
}

impl Peer {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, out: VecDeque::new(), words: vec![0; READ_BYTES / 8], bytes: 0 })
    }

    /// Writes what the system takes; true when it took something.
    fn write(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while !self.out.is_empty() {
            match self.stream.write(self.out.as_slices().0) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Reads once and gives whole chunks to `take`; true when something came.
    fn read(&mut self, take: &mut dyn FnMut(Kind, &[u64])) -> io::Result<bool> {
        match self.stream.read(&mut self.words.as_mut_bytes()[self.bytes..]) {
            // The other worker has said all: it is gone.
            Ok(0) => return Ok(false),
            Ok(n) => self.bytes += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let mut at = 0;
        let whole = self.bytes / 8;
        while at < whole {
            let head = self.words[at];
            let (stage, len) = (head as u8, (head >> 9) as usize);
            let end = at + 1 + len;
            if end > whole {
                // A chunk that is larger than what was ever read needs more room.
                let need = (1 + len).max(READ_BYTES / 8);
                self.words.resize(self.words.len().max(need + at), 0);
                break;
            }
            match head & END {
                0 => take(Kind::Rows(stage), &self.words[at + 1..end]),
                _ => take(Kind::End(stage), &[]),
            }
            at = end;
        }
        self.words.as_mut_bytes().copy_within(at * 8..self.bytes, 0);
        self.bytes -= at * 8;
        Ok(true)
    }
}

impl Means for Sockets {
    fn send(&mut self, to: usize, kind: Kind, values: &[u64]) -> Result<bool, ShuffleError> {
        let Some(peer) = self.0.get_mut(to).and_then(Option::as_mut) else { return Ok(true) };
        if peer.out.len() > OUT_BYTES_MAX {
            return Ok(false);
        }
        let head = match kind {
            Kind::Rows(stage) => u64::from(stage),
            Kind::End(stage) => END | u64::from(stage),
        };
        peer.out.extend((head | (values.len() as u64) << 9).as_bytes());
        peer.out.extend(values.as_bytes());
        peer.write()?;
        Ok(true)
    }

    fn turn(&mut self, take: &mut dyn FnMut(Kind, &[u64])) -> Result<bool, ShuffleError> {
        let mut moved = false;
        for peer in self.0.iter_mut().flatten() {
            moved |= peer.write()?;
            moved |= peer.read(take)?;
        }
        Ok(moved)
    }

    fn sleep(&mut self) -> Result<(), ShuffleError> {
        let mut waits: Vec<PollFd<'_>> = Vec::new();
        for peer in self.0.iter().flatten() {
            let mut interest = PollFlags::IN;
            interest.set(PollFlags::OUT, !peer.out.is_empty());
            waits.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), interest));
        }
        let timeout = Timespec { tv_sec: SLEEP.as_secs() as i64, tv_nsec: 0 };
        // An interrupted sleep is a short one.
        let _ = poll(&mut waits, Some(&timeout));
        Ok(())
    }
}
