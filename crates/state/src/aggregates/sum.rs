//! Sums: of signed integers as `Int64`, of unsigned ones as `UInt64`, of floats as `Float64`.
//! Integers wrap around.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};

use super::valid::Valid;
use super::{Values, column};
use crate::table::{Plain, Table};
use crate::{Accumulator, Aggregate, Groups, Holes, Part, StateError, kernel};

/// `sum` of integers and floats of any width, `None` for other types.
pub fn sum(of: &DataType) -> Option<Arc<dyn Aggregate>> {
    Some(match of {
        DataType::Int8 => Arc::new(Sum::<Int8Type, Int64Type>::new()),
        DataType::Int16 => Arc::new(Sum::<Int16Type, Int64Type>::new()),
        DataType::Int32 => Arc::new(Sum::<Int32Type, Int64Type>::new()),
        DataType::Int64 => Arc::new(Sum::<Int64Type, Int64Type>::new()),
        DataType::UInt8 => Arc::new(Sum::<UInt8Type, UInt64Type>::new()),
        DataType::UInt16 => Arc::new(Sum::<UInt16Type, UInt64Type>::new()),
        DataType::UInt32 => Arc::new(Sum::<UInt32Type, UInt64Type>::new()),
        DataType::UInt64 => Arc::new(Sum::<UInt64Type, UInt64Type>::new()),
        DataType::Float32 => Arc::new(Sum::<Float32Type, Float64Type>::new()),
        DataType::Float64 => Arc::new(Sum::<Float64Type, Float64Type>::new()),
        _ => return None,
    })
}

/// A type of sums.
trait Total: Values + ArrowPrimitiveType<Native: Plain> {
    fn plus(a: Self::Native, b: Self::Native) -> Self::Native;
}

impl Total for Int64Type {
    #[inline(always)]
    fn plus(a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
}

impl Total for UInt64Type {
    #[inline(always)]
    fn plus(a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }
}

impl Total for Float64Type {
    #[inline(always)]
    fn plus(a: f64, b: f64) -> f64 {
        a + b
    }
}

/// Sums values of `T` as `S`.
#[derive(Debug)]
struct Sum<T, S>(PhantomData<(T, S)>);

impl<T, S> Sum<T, S> {
    fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T, S> Aggregate for Sum<T, S>
where
    T: Values,
    S: Total,
    S::Native: From<T::Native>,
{
    fn state_types(&self) -> Vec<DataType> {
        vec![S::DATA_TYPE]
    }

    fn output_type(&self) -> DataType {
        S::DATA_TYPE
    }

    fn create(&self) -> Box<dyn Accumulator> {
        let (sums, valid) = (Table::new(), Valid::default());
        Box::new(Sums::<T, S> { sums, valid, of: PhantomData })
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn holes(&self) -> Holes {
        Holes::Kept(size_of::<S::Native>())
    }
}

/// The sums of one slice.
struct Sums<T, S: Total> {
    sums: Table<S::Native>,
    valid: Valid,
    of: PhantomData<fn(T)>,
}

impl<T, S: Total> Sums<T, S> {
    fn add<U: ArrowPrimitiveType>(
        &mut self,
        values: &PrimitiveArray<U>,
        groups: &Groups,
        total: usize,
        widen: impl Fn(U::Native) -> S::Native,
    ) -> Result<(), StateError> {
        crate::error::same("rows of sum", groups.rows(), values.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        self.sums.grow(total.max(groups.reach() + 1));
        let sums = self.sums.as_mut();
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => {
                self.valid.all(groups, total);
                kernel::scatter(sums, groups, values.values(), |slot, v| {
                    *slot = S::plus(*slot, widen(v));
                });
            }
            Some(nulls) => self.valid.some(groups, nulls, total, |row, group| {
                sums[group] = S::plus(sums[group], widen(values.values()[row]));
            }),
        }
        Ok(())
    }
}

impl<T, S> Accumulator for Sums<T, S>
where
    T: Values,
    S: Total,
    S::Native: From<T::Native>,
{
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.add(column::<T>(args, 0, "argument of sum")?, groups, total, S::Native::from)
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.add(column::<S>(states, 0, "state of sum")?, groups, total, |sum| sum)
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.values(part)?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let sums = part.each(self.sums.as_ref(), |&sum| sum);
        Ok(Arc::new(PrimitiveArray::<S>::try_new(sums.into(), self.valid.nulls(part))?))
    }

    fn clear(&mut self, total: usize) {
        self.sums.clear(total);
        self.valid.clear();
    }

    fn forget(&mut self, part: &Part) {
        self.sums.forget(part);
    }

    fn bytes(&self) -> usize {
        self.sums.bytes() + self.valid.bytes()
    }
}
