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

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, NullArray, PrimitiveArray, make_array,
};
use arrow::compute::{max, min};
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type,
};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::bit_iterator::BitIndexIterator;

use crate::error::DataflowError;

/// Bytes of a column's [`Base`] on the wire.
const BASE_BYTES: usize = 9;
/// The width of consecutive numbers: they have no bytes.
const RUN: u8 = 16;
/// The width of numbers that are told by bits, which follow the bases behind their length.
const MARKS: u8 = 17;
/// Rows of a run at most: they have no bytes that would bound them.
const RUN_ROWS_MAX: usize = 1 << 20;

/// What a narrow column is the distance from, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Base {
    least: i64,
    /// Bytes of a value: 1, 2 or 4; 0 for a column that stayed as it was; [`RUN`] or [`MARKS`].
    width: u8,
}

impl Base {
    const AS_IT_WAS: Self = Self { least: 0, width: 0 };

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

/// A batch whose columns are as narrow as they can be.
#[derive(Debug, Clone)]
pub(crate) struct Narrow {
    pub(crate) columns: RecordBatch,
    bases: Vec<Base>,
    /// The values of the first column, if they ascend.
    ascending: Option<Int64Array>,
}

impl Narrow {
    /// Narrows the columns of `batch`.
    ///
    /// # Errors
    /// Arrow's, for a column that cannot be built.
    pub(crate) fn of(batch: &RecordBatch) -> Result<Self, DataflowError> {
        let (mut columns, mut bases) = (Vec::new(), Vec::new());
        for column in batch.columns() {
            let (column, base) = narrow(column)?;
            columns.push(column);
            bases.push(base);
        }
        let schema = schema_of(columns.iter().map(|column| column.data_type().clone()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = RecordBatch::try_new_with_options(schema, columns, &options)?;
        let first = batch.columns().first();
        let ascending = first.map(ascending).transpose()?.flatten();
        Ok(Self { columns, bases, ascending })
    }

    /// So many rows from one on: what a receiver has to know beside the columns, and the columns.
    ///
    /// # Errors
    /// Arrow's, for a batch that cannot be built.
    pub(crate) fn part(
        &self,
        from: usize,
        rows: usize,
    ) -> Result<(Vec<u8>, RecordBatch), DataflowError> {
        let part = self.columns.slice(from, rows);
        let words = self.ascending.as_ref().map(|words| &words.values()[from..from + rows]);
        let ends = words.and_then(|words| words.first().copied().zip(words.last().copied()));
        let Some((least, most)) = ends else {
            return Ok((self.head(self.bases.first().copied()), part));
        };
        // Ascending numbers are a run if there are as many as there are from the first to the last.
        let span = most.wrapping_sub(least) as u64;
        let width = match self.bases[0].width {
            0 => 8,
            width => u64::from(width),
        };
        let width = match span / 8 + 5 {
            _ if span == rows as u64 - 1 && rows <= RUN_ROWS_MAX => RUN,
            marks if marks < width * rows as u64 => MARKS,
            _ => return Ok((self.head(self.bases.first().copied()), part)),
        };
        let mut head = self.head(Some(Base { least, width }));
        if width == MARKS {
            let mut marks = vec![0u8; (span / 8 + 1) as usize];
            for word in words.into_iter().flatten() {
                let at = word.wrapping_sub(least) as u64;
                marks[(at / 8) as usize] |= 1 << (at % 8);
            }
            head.extend_from_slice(&(marks.len() as u32).to_le_bytes());
            head.extend_from_slice(&marks);
        }
        let none: ArrayRef = Arc::new(NullArray::new(rows));
        let columns: Vec<ArrayRef> =
            std::iter::once(none).chain(part.columns()[1..].iter().cloned()).collect();
        let schema = schema_of(columns.iter().map(|column| column.data_type().clone()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok((head, RecordBatch::try_new_with_options(schema, columns, &options)?))
    }

    fn head(&self, first: Option<Base>) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.bases.len() * BASE_BYTES);
        for base in first.iter().chain(self.bases.iter().skip(1)) {
            head.extend_from_slice(&base.least.to_le_bytes());
            head.push(base.width);
        }
        head
    }
}

/// The other side of [`Narrow`]: knows the types as they were.
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
            Some(Base { width: MARKS, .. }) => 4 + marks_of(extra.get(bases..)?)?.len(),
            _ => 0,
        };
        Some(bases + marks)
    }

    fn bases_bytes(&self) -> usize {
        self.wide.fields().len() * BASE_BYTES
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
        let wide = |((column, field), base): ((&ArrayRef, &Arc<Field>), Base)| match base.width {
            RUN => run(base.least, column.len(), field.data_type()),
            MARKS => marked(base.least, marks, column.len(), field.data_type()),
            _ => widen(column, base, field.data_type()),
        };
        let columns: Result<Vec<_>, _> = columns.map(wide).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(narrow.num_rows()));
        RecordBatch::try_new_with_options(self.wide.clone(), columns?, &options)
            .map_err(|e| e.to_string())
    }

    fn bases(&self, head: &[u8]) -> Option<Vec<Base>> {
        let head = head.get(..self.bases_bytes())?;
        let base = |&[ref least @ .., width]: &[u8; BASE_BYTES]| Base {
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
fn is_word(data_type: &DataType) -> bool {
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

fn narrow(column: &ArrayRef) -> Result<(ArrayRef, Base), DataflowError> {
    let as_it_was = || Ok((Arc::clone(column), Base::AS_IT_WAS));
    if !is_word(column.data_type()) {
        return as_it_was();
    }
    let words = reinterpret(column, &DataType::Int64)?;
    let words: &Int64Array = words.as_primitive();
    let (least, most) = (min(words).unwrap_or(0), max(words).unwrap_or(0));
    let span = most.wrapping_sub(least) as u64;
    let (narrow, width): (ArrayRef, u8) = match span {
        0..=0xFF => (distances::<UInt8Type>(words, |word| word.wrapping_sub(least) as u8), 1),
        0x100..=0xFFFF => {
            (distances::<UInt16Type>(words, |word| word.wrapping_sub(least) as u16), 2)
        }
        0x1_0000..=0xFFFF_FFFF => {
            (distances::<UInt32Type>(words, |word| word.wrapping_sub(least) as u32), 4)
        }
        _ => return as_it_was(),
    };
    Ok((narrow, Base { least, width }))
}

fn distances<T: ArrowPrimitiveType>(words: &Int64Array, of: impl Fn(i64) -> T::Native) -> ArrayRef {
    Arc::new(words.unary::<_, T>(of))
}

/// The values of a column of words, if none is missing and each is greater than the one before.
fn ascending(column: &ArrayRef) -> Result<Option<Int64Array>, DataflowError> {
    // Of unsigned ones those that are negative here are not in order, and stay as they are.
    if !is_word(column.data_type()) || column.null_count() > 0 {
        return Ok(None);
    }
    let words: Int64Array = reinterpret(column, &DataType::Int64)?.as_primitive().clone();
    Ok(words.values().is_sorted_by(|a, b| a < b).then_some(words))
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

fn widen(column: &ArrayRef, base: Base, wide: &DataType) -> Result<ArrayRef, String> {
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
    use arrow::array::{
        Float64Array, IntervalDayTimeArray, StringArray, TimestampMillisecondArray, UInt64Array,
    };
    use arrow::datatypes::IntervalDayTime;
    use proptest::prelude::*;

    fn there_and_back(columns: Vec<ArrayRef>) -> (Narrow, RecordBatch) {
        let named = columns.into_iter().enumerate().map(|(i, c)| (format!("{i}"), c, true));
        let batch = RecordBatch::try_from_iter_with_nullable(named).unwrap();
        let narrow = Narrow::of(&batch).unwrap();
        let widen = Widen::new(batch.schema());
        let (head, columns) = narrow.part(0, batch.num_rows()).unwrap();
        assert_eq!(widen.head_bytes(&head), Some(head.len()));
        assert_eq!(widen.schema(&head).unwrap(), columns.schema());
        let back = widen.widen(&head, &columns).unwrap();
        assert_eq!(back, batch);
        (narrow, batch)
    }

    /// The width of the first column of rows, and the bytes of its values.
    fn form(values: Vec<i64>) -> (u8, usize) {
        let (narrow, batch) = there_and_back(vec![Arc::new(Int64Array::from(values))]);
        let (head, columns) = narrow.part(0, batch.num_rows()).unwrap();
        (
            head[8],
            head.len() - BASE_BYTES
                + columns.column(0).to_data().buffers().iter().map(|b| b.len()).sum::<usize>(),
        )
    }

    #[test]
    fn keys_have_the_form_with_the_fewest_bytes() {
        assert_eq!(form((-5..1_000).collect()), (RUN, 0));
        assert_eq!(form(vec![i64::MAX]), (RUN, 0));
        assert_eq!(form((0..1_000).map(|i| i * 2).collect()), (MARKS, 4 + 250));
        assert_eq!(form((0..100_000).map(|i| i * 63).collect()).0, 4);
        assert_eq!(form((0..100_000).map(|i| i * 8).collect()).0, MARKS);
        assert_eq!(form((0..100).map(|i| 99 - i).collect()), (1, 100));
        assert_eq!(form(vec![1, 1]), (1, 2));
        assert_eq!(form(vec![i64::MIN, 0, i64::MAX]).0, 0);
    }

    proptest! {
        /// Keys of any density, signed or not, come back, whole and in parts.
        #[test]
        fn ascending_keys_come_back(
            steps in prop::collection::vec(prop_oneof![Just(1u64), 1u64..9, 1u64..1 << 40], 1..300),
            first in any::<i64>(),
            cut in 0usize..300,
            unsigned in any::<bool>(),
        ) {
            let mut at = first;
            let keys: Vec<i64> = steps.iter().map(|&step| {
                at = at.wrapping_add(step as i64);
                at
            }).collect();
            let column: ArrayRef = if unsigned {
                let keys = keys.iter().map(|&key| key as u64);
                Arc::new(UInt64Array::from_iter_values(keys))
            } else {
                Arc::new(Int64Array::from(keys.clone()))
            };
            let states: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys.len() as i64));
            let (narrow, batch) = there_and_back(vec![column, states]);
            let cut = cut.min(keys.len());
            let widen = Widen::new(batch.schema());
            for (from, rows) in [(0, cut), (cut, keys.len() - cut)] {
                let (head, columns) = narrow.part(from, rows).unwrap();
                prop_assert_eq!(widen.widen(&head, &columns).unwrap(), batch.slice(from, rows));
            }
        }
    }

    #[test]
    fn columns_come_back_and_are_as_narrow_as_they_can_be() {
        let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let (narrow, _) = there_and_back(vec![
            column(vec![Some(1_000_000), None, Some(1_000_255)]),
            column(vec![Some(-1), Some(255), None]),
            column(vec![Some(0), Some(1 << 32), Some((1 << 32) - 1)]),
            column(vec![Some(i64::MIN), Some(i64::MAX), None]),
            column(vec![Some(i64::MAX), Some(i64::MAX - 70_000), Some(i64::MAX)]),
            column(vec![None, None, None]),
            Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1, u64::MAX])),
            Arc::new(UInt64Array::from(vec![0, u64::MAX, 5])),
            Arc::new(TimestampMillisecondArray::from(vec![Some(5), None, Some(300)])),
            Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0])),
            Arc::new(StringArray::from(vec![Some("a"), None, Some("")])),
            Arc::new(IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, 2); 3])),
        ]);
        let widths: Vec<u8> = narrow.bases.iter().map(|base| base.width).collect();
        assert_eq!(widths, [1, 2, 0, 0, 4, 1, 1, 1, 2, 0, 0, 0]);
        there_and_back(vec![column(vec![])]);
    }

    #[test]
    fn a_slice_is_narrowed_alone() {
        let all: ArrayRef = Arc::new(Int64Array::from_iter_values([1 << 60, 7, 8, 9, -(1 << 60)]));
        let (narrow, _) = there_and_back(vec![all.slice(1, 3)]);
        assert_eq!(narrow.columns.column(0).as_primitive::<UInt8Type>().values(), &[0, 1, 2]);
    }

    #[test]
    fn heads_that_cannot_be_are_refused() {
        let (narrow, batch) = there_and_back(vec![
            Arc::new(Int64Array::from(vec![1, 2])),
            Arc::new(Float64Array::from(vec![1.0, 2.0])),
        ]);
        let widen = Widen::new(batch.schema());
        let head = narrow.head(Some(narrow.bases[0]));
        assert!(widen.schema(&head[..17]).is_none());
        let with = |at: usize, width: u8| {
            let mut head = head.clone();
            head[at] = width;
            head
        };
        assert!(widen.schema(&with(8, 3)).is_none());
        assert!(widen.schema(&with(17, 1)).is_none(), "a float is not narrow");
        assert!(widen.widen(&with(8, 2), &narrow.columns).is_err());
        assert!(widen.schema(&with(17, RUN)).is_none(), "only the first column is a run");
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
