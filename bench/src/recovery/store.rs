//! A store that records when a checkpoint was stored, and its bytes.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use millstream::checkpoint::{Created, ObjectName, Store, StoreError, StoredObject};

/// A record that was created in a chain, with the segments that were stored before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRecord {
    /// The end of the call: the record is durable then.
    pub at: Instant,
    /// Bytes of the segments that were stored since the record before.
    pub bytes: u64,
}

/// The store, which passes all calls on to another one.
pub struct TimedStore {
    inner: Arc<dyn Store>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    bytes: u64,
    records: Vec<StoredRecord>,
}

impl TimedStore {
    /// A store that records the calls to `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, noted: Mutex::default() }
    }

    /// The records that were created, in their order.
    pub fn records(&self) -> Vec<StoredRecord> {
        self.noted().records.clone()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an object lies in this folder of a job.
fn lies_in(name: &ObjectName, folder: &str) -> bool {
    name.as_str().split('/').nth(1) == Some(folder)
}

impl Store for TimedStore {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        let created = self.inner.create(name, bytes)?;
        if created == Created::New && lies_in(name, "chain") {
            let mut noted = self.noted();
            let bytes = std::mem::take(&mut noted.bytes);
            noted.records.push(StoredRecord { at: Instant::now(), bytes });
        }
        Ok(created)
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        self.inner.put(name, parts)?;
        if lies_in(name, "seg") {
            self.noted().bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        }
        Ok(())
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(name, range)
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        self.inner.list(prefix)
    }

    fn children(&self, prefix: Option<&ObjectName>) -> Result<Vec<String>, StoreError> {
        self.inner.children(prefix)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.inner.delete(name)
    }

    fn remove_folder(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.inner.remove_folder(name)
    }

    fn clean(&self, prefix: &ObjectName) -> Result<u64, StoreError> {
        self.inner.clean(prefix)
    }

    fn place(&self, name: &ObjectName) -> String {
        self.inner.place(name)
    }
}
