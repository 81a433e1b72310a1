//! Memory that a device knows: pinned once, on huge pages where there are any.

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::objects::{Domain, Region};
use crate::anonymous::AnonymousMapping;
use crate::memory::Backing;
use crate::{FabricError, Slab};

/// A slab's memory: registered for requests of this process; peers get regions of their own.
pub(super) struct DeviceMemory {
    // Dropped in this order: the device forgets the memory before it is unmapped.
    region: Region,
    mapping: AnonymousMapping,
}

impl DeviceMemory {
    /// # Errors
    /// When the memory cannot be mapped or pinned.
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Self, FabricError> {
        let refused = |source| FabricError::Memory { bytes, source };
        let mapping = AnonymousMapping::new(bytes).map_err(refused)?;
        mapping.keep_from_children();
        let (base, len) = (mapping.base().as_ptr(), mapping.len());
        // SAFETY: `region` is dropped before `mapping`; all accesses to slabs are atomic or by
        // unsafe functions whose callers know the protocol.
        let region = unsafe { Region::register(domain, base, len, domain.local_access(), false) };
        let region = region.map_err(|source| refused(explain(source, len)))?;
        Ok(Self { region, mapping })
    }

    /// # Errors
    /// As [`DeviceMemory::new`].
    pub(super) fn slab(domain: &Arc<Domain>, bytes: usize) -> Result<Slab, FabricError> {
        Ok(Slab::new(Arc::new(Self::new(domain, bytes)?)))
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}

// SAFETY: the mapping is owned, fixed, and mapped until drop; a page is a multiple of a cache line.
unsafe impl Backing for DeviceMemory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Says what to do where the limit of locked memory is in the way.
pub(super) fn explain(source: io::Error, bytes: usize) -> io::Error {
    let limit = getrlimit(Resource::Memlock).current;
    match (source.raw_os_error(), limit) {
        (Some(code), Some(limit)) if code == rustix::io::Errno::NOMEM.raw_os_error() => {
            io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "the limit of locked memory is {} KiB and {} KiB more were to be pinned; raise \
                     it with `ulimit -l unlimited`, in a container with `--ulimit memlock=-1`, in \
                     a systemd unit with `LimitMEMLOCK=infinity`",
                    limit / 1024,
                    bytes.div_ceil(1024),
                ),
            )
        }
        _ => source,
    }
}
