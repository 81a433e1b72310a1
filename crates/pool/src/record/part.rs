//! What a server holds for another one, as it saves it: what a file of it says.
//!
//! ```text
//! 'MSPARTS' | format u8 | identity u64 and name of the other server
//! extents {number u32, used u32, crc u32}, numbers rise | crc u32 of all
//! ```

use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::home::{HeldPart, PART_EXTENTS_MAX};

/// The beginning of a file, and the number of this format.
const MAGIC: &[u8; 7] = b"MSPARTS";
const FORMAT: u8 = 1;

/// Bytes of a file at most, with room for the name.
pub const PART_BYTES_MAX: u64 = 12 * PART_EXTENTS_MAX as u64 + (16 << 10);

/// A part with the checksums of its extents, in their order.
pub fn encode(part: &HeldPart, sums: &[u32]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.0.extend_from_slice(MAGIC);
    out.u8(FORMAT);
    out.u64(part.owner);
    out.text(&part.name);
    let extents: Vec<_> = part.extents.iter().zip(sums).collect();
    out.list(&extents, |out, ((number, used), sum)| {
        [*number, *used, **sum].into_iter().for_each(|field| out.u32(field));
    });
    out.u32(crc32c::crc32c(&out.0));
    out.0
}

/// The part of a file, and the checksums of its extents.
///
/// # Errors
/// [`PoolError::Malformed`] when the bytes are not whole, or name an extent twice.
pub fn decode(bytes: &[u8]) -> Result<(HeldPart, Vec<u32>), PoolError> {
    let malformed = PoolError::Malformed { what: "saved part" };
    let (body, sum) = bytes.split_last_chunk().ok_or(malformed.clone())?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(malformed);
    }
    let mut from = FieldReader::new(body, "saved part");
    if from.take(MAGIC.len())? != MAGIC || from.u8()? != FORMAT {
        return Err(malformed);
    }
    let (owner, name) = (from.u64()?, from.text()?);
    let extents =
        from.list(PART_EXTENTS_MAX, |from| Ok(((from.u32()?, from.u32()?), from.u32()?)))?;
    from.end()?;
    let (extents, sums): (Vec<(u32, u32)>, Vec<u32>) = extents.into_iter().unzip();
    if !extents.is_sorted_by(|one, next| one.0 < next.0) {
        return Err(malformed);
    }
    Ok((HeldPart { owner, name, extents, client: None }, sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(extents: Vec<(u32, u32)>) -> HeldPart {
        HeldPart { owner: 1 << 60, name: "café".into(), extents, client: None }
    }

    #[test]
    fn a_part_is_read_as_it_was_saved() {
        for extents in [vec![], vec![(7, 64)], vec![(0, 1), (u32::MAX, u32::MAX)]] {
            let sums: Vec<u32> = (0..extents.len() as u32).collect();
            let bytes = encode(&part(extents.clone()), &sums);
            assert_eq!(decode(&bytes), Ok((part(extents), sums)));
        }
        for twice in [vec![(7, 64), (7, 64)], vec![(8, 1), (7, 1)]] {
            assert!(decode(&encode(&part(twice), &[1, 2])).is_err());
        }
    }

    #[test]
    fn every_prefix_and_every_damage_is_refused() {
        let bytes = encode(&part(vec![(3, 64), (9, 1)]), &[11, 12]);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode(&damaged).is_err(), "bit {at}");
        }
    }
}
