//! Notes from one node to another, beside the exchanges in which all take part: what two nodes have
//! to agree upon while the job runs, and nobody else.
//!
//! A note is about something, by a number that both know. What a node has been told about one thing
//! it reads in the order in which it was told; what is about different things does not wait for
//! each other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::control::{Control, Shared, wait};
use crate::error::ClusterError;
use crate::frame::ControlFrame;

/// Bytes of a message at most.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Messages of one node that may wait to be read, and their bytes.
const UNREAD_MAX: usize = 1 << 16;
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// Messages that have come and were not read.
#[derive(Debug, Default)]
pub(crate) struct UnreadMessages {
    /// By sender, and what they are about.
    unread: HashMap<(u32, u64), VecDeque<Vec<u8>>>,
    /// How many there are of each sender, and how many bytes.
    held: HashMap<u32, (usize, usize)>,
}

impl UnreadMessages {
    /// # Errors
    /// When more wait than anybody who is in his senses sends.
    pub(crate) fn add(
        &mut self,
        from: u32,
        topic: u64,
        message: Vec<u8>,
    ) -> Result<(), &'static str> {
        let (count, bytes) = self.held.entry(from).or_default();
        let full = *count >= UNREAD_MAX || *bytes + message.len() > UNREAD_BYTES_MAX;
        if full || message.len() > CONTROL_MESSAGE_BYTES_MAX {
            return Err("its notes are too many or too long");
        }
        (*count, *bytes) = (*count + 1, *bytes + message.len());
        self.unread.entry((from, topic)).or_default().push_back(message);
        Ok(())
    }

    fn take(&mut self, from: u32, topic: u64) -> Option<Vec<u8>> {
        let waiting = self.unread.get_mut(&(from, topic))?;
        let message = waiting.pop_front();
        if waiting.is_empty() {
            self.unread.remove(&(from, topic));
        }
        if let (Some((count, bytes)), Some(message)) = (self.held.get_mut(&from), &message) {
            (*count, *bytes) = (*count - 1, *bytes - message.len());
        }
        message
    }
}

impl Control {
    /// Tells one other node something (at most [`CONTROL_MESSAGE_BYTES_MAX`] bytes), which it reads
    /// by [`receive_message`](Self::receive_message). A message to a node that is gone is dropped.
    ///
    /// # Errors
    /// When the message is too long.
    pub fn send_to(&self, to: u32, topic: u64, message: Vec<u8>) -> Result<(), ClusterError> {
        self.send_message(to, topic, false, message)
    }

    /// As [`send_to`](Self::send_to), of a place: see
    /// [`all_gather_places`](Self::all_gather_places).
    ///
    /// # Errors
    /// When the message is too long.
    pub fn send_place_to(&self, to: u32, topic: u64, message: Vec<u8>) -> Result<(), ClusterError> {
        self.send_message(to, topic, true, message)
    }

    fn send_message(
        &self,
        to: u32,
        topic: u64,
        places: bool,
        message: Vec<u8>,
    ) -> Result<(), ClusterError> {
        if message.len() > CONTROL_MESSAGE_BYTES_MAX {
            return Err(ClusterError::TooLarge { bytes: message.len() });
        }
        self.shared().lock().send(to, &ControlFrame::Message { topic, places, bytes: message });
        self.shared().wake();
        Ok(())
    }

    /// The next message of a node about this, waiting for one up to `limit`; `None` when there is
    /// none by then.
    ///
    /// # Errors
    /// When a node failed or the job has ended: no message comes any more.
    pub fn receive_message(
        &self,
        from: u32,
        topic: u64,
        limit: Duration,
    ) -> Result<Option<Vec<u8>>, ClusterError> {
        let deadline = Instant::now() + limit;
        let shared: &Shared = self.shared();
        let mut state = shared.lock();
        loop {
            if let Some(message) = state.messages.take(from, topic) {
                return Ok(Some(message));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            if state.ended || state.closed[from as usize] || state.gone[from as usize] {
                return Err(ClusterError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = wait(shared.changed(), state, Some(left));
        }
    }

    /// Drops unread messages: behind an exchange, all that were sent before it.
    pub fn discard_messages(&self) {
        self.shared().lock().messages = UnreadMessages::default();
    }

    /// The senders and topics of unread messages.
    pub fn unread_messages(&self) -> Vec<(u32, u64)> {
        self.shared().lock().messages.unread.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn messages_of_one_topic_are_read_in_order_and_others_do_not_wait() {
        let controls = crate::in_process(3).unwrap();
        std::thread::scope(|scope| {
            for control in &controls[1..] {
                scope.spawn(|| {
                    for n in 0..50u8 {
                        let topic = u64::from(n % 2);
                        control.send_to(0, topic, vec![control.rank() as u8, n]).unwrap();
                    }
                });
            }
            for (from, topic) in [(2, 1), (1, 0), (1, 1), (2, 0)] {
                for n in (0..50u8).filter(|n| u64::from(n % 2) == topic) {
                    let message = controls[0].receive_message(from, topic, SOON).unwrap();
                    assert_eq!(message, Some(vec![from as u8, n]));
                }
            }
        });
        assert_eq!(controls[0].unread_messages(), []);
        assert!(controls[0].receive_message(1, 7, Duration::from_millis(5)).unwrap().is_none());
        let long = vec![0; CONTROL_MESSAGE_BYTES_MAX + 1];
        let refused = controls[1].send_to(0, 0, long);
        assert!(matches!(refused, Err(ClusterError::TooLarge { .. })), "{refused:?}");
        controls[1].send_to(0, 9, vec![1]).unwrap();
        controls[2].send_to(0, 8, vec![1]).unwrap();
        assert_eq!(controls[0].receive_message(2, 8, SOON).unwrap(), Some(vec![1]));
        std::thread::scope(|scope| {
            for control in &controls {
                scope.spawn(|| control.all_gather("step", vec![]).unwrap());
            }
        });
        assert_eq!(controls[0].unread_messages(), [(1, 9)]);
        controls[0].discard_messages();
        assert_eq!(controls[0].unread_messages(), []);
    }

    #[test]
    fn a_wait_for_a_message_ends_with_a_failure() {
        let controls = crate::in_process(2).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| controls[1].fail("the disk is full"));
            let waited = controls[0].receive_message(1, 0, SOON);
            let Err(ClusterError::Node(failure)) = waited else { panic!("{waited:?}") };
            assert_eq!(failure.cause, Cause::Reported("the disk is full".into()));
        });
    }

    #[test]
    fn unread_messages_have_a_bound() {
        let mut messages = UnreadMessages::default();
        for n in 0..UNREAD_MAX as u64 {
            messages.add(1, n % 3, vec![]).unwrap();
        }
        assert!(messages.add(1, 0, vec![]).is_err());
        messages.add(2, 0, vec![]).unwrap();
        assert!(messages.add(2, 0, vec![0; CONTROL_MESSAGE_BYTES_MAX + 1]).is_err());
        assert_eq!(messages.take(1, 2), Some(vec![]));
        messages.add(1, 0, vec![]).unwrap();
        assert_eq!(messages.take(1, 5), None);
        let long = || vec![0; CONTROL_MESSAGE_BYTES_MAX];
        for _ in 0..UNREAD_BYTES_MAX / CONTROL_MESSAGE_BYTES_MAX {
            messages.add(3, 0, long()).unwrap();
        }
        assert!(messages.add(3, 0, vec![0]).is_err());
        assert_eq!(messages.take(3, 0), Some(long()));
        messages.add(3, 0, long()).unwrap();
    }
}
