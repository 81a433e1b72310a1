//! The newest version of a table that a stream looks rows up in.
//!
//! A pool is asked by a thread of its own, for a worker must not wait: once for each question.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use dataflow::error::ConnectorError;
use dataflow::source::{NewestVersion, Pruning, Source};
use pool::PoolError;
use pool::access::At;

use super::errors::refused;
use super::prune::Pruned;
use super::source::{PinnedTable, PoolSource};
use super::version::Version;

/// A question for the newest version, which a thread asks the pool.
pub(super) struct AskedVersion(Arc<Mutex<Option<Answer>>>);

/// A source of a newer version, if there is one.
type Answer = Result<Option<Arc<dyn Source>>, ConnectorError>;

impl AskedVersion {
    pub(super) fn new(source: PoolSource, waker: Waker) -> Self {
        let answer = Arc::<Mutex<Option<Answer>>>::default();
        let (slot, name) = (Arc::clone(&answer), source.table.name.clone());
        let report = move |slot: &Mutex<Option<Answer>>, found: Answer| {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            waker.wake_by_ref();
        };
        let reported = report.clone();
        let thread = std::thread::Builder::new().name("pool-version".into());
        let started = thread.spawn(move || reported(&slot, source.newer()));
        if let Err(error) = started {
            let message = format!("the system gives no thread: {error}");
            let place = format!("pool table '{name}'");
            report(&answer, Err(ConnectorError::Io { place, message, hint: None }));
        }
        Self(answer)
    }
}

impl NewestVersion for AskedVersion {
    fn poll(&mut self) -> Poll<Answer> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl PoolSource {
    /// The same of the newest version, if that is another.
    fn newer(&self) -> Answer {
        let name = &self.table.name;
        let tables = self.table.access.tables().map_err(refused)?;
        let newest = tables.into_iter().find(|table| &table.name == name);
        let read = self.table.version()?.manifest().version;
        let Some(newest) = newest.map(|table| table.version).filter(|newest| *newest != read)
        else {
            return Ok(None);
        };
        let pinned = self.table.access.pin(name, At::Version(newest));
        let version = match pinned {
            Ok(pinned) => Version::checked(pinned, &self.table.nodes)?,
            // It was replaced meanwhile; the next question finds the one that came.
            Err(PoolError::NoVersion { .. }) => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        self.table.check_same(&version)?;
        let table = PinnedTable {
            access: Arc::clone(&self.table.access),
            name: name.clone(),
            at: At::Version(newest),
            columns: version.columns.clone(),
            early: true,
            version: OnceLock::from(Arc::new(version)),
            nodes: Arc::clone(&self.table.nodes),
        };
        let mut source = self.clone();
        (source.table, source.pruned, source.placed) = (Arc::new(table), None, None);
        let Some(Pruned { by, within_splits, .. }) = &self.pruned else {
            return Ok(Some(Arc::new(source)));
        };
        let by = Pruning { kept: by.clone(), within_splits: *within_splits };
        Ok(Some(source.pruned(&by).unwrap_or_else(|| Arc::new(source))))
    }
}
