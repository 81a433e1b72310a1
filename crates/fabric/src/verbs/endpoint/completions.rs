//! Effects of completions and events on an endpoint, and the end of a connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::queue::Origin;
use super::super::receives::{Head, RECEIVE, Receives};
use super::super::sys;
use super::{CONTROL_RECEIVES, VerbsEndpoint};
use crate::{Completion, ErrorKind, OpId};

/// Completions that are taken at a time.
const COMPLETIONS: usize = 32;
/// How long a broken queue pair may take to give its requests back before it is destroyed.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the answers of a peer that is gone are waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

/// The content of a completed receive.
enum Arrived {
    /// For the caller.
    Completion(Completion),
    /// Receives that the peer allows.
    Credit(u32),
}

/// Why a connection ends.
pub(super) struct Break {
    id: Option<OpId>,
    kind: ErrorKind,
}

pub(super) const LOST: Break = Break { id: None, kind: ErrorKind::Disconnected };

impl VerbsEndpoint {
    /// Takes what has completed.
    pub(super) fn collect(&mut self) {
        let mut wcs = [sys::Wc::default(); COMPLETIONS];
        loop {
            let Some(wire) = &mut self.wire else { return };
            let taken = wire.poll(&mut wcs);
            let n = *taken.as_ref().unwrap_or(&0);
            let mut broken = taken.is_err().then_some(LOST);
            for wc in &wcs[..n] {
                let outcome = match wc.wr_id & RECEIVE {
                    0 => {
                        self.returned = wc.wr_id + 1;
                        if broken.is_none() { self.sent(wc) } else { Ok(()) }
                    }
                    _ => self.received(wc),
                };
                broken = broken.or(outcome.err());
            }
            if let Some(broken) = broken {
                return self.fail(broken);
            }
            if n < COMPLETIONS {
                return;
            }
        }
    }

    /// One of our requests has ended.
    fn sent(&mut self, wc: &sys::Wc) -> Result<(), Break> {
        if wc.status == sys::WC_SUCCESS {
            let origin = self.queue.retire(wc.wr_id, &mut self.completions).ok_or(LOST)?;
            if origin == Origin::Look {
                let taken = self.queue.peer_taken();
                self.peer_has_taken(taken)?;
            }
            return Ok(());
        }
        let origin = self.queue.retire_before(wc.wr_id, &mut self.completions);
        let id = match origin {
            Some(Origin::User { id, .. } | Origin::Part { id }) => Some(id),
            _ => None,
        };
        Err(match wc.status {
            sys::WC_REM_ACCESS_ERR | sys::WC_REM_INV_REQ_ERR | sys::WC_REM_OP_ERR => {
                Break { id, kind: ErrorKind::RemoteAccess }
            }
            sys::WC_RNR_RETRY_EXC_ERR => Break { id, kind: ErrorKind::ReceiverNotReady },
            _ => LOST,
        })
    }

    /// The peer has used one of our receives.
    fn received(&mut self, wc: &sys::Wc) -> Result<(), Break> {
        let receives: Arc<Receives> = match &self.wire {
            Some(wire) => wire.receives().clone(),
            None => return Ok(()),
        };
        if wc.status != sys::WC_SUCCESS {
            let _ = receives.again(wc.wr_id);
            return Err(LOST);
        }
        let arrived = self.arrived(&receives, wc);
        receives.again(wc.wr_id).map_err(|_| LOST)?;
        let completion = match arrived.ok_or(LOST)? {
            Arrived::Credit(imm) => return self.credit_message(imm),
            Arrived::Completion(completion) => completion,
        };
        if self.credit.received == self.credit.announced {
            return Err(Break { id: None, kind: ErrorKind::ReceiverNotReady });
        }
        self.credit.received += 1;
        receives.release(1);
        self.completions.push(completion);
        Ok(())
    }

    /// The content of a completed receive; `None` where the peer breaks the protocol.
    fn arrived(&self, receives: &Receives, wc: &sys::Wc) -> Option<Arrived> {
        let notice = |imm| Arrived::Completion(Completion::Notify { imm });
        if self.terms.headed {
            let bytes = receives.bytes(wc.wr_id, wc.byte_len);
            return Head::decode(&bytes).map(|(head, content)| match head {
                Head::Message => Arrived::Completion(Completion::Recv { bytes: content.to_vec() }),
                Head::Notice(imm) => notice(imm),
                Head::Credit(imm) => Arrived::Credit(imm),
            });
        }
        let imm = u32::from_be(wc.imm_data);
        let with_imm = wc.wc_flags & sys::WC_WITH_IMM != 0;
        Some(match wc.opcode {
            sys::WC_RECV_RDMA_WITH_IMM => notice(imm),
            sys::WC_RECV if with_imm => Arrived::Credit(imm),
            _ => Arrived::Completion(Completion::Recv {
                bytes: receives.bytes(wc.wr_id, wc.byte_len),
            }),
        })
    }

    /// Both halves are the low bits of a cumulative position, which moves by less than half of what
    /// they can tell apart.
    fn credit_message(&mut self, imm: u32) -> Result<(), Break> {
        self.credit.messages_taken += 1;
        self.queue.set_taken(self.credit.messages_taken);
        let step = |now: u16, before: u64| u64::from(now.wrapping_sub(before as u16));
        let more = step((imm >> 16) as u16, self.credit.peer_limit);
        if more > u64::from(u16::MAX / 2) {
            return Err(LOST);
        }
        self.credit.peer_limit += more;
        let taken = self.credit.peer_taken + step(imm as u16, self.credit.peer_taken);
        // A message that was overtaken by a look says less than is known.
        if taken <= self.credit.messages_sent { self.peer_has_taken(taken) } else { Ok(()) }
    }

    fn peer_has_taken(&mut self, taken: u64) -> Result<(), Break> {
        if taken > self.credit.messages_sent {
            return Err(LOST);
        }
        self.credit.peer_taken = self.credit.peer_taken.max(taken);
        Ok(())
    }

    /// Looks for what no completion says: that the peer is gone, or that the device is.
    pub(super) fn look_around(&mut self) {
        if self.wire.is_none() {
            return;
        }
        // SAFETY: the descriptor belongs to the context, which `events` keeps open.
        let device = unsafe { BorrowedFd::borrow_raw(self.events.fd()) };
        let mut fds = [
            PollFd::from_borrowed_fd(self.line.fd(), PollFlags::IN | PollFlags::RDHUP),
            PollFd::from_borrowed_fd(device, PollFlags::IN),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_err() {
            return;
        }
        let [completed, event] = [&fds[0], &fds[1]].map(|fd| !fd.revents().is_empty());
        if event {
            self.events.drain();
        }
        if (completed && self.line.has_ended()) || self.alarm.is_rung() {
            self.hear_out();
            self.fail(LOST);
        }
    }

    /// Takes the answers that are under way from a peer that is gone: one of them may be the
    /// refusal that made it go, which says more than that it went.
    fn hear_out(&mut self) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            self.collect();
            let awaits = self.wire.is_some() && self.queue.is_awaited();
            if !awaits || Instant::now() >= deadline {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Ends the connection for a reason that the next poll reports.
    pub(super) fn fail(&mut self, Break { id, kind }: Break) {
        if self.wire.is_some() {
            self.end();
            self.completions.push(Completion::Error { id, kind });
            self.queue.flush(id, &mut self.completions);
        }
    }

    /// Stops the queue pair: afterwards the device touches none of the memory.
    pub(super) fn end(&mut self) {
        let Some(mut wire) = self.wire.take() else { return };
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut attr: sys::QpAttr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::QPS_ERR;
        // A queue pair that is in error already refuses nothing that matters.
        let _ = wire.modify(&mut attr, sys::QP_STATE);
        let receives = wire.receives().clone();
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let mut awaited = self.queue.last_posted().filter(|last| self.returned <= *last);
        let mut wcs = [sys::Wc::default(); COMPLETIONS];
        let mut stopped = false;
        loop {
            let n = wire.poll(&mut wcs).unwrap_or(0);
            for wc in &wcs[..n] {
                if wc.wr_id & RECEIVE != 0 {
                    self.last_words(&receives, wc);
                } else if awaited == Some(wc.wr_id) {
                    awaited = None;
                }
            }
            match (n, stopped) {
                (0, true) => break,
                (0, false) if awaited.is_none() || Instant::now() >= deadline => {
                    wire.stop();
                    stopped = true;
                }
                (0, false) => std::thread::yield_now(),
                _ => {}
            }
        }
        self.exports.clear();
        let promised = self.credit.limit - self.credit.received;
        receives.release(promised as u32 + CONTROL_RECEIVES);
        self.line.end();
    }

    /// A receive that completed before the queue pair was stopped.
    fn last_words(&mut self, receives: &Receives, wc: &sys::Wc) {
        let whole = wc.status == sys::WC_SUCCESS && self.credit.received < self.credit.announced;
        let arrived = if whole { self.arrived(receives, wc) } else { None };
        let posted = receives.again(wc.wr_id).is_ok();
        if let Some(Arrived::Completion(completion)) = arrived {
            self.completions.push(completion);
            if posted {
                self.credit.received += 1;
                receives.release(1);
            }
        }
    }
}
