//! Operations of an endpoint on the memory of its peer.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{GIVEN_OUT, ShmEndpoint};
use crate::memory::publish_copy;
use crate::shm::slabs::{self, Reach};
use crate::{ErrorKind, RemoteKey, RemoteRange, SlabRange, Src};

impl ShmEndpoint {
    /// Finds the peer's memory: the address of `at` for `len` bytes in our mapping of its slab.
    pub(super) fn locate(&mut self, at: &RemoteRange, len: usize) -> Result<*mut u8, ErrorKind> {
        let export = self.theirs.words().export(at.key.key);
        let is_current = export.key.load(Ordering::Acquire) == at.key.key
            && export.base.load(Ordering::Relaxed) == at.key.base
            && export.len.load(Ordering::Relaxed) == at.key.len;
        if !is_current {
            return Err(self.refusal());
        }
        let slab = export.slab.load(Ordering::Relaxed);
        let place = self.peer_slabs.place(slab).or_else(|_| {
            // The descriptor was sent before the key was published.
            self.drain_socket();
            self.peer_slabs.place(slab)
        });
        let mapping = place.ok().and_then(|place| self.peer_slabs.exported(place));
        let Some(mapping) = mapping else { return Err(self.refusal()) };
        let start = at.key.base.checked_add(at.offset).and_then(|s| usize::try_from(s).ok());
        match start.and_then(|start| Some((start, start.checked_add(len)?))) {
            Some((start, end)) if end <= mapping.len() => {
                // SAFETY: `start <= end <= mapping.len()`.
                Ok(unsafe { mapping.base().as_ptr().add(start) })
            }
            _ => Err(ErrorKind::RemoteAccess),
        }
    }

    /// Changes the peer's memory, unless the key was taken back; see `inbox` for the order of the
    /// steps.
    fn change<R>(
        &mut self,
        at: &RemoteRange,
        len: usize,
        change: impl FnOnce(*mut u8) -> R,
    ) -> Result<R, ErrorKind> {
        let target = self.locate(at, len)?;
        let words = self.theirs.words();
        words.busy().swap(1, Ordering::SeqCst);
        let valid = words.export(at.key.key).key.load(Ordering::SeqCst) == at.key.key;
        let result = valid.then(|| change(target));
        words.busy().store(0, Ordering::Release);
        result.ok_or_else(|| self.refusal())
    }

    /// Why a key does not open: the peer left, or it never gave that key or took it back.
    pub(super) fn refusal(&self) -> ErrorKind {
        if self.gone || self.peer_closed() {
            ErrorKind::Disconnected
        } else {
            ErrorKind::RemoteAccess
        }
    }

    pub(super) fn put(&mut self, src: Src<'_>, dst: &RemoteRange) -> Result<(), ErrorKind> {
        let (from, len) = match src {
            Src::Slab(range) => (range.as_ptr().cast_const(), range.len()),
            Src::Inline(bytes) => (bytes.as_ptr(), bytes.len()),
            Src::Empty => return Ok(()),
        };
        // SAFETY: the source is live; the target lies inside of our mapping, and no safe reference
        // points there. PostedSource and target overlap only when a worker writes to itself, and
        // that is a breach of its own protocol.
        let changed = self.change(dst, len, |target| unsafe { publish_copy(from, target, len) });
        if self.is_retired(&dst.key) { Ok(()) } else { changed }
    }

    /// Whether the peer has retired this key: nothing happens by it.
    pub(super) fn is_retired(&self, key: &RemoteKey) -> bool {
        self.theirs.words().export(key.key).key.load(Ordering::Acquire) == key.key & !GIVEN_OUT
    }

    /// Changes a word of the peer's and stores what it was.
    fn change_word(
        &mut self,
        dst: &RemoteRange,
        old: &SlabRange,
        step: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), ErrorKind> {
        // SAFETY: eight bytes inside of our mapping, aligned because a mapping starts at a page.
        let outcome = self.change(dst, 8, |word| step(unsafe { AtomicU64::from_ptr(word.cast()) }));
        if let Ok(value) = outcome {
            old.slab().store(old.offset(), value, Ordering::Release);
        }
        outcome.map(drop)
    }

    /// Copies from the peer's memory, or waits until it is mapped.
    pub(super) fn fetch(
        &mut self,
        dst: &SlabRange,
        src: &RemoteRange,
    ) -> Reach<Result<(), ErrorKind>> {
        if src.key.is_published() {
            return self.fetch_published(dst, src);
        }
        let outcome = self.locate(src, dst.len()).map(|from| {
            // SAFETY: both lie inside of their mappings; the destination is the caller's until
            // `Local`. The peer may change the source meanwhile: the bytes are then torn, which a
            // read may be (G7).
            unsafe { std::ptr::copy(from.cast_const(), dst.as_ptr(), dst.len()) }
            // A second read, which shows whether the first one was whole, comes later:
            // some processors would load in another order.
            fence(Ordering::Acquire);
        });
        Reach::Here(if self.is_retired(&src.key) { Ok(()) } else { outcome })
    }

    fn fetch_published(
        &mut self,
        dst: &SlabRange,
        src: &RemoteRange,
    ) -> Reach<Result<(), ErrorKind>> {
        match self.reach(&src.key, src.offset, dst.len()) {
            Reach::Here(place) => {
                // SAFETY: as in `fetch`.
                unsafe {
                    let from = place.memory.mapping().base().as_ptr().add(place.start);
                    std::ptr::copy(from.cast_const(), dst.as_ptr(), place.len);
                }
                let served = self.peer_slabs.holds(&src.key) && !self.peer_closed();
                Reach::Here(if served { Ok(()) } else { Err(self.refusal()) })
            }
            Reach::Pending => Reach::Pending,
            Reach::Refused => Reach::Here(Err(self.refusal())),
        }
    }

    /// The place of published bytes in this process.
    pub(super) fn reach(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        len: usize,
    ) -> Reach<slabs::Published> {
        if self.gone || self.peer_closed() {
            return Reach::Refused;
        }
        let Self { socket, theirs, peer_slabs, .. } = self;
        let mut ask = |message: &[u8]| {
            let sent = socket.send(message, None).is_ok();
            theirs.words().asked().fetch_add(u64::from(sent), Ordering::Release);
            sent
        };
        peer_slabs.published(key, offset, len, &mut ask)
    }

    pub(super) fn peer_closed(&self) -> bool {
        self.theirs.words().closed().load(Ordering::Acquire) != 0
    }

    pub(super) fn add(
        &mut self,
        dst: &RemoteRange,
        add: u64,
        old: &SlabRange,
    ) -> Result<(), ErrorKind> {
        self.change_word(dst, old, |word| word.fetch_add(add, Ordering::AcqRel))
    }

    pub(super) fn swap(
        &mut self,
        dst: &RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
    ) -> Result<(), ErrorKind> {
        self.change_word(dst, old, |word| {
            match word.compare_exchange(expect, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) | Err(old) => old,
            }
        })
    }
}
