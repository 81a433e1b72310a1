//! The limits of the system that many slabs meet: each is a descriptor and a mapping.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::FabricError;

/// Descriptors and mappings that a process has besides its slabs, as a guess that is on the safe
/// side.
const OTHERS: u64 = 256;

/// Checks whether `slabs` slabs fit the limits of this process, beside what it has already.
///
/// # Errors
/// [`FabricError::Limits`], which says how to raise the limit.
pub(super) fn check(slabs: u64) -> Result<(), FabricError> {
    let needed = slabs.saturating_add(OTHERS);
    let too_small = |limit: &u64| *limit < needed;
    let refused = |detail| Err(FabricError::Limits { slabs, detail });
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(too_small) {
        return refused(descriptors(limit));
    }
    match mappings_max().filter(too_small) {
        Some(limit) => refused(mappings(limit)),
        None => Ok(()),
    }
}

/// The error of memory that the system refuses, with what to do where a limit is in the way.
pub(super) fn refused(bytes: usize, source: io::Error) -> FabricError {
    let detail = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => getrlimit(Resource::Nofile).current.map(descriptors),
        // The system does not say whether it lacks memory or mappings.
        Some(Errno::NOMEM) => mappings_max().filter(|max| mapped() + 16 > *max).map(mappings),
        _ => None,
    };
    FabricError::Memory { bytes, source: detail.map_or(source, io::Error::other) }
}

fn descriptors(limit: u64) -> String {
    format!(
        "this process may have {limit} descriptors, and each slab of shared memory takes one; \
         raise that with `ulimit -n`, in a container with `--ulimit nofile=`, in a systemd unit \
         with `LimitNOFILE=`"
    )
}

fn mappings(limit: u64) -> String {
    format!(
        "this process may have {limit} mappings, and each slab of shared memory takes one; raise \
         that with `sysctl vm.max_map_count=`"
    )
}

/// The mappings that a process may have, where the system says it.
fn mappings_max() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

/// The mappings of this process.
fn mapped() -> u64 {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_process_may_have_is_refused_with_a_hint() {
        let refused = check(u64::MAX).expect_err("no limit is that high").to_string();
        assert!(refused.contains("ulimit -n") || refused.contains("max_map_count"), "{refused}");
        assert!(check(0).is_ok());
    }

    #[test]
    fn other_errors_are_passed_on() {
        let error = refused(7, Errno::PERM.into()).to_string();
        assert!(error.contains(&io::Error::from(Errno::PERM).to_string()), "{error}");
    }
}
