//! Rows of a query, which a thread of the program reads while the query runs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Room, Sink, SinkWriter, WriterContext};

/// Bytes of rows that wait for their reader at most, besides those of the batch that came last.
pub const ROW_QUEUE_BYTES_MAX: usize = 64 << 20;

/// Bytes that a batch may hold beside its rows.
const SMALL_BYTES: usize = 16 << 10;

/// Where the rows of a `SELECT` go, for a program that reads them as they come. It is a connector:
/// see [`RowTarget::Connector`](crate::RowTarget::Connector). Clones are the same.
///
/// It has room for a number of bytes. A reader that is slow holds back the query and blocks no
/// worker. One run of the query is read at a time: [`begin`](Self::begin) says which.
#[derive(Clone, Default)]
pub struct RowQueue(Arc<Mutex<Opened>>);

#[derive(Default)]
struct Opened {
    /// The sinks that were planned with it. A plan that is only explained drops its own.
    sinks: Vec<Weak<QueueSink>>,
    /// The queue of the run that is read.
    queue: Option<Arc<Shared>>,
    /// Whether batches are given in the memory in which they lie.
    shares: bool,
}

struct Shared {
    bytes_max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<RecordBatch>,
    bytes: usize,
    /// No more rows come.
    ended: bool,
    /// Nobody reads any more: rows that come are dropped.
    closed: bool,
    /// Wakes the worker that writes.
    waker: Option<Waker>,
}

/// The rows of one run, for its reader. Dropping it drops the rows that come.
pub struct QueuedRows(Arc<Shared>);

/// The answer to a reader who asks for [rows](QueuedRows::next).
#[derive(Debug, Clone)]
pub enum TakenRows {
    /// Rows, in the order in which they were written.
    Batch(RecordBatch),
    /// None for as long as was waited.
    None,
    /// No more come.
    End,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowQueue {
    fn lock(&self) -> MutexGuard<'_, Opened> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The columns of each query that was planned with it and that is still there, in their order.
    pub fn schemas(&self) -> Vec<SchemaRef> {
        let opened = self.lock();
        let sinks = opened.sinks.iter().filter_map(Weak::upgrade);
        sinks.map(|sink| Arc::clone(&sink.schema)).collect()
    }

    /// Gives batches in the memory in which they lie, from the next run on, where that holds little
    /// else; otherwise each is copied. It is for sessions of one node without a pool: rows from
    /// another node lie in a ring's slot, and those of a pool in its memory, which whoever keeps
    /// them would hold.
    pub fn share(&self) {
        self.lock().shares = true;
    }

    /// The rows of the run that begins now. Those of a run before are not given any more.
    pub fn begin(&self, bytes_max: usize) -> QueuedRows {
        let shared = Shared { bytes_max, queue: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let before = self.lock().queue.replace(Arc::clone(&shared));
        if let Some(before) = before {
            close(&before);
        }
        QueuedRows(shared)
    }

    /// The run has ended, well or not: its reader gets the rows that are left and then the end.
    pub fn end(&self) {
        let Some(queue) = self.lock().queue.take() else { return };
        queue.lock().ended = true;
        queue.changed.notify_all();
    }
}

fn close(shared: &Shared) {
    let mut queue = shared.lock();
    queue.closed = true;
    queue.batches.clear();
    queue.bytes = 0;
    let waker = queue.waker.take();
    drop(queue);
    shared.changed.notify_all();
    waker.iter().for_each(Waker::wake_by_ref);
}

impl QueuedRows {
    /// The next rows, if they come within `timeout`.
    pub fn next(&self, timeout: Duration) -> TakenRows {
        let until = Instant::now() + timeout;
        let mut queue = self.0.lock();
        loop {
            if let Some(batch) = queue.batches.pop_front() {
                let was_full = queue.bytes >= self.0.bytes_max;
                queue.bytes -= batch.get_array_memory_size().min(queue.bytes);
                let has_room = was_full && queue.bytes < self.0.bytes_max;
                let waker = if has_room { queue.waker.clone() } else { None };
                drop(queue);
                waker.iter().for_each(Waker::wake_by_ref);
                return TakenRows::Batch(batch);
            }
            if queue.ended || queue.closed {
                return TakenRows::End;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return TakenRows::None;
            }
            let waited = self.0.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Bytes of the rows that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Drop for QueuedRows {
    fn drop(&mut self) {
        close(&self.0);
    }
}

impl fmt::Debug for RowQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowQueue({} queries)", self.schemas().len())
    }
}

impl fmt::Debug for QueuedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuedRows({} bytes wait)", self.waiting_bytes())
    }
}

/// As the place where rows of a bare `SELECT` go.
impl Connector for RowQueue {
    fn name(&self) -> &'static str {
        "reader"
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let schema = Arc::clone(&table.schema);
        let sink = Arc::new(QueueSink { rows: self.clone(), schema });
        self.lock().sinks.push(Arc::downgrade(&sink));
        Ok(sink)
    }
}

/// The place where the rows of one query go.
struct QueueSink {
    rows: RowQueue,
    schema: SchemaRef,
}

impl Sink for QueueSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let (queue, shares) = {
            let opened = self.rows.lock();
            (opened.queue.clone(), opened.shares)
        };
        if let Some(shared) = &queue {
            shared.lock().waker = Some(context.waker.clone());
        }
        Ok(Box::new(QueueWriter { queue, shares }))
    }
}

struct QueueWriter {
    /// `None` where nobody reads.
    queue: Option<Arc<Shared>>,
    /// Whether batches are given in the memory in which they lie.
    shares: bool,
}

impl SinkWriter for QueueWriter {
    fn room(&mut self) -> Room {
        let full = self.queue.as_ref().is_some_and(|shared| {
            let queue = shared.lock();
            queue.bytes >= shared.bytes_max && !queue.closed
        });
        if full { Room::Full } else { Room::Ready }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let Some(shared) = &self.queue else { return Ok(()) };
        // The arrays may lie in a ring's slot, which would never be free again.
        let batch = if self.shares && fills_its_memory(batch) {
            with_plain_schema(batch)
        } else {
            with_plain_schema(&dataflow::detach(batch))
        };
        let mut queue = shared.lock();
        if !queue.closed {
            queue.bytes = queue.bytes.saturating_add(batch.get_array_memory_size());
            queue.batches.push_back(batch);
            shared.changed.notify_all();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

/// Whether a batch is not a small part of larger arrays, which it would hold.
fn fills_its_memory(batch: &RecordBatch) -> bool {
    let bytes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
    let bytes = bytes.sum::<Result<usize, _>>().unwrap_or(0);
    batch.get_array_memory_size() <= bytes.saturating_mul(2).saturating_add(SMALL_BYTES)
}

/// The rows without the notes of operators in the metadata of their schema.
fn with_plain_schema(batch: &RecordBatch) -> RecordBatch {
    let schema = batch.schema();
    if schema.metadata().is_empty() {
        return batch.clone();
    }
    let plain = Arc::new(Schema::new(schema.fields().clone()));
    batch.clone().with_schema(plain).unwrap_or_else(|_| batch.clone())
}
