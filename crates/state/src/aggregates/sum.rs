//! Sums: of signed integers as `Int64`, of unsigned ones as `UInt64`, of floats as `Float64`, of
//! decimals of up to 38 digits as decimals of ten digits more, if there are so many.
//!
//! Sums of integers and decimals are exact. What goes beyond the type on the way is carried, since
//! later values or the states of others may bring it back: a sum is an error only if all of it does
//! not fit, so that neither the order of rows nor the number of workers is seen. Carries are rare;
//! a table of those that there are costs a loop no more than to ask.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use super::valid::Valid;
use super::{Values, column, decimal};
use crate::table::{Plain, ZeroedTable};
use crate::{Accumulator, Aggregate, Groups, Part, SparseIds, StateError, kernel};

/// Digits that a sum of decimals has more than its values, as in DataFusion.
const DIGITS_OF_COUNT: u8 = 10;

/// `sum` of integers and floats of any width and of decimals of 128 bits, `None` for other types.
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
        &DataType::Decimal128(digits, scale) => {
            let digits = digits.saturating_add(DIGITS_OF_COUNT).min(DECIMAL128_MAX_PRECISION);
            let output = DataType::Decimal128(digits, scale);
            Arc::new(Sum::<Decimal128Type, Decimal128Type> { output, of: PhantomData })
        }
        _ => return None,
    })
}

/// A type of sums.
trait Total: Values + ArrowPrimitiveType<Native: Plain> {
    /// Whether sums may go beyond the type, so that their states have a column of carries.
    const CARRIES: bool;

    /// The sum and what is carried of it, in units of all numbers of the type.
    fn plus(a: Self::Native, b: Self::Native) -> (Self::Native, i64);

    /// Whether a type has fewer values than its numbers have, so that a sum may be beyond it of
    /// which nothing is carried.
    const HAS_DIGITS: bool = false;

    /// Whether such a sum is a value of `of`.
    fn fits(sum: Self::Native, of: &DataType) -> bool {
        let _ = (sum, of);
        true
    }
}

impl Total for Int64Type {
    const CARRIES: bool = true;

    #[inline(always)]
    fn plus(a: i64, b: i64) -> (i64, i64) {
        let (sum, over) = a.overflowing_add(b);
        (sum, if over { b.signum() } else { 0 })
    }
}

impl Total for UInt64Type {
    const CARRIES: bool = true;

    #[inline(always)]
    fn plus(a: u64, b: u64) -> (u64, i64) {
        let (sum, over) = a.overflowing_add(b);
        (sum, i64::from(over))
    }
}

impl Total for Decimal128Type {
    const CARRIES: bool = true;
    const HAS_DIGITS: bool = true;

    #[inline(always)]
    fn plus(a: i128, b: i128) -> (i128, i64) {
        let (sum, over) = a.overflowing_add(b);
        (sum, if over { b.signum() as i64 } else { 0 })
    }

    fn fits(sum: i128, of: &DataType) -> bool {
        decimal::has_digits_of(sum, of)
    }
}

impl Total for Float64Type {
    const CARRIES: bool = false;

    #[inline(always)]
    fn plus(a: f64, b: f64) -> (f64, i64) {
        (a + b, 0)
    }
}

/// Sums values of `T` as `S`.
#[derive(Debug)]
struct Sum<T, S> {
    output: DataType,
    of: PhantomData<(T, S)>,
}

impl<T, S: ArrowPrimitiveType> Sum<T, S> {
    fn new() -> Self {
        Self { output: S::DATA_TYPE, of: PhantomData }
    }
}

impl<T, S> Aggregate for Sum<T, S>
where
    T: Values,
    S: Total,
    S::Native: From<T::Native>,
{
    fn state_types(&self) -> Vec<DataType> {
        let mut types = vec![self.output.clone()];
        types.extend(S::CARRIES.then_some(DataType::Int64));
        types
    }

    fn output_type(&self) -> DataType {
        self.output.clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Sums::<T, S> {
            output: self.output.clone(),
            sums: ZeroedTable::new(),
            valid: Valid::default(),
            carries: HashMap::new(),
            of: PhantomData,
        })
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn sparse_ids(&self) -> SparseIds {
        SparseIds::Allowed(size_of::<S::Native>())
    }
}

/// The sums of one slice.
struct Sums<T, S: Total> {
    output: DataType,
    sums: ZeroedTable<S::Native>,
    valid: Valid,
    /// By group what its sum lacks, in units of all numbers of the type; of most there is nothing.
    carries: HashMap<usize, i64>,
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
        let (sums, carries) = (self.sums.as_mut(), &mut self.carries);
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => {
                self.valid.all(groups, total);
                let first = sums.as_ptr().addr();
                kernel::scatter(sums, groups, values.values(), |slot, v| {
                    let (sum, over) = S::plus(*slot, widen(v));
                    *slot = sum;
                    if over != 0 {
                        let place = std::ptr::from_mut(slot).addr() - first;
                        carry(carries, place / size_of::<S::Native>(), over);
                    }
                });
            }
            Some(nulls) => self.valid.some(groups, nulls, total, |row, group| {
                let (sum, over) = S::plus(sums[group], widen(values.values()[row]));
                sums[group] = sum;
                if over != 0 {
                    carry(carries, group, over);
                }
            }),
        }
        Ok(())
    }

    /// The sums of a part, without what is carried of them.
    fn within(&self, part: &Part) -> Result<ArrayRef, StateError> {
        let sums = part.each(self.sums.as_ref(), |&sum| sum);
        let sums = PrimitiveArray::<S>::try_new(sums.into(), self.valid.nulls(part))?;
        Ok(Arc::new(sums.with_data_type(self.output.clone())))
    }

    fn carried(&self, part: &Part) -> Vec<i64> {
        if self.carries.is_empty() {
            vec![0; part.rows()]
        } else {
            part.each_id(|id| self.carries.get(&id).copied().unwrap_or(0))
        }
    }
}

/// Adds to what is carried of a group.
#[cold]
fn carry(carries: &mut HashMap<usize, i64>, group: usize, over: i64) {
    let carried = carries.entry(group).or_insert(0);
    *carried = carried.saturating_add(over);
    if *carried == 0 {
        carries.remove(&group);
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
        let sums = column::<S>(states, 0, "state of sum")?;
        self.add(sums, groups, total, |sum| sum)?;
        if S::CARRIES {
            let carried = column::<Int64Type>(states, 1, "carries of sum")?.values();
            crate::error::same("carries of sum", groups.rows(), carried.len())?;
            // Looked at all at once: there is hardly ever one.
            if carried.iter().fold(0, |all, carried| all | carried) != 0 {
                for (group, &over) in groups.iter().zip(carried).filter(|(_, over)| **over != 0) {
                    carry(&mut self.carries, group as usize, over);
                }
            }
        }
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        let mut state = vec![self.within(part)?];
        if S::CARRIES {
            state.push(Arc::new(Int64Array::from(self.carried(part))));
        }
        Ok(state)
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let carries =
            !self.carries.is_empty() && self.carried(part).iter().any(|&carried| carried != 0);
        let beyond = |sum: &S::Native| !S::fits(*sum, &self.output);
        if carries || S::HAS_DIGITS && part.each(self.sums.as_ref(), beyond).contains(&true) {
            return Err(StateError::Sum(self.output.clone()));
        }
        self.within(part)
    }

    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let carries = if self.carries.len() < ids.len() {
            let own = self.carries.iter().filter(|(id, _)| ids.contains(id));
            own.map(|(id, over)| (id - ids.start, *over)).collect()
        } else {
            // Most sums may carry: a look at all carries for each block would be quadratic.
            let over = |id: usize| Some((id - ids.start, *self.carries.get(&id)?));
            ids.clone().filter_map(over).collect()
        };
        let (sums, valid) = (self.sums.copied(ids.clone()), self.valid.copied(ids.clone()));
        let output = self.output.clone();
        Some(Box::new(Self { output, sums, valid, carries, of: PhantomData }))
    }

    fn clear(&mut self, total: usize) {
        self.sums.clear(total);
        self.valid.clear();
        self.carries.clear();
    }

    fn forget(&mut self, part: &Part) {
        self.sums.forget(part);
        if !self.carries.is_empty() {
            let carries = &mut self.carries;
            part.each_run(|ids| carries.retain(|id, _| !ids.contains(id)));
        }
    }

    fn bytes(&self) -> usize {
        let carries = self.carries.capacity() * size_of::<(usize, i64)>();
        self.sums.bytes() + self.valid.bytes() + carries
    }
}
