//! The one meaning of equality for keys, and rows of bytes that have it.
//!
//! NULL is a value; the two zeros of floats are one value, and so are all NaNs, wherever they stand
//! in a key: alone, in a ROW or in an ARRAY. Keys of fixed width have it by their words, others by
//! the rows that are made here. What compares keys takes them from this crate; Arrow's row format
//! alone tells the two zeros apart, and sorts them.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, ArrowPrimitiveType, AsArray, make_array};
use arrow::buffer::Buffer;
use arrow::compute::SortOptions;
use arrow::datatypes::{ArrowNativeType, DataType, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, RowParser, Rows, SortField};

/// Rows of bytes of some columns: two rows are equal where all their values are equal as keys, and
/// less where the first value that differs is less.
#[derive(Debug)]
pub struct KeyRows {
    converter: RowConverter,
}

impl KeyRows {
    /// Of columns of these types, each in its order.
    ///
    /// # Errors
    /// [`ArrowError::NotYetImplemented`] if values of a type cannot be compared.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn new(
        columns: impl IntoIterator<Item = (DataType, SortOptions)>,
    ) -> Result<Self, ArrowError> {
        let field = |(of, options)| SortField::new_with_options(of, options);
        Ok(Self { converter: RowConverter::new(columns.into_iter().map(field).collect())? })
    }

    /// Whether values of a type can be compared.
    pub fn supports(data_type: &DataType) -> bool {
        RowConverter::supports_fields(&[SortField::new(data_type.clone())])
    }

    /// The rows of some columns that are keys in ascending order.
    ///
    /// # Errors
    /// As [`KeyRows::new`].
    pub fn of(columns: &[ArrayRef]) -> Result<Rows, ArrowError> {
        Self::ordered(columns, columns.iter().map(|_| SortOptions::default()))
    }

    /// The rows of some columns, each in its order.
    ///
    /// # Errors
    /// As [`KeyRows::new`].
    pub fn ordered(
        columns: &[ArrayRef],
        options: impl IntoIterator<Item = SortOptions>,
    ) -> Result<Rows, ArrowError> {
        let types = columns.iter().map(|column| column.data_type().clone());
        Self::new(types.zip(options))?.rows(columns)
    }

    /// Rows that tell apart all values that look apart, the two zeros too: for the order of rows
    /// that no key orders, which is to be the same in every run.
    ///
    /// # Errors
    /// As [`KeyRows::new`].
    pub fn exact(columns: &[ArrayRef]) -> Result<Rows, ArrowError> {
        let types = columns.iter().map(|column| (column.data_type().clone(), Default::default()));
        Self::new(types)?.converter.convert_columns(columns)
    }

    /// The rows of some columns.
    ///
    /// # Errors
    /// [`ArrowError::InvalidArgumentError`] if the columns are of other types.
    pub fn rows(&self, columns: &[ArrayRef]) -> Result<Rows, ArrowError> {
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        self.converter.convert_columns(&columns)
    }

    /// No rows.
    pub(crate) fn empty(&self) -> Rows {
        self.converter.empty_rows(0, 0)
    }

    /// Adds the rows of some columns.
    pub(crate) fn append(&self, rows: &mut Rows, columns: &[ArrayRef]) -> Result<(), ArrowError> {
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        self.converter.append(rows, &columns)
    }

    pub(crate) fn parser(&self) -> RowParser {
        self.converter.parser()
    }

    /// The columns of some rows.
    pub(crate) fn columns<'a>(
        &self,
        rows: impl IntoIterator<Item = arrow::row::Row<'a>>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        self.converter.convert_rows(rows)
    }
}

/// Whether there are floats in values of a type: of others, equal values are alike.
pub fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_floats(values),
        DataType::RunEndEncoded(_, values) => has_floats(values.data_type()),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_floats(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| has_floats(field.data_type())),
        other => other.is_floating(),
    }
}

/// The column, with one zero and one NaN in place of all: its equal values are alike.
pub fn canonical(column: &ArrayRef) -> ArrayRef {
    fn floats<T>(column: &ArrayRef, one: impl Fn(T::Native) -> T::Native) -> ArrayRef
    where
        T: ArrowPrimitiveType,
    {
        Arc::new(column.as_primitive::<T>().unary::<_, T>(one))
    }
    // Adding zero turns -0.0 into 0.0.
    match column.data_type() {
        DataType::Float32 => {
            floats::<Float32Type>(column, |v| if v.is_nan() { f32::NAN } else { v + 0.0 })
        }
        DataType::Float64 => {
            floats::<Float64Type>(column, |v| if v.is_nan() { f64::NAN } else { v + 0.0 })
        }
        other if has_floats(other) => make_array(canonical_data(&column.to_data())),
        _ => Arc::clone(column),
    }
}

/// A column of floats whose NaNs are all one, above infinity in the total order of IEEE 754. The
/// other values stay as they are, also the zeros. A column without another NaN, or of another
/// type, is shared.
pub fn with_one_nan(column: &ArrayRef) -> ArrayRef {
    type F16 = <Float16Type as ArrowPrimitiveType>::Native;
    fn floats<T>(column: &ArrayRef, is_other: fn(T::Native) -> bool, nan: T::Native) -> ArrayRef
    where
        T: ArrowPrimitiveType,
    {
        let floats = column.as_primitive::<T>();
        // A fold without a branch takes several values at a time.
        if !floats.values().iter().fold(false, |any, value| any | is_other(*value)) {
            return Arc::clone(column);
        }
        Arc::new(floats.unary::<_, T>(|value| if is_other(value) { nan } else { value }))
    }
    match column.data_type() {
        DataType::Float16 => floats::<Float16Type>(
            column,
            |v| v.is_nan() & (v.to_bits() != F16::NAN.to_bits()),
            F16::NAN,
        ),
        DataType::Float32 => floats::<Float32Type>(
            column,
            |v| v.is_nan() & (v.to_bits() != f32::NAN.to_bits()),
            f32::NAN,
        ),
        DataType::Float64 => floats::<Float64Type>(
            column,
            |v| v.is_nan() & (v.to_bits() != f64::NAN.to_bits()),
            f64::NAN,
        ),
        _ => Arc::clone(column),
    }
}

/// The same of values with others within.
fn canonical_data(data: &ArrayData) -> ArrayData {
    if !has_floats(data.data_type()) {
        return data.clone();
    }
    let builder = data.clone().into_builder();
    let changed = match data.data_type() {
        DataType::Float16 => builder.buffers(vec![bits(data, 0x7c00_u16, 0x7e00, 0x8000)]),
        DataType::Float32 => {
            builder.buffers(vec![bits(data, 0x7f80_0000_u32, 0x7fc0_0000, 0x8000_0000)])
        }
        DataType::Float64 => {
            builder.buffers(vec![bits(data, 0x7ff0_u64 << 48, 0x7ff8 << 48, 1 << 63)])
        }
        _ => builder.child_data(data.child_data().iter().map(canonical_data).collect()),
    };
    // Of each value only the bits are others.
    changed.build().unwrap_or_else(|_| data.clone())
}

/// The buffer of floats, which are given as their bits: those of infinity, of NaN and of the sign.
fn bits<N>(data: &ArrayData, infinity: N, nan: N, sign: N) -> Buffer
where
    N: ArrowNativeType + Ord + std::ops::BitAnd<Output = N> + std::ops::Not<Output = N>,
{
    let one = |&value: &N| match value & !sign {
        magnitude if magnitude > infinity => nan,
        magnitude if magnitude == N::default() => magnitude,
        _ => value,
    };
    data.buffers()[0].typed_data::<N>().iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref as one;

    use arrow::array::{Float32Array, Float64Array, ListArray, StructArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Field;

    use super::*;

    /// Values, of which each one and the next are equal.
    fn pairs() -> Vec<ArrayRef> {
        let other = f64::from_bits(0xfff8_0000_0000_0001);
        let wide = Float64Array::from(vec![0.0, -0.0, f64::NAN, other, 1.5, 1.5]);
        let other = f32::from_bits(0xffc0_0001);
        let narrow = Float32Array::from(vec![-0.0, 0.0, other, f32::NAN, -1.5, -1.5]);
        let fields = vec![
            Arc::new(Field::new("a", DataType::Float64, true)),
            Arc::new(Field::new("b", DataType::Float32, true)),
        ];
        let columns: Vec<ArrayRef> = vec![Arc::new(wide.clone()), Arc::new(narrow.clone())];
        let row = StructArray::new(fields.into(), columns, None);
        let item = Arc::new(Field::new("item", row.data_type().clone(), true));
        let lists = ListArray::new(
            item,
            OffsetBuffer::from_lengths([1, 1, 1, 1, 1, 1]),
            Arc::new(row.clone()),
            Some(NullBuffer::from(vec![true, true, true, true, false, false])),
        );
        vec![Arc::new(wide), Arc::new(narrow), Arc::new(row), Arc::new(lists)]
    }

    #[test]
    fn equal_values_have_equal_rows_wherever_they_stand() {
        for column in pairs() {
            let (equal, exact) = (KeyRows::of(one(&column)), KeyRows::exact(one(&column)));
            let (equal, exact) = (equal.expect("rows"), exact.expect("rows"));
            for at in [0, 2, 4] {
                assert_eq!(equal.row(at), equal.row(at + 1), "{column:?}");
                assert_eq!(exact.row(at) == exact.row(at + 1), at == 4, "{column:?}");
            }
            assert_ne!(equal.row(0), equal.row(2), "{column:?}");
        }
    }

    #[test]
    fn parts_of_columns_are_canonical_too() {
        for column in pairs() {
            let whole = canonical(&column);
            assert_eq!(whole.data_type(), column.data_type());
            assert_eq!(&canonical(&column.slice(1, 3)), &whole.slice(1, 3));
            assert_eq!(&canonical(&whole), &whole);
        }
    }

    #[test]
    fn nans_are_one_and_zeros_keep_their_signs() {
        let bits = |column: &ArrayRef| -> Vec<u64> {
            let floats = column.as_primitive::<Float64Type>();
            floats.values().iter().map(|value| value.to_bits()).collect()
        };
        let some: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, -f64::NAN, f64::INFINITY]));
        let ordered = Float64Array::from(vec![-0.0, f64::NAN, f64::INFINITY]);
        assert_eq!(bits(&with_one_nan(&some)), bits(&(Arc::new(ordered) as ArrayRef)));
        let narrow: ArrayRef = Arc::new(Float32Array::from(vec![Some(-f32::NAN), None, Some(1.0)]));
        let made = with_one_nan(&narrow);
        let made = made.as_primitive::<Float32Type>();
        assert!(made.value(0).is_nan() && made.value(0).is_sign_positive());
        assert!(made.is_null(1) && made.value(2).to_bits() == 1.0_f32.to_bits());
        // That of another program may have other bits behind the point.
        let foreign = f64::from_bits(f64::NAN.to_bits() + 1);
        let some: ArrayRef = Arc::new(Float64Array::from(vec![foreign, 1.0]));
        let one: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 1.0]));
        assert_eq!(bits(&with_one_nan(&some)), bits(&one));
        // A column that is in order is not copied.
        for values in [vec![f64::NEG_INFINITY, -0.0, f64::NAN], vec![]] {
            let same: ArrayRef = Arc::new(Float64Array::from(values));
            assert!(Arc::ptr_eq(&with_one_nan(&same), &same));
        }
    }
}
