//! Memory that two processes share: a sealed memfd and its mapping.
//!
//! A memfd has no name, so that nothing is left behind when its processes die; its size is sealed,
//! so that no peer can shrink it under a mapping.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Backing;
use crate::token::Token;

/// From this size on huge pages are asked for.
const HUGE_BYTES: usize = 2 << 20;

/// A shared mapping of a whole memfd.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps a descriptor that came from a peer.
    ///
    /// # Errors
    /// When it is not a memfd of exactly this size whose size is sealed, or cannot be mapped.
    pub(super) fn of_peer(fd: BorrowedFd<'_>, bytes: usize, prefault: bool) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?;
        let size = rustix::fs::fstat(fd)?.st_size;
        if !sealed.contains(SealFlags::SHRINK) || usize::try_from(size).ok() != Some(bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::new(fd, bytes, prefault)
    }

    fn new(fd: BorrowedFd<'_>, bytes: usize, prefault: bool) -> io::Result<Self> {
        let mut flags = MapFlags::SHARED;
        let huge = bytes >= HUGE_BYTES;
        if prefault && !huge {
            flags |= MapFlags::POPULATE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base, bytes };
        if huge {
            mapping.advise(Advice::LinuxHugepage);
            if prefault {
                mapping.advise(Advice::LinuxPopulateWrite);
            }
        }
        Ok(mapping)
    }

    /// Tells the kernel a wish; older kernels may refuse, and nothing depends on it.
    fn advise(&self, advice: Advice) {
        // SAFETY: the whole of our own mapping; neither advice changes its contents.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    /// First byte; page aligned.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

// SAFETY: the mapping is owned memory at a fixed address; all accesses are atomic or by
// `unsafe`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A memfd and this process's mapping of it.
pub(super) struct SharedMemory {
    fd: OwnedFd,
    mapping: Mapping,
    /// Random, so that memory that was released is not taken for memory that came later.
    id: Token,
}

impl SharedMemory {
    /// Zeroed shared memory of exactly `bytes`.
    ///
    /// # Errors
    /// When the operating system refuses the memory.
    pub(super) fn new(bytes: usize, prefault: bool) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("millstream", flags)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(fd.as_fd(), bytes, prefault)?;
        Ok(Self { fd, mapping, id: Token::random()? })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn id(&self) -> Token {
        self.id
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

// SAFETY: the mapping is readable and writable, page aligned and lives as long as the value.
unsafe impl Backing for SharedMemory {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    fn len(&self) -> usize {
        self.mapping.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
