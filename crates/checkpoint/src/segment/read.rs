//! Segments are read as a stranger's: sections are where the layout says, or the segment is
//! refused.

use std::ops::Range;

use bytes::Bytes;

use super::{
    ENTRY_BYTES, FOOTER_BYTES_MAX, MAGIC, OPERATOR_BYTES_MAX, SECTION_ALIGN, SECTIONS_MAX,
    SEGMENT_BYTES_MAX, SEGMENT_VERSION, SectionEntry, TRAILER_BYTES, footer_crc,
};
use crate::error::CheckpointError;
use crate::record::SegmentEntry;
use crate::store::{ObjectName, Store};

/// Bytes at the end of a segment that are read first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes that are read at once where a whole segment is compared with its checksums.
const PIECE_BYTES: u64 = 8 << 20;

/// Reads the sections of a segment.
pub struct SegmentReader<'a> {
    store: &'a dyn Store,
    name: ObjectName,
    file: String,
    /// Bytes of the segment.
    length: u64,
    entries: Vec<SectionEntry>,
}

impl<'a> SegmentReader<'a> {
    /// Reads the footer of the segment that a record names.
    ///
    /// # Errors
    /// When it is missing, or is not the segment that was written.
    pub fn open(
        store: &'a dyn Store,
        name: ObjectName,
        entry: &SegmentEntry,
    ) -> Result<Self, CheckpointError> {
        let file = store.place(&name);
        let length = entry.bytes;
        if !(SECTION_ALIGN..=SEGMENT_BYTES_MAX).contains(&length) {
            let reason = format!("a segment cannot have {length} bytes, as its record says");
            return Err(CheckpointError::damaged(&file, 0, reason));
        }
        let mut from = length.saturating_sub(TAIL_BYTES);
        // One byte more, which must not be there.
        let mut tail = get(store, &name, &file, from..length + 1)?;
        check_length(&file, from, tail.len() as u64, length)?;
        let footer = trailer(&file, &tail, length)?;
        if footer.crc != entry.crc {
            let reason = "its checksum is not that of the checkpoint's record";
            return Err(CheckpointError::damaged(&file, length - TRAILER_BYTES as u64, reason));
        }
        if footer.range.start < from {
            from = footer.range.start;
            tail = get(store, &name, &file, from..length)?;
            check_length(&file, from, tail.len() as u64, length)?;
        }
        let bytes = &tail[(footer.range.start - from) as usize..(footer.range.end - from) as usize];
        let entries = entries(&file, bytes, &footer)?;
        Ok(Self { store, name, file, length, entries })
    }

    /// The sections, in the order in which they were written.
    #[must_use]
    pub fn sections(&self) -> &[SectionEntry] {
        &self.entries
    }

    /// The bytes of a section.
    ///
    /// # Errors
    /// When they cannot be read or are not those that were written.
    pub fn read(&self, section: &SectionEntry) -> Result<Bytes, CheckpointError> {
        read_section(self.store, &self.name, section)
    }

    /// Compares every byte with what was written, in pieces, and gives how many there are.
    ///
    /// # Errors
    /// The first byte, or the beginning of the first section, that is not as it was written.
    pub fn verify(&self) -> Result<u64, CheckpointError> {
        let mut header = [&MAGIC[..], &SEGMENT_VERSION.to_le_bytes()].concat();
        header.resize(SECTION_ALIGN as usize, 0);
        let found = get(self.store, &self.name, &self.file, 0..SECTION_ALIGN)?;
        if let Some(at) = header.iter().zip(&found).position(|(written, read)| written != read) {
            let reason = "its beginning is not that of a segment";
            return Err(CheckpointError::damaged(&self.file, at as u64, reason));
        }
        for section in &self.entries {
            self.verify_section(section)?;
        }
        Ok(self.length)
    }

    /// A section and the zeros behind it.
    fn verify_section(&self, section: &SectionEntry) -> Result<(), CheckpointError> {
        let end = section.offset + section.bytes;
        let padded = end.next_multiple_of(SECTION_ALIGN);
        let (mut at, mut crc) = (section.offset, 0);
        while at < padded {
            let until = padded.min(at + PIECE_BYTES);
            let piece = get(self.store, &self.name, &self.file, at..until)?;
            check_length(&self.file, at, piece.len() as u64, until)?;
            let (rows, zeros) = piece.split_at(end.saturating_sub(at).min(until - at) as usize);
            crc = crc32c::crc32c_append(crc, rows);
            if let Some(wrong) = zeros.iter().position(|&byte| byte != 0) {
                let at = at + (rows.len() + wrong) as u64;
                let reason = "something was written between two sections";
                return Err(CheckpointError::damaged(&self.file, at, reason));
            }
            at = until;
        }
        if crc == section.crc { Ok(()) } else { Err(wrong_sum(&self.file, section)) }
    }
}

fn wrong_sum(file: &str, section: &SectionEntry) -> CheckpointError {
    let SectionEntry { operator, part, offset, bytes, .. } = section;
    let reason = format!(
        "the checksum of part {part} of operator '{operator}', {bytes} bytes from here, is \
         another one"
    );
    CheckpointError::damaged(file, *offset, reason)
}

/// The bytes of a section of the segment `name`, whose footer has been read.
///
/// # Errors
/// When they cannot be read or are not those that were written.
pub(crate) fn read_section(
    store: &dyn Store,
    name: &ObjectName,
    section: &SectionEntry,
) -> Result<Bytes, CheckpointError> {
    if section.bytes == 0 {
        return Ok(Bytes::new());
    }
    let file = store.place(name);
    let range = section.offset..section.offset.saturating_add(section.bytes);
    let bytes = get(store, name, &file, range)?;
    if bytes.len() as u64 != section.bytes {
        let at = section.offset + bytes.len() as u64;
        return Err(CheckpointError::damaged(&file, at, "it ends here, within a section"));
    }
    if crc32c::crc32c(&bytes) != section.crc {
        return Err(wrong_sum(&file, section));
    }
    Ok(bytes)
}

/// Some bytes of an object that must be there.
fn get(
    store: &dyn Store,
    name: &ObjectName,
    file: &str,
    range: Range<u64>,
) -> Result<Bytes, CheckpointError> {
    let missing = || CheckpointError::Missing { file: file.to_owned() };
    store.get(name, Some(range))?.ok_or_else(missing)
}

/// Refuses a segment that ends elsewhere than its record says.
fn check_length(file: &str, from: u64, bytes: u64, length: u64) -> Result<(), CheckpointError> {
    let ends = from + bytes;
    if ends == length {
        return Ok(());
    }
    let reason = if ends < length {
        format!("it ends here, and was written with {length} bytes")
    } else {
        format!("it goes on here, and was written with {length} bytes")
    };
    Err(CheckpointError::damaged(file, ends.min(length), reason))
}

/// Where a footer lies, and its checksum.
pub(super) struct FooterPlace {
    pub(super) range: Range<u64>,
    pub(super) crc: u32,
}

/// The trailer at the end of `tail`, which is the end of a segment of `length` bytes.
pub(super) fn trailer(
    file: &str,
    tail: &[u8],
    length: u64,
) -> Result<FooterPlace, CheckpointError> {
    let at = length.saturating_sub(TRAILER_BYTES as u64);
    let damaged = |reason: &str| CheckpointError::damaged(file, at, reason);
    let Some((_, trailer)) = tail.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(damaged("it is too short for a segment"));
    };
    let [a, b, c, d, e, f, g, h, v, w, magic @ ..] = *trailer;
    if magic != *MAGIC {
        return Err(damaged("its end is not that of a segment"));
    }
    let version = u16::from_le_bytes([v, w]);
    if version == 0 || version > SEGMENT_VERSION {
        let (file, newest) = (file.to_owned(), SEGMENT_VERSION.into());
        return Err(CheckpointError::Version { file, version: version.into(), newest });
    }
    let bytes = u64::from(u32::from_le_bytes([e, f, g, h]));
    let room = at.saturating_sub(SECTION_ALIGN);
    if bytes > room.min(FOOTER_BYTES_MAX as u64) {
        return Err(damaged("its footer is longer than there is room"));
    }
    Ok(FooterPlace { range: at - bytes..at, crc: u32::from_le_bytes([a, b, c, d]) })
}

/// The entries of a footer, which must describe the layout that a writer makes.
pub(super) fn entries(
    file: &str,
    footer: &[u8],
    place: &FooterPlace,
) -> Result<Vec<SectionEntry>, CheckpointError> {
    let start = place.range.start;
    if footer_crc(footer, footer.len() as u32, SEGMENT_VERSION) != place.crc {
        return Err(CheckpointError::damaged(file, start, "the checksum of its footer is wrong"));
    }
    let mut fields = Fields { rest: footer };
    let damaged = |rest: usize, reason: &str| {
        CheckpointError::damaged(file, start + (footer.len() - rest) as u64, reason)
    };
    let count = fields.u32().ok_or_else(|| damaged(0, "its footer has no count"))? as usize;
    if count > SECTIONS_MAX || count > fields.rest.len() / ENTRY_BYTES {
        return Err(damaged(fields.rest.len(), "its footer has fewer sections than it says"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut expected = SECTION_ALIGN;
    for _ in 0..count {
        let rest = fields.rest.len();
        let entry = fields.entry().ok_or_else(|| damaged(rest, "an entry of its footer is cut"))?;
        let end = entry.offset.checked_add(entry.bytes).filter(|&end| end <= start);
        let Some(end) = end.filter(|_| entry.offset == expected) else {
            return Err(damaged(rest, "a section is not where the one before it ends"));
        };
        expected = end.next_multiple_of(SECTION_ALIGN);
        entries.push(entry);
    }
    if expected != start || !fields.rest.is_empty() {
        let reason = "its footer does not begin where the last section ends";
        return Err(damaged(fields.rest.len(), reason));
    }
    Ok(entries)
}

struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn entry(&mut self) -> Option<SectionEntry> {
        let length = usize::from(u16::from_le_bytes(self.take()?));
        if length > OPERATOR_BYTES_MAX {
            return None;
        }
        let (operator, rest) = self.rest.split_at_checked(length)?;
        let operator = std::str::from_utf8(operator).ok()?.to_owned();
        self.rest = rest;
        Some(SectionEntry {
            operator,
            part: self.u32()?,
            rows: self.u64()?,
            offset: self.u64()?,
            bytes: self.u64()?,
            crc: self.u32()?,
        })
    }
}
