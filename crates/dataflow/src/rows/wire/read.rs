//! Columns read where they have landed.
//!
//! Nothing that is stated is believed: a length is looked up in the payload before anything of it
//! is read or made, and Arrow validates what texts and offsets are.

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef, UnionFields, UnionMode};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;

use super::form::{
    HAS_VALIDITY, LARGE_OFFSET_BYTES, OFFSET_BYTES, PREFIX_BYTES, ROWS_MAX, WORD_BYTES, region_at,
    travelling, words_of,
};
use crate::rows::narrow::Widen;

/// Turns payloads back into batches of one schema.
pub(crate) struct Decoder {
    schema: SchemaRef,
}

impl Decoder {
    pub(crate) fn new(schema: &SchemaRef) -> Self {
        Self { schema: schema.clone() }
    }

    /// The batch in `payload`, and the extra beside it; both keep the payload alive.
    ///
    /// # Errors
    /// When the payload is malformed, and how.
    pub(crate) fn decode(&self, payload: Bytes) -> Result<(RecordBatch, Bytes), String> {
        let parts = Parts::of(payload)?;
        Ok((parts.read(&self.schema)?, parts.extra()))
    }

    /// As [`Decoder::decode`], of a batch that was narrowed and whose extra begins with its head;
    /// the extra is what follows.
    ///
    /// # Errors
    /// When the payload is malformed, and how.
    pub(crate) fn decode_narrow(&self, payload: &Bytes) -> Result<(RecordBatch, Bytes), String> {
        let parts = Parts::of(payload.clone())?;
        let (extra, widen) = (parts.extra(), Widen::new(self.schema.clone()));
        let schema = widen.schema(&extra).ok_or("its columns are unlike")?;
        let wide = widen.widen(&extra, &parts.read(&schema)?)?;
        let head = widen.head_bytes(&extra).ok_or("its head is cut off")?;
        Ok((wide, extra.slice(head..)))
    }
}

/// A payload taken apart.
struct Parts {
    payload: Bytes,
    rows: usize,
    /// Where the extra ends.
    words: usize,
}

impl Parts {
    fn of(payload: Bytes) -> Result<Self, String> {
        let (prefix, rest) =
            payload.split_first_chunk::<PREFIX_BYTES>().ok_or("it is shorter than its prefix")?;
        let [rows, extra] = [word(&prefix[..WORD_BYTES]), word(&prefix[WORD_BYTES..])];
        if extra as usize > rest.len() {
            return Err("the extra is longer than the payload".into());
        }
        let words = PREFIX_BYTES + extra as usize;
        Ok(Self { rows: checked_rows(rows)?, words, payload })
    }

    fn extra(&self) -> Bytes {
        self.payload.slice(PREFIX_BYTES..self.words)
    }

    /// The batch; it keeps the payload alive.
    fn read(&self, schema: &SchemaRef) -> Result<RecordBatch, String> {
        let words = schema.fields().iter().map(|field| words_of(field.data_type()));
        let words: usize = words.sum::<Result<_, _>>().map_err(|error| error.to_string())?;
        let regions = self.words + words * WORD_BYTES;
        let words = self.payload.get(self.words..regions).ok_or("its words are cut off")?;
        let mut reader = Reader {
            payload: Buffer::from(self.payload.clone()),
            words: words.as_chunks().0,
            at: regions,
        };
        let columns = schema.fields().iter();
        let columns = columns.map(|field| reader.column(field.data_type(), self.rows));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        if reader.at != self.payload.len() {
            return Err(format!(
                "it has {} bytes behind its columns",
                self.payload.len() - reader.at
            ));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map_err(|error| error.to_string())
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

fn checked_rows(rows: u32) -> Result<usize, String> {
    let rows = rows as usize;
    if rows <= ROWS_MAX { Ok(rows) } else { Err(format!("it states {rows} rows")) }
}

/// Reads columns one behind the other.
struct Reader<'a> {
    payload: Buffer,
    /// Those that were not read yet.
    words: &'a [[u8; WORD_BYTES]],
    /// Where the last region has ended.
    at: usize,
}

/// A column that is being read: the type as which it has travelled, and its rows.
struct ColumnParts<'a> {
    data_type: &'a DataType,
    rows: usize,
    buffers: Vec<Buffer>,
    children: Vec<ArrayData>,
}

impl Reader<'_> {
    /// A column of `rows` rows.
    fn column(&mut self, data_type: &DataType, rows: usize) -> Result<ArrayRef, String> {
        let plain = match data_type {
            DataType::Dictionary(_, values) => self.column(values, rows)?,
            DataType::RunEndEncoded(_, values) => self.column(values.data_type(), rows)?,
            _ => self.plain(travelling(data_type), rows)?,
        };
        if plain.data_type() == data_type {
            return Ok(plain);
        }
        cast(&plain, data_type).map_err(|error| error.to_string())
    }

    fn plain(&mut self, data_type: &DataType, rows: usize) -> Result<ArrayRef, String> {
        let validity = self.validity(data_type, rows)?;
        let mut parts = ColumnParts { data_type, rows, buffers: vec![], children: vec![] };
        self.content(&mut parts)?;
        let builder = ArrayData::builder(data_type.clone())
            .len(rows)
            .buffers(parts.buffers)
            .child_data(parts.children)
            .align_buffers(true);
        let builder = match validity {
            Some((bits, nulls)) => builder.null_bit_buffer(Some(bits)).null_count(nulls),
            None => builder,
        };
        builder.build().map(make_array).map_err(|error| error.to_string())
    }

    /// The validity bits, if there are some, and how many rows have no value.
    fn validity(
        &mut self,
        data_type: &DataType,
        rows: usize,
    ) -> Result<Option<(Buffer, usize)>, String> {
        let word = self.word()?;
        let nulls = (word & !HAS_VALIDITY) as usize;
        if word & HAS_VALIDITY == 0 {
            let none = || format!("a column states {nulls} NULLs and does not say which");
            return if nulls == 0 { Ok(None) } else { Err(none()) };
        }
        if matches!(data_type, DataType::Null | DataType::Union(..)) {
            return Err(format!("a column of {data_type} has validity bits"));
        }
        let bits = self.region(rows.div_ceil(8))?;
        let counted = rows - bits.count_set_bits_offset(0, rows);
        if counted == nulls {
            Ok(Some((bits, nulls)))
        } else {
            Err(format!("a column states {nulls} NULLs and has {counted}"))
        }
    }

    fn content(&mut self, parts: &mut ColumnParts<'_>) -> Result<(), String> {
        let rows = parts.rows;
        match parts.data_type {
            DataType::Null => {}
            DataType::Boolean => parts.buffers.push(self.region(rows.div_ceil(8))?),
            DataType::Utf8 | DataType::Binary => self.texts(parts, OFFSET_BYTES)?,
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.texts(parts, LARGE_OFFSET_BYTES)?;
            }
            DataType::List(values) | DataType::Map(values, _) => {
                self.lists(parts, OFFSET_BYTES, values.data_type())?;
            }
            DataType::LargeList(values) => {
                self.lists(parts, LARGE_OFFSET_BYTES, values.data_type())?;
            }
            DataType::ListView(values) => {
                self.lists(parts, OFFSET_BYTES, values.data_type())?;
                view(parts, OFFSET_BYTES);
            }
            DataType::LargeListView(values) => {
                self.lists(parts, LARGE_OFFSET_BYTES, values.data_type())?;
                view(parts, LARGE_OFFSET_BYTES);
            }
            DataType::FixedSizeList(values, length) => {
                let elements = usize::try_from(*length).ok();
                let elements = elements.and_then(|length| rows.checked_mul(length));
                let elements = elements.filter(|&elements| elements <= ROWS_MAX);
                let elements = elements.ok_or_else(|| format!("{rows} lists are too many"))?;
                parts.children.push(self.column(values.data_type(), elements)?.to_data());
            }
            DataType::Struct(fields) => {
                for field in fields {
                    parts.children.push(self.column(field.data_type(), rows)?.to_data());
                }
            }
            DataType::Union(fields, mode) => self.union(parts, fields, *mode)?,
            DataType::FixedSizeBinary(bytes) => self.fixed(parts, *bytes as usize)?,
            fixed => {
                let width = fixed.primitive_width();
                let width = width.ok_or_else(|| format!("a column of {fixed} cannot travel"))?;
                self.fixed(parts, width)?;
            }
        }
        Ok(())
    }

    fn fixed(&mut self, parts: &mut ColumnParts<'_>, width: usize) -> Result<(), String> {
        let bytes = parts.rows.checked_mul(width).ok_or("a column is too long")?;
        parts.buffers.push(self.region(bytes)?);
        Ok(())
    }

    fn texts(&mut self, parts: &mut ColumnParts<'_>, offset: usize) -> Result<(), String> {
        let bytes = self.word()? as usize;
        let offsets = self.offsets(parts.rows, offset, bytes)?;
        parts.buffers.extend([offsets, self.region(bytes)?]);
        Ok(())
    }

    fn lists(
        &mut self,
        parts: &mut ColumnParts<'_>,
        offset: usize,
        values: &DataType,
    ) -> Result<(), String> {
        let elements = self.word()?;
        let elements = checked_rows(elements)?;
        parts.buffers.push(self.offsets(parts.rows, offset, elements)?);
        parts.children.push(self.column(values, elements)?.to_data());
        Ok(())
    }

    /// Offsets, which begin with zero and end with `end`.
    fn offsets(&mut self, rows: usize, offset: usize, end: usize) -> Result<Buffer, String> {
        let offsets = self.region((rows + 1) * offset)?;
        let (first, last) = (&offsets[..offset], &offsets[rows * offset..]);
        let end = (end as u64).to_le_bytes();
        if first.iter().any(|&byte| byte > 0) || *last != end[..offset] {
            return Err("the offsets of a column are not those of its values".into());
        }
        Ok(offsets)
    }

    fn union(
        &mut self,
        parts: &mut ColumnParts<'_>,
        fields: &UnionFields,
        mode: UnionMode,
    ) -> Result<(), String> {
        let types = self.region(parts.rows)?;
        let mut counts = [0; 1 << 7];
        let mut offsets: Vec<i32> = vec![];
        for &of in types.as_slice() {
            let count: &mut i32 = counts.get_mut(usize::from(of)).ok_or("a row has no type")?;
            if mode == UnionMode::Dense {
                offsets.push(*count);
            }
            *count += 1;
        }
        for (of, field) in fields.iter() {
            let count = std::mem::take(&mut counts[of.cast_unsigned() as usize]) as usize;
            let rows = if mode == UnionMode::Dense { count } else { parts.rows };
            parts.children.push(self.column(field.data_type(), rows)?.to_data());
        }
        if counts.iter().any(|&count| count > 0) {
            return Err("a row has a type that is none of its union".into());
        }
        parts.buffers.push(types);
        if mode == UnionMode::Dense {
            parts.buffers.push(Buffer::from_vec(offsets));
        }
        Ok(())
    }

    fn word(&mut self) -> Result<u32, String> {
        let (first, rest) = self.words.split_first().ok_or("its words are cut off")?;
        self.words = rest;
        Ok(u32::from_le_bytes(*first))
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, String> {
        let from = region_at(self.at);
        let end = from.checked_add(bytes).filter(|&end| end <= self.payload.len());
        self.at = end.ok_or("a column lies outside of its payload")?;
        Ok(self.payload.slice_with_length(from, bytes))
    }
}

/// Turns offsets into those of views, and the lengths.
fn view(parts: &mut ColumnParts<'_>, offset: usize) {
    let Some(offsets) = parts.buffers.pop() else { return };
    let read = |at: usize| {
        let bytes = &offsets[at * offset..][..offset];
        bytes.iter().rev().fold(0, |all: u64, &byte| all << 8 | u64::from(byte))
    };
    let sizes: Vec<u8> = (0..parts.rows)
        .flat_map(|row| {
            let size = read(row + 1).wrapping_sub(read(row)).to_le_bytes();
            size.into_iter().take(offset)
        })
        .collect();
    let offsets = offsets.slice_with_length(0, parts.rows * offset);
    parts.buffers.extend([offsets, Buffer::from_vec(sizes)]);
}
