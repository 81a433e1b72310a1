//! A store in memory, one call of which fails.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use millstream::checkpoint::{Created, MemoryStore, ObjectName, Store, StoreError, StoredObject};

/// The ways in which a call may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The call changes nothing, as with `EIO`.
    Refused,
    /// A write changes nothing: the disk is full. Calls of other kinds are refused.
    Full,
    /// The call takes effect, and its answer is lost.
    Lost,
    /// The answer is lost, and the call takes effect some calls later.
    Late,
    /// Half of an object is written, and the call fails.
    Torn,
    /// Half of an object is written, and the call says that all of it was.
    Short,
    /// A listing is an earlier one.
    Stale,
}

/// All ways.
pub(super) const HOW: [How; 7] =
    [How::Refused, How::Full, How::Lost, How::Late, How::Torn, How::Short, How::Stale];

const HOUR_MS: i64 = 3_600_000;
/// A day in 2027.
const NOW_MS: i64 = 1_800_000_000_000;
/// Calls after which a late write takes effect.
const LATER: u64 = 3;

/// The number of the call that fails, from 0 on, and the way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fails {
    pub(super) call: u64,
    pub(super) how: How,
}

#[derive(Debug, Default)]
struct Calls {
    made: u64,
    fails: Option<Fails>,
    failed: Option<String>,
    /// A late write, with the number of the call before which it takes effect. The last field tells
    /// whether it creates the object.
    late: Option<(u64, ObjectName, Bytes, bool)>,
    /// Records of the chain that were created.
    records: usize,
    /// A flag that becomes true when there are this many records.
    notified: Option<(usize, Arc<AtomicBool>)>,
    /// The seed of the clock, if it jumps.
    jumps: Option<u64>,
    /// The listings so far.
    listed: Vec<(Option<ObjectName>, Vec<StoredObject>)>,
}

/// Objects in memory.
#[derive(Debug, Default)]
pub(super) struct FailingStore {
    inner: MemoryStore,
    calls: Mutex<Calls>,
}

impl FailingStore {
    pub(super) fn new(fails: Option<Fails>) -> Arc<Self> {
        let calls = Calls { fails, ..Calls::default() };
        Arc::new(Self { inner: MemoryStore::default(), calls: Mutex::new(calls) })
    }

    /// Whether a call has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// The call that has failed, for messages.
    pub(super) fn log(&self) -> String {
        self.lock().failed.clone().unwrap_or_default()
    }

    /// Sets `flag` when `records` records of the chain were created.
    pub(super) fn notify(&self, records: usize, flag: Arc<AtomicBool>) {
        self.lock().notified = Some((records, flag));
    }

    /// Lets the clock jump back and forth by up to an hour, with each call.
    pub(super) fn jump(&self, seed: u64) {
        self.lock().jumps = Some(seed);
    }

    /// Lets no further call fail, and a late write take effect.
    pub(super) fn heal(&self) {
        let mut calls = self.lock();
        calls.fails = None;
        self.arrive(&mut calls, u64::MAX);
    }

    /// All objects.
    pub(super) fn objects(&self) -> Vec<(ObjectName, Bytes)> {
        let listed = self.inner.list(None).expect("it is in memory");
        let each = listed.into_iter().map(|object| {
            let bytes = self.inner.get(&object.name, None).expect("it is in memory");
            (object.name, bytes.expect("it is listed"))
        });
        each.collect()
    }

    /// A store with these objects.
    pub(super) fn of(objects: &[(ObjectName, Bytes)]) -> Arc<Self> {
        let store = Self::new(None);
        for (name, bytes) in objects {
            store.inner.damage(name, Some(bytes.clone()));
        }
        store
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("not poisoned")
    }

    fn arrive(&self, calls: &mut Calls, now: u64) {
        if let Some((_, name, bytes, create)) = calls.late.take_if(|(at, ..)| *at <= now) {
            let _ = if create {
                self.inner.create(&name, &bytes).map(drop)
            } else {
                self.inner.put(&name, &[bytes])
            };
        }
    }

    /// Counts a call. Gives the way in which it fails.
    fn call(&self, what: &str, name: Option<&ObjectName>) -> (MutexGuard<'_, Calls>, Option<How>) {
        let mut calls = self.lock();
        let number = calls.made;
        calls.made += 1;
        self.arrive(&mut calls, number);
        if let Some(seed) = calls.jumps {
            let by_ms = [-HOUR_MS, 0, HOUR_MS, HOUR_MS / 2][(seed + number * 7 / 3) as usize % 4];
            self.inner.set_time(NOW_MS + number as i64 + by_ms);
        }
        if what == "create" && name.is_some_and(|name| name.as_str().contains("/chain/")) {
            calls.records += 1;
            let records = calls.records;
            if let Some((_, flag)) = calls.notified.take_if(|(at, _)| *at <= records) {
                flag.store(true, Ordering::Release);
            }
        }
        let fails = calls.fails.filter(|fails| fails.call == number);
        if let Some(Fails { how, .. }) = fails {
            let name = name.map(ObjectName::as_str).unwrap_or_default();
            calls.failed = Some(format!("{what} {name} fails by {how:?}"));
        }
        (calls, fails.map(|fails| fails.how))
    }

    fn refused(&self, name: &ObjectName) -> StoreError {
        StoreError::refused(self.place(name), "input/output error")
    }

    fn full(&self, name: &ObjectName) -> StoreError {
        StoreError::refused(self.place(name), "no space left on device")
    }

    fn lost(&self, name: &ObjectName) -> StoreError {
        StoreError::unknown(self.place(name), "the answer was lost")
    }
}

impl Store for FailingStore {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        match self.call("create", Some(name)) {
            (_, None | Some(How::Stale)) => self.inner.create(name, bytes),
            // An object that is created appears as a whole or not at all.
            (_, Some(How::Refused | How::Torn | How::Short)) => Err(self.refused(name)),
            (_, Some(How::Full)) => Err(self.full(name)),
            (_, Some(How::Lost)) => {
                let _ = self.inner.create(name, bytes);
                Err(self.lost(name))
            }
            (mut calls, Some(How::Late)) => {
                calls.late = Some((calls.made + LATER, name.clone(), bytes.clone(), true));
                Err(self.lost(name))
            }
        }
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        let whole = Bytes::from(parts.concat());
        let half = whole.slice(..whole.len() / 2);
        match self.call("put", Some(name)) {
            (_, None | Some(How::Stale)) => self.inner.put(name, parts),
            (_, Some(How::Refused)) => Err(self.refused(name)),
            (_, Some(How::Full)) => Err(self.full(name)),
            (_, Some(How::Lost)) => {
                let _ = self.inner.put(name, parts);
                Err(self.lost(name))
            }
            (mut calls, Some(How::Late)) => {
                calls.late = Some((calls.made + LATER, name.clone(), whole, false));
                Err(self.lost(name))
            }
            (_, Some(How::Torn)) => {
                let _ = self.inner.put(name, &[half]);
                Err(self.lost(name))
            }
            (_, Some(How::Short)) => self.inner.put(name, &[half]),
        }
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        match self.call("get", Some(name)) {
            (_, None | Some(How::Stale)) => self.inner.get(name, range),
            (_, Some(How::Short)) => {
                let read = self.inner.get(name, range)?;
                Ok(read.map(|bytes| bytes.slice(..bytes.len() / 2)))
            }
            (_, Some(_)) => Err(self.refused(name)),
        }
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        let (mut calls, how) = self.call("list", prefix);
        let listed = match how {
            None => self.inner.list(prefix)?,
            Some(How::Stale | How::Short) => {
                let before = calls.listed.iter().rev().find(|(of, _)| of.as_ref() == prefix);
                return Ok(before.map_or_else(Vec::new, |(_, listed)| listed.clone()));
            }
            Some(_) => return Err(StoreError::refused("memory:", "input/output error")),
        };
        calls.listed.push((prefix.cloned(), listed.clone()));
        Ok(listed)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        match self.call("delete", Some(name)) {
            (_, None | Some(How::Stale)) => self.inner.delete(name),
            (_, Some(How::Lost | How::Late)) => {
                let _ = self.inner.delete(name);
                Err(self.lost(name))
            }
            (_, Some(_)) => Err(self.refused(name)),
        }
    }

    fn place(&self, name: &ObjectName) -> String {
        self.inner.place(name)
    }
}
