//! A channel between two ranks as a wire: messages of up to 32 KiB in the order in which they were
//! sent, a message without bytes as the last one.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::world::{Message, MpiChannel, Progress, World};
use crate::frames::Wire;
use crate::memory::IoPiece;
use crate::{Armed, SlabRange};

/// Bytes of a message at most.
const CHUNK_BYTES: usize = 32 << 10;
/// Messages on their way to the peer at most.
const SENDS_MAX: usize = 4;
/// Receives that wait for the peer's messages.
const RECEIVES: usize = 2;
/// Bytes of memory of a channel.
pub(super) const WIRE_BYTES: usize = CHUNK_BYTES * (SENDS_MAX + RECEIVES);
/// The shortest and the longest sleep: MPI wakes nobody, so that a sleeper has to look.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// The channels by which two ranks reach each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    /// The other rank.
    pub(super) peer: c_int,
    /// The tag of the messages that it sends to us.
    pub(super) ours: u32,
    /// The tag of the messages that we send to it.
    pub(super) theirs: u32,
}

impl Pair {
    fn outgoing(&self) -> MpiChannel {
        MpiChannel { rank: self.peer, tag: self.theirs }
    }

    fn incoming(&self) -> MpiChannel {
        MpiChannel { rank: self.peer, tag: self.ours }
    }
}

/// A channel of this process with one of another.
pub(super) struct MpiWire {
    world: Arc<World>,
    pair: Pair,
    /// In the order in which they were sent.
    sending: Vec<Message>,
    /// In the order in which they were posted, which is that in which messages come.
    receiving: VecDeque<Message>,
    /// Bytes that came and were not read, and how many of them were.
    came: Option<(Box<[u8]>, std::ops::Range<usize>)>,
    free: Vec<Box<[u8]>>,
    /// We have said that nothing more comes.
    ended: bool,
    /// The peer has.
    peer_ended: bool,
    nap: Option<OwnedFd>,
    nap_time: Duration,
}

impl MpiWire {
    pub(super) fn new(world: Arc<World>, pair: Pair) -> io::Result<Self> {
        let mut wire = Self {
            world,
            pair,
            sending: Vec::new(),
            receiving: VecDeque::new(),
            came: None,
            free: Vec::new(),
            ended: false,
            peer_ended: false,
            nap: None,
            nap_time: NAPS[0],
        };
        for _ in 0..RECEIVES {
            wire.post_receive(buffer())?;
        }
        Ok(wire)
    }

    fn post_receive(&mut self, bytes: Box<[u8]>) -> io::Result<()> {
        let message = self.world.receive(bytes, self.pair.incoming())?;
        self.receiving.push_back(message);
        Ok(())
    }

    /// Takes back the memory of what has been sent.
    fn reap(&mut self) -> io::Result<()> {
        for message in std::mem::take(&mut self.sending) {
            match self.world.test(message)? {
                Progress::Done(bytes, _) => self.free.push(bytes),
                Progress::Pending(message) => self.sending.push(message),
            }
        }
        Ok(())
    }

    /// Looks for the next message, unless one is being read.
    fn look(&mut self) -> io::Result<()> {
        if self.came.is_some() || self.peer_ended {
            return Ok(());
        }
        let Some(message) = self.receiving.pop_front() else { return Ok(()) };
        match self.world.test(message)? {
            Progress::Done(_, 0) => self.peer_ended = true,
            Progress::Done(bytes, count) => {
                let count = count.min(bytes.len());
                self.came = Some((bytes, 0..count));
                self.nap_time = NAPS[0];
            }
            Progress::Pending(message) => self.receiving.push_front(message),
        }
        Ok(())
    }

    /// A timer that becomes readable after a nap, which grows as long as nothing comes.
    fn sleep(&mut self) -> io::Result<&OwnedFd> {
        let nap = match self.nap.take() {
            Some(nap) => nap,
            None => {
                // SAFETY: makes a descriptor of its own.
                let fd = unsafe {
                    libc::timerfd_create(
                        libc::CLOCK_MONOTONIC,
                        libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
                    )
                };
                if fd < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: a descriptor that nobody else owns.
                unsafe { OwnedFd::from_raw_fd(fd) }
            }
        };
        let time = |time: Duration| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        let once =
            libc::itimerspec { it_interval: time(Duration::ZERO), it_value: time(self.nap_time) };
        // SAFETY: the descriptor is a timer's and open, and the place lives.
        let set = unsafe {
            libc::timerfd_settime(nap.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        self.nap_time = (self.nap_time * 2).min(NAPS[1]);
        Ok(self.nap.insert(nap))
    }
}

impl Wire for MpiWire {
    fn write<'a>(
        &mut self,
        pieces: impl Iterator<Item = IoPiece<'a>>,
    ) -> io::Result<Option<usize>> {
        self.reap()?;
        let mut total = 0;
        let mut open: Option<(Box<[u8]>, usize)> = None;
        'pieces: for piece in pieces {
            let mut from = 0;
            while from < piece.len() {
                let (mut bytes, filled) = match open.take() {
                    Some(open) => open,
                    None if self.sending.len() == SENDS_MAX => break 'pieces,
                    None => (self.free.pop().unwrap_or_else(buffer), 0),
                };
                let n = piece.copy(from, &mut bytes[filled..]);
                from += n;
                total += n;
                if filled + n == bytes.len() {
                    let to = self.pair.outgoing();
                    self.sending.push(self.world.send(bytes, CHUNK_BYTES, to)?);
                } else {
                    open = Some((bytes, filled + n));
                }
            }
        }
        if let Some((bytes, filled)) = open {
            let to = self.pair.outgoing();
            self.sending.push(self.world.send(bytes, filled, to)?);
        }
        Ok((total > 0).then_some(total))
    }

    fn read(
        &mut self,
        head: Option<(&SlabRange, usize)>,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let room = head.map_or(0, |(range, from)| range.len() - from);
        let mut total = 0;
        while total < room + rest.len() {
            self.look()?;
            let Some((bytes, unread)) = &mut self.came else { break };
            let there = &bytes[unread.clone()];
            let n = match head {
                Some((range, from)) if total < room => {
                    let n = there.len().min(room - total);
                    range.place(from + total, &there[..n]);
                    n
                }
                _ => {
                    let into = &mut rest[total - room..];
                    let n = there.len().min(into.len());
                    into[..n].copy_from_slice(&there[..n]);
                    n
                }
            };
            unread.start += n;
            total += n;
            if unread.start == unread.end
                && let Some((bytes, _)) = self.came.take()
            {
                self.post_receive(bytes)?;
            }
        }
        match total {
            0 if self.peer_ended => Ok(Some(0)),
            0 => Ok(None),
            n => Ok(Some(n)),
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let to = self.pair.outgoing();
            // A library that refuses has lost the peer.
            self.sending.extend(self.world.send(Box::default(), 0, to));
        }
    }

    fn arm(&mut self, awaits_room: bool) -> Armed {
        let checked = self.look().and_then(|()| self.reap());
        let room = awaits_room && self.sending.len() < SENDS_MAX;
        if checked.is_err() || self.came.is_some() || self.peer_ended || room {
            return Armed::Ready;
        }
        match self.sleep() {
            Ok(nap) => Armed::Fd(nap.as_raw_fd()),
            Err(_) => Armed::Ready,
        }
    }
}

impl Drop for MpiWire {
    fn drop(&mut self) {
        self.end();
        let sending = std::mem::take(&mut self.sending);
        let receiving = std::mem::take(&mut self.receiving);
        let (pair, peer_ended) = (self.pair, self.peer_ended);
        self.world.end(Ending { pair, sending, receiving, peer_ended, cancelled: false });
        self.world.tidy();
    }
}

fn buffer() -> Box<[u8]> {
    vec![0; CHUNK_BYTES].into_boxed_slice()
}

/// The rest of a channel: messages whose memory MPI still uses, and those of the peer that come
/// before its last one.
pub(super) struct Ending {
    pair: Pair,
    sending: Vec<Message>,
    receiving: VecDeque<Message>,
    peer_ended: bool,
    /// The receives that are left were told that nothing comes.
    cancelled: bool,
}

impl Ending {
    /// Makes progress; true when nothing is left.
    pub(super) fn step(&mut self, world: &World) -> bool {
        for message in std::mem::take(&mut self.sending) {
            if let Ok(Progress::Pending(message)) = world.test(message) {
                self.sending.push(message);
            }
        }
        while !self.peer_ended
            && let Some(message) = self.receiving.pop_front()
        {
            match world.test(message) {
                Ok(Progress::Pending(message)) => {
                    self.receiving.push_front(message);
                    break;
                }
                Ok(Progress::Done(_, 0)) | Err(_) => self.peer_ended = true,
                Ok(Progress::Done(bytes, _)) => {
                    let from = self.pair.incoming();
                    self.receiving.extend(world.receive(bytes, from));
                }
            }
        }
        if self.peer_ended && !std::mem::replace(&mut self.cancelled, true) {
            self.receiving.iter_mut().for_each(|message| world.cancel(message));
        }
        if self.cancelled {
            for message in std::mem::take(&mut self.receiving) {
                if let Ok(Progress::Pending(message)) = world.test(message) {
                    self.receiving.push_back(message);
                }
            }
        }
        self.sending.is_empty() && self.cancelled && self.receiving.is_empty()
    }
}
