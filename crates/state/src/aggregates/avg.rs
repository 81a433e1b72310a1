//! Averages as `Float64`, of a state of count (`UInt64`) and sum (`Float64`); of decimals as in
//! [`super::decimal`].

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Values, column, decimal};
use crate::table::ZeroedTable;
use crate::{
    Accumulator, Aggregate, ConsumedRows, DenseRows, Groups, Part, SparseIds, StateError, fused,
    kernel,
};

/// `avg` of integers and floats of any width and of decimals of 128 bits, `None` for other types.
pub fn avg(of: &DataType) -> Option<Arc<dyn Aggregate>> {
    Some(match of {
        DataType::Int8 => Arc::new(Avg::<Int8Type>(PhantomData)),
        DataType::Int16 => Arc::new(Avg::<Int16Type>(PhantomData)),
        DataType::Int32 => Arc::new(Avg::<Int32Type>(PhantomData)),
        DataType::Int64 => Arc::new(Avg::<Int64Type>(PhantomData)),
        DataType::UInt8 => Arc::new(Avg::<UInt8Type>(PhantomData)),
        DataType::UInt16 => Arc::new(Avg::<UInt16Type>(PhantomData)),
        DataType::UInt32 => Arc::new(Avg::<UInt32Type>(PhantomData)),
        DataType::UInt64 => Arc::new(Avg::<UInt64Type>(PhantomData)),
        DataType::Float32 => Arc::new(Avg::<Float32Type>(PhantomData)),
        DataType::Float64 => Arc::new(Avg::<Float64Type>(PhantomData)),
        &DataType::Decimal128(digits, scale) => Arc::new(decimal::Avg::new(digits, scale)),
        _ => return None,
    })
}

/// A number as `f64`, rounded to the nearest.
trait Number: Values {
    fn float(value: Self::Native) -> f64;
}

macro_rules! number {
    ($($type:ty),*) => {
        $(impl Number for $type {
            #[inline(always)]
            fn float(value: Self::Native) -> f64 {
                value as f64
            }
        })*
    };
}
number!(Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type);
number!(Float32Type, Float64Type);

#[derive(Debug)]
struct Avg<T>(PhantomData<T>);

impl<T: Number> Aggregate for Avg<T> {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::UInt64, DataType::Float64]
    }

    fn output_type(&self) -> DataType {
        DataType::Float64
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Means::<T> { means: ZeroedTable::new(), hidden: false, of: PhantomData })
    }

    fn is_fusible(&self) -> bool {
        true
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn sparse_ids(&self) -> SparseIds {
        SparseIds::Reported(size_of::<Mean>())
    }
}

/// Sum and count of one group, side by side: one cache miss for both.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    #[inline(always)]
    fn add<T: Number>(&mut self, value: T::Native) {
        self.sum += T::float(value);
        self.count += 1;
    }
}

/// The averages of one slice.
struct Means<T> {
    means: ZeroedTable<Mean>,
    /// Whether a state of nulls alone was merged, which counts nothing.
    hidden: bool,
    of: PhantomData<fn(T)>,
}

impl<T> Means<T> {
    fn reserve(&mut self, groups: &Groups, total: usize) -> &mut [Mean] {
        self.means.grow(total.max(groups.reach() + 1));
        self.means.as_mut()
    }
}

impl<T: Number> Accumulator for Means<T> {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let values = column::<T>(args, 0, "argument of avg")?;
        crate::error::same("rows of avg", groups.rows(), values.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        let means = self.reserve(groups, total);
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => kernel::scatter(means, groups, values.values(), Mean::add::<T>),
            Some(nulls) => {
                for ((id, &value), valid) in groups.iter().zip(values.values()).zip(nulls.iter()) {
                    let mean = &mut means[id as usize];
                    mean.sum += if valid { T::float(value) } else { 0.0 };
                    mean.count += u64::from(valid);
                }
            }
        }
        Ok(())
    }

    fn update_near(&mut self, args: &[ArrayRef], near: &DenseRows<'_>) -> Option<ConsumedRows> {
        let values = near.values::<T>(args)?;
        self.means.grow(near.total_of::<Mean>()?);
        Some(fused::scatter(self.means.as_mut(), near, values, Mean::add::<T>))
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let counts = column::<UInt64Type>(states, 0, "count of avg")?;
        let sums = column::<Float64Type>(states, 1, "sum of avg")?;
        crate::error::same("rows of the counts of avg", groups.rows(), counts.len())?;
        crate::error::same("rows of the sums of avg", groups.rows(), sums.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        self.hidden |= counts.values().contains(&0);
        let means = self.reserve(groups, total);
        kernel::scatter(means, groups, counts.values(), |mean, count| {
            mean.count = mean.count.wrapping_add(count);
        });
        match sums.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => kernel::scatter(means, groups, sums.values(), |mean, sum| mean.sum += sum),
            Some(nulls) => {
                for ((id, &sum), valid) in groups.iter().zip(sums.values()).zip(nulls.iter()) {
                    means[id as usize].sum += if valid { sum } else { 0.0 };
                }
            }
        }
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        let counts = part.each(self.means.as_ref(), |mean| mean.count);
        let sums = part.each(self.means.as_ref(), |mean| mean.sum);
        Ok(vec![Arc::new(UInt64Array::from(counts)), Arc::new(Float64Array::from(sums))])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let means = self.means.as_ref();
        let averages = part.each(means, |mean| mean.sum / mean.count as f64);
        let counts = part.each(means, |mean| mean.count);
        let valid = counts.contains(&0).then(|| counts.iter().map(|&count| count != 0).collect());
        Ok(Arc::new(Float64Array::try_new(averages.into(), valid.map(NullBuffer::new))?))
    }

    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let (means, hidden) = (self.means.copied(ids), self.hidden);
        Some(Box::new(Self { means, hidden, of: PhantomData }))
    }

    fn clear(&mut self, total: usize) {
        self.means.clear(total);
        self.hidden = false;
    }

    fn forget(&mut self, part: &Part) {
        self.means.forget(part);
    }

    fn bytes(&self) -> usize {
        self.means.bytes()
    }

    fn shows(&self) -> bool {
        !self.hidden
    }

    fn occupied(&self, ids: Range<usize>) -> Option<BooleanBuffer> {
        Some(self.means.which(ids, |mean| mean.count != 0))
    }
}
