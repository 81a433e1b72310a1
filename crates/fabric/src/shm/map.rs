//! Memory that two processes share: a memfd and its mappings.
//!
//! A memfd has no name, so that nothing is left behind when its processes die. Its size is sealed,
//! so that no peer can shrink it under a mapping. That it is never written again can be sealed
//! later: the kernel refuses that while anybody has it mapped for writing.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::limits::refused;
use super::registry;
use crate::mapped::Unchanging;
use crate::token::Token;
use crate::{Backing, FabricError};

/// From this size on huge pages are asked for.
const HUGE_BYTES: usize = 2 << 20;

/// The use of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Bytes of users, which both sides may write.
    Write,
    /// Bytes of users that this process does not write.
    Read,
    /// Such bytes, that nobody writes any more.
    Sealed,
    /// Words of the transport, of which few are touched.
    WriteWords,
    /// Such words, which this process does not write.
    ReadWords,
}

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
    pub(super) fn of_peer(
        fd: BorrowedFd<'_>,
        bytes: usize,
        access: Access,
        prefault: bool,
    ) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?;
        let size = rustix::fs::fstat(fd)?.st_size;
        if !sealed.contains(SealFlags::SHRINK) || usize::try_from(size).ok() != Some(bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::new(fd, bytes, access, prefault)
    }

    fn new(fd: BorrowedFd<'_>, bytes: usize, access: Access, prefault: bool) -> io::Result<Self> {
        // Before Linux 6.7 what is sealed against writing cannot be mapped as shared, not even to
        // be read. A private mapping of it is the same memory: nobody writes it.
        let private = access == Access::Sealed;
        let mut flags = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let words = matches!(access, Access::WriteWords | Access::ReadWords);
        let huge = bytes >= HUGE_BYTES && !words;
        if prefault && !huge {
            flags |= MapFlags::POPULATE;
        }
        let (protection, touch) = match access {
            Access::Write | Access::WriteWords => {
                (ProtFlags::READ | ProtFlags::WRITE, Advice::LinuxPopulateWrite)
            }
            Access::Read | Access::Sealed | Access::ReadWords => {
                (ProtFlags::READ, Advice::LinuxPopulateRead)
            }
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes.max(1), protection, flags, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base, bytes };
        if huge {
            mapping.advise(Advice::LinuxHugepage);
            if prefault {
                mapping.advise(touch);
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
        Self::with(bytes, Access::Write, prefault)
    }

    fn with(bytes: usize, access: Access, prefault: bool) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("millstream", flags)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let mapping = Mapping::new(fd.as_fd(), bytes, access, prefault)?;
        Ok(Self { fd, mapping, id: Token::random()? })
    }

    /// Zeroed memory for words of the transport, of which few are touched.
    ///
    /// # Errors
    /// As [`SharedMemory::new`].
    pub(super) fn of_words(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, Access::WriteWords, false)
    }

    /// Zeroed memory for a registry: this mapping alone writes it, for ever.
    ///
    /// # Errors
    /// As [`SharedMemory::new`].
    pub(super) fn of_registry() -> io::Result<Self> {
        let memory = Self::of_words(registry::BYTES)?;
        rustix::fs::fcntl_add_seals(&memory.fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(memory)
    }

    /// A descriptor by which the memory can be mapped to be read, and not to be written.
    ///
    /// # Errors
    /// When there are no descriptors left, or `/proc` is missing.
    pub(super) fn to_read(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
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

    /// The descriptor of the memory, for [`SharedMemory::sealed`], when it is not mapped any more.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// The memory, mapped to be read, and sealed against writing by anybody for ever.
    ///
    /// # Errors
    /// [`FabricError::StillWritable`] while somebody has it mapped for writing, and
    /// [`FabricError::Memory`] when it cannot be mapped.
    pub(super) fn sealed(fd: OwnedFd, bytes: usize) -> Result<Self, FabricError> {
        match rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SEAL) {
            Ok(()) => {}
            Err(Errno::BUSY) => {
                return Err(FabricError::StillWritable { bytes, writer: "another process" });
            }
            Err(errno) => return Err(refused(bytes, errno.into())),
        }
        let mapping = Mapping::new(fd.as_fd(), bytes, Access::Sealed, false);
        let mapping = mapping.map_err(|source| refused(bytes, source))?;
        let id = Token::random().map_err(|source| refused(bytes, source))?;
        Ok(Self { fd, mapping, id })
    }
}

// SAFETY: the mapping is page aligned and lives as long as the value; it is readable, and writable
// unless it is sealed, which the slab over it says.
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

/// Published memory of a peer, mapped to be read.
pub(super) struct PublishedMemory {
    mapping: Mapping,
    /// Nobody writes it any more: the kernel says so.
    sealed: bool,
}

impl PublishedMemory {
    /// # Errors
    /// As [`Mapping::of_peer`].
    pub(super) fn new(fd: BorrowedFd<'_>, bytes: usize, prefault: bool) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::WRITE);
        let access = if sealed { Access::Sealed } else { Access::Read };
        let mapping = Mapping::of_peer(fd, bytes, access, prefault)?;
        Ok(Self { mapping, sealed })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed
    }
}

// SAFETY: mapped until it is dropped. A memfd that is sealed against writing has no writable
// mapping anywhere, gets none, and keeps its size and its pages; only such memory is handed out as
// this.
unsafe impl Unchanging for PublishedMemory {
    fn base(&self) -> NonNull<u8> {
        assert!(self.sealed, "memory that may change is read by copies");
        self.mapping.base
    }

    fn len(&self) -> usize {
        self.mapping.bytes
    }
}
