//! Columns of fixed width as 64-bit words, and back.
//!
//! Two values are one group exactly when their words are equal: the zeros of floats are one word,
//! and so are all NaNs.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::DataType;

use crate::StateError;

/// Runs `$body` with `$T` as the Arrow type of `$data_type`, if that has numbers of at most 64
/// bits, else `$other`.
macro_rules! with_fixed {
    ($data_type:expr, $T:ident => $body:expr, $other:expr) => {{
        use ::arrow::datatypes::{DataType as D, TimeUnit::*, *};
        macro_rules! body {
            ($type:ty) => {{
                type $T = $type;
                $body
            }};
        }
        match $data_type {
            D::Int8 => body!(Int8Type),
            D::Int16 => body!(Int16Type),
            D::Int32 => body!(Int32Type),
            D::Int64 => body!(Int64Type),
            D::UInt8 => body!(UInt8Type),
            D::UInt16 => body!(UInt16Type),
            D::UInt32 => body!(UInt32Type),
            D::UInt64 => body!(UInt64Type),
            D::Float32 => body!(Float32Type),
            D::Float64 => body!(Float64Type),
            D::Date32 => body!(Date32Type),
            D::Date64 => body!(Date64Type),
            D::Time32(Second) => body!(Time32SecondType),
            D::Time32(Millisecond) => body!(Time32MillisecondType),
            D::Time64(Microsecond) => body!(Time64MicrosecondType),
            D::Time64(Nanosecond) => body!(Time64NanosecondType),
            D::Timestamp(Second, _) => body!(TimestampSecondType),
            D::Timestamp(Millisecond, _) => body!(TimestampMillisecondType),
            D::Timestamp(Microsecond, _) => body!(TimestampMicrosecondType),
            D::Timestamp(Nanosecond, _) => body!(TimestampNanosecondType),
            D::Duration(Second) => body!(DurationSecondType),
            D::Duration(Millisecond) => body!(DurationMillisecondType),
            D::Duration(Microsecond) => body!(DurationMicrosecondType),
            D::Duration(Nanosecond) => body!(DurationNanosecondType),
            _ => $other,
        }
    }};
}
pub(crate) use with_fixed;

/// A native number of at most 64 bits.
trait Word: Copy {
    /// Whether a column of it is a column of words as it stands.
    const SAME: bool;
    fn word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

macro_rules! word_of_integer {
    ($($type:ty),*) => {
        $(impl Word for $type {
            const SAME: bool = size_of::<$type>() == 8;
            #[inline(always)]
            fn word(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as Self
            }
        })*
    };
}
word_of_integer!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! word_of_float {
    ($($type:ty, $bits:ty);*) => {
        $(impl Word for $type {
            const SAME: bool = false;
            #[inline(always)]
            fn word(self) -> u64 {
                // Adding zero turns -0.0 into 0.0.
                u64::from(if self.is_nan() { Self::NAN.to_bits() } else { (self + 0.0).to_bits() })
            }
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                Self::from_bits(word as $bits)
            }
        })*
    };
}
word_of_float!(f32, u32; f64, u64);

/// How many bits the words of a column need, `None` for a type that has no words.
pub(crate) fn bits(data_type: &DataType) -> Option<u32> {
    match data_type {
        DataType::Boolean => Some(1),
        _ => with_fixed!(
            data_type,
            T => Some(8 * size_of::<<T as ArrowPrimitiveType>::Native>() as u32),
            None
        ),
    }
}

/// Whether neighbouring values of a type have neighbouring words.
pub(crate) fn is_integer_like(data_type: &DataType) -> bool {
    bits(data_type).is_some() && !data_type.is_floating()
}

/// Whether the values of a column of this type are 64-bit words as they lie in memory, of which
/// neighbours are neighbouring keys.
pub fn is_word(data_type: &DataType) -> bool {
    bits(data_type) == Some(u64::BITS) && is_integer_like(data_type)
}

/// The words of a column, in `scratch` where they are not there already. A null has any word.
pub(crate) fn words<'a>(
    column: &'a ArrayRef,
    scratch: &'a mut Vec<u64>,
) -> Result<&'a [u64], StateError> {
    scratch.clear();
    if let Some(column) = column.as_boolean_opt() {
        scratch.extend(column.values().iter().map(u64::from));
        return Ok(scratch);
    }
    with_fixed!(
        column.data_type(),
        T => Ok(primitive(column.as_primitive::<T>(), scratch)),
        Err(StateError::Key(column.data_type().clone()))
    )
}

/// The words of a column, if they are there already.
pub(crate) fn same(column: &ArrayRef) -> Option<&[u64]> {
    with_fixed!(
        column.data_type(),
        T => {
            let words = || column.as_primitive::<T>().values().inner().typed_data();
            <<T as ArrowPrimitiveType>::Native as Word>::SAME.then(words)
        },
        None
    )
}

fn primitive<'a, T>(column: &'a PrimitiveArray<T>, scratch: &'a mut Vec<u64>) -> &'a [u64]
where
    T: ArrowPrimitiveType<Native: Word>,
{
    if T::Native::SAME {
        return column.values().inner().typed_data();
    }
    scratch.extend(column.values().iter().map(|value| value.word()));
    scratch
}

/// The column of type `data_type` that has these words, and a null at `null_at`.
pub(crate) fn column(
    data_type: &DataType,
    words: Vec<u64>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, StateError> {
    if *data_type == DataType::Boolean {
        let values = BooleanBuffer::collect_bool(words.len(), |i| words[i] != 0);
        return Ok(Arc::new(BooleanArray::new(values, nulls)));
    }
    with_fixed!(
        data_type,
        T => {
            let array = PrimitiveArray::<T>::try_new(natives(words), nulls)?;
            Ok(Arc::new(array.with_data_type(data_type.clone())))
        },
        Err(StateError::Key(data_type.clone()))
    )
}

fn natives<N: Word + arrow::datatypes::ArrowNativeType>(words: Vec<u64>) -> ScalarBuffer<N> {
    if N::SAME {
        let len = words.len();
        return ScalarBuffer::new(Buffer::from_vec(words), 0, len);
    }
    words.into_iter().map(N::from_word).collect()
}

/// A null at `null_at` among `len` values.
pub(crate) fn null_at(null_at: Option<usize>, len: usize) -> Option<NullBuffer> {
    let at = null_at?;
    (at < len).then(|| NullBuffer::new(BooleanBuffer::collect_bool(len, |i| i != at)))
}
