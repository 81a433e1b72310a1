//! `sum` and `avg`, which are exact or an error.
//!
//! DataFusion's `sum` wraps around: two large numbers may have a small sum. This one adds integers
//! and long decimals in numbers of twice the width, which no number of rows fills, and looks once,
//! at the result, whether it fits its type; so neither the order of rows nor the number of workers
//! is seen. What cannot be filled, as short decimals and floats, DataFusion adds as it is. Where
//! integers stream, [`state::aggregates::sum`] takes its place and says the same.
//!
//! DataFusion's `avg` of decimals cuts digits off. This one asks it for one digit more, and rounds
//! that: half away from zero, as Flink does.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, FieldRef,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::functions_aggregate::average::avg_udaf;
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

/// Either function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Exact {
    which: Which,
    inner: Arc<AggregateUDF>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Sum,
    Avg,
}

/// Both of them.
pub(crate) fn functions() -> [AggregateUDF; 2] {
    let sum = Exact { which: Which::Sum, inner: sum_udaf() };
    let avg = Exact { which: Which::Avg, inner: avg_udaf() };
    [sum, avg].map(AggregateUDF::from)
}

/// The argument types to pass to DataFusion's function.
struct Asked {
    of: Vec<FieldRef>,
    to: FieldRef,
}

impl Asked {
    fn new(of: DataType, to: DataType) -> Self {
        let field = |of| FieldRef::from(Field::new("exact", of, true));
        Self { of: vec![field(of)], to: field(to) }
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

    /// The types of a function that makes `output` in the end.
    fn types(&self, output: &FieldRef) -> Types {
        Types { of: self.of[0].data_type().clone(), output: output.data_type().clone() }
    }
}

impl Which {
    /// The types to ask for; `None` where DataFusion's function is exact itself.
    fn asked(self, of: &[FieldRef], output: &FieldRef) -> Option<Asked> {
        let of = of.first()?.data_type();
        match self {
            Which::Sum => {
                let wide = match of {
                    DataType::Int64 | DataType::UInt64 => DataType::Decimal128(38, 0),
                    DataType::Decimal128(digits, scale) if *digits >= LONG_DIGITS => {
                        DataType::Decimal256(76, *scale)
                    }
                    _ => return None,
                };
                Some(Asked::new(wide.clone(), wide))
            }
            // The arguments have a digit more, too: by theirs it chooses in what it adds.
            Which::Avg => match (of, output.data_type()) {
                (&DataType::Decimal128(digits, scale), &DataType::Decimal128(most, behind)) => {
                    Some(if most < DECIMAL128_MAX_PRECISION {
                        Asked::new(
                            DataType::Decimal128(digits + 1, scale),
                            DataType::Decimal128(most + 1, behind + 1),
                        )
                    } else {
                        Asked::new(
                            DataType::Decimal256(digits + 1, scale),
                            DataType::Decimal256(most + 1, behind + 1),
                        )
                    })
                }
                (&DataType::Decimal256(digits, scale), &DataType::Decimal256(most, behind))
                    if most < DECIMAL256_MAX_PRECISION =>
                {
                    let asked = DataType::Decimal256(digits + 1, scale);
                    Some(Asked::new(asked, DataType::Decimal256(most + 1, behind + 1)))
                }
                _ => None,
            },
        }
    }
}

impl AggregateUDFImpl for Exact {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        let Some(asked) = self.which.asked(args.expr_fields, &args.return_field) else {
            return self.inner.accumulator(args);
        };
        let inner = self.inner.accumulator(asked.args(&args))?;
        Ok(Box::new(Checked { inner, types: asked.types(&args.return_field) }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        match self.which.asked(args.input_fields, &args.return_field) {
            Some(asked) => self.inner.state_fields(StateFieldsArgs {
                input_fields: &asked.of,
                return_field: asked.to.clone(),
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
        let Some(asked) = self.which.asked(args.expr_fields, &args.return_field) else {
            return self.inner.create_groups_accumulator(args);
        };
        let inner = self.inner.create_groups_accumulator(asked.args(&args))?;
        Ok(Box::new(CheckedGroups { inner, types: asked.types(&args.return_field) }))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        match self.which.asked(args.expr_fields, &args.return_field) {
            // DataFusion takes distinct values back of 64 bits only, and lets them wrap.
            Some(_) if args.is_distinct => self.accumulator(args),
            Some(asked) => {
                let inner = self.inner.create_sliding_accumulator(asked.args(&args))?;
                Ok(Box::new(Checked { inner, types: asked.types(&args.return_field) }))
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

/// The type in which DataFusion's function takes its arguments, and that of the result.
#[derive(Debug)]
struct Types {
    of: DataType,
    output: DataType,
}

impl Types {
    /// The arguments, as DataFusion's function takes them.
    fn in_input_type(&self, values: &[ArrayRef]) -> DfResult<Vec<ArrayRef>> {
        let wide = |column: &ArrayRef| cast(column, &self.of).map_err(DataFusionError::from);
        values.iter().map(wide).collect()
    }

    /// The results in their own type; a cast rounds half away from zero.
    fn narrowed(&self, results: &ArrayRef) -> DfResult<ArrayRef> {
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(results, &self.output, &strict).map_err(|_| {
            let shown = sql_name(&self.output);
            DataFusionError::Execution(state::StateError::sum_too_large(&shown))
        })
    }
}

/// DataFusion's function of wider numbers.
#[derive(Debug)]
struct Checked {
    inner: Box<dyn Accumulator>,
    types: Types,
}

impl Accumulator for Checked {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.inner.update_batch(&self.types.in_input_type(values)?)
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let result = self.inner.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&self.types.narrowed(&result)?, 0)
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
        self.inner.retract_batch(&self.types.in_input_type(values)?)
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
        self.inner.update_batch(&self.types.in_input_type(values)?, groups, filter, total)
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
        self.inner.convert_to_state(&self.types.in_input_type(values)?, filter)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}
