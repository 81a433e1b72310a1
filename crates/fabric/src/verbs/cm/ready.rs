//! The last message before the first operation, over the connection itself: the promises of a queue
//! pair are known only when it is up, and the manager's last message carries nothing of ours.
//!
//! The caller speaks first, and is heard: the called side was up before it answered. It speaks when
//! it has heard, since the caller is up by then; a word that came too early would be lost, and said
//! again only after the time of an acknowledgement.
//!
//! Over iWARP the called side is up in the instant in which it answers, and Soft-iWARP of Linux was
//! seen to leave a word that comes then in its socket, until more comes. So the caller sends writes
//! of nothing behind its word until it is answered.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::handshake::Promise;
use super::super::objects::Wire;
use super::super::queue::{Origin, Payload, SendQueue, request};
use super::super::receives::RECEIVE;
use super::super::sys;
use super::Call;
use crate::listener::{broken, time_left};

/// How long a caller over iWARP waits before it sends something behind its word.
const NUDGE: Duration = Duration::from_millis(50);

/// One side of the exchange of promises.
#[derive(Debug, Clone, Copy)]
pub(in crate::verbs) struct Speaker {
    /// The promise that this side sends.
    pub(in crate::verbs) promise: Promise,
    /// This side is the caller, and sends first.
    pub(in crate::verbs) calls: bool,
    /// The connection is of iWARP.
    pub(in crate::verbs) iwarp: bool,
}

/// Sends our promise and returns the peer's, as a byte.
///
/// # Errors
/// When the connection breaks, or at the deadline.
pub(in crate::verbs) fn exchange_promises(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    speaker: Speaker,
    deadline: Instant,
) -> io::Result<u8> {
    if speaker.calls {
        send_promise(wire, queue, speaker.promise)?;
    }
    let theirs = receive_promise(wire, queue, call, speaker, deadline)?;
    if !speaker.calls {
        call.peer_is_up();
        send_promise(wire, queue, speaker.promise)?;
    }
    Ok(theirs)
}

fn send_promise(wire: &mut Wire, queue: &mut SendQueue, ours: Promise) -> io::Result<()> {
    queue.push(request(sys::WR_SEND, 0), Payload::Copied(&[ours.encode()]), Origin::Ready);
    queue.ring(wire)
}

fn receive_promise(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    speaker: Speaker,
    deadline: Instant,
) -> io::Result<u8> {
    let nudges = speaker.calls && speaker.iwarp;
    let (mut asked, mut ended) = (false, false);
    loop {
        // One at a time: everything behind the peer's message belongs to the endpoint.
        let mut wcs = [sys::Wc::default()];
        if wire.poll(&mut wcs)? == 0 {
            // A completion before the request raises no event, so that a poll comes after it.
            if !asked {
                asked = true;
                wire.request_event()?;
                continue;
            }
            // The peer may have left behind its word, so that a look comes after its end, too.
            if ended {
                return Err(broken("the peer left in the middle of the handshake"));
            }
            asked = false;
            let most = time_left(deadline)?;
            let most = if nudges { most.min(NUDGE) } else { most };
            match wait(wire, call, most)? {
                Woken::None if nudges => {
                    let write = request(sys::WR_RDMA_WRITE, 0);
                    queue.push(write, Payload::Empty, Origin::Ready);
                    queue.ring(wire)?;
                }
                woken => ended = woken == Woken::End,
            }
            continue;
        }
        let [wc] = &wcs;
        if wc.status != sys::WC_SUCCESS {
            return Err(broken("the connection broke before its first operation"));
        }
        if wc.wr_id & RECEIVE == 0 {
            queue.retire(wc.wr_id, &mut Vec::new());
            continue;
        }
        let word_bytes = wire.receives().bytes(wc.wr_id, wc.byte_len);
        wire.receives().again(wc.wr_id)?;
        return match word_bytes[..] {
            [word] if wc.opcode == sys::WC_RECV => Ok(word),
            _ => Err(broken("the peer's first word is another one")),
        };
    }
}

/// The reason why a wait ended.
#[derive(Debug, PartialEq, Eq)]
enum Woken {
    None,
    /// Maybe a completion.
    Some,
    /// The call has ended.
    End,
}

/// Waits for a completion, or for the end of the call.
fn wait(wire: &Wire, call: &mut Call, most: Duration) -> io::Result<Woken> {
    let most = Timespec::try_from(most).map_err(|_| io::ErrorKind::InvalidInput)?;
    let [completed, called] = {
        // SAFETY: the descriptor belongs to the channel of `wire`.
        let completions = unsafe { BorrowedFd::borrow_raw(wire.channel_fd()) };
        let mut fds = [
            PollFd::from_borrowed_fd(completions, PollFlags::IN),
            PollFd::from_borrowed_fd(call.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        fds.map(|fd| !fd.revents().is_empty())
    };
    Ok(match (called && call.has_ended(), completed || called) {
        (true, _) => Woken::End,
        (false, true) => Woken::Some,
        (false, false) => Woken::None,
    })
}
