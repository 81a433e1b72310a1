//! Averages of decimals, of a state of count (`UInt64`), sum (a decimal of 38 digits) and what is
//! carried of the sum (`Int64`, in units of 2^128).
//!
//! Sums are exact, whatever the order of rows and the number of workers. An average has up to four
//! digits more behind the point than the values, as in DataFusion, and is rounded half away from
//! zero, as in Flink.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, Int64Array, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL128_MAX_SCALE, DataType, Decimal128Type, Int64Type,
    UInt64Type, i256,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::column;
use crate::table::ZeroedTable;
use crate::{Accumulator, Aggregate, Groups, Part, SparseIds, StateError, kernel};

/// Digits behind the point that an average has more than its values, if there are so many.
const DIGITS_OF_QUOTIENT: u8 = 4;

/// Whether a number of units is a value of a type of decimals, that is, has no more digits.
pub(super) fn has_digits_of(units: i128, of: &DataType) -> bool {
    match of {
        DataType::Decimal128(digits, _) => {
            units.unsigned_abs() < 10_u128.pow((*digits).min(DECIMAL128_MAX_PRECISION).into())
        }
        _ => true,
    }
}

/// `avg` of decimals.
#[derive(Debug, Clone)]
pub(super) struct Avg {
    sum: DataType,
    output: DataType,
    /// Units of the output in a unit of the values.
    unit: i128,
}

impl Avg {
    /// Of values of `digits` digits, `scale` of them behind the point.
    pub(super) fn new(digits: u8, scale: i8) -> Self {
        let most = digits.saturating_add(DIGITS_OF_QUOTIENT).min(DECIMAL128_MAX_PRECISION);
        let behind = scale.saturating_add(DIGITS_OF_QUOTIENT as i8).min(DECIMAL128_MAX_SCALE);
        Self {
            sum: DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale),
            output: DataType::Decimal128(most, behind),
            unit: 10_i128.pow(u32::from(behind.abs_diff(scale))),
        }
    }
}

impl Aggregate for Avg {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::UInt64, self.sum.clone(), DataType::Int64]
    }

    fn output_type(&self) -> DataType {
        self.output.clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Means { of: self.clone(), means: ZeroedTable::new(), hidden: false })
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn sparse_ids(&self) -> SparseIds {
        SparseIds::Reported(size_of::<Mean>())
    }
}

/// The values of one group: their sum is `carried` * 2^128 + `sum`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Mean {
    sum: i128,
    carried: i64,
    count: u64,
}

impl Mean {
    #[inline(always)]
    fn add(&mut self, units: i128) {
        let (sum, over) = self.sum.overflowing_add(units);
        self.sum = sum;
        if over {
            self.carried = self.carried.saturating_add(units.signum() as i64);
        }
    }

    /// The average in units of the output, rounded half away from zero; `None` if there is no value
    /// or the average does not fit.
    fn average(&self, unit: i128) -> Option<i128> {
        match (self.carried, self.sum.checked_mul(unit), i128::from(self.count)) {
            (_, _, 0) => None,
            (0, Some(scaled), count) => {
                // Both are below 2^64 and 2^127: twice the rest fits.
                let away = 2 * (scaled % count).abs() >= count;
                Some(scaled / count + if away { scaled.signum() } else { 0 })
            }
            (carried, _, count) => {
                // In 256 bits the sum is below 2^191, and a unit below 2^14.
                let high = i128::from(carried) + if self.sum < 0 { -1 } else { 0 };
                let scaled =
                    i256::from_parts(self.sum as u128, high).wrapping_mul(i256::from_i128(unit));
                let count = i256::from_i128(count);
                let rest = scaled.wrapping_rem(count).wrapping_abs();
                let away = rest.wrapping_mul(i256::from_i128(2)) >= count;
                let step = if away { scaled.signum() } else { i256::ZERO };
                scaled.wrapping_div(count).wrapping_add(step).to_i128()
            }
        }
    }
}

/// The averages of one slice.
struct Means {
    of: Avg,
    means: ZeroedTable<Mean>,
    /// Whether a state of nulls alone was merged, which counts nothing.
    hidden: bool,
}

impl Means {
    fn reserve(&mut self, groups: &Groups, total: usize) -> &mut [Mean] {
        self.means.grow(total.max(groups.reach() + 1));
        self.means.as_mut()
    }
}

impl Accumulator for Means {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let values = column::<Decimal128Type>(args, 0, "argument of avg")?;
        crate::error::same("rows of avg", groups.rows(), values.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        let means = self.reserve(groups, total);
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => kernel::scatter(means, groups, values.values(), |mean, value| {
                mean.add(value);
                mean.count += 1;
            }),
            Some(nulls) => {
                let rows = groups.iter().zip(values.values()).zip(nulls.iter());
                for ((id, &value), _) in rows.filter(|(_, valid)| *valid) {
                    let mean = &mut means[id as usize];
                    mean.add(value);
                    mean.count += 1;
                }
            }
        }
        Ok(())
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let counts = column::<UInt64Type>(states, 0, "count of avg")?.values();
        let sums = column::<Decimal128Type>(states, 1, "sum of avg")?.values();
        let carried = column::<Int64Type>(states, 2, "carries of avg")?.values();
        crate::error::same("rows of the counts of avg", groups.rows(), counts.len())?;
        crate::error::same("rows of the sums of avg", groups.rows(), sums.len())?;
        crate::error::same("rows of the carries of avg", groups.rows(), carried.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        self.hidden |= counts.contains(&0);
        let means = self.reserve(groups, total);
        let states = counts.iter().zip(sums).zip(carried);
        for (id, ((&count, &sum), &carried)) in groups.iter().zip(states) {
            let mean = &mut means[id as usize];
            mean.add(sum);
            mean.carried = mean.carried.saturating_add(carried);
            mean.count = mean.count.wrapping_add(count);
        }
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        let means = self.means.as_ref();
        let counts = UInt64Array::from(part.each(means, |mean| mean.count));
        let sums = Decimal128Array::from(part.each(means, |mean| mean.sum));
        let carried = Int64Array::from(part.each(means, |mean| mean.carried));
        let sums = sums.with_data_type(self.of.sum.clone());
        Ok(vec![Arc::new(counts), Arc::new(sums), Arc::new(carried)])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let means = self.means.as_ref();
        let averages = part.each(means, |mean| mean.average(self.of.unit));
        let counts = part.each(means, |mean| mean.count);
        let fits = |(average, count): (&Option<i128>, &u64)| {
            *count == 0 || average.is_some_and(|units| has_digits_of(units, &self.of.output))
        };
        if !averages.iter().zip(&counts).all(fits) {
            return Err(StateError::Sum(self.of.output.clone()));
        }
        let valid = counts.contains(&0).then(|| counts.iter().map(|&count| count != 0).collect());
        let averages: Vec<i128> = averages.into_iter().map(Option::unwrap_or_default).collect();
        let averages = Decimal128Array::try_new(averages.into(), valid.map(NullBuffer::new))?;
        Ok(Arc::new(averages.with_data_type(self.of.output.clone())))
    }

    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let means = self.means.copied(ids);
        Some(Box::new(Self { of: self.of.clone(), means, hidden: self.hidden }))
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
