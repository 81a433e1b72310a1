//! How a worker hands rows to another one of its process: by reference (Q7).
//!
//! Between two such workers there is no ring. A queue each way takes whatever one sends the other,
//! in one order, so that what is said of progress stays behind the rows that it speaks of. Nothing
//! is encoded, and rows are not copied: who takes them may keep them.
//!
//! ```text
//!   worker 0                                          worker 1
//!   End ── give ─▶ │ rows │ progress │ rows │ ── take ─▶ End
//!       ◀─ taken, room again: an event descriptor wakes a parked worker ──
//! ```
//!
//! A queue holds as many bytes as the ring would that it stands for, less than one frame more, and
//! [`FRAMES_MAX`] frames; the last of them are for control alone, so that control passes when data
//! do not.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::{Class, Header, LinkError, RingConfig};
use fabric::{ErrorKind, EventFd};

use crate::rows::wire::{Decoder, bytes_of};

/// Frames in a queue, at most.
const FRAMES_MAX: u64 = 64;

/// Those of them that data frames leave free.
const CONTROL_FRAMES: u64 = 8;

/// What a frame carries.
#[derive(Debug, Clone)]
pub(crate) enum Load {
    /// Bytes in a ring's slot, which is not free while they live.
    Slot(Bytes),
    /// Bytes in memory of their own.
    Own(Bytes),
    /// Rows of another worker of this process, and their bytes.
    Rows { batch: RecordBatch, bytes: usize },
}

impl Load {
    /// Rows by reference.
    pub(crate) fn of_rows(batch: &RecordBatch) -> Self {
        Load::Rows { batch: batch.clone(), bytes: bytes_of(batch) }
    }

    /// The bytes; none where it is rows.
    pub(crate) fn bytes(self) -> Bytes {
        match self {
            Load::Slot(bytes) | Load::Own(bytes) => bytes,
            Load::Rows { .. } => Bytes::new(),
        }
    }

    /// The same in memory that may be held for long.
    pub(crate) fn detached(self) -> Self {
        match self {
            Load::Slot(bytes) => Load::Own(Bytes::copy_from_slice(&bytes)),
            load => load,
        }
    }

    /// The rows, and whether they may be held for long: encoded ones point into their payload.
    ///
    /// # Errors
    /// What is malformed.
    pub(crate) fn rows(self, decoder: &Decoder) -> Result<(RecordBatch, bool), String> {
        match self {
            Load::Rows { batch, .. } => Ok((batch, true)),
            load => Ok((decoder.decode(load.bytes())?.0, false)),
        }
    }

    /// Bytes of a payload; none where it is rows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Load::Slot(bytes) | Load::Own(bytes) => bytes.len(),
            Load::Rows { .. } => 0,
        }
    }

    /// Bytes of a payload, or of rows.
    pub(crate) fn size(&self) -> usize {
        match self {
            Load::Rows { bytes, .. } => *bytes,
            encoded => encoded.len(),
        }
    }
}

/// What goes from one worker to another. Both count up under the lock, so that each sees without
/// it whether the other has moved.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    frames: Mutex<VecDeque<(Header, Load, u64)>>,
    /// Frames that were ever given, by the giver.
    given: AtomicU64,
    /// Frames that were ever taken, by the taker.
    taken: AtomicU64,
    /// Bytes of the frames in it.
    bytes: AtomicU64,
    /// The giver is gone.
    closed: AtomicBool,
}

impl Queue {
    fn push(&self, header: Header, load: Load) -> u64 {
        let bytes = load.size() as u64;
        let mut frames = self.lock();
        frames.push_back((header, load, bytes));
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.given.fetch_add(1, Ordering::SeqCst);
        bytes
    }

    fn pop(&self) -> Option<(Header, Load)> {
        let mut frames = self.lock();
        let (header, load, bytes) = frames.pop_front()?;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::SeqCst);
        Some((header, load))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Header, Load, u64)>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frames(&self) -> u64 {
        // Loaded first: the other may go on in between, and must not get ahead of it.
        let taken = self.taken.load(Ordering::SeqCst);
        self.given.load(Ordering::SeqCst) - taken
    }
}

/// A worker's sleep, from which the others of its process wake it.
///
/// All orders are sequential: either a worker that parks sees what was given before, or the giver
/// sees that it is parked.
#[derive(Debug)]
pub(crate) struct Parker {
    event_fd: EventFd,
    parked: AtomicBool,
}

impl Parker {
    /// Of a worker that is awake.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { event_fd: EventFd::new()?, parked: AtomicBool::new(false) })
    }

    /// Asks to be woken from now on, by the descriptor. Whoever lies down looks at its queues
    /// before it sleeps.
    pub(crate) fn park(&self) -> RawFd {
        self.parked.store(true, Ordering::SeqCst);
        self.event_fd.raw()
    }

    /// The worker is awake.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, Ordering::SeqCst);
        self.event_fd.clear();
    }

    /// Ends the sleep, from any thread.
    pub(crate) fn wake(&self) {
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            self.event_fd.signal();
        }
    }
}

/// A worker's end of the two queues that join it with another one.
#[derive(Debug)]
pub(crate) struct End {
    out: Arc<Queue>,
    into: Arc<Queue>,
    other: Arc<Parker>,
    ring: RingConfig,
    /// Frames given by the other and taken by it, when this end was last polled.
    seen: Cell<(u64, u64)>,
}

impl End {
    /// Gives to `out` and takes from `into`, in place of rings of these dimensions.
    pub(crate) fn new(
        out: Arc<Queue>,
        into: Arc<Queue>,
        other: Arc<Parker>,
        ring: RingConfig,
    ) -> Self {
        Self { out, into, other, ring, seen: Cell::default() }
    }

    /// Whether the other has given or taken something since the last call.
    ///
    /// # Errors
    /// [`LinkError::Disconnected`] when the other is gone and all that it gave is taken.
    pub(crate) fn poll(&self) -> Result<bool, LinkError> {
        if self.is_over() {
            return Err(LinkError::Disconnected { kind: ErrorKind::Disconnected });
        }
        let now = self.counts();
        Ok(self.seen.replace(now) != now)
    }

    /// Whether [`End::poll`] would tell something.
    pub(crate) fn has_news(&self) -> bool {
        self.counts() != self.seen.get() || self.is_over()
    }

    /// Whether a frame can be given.
    pub(crate) fn has_room(&self, class: Class) -> bool {
        let frames = self.out.frames();
        match class {
            Class::Control => frames < FRAMES_MAX,
            Class::Data => {
                let bytes_max = self.ring.memory_bytes().ring as u64;
                frames < FRAMES_MAX - CONTROL_FRAMES
                    && self.out.bytes.load(Ordering::Relaxed) < bytes_max
            }
        }
    }

    /// Gives a frame, for which there [is room](End::has_room); tells its bytes.
    pub(crate) fn give(&self, header: Header, load: Load) -> u64 {
        let bytes = self.out.push(header, load);
        self.other.wake();
        bytes
    }

    /// The next frame, if there is one.
    pub(crate) fn take(&self) -> Option<(Header, Load)> {
        let taken = self.into.pop()?;
        self.other.wake();
        Some(taken)
    }

    /// The dimensions of the ring that a queue stands for.
    pub(crate) fn ring(&self) -> &RingConfig {
        &self.ring
    }

    /// This end gives nothing more and takes nothing more.
    pub(crate) fn close(&self) {
        self.out.closed.store(true, Ordering::SeqCst);
        self.other.wake();
    }

    fn is_over(&self) -> bool {
        self.into.closed.load(Ordering::SeqCst) && self.into.frames() == 0
    }

    fn counts(&self) -> (u64, u64) {
        (self.into.given.load(Ordering::SeqCst), self.out.taken.load(Ordering::SeqCst))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    /// Two workers that are joined, with their sleeps.
    fn joined(ring: RingConfig) -> ([End; 2], [Arc<Parker>; 2]) {
        let queues: [Arc<Queue>; 2] = Default::default();
        let parkers = [(); 2].map(|()| Arc::new(Parker::new().unwrap()));
        let end = |at: usize| {
            let (out, into) = (queues[at].clone(), queues[1 - at].clone());
            End::new(out, into, parkers[1 - at].clone(), ring)
        };
        ([end(0), end(1)], parkers)
    }

    fn rows(count: i64) -> Load {
        let numbers = Int64Array::from_iter_values(0..count);
        Load::of_rows(&RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef)]).unwrap())
    }

    fn header(number: u64) -> Header {
        Header { words: [number, 0, 0], ..Header::default() }
    }

    #[test]
    fn frames_come_in_order_and_rows_are_the_same_arrays() {
        let ([a, b], _) = joined(RingConfig::default());
        let Load::Rows { batch, bytes } = rows(3) else { unreachable!() };
        assert_eq!(bytes, 24);
        a.give(header(0), Load::of_rows(&batch));
        a.give(header(1), Load::Own(Bytes::from_static(b"said")));
        assert!(b.poll().unwrap() && !b.poll().unwrap());
        let (first, load) = b.take().unwrap();
        let Load::Rows { batch: taken, .. } = load else { panic!("rows") };
        assert!(Arc::ptr_eq(taken.column(0), batch.column(0)));
        let (second, load) = b.take().unwrap();
        assert_eq!((first.words[0], second.words[0], &load.bytes()[..]), (0, 1, &b"said"[..]));
        assert!(b.take().is_none());
        assert!(a.poll().unwrap(), "there is room again");
    }

    #[test]
    fn a_full_queue_takes_control_alone_until_something_is_taken() {
        let ring = RingConfig { slots: 2, slot_bytes: 128, control_slots: 1, ..Default::default() };
        let ([a, b], _) = joined(ring);
        // By bytes: what there is room for may be larger than the room.
        assert_eq!(a.give(header(0), rows(1_000)), 8_000);
        assert!(!a.has_room(Class::Data) && a.has_room(Class::Control));
        b.take().unwrap();
        // By frames, which need not have any.
        for at in 0..FRAMES_MAX {
            let data = at < FRAMES_MAX - CONTROL_FRAMES;
            assert_eq!(a.has_room(Class::Data), data, "{at}");
            assert!(a.has_room(Class::Control), "{at}");
            a.give(header(at), Load::Own(Bytes::new()));
        }
        assert!(!a.has_room(Class::Control));
        b.take().unwrap();
        assert!(a.has_room(Class::Control) && !a.has_room(Class::Data));
    }

    #[test]
    fn rows_of_a_slice_count_as_such() {
        let Load::Rows { batch, .. } = rows(1_000) else { unreachable!() };
        assert_eq!(Load::of_rows(&batch.slice(10, 20)).size(), 160);
    }

    #[test]
    fn the_end_is_seen_behind_the_last_frame() {
        let ([a, b], _) = joined(RingConfig::default());
        a.give(header(7), rows(1));
        drop(a);
        assert!(b.poll().unwrap());
        assert_eq!(b.take().unwrap().0.words[0], 7);
        assert!(b.has_news());
        assert!(matches!(b.poll(), Err(LinkError::Disconnected { .. })));
    }

    #[test]
    fn who_sleeps_misses_nothing() {
        const FRAMES: u64 = 20_000;
        let ring = RingConfig { slots: 2, slot_bytes: 128, control_slots: 1, ..Default::default() };
        let ([a, b], parkers) = joined(ring);
        let [of_a, of_b] = parkers;
        let sleep = |parker: &Parker, end: &End| {
            let fd = parker.park();
            if !end.has_news() {
                // A wake-up that is missed shows as a test that does not end.
                fabric::wait(&[fd], Duration::from_secs(3_600));
            }
            parker.unpark();
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for at in 0..FRAMES {
                    while !a.has_room(Class::Data) {
                        if !a.poll().unwrap() {
                            sleep(&of_a, &a);
                        }
                    }
                    a.give(header(at), rows(at as i64 % 40));
                }
            });
            scope.spawn(move || {
                for at in 0..FRAMES {
                    let taken = loop {
                        match b.take() {
                            Some((header, _)) => break header.words[0],
                            None if b.poll().unwrap() => {}
                            None => sleep(&of_b, &b),
                        }
                    };
                    assert_eq!(taken, at);
                }
            });
        });
    }
}
