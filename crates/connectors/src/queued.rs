//! Bytes that a thread of its own writes, where the reader may be slow: standard output, a pipe, a
//! socket. The worker queues them, up to a bound, and never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use dataflow::error::ConnectorError;
use dataflow::sink::Room;

use crate::remote::died;

/// Bytes that wait for the thread at most, besides those that were queued last.
pub(crate) const QUEUE_BYTES_MAX: usize = 256 << 10;

/// How often it is tried to open what nobody reads yet: no event tells of a reader.
const OPEN_EVERY: Duration = Duration::from_millis(20);

/// How long rows that were written are waited for when the query has failed.
const LAST_ROWS_TIMEOUT: Duration = Duration::from_secs(1);

/// The worker's end.
pub(crate) struct QueuedWriter {
    shared: Arc<Shared>,
    waker: Waker,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of `pieces`, and of the one that is being written.
    bytes: usize,
    /// Nobody reads yet, so that it could not be opened.
    opening: bool,
    /// The worker's end is gone.
    closed: bool,
    /// How writing has failed, or that the thread died.
    failed: Option<ConnectorError>,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.bytes == 0 && !self.opening
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }
}

impl QueuedWriter {
    /// Starts the thread, which writes by `write`. `waker` is called when there is room again, when
    /// all is written, and when writing has failed. `place` is for messages.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        place: &str,
        waker: &Waker,
        write: impl FnMut(&[u8]) -> Result<(), ConnectorError> + Send + 'static,
    ) -> Result<Self, ConnectorError> {
        let mut write = Some(write);
        Self::start_opening(place, waker, move || Ok(write.take()))
    }

    /// The same for what has to be opened first: `open` gives how it is written, or `None` where it
    /// cannot be opened yet. The thread asks again until it is, or until this end is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start_opening<W>(
        place: &str,
        waker: &Waker,
        open: impl FnMut() -> Result<Option<W>, ConnectorError> + Send + 'static,
    ) -> Result<Self, ConnectorError>
    where
        W: FnMut(&[u8]) -> Result<(), ConnectorError>,
    {
        let queue = Mutex::new(Queue { opening: true, ..Queue::default() });
        let shared = Arc::new(Shared { queue, changed: Condvar::new() });
        let thread = Thread { shared: Arc::clone(&shared), waker: waker.clone() };
        let dies = died(place);
        let started = thread::Builder::new()
            .name("millstream-writer".into())
            .spawn(move || thread.run(dies, open));
        started.map_err(|error| ConnectorError::Io {
            place: place.to_owned(),
            message: format!("cannot start its thread: {error}"),
            hint: None,
        })?;
        Ok(Self { shared, waker: waker.clone() })
    }

    /// Whether more bytes may be queued.
    pub(crate) fn room(&self) -> Room {
        let queue = self.shared.lock();
        let full = queue.bytes >= QUEUE_BYTES_MAX && queue.failed.is_none();
        if full { Room::Full } else { Room::Ready }
    }

    /// Queues bytes.
    ///
    /// # Errors
    /// When those before could not be written.
    pub(crate) fn send(&self, bytes: Vec<u8>) -> Result<(), ConnectorError> {
        self.shared.change(|queue| match &queue.failed {
            Some(error) => Err(error.clone()),
            None => {
                queue.bytes += bytes.len();
                queue.pieces.push_back(bytes);
                Ok(())
            }
        })
    }

    /// Whether all bytes are written: [`Room::Ready`] if they are.
    ///
    /// # Errors
    /// When they could not be written.
    pub(crate) fn drain(&self) -> Result<Room, ConnectorError> {
        let queue = self.shared.lock();
        match &queue.failed {
            Some(error) => Err(error.clone()),
            None if queue.is_idle() => Ok(Room::Ready),
            None => Ok(Room::Full),
        }
    }

    /// Waits until all bytes are written, however long that lasts: those that are left of a writer
    /// that was drained are none.
    ///
    /// # Errors
    /// When they could not be written.
    pub(crate) fn finish(&self) -> Result<(), ConnectorError> {
        let mut queue = self.shared.lock();
        while !queue.is_idle() && queue.failed.is_none() {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for QueuedWriter {
    /// A reader still sees the bytes queued before a failure.
    fn drop(&mut self) {
        let ends = Instant::now() + LAST_ROWS_TIMEOUT;
        let mut queue = self.shared.lock();
        while queue.bytes > 0 && queue.failed.is_none() {
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.closed = true;
        queue.pieces.clear();
        drop(queue);
        self.shared.changed.notify_all();
        self.waker.wake_by_ref();
    }
}

/// The thread's end.
struct Thread {
    shared: Arc<Shared>,
    waker: Waker,
}

impl Thread {
    fn run<W>(self, dies: ConnectorError, open: impl FnMut() -> Result<Option<W>, ConnectorError>)
    where
        W: FnMut(&[u8]) -> Result<(), ConnectorError>,
    {
        let dying = Dying { thread: &self, error: Some(dies.clone()) };
        let opened = self.open(open);
        dying.survived();
        let Some(mut write) = opened else { return };
        while let Some(piece) = self.next() {
            let dying = Dying { thread: &self, error: Some(dies.clone()) };
            let written = write(&piece);
            dying.survived();
            let (has_news, failed) = self.shared.change(|queue| {
                let before = queue.bytes;
                queue.bytes -= piece.len();
                queue.failed = written.err();
                let has_room = (queue.bytes..before).contains(&QUEUE_BYTES_MAX.saturating_sub(1));
                (has_room || queue.is_idle(), queue.failed.is_some())
            });
            if has_news || failed {
                self.waker.wake_by_ref();
            }
            if failed {
                return;
            }
        }
    }

    /// Tries until it is open; `None` when it cannot be, or the worker's end is gone.
    fn open<W>(&self, mut open: impl FnMut() -> Result<Option<W>, ConnectorError>) -> Option<W> {
        loop {
            let opened = open();
            if let Ok(None) = opened {
                let queue = self.shared.lock();
                let waited = self
                    .shared
                    .changed
                    .wait_timeout_while(queue, OPEN_EVERY, |queue| !queue.closed)
                    .unwrap_or_else(PoisonError::into_inner);
                if waited.0.closed {
                    return None;
                }
                continue;
            }
            let opened = opened.transpose()?;
            let (opened, failed) = match opened {
                Ok(write) => (Some(write), None),
                Err(error) => (None, Some(error)),
            };
            self.shared.change(|queue| (queue.opening, queue.failed) = (false, failed));
            self.waker.wake_by_ref();
            return opened;
        }
    }

    /// The next bytes; `None` when the worker's end is gone.
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(piece) = queue.pieces.pop_front() {
                return Some(piece);
            }
            if queue.closed {
                return None;
            }
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Tells of a panic while bytes are written, so that nobody waits for ever.
struct Dying<'a> {
    thread: &'a Thread,
    error: Option<ConnectorError>,
}

impl Dying<'_> {
    fn survived(mut self) {
        self.error = None;
    }
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        if let Some(error) = self.error.take() {
            self.thread.shared.change(|queue| queue.failed = Some(error));
            self.thread.waker.wake_by_ref();
        }
    }
}
