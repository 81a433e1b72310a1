//! SEND beside WRITE and READ (W14): messages that are sent, two-sided, one after another.
//!
//! A message lands in the receives that the other end has posted, in their order and wherever
//! the transport has them, and each is reported to the other end. A link's frames land in slots
//! that their position names; the largest send of a fabric is smaller than a slot, and rows do not
//! go by it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use channel::LinkError;
use fabric::{Completion, Endpoint, Fabric, LinkId, OpId, PostError};

use super::raw::{spin, two_ends};
use super::times::cpu_s;

/// Receives that an end has posted, and after how many that were used it posts as many.
const RECEIVES: u32 = 64;
const POSTED_AFTER: u32 = 16;

/// The number of the last message.
const LAST: u64 = u64::MAX;

/// The measurements of messages that were sent.
#[derive(Debug, Clone, Copy)]
pub struct SendRun {
    /// From the first message until all were looked at.
    pub seconds: f64,
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Processor time of both ends.
    pub cpu_s: f64,
}

impl SendRun {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Messages a second.
    pub fn message_rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    /// Processor seconds of both ends for a GiB.
    pub fn cpu_s_per_gib(&self) -> f64 {
        self.cpu_s / (self.bytes as f64 / f64::from(1 << 30))
    }
}

/// Sends messages of this many bytes for a while: at least 8, which number it, and at most what the
/// fabric sends.
///
/// # Errors
/// When the fabric refuses a connection or a message, or the connection breaks.
pub fn sends(fabric: &dyn Fabric, bytes: usize, span: Duration) -> Result<SendRun, LinkError> {
    let near = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let far = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_near, of_far) = (near.address(), far.address());
    let (near, far) = two_ends(|| near.connect(&of_far), || far.connect(&of_near));
    let (mut near, mut far) = (near?, far?);
    far.post_recvs(RECEIVES);
    let done = AtomicBool::new(false);
    let send = || {
        let sent = send_for(&mut *near, bytes, span, &done);
        if sent.is_err() {
            // The receiver waits for a last message that will not come.
            near.close();
        }
        sent
    };
    let receive = || {
        let received = receive_all(&mut *far);
        // The sender may wait for room, and must not wait for a receiver that has failed.
        done.store(true, Ordering::Release);
        received
    };
    let (sent, received) = two_ends(send, receive);
    let (own, run) = (sent?, received?);
    Ok(SendRun { cpu_s: run.cpu_s + own, ..run })
}

/// Sends until the time is over; returns the processor time.
fn send_for(
    end: &mut dyn Endpoint,
    bytes: usize,
    span: Duration,
    done: &AtomicBool,
) -> Result<f64, LinkError> {
    let (start, before) = (Instant::now(), cpu_s());
    let mut message = vec![1_u8; bytes.max(8)];
    let (mut number, mut turns, mut over) = (0_u64, 0, false);
    while !(over && done.load(Ordering::Acquire)) {
        let room = end.budget();
        let count = if over { 0 } else { room.notices.min(room.ops) };
        for _ in 0..count {
            // One at least: the processor may have been taken away meanwhile.
            over = number > 0 && start.elapsed() >= span;
            let head = if over { LAST } else { number };
            message[..8].copy_from_slice(&head.to_le_bytes());
            end.send(&message, OpId(number)).map_err(refused)?;
            number += 1;
            if over {
                break;
            }
        }
        end.submit();
        let gone = polled(end, |_| Ok(()));
        if done.load(Ordering::Acquire) {
            break;
        }
        if gone? == 0 && count == 0 {
            spin(&mut turns);
        }
    }
    Ok(cpu_s() - before)
}

/// Takes all messages, looks at all bytes, and checks that each is the next one.
fn receive_all(end: &mut dyn Endpoint) -> Result<SendRun, LinkError> {
    let (start, before) = (Instant::now(), cpu_s());
    let (mut messages, mut bytes, mut used, mut turns, mut over) = (0_u64, 0_u64, 0, 0, false);
    while !over {
        let found = polled(end, |message| {
            used += 1;
            let number = message.first_chunk().map(|head| u64::from_le_bytes(*head));
            if number == Some(LAST) {
                over = true;
                return Ok(());
            }
            if number != Some(messages) {
                let detail = "a message is lost, doubled or out of order".into();
                return Err(LinkError::Protocol { detail });
            }
            black_box(message.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
            messages += 1;
            bytes += message.len() as u64;
            Ok(())
        })?;
        if used >= POSTED_AFTER {
            end.post_recvs(used);
            used = 0;
            end.submit();
        }
        if found == 0 {
            spin(&mut turns);
        }
    }
    let (seconds, cpu_s) = (start.elapsed().as_secs_f64(), cpu_s() - before);
    Ok(SendRun { seconds, messages, bytes, cpu_s })
}

/// Gives the messages of one poll to `take`; returns how many completions there were.
fn polled(
    end: &mut dyn Endpoint,
    mut take: impl FnMut(&[u8]) -> Result<(), LinkError>,
) -> Result<usize, LinkError> {
    let mut seen = Vec::new();
    end.poll(&mut seen);
    for completion in &seen {
        match completion {
            Completion::Recv { bytes } => take(bytes)?,
            Completion::Error { kind, .. } => {
                return Err(LinkError::Disconnected { kind: *kind });
            }
            Completion::Local { .. } | Completion::Notify { .. } => {}
        }
    }
    Ok(seen.len())
}

fn refused(error: PostError) -> LinkError {
    LinkError::Protocol { detail: format!("a message was refused: {error}") }
}
