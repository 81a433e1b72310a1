//! Functions whose result may be far longer than what they are given: `repeat(s, n)`, with `n` from
//! the data, makes gigabytes of a few bytes. What such a call would make of a batch is estimated
//! before it is made ([`estimate`]), and refused beyond [`CALL_BYTES_MAX`].
//!
//! An estimate is never too small. Where that of a batch is beyond the bound, the call is made of
//! some rows after others, and what it made of them counts; only what one row may come to is
//! refused by its estimate.
//!
//! Each is DataFusion's own, or one of ours, with the check in front. `a || b` is an operator,
//! which has no place for a check: it becomes a function before constants are computed
//! ([`joined`]). A test goes through all functions that there are, and each is either here or among
//! those that cannot grow.

pub(crate) mod constant;
mod estimate;
pub(crate) mod joined;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};

use crate::text::units::human;
pub(crate) use estimate::bytes_of;
use estimate::{Argument, Growth};

/// Bytes that a call may make of the rows of a batch.
pub(crate) const CALL_BYTES_MAX: u64 = 256 << 20;

/// How functions grow. Those of [`Growth::Part`] give back a part of what they are given, which may
/// be one long constant for many rows.
const GROWING: [(&str, Growth); 72] = [
    ("array_any_value", Growth::Part),
    ("array_append", Growth::Sum { separated: false }),
    ("array_compact", Growth::Part),
    ("array_concat", Growth::Sum { separated: false }),
    ("array_distinct", Growth::Part),
    ("array_element", Growth::Part),
    ("array_except", Growth::Part),
    ("array_intersect", Growth::Part),
    ("array_max", Growth::Part),
    ("array_min", Growth::Part),
    ("array_pop_back", Growth::Part),
    ("array_pop_front", Growth::Part),
    ("array_positions", Growth::Elements { bytes: 8 }),
    ("array_prepend", Growth::Sum { separated: false }),
    ("array_remove", Growth::Part),
    ("array_remove_all", Growth::Part),
    ("array_remove_n", Growth::Part),
    ("array_repeat", Growth::Times { list: true }),
    ("array_replace", Growth::Sum { separated: false }),
    ("array_replace_all", Growth::ElementsReplaced),
    ("array_replace_n", Growth::ElementsReplaced),
    ("array_resize", Growth::Resized),
    ("array_reverse", Growth::Part),
    ("array_slice", Growth::Part),
    ("array_sort", Growth::Part),
    ("array_to_string", Growth::Shown),
    ("array_union", Growth::Sum { separated: false }),
    ("arrays_zip", Growth::Zipped),
    ("btrim", Growth::Part),
    ("concat", Growth::Sum { separated: false }),
    ("concat_ws", Growth::Sum { separated: true }),
    ("date_format", Growth::Formatted),
    ("decode", Growth::Part),
    ("encode", Growth::Scaled { by: 2 }),
    ("flatten", Growth::Part),
    ("generate_series", Growth::Range),
    ("greatest", Growth::Part),
    ("initcap", Growth::Cased),
    ("json_query", Growth::Scaled { by: 5 }),
    ("json_value", Growth::Scaled { by: 5 }),
    ("least", Growth::Part),
    ("left", Growth::Part),
    ("lower", Growth::Cased),
    ("lpad", Growth::Padded),
    ("ltrim", Growth::Part),
    ("make_array", Growth::Sum { separated: false }),
    ("map", Growth::Sum { separated: false }),
    ("map_entries", Growth::Part),
    ("map_extract", Growth::Part),
    ("map_keys", Growth::Part),
    ("map_values", Growth::Part),
    ("nullif", Growth::Part),
    ("overlay", Growth::Sum { separated: false }),
    ("range", Growth::Range),
    ("regexp_extract", Growth::Part),
    ("regexp_match", Growth::Groups),
    ("regexp_replace", Growth::PatternReplaced),
    ("repeat", Growth::Times { list: false }),
    ("replace", Growth::Replaced),
    ("reverse", Growth::Part),
    ("right", Growth::Part),
    ("rpad", Growth::Padded),
    ("rtrim", Growth::Part),
    ("split_index", Growth::Part),
    ("split_part", Growth::Part),
    ("string_to_array", Growth::Split),
    ("substr", Growth::Part),
    ("substr_index", Growth::Part),
    ("to_char", Growth::Formatted),
    ("translate", Growth::Translated),
    ("upper", Growth::Cased),
    (joined::NAME, Growth::Sum { separated: false }),
];

/// Puts the check in front of a function, if it can grow.
pub(crate) fn bound(function: &mut Arc<ScalarUDF>) {
    let growing = GROWING.iter().find(|(name, _)| *name == function.name());
    if let Some((_, growth)) = growing.filter(|_| !function.inner().is::<Bounded>()) {
        let bounded = Bounded { inner: function.as_ref().clone(), growth: *growth };
        *function = Arc::new(ScalarUDF::from(bounded));
    }
}

/// A function with a bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bounded {
    inner: ScalarUDF,
    growth: Growth,
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn is_strict(&self) -> bool {
        self.inner.inner().is_strict()
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(match self.inner.simplify(args, context)? {
            // The same with other arguments, or another one: `concat` in place of `concat_ws`.
            ExprSimplifyResult::Simplified(Expr::ScalarFunction(mut call)) => {
                bound(&mut call.func);
                ExprSimplifyResult::Simplified(Expr::ScalarFunction(call))
            }
            other => other,
        })
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let inner = self.inner.inner().with_updated_config(config)?;
        Some(ScalarUDF::from(Self { inner, growth: self.growth }))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let columns = args.args.iter().map(Argument::new).collect::<Result<Vec<_>>>()?;
        if self.growth.of_batch(&columns, rows) <= CALL_BYTES_MAX {
            return self.inner.invoke_with_args(args);
        }
        let of_rows: Vec<u64> = (0..rows).map(|row| self.growth.of_row(&columns, row)).collect();
        let all = of_rows.iter().copied().fold(0, u64::saturating_add);
        if all <= CALL_BYTES_MAX {
            return self.inner.invoke_with_args(args);
        }
        if of_rows.iter().any(|bytes| *bytes > CALL_BYTES_MAX) || rows < 2 {
            self.refused(all, rows)
        } else {
            self.in_parts(&args, &of_rows).map(ColumnarValue::Array)
        }
    }
}

impl Bounded {
    /// The call for some rows after others, which by their estimates come to no more than the
    /// bound at a time.
    fn in_parts(&self, args: &ScalarFunctionArgs, of_rows: &[u64]) -> Result<ArrayRef> {
        let (mut parts, mut made, mut from) = (vec![], 0_u64, 0);
        while from < of_rows.len() {
            let mut estimate = 0_u64;
            let fits = |bytes: &&u64| {
                estimate = estimate.saturating_add(**bytes);
                estimate <= CALL_BYTES_MAX
            };
            let rows = of_rows[from..].iter().take_while(fits).count();
            let part = |arg: &ColumnarValue| match arg {
                ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(from, rows)),
                scalar => scalar.clone(),
            };
            let part = ScalarFunctionArgs {
                args: args.args.iter().map(part).collect(),
                number_rows: rows,
                ..args.clone()
            };
            let part = self.inner.invoke_with_args(part)?.into_array(rows)?;
            made = made.saturating_add(bytes_of(part.as_ref(), 0, rows));
            if made > CALL_BYTES_MAX {
                return self.refused(made, from + rows);
            }
            parts.push(part);
            from += rows;
        }
        Ok(concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
    }

    fn refused<T>(&self, bytes: u64, rows: usize) -> Result<T> {
        let (name, made, most) = (self.name(), human(bytes), human(CALL_BYTES_MAX));
        let of = if rows == 1 { "a row".to_owned() } else { format!("{rows} rows") };
        exec_err!(
            "{name} would make {made} of {of}; {most} are the most of a batch, which \
             millstream.batch_rows makes smaller"
        )
    }
}
