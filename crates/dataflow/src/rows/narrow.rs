//! Integer columns in as few bytes as they need: the distance from the least value (frame of
//! reference).
//!
//! Keys of a delta lie close together and counts are small: a group of 16 bytes often travels in 3.
//! It pays where columns are kept or staged too, since memory that is touched for the first time
//! costs more than the arithmetic. Columns of other types, and those that do not get narrower,
//! stay as they are.
//!
//! The first column, which is a key, has two more forms where it ascends, as the keys of an array
//! do: a *run* of consecutive numbers is its first one alone, and *marks* are a bit for each number
//! between the first and the last. Of each part of a batch that form is taken that has the fewest
//! bytes: a group of a dense key then travels in little more than its state.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, PrimitiveArray, make_array};
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type,
};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::bit_iterator::BitIndexIterator;

use crate::error::DataflowError;

/// The width of consecutive numbers: they have no bytes.
pub(crate) const RUN: u8 = 16;
/// The width of numbers that are told by bits, which follow the bases behind their length.
pub(crate) const MARKS: u8 = 17;
/// Rows of a run at most: they have no bytes that would bound them.
pub(crate) const RUN_ROWS_MAX: usize = 1 << 20;

/// What a narrow column is the distance from, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NarrowBase {
    pub(crate) least: i64,
    /// Bytes of a value: 1, 2 or 4; 0 for a column that stayed as it was; [`RUN`] or [`MARKS`].
    pub(crate) width: u8,
}

impl NarrowBase {
    /// Bytes of one on the wire.
    pub(crate) const BYTES: usize = 9;

    pub(crate) const AS_IT_WAS: Self = Self { least: 0, width: 0 };

    /// Appends it.
    pub(crate) fn put(self, head: &mut Vec<u8>) {
        head.extend_from_slice(&self.least.to_le_bytes());
        head.push(self.width);
    }

    /// The type of a column of type `wide`.
    fn narrow(self, wide: &DataType) -> Option<DataType> {
        match self.width {
            0 => Some(wide.clone()),
            _ if !is_word(wide) => None,
            1 => Some(DataType::UInt8),
            2 => Some(DataType::UInt16),
            4 => Some(DataType::UInt32),
            RUN | MARKS => Some(DataType::Null),
            _ => None,
        }
    }
}

/// Makes columns wide again: knows the types as they were.
#[derive(Debug)]
pub(crate) struct Widen {
    wide: SchemaRef,
}

impl Widen {
    /// For batches of `wide`.
    pub(crate) fn new(wide: SchemaRef) -> Self {
        Self { wide }
    }

    /// Bytes of the head with which `extra` begins; `None` if it is cut off.
    pub(crate) fn head_bytes(&self, extra: &[u8]) -> Option<usize> {
        let bases = self.bases_bytes();
        let marks = match self.bases(extra)?.first() {
            Some(NarrowBase { width: MARKS, .. }) => 4 + marks_of(extra.get(bases..)?)?.len(),
            _ => 0,
        };
        Some(bases + marks)
    }

    fn bases_bytes(&self) -> usize {
        self.wide.fields().len() * NarrowBase::BYTES
    }

    /// The schema of the columns whose head this is; `None` for a head that cannot be.
    pub(crate) fn schema(&self, head: &[u8]) -> Option<SchemaRef> {
        let bases = self.bases(head)?;
        if bases.iter().skip(1).any(|base| matches!(base.width, RUN | MARKS)) {
            return None;
        }
        let types = self.wide.fields().iter().zip(bases);
        let types = types.map(|(field, base)| base.narrow(field.data_type()));
        Some(schema_of(types.collect::<Option<Vec<_>>>()?.into_iter()))
    }

    /// The batch as it was.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn widen(&self, head: &[u8], narrow: &RecordBatch) -> Result<RecordBatch, String> {
        let bases = self.bases(head).ok_or("its head is cut off")?;
        let fields = self.wide.fields().iter();
        let marks = head.get(self.bases_bytes()..).and_then(marks_of);
        let columns = narrow.columns().iter().zip(fields).zip(bases);
        let wide =
            |((column, field), base): ((&ArrayRef, &Arc<Field>), NarrowBase)| match base.width {
                RUN => run(base.least, column.len(), field.data_type()),
                MARKS => marked(base.least, marks, column.len(), field.data_type()),
                _ => widen(column, base, field.data_type()),
            };
        let columns: Result<Vec<_>, _> = columns.map(wide).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(narrow.num_rows()));
        RecordBatch::try_new_with_options(self.wide.clone(), columns?, &options)
            .map_err(|e| e.to_string())
    }

    fn bases(&self, head: &[u8]) -> Option<Vec<NarrowBase>> {
        let head = head.get(..self.bases_bytes())?;
        let base = |&[ref least @ .., width]: &[u8; NarrowBase::BYTES]| NarrowBase {
            least: i64::from_le_bytes(*least),
            width,
        };
        Some(head.as_chunks().0.iter().map(base).collect())
    }
}

fn schema_of(types: impl Iterator<Item = DataType>) -> SchemaRef {
    let field = |(i, data_type): (usize, DataType)| Field::new(format!("{i}"), data_type, true);
    Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()))
}

/// Whether values of a type are integers of 8 bytes.
pub(crate) fn is_word(data_type: &DataType) -> bool {
    data_type.primitive_width() == Some(8) && !data_type.is_floating() && !is_interval(data_type)
}

/// Intervals are several numbers in one.
fn is_interval(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(_))
}

/// The same bits as another type of 8 bytes.
fn reinterpret(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, DataflowError> {
    let data = column.to_data().into_builder().data_type(data_type.clone()).build()?;
    Ok(make_array(data))
}

/// The values of a column of words.
///
/// # Errors
/// Arrow's, for a column of another type.
pub(crate) fn as_words(column: &ArrayRef) -> Result<Int64Array, DataflowError> {
    Ok(reinterpret(column, &DataType::Int64)?.as_primitive().clone())
}

/// The marks of ascending keys, as they are written.
pub(crate) struct Marks<'a> {
    least: i64,
    bits: &'a mut [u8],
}

impl<'a> Marks<'a> {
    /// From the key `least` on, in `bytes` bytes, which are appended to `head` behind their number.
    pub(crate) fn new(least: i64, bytes: usize, head: &'a mut Vec<u8>) -> Self {
        head.extend_from_slice(&(bytes as u32).to_le_bytes());
        let from = head.len();
        head.resize(from + bytes, 0);
        Self { least, bits: &mut head[from..] }
    }

    /// Marks a key.
    pub(crate) fn set(&mut self, key: i64) {
        let at = key.wrapping_sub(self.least) as u64;
        self.bits[(at / 8) as usize] |= 1 << (at % 8);
    }
}

/// The bits behind the bases.
fn marks_of(bytes: &[u8]) -> Option<&[u8]> {
    let (length, marks) = bytes.split_first_chunk()?;
    marks.get(..u32::from_le_bytes(*length) as usize)
}

/// Consecutive numbers.
fn run(least: i64, rows: usize, wide: &DataType) -> Result<ArrayRef, String> {
    if rows > RUN_ROWS_MAX {
        return Err(format!("a run has {rows} rows"));
    }
    let words = Int64Array::from_iter_values((0..rows as i64).map(|at| least.wrapping_add(at)));
    reinterpret(&(Arc::new(words) as ArrayRef), wide).map_err(|e| e.to_string())
}

/// The numbers that are marked.
fn marked(
    least: i64,
    marks: Option<&[u8]>,
    rows: usize,
    wide: &DataType,
) -> Result<ArrayRef, String> {
    let marks = marks.ok_or("its marks are cut off")?;
    let at = BitIndexIterator::new(marks, 0, marks.len() * 8);
    let words = Int64Array::from_iter_values(at.map(|at| least.wrapping_add(at as i64)));
    if words.len() != rows {
        return Err(format!("{} of {rows} rows are marked", words.len()));
    }
    reinterpret(&(Arc::new(words) as ArrayRef), wide).map_err(|e| e.to_string())
}

fn widen(column: &ArrayRef, base: NarrowBase, wide: &DataType) -> Result<ArrayRef, String> {
    let least = base.least;
    let words: PrimitiveArray<Int64Type> = match (base.width, column.data_type()) {
        (0, _) => return Ok(Arc::clone(column)),
        (1, DataType::UInt8) => column
            .as_primitive::<UInt8Type>()
            .unary(|distance| least.wrapping_add(i64::from(distance))),
        (2, DataType::UInt16) => column
            .as_primitive::<UInt16Type>()
            .unary(|distance| least.wrapping_add(i64::from(distance))),
        (4, DataType::UInt32) => column
            .as_primitive::<UInt32Type>()
            .unary(|distance| least.wrapping_add(i64::from(distance))),
        (width, other) => return Err(format!("a column of {other} has width {width}")),
    };
    reinterpret(&(Arc::new(words) as ArrayRef), wide).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, NullArray, UInt8Array};

    #[test]
    fn heads_that_cannot_be_are_refused() {
        let wide = Widen::new(schema_of([DataType::Int64, DataType::Float64].into_iter()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt8Array::from(vec![0, 1])),
            Arc::new(Float64Array::from(vec![1.0, 2.0])),
        ];
        let schema = schema_of(columns.iter().map(|column| column.data_type().clone()));
        let narrow = RecordBatch::try_new(schema, columns).unwrap();
        let mut head = vec![];
        NarrowBase { least: 1, width: 1 }.put(&mut head);
        NarrowBase::AS_IT_WAS.put(&mut head);
        assert!(wide.widen(&head, &narrow).is_ok());
        assert!(wide.schema(&head[..17]).is_none());
        let with = |at: usize, width: u8| {
            let mut head = head.clone();
            head[at] = width;
            head
        };
        assert!(wide.schema(&with(8, 3)).is_none());
        assert!(wide.schema(&with(17, 1)).is_none(), "a float is not narrow");
        assert!(wide.widen(&with(8, 2), &narrow).is_err());
        assert!(wide.schema(&with(17, RUN)).is_none(), "only the first column is a run");
        let marked = Widen::new(schema_of([DataType::Int64].into_iter()));
        let none = |rows| {
            let column: ArrayRef = Arc::new(NullArray::new(rows));
            RecordBatch::try_new(schema_of([DataType::Null].into_iter()), vec![column]).unwrap()
        };
        let head = |width: u8, more: &[u8]| [&[0; 8][..], &[width], more].concat();
        assert!(marked.widen(&head(RUN, &[]), &none(RUN_ROWS_MAX + 1)).is_err());
        assert!(marked.widen(&head(MARKS, &[1, 0, 0, 0, 0b101]), &none(2)).is_ok());
        assert!(marked.widen(&head(MARKS, &[1, 0, 0, 0, 0b101]), &none(3)).is_err());
        assert!(marked.head_bytes(&head(MARKS, &[2, 0, 0, 0, 1])).is_none());
        assert!(marked.head_bytes(&head(MARKS, &[255; 4])).is_none());
    }
}
