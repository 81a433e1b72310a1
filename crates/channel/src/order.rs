//! The four accesses on which the memory ordering of a ring rests.
//!
//! ```text
//!   fill ─ publish (release) ─▶ observe (acquire) ─ read ─ release (release)
//!                                                             ─▶ collect (acquire) ─ credit
//! ```
//!
//! [`publish`] stands for the last word of a write, which the fabric places with release where it
//! is polled (G2). The rest is ours: whoever drops a payload releases its slot, and the link's
//! thread collects the slot before it returns credit, so that the peer's next write comes after the
//! last read. Generic over the atomic, so that loom runs the same code.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    fn swap(&self, value: u64, order: Ordering) -> u64;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order)
            }
            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value, order)
            }
            fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
                <$atomic>::fetch_or(self, bits, order)
            }
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                <$atomic>::swap(self, value, order)
            }
        }
    };
}

word!(AtomicU64);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64);

/// Writes a commit word after the bytes that it vouches for.
pub(crate) fn publish(commit: &impl Word, value: u64) {
    commit.store(value, Ordering::Release);
}

/// Reads a commit word before the bytes that it vouches for.
pub(crate) fn observe(commit: &impl Word) -> u64 {
    commit.load(Ordering::Acquire)
}

/// Adds a slot to the set of released ones, after the last read of its bytes.
pub(crate) fn release(released: &impl Word, slot: u32) {
    released.fetch_or(1 << slot, Ordering::Release);
}

/// Takes the set of released slots, before credit for them is returned.
pub(crate) fn collect(released: &impl Word) -> u64 {
    // The common case is an empty set, and a load does not take the line from its owner.
    if released.load(Ordering::Relaxed) == 0 { 0 } else { released.swap(0, Ordering::Acquire) }
}

/// How many slots are released and not collected.
pub(crate) fn uncollected(released: &impl Word) -> u32 {
    released.load(Ordering::Relaxed).count_ones()
}

#[cfg(all(test, loom))]
#[path = "order/tests.rs"]
mod tests;
