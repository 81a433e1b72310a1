//! The last word before the first operation, over the connection itself: what a queue pair can
//! promise is known only when it is up, and the manager's last message carries nothing of ours.
//!
//! The caller speaks first, and is heard: the called side was up before it answered. It speaks when
//! it has heard, since the caller is up by then; a word that came too early would be lost, and said
//! again only after the time of an acknowledgement.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::handshake::Promise;
use super::super::objects::Wire;
use super::super::queue::{Origin, Payload, SendQueue, request};
use super::super::receives::RECEIVE;
use super::super::sys;
use super::Call;
use crate::lobby::{broken, time_left};

/// Says what we promise and hears what the peer promises, as a byte.
///
/// # Errors
/// When the connection breaks, or at the deadline.
pub(in crate::verbs) fn swap(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    (ours, calls): (Promise, bool),
    deadline: Instant,
) -> io::Result<u8> {
    if calls {
        say(wire, queue, ours)?;
    }
    let theirs = hear(wire, queue, call, deadline)?;
    if !calls {
        call.heard();
        say(wire, queue, ours)?;
    }
    Ok(theirs)
}

fn say(wire: &mut Wire, queue: &mut SendQueue, ours: Promise) -> io::Result<()> {
    queue.push(request(sys::WR_SEND, 0), Payload::Copied(&[ours.encode()]), Origin::Ready);
    queue.ring(wire)
}

fn hear(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    deadline: Instant,
) -> io::Result<u8> {
    let (mut asked, mut ended) = (false, false);
    loop {
        // One at a time: what follows the peer's word belongs to the endpoint.
        let mut wcs = [sys::Wc::default()];
        if wire.poll(&mut wcs)? == 0 {
            // What completes before the request raises no event, so that a look comes after it.
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
            ended = wait(wire, call, deadline)?;
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
        let said = wire.receives().bytes(wc.wr_id, wc.byte_len);
        wire.receives().again(wc.wr_id)?;
        return match said[..] {
            [word] if wc.opcode == sys::WC_RECV => Ok(word),
            _ => Err(broken("the peer's first word is another one")),
        };
    }
}

/// Waits for a completion, or for the end of the call: whether that has come.
fn wait(wire: &Wire, call: &mut Call, deadline: Instant) -> io::Result<bool> {
    let left = Timespec::try_from(time_left(deadline)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    let news = {
        // SAFETY: the descriptor belongs to the channel of `wire`.
        let completions = unsafe { BorrowedFd::borrow_raw(wire.channel_fd()) };
        let mut fds = [
            PollFd::from_borrowed_fd(completions, PollFlags::IN),
            PollFd::from_borrowed_fd(call.fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        !fds[1].revents().is_empty()
    };
    Ok(news && call.has_ended())
}
