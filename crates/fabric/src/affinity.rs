//! The processors on which a thread may run.
//!
//! The kernel calls the set an affinity mask. A launcher gives each process its mask; threads
//! inherit that of the thread which starts them.

use std::io;
use std::mem::{MaybeUninit, size_of};

/// Numbers that a set has room for, as the C library's.
pub const PROCESSORS_MAX: usize = 8 * size_of::<libc::cpu_set_t>();

/// The processors on which the calling thread may run, in order.
///
/// # Errors
/// Where the system refuses to tell, as with more than [`PROCESSORS_MAX`] processors.
pub fn processors() -> io::Result<Vec<u32>> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the size of the set, which this call alone has.
    let result =
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes of it are zero or were written by the kernel, and it is integers alone.
    let set = unsafe { set.assume_init() };
    // SAFETY: each number is below the room of the set.
    let has = |processor: &u32| unsafe { libc::CPU_ISSET(*processor as usize, &set) };
    Ok((0..PROCESSORS_MAX as u32).filter(has).collect())
}

/// Lets the calling thread run on these processors and no others. Those that the process must not
/// use are passed over by the kernel.
///
/// # Errors
/// Where none of them is left, or one has a number for which there is no room.
pub fn set_processors(processors: &[u32]) -> io::Result<()> {
    // SAFETY: a set of zeroes is the empty set.
    let mut set = unsafe { MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init() };
    for &processor in processors {
        if processor as usize >= PROCESSORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number is below the room of the set.
        unsafe { libc::CPU_SET(processor as usize, &mut set) };
    }
    // SAFETY: the kernel reads the size of the set, all of which is initialized.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_told_and_its_starter_where_it_was() {
        let before = processors().expect("the system tells");
        assert!(before.is_sorted() && !before.is_empty());
        let one = before[before.len() - 1];
        let pinned = std::thread::spawn(move || {
            set_processors(&[one]).expect("it is allowed");
            let inherited = std::thread::spawn(processors).join().expect("no panic");
            (processors().expect("the system tells"), inherited.expect("the system tells"))
        });
        assert_eq!(pinned.join().expect("no panic"), (vec![one], vec![one]));
        assert_eq!(processors().expect("the system tells"), before);
    }

    #[test]
    fn sets_that_cannot_be_are_refused() {
        let before = processors().expect("the system tells");
        for wrong in [&[][..], &[PROCESSORS_MAX as u32], &[before[0], u32::MAX]] {
            assert!(set_processors(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(processors().expect("the system tells"), before);
    }
}
