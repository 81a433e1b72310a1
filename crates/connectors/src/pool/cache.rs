//! Tables that are caches: they are loaded from their origins when somebody reads them.
//!
//! ```text
//! a statement names the table ─▶ look ─▶ current: it reads the newest version
//!                                     ─▶ wait:    another process looks
//!                                     ─▶ due:     it compares the origin's mark with the version's
//!                                                 ─▶ the same: nothing is loaded
//!                                                 ─▶ another: all threads load the next version
//! ```
//!
//! A statement is planned on the version that it reads, so that it looks before it pins one. An
//! origin that cannot be read or loaded is no error while there is a version: a warning says so.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter, WriterContext};
use dataflow::source::{Next, ReaderContext, Source, Split};
use fabric::clock::MonotonicClock;
use pool::PoolError;
use pool::access::{At, Loading, LookOutcome, OriginLook, PoolAccess};
use pool::manifest::{CachedOrigin, Manifest};

use super::columns::StoredColumns;
use super::errors::refused;
use super::interrupt::{Interrupt, no_thread};
use super::lists::NodeCache;
use super::origin::{CacheOrigin, of_origin};
use super::sink::PoolSink;
use super::staged::{ASKED_AGAIN, Unparks};
use super::version::{self, Version};
use super::{PoolConnector, PoolOptions};
use crate::options::refuse;

/// Threads that load a cache at most: each has a writer.
const THREADS_MAX: usize = 16;

/// Rows of a batch that is read of an origin.
const BATCH_ROWS: usize = 8192;

/// How often a load begins anew since its origin changed meanwhile.
const ATTEMPTS: usize = 3;

/// How often the newest version is looked for while others replace it.
const LOOKS: usize = 100;

/// A look at an origin, which is over when it is dropped.
pub(super) struct PendingLook {
    pub(super) access: Arc<dyn PoolAccess>,
    pub(super) table: String,
    pub(super) outcome: LookOutcome,
}

impl Drop for PendingLook {
    fn drop(&mut self) {
        // If the server is gone it knows no looks, and who reads the table notices.
        if let Err(error) = self.access.end_look(&self.table, self.outcome) {
            tracing::debug!(table = self.table, %error, "a look was not reported");
        }
    }
}

impl PoolConnector {
    /// The columns of a cache that declares none: those that the pool has, else the origin's.
    pub(super) fn columns_of_cache(
        &self,
        origin: &CacheOrigin,
        options: &PoolOptions,
    ) -> Result<SchemaRef, ConnectorError> {
        if let Some(newest) = newest(&**self.access()?, &options.table)? {
            check_origin(newest.manifest(), origin)?;
            return Ok(Arc::clone(&newest.columns.schema));
        }
        let of_thread = origin.clone();
        let columns = self.interrupt.waits_for(&options.table, move |_| of_thread.columns())?;
        let columns = columns.ok_or_else(|| {
            let hint = "declare them: CREATE TABLE … (a BIGINT, …) WITH (…)";
            refuse("origin", "the columns are not known", Some(hint.into()))
        })?;
        StoredColumns::declared(&columns)?;
        Ok(columns)
    }

    /// Has the newest version of a cache be a copy of its origin, as far as it is old enough to be
    /// looked at. Waits for another process that loads the first version.
    ///
    /// # Errors
    /// When there is no version that can be read.
    pub(super) fn refresh(
        &self,
        origin: &CacheOrigin,
        table: &TableDef,
        options: &PoolOptions,
    ) -> Result<(), ConnectorError> {
        let access = self.access()?;
        loop {
            self.interrupt.check(&options.table)?;
            match access.look(&options.table, origin.age_max_ns).map_err(not_a_cache)? {
                OriginLook::Current => return Ok(()),
                OriginLook::Resting => {
                    let (table, origin) = (&options.table, &origin.name);
                    tracing::warn!(
                        "pool table '{table}' is read as it was loaded before: {origin} could not \
                         be loaded a short time ago"
                    );
                    return Ok(());
                }
                OriginLook::Wait => thread::sleep(ASKED_AGAIN),
                OriginLook::Due => break,
            }
        }
        let look = PendingLook {
            access: Arc::clone(access),
            table: options.table.clone(),
            outcome: LookOutcome::Abandoned,
        };
        let (origin, table, options) = (origin.clone(), table.clone(), options.clone());
        let name = options.table.clone();
        self.interrupt.waits_for(&name, move |given_up| {
            CacheRefresh { origin, table, options, given_up }.run(look)
        })
    }
}

/// A look at an origin, which loads it where it has changed.
struct CacheRefresh<'a> {
    origin: CacheOrigin,
    table: TableDef,
    options: PoolOptions,
    given_up: &'a Interrupt,
}

impl CacheRefresh<'_> {
    fn run(&self, mut look: PendingLook) -> Result<(), ConnectorError> {
        let Self { origin, table, options, given_up } = self;
        let access = Arc::clone(&look.access);
        let before = newest(&*access, &options.table)?;
        if let Some(before) = &before {
            check_origin(before.manifest(), origin)?;
            let declared = options.definition(table)?;
            let there = &before.manifest().definition;
            version::check_same(there, &declared, &options.table, !table.buckets.is_empty())?;
        }
        let result = self.bring(&access, before.as_ref());
        if given_up.is_set() {
            // Whatever it has come to: another process looks.
            return result;
        }
        look.outcome = LookOutcome::Failed;
        match result {
            Ok(()) => look.outcome = LookOutcome::Copy,
            Err(error) if before.is_some() => tracing::warn!(
                "pool table '{}' is read as it was loaded before: {} could not be loaded: {error}",
                options.table,
                origin.name,
            ),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Loads the next version if the origin is another than that of the newest one.
    fn bring(
        &self,
        access: &Arc<dyn PoolAccess>,
        before: Option<&Version>,
    ) -> Result<(), ConnectorError> {
        let origin = &self.origin;
        let loaded = before.and_then(|before| before.manifest().origin.as_ref());
        let mut mark = origin.mark()?;
        for attempt in 1.. {
            if loaded.is_some_and(|loaded| loaded.mark == mark) {
                return Ok(());
            }
            let Err(error) = self.load_cache(access, mark, before) else {
                return Ok(());
            };
            self.given_up.check(&self.options.table)?;
            let now = origin.mark()?;
            if now == mark || attempt == ATTEMPTS {
                return Err(error);
            }
            mark = now;
        }
        Ok(())
    }

    /// Loads a version that is a copy of an origin.
    fn load_cache(
        &self,
        access: &Arc<dyn PoolAccess>,
        mark: u64,
        before: Option<&Version>,
    ) -> Result<(), ConnectorError> {
        let Self { origin, table, options, given_up } = self;
        tracing::info!("loads pool table '{}' from {}", options.table, origin.name);
        let source = origin.source(table)?;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let splits = source.splits(threads as u32, None)?;
        let threads = threads.min(splits.len()).max(1);
        given_up.check(&options.table)?;
        let definition = match before {
            Some(before) => before.manifest().definition.clone(),
            None => options.definition(table)?,
        };
        let cached = CachedOrigin { name: origin.name.clone(), mark };
        let sink = PoolSink::of_cache(access, options, definition, cached)?;
        let load = CacheLoad {
            source: &*source,
            splits: &splits,
            next: AtomicUsize::new(0),
            sink: &sink,
            loading: sink.begun(|load| sink.access().begin_alone(load, threads as u32))?,
            bad: Arc::default(),
            table: &options.table,
            given_up,
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
        };
        thread::scope(|scope| {
            for worker in 0..threads {
                let load = &load;
                let thread = thread::Builder::new().name(format!("cache-{worker}"));
                let started = thread.spawn_scoped(scope, move || load.run(worker as u32));
                if let Err(error) = started {
                    load.fail(no_thread(&options.table, &error));
                    break;
                }
            }
        });
        let failure = load.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure {
            return Err(error);
        }
        let bad = load.bad.count();
        if bad > 0 {
            let (table, origin) = (&options.table, &origin.name);
            tracing::warn!("pool table '{table}' has not {bad} rows of {origin}, which are bad");
        }
        Ok(())
    }
}

/// A load of a cache.
struct CacheLoad<'a> {
    source: &'a dyn Source,
    splits: &'a [Split],
    /// The split that the next thread takes.
    next: AtomicUsize,
    sink: &'a PoolSink,
    loading: Arc<dyn Loading>,
    bad: Arc<BadRows>,
    table: &'a str,
    given_up: &'a Interrupt,
    has_failed: AtomicBool,
    /// The first error of a thread.
    failure: Mutex<Option<ConnectorError>>,
}

impl CacheLoad<'_> {
    fn fail(&self, error: ConnectorError) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Loads the part of a thread.
    fn run(&self, worker: u32) {
        if let Err(error) = self.load_part(worker) {
            self.fail(error);
        }
    }

    /// Reads splits while there are some, and commits. The writer of a thread that ends before
    /// gives the load up, so that no version appears.
    fn load_part(&self, worker: u32) -> Result<(), ConnectorError> {
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let context = WriterContext { worker, waker: waker.clone(), staging: None };
        let mut writer = self.sink.writer(&self.loading, &context, None)?;
        let clock = Arc::new(MonotonicClock::new());
        let context = ReaderContext { waker, ..ReaderContext::new(clock, Arc::clone(&self.bad)) };
        while let Some(split) = self.splits.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.copy(split, &context, &mut writer)? {
                return Ok(());
            }
        }
        while writer.drain()? == Room::Full {
            self.given_up.check(self.table)?;
            thread::park_timeout(ASKED_AGAIN);
        }
        self.given_up.check(self.table)?;
        Box::new(writer).commit()
    }

    /// Copies the rows of a split; false if another thread has failed.
    fn copy(
        &self,
        split: &Split,
        context: &ReaderContext,
        writer: &mut impl SinkWriter,
    ) -> Result<bool, ConnectorError> {
        let mut reader = self.source.open(split, None, context)?;
        while !self.has_failed.load(Ordering::Relaxed) {
            self.given_up.check(self.table)?;
            match reader.next(BATCH_ROWS).map_err(of_origin)? {
                Next::Batch(batch) => {
                    while writer.room() == Room::Full {
                        self.given_up.check(self.table)?;
                        thread::park_timeout(ASKED_AGAIN);
                    }
                    writer.write(&batch)?;
                }
                Next::Pending => thread::park_timeout(ASKED_AGAIN),
                Next::Wait { until_ns } => {
                    let left = until_ns.saturating_sub(context.clock.now_ns());
                    thread::park_timeout(Duration::from_nanos(left).min(ASKED_AGAIN));
                }
                Next::End => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// The newest version of a table, if it is there and whole. It is not that of a statement: that
/// one is pinned when it is known whether there is a newer one.
fn newest(access: &dyn PoolAccess, table: &str) -> Result<Option<Version>, ConnectorError> {
    for _ in 0..LOOKS {
        let tables = access.tables().map_err(refused)?;
        let Some(newest) = tables.into_iter().find(|of| of.name == table) else { return Ok(None) };
        match access.pin(table, At::Version(newest.version)) {
            // No cache is kept in lists.
            Ok(pinned) => return Version::checked(pinned, &NodeCache::default()).map(Some),
            // It was replaced or dropped meanwhile.
            Err(PoolError::NoVersion { .. } | PoolError::NoTable { .. }) => {}
            // Its blocks lay on a server that is another one now: it is loaded again.
            Err(PoolError::Lost { .. }) => return Ok(None),
            Err(error) => return Err(refused(error)),
        }
    }
    let message = "it is replaced faster than it can be read";
    let place = format!("pool table '{table}'");
    Err(ConnectorError::Io { place, message: message.into(), hint: None })
}

/// Refuses to read a table that is a cache of something else.
///
/// # Errors
/// When it is, or is no cache.
pub(super) fn check_origin(
    manifest: &Manifest,
    origin: &CacheOrigin,
) -> Result<(), ConnectorError> {
    let Some(cached) = &manifest.origin else {
        let table = &manifest.table;
        let message = format!("table '{table}' of the pool is no cache of an origin");
        return Err(refuse("origin", message, Some(ANOTHER_NAME.into())));
    };
    if cached.name == origin.name {
        return Ok(());
    }
    let (table, is) = (&manifest.table, &cached.name);
    let message = format!("table '{table}' of the pool is a cache of {is}, not of {}", origin.name);
    Err(refuse("origin", message, Some(ANOTHER_NAME.into())))
}

const ANOTHER_NAME: &str = "give the cache a name of its own in the pool: 'table' = '…'";

/// The error of a look at a table that is no cache.
fn not_a_cache(error: PoolError) -> ConnectorError {
    match error {
        PoolError::Mismatch { detail } => refuse("origin", detail, Some(ANOTHER_NAME.into())),
        PoolError::NoTable { table, .. } => {
            let message =
                format!("the pool has no table '{table}', and this process may not load it");
            let hint = "the first statement of a process that may load tables loads it";
            refuse("origin", message, Some(hint.into()))
        }
        error => refused(error),
    }
}
