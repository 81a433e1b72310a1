//! Memory that a device knows: pinned once, on huge pages where there are any.

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::objects::{Domain, Region};
use crate::memory::Backing;
use crate::{FabricError, Slab};

/// Bytes of a huge page; smaller slabs are not worth one.
const HUGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// A private anonymous mapping.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// At least `bytes` of zeroed memory, on huge pages if there are some to be had.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let huge = bytes.checked_next_multiple_of(HUGE_BYTES).filter(|_| bytes >= HUGE_BYTES);
        // By size: the default one may be larger, 512 MiB on some ARM, and is not unmapped in
        // parts.
        let flags = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        if let Some(mapping) = huge.and_then(|bytes| Self::map(bytes, flags).ok()) {
            return Ok(mapping);
        }
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let mapping = Self::map(bytes.ok_or(io::ErrorKind::OutOfMemory)?, MapFlags::empty())?;
        if mapping.bytes >= HUGE_BYTES {
            mapping.advise(Advice::LinuxHugepage);
        }
        Ok(mapping)
    }

    fn map(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other
        // memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, access, flags | MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base, bytes };
        // A child must not share pinned pages: copying on write would move them away from us.
        mapping.advise(Advice::LinuxDontFork);
        Ok(mapping)
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: exactly the mapping; neither advice in use changes what it contains. A kernel
        // that does not know the advice refuses it, and nothing depends on it.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and unmapped once.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the mapping is owned memory without thread affinity; accesses go through `Slab` or the
// device.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A slab's memory: registered for requests of this process; peers get regions of their own.
pub(super) struct DeviceMemory {
    // Dropped in this order: the device forgets the memory before it is unmapped.
    region: Region,
    mapping: Mapping,
}

impl DeviceMemory {
    /// # Errors
    /// When the memory cannot be mapped or pinned.
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Self, FabricError> {
        let refused = |source| FabricError::Memory { bytes, source };
        let mapping = Mapping::new(bytes).map_err(refused)?;
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
