//! The limits of the system that many extents meet: over shared memory each is a descriptor and a
//! mapping of the server.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::FabricKind;

/// Descriptors and mappings that are kept for clients, at most half of what there is.
const KEPT: u64 = 8192;

/// Raises the number of descriptors that this process may have as far as it may itself.
pub(super) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
}

/// The extents that a server may have whose memory is made by this fabric.
pub(super) fn extents_max(maker: FabricKind) -> usize {
    if maker != FabricKind::Shm {
        return usize::MAX;
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let mappings = mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    usize::try_from(without_kept(descriptors.min(mappings))).unwrap_or(usize::MAX)
}

fn without_kept(limit: u64) -> u64 {
    limit - KEPT.min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_little_is_kept_and_of_much_enough() {
        assert_eq!([1024, 20_000, 1 << 20].map(without_kept), [512, 11_808, (1 << 20) - 8192]);
    }

    #[test]
    fn the_limit_is_raised_and_the_extents_stay_below_it() {
        raise_descriptors();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert!((extents_max(FabricKind::Shm) as u64) < limit.current.unwrap_or(u64::MAX));
        assert_eq!(extents_max(FabricKind::Tcp), usize::MAX);
    }
}
