//! Minimum and maximum.
//!
//! A value is stored as an unsigned code of the same width that is greater for the better value, so
//! that zero, which a fresh table holds, is the zero of the CRDT, and one kernel serves both
//! functions. Floats are in total order with all NaNs equal and greater than infinity, as Arrow
//! sorts them; a plain comparison would make the result depend on the order of rows, which a late
//! merge does not have.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Decimal128Type};
use zerocopy::FromZeros;

use super::valid::Valid;
use super::{Values, column};
use crate::table::{Plain, ZeroedTable};
use crate::words::with_fixed;
use crate::{
    Accumulator, Aggregate, ConsumedRows, DenseRows, Groups, Part, SparseIds, StateError, fused,
    kernel,
};

/// `max` of integers, floats, decimals of 128 bits, dates, times, timestamps and durations; `None`
/// for other types.
pub fn max(of: &DataType) -> Option<Arc<dyn Aggregate>> {
    extreme::<true>(of)
}

/// `min` of the same types as [`max`].
pub fn min(of: &DataType) -> Option<Arc<dyn Aggregate>> {
    extreme::<false>(of)
}

fn extreme<const MAX: bool>(of: &DataType) -> Option<Arc<dyn Aggregate>> {
    if matches!(of, DataType::Decimal128(..)) {
        return Some(Arc::new(Extreme::<Decimal128Type, MAX>::new(of)));
    }
    with_fixed!(of, T => Some(Arc::new(Extreme::<T, MAX>::new(of))), None)
}

/// A value with an order-preserving code.
trait Ordered: Copy {
    type Code: Plain + Ord + Send + std::ops::Not<Output = Self::Code>;
    fn encode(self) -> Self::Code;
    fn decode(code: Self::Code) -> Self;
}

macro_rules! ordered_integer {
    ($($signed:ty, $unsigned:ty);*) => {
        $(
            impl Ordered for $signed {
                type Code = $unsigned;
                #[inline(always)]
                fn encode(self) -> $unsigned {
                    (self ^ <$signed>::MIN) as $unsigned
                }
                fn decode(code: $unsigned) -> Self {
                    code as $signed ^ <$signed>::MIN
                }
            }
            impl Ordered for $unsigned {
                type Code = $unsigned;
                #[inline(always)]
                fn encode(self) -> $unsigned {
                    self
                }
                fn decode(code: $unsigned) -> Self {
                    code
                }
            }
        )*
    };
}
ordered_integer!(i8, u8; i16, u16; i32, u32; i64, u64; i128, u128);

macro_rules! ordered_float {
    ($($float:ty, $signed:ty, $unsigned:ty);*) => {
        $(impl Ordered for $float {
            type Code = $unsigned;
            #[inline(always)]
            fn encode(self) -> $unsigned {
                let bits = if self.is_nan() { <$float>::NAN.to_bits() } else { self.to_bits() };
                // Negative: all bits turned round. Positive: only the sign.
                let sign = (bits as $signed >> (<$signed>::BITS - 1)) as $unsigned;
                bits ^ (sign | 1 << (<$signed>::BITS - 1))
            }
            fn decode(code: $unsigned) -> Self {
                let sign = (!code as $signed >> (<$signed>::BITS - 1)) as $unsigned;
                Self::from_bits(code ^ (sign | 1 << (<$signed>::BITS - 1)))
            }
        })*
    };
}
ordered_float!(f32, i32, u32; f64, i64, u64);

#[derive(Debug)]
struct Extreme<T, const MAX: bool> {
    data_type: DataType,
    of: PhantomData<T>,
}

impl<T, const MAX: bool> Extreme<T, MAX> {
    fn new(of: &DataType) -> Self {
        Self { data_type: of.clone(), of: PhantomData }
    }
}

impl<T, const MAX: bool> Aggregate for Extreme<T, MAX>
where
    T: Values,
    T::Native: Ordered,
{
    fn state_types(&self) -> Vec<DataType> {
        vec![self.data_type.clone()]
    }

    fn output_type(&self) -> DataType {
        self.data_type.clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Extremes::<T, MAX> {
            data_type: self.data_type.clone(),
            codes: ZeroedTable::new(),
            worst: false,
            valid: Valid::default(),
        })
    }

    fn is_fusible(&self) -> bool {
        true
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn sparse_ids(&self) -> SparseIds {
        SparseIds::Reported(size_of::<<T::Native as Ordered>::Code>())
    }
}

/// The extremes of one slice.
struct Extremes<T: ArrowPrimitiveType<Native: Ordered>, const MAX: bool> {
    data_type: DataType,
    codes: ZeroedTable<<T::Native as Ordered>::Code>,
    /// Whether there was a value that is worse than all others, whose code is that of no value.
    worst: bool,
    valid: Valid,
}

impl<T: ArrowPrimitiveType<Native: Ordered>, const MAX: bool> Extremes<T, MAX> {
    #[inline(always)]
    fn code(value: T::Native) -> <T::Native as Ordered>::Code {
        if MAX { value.encode() } else { !value.encode() }
    }

    /// Folds a value into a slot, and its code into the least.
    #[inline(always)]
    fn fold(
        slot: &mut <T::Native as Ordered>::Code,
        value: T::Native,
        least: &mut <T::Native as Ordered>::Code,
    ) {
        let code = Self::code(value);
        *least = (*least).min(code);
        // Most values are not extreme; a store would have the next row of the group wait for it.
        if code > *slot {
            *slot = code;
        }
    }

    fn value(code: <T::Native as Ordered>::Code) -> T::Native {
        T::Native::decode(if MAX { code } else { !code })
    }
}

impl<T: Values<Native: Ordered>, const MAX: bool> Accumulator for Extremes<T, MAX> {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let values = column::<T>(args, 0, "argument of min or max")?;
        crate::error::same("rows of min or max", groups.rows(), values.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        self.codes.grow(total.max(groups.reach() + 1));
        let codes = self.codes.as_mut();
        let mut least = !<T::Native as Ordered>::Code::new_zeroed();
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => {
                self.valid.all(groups, total);
                kernel::scatter(codes, groups, values.values(), |slot, value| {
                    Self::fold(slot, value, &mut least);
                });
            }
            Some(nulls) => self.valid.some(groups, nulls, total, |row, group| {
                let code = Self::code(values.values()[row]);
                least = least.min(code);
                codes[group] = codes[group].max(code);
            }),
        }
        self.worst |= least == <T::Native as Ordered>::Code::new_zeroed();
        Ok(())
    }

    fn update_near(&mut self, args: &[ArrayRef], near: &DenseRows<'_>) -> Option<ConsumedRows> {
        let values = near.values::<T>(args)?;
        let total = near.total_of::<<T::Native as Ordered>::Code>()?;
        self.codes.grow(total);
        self.valid.below(total);
        let mut least = !<T::Native as Ordered>::Code::new_zeroed();
        let codes = self.codes.as_mut();
        let folded = fused::scatter(codes, near, values, |slot, value| {
            Self::fold(slot, value, &mut least);
        });
        self.worst |= least == <T::Native as Ordered>::Code::new_zeroed();
        Some(folded)
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.update(states, groups, total)
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.values(part)?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let values = part.each(self.codes.as_ref(), |&code| Self::value(code));
        let array = PrimitiveArray::<T>::try_new(values.into(), self.valid.nulls(part))?;
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }

    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let (codes, valid) = (self.codes.copied(ids.clone()), self.valid.copied(ids));
        let (data_type, worst) = (self.data_type.clone(), self.worst);
        Some(Box::new(Self { data_type, codes, worst, valid }))
    }

    fn clear(&mut self, total: usize) {
        self.codes.clear(total);
        self.worst = false;
        self.valid.clear();
    }

    fn forget(&mut self, part: &Part) {
        self.codes.forget(part);
    }

    fn bytes(&self) -> usize {
        self.codes.bytes() + self.valid.bytes()
    }

    fn shows(&self) -> bool {
        !self.worst
    }

    fn occupied(&self, ids: Range<usize>) -> Option<BooleanBuffer> {
        Some(self.codes.not_zero(ids))
    }
}
