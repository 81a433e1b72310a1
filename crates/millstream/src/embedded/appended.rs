//! A table without an end, to which the program appends.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::bad::{BadRow, BadRows};
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

/// Bytes of rows that wait for a query at most, besides those of the batch that came last.
pub const APPENDED_BYTES_MAX: usize = 64 << 20;

/// The program's end of a table without an end. Clones are the same.
///
/// Rows wait in memory until every query that reads the table has taken them; where none reads, the
/// first that does gets them. They are kept nowhere else: after a failure they do not come again.
#[derive(Clone)]
pub struct AppendSource {
    shared: Arc<Shared>,
    schema: SchemaRef,
}

struct Shared {
    name: String,
    bytes_max: usize,
    log: Mutex<Log>,
    taken: Condvar,
}

/// The rows that some reader has not taken, oldest first.
#[derive(Default)]
struct Log {
    batches: VecDeque<Appended>,
    bytes: usize,
    /// The number of the first of them.
    first: u64,
    closed: bool,
    readers: BTreeMap<u64, Cursor>,
    next_reader: u64,
}

/// The rows of one append, and those beside them that were none of the table.
#[derive(Clone)]
struct Appended {
    rows: RecordBatch,
    bad: Arc<[BadRow]>,
}

impl Appended {
    fn bytes(&self) -> usize {
        let text = |row: &BadRow| row.place.len() + row.reason.len() + row.text.len();
        let bad = self.bad.iter().map(|row| size_of::<BadRow>() + text(row));
        self.rows.get_array_memory_size().saturating_add(bad.sum())
    }
}

struct Cursor {
    /// The number of the batch that is next.
    next: u64,
    waker: Waker,
}

/// The outcome of an [append](AppendSource::append).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendResult {
    /// They wait for their readers.
    Appended,
    /// There was no room in time.
    Full,
    /// The table was closed before.
    Closed,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// Forgets the batches that every reader has taken. Where nobody reads, all stay.
    fn forget(&mut self) -> bool {
        let Some(least) = self.readers.values().map(|cursor| cursor.next).min() else {
            return false;
        };
        let before = self.first;
        while self.first < least
            && let Some(batch) = self.batches.pop_front()
        {
            self.bytes -= batch.bytes().min(self.bytes);
            self.first += 1;
        }
        self.first > before
    }

    fn wakers(&self) -> Vec<Waker> {
        self.readers.values().map(|cursor| cursor.waker.clone()).collect()
    }
}

impl AppendSource {
    pub(crate) fn new(name: &str, schema: SchemaRef, bytes_max: usize) -> Self {
        let (log, taken) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { name: name.to_owned(), bytes_max, log, taken });
        Self { shared, schema }
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Appends rows with the columns of [`schema`](Self::schema), when fewer bytes wait than are
    /// allowed; waits for that for `timeout` at most.
    pub fn append(&self, batch: &RecordBatch, timeout: Duration) -> AppendResult {
        self.append_beside(batch, &Arc::from([]), timeout)
    }

    /// Appends rows as [`append`](Self::append) does, and beside them those that could not be made
    /// rows of this table: every query that reads it counts them as bad, and `t__bad` has them.
    pub fn append_beside(
        &self,
        batch: &RecordBatch,
        bad: &Arc<[BadRow]>,
        timeout: Duration,
    ) -> AppendResult {
        let until = Instant::now() + timeout;
        let mut log = self.shared.lock();
        loop {
            if log.closed {
                return AppendResult::Closed;
            }
            if log.bytes < self.shared.bytes_max {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return AppendResult::Full;
            }
            let waited = self.shared.taken.wait_timeout(log, left);
            log = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if batch.num_rows() > 0 || !bad.is_empty() {
            let appended = Appended { rows: batch.clone(), bad: Arc::clone(bad) };
            log.bytes = log.bytes.saturating_add(appended.bytes());
            log.batches.push_back(appended);
        }
        let wakers = log.wakers();
        drop(log);
        wakers.iter().for_each(Waker::wake_by_ref);
        AppendResult::Appended
    }

    /// No more rows come: queries end when they have read what waits.
    pub fn close(&self) {
        let mut log = self.shared.lock();
        log.closed = true;
        let wakers = log.wakers();
        drop(log);
        self.shared.taken.notify_all();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Bytes of the rows that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.lock().bytes
    }

    /// Its columns of `projection`, for a query.
    pub(crate) fn source(&self, projection: &[usize]) -> Result<Arc<dyn Source>, ConnectorError> {
        let schema = self.schema.project(projection);
        let schema = schema.map_err(|error| self.failed(&error.to_string()))?;
        let (log, projection) = (self.clone(), projection.to_vec());
        Ok(Arc::new(AppendedScan { log, schema: Arc::new(schema), projection }))
    }

    fn failed(&self, message: &str) -> ConnectorError {
        let place = format!("table '{}'", self.shared.name);
        ConnectorError::Io { place, message: message.to_owned(), hint: None }
    }
}

impl fmt::Debug for AppendSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AppendSource({}, {} bytes wait)", self.shared.name, self.waiting_bytes())
    }
}

/// The table as one query reads it.
struct AppendedScan {
    log: AppendSource,
    schema: SchemaRef,
    projection: Vec<usize>,
}

impl Source for AppendedScan {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: self.log.shared.name.clone(), ..Split::default() }])
    }

    fn describe(&self) -> Option<String> {
        Some("rows that the program appends".into())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let mut log = self.log.shared.lock();
        let id = log.next_reader;
        log.next_reader += 1;
        let cursor = Cursor { next: log.first, waker: context.waker.clone() };
        log.readers.insert(id, cursor);
        drop(log);
        Ok(Box::new(AppendedReader {
            of: self.log.clone(),
            id,
            projection: self.projection.clone(),
            rest: None,
            split: split.name.clone(),
            bad: Arc::clone(&context.bad),
        }))
    }
}

struct AppendedReader {
    of: AppendSource,
    id: u64,
    projection: Vec<usize>,
    /// The rows of the batch that was taken last that were not given.
    rest: Option<RecordBatch>,
    split: String,
    /// Where the query has its bad rows.
    bad: Arc<BadRows>,
}

impl AppendedReader {
    /// The next batch; `None` if there is none now, or none will come.
    fn take(&self) -> (Option<Appended>, bool) {
        let mut log = self.of.shared.lock();
        let first = log.first;
        let Some(cursor) = log.readers.get_mut(&self.id) else { return (None, true) };
        let at = usize::try_from(cursor.next.saturating_sub(first)).unwrap_or(usize::MAX);
        let Some(batch) = log.batches.get(at).cloned() else { return (None, log.closed) };
        if let Some(cursor) = log.readers.get_mut(&self.id) {
            cursor.next += 1;
        }
        if log.forget() {
            self.of.shared.taken.notify_all();
        }
        (Some(batch), false)
    }
}

impl SplitReader for AppendedReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.take() {
                (Some(Appended { rows, bad }), _) => {
                    bad.iter().for_each(|row| self.bad.add(row.clone()));
                    let projected = rows.project(&self.projection);
                    projected.map_err(|error| self.of.failed(&error.to_string()))?
                }
                (None, true) => return Ok(Next::End),
                (None, false) => return Ok(Next::Pending),
            },
        };
        let rows = batch.num_rows();
        if rows <= rows_max {
            return Ok(Next::Batch(batch));
        }
        self.rest = Some(batch.slice(rows_max, rows - rows_max));
        Ok(Next::Batch(batch.slice(0, rows_max)))
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}

impl Drop for AppendedReader {
    /// Rows that it has not taken wait for the others, or for the next one.
    fn drop(&mut self) {
        let mut log = self.of.shared.lock();
        log.readers.remove(&self.id);
        if log.forget() {
            self.of.shared.taken.notify_all();
        }
    }
}
