//! The writer that sends rows as they come: each at least once.
//!
//! ```text
//! worker ─▶ text of rows, queued ─▶ thread ─▶ one transaction for all that wait
//! ```
//!
//! A transaction whose answer is lost is tried again, so that its rows may be there twice; with a
//! key they are not.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter};

use crate::client::{PgConnection, Purpose};
use crate::errors::{PgError, failed};
use crate::table::{PgTable, patiently};
use crate::write::RowStatements;

/// Bytes of rows that wait for the thread at most, besides those that were queued last.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// How long the thread waits for rows before it looks again.
const IDLE: Duration = Duration::from_secs(60);

/// When rows that wait are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushPolicy {
    /// When there are as many; 0: whatever their number.
    pub(crate) rows: usize,
    /// When the first of them waits for as long.
    pub(crate) interval: Duration,
}

/// Rows as text, and how many.
struct Piece {
    rows: usize,
    text: Vec<u8>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Bytes and rows of `pieces`.
    bytes: usize,
    rows: usize,
    /// Since when the first of them waits.
    since: Option<Instant>,
    /// Somebody waits until all is written.
    flushes: bool,
    /// Rows are being written.
    writes: bool,
    /// The worker's end is gone.
    closed: bool,
    failed: Option<ConnectorError>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.writes
    }
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    waker: Waker,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker's end.
pub(crate) struct PgStreamingWriter {
    statements: RowStatements,
    number: u64,
    shared: Arc<Shared>,
}

impl PgStreamingWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When that fails.
    pub(crate) fn start(
        table: &PgTable,
        statements: &RowStatements,
        policy: FlushPolicy,
        waker: Waker,
    ) -> Result<Self, ConnectorError> {
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new(), waker };
        let shared = Arc::new(shared);
        let (table, thread_shared) = (table.clone(), Arc::clone(&shared));
        let thread =
            Thread { table, statements: statements.clone(), policy, shared: thread_shared };
        let place = thread.table.place();
        let started =
            thread::Builder::new().name("millstream-postgres".into()).spawn(|| thread.run());
        started.map_err(|error| {
            failed(&place, format!("cannot start its thread: {error}"), "allow more threads")
        })?;
        Ok(Self { statements: statements.clone(), number: 0, shared })
    }

    fn is_written(&self) -> Result<Room, ConnectorError> {
        let mut queue = self.shared.lock();
        if let Some(error) = &queue.failed {
            return Err(error.clone());
        }
        if queue.is_empty() {
            return Ok(Room::Ready);
        }
        queue.flushes = true;
        drop(queue);
        self.shared.changed.notify_all();
        Ok(Room::Full)
    }
}

impl SinkWriter for PgStreamingWriter {
    fn room(&mut self) -> Room {
        let queue = self.shared.lock();
        let is_full = queue.bytes >= QUEUE_BYTES_MAX && queue.failed.is_none();
        if is_full { Room::Full } else { Room::Ready }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let mut text = vec![];
        self.statements.encode(batch, &mut self.number, &mut text)?;
        let mut queue = self.shared.lock();
        if let Some(error) = &queue.failed {
            return Err(error.clone());
        }
        let rows = batch.num_rows();
        queue.bytes += text.len();
        queue.rows += rows;
        queue.since.get_or_insert_with(Instant::now);
        queue.pieces.push_back(Piece { rows, text });
        drop(queue);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.shared.lock().failed.clone().map_or(Ok(()), Err)
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.is_written()
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.is_written()
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        match self.is_written()? {
            Room::Ready => Ok(()),
            Room::Full => Err(failed("postgres", "not all rows are written", "report this")),
        }
    }
}

impl Drop for PgStreamingWriter {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

/// The thread's end.
struct Thread {
    table: PgTable,
    statements: RowStatements,
    policy: FlushPolicy,
    shared: Arc<Shared>,
}

impl Thread {
    fn run(self) {
        let place = self.table.place();
        let mut connection = None;
        while let Some(pieces) = self.next() {
            let dying = Dying { shared: &self.shared, place: &place };
            let ends = || self.shared.lock().closed;
            let written = patiently(&place, self.table.retry_timeout, &ends, || {
                self.write(&mut connection, &pieces)
            });
            mem::forget(dying);
            let mut queue = self.shared.lock();
            queue.writes = false;
            queue.flushes &= !queue.is_empty();
            let has_failed = written.is_err();
            queue.failed = written.err();
            drop(queue);
            self.shared.waker.wake_by_ref();
            if has_failed {
                return;
            }
        }
    }

    /// All rows that wait, once it is time to write them; `None` when the worker's end is gone.
    fn next(&self) -> Option<Vec<Piece>> {
        let mut queue = self.shared.lock();
        loop {
            if queue.closed {
                return None;
            }
            let wait =
                queue.since.map(|since| self.policy.interval.saturating_sub(since.elapsed()));
            let is_due = queue.flushes
                || queue.bytes >= QUEUE_BYTES_MAX
                || self.policy.rows > 0 && queue.rows >= self.policy.rows
                || wait.is_some_and(|wait| wait.is_zero());
            if is_due && !queue.pieces.is_empty() {
                (queue.bytes, queue.rows, queue.since) = (0, 0, None);
                queue.writes = true;
                let pieces = mem::take(&mut queue.pieces);
                drop(queue);
                // There is room again.
                self.shared.waker.wake_by_ref();
                return Some(pieces.into());
            }
            // A writer without rows is woken by the first of them.
            let wait = wait.unwrap_or(IDLE).min(IDLE);
            let waited = self.shared.changed.wait_timeout(queue, wait);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes rows in one transaction, by a connection that is kept while it is whole.
    fn write(&self, kept: &mut Option<PgConnection>, pieces: &[Piece]) -> Result<(), PgError> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => PgConnection::open(&self.table.server, Purpose::Queries)?,
        };
        connection.query("BEGIN")?;
        self.statements.write(&mut connection, pieces.iter().map(|piece| piece.text.as_slice()))?;
        connection.query("COMMIT")?;
        tracing::debug!(
            target: "postgres",
            rows = pieces.iter().map(|piece| piece.rows).sum::<usize>(),
            "written"
        );
        *kept = Some(connection);
        Ok(())
    }
}

/// Tells of a panic of the thread, so that nobody waits for ever.
struct Dying<'a> {
    shared: &'a Shared,
    place: &'a str,
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        let error = failed(self.place, "its thread ended unexpectedly", "report this");
        self.shared.lock().failed = Some(error);
        self.shared.waker.wake_by_ref();
    }
}
