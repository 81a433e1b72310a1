//! The published ranges of a fabric: the owner's side of the [`registry`](super::registry).
//!
//! Shared by the fabric, whose control thread publishes, and its endpoints, which send descriptors
//! to those who ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limits::refused;
use super::map::SharedMemory;
use super::registry::{self, Posting};
use crate::published::{PUBLISHED_MAX, too_many};
use crate::token::Token;
use crate::{Backing, FabricError, RemoteKey, SlabRange};

/// The number by which peers ask for the registry; slabs have others.
pub(super) const REGISTRY: u64 = 0;

/// The published ranges of a fabric.
#[derive(Default)]
pub(super) struct Publications(Mutex<State>);

#[derive(Default)]
struct State {
    /// Made when the first range is published.
    registry: Option<Arc<dyn Backing>>,
    /// Entries that were used and are free, and the first one that was never used.
    free: Vec<usize>,
    unused: usize,
    /// By key: the entry and the range.
    ranges: HashMap<u64, (usize, SlabRange)>,
    /// By identity: the number, and how many ranges are published.
    slabs: HashMap<Token, (u64, usize)>,
    /// By number.
    memories: HashMap<u64, Arc<dyn Backing>>,
    last_number: u64,
}

impl Publications {
    /// # Errors
    /// [`FabricError::ForeignSlab`], or [`FabricError::Memory`] when there is no room.
    pub(super) fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let backing = range.slab().backing();
        let memory = shared(backing).ok_or(FabricError::ForeignSlab)?;
        let failed = |source| refused(range.len(), source);
        let key = Token::random().map_err(failed)?.word().max(1);
        let mut state = self.lock();
        let entry = state.free.last().copied().unwrap_or(state.unused);
        if entry == PUBLISHED_MAX {
            return Err(failed(too_many()));
        }
        let base = registry::base_of(entry, range.offset())
            .ok_or_else(|| failed(std::io::Error::other("the slab is too large")))?;
        if state.registry.is_none() {
            let registry = SharedMemory::of_registry().map_err(failed)?;
            state.registry = Some(Arc::new(registry));
        }
        match state.free.pop() {
            Some(_) => {}
            None => state.unused += 1,
        }
        let slab = state.number(memory.id(), backing);
        state.ranges.insert(key, (entry, range.clone()));
        let len = range.len() as u64;
        let posting = Posting { base: range.offset() as u64, len, slab };
        if let Some(registry) = state.registry.as_ref().and_then(shared) {
            registry::entries(registry.mapping())[entry].open(key, posting);
        }
        Ok(RemoteKey { key, base, len })
    }

    pub(super) fn unpublish(&self, key: &RemoteKey) {
        let mut state = self.lock();
        let Some((entry, range)) = state.ranges.remove(&key.key) else { return };
        if let Some(registry) = state.registry.as_ref().and_then(shared) {
            registry::entries(registry.mapping())[entry].close();
        }
        state.free.push(entry);
        if let Some(memory) = shared(range.slab().backing()) {
            state.forget(memory.id());
        }
        drop(state);
        drop(range);
    }

    /// Does something with the memory of a number that a peer asks for, if it is there.
    pub(super) fn with_memory<R>(
        &self,
        number: u64,
        act: impl FnOnce(Option<&SharedMemory>) -> R,
    ) -> R {
        let state = self.lock();
        let memory =
            if number == REGISTRY { state.registry.as_ref() } else { state.memories.get(&number) };
        act(memory.and_then(shared))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number of a slab of which one more range is published.
    fn number(&mut self, id: Token, backing: &Arc<dyn Backing>) -> u64 {
        let next = self.last_number + 1;
        let (number, ranges) = self.slabs.entry(id).or_insert((next, 0));
        *ranges += 1;
        if *number == next {
            self.last_number = next;
            self.memories.insert(next, backing.clone());
        }
        *number
    }

    /// One range less of a slab is published.
    fn forget(&mut self, id: Token) {
        if let Some((number, ranges)) = self.slabs.get_mut(&id) {
            *ranges -= 1;
            if *ranges == 0 {
                self.memories.remove(number);
                self.slabs.remove(&id);
            }
        }
    }
}

/// Memory of this transport.
pub(super) fn shared(backing: &Arc<dyn Backing>) -> Option<&SharedMemory> {
    backing.as_any().downcast_ref()
}
