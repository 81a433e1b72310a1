//! A table as a source that ends: read once, or as the table of a lookup again and again.
//!
//! ```text
//! COPY (SELECT …) TO STDOUT ─▶ thread ─▶ a few batches, queued ─▶ reader
//! ```

use std::hash::{DefaultHasher, Hasher};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use connectors::OptionReader;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::source::{
    NewestVersion, Next, Position, ReaderContext, RowsReader, Source, Split, SplitReader,
};

use crate::client::{PgConnection, Purpose, quoted};
use crate::decode::RowCollector;
use crate::errors::{PgError, failed};
use crate::table::{PgTable, patiently};
use crate::types::{check_types, type_of};

/// Batches that wait for the reader at most.
const BATCHES_MAX: usize = 4;
/// Rows and bytes of a batch, about.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 4 << 20;

/// Bytes of a table that is read anew at most: it is kept whole, beside the one before.
const TABLE_BYTES_MAX: usize = 1 << 30;

/// A table that is read.
#[derive(Clone)]
pub(crate) struct PgSource {
    table: Arc<PgTable>,
    schema: SchemaRef,
    select: String,
    refresh: Option<Duration>,
    /// Of a version that was read already.
    loaded: Option<Arc<LoadedTable>>,
}

/// A version of the table, whole.
struct LoadedTable {
    batches: Vec<RecordBatch>,
    /// A hash of its text, by which another version is told apart.
    hash: u64,
}

impl PgSource {
    pub(crate) fn new(def: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        let options = OptionReader(&def.options);
        check_types(&def.schema)?;
        let table = PgTable::new(options)?;
        let schema = def.schema.project(projection).map_err(|error| ConnectorError::Column {
            column: def.name.clone(),
            message: error.to_string(),
            hint: None,
        })?;
        let column = |field: &arrow::datatypes::FieldRef| {
            let own = type_of(field.data_type()).unwrap_or_else(|| "text".into());
            format!("{}::{own}", quoted(field.name()))
        };
        let columns: Vec<String> = schema.fields().iter().map(column).collect();
        let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
        let select = format!("COPY (SELECT {columns} FROM {}) TO STDOUT", table.quoted);
        let mut refresh = None;
        for key in ["lookup.cache.ttl", "lookup.full-cache.periodic-reload.interval"] {
            refresh = refresh.or(options.duration_ns(key)?);
        }
        let refresh = refresh.map(Duration::from_nanos).filter(|every| !every.is_zero());
        let (table, schema) = (Arc::new(table), Arc::new(schema));
        Ok(Self { table, schema, select, refresh, loaded: None })
    }

    /// Reads the table and gives its batches to `each`, until that answers `false`. Gives the hash
    /// of its text.
    fn read(&self, mut each: impl FnMut(RecordBatch) -> bool) -> Result<u64, PgError> {
        let mut connection = PgConnection::open(&self.table.server, Purpose::Queries)?;
        let (mut rows, mut hasher) =
            (RowCollector::new(Arc::clone(&self.schema)), DefaultHasher::new());
        connection.copy_out(&self.select, |line| {
            hasher.write(line);
            rows.push(line)?;
            let is_full = rows.rows() >= BATCH_ROWS || rows.bytes() >= BATCH_BYTES;
            Ok(!is_full || each(rows.take()?))
        })?;
        if rows.rows() > 0 {
            each(rows.take()?);
        }
        Ok(hasher.finish())
    }

    /// The table as it is now, unless it is as it was.
    fn newer(&self) -> Option<Arc<dyn Source>> {
        let (mut batches, mut bytes) = (vec![], 0);
        let read = self.read(|batch| {
            bytes += batch.get_array_memory_size();
            batches.push(batch);
            bytes <= TABLE_BYTES_MAX
        });
        let place = self.table.place();
        match read {
            Ok(_) if bytes > TABLE_BYTES_MAX => {
                tracing::warn!(
                    "{place}: it has more than {TABLE_BYTES_MAX} bytes, and is not read anew"
                );
                None
            }
            Ok(hash) if self.loaded.as_ref().is_some_and(|loaded| loaded.hash == hash) => None,
            Ok(hash) => {
                let loaded = Some(Arc::new(LoadedTable { batches, hash }));
                Some(Arc::new(Self { loaded, ..self.clone() }))
            }
            // The stream goes on with the rows that it has.
            Err(error) => {
                tracing::warn!("{}; the rows that were read before stay", error.at(&place));
                None
            }
        }
    }
}

impl Source for PgSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        true
    }

    /// Rows have no place by which reading could go on.
    fn replays(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: self.table.name.clone(), ..Split::default() }])
    }

    fn refresh_ns(&self) -> Option<u64> {
        self.refresh.map(|every| every.as_nanos() as u64)
    }

    fn newest(&self, waker: Waker) -> Option<Box<dyn NewestVersion>> {
        Some(Box::new(AskedTable::new(self.clone(), waker)))
    }

    fn validate(&self) -> Result<(), ConnectorError> {
        let place = self.table.place();
        patiently(&place, self.table.start_timeout, &|| false, || {
            let mut connection = PgConnection::open(&self.table.server, Purpose::Queries)?;
            // It is planned, and not read: columns and types are checked.
            let select = self.select.trim_start_matches("COPY (");
            let select = select.trim_end_matches(") TO STDOUT");
            connection.query(&format!("SELECT * FROM ({select}) checked LIMIT 0")).map(drop)
        })
    }

    fn describe(&self) -> Option<String> {
        let every = self.refresh.map(|every| format!(", read anew each {every:?}"));
        Some(format!("table '{}'{}", self.table.name, every.unwrap_or_default()))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        if let Some(loaded) = &self.loaded {
            return Ok(Box::new(RowsReader::open(&split.name, loaded.batches.clone(), None)?));
        }
        Ok(Box::new(ScanReader::start(self, split, context.waker.clone())?))
    }
}

/// Rows, or that all of them are read.
type Read = Result<Option<RecordBatch>, ConnectorError>;

/// A reader whose rows a thread reads.
struct ScanReader {
    split: String,
    place: String,
    batches: Receiver<Read>,
    /// While it is there, the thread tries again.
    _wanted: Arc<()>,
    /// The rest of a batch that had more rows than were asked for.
    rest: Option<RecordBatch>,
    is_at_end: bool,
    /// The error that ended it.
    failed: Option<ConnectorError>,
}

impl ScanReader {
    fn start(source: &PgSource, split: &Split, waker: Waker) -> Result<Self, ConnectorError> {
        let (sender, batches) = sync_channel(BATCHES_MAX);
        let (place, source, wanted) = (source.table.place(), source.clone(), Arc::new(()));
        let still = Arc::downgrade(&wanted);
        let thread = thread::Builder::new().name("millstream-postgres".into());
        let started = thread.spawn(move || {
            // The worker is woken when the channel has ended.
            let wakes = WakesAtEnd(waker);
            let sender = sender;
            run(&source, &sender, &wakes.0, &still);
        });
        started.map_err(|error| {
            failed(&place, format!("cannot start its thread: {error}"), "allow more threads")
        })?;
        let split = split.name.clone();
        Ok(Self {
            split,
            place,
            batches,
            _wanted: wanted,
            rest: None,
            is_at_end: false,
            failed: None,
        })
    }
}

/// Wakes the worker also when the thread dies.
struct WakesAtEnd(Waker);

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

/// Reads the table for a reader; again only if it has got no row.
fn run(source: &PgSource, to: &SyncSender<Read>, waker: &Waker, still: &Weak<()>) {
    let table = &source.table;
    let (mut has_given, mut is_wanted) = (false, true);
    let ends = || still.strong_count() == 0;
    let done = patiently(&table.place(), table.retry_timeout, &ends, || {
        let read = source.read(|batch| {
            has_given = true;
            is_wanted = to.send(Ok(Some(batch))).is_ok();
            waker.wake_by_ref();
            is_wanted
        });
        match read {
            Err(error) if has_given && is_wanted => Ok(Err(error.at(&table.place()))),
            Err(error) if is_wanted => Err(error),
            _ => Ok(Ok(())),
        }
    });
    // A reader that is gone wants neither.
    let _ = to.send(done.and_then(|done| done).map(|()| None));
}

impl SplitReader for ScanReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.batches.try_recv() {
                Ok(Ok(Some(batch))) => batch,
                Ok(Ok(None)) => {
                    self.is_at_end = true;
                    return Ok(Next::End);
                }
                Ok(Err(error)) => return Err(self.failed.insert(error).clone()),
                Err(TryRecvError::Empty) => return Ok(Next::Pending),
                Err(TryRecvError::Disconnected) if self.is_at_end => return Ok(Next::End),
                Err(TryRecvError::Disconnected) => {
                    return Err(failed(&self.place, "its thread has died", "report this"));
                }
            },
        };
        let rows = batch.num_rows().min(rows_max.max(1));
        if rows < batch.num_rows() {
            self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        Ok(Next::Batch(batch.slice(0, rows)))
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}

/// A question for the table as it is now, which a thread answers.
struct AskedTable(Arc<Mutex<Option<Answer>>>);

type Answer = Result<Option<Arc<dyn Source>>, ConnectorError>;

impl AskedTable {
    fn new(source: PgSource, waker: Waker) -> Self {
        let answer = Arc::<Mutex<Option<Answer>>>::default();
        let slot = Arc::clone(&answer);
        let place = source.table.place();
        let thread = thread::Builder::new().name("millstream-postgres".into());
        let wakes = WakesAtEnd(waker);
        let started = thread.spawn(move || {
            let found = source.newer();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(found));
            drop(wakes);
        });
        if let Err(error) = started {
            let error =
                failed(&place, format!("cannot start its thread: {error}"), "allow more threads");
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(error));
        }
        Self(answer)
    }
}

impl NewestVersion for AskedTable {
    fn poll(&mut self) -> Poll<Answer> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.take().map_or(Poll::Pending, Poll::Ready)
    }
}
