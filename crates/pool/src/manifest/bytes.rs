//! Definitions, strips and manifests as bytes.
//!
//! ```text
//! manifest    'MSPOOL' | format u16 | table | version u64 | definition
//!             strips | partitions | extents | holders | origin | crc u32
//! definition  schema | columns {layout} | buckets {column u16, bits u8, family u8}
//!             rows of a strip u32
//! strip       rows u32 | blocks {server u16, extent u32, offset u32, bytes u32, codec u8,
//!             width u8, nulls u32, least i64, greatest i64}
//! holder      server u16 | name | identity u64
//! origin      name | mark u64
//! ```
//!
//! Lists and texts have their length in front, in 32 bits. Format 1 has neither holders nor an
//! origin, format 3 has an origin behind an empty list of holders, and format 4 has holders and,
//! behind a flag of 8 bits, an origin. Format 2 is not written any more: it was never saved.

use std::collections::BTreeSet;

use super::{
    Block, Buckets, CachedOrigin, Codec, Definition, ExtentHolder, KeyFamily, Layout, Manifest,
    NODE_BYTES_MAX, PARTITIONS_MAX, STRIP_ROWS_MAX, Strip,
};
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::pointer::{BLOCK_ALIGN, ExtentId, Pointer};

/// The beginning of a manifest, and the number of this format.
const MAGIC: &[u8; 6] = b"MSPOOL";
const FORMAT: u16 = 1;
/// The number of a format that has an origin behind an empty list of holders.
const FORMAT_OF_CACHE: u16 = 3;
/// The number of a format that has holders, and an origin or none.
const FORMAT_OF_SEVERAL: u16 = 4;

/// Bytes of the description of a table's columns at most.
pub const SCHEMA_BYTES_MAX: usize = 4 << 20;
/// Columns of a table at most.
pub const COLUMNS_MAX: usize = 65_535;
/// Columns by which a table is partitioned at most: each has two buckets or more.
pub const BUCKETS_MAX: usize = 16;
/// Strips of a version at most.
pub const STRIPS_MAX: usize = 1 << 26;
/// Extents of a version at most.
pub const EXTENTS_MAX: usize = 1 << 20;
/// Servers beside the one that has a table, over which its extents are spread, at most.
pub const HOLDERS_MAX: usize = 255;
/// Bytes of the name of an origin at most.
pub const ORIGIN_BYTES_MAX: usize = 4096;
/// Bytes of a manifest at most: a client takes no more from a server that it does not know.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 30;

impl Definition {
    /// Bytes that it has in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.schema.len() + 2 * self.columns.len() + 8 * self.buckets.len()) as u64
    }

    pub(crate) fn encode(&self, out: &mut FieldWriter) {
        out.bytes(&self.schema);
        out.list(&self.columns, |out, layout| match layout {
            Layout::Fixed(width) => out.u8(*width),
            Layout::List => out.u8(253),
            Layout::Bits => out.u8(254),
            Layout::Bytes => out.u8(255),
        });
        out.list(&self.buckets, |out, by| {
            out.u16(by.column);
            out.u8(by.bits);
            out.u8(match by.family {
                KeyFamily::Integer => 0,
                KeyFamily::Bytes => 1,
                KeyFamily::Decimal => 2,
            });
        });
        out.u32(self.strip_rows);
    }

    pub(crate) fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        let schema = from.bytes()?.to_vec();
        let columns = from.list(COLUMNS_MAX, |from| match from.u8()? {
            width @ (1 | 2 | 4 | 8 | 16 | 32) => Ok(Layout::Fixed(width)),
            253 => Ok(Layout::List),
            254 => Ok(Layout::Bits),
            255 => Ok(Layout::Bytes),
            _ => Err(from.malformed()),
        })?;
        let buckets = from.list(BUCKETS_MAX, |from| {
            let (column, bits) = (from.u16()?, from.u8()?);
            let family = match from.u8()? {
                0 => KeyFamily::Integer,
                1 => KeyFamily::Bytes,
                2 => KeyFamily::Decimal,
                _ => return Err(from.malformed()),
            };
            Ok(Buckets { column, bits, family })
        })?;
        let definition = Self { schema, columns, buckets, strip_rows: from.u32()? };
        if definition.is_valid() { Ok(definition) } else { Err(from.malformed()) }
    }

    /// Whether all of it is within the bounds.
    fn is_valid(&self) -> bool {
        let bits = self.buckets.iter().map(|by| u32::from(by.bits)).sum::<u32>();
        let known = |by: &Buckets| usize::from(by.column) < self.columns.len();
        self.schema.len() <= SCHEMA_BYTES_MAX
            && !self.columns.is_empty()
            && (self.is_listed() || !self.columns.contains(&Layout::List))
            && self.buckets.iter().all(|by| by.bits > 0 && known(by))
            && bits <= PARTITIONS_MAX.ilog2()
            && (1..=STRIP_ROWS_MAX).contains(&self.strip_rows)
    }
}

impl CachedOrigin {
    pub(crate) fn encode(&self, out: &mut FieldWriter) {
        out.text(&self.name);
        out.u64(self.mark);
    }

    pub(crate) fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        let origin = Self { name: from.text()?, mark: from.u64()? };
        if origin.name.len() > ORIGIN_BYTES_MAX { Err(from.malformed()) } else { Ok(origin) }
    }
}

impl Strip {
    pub(crate) fn encode(&self, out: &mut FieldWriter) {
        out.u32(self.rows);
        out.list(&self.blocks, |out, block| {
            out.u16(block.at.extent.server);
            out.u32(block.at.extent.number);
            out.u32(block.at.offset);
            out.u32(block.bytes);
            let (codec, width) = match block.codec {
                Codec::Plain => (0, 0),
                Codec::Distance(width) => (1, width),
                Codec::Constant => (2, 0),
            };
            out.u8(codec);
            out.u8(width);
            out.u32(block.nulls);
            out.i64(block.least);
            out.i64(block.greatest);
        });
    }

    pub(crate) fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        let rows = from.u32()?;
        let blocks = from.list(COLUMNS_MAX, |from| {
            let extent = ExtentId { server: from.u16()?, number: from.u32()? };
            let at = Pointer { extent, offset: from.u32()? };
            let bytes = from.u32()?;
            let codec = match (from.u8()?, from.u8()?) {
                (0, 0) => Codec::Plain,
                (1, width @ (1 | 2 | 4)) => Codec::Distance(width),
                (2, 0) => Codec::Constant,
                _ => return Err(from.malformed()),
            };
            let (nulls, least, greatest) = (from.u32()?, from.i64()?, from.i64()?);
            Ok(Block { at, bytes, codec, nulls, least, greatest })
        })?;
        Ok(Self { rows, blocks })
    }

    /// Bytes that [`encode`](Self::encode) appends.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        const BLOCK_BYTES: u64 = 36;
        8 + BLOCK_BYTES * self.blocks.len() as u64
    }

    /// The first property of the strip that does not fit the table, if there is one: a reader
    /// relies on all.
    pub(crate) fn misfit(&self, definition: &Definition) -> Option<&'static str> {
        if definition.is_listed() {
            return self.misfit_of_head();
        }
        if self.rows == 0 || self.rows > definition.strip_rows {
            return Some("the rows of a strip are out of bounds");
        }
        if self.blocks.len() != definition.columns.len() {
            return Some("a strip has not a block for each column");
        }
        let mut blocks = self.blocks.iter().zip(&definition.columns);
        blocks.find_map(|(block, layout)| block.misfit(self.rows, *layout))
    }

    /// The same of the head of a list: its rows are those of the whole list, and it names a node
    /// and extents.
    fn misfit_of_head(&self) -> Option<&'static str> {
        let node = self.blocks.first().map_or(0, |node| node.bytes);
        let is_plain = |block: &Block| block.codec == Codec::Plain && block.nulls == 0;
        let begins = |block: &Block| (block.at.offset as usize).is_multiple_of(BLOCK_ALIGN);
        match () {
            () if self.rows == 0 => Some("a list has no rows"),
            () if node == 0 || node > NODE_BYTES_MAX => Some("a list has no node, or a long one"),
            () if !self.blocks.iter().all(|of| of.bytes > 0 && is_plain(of) && begins(of)) => {
                Some("a list names what is no extent")
            }
            () => None,
        }
    }
}

impl Block {
    /// Bytes of the values and of the bits behind them, if the codec tells them: that of
    /// [`Layout::Bytes`] is told by the offsets alone.
    pub fn bytes_of(&self, rows: u32, layout: Layout) -> Option<u64> {
        let rows = u64::from(rows);
        let values = match (self.codec, layout) {
            (Codec::Constant, _) => 0,
            (Codec::Distance(width), _) | (Codec::Plain, Layout::Fixed(width)) => {
                rows * u64::from(width)
            }
            (Codec::Plain, Layout::Bits) => rows.div_ceil(8),
            (Codec::Plain, Layout::Bytes | Layout::List) => return None,
        };
        let bits = if self.nulls > 0 { rows.div_ceil(8) } else { 0 };
        let before =
            if self.nulls > 0 { values.next_multiple_of(BLOCK_ALIGN as u64) } else { values };
        Some(before + bits)
    }

    fn misfit(&self, rows: u32, layout: Layout) -> Option<&'static str> {
        let offset_ok = (self.at.offset as usize).is_multiple_of(BLOCK_ALIGN);
        let codec_ok = match (self.codec, layout) {
            (Codec::Plain, _) => true,
            (Codec::Distance(width), Layout::Fixed(of)) => width < of && of <= 16,
            (Codec::Constant, Layout::Fixed(of)) => of <= 16,
            _ => false,
        };
        let bytes_ok = match self.bytes_of(rows, layout) {
            Some(bytes) => u64::from(self.bytes) == bytes,
            // One offset more than rows, at least.
            None => u64::from(self.bytes) >= (u64::from(rows) + 1) * 4,
        };
        match () {
            () if !offset_ok => Some("a block does not begin where blocks begin"),
            () if self.nulls > rows => Some("a block has more NULLs than rows"),
            () if !codec_ok => Some("a block has a codec that its column has not"),
            () if !bytes_ok => Some("the length of a block is not that of its rows"),
            () => None,
        }
    }
}

impl Manifest {
    /// The manifest as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.0.extend_from_slice(MAGIC);
        let format = match (&self.origin, self.holders.is_empty()) {
            (_, false) => FORMAT_OF_SEVERAL,
            (Some(_), true) => FORMAT_OF_CACHE,
            (None, true) => FORMAT,
        };
        out.u16(format);
        out.text(&self.table);
        out.u64(self.version);
        self.definition.encode(&mut out);
        out.list(&self.strips, |out, strip| strip.encode(out));
        out.list(&self.partitions, |out, first| out.u32(*first));
        out.list(&self.extents, |out, (extent, used)| {
            out.u16(extent.server);
            out.u32(extent.number);
            out.u32(*used);
        });
        if format != FORMAT {
            out.list(&self.holders, |out, holder| {
                out.u16(holder.number);
                out.text(&holder.name);
                out.u64(holder.identity);
            });
        }
        match (format, &self.origin) {
            (FORMAT_OF_SEVERAL, origin) => {
                out.option(origin.as_ref(), |out, origin| origin.encode(out));
            }
            (_, Some(origin)) => origin.encode(&mut out),
            (_, None) => {}
        }
        let crc = crc32c::crc32c(&out.0);
        out.u32(crc);
        out.0
    }

    /// The manifest of these bytes, which a stranger may have written.
    ///
    /// # Errors
    /// [`PoolError::Malformed`] when it is not one, or does not agree with itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, PoolError> {
        let malformed = || PoolError::Malformed { what: "manifest" };
        let (body, crc) = bytes.split_last_chunk().ok_or_else(malformed)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(malformed());
        }
        let mut from = FieldReader::new(body, "manifest");
        if from.take(MAGIC.len())? != MAGIC {
            return Err(malformed());
        }
        let format = from.u16()?;
        if ![FORMAT, FORMAT_OF_SEVERAL, FORMAT_OF_CACHE].contains(&format) {
            return Err(malformed());
        }
        let (table, version) = (from.text()?, from.u64()?);
        let definition = Definition::decode(&mut from)?;
        let strips = from.list(STRIPS_MAX, Strip::decode)?;
        let partitions = from.list(PARTITIONS_MAX as usize + 1, FieldReader::u32)?;
        let extents = from.list(EXTENTS_MAX, |from| {
            let extent = ExtentId { server: from.u16()?, number: from.u32()? };
            Ok((extent, from.u32()?))
        })?;
        let mut holders = vec![];
        if format != FORMAT {
            holders = from.list(HOLDERS_MAX, |from| {
                let (number, name) = (from.u16()?, from.text()?);
                Ok(ExtentHolder { number, name, identity: from.u64()? })
            })?;
            if holders.is_empty() == (format == FORMAT_OF_SEVERAL) {
                return Err(malformed());
            }
        }
        let origin = match format {
            FORMAT_OF_CACHE => Some(CachedOrigin::decode(&mut from)?),
            FORMAT_OF_SEVERAL => from.option(CachedOrigin::decode)?,
            _ => None,
        };
        from.end()?;
        let manifest =
            Self { table, version, definition, strips, partitions, extents, holders, origin };
        if manifest.is_consistent() { Ok(manifest) } else { Err(malformed()) }
    }

    /// Whether the partitions are those of the definition, and each block lies in an extent of a
    /// server that is known.
    pub(crate) fn is_consistent(&self) -> bool {
        let partitions = &self.partitions;
        let used: std::collections::HashMap<_, _> = self.extents.iter().copied().collect();
        let lies = |block: &Block| {
            let end = u64::from(block.at.offset) + u64::from(block.bytes);
            block.bytes == 0
                || used.get(&block.at.extent).is_some_and(|used| end <= u64::from(*used))
        };
        let numbers = self.holders.iter().map(|holder| holder.number);
        let numbers: BTreeSet<u16> = numbers.filter(|number| *number > 0).collect();
        let alone = self.holders.is_empty();
        let is_held = |server: u16| alone || server == 0 || numbers.contains(&server);
        numbers.len() == self.holders.len()
            && self.extents.iter().all(|(extent, _)| is_held(extent.server))
            && partitions.len() == self.definition.partitions() as usize + 1
            && partitions.is_sorted()
            && partitions.first() == Some(&0)
            && partitions.last() == Some(&(self.strips.len() as u32))
            && used.len() == self.extents.len()
            && self.strips.iter().all(|strip| {
                strip.misfit(&self.definition).is_none() && strip.blocks.iter().all(lies)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        Definition {
            schema: b"columns".to_vec(),
            columns: vec![Layout::Fixed(8), Layout::Bits, Layout::Bytes],
            buckets: vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }],
            strip_rows: 256,
        }
    }

    fn block(offset: u32, bytes: u32, codec: Codec) -> Block {
        let at = Pointer { extent: ExtentId { server: 0, number: 7 }, offset };
        Block { at, bytes, codec, nulls: 0, least: -3, greatest: 200 }
    }

    fn manifest() -> Manifest {
        let strip = Strip {
            rows: 10,
            blocks: vec![
                block(0, 10, Codec::Distance(1)),
                block(64, 2, Codec::Plain),
                block(128, 60, Codec::Plain),
            ],
        };
        Manifest {
            table: "t".into(),
            version: 3,
            definition: definition(),
            strips: vec![strip.clone(), strip],
            partitions: vec![0, 1, 2],
            extents: vec![(ExtentId { server: 0, number: 7 }, 188)],
            holders: vec![],
            origin: None,
        }
    }

    /// The second strip lies on another server.
    fn spread() -> Manifest {
        let mut spread = manifest();
        spread.strips[1].blocks.iter_mut().for_each(|block| block.at.extent.server = 2);
        spread.extents.push((ExtentId { server: 2, number: 7 }, 188));
        spread.holders.push(ExtentHolder { number: 2, name: "m1".into(), identity: 1 << 40 });
        spread
    }

    /// A copy of a file, on one server or two.
    fn cached(of: Manifest) -> Manifest {
        let name = "/data/été.parquet".into();
        Manifest { origin: Some(CachedOrigin { name, mark: u64::MAX - 1 }), ..of }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        for manifest in [manifest(), spread(), cached(manifest()), cached(spread())] {
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    }

    #[test]
    fn the_bytes_of_a_strip_are_known_before_it_is_written() {
        for strip in manifest().strips {
            let mut out = FieldWriter::default();
            strip.encode(&mut out);
            assert_eq!(strip.encoded_bytes(), out.0.len() as u64);
        }
    }

    #[test]
    fn every_prefix_and_every_damage_is_refused() {
        for bytes in [manifest().encode(), spread().encode(), cached(spread()).encode()] {
            for len in 0..bytes.len() {
                assert!(Manifest::decode(&bytes[..len]).is_err(), "cut to {len}");
            }
            for at in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[at / 8] ^= 1 << (at % 8);
                assert!(Manifest::decode(&damaged).is_err(), "bit {at}");
            }
        }
    }

    #[test]
    fn a_manifest_that_does_not_agree_with_itself_is_refused() {
        let wrong: [fn(&mut Manifest); 9] = [
            |of| of.partitions = vec![0, 2, 1],
            |of| of.partitions = vec![0, 2],
            |of| of.extents.clear(),
            |of| of.extents[0].1 = 187,
            |of| of.strips[1].rows = 11,
            |of| of.strips[0].blocks[1].at.offset = 65,
            |of| of.strips[0].blocks[1].codec = Codec::Constant,
            |of| of.definition.buckets[0].bits = 17,
            |of| of.definition.strip_rows = 9,
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut changed = manifest();
            change(&mut changed);
            assert!(Manifest::decode(&changed.encode()).is_err(), "change {number}");
        }
        let wrong: [fn(&mut Manifest); 3] = [
            |of| of.holders[0].number = 1,
            |of| of.holders.push(ExtentHolder { number: 0, ..of.holders[0].clone() }),
            |of| of.holders.push(of.holders[0].clone()),
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut changed = spread();
            change(&mut changed);
            assert!(Manifest::decode(&changed.encode()).is_err(), "holders, change {number}");
        }
    }
}
