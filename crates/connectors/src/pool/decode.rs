//! Blocks as columns of a strip, where they lie if Arrow can read them there.
//!
//! The bytes are those of a stranger: lengths, offsets and texts are checked before an array is
//! made of them, once for each block.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, make_array, new_empty_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use pool::access::BlockBytes;
use pool::manifest::{Block, Codec, Layout, STRIP_ROWS_MAX};
use pool::pointer::{BLOCK_ALIGN, ExtentId, Pointer};

use super::columns::StoredColumns;

/// The memory of a block, as an owner of bytes.
struct Owned(BlockBytes);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// The memory of a block, which stays while a clone of this does.
pub(super) fn buffer(block: BlockBytes) -> Buffer {
    Buffer::from(Bytes::from_owner(Owned(block)))
}

/// The type of a column, and the layout of its blocks.
#[derive(Debug, Clone)]
pub(super) struct BlockType {
    pub(super) data_type: DataType,
    pub(super) layout: Layout,
}

impl BlockType {
    /// The values of a block of `rows` rows.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub(super) fn array(
        &self,
        block: &Block,
        bytes: &Buffer,
        rows: usize,
    ) -> Result<ArrayRef, String> {
        if rows == 0 {
            return Ok(new_empty_array(&self.data_type));
        }
        let (buffers, length) = self.values(block, bytes, rows)?;
        let nulls = (block.nulls > 0).then(|| nulls(bytes, length, rows)).transpose()?;
        let data = ArrayData::builder(self.data_type.clone())
            .len(rows)
            .buffers(buffers)
            .nulls(nulls)
            .align_buffers(true)
            .build();
        // Offsets and texts are checked here.
        Ok(make_array(data.map_err(|error| error.to_string())?))
    }

    /// An array of `rows` rows with one value.
    pub(super) fn constant(&self, value: i64, rows: usize) -> Option<ArrayRef> {
        let Layout::Fixed(width) = self.layout else { return None };
        let values = spread(std::iter::repeat_n(value, rows), width)?;
        let data = ArrayData::builder(self.data_type.clone()).len(rows).add_buffer(values);
        data.build().ok().map(make_array)
    }

    /// The buffers of the values, and the bytes of the block that they take.
    fn values(
        &self,
        block: &Block,
        bytes: &Buffer,
        rows: usize,
    ) -> Result<(Vec<Buffer>, usize), String> {
        let first = |length: usize| {
            if bytes.len() < length {
                return Err(format!("a block of {} bytes has {length} of values", bytes.len()));
            }
            Ok(bytes.slice_with_length(0, length))
        };
        let unfit = || format!("a column of {} has a codec of numbers", self.data_type);
        match (block.codec, self.layout) {
            (Codec::Plain, Layout::Fixed(width)) => {
                let length = rows * usize::from(width);
                Ok((vec![first(length)?], length))
            }
            (Codec::Plain, Layout::Bits) => {
                let length = rows.div_ceil(8);
                Ok((vec![first(length)?], length))
            }
            (Codec::Plain, Layout::Bytes) => {
                let offsets = first((rows + 1) * size_of::<i32>())?;
                let last =
                    offsets.as_slice().last_chunk().map_or(0, |last| i32::from_le_bytes(*last));
                let length =
                    usize::try_from(last).map_err(|_| "an offset is negative".to_owned())?;
                let all = first(offsets.len() + length)?;
                let values = all.slice_with_length(offsets.len(), length);
                Ok((vec![offsets, values], all.len()))
            }
            (Codec::Distance(short), Layout::Fixed(width)) => {
                let length = rows * usize::from(short);
                let near = first(length)?;
                let values = distances(near.as_slice(), block.least, (short, width));
                Ok((vec![values.ok_or_else(unfit)?], length))
            }
            (Codec::Constant, Layout::Fixed(width)) => {
                let values = spread(std::iter::repeat_n(block.least, rows), width);
                Ok((vec![values.ok_or_else(unfit)?], 0))
            }
            (_, Layout::List)
            | (Codec::Distance(_) | Codec::Constant, Layout::Bits | Layout::Bytes) => Err(unfit()),
        }
    }
}

/// The bits of the rows that are not NULL, behind the values.
fn nulls(bytes: &Buffer, values: usize, rows: usize) -> Result<NullBuffer, String> {
    let (from, length) = (values.next_multiple_of(BLOCK_ALIGN), rows.div_ceil(8));
    if bytes.len() < from + length {
        return Err(format!("a block of {} bytes has no bits of NULLs", bytes.len()));
    }
    let bits = bytes.slice_with_length(from, length);
    Ok(NullBuffer::new(BooleanBuffer::new(bits, 0, rows)))
}

/// The numbers at distances of `short` bytes from `least`, in `width` bytes each.
fn distances(near: &[u8], least: i64, (short, width): (u8, u8)) -> Option<Buffer> {
    match short {
        1 => spread(near.iter().map(|d| least.wrapping_add(i64::from(*d))), width),
        2 => {
            let (near, _) = near.as_chunks();
            let far = |d: &[u8; 2]| least.wrapping_add(i64::from(u16::from_le_bytes(*d)));
            spread(near.iter().map(far), width)
        }
        4 => {
            let (near, _) = near.as_chunks();
            let far = |d: &[u8; 4]| least.wrapping_add(i64::from(u32::from_le_bytes(*d)));
            spread(near.iter().map(far), width)
        }
        _ => None,
    }
}

/// Numbers in `width` bytes each.
fn spread(numbers: impl Iterator<Item = i64>, width: u8) -> Option<Buffer> {
    Some(match width {
        1 => Buffer::from_vec(numbers.map(|number| number as i8).collect()),
        2 => Buffer::from_vec(numbers.map(|number| number as i16).collect()),
        4 => Buffer::from_vec(numbers.map(|number| number as i32).collect()),
        8 => Buffer::from_vec(numbers.collect::<Vec<i64>>()),
        16 => Buffer::from_vec(numbers.map(i128::from).collect()),
        _ => return None,
    })
}

/// The array of a column in which all rows are NULL or have one value, without any bytes.
pub(super) fn empty() -> Buffer {
    buffer(Arc::new([0_u8; 0]))
}

/// The types of [`block_of`], by number.
const TYPES: [DataType; 9] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Float64,
    DataType::Decimal128(38, 2),
    DataType::Boolean,
    DataType::Utf8,
    DataType::Binary,
];

/// Reads a block whose description lies in front of it: type u8, codec u8 (0: plain, 1, 2 and 4: so
/// many bytes, 3: constant), rows u16, NULLs u16, the least number i64.
///
/// # Errors
/// When it does not fit its description.
pub(super) fn block_of(bytes: &[u8]) -> Result<ArrayRef, String> {
    let cut = || "it is cut".to_owned();
    let (&[of, codec, rows @ .., a, b], rest) = bytes.split_first_chunk::<6>().ok_or_else(cut)?;
    let (least, bytes) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
    let data_type = TYPES.get(usize::from(of)).ok_or("it is of no type")?.clone();
    let field = Field::new("", data_type.clone(), true);
    let columns = StoredColumns::declared(&Schema::new(vec![field]));
    let layout = columns.map_err(|error| error.to_string())?.layouts[0];
    let codec = match codec {
        0 => Codec::Plain,
        3 => Codec::Constant,
        width => Codec::Distance(width),
    };
    let rows = usize::from(u16::from_le_bytes(rows)).min(STRIP_ROWS_MAX as usize);
    let nulls = u32::from(u16::from_le_bytes([a, b]));
    let least = i64::from_le_bytes(*least);
    let at = Pointer { extent: ExtentId { server: 0, number: 0 }, offset: 0 };
    let block = Block { at, bytes: bytes.len() as u32, codec, nulls, least, greatest: least };
    let bytes = buffer(Arc::new(bytes.to_vec()));
    BlockType { data_type, layout }.array(&block, &bytes, rows)
}
