//! `+`, `-` and `*` of decimals whose values fit 64 bits, as those of most columns do.
//!
//! Arrow's kernels look at each result whether it is beyond 128 bits, and then whether it has more
//! digits than its type. Of operands of 64 bits neither can be: the product of two is below 2^126,
//! which is less than 10^38. So the operands are looked at while results are computed, and where
//! one is too large, Arrow computes all of the batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, Decimal128Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL128_MAX_SCALE, DataType, Decimal128Type};

/// Digits of which all numbers fit 64 bits.
const DIGITS: u8 = 18;

/// An operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrow {
    Add,
    Sub,
    Mul,
}

/// An operand: an array, or a value for all rows.
struct Operand<'a> {
    array: &'a Decimal128Array,
    is_constant: bool,
    digits: u8,
    scale: i8,
}

impl<'a> Operand<'a> {
    fn of(datum: &'a dyn Datum) -> Option<Self> {
        let (array, is_constant) = datum.get();
        let &DataType::Decimal128(digits, scale) = array.data_type() else { return None };
        let array = array.as_primitive_opt::<Decimal128Type>()?;
        let is_usable = scale >= 0 && !(is_constant && array.is_null(0));
        is_usable.then_some(Self { array, is_constant, digits, scale })
    }

    /// The values are those below this number and above its negative.
    fn bound(&self) -> u64 {
        if self.digits <= DIGITS { 10_u64.pow(self.digits.into()) } else { i64::MAX as u64 }
    }

    fn nulls(&self) -> Option<&NullBuffer> {
        if self.is_constant { None } else { self.array.nulls() }
    }

    /// What its values are multiplied by to have `scale` digits behind the point, if that fits.
    fn factor(&self, scale: i8) -> Option<i64> {
        let more = u8::try_from(scale.checked_sub(self.scale)?).ok()?;
        (more <= DIGITS).then(|| 10_i64.pow(more.into()))
    }
}

/// The results with the type that Arrow gives them; `None` where the operands are not of this kind.
pub(super) fn in_64_bits(op: Narrow, left: &dyn Datum, right: &dyn Datum) -> Option<ArrayRef> {
    let (left, right) = (Operand::of(left)?, Operand::of(right)?);
    if left.is_constant && right.is_constant {
        return None;
    }
    let (digits, scale) = result_type(op, &left, &right)?;
    let values = match op {
        Narrow::Mul => each(&left, &right, product),
        Narrow::Add | Narrow::Sub => {
            let (a_unit, b_unit) = (left.factor(scale)?, right.factor(scale)?);
            let b_unit = if op == Narrow::Sub { -b_unit } else { b_unit };
            each(&left, &right, |a, b| product(a, a_unit) + product(b, b_unit))
        }
    }?;
    let nulls = NullBuffer::union(left.nulls(), right.nulls());
    let results = Decimal128Array::try_new(values.into(), nulls).ok()?;
    Some(Arc::new(results.with_precision_and_scale(digits, scale).ok()?))
}

#[inline(always)]
fn product(a: i64, b: i64) -> i128 {
    i128::from(a) * i128::from(b)
}

/// Digits and scale of the results, as Arrow's kernels have them.
fn result_type(op: Narrow, left: &Operand<'_>, right: &Operand<'_>) -> Option<(u8, i8)> {
    let (digits, scale) = match op {
        Narrow::Mul => {
            (left.digits.checked_add(right.digits)?, left.scale.checked_add(right.scale)?)
        }
        Narrow::Add | Narrow::Sub => {
            let scale = left.scale.max(right.scale);
            let before = |operand: &Operand<'_>| operand.digits.checked_sub(operand.scale as u8);
            (before(left)?.max(before(right)?).checked_add(scale as u8)?, scale)
        }
    };
    let digits = digits.saturating_add(1).min(DECIMAL128_MAX_PRECISION);
    (scale <= DECIMAL128_MAX_SCALE).then_some((digits, scale))
}

/// A result for each row; `None` if a value is not within the bound of its operand.
fn each(
    left: &Operand<'_>,
    right: &Operand<'_>,
    result: impl Fn(i64, i64) -> i128,
) -> Option<Vec<i128>> {
    let (a_bound, b_bound) = (left.bound(), right.bound());
    let is_beyond = |value: i128, bound: u64| {
        let narrow = value as i64;
        (i128::from(narrow) != value) | (narrow.unsigned_abs() >= bound)
    };
    let mut beyond = false;
    let (a, b) = (left.array.values(), right.array.values());
    let results = match (left.is_constant, right.is_constant) {
        (false, false) => {
            let of = |(&a, &b): (&i128, &i128)| {
                beyond |= is_beyond(a, a_bound) | is_beyond(b, b_bound);
                result(a as i64, b as i64)
            };
            a.iter().zip(b.iter()).map(of).collect()
        }
        (true, _) => {
            let constant = a[0];
            beyond = is_beyond(constant, a_bound);
            let of = |&b: &i128| {
                beyond |= is_beyond(b, b_bound);
                result(constant as i64, b as i64)
            };
            b.iter().map(of).collect()
        }
        (false, true) => {
            let constant = b[0];
            beyond = is_beyond(constant, b_bound);
            let of = |&a: &i128| {
                beyond |= is_beyond(a, a_bound);
                result(a as i64, constant as i64)
            };
            a.iter().map(of).collect()
        }
    };
    (!beyond).then_some(results)
}

#[cfg(test)]
mod tests {
    use arrow::array::Scalar;
    use arrow::compute::kernels::numeric::{add, mul, sub};
    use proptest::prelude::*;

    use super::*;

    type Kernel = fn(&dyn Datum, &dyn Datum) -> Result<ArrayRef, arrow::error::ArrowError>;

    const OPERATORS: [(Narrow, Kernel); 3] =
        [(Narrow::Add, add), (Narrow::Sub, sub), (Narrow::Mul, mul)];

    fn column(digits: u8, scale: u8, values: &[Option<i64>]) -> Decimal128Array {
        let most = 10_i128.pow(digits.into()) - 1;
        let values = values.iter().map(|value| value.map(|v| i128::from(v) % (most + 1)));
        values.collect::<Decimal128Array>().with_precision_and_scale(digits, scale as i8).unwrap()
    }

    /// Digits, and of them those behind the point.
    fn types() -> impl Strategy<Value = (u8, u8)> {
        (1..=38_u8).prop_flat_map(|digits| (Just(digits), 0..=digits.min(19)))
    }

    fn values() -> impl Strategy<Value = Vec<(Option<i64>, Option<i64>)>> {
        let value = || {
            prop_oneof![
                1 => Just(None),
                3 => any::<i64>().prop_map(Some),
                3 => (-1000..1000_i64).prop_map(Some),
            ]
        };
        prop::collection::vec((value(), value()), 1..20)
    }

    proptest! {
        #[test]
        fn results_are_those_of_arrow(a in types(), b in types(), rows in values()) {
            let (left, right): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let (left, right) = (column(a.0, a.1, &left), column(b.0, b.1, &right));
            let (one, other) = (Scalar::new(left.slice(0, 1)), Scalar::new(right.slice(0, 1)));
            let pairs: [(&dyn Datum, &dyn Datum); 3] =
                [(&left, &right), (&one, &right), (&left, &other)];
            for (op, kernel) in OPERATORS {
                for (left, right) in pairs {
                    if let Some(made) = in_64_bits(op, left, right) {
                        let expected = kernel(left, right).unwrap();
                        prop_assert_eq!(made.data_type(), expected.data_type());
                        prop_assert_eq!(&made, &expected);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_is_left_to_arrow() {
        let small = column(10, 2, &[Some(5), None]);
        let made = in_64_bits(Narrow::Mul, &small, &Scalar::new(column(20, 0, &[Some(3)])));
        assert_eq!(made.unwrap().as_primitive::<Decimal128Type>().value(0), 15);
        // A value of more than 64 bits, and one of more digits than its type has.
        let large = Decimal128Array::from(vec![i128::from(i64::MAX) + 1, 0]);
        let large = large.with_precision_and_scale(30, 0).unwrap();
        let many = Decimal128Array::from(vec![1_000, 0]).with_precision_and_scale(3, 0).unwrap();
        let null = Scalar::new(column(5, 0, &[None]));
        for (op, _) in OPERATORS {
            assert!(in_64_bits(op, &small, &large).is_none());
            assert!(in_64_bits(op, &many, &small).is_none());
            assert!(in_64_bits(op, &small, &null).is_none());
            assert!(
                in_64_bits(op, &small, &column(38, 25, &[Some(1), None])).is_none()
                    == (op != Narrow::Mul)
            );
        }
    }
}
