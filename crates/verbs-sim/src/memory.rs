//! Memory of the users: touched as a device touches it, word by word and without references.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a write that are on their way to memory.
#[derive(Debug, Clone)]
pub(crate) struct ScatterPiece {
    /// Where they go.
    pub(crate) addr: u64,
    /// The write that they are of.
    pub(crate) write: u64,
    /// The key of the region.
    pub(crate) key: u32,
    bytes: Arc<[u8]>,
    range: (usize, usize),
}

impl ScatterPiece {
    /// Cuts a write at multiples of `step` bytes, so that no aligned word is in two pieces.
    pub(crate) fn cut(
        addr: u64,
        bytes: Vec<u8>,
        key: u32,
        write: u64,
        step: usize,
    ) -> Vec<ScatterPiece> {
        let (bytes, mut from): (Arc<[u8]>, usize) = (bytes.into(), 0);
        let mut pieces = Vec::new();
        while from < bytes.len() {
            let at = addr + from as u64;
            let to = ((at as usize / step + 1) * step - addr as usize).min(bytes.len());
            let range = (from, to);
            pieces.push(ScatterPiece { addr: at, write, key, bytes: bytes.clone(), range });
            from = to;
        }
        pieces
    }

    /// The address behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.addr + (self.range.1 - self.range.0) as u64
    }

    /// # Safety
    /// The target is mapped: its region is registered.
    pub(crate) unsafe fn place(&self) {
        // SAFETY: as the caller promises.
        unsafe { store(self.addr, &self.bytes[self.range.0..self.range.1]) }
    }
}

/// Stores bytes, each aligned word at once.
///
/// # Safety
/// The memory is mapped, and all other accesses are atomic or not at the same time.
pub(crate) unsafe fn store(addr: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = addr as usize + done;
        match bytes[done..].first_chunk::<8>().filter(|_| at.is_multiple_of(8)) {
            Some(word) => {
                // SAFETY: aligned and mapped.
                let cell = unsafe { AtomicU64::from_ptr(at as *mut u64) };
                cell.store(u64::from_ne_bytes(*word), Ordering::Release);
                done += 8;
            }
            None => {
                // SAFETY: mapped.
                let cell = unsafe { AtomicU8::from_ptr(at as *mut u8) };
                cell.store(bytes[done], Ordering::Release);
                done += 1;
            }
        }
    }
}

/// Loads bytes, each aligned word at once.
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn load(addr: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let at = addr as usize + out.len();
        if at.is_multiple_of(8) && len - out.len() >= 8 {
            // SAFETY: aligned and mapped.
            let cell = unsafe { AtomicU64::from_ptr(at as *mut u64) };
            out.extend_from_slice(&cell.load(Ordering::Acquire).to_ne_bytes());
        } else {
            // SAFETY: mapped.
            let cell = unsafe { AtomicU8::from_ptr(at as *mut u8) };
            out.push(cell.load(Ordering::Acquire));
        }
    }
    out
}

/// Changes an aligned word and returns what it was.
///
/// # Safety
/// The word is mapped and aligned.
pub(crate) unsafe fn change(addr: u64, swap_if: Option<u64>, operand: u64) -> u64 {
    // SAFETY: as the caller promises.
    let cell = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
    match swap_if {
        None => cell.fetch_add(operand, Ordering::AcqRel),
        Some(expect) => {
            match cell.compare_exchange(expect, operand, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) | Err(old) => old,
            }
        }
    }
}
