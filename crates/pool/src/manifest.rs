//! Tables, and the strips and blocks of their versions.

mod bytes;

pub use bytes::{
    BUCKETS_MAX, COLUMNS_MAX, EXTENTS_MAX, HOLDERS_MAX, MANIFEST_BYTES_MAX, ORIGIN_BYTES_MAX,
    SCHEMA_BYTES_MAX, STRIPS_MAX,
};

use crate::pointer::{ExtentId, Pointer};

/// Rows of a strip at most: a strip is what a reader asks for at a time.
pub const STRIP_ROWS_MAX: u32 = 8192;
/// Bytes of a node of a list at most: the strips of a node may be of many columns.
pub const NODE_BYTES_MAX: u32 = 4 << 20;
/// Partitions of a table at most.
pub const PARTITIONS_MAX: u32 = 65_536;

/// The columns and buckets of a table, which all of its versions share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Definition {
    /// The columns as the reader describes them; opaque here.
    pub schema: Vec<u8>,
    /// How the blocks of each column are laid out.
    pub columns: Vec<Layout>,
    /// By which columns the rows are partitioned, one after the other (I2); empty: one partition.
    pub buckets: Vec<Buckets>,
    /// Rows of a full strip.
    pub strip_rows: u32,
}

impl Definition {
    /// The number of partitions: the product of all buckets.
    pub fn partitions(&self) -> u32 {
        1 << self.buckets.iter().map(|by| u32::from(by.bits)).sum::<u32>()
    }

    /// Whether the server keeps the heads of lists of such a table, and no strips.
    pub fn is_listed(&self) -> bool {
        self.columns == [Layout::List]
    }
}

/// How the values of a column lie in a block whose codec is [`Codec::Plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Values of this width in bytes: 1, 2, 4, 8, 16 or 32.
    Fixed(u8),
    /// One bit a value, from the least significant bit of each byte.
    Bits,
    /// `rows + 1` offsets of 32 bits, and the bytes of all values.
    Bytes,
    /// The only column of a table that is kept in [lists](crate::list): a strip is the head of one.
    List,
}

/// Rows are partitioned by a hash of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buckets {
    /// The column's position.
    pub column: u16,
    /// The buckets are two to the power of this many.
    pub bits: u8,
    /// The family of types whose equal values have equal hashes, whatever their widths.
    pub family: KeyFamily,
}

/// Key types whose equal values have equal hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyFamily {
    /// Integers, dates and points in time, as 64 bits.
    Integer,
    /// Text and binary, as bytes.
    Bytes,
    /// Decimals, by value.
    Decimal,
}

/// How a block is encoded. A filter can read each of them in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// The values as [`Layout`] says.
    Plain,
    /// The distance from [`Block::least`] in this many bytes: 1, 2 or 4.
    Distance(u8),
    /// All values are equal to [`Block::least`]; there are no bytes.
    Constant,
}

/// One column of a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Where its values lie. Where `nulls` is not zero, the bits of the rows that are not NULL
    /// follow the values, at the next multiple of [`BLOCK_ALIGN`](crate::pointer::BLOCK_ALIGN).
    pub at: Pointer,
    /// Bytes altogether; 0: there is nothing to be read.
    pub bytes: u32,
    /// How the values are encoded.
    pub codec: Codec,
    /// How many rows are NULL.
    pub nulls: u32,
    /// Of whole numbers, dates, points in time and decimals that fit 64 bits: no value is less or
    /// greater. Otherwise the whole range of `i64`.
    pub least: i64,
    /// See `least`.
    pub greatest: i64,
}

/// Rows of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Strip {
    /// How many.
    pub rows: u32,
    /// A block for each column.
    pub blocks: Vec<Block>,
}

/// A memory server beside the one that has the table: it holds some of the table's extents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExtentHolder {
    /// Its number in [`ExtentId::server`]; not 0, which is the server that has the table.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// See [`ServerPlace::identity`](crate::wire::ServerPlace::identity).
    pub identity: u64,
}

/// The data outside of the pool that a version is a copy of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CachedOrigin {
    /// For a reader, and to tell origins apart: where the data are, and how they are read. At most
    /// [`ORIGIN_BYTES_MAX`] bytes.
    pub name: String,
    /// A number that is another one when the data have changed.
    pub mark: u64,
}

/// A version of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Manifest {
    /// The table's name.
    pub table: String,
    /// The version, from 1.
    pub version: u64,
    /// The table's columns and buckets.
    pub definition: Definition,
    /// All strips, those of partition 0 first.
    pub strips: Vec<Strip>,
    /// The first strip of each partition, and the number of strips behind the last.
    pub partitions: Vec<u32>,
    /// The extents in which the blocks lie, with the bytes that are used of each.
    pub extents: Vec<(ExtentId, u32)>,
    /// The other servers that hold some of `extents`, by number.
    pub holders: Vec<ExtentHolder>,
    /// Where its rows come from, if the table is a cache.
    pub origin: Option<CachedOrigin>,
}

impl Manifest {
    /// Rows of the version.
    pub fn rows(&self) -> u64 {
        self.strips.iter().map(|strip| u64::from(strip.rows)).sum()
    }

    /// The extents that lie on the server that has the table, with their used bytes.
    pub fn own_extents(&self) -> impl Iterator<Item = (ExtentId, u32)> {
        let is_own = |extent: &ExtentId| self.holders.is_empty() || extent.server == 0;
        self.extents.iter().copied().filter(move |(extent, _)| is_own(extent))
    }
}
