//! Published ranges: each a region of the device that all peers may read and nobody may write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::{DeviceMemory, explain};
use super::objects::{Domain, Region};
use super::sys;
use crate::published::{PUBLISHED_MAX, too_many};
use crate::token::Token;
use crate::{FabricError, RemoteKey, SlabRange};

/// The published ranges of a fabric.
#[derive(Default)]
pub(super) struct PublishedRegions(Mutex<HashMap<RemoteKey, Option<Region>>>);

impl PublishedRegions {
    /// # Errors
    /// [`FabricError::ForeignSlab`], or [`FabricError::Memory`] when the device has no region left
    /// or the memory cannot be pinned.
    pub(super) fn publish(
        &self,
        domain: &Arc<Domain>,
        range: &SlabRange,
    ) -> Result<RemoteKey, FabricError> {
        let memory: Option<&DeviceMemory> = range.slab().backing().as_any().downcast_ref();
        if !memory.is_some_and(|memory| memory.region().is_of(domain)) {
            return Err(FabricError::ForeignSlab);
        }
        let (base, len) = (range.as_ptr(), range.len());
        let refused = |source| FabricError::Memory { bytes: len, source: explain(source, len) };
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ranges.len() == PUBLISHED_MAX {
            return Err(refused(too_many()));
        }
        // The upper half makes keys of one region at different times differ, and is not checked.
        let tag = Token::random().map_err(refused)?.word() << 32;
        let mut key =
            RemoteKey { key: tag, base: RemoteKey::PUBLISHED | base as u64, len: len as u64 };
        // Nothing is read of an empty range.
        let mut region = None;
        if len > 0 {
            // SAFETY: the slab is kept beside the region; memory of slabs is accessed atomically or
            // by unsafe functions whose callers know the protocol.
            let registered =
                unsafe { Region::register(domain, base, len, sys::ACCESS_REMOTE_READ, false) };
            let registered = registered.map_err(refused)?.holding(range.slab().clone());
            key.key |= u64::from(registered.rkey());
            region = Some(registered);
        }
        ranges.insert(key, region);
        Ok(key)
    }

    pub(super) fn unpublish(&self, key: &RemoteKey) {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let region = ranges.remove(key).flatten();
        drop(ranges);
        if let Some(mut region) = region
            && !region.revoke()
        {
            // The device still reads it for a peer, whatever comes: so it stays what it is.
            std::mem::forget(region);
        }
    }
}
