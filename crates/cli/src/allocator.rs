//! The allocator of the program, and when it gives memory back to the system.
//!
//! Arrays of a batch are allocated and freed again some thousand times a second, and those of a
//! window all at once when it closes. Memory that is given back in between is cleared by the kernel
//! page by page when it is used again: a join of windows on two processes spent half of its time
//! there.
//!
//! Libraries of C allocate by mimalloc, too (its feature `override`): Kafka's client takes memory
//! for each message on one thread and frees it on another. With the allocator of the C library a
//! job that reads a topic took 8 % more of the processor.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How long freed memory is kept for what is allocated next, in milliseconds.
const KEPT_MS: c_long = 10_000;

/// The number of mimalloc's option `purge_delay`.
const PURGE_DELAY: c_int = 15;

// SAFETY: the signature is that of mimalloc.h.
unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Keeps freed memory for [`KEPT_MS`], unless `MIMALLOC_PURGE_DELAY` says otherwise. To be called
/// before any thread is started.
pub fn keep_freed() {
    // SAFETY: mimalloc is linked, and passes over numbers that are no option.
    unsafe { mi_option_set_default(PURGE_DELAY, KEPT_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: as above.
    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: as above; no other test of this program sets options.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        // mimalloc's own default, which no option near this one has.
        assert_eq!(delay(), 1000);
        keep_freed();
        assert_eq!(delay(), KEPT_MS);
    }
}
