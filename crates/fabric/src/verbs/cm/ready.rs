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

use super::super::handshake::weakness;
use super::super::objects::Wire;
use super::super::queue::{Origin, Payload, SendQueue, request};
use super::super::receives::RECEIVE;
use super::super::sys;
use super::Call;
use crate::Publish;
use crate::lobby::{broken, time_left};

/// Says what we promise and hears what the peer promises, as a byte.
///
/// # Errors
/// When the connection breaks, or at the deadline.
pub(in crate::verbs) fn swap(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    (ours, calls): (Publish, bool),
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

fn say(wire: &mut Wire, queue: &mut SendQueue, ours: Publish) -> io::Result<()> {
    let mut wr = request(sys::WR_SEND_WITH_IMM, 0);
    wr.imm_data = u32::from(weakness(ours)).to_be();
    queue.push(wr, Payload::Empty, Origin::Ready);
    queue.ring(wire)
}

fn hear(
    wire: &mut Wire,
    queue: &mut SendQueue,
    call: &mut Call,
    deadline: Instant,
) -> io::Result<u8> {
    let mut asked = false;
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
            asked = false;
            wait(wire, call, deadline)?;
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
        wire.receives().again(wc.wr_id)?;
        let with_imm = wc.wc_flags & sys::WC_WITH_IMM != 0;
        let word = u8::try_from(u32::from_be(wc.imm_data)).ok().filter(|_| with_imm);
        return word.ok_or_else(|| broken("the peer's first word is another one"));
    }
}

/// Waits for a completion, or for the end of the call.
fn wait(wire: &Wire, call: &mut Call, deadline: Instant) -> io::Result<()> {
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
    if news && call.has_ended() {
        return Err(broken("the peer left in the middle of the handshake"));
    }
    Ok(())
}
