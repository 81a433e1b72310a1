//! Segments: files with the state of operators.
//!
//! ```text
//! 0    'MSSEG\0' | version u16 | zeros up to 64
//! 64   section | zeros up to a multiple of 64 | section | …
//!      footer   count u32 | {operator: length u16, text; part u32; rows u64;
//!               offset u64; bytes u64; crc32c u32} …
//!      trailer  crc32c u32 | footer's bytes u32 | version u16 | 'MSSEG\0'
//! ```
//!
//! Numbers are little-endian. Each section begins where the one before it ends, at the next
//! multiple of 64. The checksum of the trailer is that of the footer, of its length and of the
//! version. The record that names a segment has the same checksum, and the segment's size: another
//! segment, or a stale one, is not taken for it. What a section means is the caller's. The
//! checksum of a section is compared before its bytes are used.

mod read;

use bytes::Bytes;

use crate::error::CheckpointError;

pub use read::SegmentReader;
pub(crate) use read::read_section;

/// The version of the format that is written.
pub const SEGMENT_VERSION: u16 = 1;
/// Sections of a segment at most.
pub const SECTIONS_MAX: usize = 1 << 20;
/// Bytes of an operator's name at most.
pub const OPERATOR_BYTES_MAX: usize = 1024;
/// Bytes of a footer at most.
pub const FOOTER_BYTES_MAX: usize = 64 << 20;
/// Bytes of a segment at most.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 44;
/// Sections begin at multiples of it.
pub const SECTION_ALIGN: u64 = 64;

const MAGIC: &[u8; 6] = b"MSSEG\0";
/// Bytes of the trailer.
const TRAILER_BYTES: usize = 16;
/// Bytes of an entry of the footer, without the operator's name.
const ENTRY_BYTES: usize = 2 + 4 + 3 * 8 + 4;

/// A section, as the footer describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionEntry {
    /// The operator, by the name that outlives edits of the SQL.
    pub operator: String,
    /// The part of its state, as the operator numbers them.
    pub part: u32,
    /// Its rows, as the writer counted them.
    pub rows: u64,
    /// Where it begins, in bytes from the beginning of the segment.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Their CRC32C.
    pub crc: u32,
}

/// Collects sections for a segment. It copies none of their bytes.
#[derive(Debug)]
pub struct SegmentWriter {
    parts: Vec<Bytes>,
    entries: Vec<SectionEntry>,
    /// Bytes of `parts`.
    length: u64,
}

/// A segment that can be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedSegment {
    /// Its bytes, one part behind the other, without those that were taken from its writer.
    pub parts: Vec<Bytes>,
    /// The number of its bytes, with those that were taken from its writer.
    pub bytes: u64,
    /// The checksum for [`SegmentEntry::crc`](crate::SegmentEntry::crc).
    pub crc: u32,
}

impl Default for SegmentWriter {
    fn default() -> Self {
        let header = [&MAGIC[..], &SEGMENT_VERSION.to_le_bytes()].concat();
        let length = header.len() as u64;
        Self { parts: vec![header.into()], entries: Vec::new(), length }
    }
}

impl SegmentWriter {
    /// Appends a section: `bytes`, one part behind the other.
    ///
    /// # Errors
    /// When the operator's name, the number of sections or the segment exceeds its bound.
    pub fn section(
        &mut self,
        operator: &str,
        part: u32,
        rows: u64,
        bytes: Vec<Bytes>,
    ) -> Result<(), CheckpointError> {
        if operator.len() > OPERATOR_BYTES_MAX {
            return Err(CheckpointError::invalid(format!(
                "the name of an operator has {} bytes, and {OPERATOR_BYTES_MAX} are allowed",
                operator.len()
            )));
        }
        if self.entries.len() == SECTIONS_MAX {
            let reason = format!("a segment has {SECTIONS_MAX} sections at most");
            return Err(CheckpointError::invalid(reason));
        }
        self.align();
        let offset = self.length;
        let crc = bytes.iter().fold(0, |crc, bytes| crc32c::crc32c_append(crc, bytes));
        for bytes in bytes {
            self.push(bytes);
        }
        if self.length > SEGMENT_BYTES_MAX {
            let reason = format!("a segment has {SEGMENT_BYTES_MAX} bytes at most");
            return Err(CheckpointError::invalid(reason));
        }
        let (operator, bytes) = (operator.to_owned(), self.length - offset);
        self.entries.push(SectionEntry { operator, part, rows, offset, bytes, crc });
        Ok(())
    }

    /// The section that was appended last.
    #[must_use]
    pub fn last(&self) -> Option<&SectionEntry> {
        self.entries.last()
    }

    /// The number of bytes that [`take`](Self::take) would give.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Takes the bytes that were appended since the last call.
    pub fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.parts)
    }

    /// The segment with its footer, without the bytes that were taken.
    ///
    /// # Errors
    /// When the footer exceeds [`FOOTER_BYTES_MAX`].
    pub fn finish(mut self) -> Result<EncodedSegment, CheckpointError> {
        self.align();
        let mut footer = (self.entries.len() as u32).to_le_bytes().to_vec();
        for entry in &self.entries {
            footer.extend_from_slice(&(entry.operator.len() as u16).to_le_bytes());
            footer.extend_from_slice(entry.operator.as_bytes());
            footer.extend_from_slice(&entry.part.to_le_bytes());
            for number in [entry.rows, entry.offset, entry.bytes] {
                footer.extend_from_slice(&number.to_le_bytes());
            }
            footer.extend_from_slice(&entry.crc.to_le_bytes());
        }
        if footer.len() > FOOTER_BYTES_MAX {
            let reason = format!("a footer has {FOOTER_BYTES_MAX} bytes at most");
            return Err(CheckpointError::invalid(reason));
        }
        let length = footer.len() as u32;
        let crc = footer_crc(&footer, length, SEGMENT_VERSION);
        footer.extend_from_slice(&crc.to_le_bytes());
        footer.extend_from_slice(&length.to_le_bytes());
        footer.extend_from_slice(&SEGMENT_VERSION.to_le_bytes());
        footer.extend_from_slice(MAGIC);
        self.push(footer.into());
        Ok(EncodedSegment { parts: self.parts, bytes: self.length, crc })
    }

    fn push(&mut self, bytes: Bytes) {
        self.length += bytes.len() as u64;
        self.parts.push(bytes);
    }

    /// Zeros up to the next multiple of [`SECTION_ALIGN`].
    fn align(&mut self) {
        const ZEROS: [u8; SECTION_ALIGN as usize] = [0; SECTION_ALIGN as usize];
        let padding = self.length.next_multiple_of(SECTION_ALIGN) - self.length;
        if padding > 0 {
            self.push(Bytes::from_static(&ZEROS[..padding as usize]));
        }
    }
}

/// These bytes with the checksum in their trailer put right, and that checksum, where they end as a
/// segment does: for fuzz targets.
pub(crate) fn with_checksum(bytes: &[u8]) -> (Vec<u8>, u32) {
    let mut bytes = bytes.to_vec();
    let end = bytes.len().saturating_sub(TRAILER_BYTES);
    let Some((_, trailer)) = bytes.split_last_chunk::<TRAILER_BYTES>() else { return (bytes, 0) };
    let [_, _, _, _, a, b, c, d, v, w, ..] = *trailer;
    let (length, version) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([v, w]));
    let start = end.saturating_sub(length as usize);
    let crc = footer_crc(&bytes[start..end], length, version);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    (bytes, crc)
}

/// The checksum of a trailer.
fn footer_crc(footer: &[u8], length: u32, version: u16) -> u32 {
    let crc = crc32c::crc32c(footer);
    let crc = crc32c::crc32c_append(crc, &length.to_le_bytes());
    crc32c::crc32c_append(crc, &version.to_le_bytes())
}

#[cfg(test)]
mod tests;
