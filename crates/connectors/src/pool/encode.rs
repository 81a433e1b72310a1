//! Columns of a strip as blocks.
//!
//! Numbers are stored as distances from the least one where that is shorter, and not at all where
//! all are equal; everything else as Arrow has it.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use pool::access::{EncodedBlock, EncodedStrip};
use pool::manifest::{Codec, Layout};
use pool::pointer::BLOCK_ALIGN;

use super::columns::{Numbers, numbers};

/// The blocks of the columns of a strip, which are of the types that are stored in these layouts.
pub(super) fn strip(columns: &[ArrayRef], layouts: &[Layout], rows: usize) -> EncodedStrip {
    let blocks = columns.iter().zip(layouts).map(|(column, layout)| block(column, *layout));
    EncodedStrip { rows: rows as u32, blocks: blocks.collect() }
}

fn block(column: &ArrayRef, layout: Layout) -> EncodedBlock {
    let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
    let values = match layout {
        Layout::Fixed(width) => match numbers_of(column, width) {
            Some(values) => of_numbers(&values, nulls, width, column),
            None => Encoded::plain(fixed_bytes(column, width)),
        },
        Layout::Bits => Encoded::plain(bits(column.as_boolean().values())),
        Layout::Bytes | Layout::List => Encoded::plain(offsets_and_bytes(column)),
    };
    let Encoded { mut bytes, codec, least, greatest } = values;
    if let Some(nulls) = nulls {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_ALIGN), 0);
        bytes.extend(bits(nulls.inner()));
    }
    let nulls = nulls.map_or(0, NullBuffer::null_count) as u32;
    EncodedBlock { bytes, codec, nulls, least, greatest }
}

/// Values without the bits of NULLs.
struct Encoded {
    bytes: Vec<u8>,
    codec: Codec,
    least: i64,
    greatest: i64,
}

impl Encoded {
    fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, codec: Codec::Plain, least: i64::MIN, greatest: i64::MAX }
    }
}

/// Numbers as distances, if that is shorter.
fn of_numbers(values: &[i64], nulls: Option<&NullBuffer>, width: u8, column: &ArrayRef) -> Encoded {
    let is_valid = |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
    let known = || values.iter().enumerate().filter(|(row, _)| is_valid(*row)).map(|(_, v)| *v);
    let least = known().min().unwrap_or(0);
    let greatest = known().max().unwrap_or(0);
    let span = greatest.wrapping_sub(least) as u64;
    let short = match span {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => u8::MAX,
    };
    if short >= width {
        let bytes = fixed_bytes(column, width);
        return Encoded { bytes, codec: Codec::Plain, least, greatest };
    }
    let codec = if short == 0 { Codec::Constant } else { Codec::Distance(short) };
    let mut bytes = Vec::with_capacity(values.len() * usize::from(short));
    for (row, value) in values.iter().enumerate().filter(|_| short > 0) {
        let distance = if is_valid(row) { value.wrapping_sub(least) } else { 0 };
        bytes.extend(&distance.to_le_bytes()[..usize::from(short)]);
    }
    Encoded { bytes, codec, least, greatest }
}

/// The values as numbers, if all of them are numbers of 64 bits; NULLs are any.
fn numbers_of(column: &ArrayRef, width: u8) -> Option<Vec<i64>> {
    let kind = numbers(column.data_type())?;
    let data = column.to_data();
    Some(match (width, kind) {
        (1, Numbers::Signed) => data.buffer::<i8>(0).iter().map(|v| i64::from(*v)).collect(),
        (1, Numbers::Unsigned) => data.buffer::<u8>(0).iter().map(|v| i64::from(*v)).collect(),
        (2, Numbers::Signed) => data.buffer::<i16>(0).iter().map(|v| i64::from(*v)).collect(),
        (2, Numbers::Unsigned) => data.buffer::<u16>(0).iter().map(|v| i64::from(*v)).collect(),
        (4, Numbers::Signed) => data.buffer::<i32>(0).iter().map(|v| i64::from(*v)).collect(),
        (4, Numbers::Unsigned) => data.buffer::<u32>(0).iter().map(|v| i64::from(*v)).collect(),
        (8, Numbers::Signed) => data.buffer::<i64>(0)[..column.len()].to_vec(),
        (8, Numbers::Unsigned) => known(column, data.buffer::<u64>(0), |v| i64::try_from(v).ok())?,
        (16, Numbers::Signed) => known(column, data.buffer::<i128>(0), |v| i64::try_from(v).ok())?,
        _ => return None,
    })
    .map(|mut values| {
        values.truncate(column.len());
        values
    })
}

/// Each value as a number; `None` if one that is not NULL does not fit.
fn known<T: Copy>(
    column: &ArrayRef,
    values: &[T],
    number: impl Fn(T) -> Option<i64>,
) -> Option<Vec<i64>> {
    let of =
        |(row, value): (usize, &T)| number(*value).or_else(|| column.is_null(row).then_some(0));
    values.iter().take(column.len()).enumerate().map(of).collect()
}

/// The values of a column of fixed width, as they lie in memory.
fn fixed_bytes(column: &ArrayRef, width: u8) -> Vec<u8> {
    let (data, width) = (column.to_data(), usize::from(width));
    let from = data.offset() * width;
    data.buffers()[0].as_slice()[from..from + column.len() * width].to_vec()
}

/// Bits from the first bit of the first byte on.
fn bits(of: &arrow::buffer::BooleanBuffer) -> Vec<u8> {
    of.sliced().as_slice()[..of.len().div_ceil(8)].to_vec()
}

/// Offsets that begin at 0, and the bytes behind one another.
fn offsets_and_bytes(column: &ArrayRef) -> Vec<u8> {
    fn laid_out(offsets: &[i32], values: &[u8]) -> Vec<u8> {
        let (first, last) = match offsets {
            [first, .., last] => (*first, *last),
            _ => (0, 0),
        };
        let length = (last - first) as usize;
        let mut bytes = Vec::with_capacity(size_of_val(offsets) + length);
        offsets.iter().for_each(|offset| bytes.extend((offset - first).to_le_bytes()));
        bytes.extend(&values[first as usize..last as usize]);
        bytes
    }
    match column.data_type() {
        DataType::Utf8 => {
            let texts = column.as_string::<i32>();
            laid_out(texts.value_offsets(), texts.value_data())
        }
        _ => {
            let values = column.as_binary::<i32>();
            laid_out(values.value_offsets(), values.value_data())
        }
    }
}
