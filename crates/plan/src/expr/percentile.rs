//! `percentile_cont(p) WITHIN GROUP (ORDER BY x)`, to the last digit.
//!
//! DataFusion's own weighs the two values around a percentile by a number of six digits. This one
//! has its name, its types and its form.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{HashSet, Result, ScalarValue, plan_err};
use datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Signature,
};
use datafusion::physical_expr::expressions::Literal;

/// The function.
pub(crate) fn function() -> AggregateUDF {
    AggregateUDF::from(Percentile { datafusion: percentile_cont_udaf() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Percentile {
    datafusion: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Percentile {
    fn name(&self) -> &str {
        self.datafusion.name()
    }

    fn aliases(&self) -> &[String] {
        self.datafusion.aliases()
    }

    fn signature(&self) -> &Signature {
        self.datafusion.signature()
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        self.datafusion.return_type(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let name = format_state_name(args.name, self.name());
        let item = Field::new_list_field(DataType::Float64, true);
        Ok(vec![Arc::new(Field::new(name, DataType::List(Arc::new(item)), true))])
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let given = args.exprs.get(1).and_then(|expr| expr.downcast_ref::<Literal>());
        let given = given.map(|literal| literal.value().cast_to(&DataType::Float64)).transpose()?;
        let Some(ScalarValue::Float64(Some(percentile))) = given else {
            return plan_err!("percentile_cont takes a constant from 0 to 1");
        };
        if !(0.0..=1.0).contains(&percentile) {
            return plan_err!("percentile_cont takes a constant from 0 to 1, not {percentile}");
        }
        let descending = args.order_bys.first().is_some_and(|order| order.options.descending);
        Ok(Box::new(Values {
            percentile,
            descending,
            distinct: args.is_distinct,
            values: vec![],
            result: args.return_field.data_type().clone(),
        }))
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.datafusion.documentation()
    }
}

/// All values of a group.
#[derive(Debug)]
struct Values {
    percentile: f64,
    descending: bool,
    distinct: bool,
    values: Vec<f64>,
    result: DataType,
}

impl Values {
    fn add(&mut self, values: &dyn Array) -> Result<()> {
        let values = cast(values, &DataType::Float64)?;
        self.values.extend(values.as_primitive::<Float64Type>().iter().flatten());
        Ok(())
    }
}

impl Accumulator for Values {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values[0].as_ref())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for list in states[0].as_list::<i32>().iter().flatten() {
            self.add(list.as_ref())?;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = cast(&values[0], &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>().iter().flatten() {
            let same = |known: &f64| known.total_cmp(&value) == Ordering::Equal;
            if let Some(at) = self.values.iter().position(same) {
                self.values.swap_remove(at);
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = Float64Array::from(std::mem::take(&mut self.values));
        let list = SingleRowListArrayBuilder::new(Arc::new(values));
        Ok(vec![list.with_nullable(true).build_list_scalar()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = if self.distinct {
            let mut seen = HashSet::new();
            // The zeros are one value.
            let values = self.values.iter().filter(|value| seen.insert((*value + 0.0).to_bits()));
            let mut values: Vec<_> = values.copied().collect();
            percentile(&mut values, self.percentile, self.descending)
        } else {
            percentile(&mut self.values, self.percentile, self.descending)
        };
        ScalarValue::Float64(value).cast_to(&self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<f64>()
    }
}

/// The value that a part of all values stands before, between the two around it.
fn percentile(values: &mut [f64], part: f64, descending: bool) -> Option<f64> {
    let order = |a: &f64, b: &f64| if descending { b.total_cmp(a) } else { a.total_cmp(b) };
    let last = values.len().checked_sub(1)?;
    let at = part * last as f64;
    let (low, weight) = (at.floor() as usize, at.fract());
    let (_, before, behind) = values.select_nth_unstable_by(low.min(last), order);
    let before = *before;
    if weight == 0.0 {
        return Some(before);
    }
    let next = behind.iter().copied().min_by(order).unwrap_or(before);
    let apart = next - before;
    Some(match apart.is_infinite() && before.is_finite() && next.is_finite() {
        false if before == next => before,
        false => before + apart * weight,
        true => before * (1.0 - weight) + next * weight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_has_all_its_digits() {
        let ascending = |values: &mut [f64], part| percentile(values, part, false);
        assert_eq!(ascending(&mut [1.0, 0.0], 0.123456789), Some(0.123456789));
        assert_eq!(ascending(&mut [4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(ascending(&mut [f64::INFINITY, 7.0], 0.0), Some(7.0));
        assert_eq!(ascending(&mut [], 0.5), None);
        let mut values: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.9, true), Some(2.0));
        assert_eq!(ascending(&mut values, 0.9), Some(10.0));
    }
}
