//! Zeroed memory that the system maps for this process alone: in huge pages, where it is large
//! enough and the system has some.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page; smaller slabs are not worth one.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// A private anonymous mapping.
pub(crate) struct AnonymousMapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl AnonymousMapping {
    /// At least `bytes` of zeroed memory, on huge pages if there are some to be had.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
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
        Ok(Self { base, bytes })
    }

    /// A child that is forked does not have it. Memory that a device has pinned must not be shared
    /// with one: copying on write would move it away from us.
    pub(crate) fn keep_from_children(&self) {
        self.advise(Advice::LinuxDontFork);
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: exactly the mapping; no advice in use changes what it contains. A kernel
        // that does not know the advice refuses it, and nothing depends on it.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    /// First byte; page aligned.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes: at least those that were asked for.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and unmapped once.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the mapping is owned memory without thread affinity; accesses go through `Slab` or the
// device.
unsafe impl Send for AnonymousMapping {}
// SAFETY: as above.
unsafe impl Sync for AnonymousMapping {}

/// Bytes of these ranges of addresses, which do not overlap, that lie in huge pages now: what was
/// never touched lies in none. 0 where the system does not tell.
pub(crate) fn huge_bytes(ranges: &[Range<usize>]) -> u64 {
    std::fs::read_to_string("/proc/self/smaps").map_or(0, |smaps| huge_of(&smaps, ranges))
}

fn huge_of(smaps: &str, ranges: &[Range<usize>]) -> u64 {
    let (mut sum, mut left) = (0, 0);
    for line in smaps.lines() {
        if let Some(mapped) = mapped(line) {
            // A mapping of others may have grown together with one of ours.
            let shared = |range: &Range<usize>| {
                range.end.min(mapped.end).saturating_sub(range.start.max(mapped.start))
            };
            left = ranges.iter().map(shared).sum::<usize>() as u64;
        } else if let Some(bytes) = huge_in(line) {
            let ours = bytes.min(left);
            (sum, left) = (sum + ours, left - ours);
        }
    }
    sum
}

/// The addresses of a mapping, with which its lines begin.
fn mapped(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

/// Bytes of a mapping in huge pages of one kind, if the line says that.
fn huge_in(line: &str) -> Option<u64> {
    let (name, value) = line.split_once(':')?;
    let kinds =
        ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"];
    let kib = value.trim().strip_suffix(" kB").filter(|_| kinds.contains(&name))?;
    kib.parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_mappings_counts_where_they_are_ours() {
        let (base, end) = (0x7f00_0000_0000, 0x7f00_0000_0000 + 2 * HUGE_BYTES);
        let lines = |from: usize, to: usize, kib: u64| {
            format!(
                "{from:x}-{to:x} rw-p 00000000 00:00 0 \nRss: 99999 kB\nAnonHugePages: {kib} kB\n\
                 Shared_Hugetlb: 0 kB\nVmFlags: rd wr\n"
            )
        };
        let ours = base..end;
        let of = |smaps: &str| huge_of(smaps, std::slice::from_ref(&ours));
        assert_eq!(of(&lines(base, end, 2048)), 2 << 20);
        assert_eq!(of(&lines(base, end, 0)), 0);
        assert_eq!(of(&lines(base - 4096, end + 4096, 9999)), 4 << 20, "not more than ours");
        assert_eq!(of(&lines(end, end + 4096, 2048)), 0, "of others");
        let halves = [lines(base, base + HUGE_BYTES, 2048), lines(base + HUGE_BYTES, end, 2048)];
        assert_eq!(of(&halves.concat()), 4 << 20);
        for odd in ["", "x", "-", "1-2", "AnonHugePages: x kB", "AnonHugePages: 5"] {
            assert_eq!(of(odd), 0, "{odd}");
        }
        assert_eq!(huge_of(&lines(base, end, 2048), &[]), 0);
    }
}
