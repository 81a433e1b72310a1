//! Flow control of one stream of frames, where several streams share a ring.
//!
//! A consumer takes every frame off the ring at once, so that no stream holds up another. Frames
//! that its operator cannot process yet wait in memory. A *window* bounds the bytes of each
//! producer that wait there: the producer waits before it sends more, and the consumer, which
//! returns the window, waits for nothing.
//!
//! Both ends count the same bytes of the same frames, so frames carry nothing about the window. The
//! consumer returns a position: all bytes before it were processed. It returns one when a quarter
//! of the window has been processed since the last one. A frame counts as half a window at most, so
//! a producer that waits has more than a quarter there; once that is processed, it may send.

use super::Breach;

/// The least number of bytes that a frame counts as, for the memory that it takes beside its
/// payload.
pub const FRAME_BYTES_MIN: u64 = 256;

/// Bytes that a frame with this payload counts as in this window.
fn counted(window: u64, payload: usize) -> u64 {
    (payload as u64).max(FRAME_BYTES_MIN).min((window / 2).max(1))
}

/// The window of a stream as its producer sees it, towards one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SendWindow {
    bytes: u64,
    sent: u64,
    consumed: u64,
}

impl SendWindow {
    /// A window of this many bytes, at least one, all of it free.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes: bytes.max(1), sent: 0, consumed: 0 }
    }

    /// Opens the window: every frame fits from now on.
    pub fn open(&mut self) {
        self.bytes = u64::MAX;
    }

    /// Bytes of the largest payload that counts in full.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        usize::try_from(self.bytes / 2).unwrap_or(usize::MAX)
    }

    /// Counts a frame with a payload of this length, if there is room for it.
    pub fn reserve(&mut self, payload: usize) -> bool {
        let sent = self.sent + counted(self.bytes, payload);
        let fits = sent - self.consumed <= self.bytes;
        if fits {
            self.sent = sent;
        }
        fits
    }

    /// The consumer has processed all bytes before a position.
    ///
    /// # Errors
    /// [`Breach::Consumed`] if they were not sent. An old position is no error.
    pub fn consumed(&mut self, position: u64) -> Result<(), Breach> {
        if position > self.sent {
            return Err(Breach::Consumed { position, sent: self.sent });
        }
        self.consumed = self.consumed.max(position);
        Ok(())
    }

    /// Bytes that were sent and are not known to be processed.
    #[must_use]
    pub fn unprocessed(&self) -> u64 {
        self.sent - self.consumed
    }
}

/// The window of a stream as its consumer sees it, towards one producer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReceiveWindow {
    bytes: u64,
    received: u64,
    consumed: u64,
    returned: u64,
}

impl ReceiveWindow {
    /// A window of this many bytes, at least one, all of it free.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes: bytes.max(1), received: 0, consumed: 0, returned: 0 }
    }

    /// Opens the window: every frame fits from now on, and no position is returned any more.
    pub fn open(&mut self) {
        self.bytes = u64::MAX;
    }

    /// Counts a frame with a payload of this length; gives the bytes that it counts as.
    ///
    /// # Errors
    /// [`Breach::Window`] when the producer cannot have had room for it.
    pub fn receive(&mut self, payload: usize) -> Result<u64, Breach> {
        let bytes = counted(self.bytes, payload);
        let unreturned = self.received + bytes - self.returned;
        if unreturned > self.bytes {
            return Err(Breach::Window { unreturned, window: self.bytes });
        }
        self.received += bytes;
        Ok(bytes)
    }

    /// Counts bytes as processed; frames may be processed in any order. Gives the position to
    /// return to the producer, if it is time.
    pub fn consume(&mut self, bytes: u64) -> Option<u64> {
        self.consumed += bytes;
        debug_assert!(self.consumed <= self.received, "what is processed was received");
        let due = self.consumed - self.returned >= (self.bytes / 4).max(1);
        due.then(|| {
            self.returned = self.consumed;
            self.consumed
        })
    }

    /// Bytes that wait to be processed.
    #[must_use]
    pub fn unprocessed(&self) -> u64 {
        self.received - self.consumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_its_bytes_and_no_more() {
        let mut window = SendWindow::new(1_024);
        assert!(window.reserve(1) && window.reserve(256), "each counts as 256 bytes");
        assert!(window.reserve(9_000), "a large frame counts as half of the window");
        assert_eq!(window.unprocessed(), 1_024);
        assert!(!window.reserve(0));
        window.consumed(255).unwrap();
        assert!(!window.reserve(0));
        window.consumed(256).unwrap();
        assert!(window.reserve(0) && !window.reserve(0));
    }

    #[test]
    fn a_position_that_is_old_changes_nothing_and_one_of_the_future_is_a_breach() {
        let mut window = SendWindow::new(1_024);
        assert!(window.reserve(300));
        window.consumed(300).unwrap();
        window.consumed(0).unwrap();
        assert_eq!(window.unprocessed(), 0);
        let refused = window.consumed(301).unwrap_err();
        assert_eq!(refused, Breach::Consumed { position: 301, sent: 300 });
    }

    #[test]
    fn a_quarter_is_returned_as_a_position() {
        let mut window = ReceiveWindow::new(4_096);
        let bytes: Vec<u64> = [700, 300, 1].map(|len| window.receive(len).unwrap()).to_vec();
        assert_eq!(bytes, [700, 300, 256]);
        assert_eq!((window.consume(700), window.consume(256)), (None, None));
        assert_eq!((window.consume(300), window.unprocessed()), (Some(1_256), 0));
    }

    #[test]
    fn a_producer_that_disregards_the_window_is_refused() {
        let mut window = ReceiveWindow::new(1_024);
        assert_eq!(window.receive(usize::MAX), Ok(512));
        assert_eq!(window.receive(512), Ok(512));
        let refused = window.receive(1).unwrap_err();
        assert_eq!(refused, Breach::Window { unreturned: 1_280, window: 1_024 });
        assert_eq!(window.consume(512), Some(512));
        assert_eq!(window.receive(1), Ok(256), "there is room again");
    }

    #[test]
    fn a_producer_that_waits_may_send_once_all_is_processed() {
        for window in 0..2_000 {
            let (mut send, mut receive) = (SendWindow::new(window), ReceiveWindow::new(window));
            let mut lens = [1, 300, 511, 512, 513, 4_000].into_iter().cycle();
            for _ in 0..200 {
                let len = lens.next().unwrap_or(0);
                let mut held = vec![];
                while send.reserve(len) {
                    held.push(receive.receive(len).unwrap());
                    assert!(receive.unprocessed() <= window.max(1));
                    if held.len() > 20 {
                        break;
                    }
                }
                assert!(!held.is_empty(), "a window of {window} bytes, and a frame of {len}");
                let returned = held.into_iter().filter_map(|bytes| receive.consume(bytes));
                returned.for_each(|position| send.consumed(position).unwrap());
            }
        }
    }
}
