//! Integer columns in as few bytes as they need: the distance from the least value (frame of
//! reference).
//!
//! Keys of a delta lie close together and counts are small: a group of 16 bytes often travels in 3.
//! It pays where columns are kept or staged too, since memory that is touched for the first time
//! costs more than the arithmetic. Columns of other types, and those that do not get narrower, stay
//! as they are.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray, make_array,
};
use arrow::compute::{max, min};
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type,
};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use crate::error::DataflowError;

/// Bytes of a column's [`Base`] on the wire.
const BASE_BYTES: usize = 9;

/// What a narrow column is the distance from, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Base {
    least: i64,
    /// Bytes of a value: 1, 2 or 4; 0 for a column that stayed as it was.
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
            _ => None,
        }
    }
}

/// A batch whose columns are as narrow as they can be.
#[derive(Debug, Clone)]
pub(crate) struct Narrow {
    pub(crate) columns: RecordBatch,
    bases: Vec<Base>,
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
        Ok(Self { columns, bases })
    }

    /// What a receiver has to know beside the columns.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.bases.len() * BASE_BYTES);
        for base in &self.bases {
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

    /// Bytes of [`Narrow::head`].
    pub(crate) fn head_bytes(&self) -> usize {
        self.wide.fields().len() * BASE_BYTES
    }

    /// The schema of the columns whose head this is; `None` for a head that cannot be.
    pub(crate) fn schema(&self, head: &[u8]) -> Option<SchemaRef> {
        let bases = self.bases(head)?;
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
        let columns = narrow.columns().iter().zip(fields).zip(bases);
        let columns: Result<Vec<_>, _> =
            columns.map(|((column, field), base)| widen(column, base, field.data_type())).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(narrow.num_rows()));
        RecordBatch::try_new_with_options(self.wide.clone(), columns?, &options)
            .map_err(|e| e.to_string())
    }

    fn bases(&self, head: &[u8]) -> Option<Vec<Base>> {
        let head = head.get(..self.head_bytes())?;
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

    fn there_and_back(columns: Vec<ArrayRef>) -> (Narrow, RecordBatch) {
        let named = columns.into_iter().enumerate().map(|(i, c)| (format!("{i}"), c, true));
        let batch = RecordBatch::try_from_iter_with_nullable(named).unwrap();
        let narrow = Narrow::of(&batch).unwrap();
        let widen = Widen::new(batch.schema());
        let head = narrow.head();
        assert_eq!(head.len(), widen.head_bytes());
        assert_eq!(widen.schema(&head).unwrap(), narrow.columns.schema());
        let back = widen.widen(&head, &narrow.columns).unwrap();
        assert_eq!(back, batch);
        (narrow, batch)
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
        let head = narrow.head();
        assert!(widen.schema(&head[..17]).is_none());
        let with = |at: usize, width: u8| {
            let mut head = head.clone();
            head[at] = width;
            head
        };
        assert!(widen.schema(&with(8, 3)).is_none());
        assert!(widen.schema(&with(17, 1)).is_none(), "a float is not narrow");
        assert!(widen.widen(&with(8, 2), &narrow.columns).is_err());
    }
}
