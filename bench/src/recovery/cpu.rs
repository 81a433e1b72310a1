//! The processor time of this process: that of all of its threads, also of those that have ended.
#![allow(unsafe_code)]

/// Nanoseconds of processor time since the process began; 0 if the system does not tell.
pub(super) fn process_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct that the pointer leads to, and keeps nothing.
    let known = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    if known != 0 {
        return 0;
    }
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}
