//! Division of a column by a constant: a multiplication and a shift, where the processor's own
//! division takes many times as long.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, Operator};
use state::vector::scaled;
use state::{Scale, recycled};

use super::column_index;

/// A BIGINT column divided by a constant of two or more, rounded towards zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quotient {
    pub(super) column: usize,
    by: Divisor,
    /// The same for numbers of 31 bits, whose products fit into 63: a loop of vectors.
    pub(super) scale: Option<Scale>,
}

impl Quotient {
    /// `None` for an expression of another form.
    pub(super) fn of(expr: &Expr, schema: &Schema) -> Option<Self> {
        let expr = match expr {
            Expr::Alias(alias) => &alias.expr,
            expr => expr,
        };
        let Expr::BinaryExpr(binary) = expr else { return None };
        let Expr::Literal(ScalarValue::Int64(Some(by)), _) = *binary.right else { return None };
        let column = column_index(&binary.left, schema)?;
        let whole = *schema.field(column).data_type() == DataType::Int64;
        (binary.op == Operator::Divide && whole && by >= 2).then(|| Self {
            column,
            by: Divisor::new(by),
            scale: scale(by),
        })
    }

    /// The quotient of each row.
    pub(super) fn evaluate(&self, columns: &[ArrayRef]) -> Option<ArrayRef> {
        let values = columns.get(self.column)?.as_primitive_opt::<Int64Type>()?;
        if let Some(scale) = self.scale {
            let mut quotients = recycled::take();
            if (0..1 << 31).contains(&scaled(values.values(), scale, &mut quotients)) {
                let quotients = ScalarBuffer::from(recycled::into_buffer(quotients));
                return Some(Arc::new(Int64Array::new(quotients, values.nulls().cloned())));
            }
        }
        Some(Arc::new(values.unary::<_, Int64Type>(|value| self.by.divide(value))))
    }
}

/// Divides by multiplying with 2⁶⁴⁺ˢ / d, rounded up (Granlund and Montgomery 1994).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Divisor {
    factor: i64,
    shift: u32,
    /// The factor is taken modulo 2⁶⁴; where that made it negative, what it lacks is added.
    lacks: bool,
}

impl Divisor {
    /// For `by` of two or more.
    fn new(by: i64) -> Self {
        let by = u128::from(by.unsigned_abs());
        // The least exponent at which rounding up is exact for all numbers of 63 bits:
        // 2^exponent has to exceed (2^63 - 1 - 2^63 mod by) * (by - 2^exponent mod by).
        let half = 1u128 << 63;
        let greatest = half - 1 - half % by;
        let exact =
            |exponent: &u32| (1u128 << exponent) > greatest * (by - (1u128 << exponent) % by);
        let exponent = (64..127).find(exact).unwrap_or(127);
        let factor = ((1u128 << exponent) / by + 1) as u64 as i64;
        Self { factor, shift: exponent - 64, lacks: factor < 0 }
    }

    #[inline(always)]
    fn divide(self, value: i64) -> i64 {
        let high = ((i128::from(value) * i128::from(self.factor)) >> 64) as i64;
        let high = if self.lacks { high.wrapping_add(value) } else { high };
        // Rounding is down so far; negative numbers round up.
        (high >> self.shift) + i64::from(value < 0)
    }
}

/// Divides numbers of 31 bits by one of two or more, and at most 31 bits: the factor is 2³¹⁺ˡ / d,
/// rounded up, where 2ˡ is d or the next power of two.
fn scale(by: i64) -> Option<Scale> {
    let by = u32::try_from(by).ok().filter(|by| *by < 1 << 31)?;
    let shift = 31 + by.next_power_of_two().trailing_zeros();
    let factor = (1u64 << shift).div_ceil(by.into());
    Some(Scale { factor: u32::try_from(factor).ok()?, shift })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_those_of_the_processor() {
        let mut divisors: Vec<i64> = (2..2000).collect();
        for bit in 2..63 {
            let power = 1i64 << bit;
            divisors.extend([power - 1, power, power + 1, power + power / 3]);
        }
        divisors.extend([i64::MAX, i64::MAX - 1, 1_000_000_007, 3_600_000_000]);
        for &by in divisors.iter().filter(|&&by| by >= 2) {
            let (divisor, scale) = (Divisor::new(by), scale(by));
            assert_eq!(scale.is_some(), by < 1 << 31, "{by}");
            let near = |value: i64| (-2..=2).map(move |by| value.wrapping_add(by));
            let multiples = [1, 2, 3, 1 << 20, i64::MAX / by, ((1 << 31) - 1) / by];
            let around = multiples.into_iter().map(|times| by.wrapping_mul(times));
            let values = around.chain([0, i64::MIN, i64::MAX, i64::MIN / 2, 1 << 40]);
            for value in values.flat_map(near).flat_map(|value| [value, value.wrapping_neg()]) {
                assert_eq!(divisor.divide(value), value / by, "{value} / {by}");
                if let Some(scale) = scale.filter(|_| (0..1 << 31).contains(&value)) {
                    let mut quotients = vec![];
                    scaled(&[value], scale, &mut quotients);
                    assert_eq!(quotients, [value / by], "{value} / {by}");
                }
            }
        }
    }
}
