//! `sum`, which is exact or an error.
//!
//! DataFusion's own wraps around: two large numbers may have a small sum. This one adds integers
//! and long decimals in numbers of twice the width, which no number of rows fills, and looks once,
//! at the result, whether it fits its type; so neither the order of rows nor the number of workers
//! is seen. What cannot be filled, as short decimals and floats, DataFusion adds as it is. Where
//! integers stream, [`state::aggregates::sum`] takes its place and says the same.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature,
};

use crate::text::types::sql_name;

/// Digits of decimals of which so many rows as a machine can read may have a sum of over 38.
const LONG_DIGITS: u8 = 29;

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sum {
    inner: Arc<AggregateUDF>,
}

impl Sum {
    pub(crate) fn new() -> Self {
        Self { inner: sum_udaf() }
    }
}

/// The type in which values of a type are added up, if it is another.
fn wide(of: &DataType) -> Option<DataType> {
    match of {
        DataType::Int64 | DataType::UInt64 => Some(DataType::Decimal128(38, 0)),
        DataType::Decimal128(digits, scale) if *digits >= LONG_DIGITS => {
            Some(DataType::Decimal256(76, *scale))
        }
        _ => None,
    }
}

/// What is asked of DataFusion's function in place of that.
struct Wider {
    to: FieldRef,
    of: Vec<FieldRef>,
}

impl Wider {
    fn of(args: &[FieldRef]) -> Option<Self> {
        let to: FieldRef = Field::new("sum", wide(args.first()?.data_type())?, true).into();
        Some(Self { of: vec![to.clone()], to })
    }

    fn args<'a>(&'a self, args: &AccumulatorArgs<'a>) -> AccumulatorArgs<'a> {
        AccumulatorArgs {
            return_field: self.to.clone(),
            schema: args.schema,
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys,
            is_reversed: args.is_reversed,
            name: args.name,
            is_distinct: args.is_distinct,
            exprs: args.exprs,
            expr_fields: &self.of,
        }
    }
}

impl AggregateUDFImpl for Sum {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        let Some(wider) = Wider::of(args.expr_fields) else {
            return self.inner.accumulator(args);
        };
        let inner = self.inner.accumulator(wider.args(&args))?;
        Ok(Box::new(Checked { inner, types: Types::of(&wider, &args) }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        match Wider::of(args.input_fields) {
            Some(wider) => self.inner.state_fields(StateFieldsArgs {
                input_fields: &wider.of,
                return_field: wider.to.clone(),
                ..args
            }),
            None => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn GroupsAccumulator>> {
        let Some(wider) = Wider::of(args.expr_fields) else {
            return self.inner.create_groups_accumulator(args);
        };
        let inner = self.inner.create_groups_accumulator(wider.args(&args))?;
        Ok(Box::new(CheckedGroups { inner, types: Types::of(&wider, &args) }))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        match Wider::of(args.expr_fields) {
            // DataFusion takes distinct values back of 64 bits only, and lets them wrap.
            Some(_) if args.is_distinct => self.accumulator(args),
            Some(wider) => {
                let inner = self.inner.create_sliding_accumulator(wider.args(&args))?;
                Ok(Box::new(Checked { inner, types: Types::of(&wider, &args) }))
            }
            None => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(of)
    }
}

/// The types in which a sum is made and given out.
#[derive(Debug)]
struct Types {
    wide: DataType,
    output: DataType,
}

impl Types {
    fn of(wider: &Wider, args: &AccumulatorArgs<'_>) -> Self {
        let (wide, output) = (wider.to.data_type().clone(), args.return_field.data_type().clone());
        Self { wide, output }
    }

    /// The arguments, widened.
    fn widened(&self, values: &[ArrayRef]) -> DfResult<Vec<ArrayRef>> {
        let wide = |column: &ArrayRef| cast(column, &self.wide).map_err(DataFusionError::from);
        values.iter().map(wide).collect()
    }

    /// The sums in their own type.
    fn narrowed(&self, sums: &ArrayRef) -> DfResult<ArrayRef> {
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(sums, &self.output, &strict).map_err(|_| {
            let shown = sql_name(&self.output);
            DataFusionError::Execution(state::StateError::sum_too_large(&shown))
        })
    }
}

/// DataFusion's sum of wider numbers.
#[derive(Debug)]
struct Checked {
    inner: Box<dyn Accumulator>,
    types: Types,
}

impl Accumulator for Checked {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.inner.update_batch(&self.types.widened(values)?)
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let sum = self.inner.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&self.types.narrowed(&sum)?, 0)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.inner.retract_batch(&self.types.widened(values)?)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

/// The same of many groups.
struct CheckedGroups {
    inner: Box<dyn GroupsAccumulator>,
    types: Types,
}

impl GroupsAccumulator for CheckedGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> DfResult<()> {
        self.inner.update_batch(&self.types.widened(values)?, groups, filter, total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> DfResult<ArrayRef> {
        self.types.narrowed(&self.inner.evaluate(emit_to)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> DfResult<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> DfResult<()> {
        self.inner.merge_batch(states, groups, total)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> DfResult<Vec<ArrayRef>> {
        self.inner.convert_to_state(&self.types.widened(values)?, filter)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}
