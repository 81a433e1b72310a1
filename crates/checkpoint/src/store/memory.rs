//! A store in memory, for tests: it can fail as stores fail.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{Created, ObjectName, Store, StoredObject};
use crate::error::StoreError;

/// The calls of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreCall {
    /// [`Store::create`].
    Create,
    /// [`Store::put`].
    Put,
    /// [`Store::get`].
    Get,
    /// [`Store::list`].
    List,
    /// [`Store::delete`].
    Delete,
}

/// How calls fail. Rates are in thousandths of the calls that they apply to, and are drawn from the
/// seed: the same calls in the same order fail alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// The seed.
    pub seed: u64,
    /// A call fails and changes nothing, as with `EIO`.
    pub refused: u32,
    /// A write fails and changes nothing, as with `ENOSPC`.
    pub full: u32,
    /// A write takes effect, and its answer is lost.
    pub lost: u32,
    /// A write's answer is lost, and it takes effect during a later call.
    pub late: u32,
    /// A [`put`](Store::put) leaves the first half of the object behind, and its answer is lost.
    pub torn: u32,
    /// A listing gives what was there before the last write.
    pub stale: u32,
}

/// The fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Refused,
    Full,
    Lost,
    Late,
    Torn,
    Stale,
}

/// A change of an object.
#[derive(Debug, Clone)]
enum Write {
    Create(ObjectName, Bytes),
    Put(ObjectName, Bytes),
    Delete(ObjectName),
}

/// An object's bytes, and when they were written.
type Objects = BTreeMap<ObjectName, (Bytes, i64)>;

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    /// As they were before the last write.
    before: Objects,
    /// Writes that have not taken effect yet.
    late: Vec<Write>,
    faults: Faults,
    random: u64,
    now_ms: i64,
    calls: u64,
    /// The call that fails, counted from the first one, and how.
    fails: Option<(u64, Fault)>,
}

/// Objects in memory. It implements the promises of [`Store`], and breaks them as [`Faults`] asks.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    /// A store whose calls fail.
    #[must_use]
    pub fn faulty(faults: Faults) -> Self {
        let state = State { faults, random: faults.seed | 1, ..State::default() };
        Self { state: Mutex::new(state) }
    }

    /// Lets one call fail and change nothing: the one of number `call`, from 0 on.
    pub fn refuse_call(&self, call: u64) {
        self.lock().fails = Some((call, Fault::Refused));
    }

    /// Lets the answer of one call get lost: the one of number `call`, from 0 on. Reads fail.
    pub fn lose_answer(&self, call: u64) {
        self.lock().fails = Some((call, Fault::Lost));
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Sets the clock of the store, in milliseconds since 1970.
    pub fn set_time(&self, now_ms: i64) {
        self.lock().now_ms = now_ms;
    }

    /// Ends the faults: writes that are late take effect now.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults = Faults::default();
        state.fails = None;
        for write in std::mem::take(&mut state.late) {
            state.apply(write);
        }
    }

    /// Replaces, or with `None` removes, an object behind the back of everybody.
    pub fn damage(&self, name: &ObjectName, bytes: Option<Bytes>) {
        let mut state = self.lock();
        match bytes {
            Some(bytes) => {
                let now_ms = state.now_ms;
                state.objects.insert(name.clone(), (bytes, now_ms));
            }
            None => {
                state.objects.remove(name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write, with the fault that is drawn for it.
    fn write(&self, call: StoreCall, write: Write) -> Result<Created, StoreError> {
        let (Write::Create(name, _) | Write::Put(name, _) | Write::Delete(name)) = &write;
        let place = self.place(name);
        let mut state = self.lock();
        let lost = || StoreError::unknown(place.clone(), "the answer was lost");
        match state.draw(call) {
            None | Some(Fault::Stale) => Ok(state.apply(write)),
            Some(Fault::Refused) => Err(StoreError::refused(place, "input/output error")),
            Some(Fault::Full) => Err(StoreError::refused(place, "no space left on device")),
            Some(Fault::Lost) => {
                state.apply(write);
                Err(lost())
            }
            Some(Fault::Late) => {
                state.late.push(write);
                Err(lost())
            }
            Some(Fault::Torn) => {
                if let Write::Put(name, bytes) = write {
                    let half = bytes.slice(..bytes.len() / 2);
                    state.apply(Write::Put(name, half));
                }
                Err(lost())
            }
        }
    }

    /// A read, which fails as a whole or not at all. A late write may take effect before.
    fn read(
        &self,
        call: StoreCall,
        place: &str,
    ) -> Result<(MutexGuard<'_, State>, bool), StoreError> {
        let mut state = self.lock();
        match state.draw(call) {
            None => Ok((state, false)),
            Some(Fault::Stale) => Ok((state, true)),
            Some(_) => Err(StoreError::refused(place, "input/output error")),
        }
    }
}

impl State {
    fn random(&mut self) -> u64 {
        // Marsaglia's xorshift: the same on every machine.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn is_drawn(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && (self.random() >> 20) % 1000 < u64::from(thousandths)
    }

    /// Counts a call, lets late writes arrive, and draws what happens to it.
    fn draw(&mut self, call: StoreCall) -> Option<Fault> {
        let number = self.calls;
        self.calls += 1;
        if !self.late.is_empty() && self.is_drawn(300) {
            let at = self.random() as usize % self.late.len();
            let write = self.late.swap_remove(at);
            self.apply(write);
        }
        if let Some((at, fault)) = self.fails
            && at == number
        {
            return Some(fault);
        }
        let faults = self.faults;
        let writes = matches!(call, StoreCall::Create | StoreCall::Put | StoreCall::Delete);
        let of = |applies: bool, rate: u32| if applies { rate } else { 0 };
        let rates = [
            (Fault::Refused, faults.refused),
            (Fault::Full, of(writes, faults.full)),
            (Fault::Lost, of(writes, faults.lost)),
            (Fault::Late, of(writes, faults.late)),
            (Fault::Torn, of(call == StoreCall::Put, faults.torn)),
            (Fault::Stale, of(call == StoreCall::List, faults.stale)),
        ];
        rates.into_iter().find(|&(_, rate)| self.is_drawn(rate)).map(|(fault, _)| fault)
    }

    fn apply(&mut self, write: Write) -> Created {
        let now_ms = self.now_ms;
        let before = self.objects.clone();
        match write {
            Write::Create(name, _) if self.objects.contains_key(&name) => return Created::Exists,
            Write::Create(name, bytes) | Write::Put(name, bytes) => {
                self.objects.insert(name, (bytes, now_ms));
            }
            Write::Delete(name) => {
                self.objects.remove(&name);
            }
        }
        self.before = before;
        Created::New
    }
}

impl Store for MemoryStore {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        self.write(StoreCall::Create, Write::Create(name.clone(), bytes.clone()))
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        let bytes = Bytes::from(parts.concat());
        self.write(StoreCall::Put, Write::Put(name.clone(), bytes)).map(|_| ())
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        let (state, _) = self.read(StoreCall::Get, &self.place(name))?;
        let cut = |bytes: &Bytes| {
            let length = bytes.len() as u64;
            let range = range.unwrap_or(0..length);
            let (start, end) = (range.start.min(length), range.end.min(length));
            bytes.slice(start as usize..end.max(start) as usize)
        };
        Ok(state.objects.get(name).map(|(bytes, _)| cut(bytes)))
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        let (state, is_stale) = self.read(StoreCall::List, "memory:")?;
        let objects = if is_stale { &state.before } else { &state.objects };
        let is_below = |name: &ObjectName| {
            prefix.is_none_or(|prefix| {
                let rest = name.as_str().strip_prefix(prefix.as_str());
                rest.is_some_and(|rest| rest.starts_with('/'))
            })
        };
        let object = |(name, (bytes, modified_ms)): (&ObjectName, &(Bytes, i64))| StoredObject {
            name: name.clone(),
            bytes: bytes.len() as u64,
            modified_ms: *modified_ms,
        };
        Ok(objects.iter().filter(|(name, _)| is_below(name)).map(object).collect())
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.write(StoreCall::Delete, Write::Delete(name.clone())).map(|_| ())
    }

    fn place(&self, name: &ObjectName) -> String {
        format!("memory:{name}")
    }
}
