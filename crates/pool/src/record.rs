//! A version as a server saves it: what a file of it says.
//!
//! ```text
//! 'MSSAVED' | format u8 | table | crc u32 of this head
//! load u64 | statement {job u128, number u32} | goes on u8 | sums {crc u32 of each own extent}
//! manifest | crc u32 of all
//! ```
//!
//! The name has a checksum of its own, so that a file with damage behind it still says whose it is.

use std::sync::Arc;

use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::home::SavedVersion;
use crate::manifest::{EXTENTS_MAX, Manifest};
use crate::wire::StatementId;

pub mod part;

/// The beginning of a file, and the number of this format.
const MAGIC: &[u8; 7] = b"MSSAVED";
const FORMAT: u8 = 1;

/// Bytes of a checksum.
const SUM_BYTES: usize = 4;

/// A version with the checksums of its own extents, in the order of its manifest.
pub fn encode(version: &SavedVersion, sums: &[u32]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.0.extend_from_slice(MAGIC);
    out.u8(FORMAT);
    out.text(&version.manifest.table);
    out.u32(crc32c::crc32c(&out.0));
    out.u64(version.load);
    out.u128(version.snapshot.job);
    out.u32(version.snapshot.statement);
    out.u8(version.goes_on.into());
    out.list(sums, |out, sum| out.u32(*sum));
    out.bytes(&version.bytes);
    out.u32(crc32c::crc32c(&out.0));
    out.0
}

/// The table of a file, if its head is whole.
pub fn table(bytes: &[u8]) -> Option<String> {
    head(bytes).ok().map(|(table, _)| table)
}

fn head(bytes: &[u8]) -> Result<(String, FieldReader<'_>), PoolError> {
    let mut from = FieldReader::new(bytes, "saved version");
    if from.take(MAGIC.len())? != MAGIC || from.u8()? != FORMAT {
        return Err(from.malformed());
    }
    let table = from.text()?;
    let length = MAGIC.len() + 1 + SUM_BYTES + table.len();
    if from.u32()? != crc32c::crc32c(&bytes[..length]) {
        return Err(from.malformed());
    }
    Ok((table, from))
}

/// The version of a file, and the checksums of its own extents.
///
/// # Errors
/// [`PoolError::Malformed`] when the bytes are not whole, or do not agree with each other.
pub fn decode(bytes: &[u8]) -> Result<(SavedVersion, Vec<u32>), PoolError> {
    let malformed = PoolError::Malformed { what: "saved version" };
    let (body, sum) = bytes.split_last_chunk::<SUM_BYTES>().ok_or(malformed.clone())?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(malformed);
    }
    let (table, mut from) = head(body)?;
    let load = from.u64()?;
    let snapshot = StatementId { job: from.u128()?, statement: from.u32()? };
    let goes_on = match from.u8()? {
        0 => false,
        1 => true,
        _ => return Err(malformed),
    };
    let sums = from.list(EXTENTS_MAX, FieldReader::u32)?;
    let bytes = from.bytes()?.to_vec();
    from.end()?;
    let manifest = Manifest::decode(&bytes)?;
    if manifest.table != table || manifest.own_extents().count() != sums.len() {
        return Err(malformed);
    }
    let (manifest, bytes) = (Arc::new(manifest), Arc::new(bytes));
    Ok((SavedVersion { load, snapshot, manifest, bytes, goes_on }, sums))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Block, Codec, Definition, Layout, Strip};
    use crate::pointer::{ExtentId, Pointer};

    fn version() -> SavedVersion {
        let extent = ExtentId { server: 0, number: 7 };
        let at = Pointer { extent, offset: 0 };
        let block = Block { at, bytes: 9, codec: Codec::Plain, nulls: 0, least: 0, greatest: 1 };
        let (columns, buckets) = (vec![Layout::Fixed(1)], vec![]);
        let manifest = Manifest {
            table: "café".into(),
            version: 3,
            definition: Definition { schema: vec![1], columns, buckets, strip_rows: 64 },
            strips: vec![Strip { rows: 9, blocks: vec![block] }],
            partitions: vec![0, 1],
            extents: vec![(extent, 64)],
            holders: vec![],
            origin: None,
        };
        let bytes = Arc::new(manifest.encode());
        let snapshot = StatementId { job: 1 << 100, statement: 4 };
        SavedVersion { load: 5, snapshot, manifest: Arc::new(manifest), bytes, goes_on: true }
    }

    #[test]
    fn a_version_is_read_as_it_was_saved() {
        let bytes = encode(&version(), &[11]);
        assert_eq!(decode(&bytes), Ok((version(), vec![11])));
        assert_eq!(table(&bytes).as_deref(), Some("café"));
        assert!(decode(&encode(&version(), &[])).is_err(), "a sum is missing");
    }

    #[test]
    fn every_prefix_and_every_damage_is_refused_and_the_name_is_told_while_it_is_whole() {
        let bytes = encode(&version(), &[11]);
        let head = 8 + 4 + "café".len() + 4;
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
            assert_eq!(table(&bytes[..len]).is_some(), len >= head, "cut to {len}");
        }
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode(&damaged).is_err(), "bit {at}");
            assert_eq!(table(&damaged).is_some(), at / 8 >= head, "bit {at}");
        }
    }
}
