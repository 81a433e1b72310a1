//! Functions whose result may be far longer than what they are given: `repeat(s, n)`, with `n` from
//! the data, makes gigabytes of a few bytes. What such a call would make of a batch is known before
//! it is made, and refused beyond [`CALL_BYTES_MAX`].
//!
//! Each is DataFusion's own, with the check in front. Functions whose result is bounded by a small
//! multiple of their arguments are left as they are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};

use crate::text::units::human;

/// Bytes that a call may make of the rows of a batch.
const CALL_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a value in a list, beside its own.
const ELEMENT_BYTES: u64 = 8;

/// How long the result of a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Growth {
    /// All arguments together; with a separator behind each, if there is one.
    Sum { separated: bool },
    /// The first argument so often as the second says.
    Times,
    /// As many characters as the second argument says.
    Padded,
    /// The list, made as long as the second argument says with the third.
    Resized,
    /// The first argument with the third for each second.
    Replaced,
    /// Numbers from the first argument, or 0, to the second by the third.
    Range,
}

const GROWING: [(&str, Growth); 12] = [
    ("array_concat", Growth::Sum { separated: false }),
    ("array_repeat", Growth::Times),
    ("array_resize", Growth::Resized),
    ("concat", Growth::Sum { separated: false }),
    ("concat_ws", Growth::Sum { separated: true }),
    ("generate_series", Growth::Range),
    ("lpad", Growth::Padded),
    ("overlay", Growth::Sum { separated: false }),
    ("range", Growth::Range),
    ("repeat", Growth::Times),
    ("replace", Growth::Replaced),
    ("rpad", Growth::Padded),
];

/// Puts the check in front of a function, if it can grow.
pub(crate) fn bound(function: &mut Arc<ScalarUDF>) {
    if let Some((_, growth)) = GROWING.iter().find(|(name, _)| *name == function.name()) {
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
            // The same with other arguments.
            ExprSimplifyResult::Simplified(Expr::ScalarFunction(mut call))
                if call.func.name() == self.name() =>
            {
                call.func = Arc::new(ScalarUDF::from(self.clone()));
                ExprSimplifyResult::Simplified(Expr::ScalarFunction(call))
            }
            other => other,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let columns = args.args.iter().map(Argument::new).collect::<Result<Vec<_>>>()?;
        let bytes = self.growth.of_rows(&columns, rows);
        if bytes > CALL_BYTES_MAX {
            let (name, made, most) = (self.name(), human(bytes), human(CALL_BYTES_MAX));
            let of = if rows == 1 { "a row".to_owned() } else { format!("{rows} rows") };
            return exec_err!(
                "{name} would make {made} of {of}; {most} are the most of a batch, which \
                 millstream.batch_rows makes smaller"
            );
        }
        self.inner.invoke_with_args(args)
    }
}

impl Growth {
    /// Bytes of the results for so many rows.
    fn of_rows(self, args: &[Argument], rows: usize) -> u64 {
        match self {
            // Known without a look at the rows.
            Self::Sum { separated: false } => {
                args.iter().map(|arg| arg.all(rows)).fold(0, u64::saturating_add)
            }
            _ => (0..rows).filter_map(|row| self.bytes(args, row)).fold(0, u64::saturating_add),
        }
    }

    /// Bytes of the result for a row; `None` where it is NULL or an error.
    fn bytes(self, args: &[Argument], row: usize) -> Option<u64> {
        let bytes = |at: usize| args.get(at).and_then(|arg| arg.bytes(row));
        let number = |at: usize| args.get(at).and_then(|arg| arg.number(row));
        let count = |at: usize| number(at).map(|number| u64::try_from(number).unwrap_or(0));
        match self {
            Self::Sum { separated } => {
                let all = (0..args.len()).filter_map(bytes).fold(0, u64::saturating_add);
                let separator = if separated { bytes(0)? } else { 0 };
                Some(all.saturating_add(separator.saturating_mul(args.len() as u64)))
            }
            Self::Times => {
                let list = if args.first()?.is_text() { 0 } else { ELEMENT_BYTES };
                // NULL is repeated too, into a list.
                let one = if list > 0 { bytes(0).unwrap_or(0) } else { bytes(0)? };
                Some(count(1)?.saturating_mul(one.saturating_add(list)))
            }
            Self::Padded => {
                let of_character = args.get(2).map_or(1, |fill| fill.character_bytes(row));
                Some(count(1)?.saturating_mul(of_character))
            }
            Self::Resized => {
                let one = bytes(2).unwrap_or(0).saturating_add(ELEMENT_BYTES);
                Some(count(1)?.saturating_mul(one))
            }
            Self::Replaced => {
                let (text, from) = (args.first()?.text(row)?, args.get(1)?.text(row)?);
                let (length, with) = (text.len() as u64, bytes(2)?);
                let most = length / (from.len() as u64).max(1) + 1;
                let most = length.saturating_add(most.saturating_mul(with));
                // Looked at only where it may matter.
                let few = most <= CALL_BYTES_MAX / 8192;
                let found = || text.matches(from).count() as u64;
                Some(if few { most } else { length.saturating_add(found().saturating_mul(with)) })
            }
            Self::Range => {
                let from = if args.len() == 1 { 0 } else { number(0)? };
                let to = number(if args.len() == 1 { 0 } else { 1 })?;
                let step = if args.len() < 3 { 1 } else { number(2)? };
                if (step > 0 && to < from) || (step < 0 && to > from) {
                    return Some(0);
                }
                let numbers = from.abs_diff(to) / step.unsigned_abs().max(1);
                Some(numbers.saturating_add(1).saturating_mul(ELEMENT_BYTES))
            }
        }
    }
}

/// An argument of a call: a column, or one value for all rows.
struct Argument {
    values: ArrayRef,
    /// The same as numbers, if they are.
    numbers: Option<ArrayRef>,
    once: bool,
    /// Bytes of all values.
    bytes: u64,
    /// Bytes of a value that is no text, on average.
    mean: u64,
}

impl Argument {
    fn new(value: &ColumnarValue) -> Result<Self> {
        let (values, once) = match value {
            ColumnarValue::Array(array) => (array.clone(), false),
            ColumnarValue::Scalar(scalar) => (scalar.to_array()?, true),
        };
        let numbers = match values.data_type().is_integer() {
            true => {
                let options = CastOptions { safe: true, ..CastOptions::default() };
                Some(cast_with_options(&values, &DataType::Int64, &options)?)
            }
            false => None,
        };
        let bytes = values.to_data().get_slice_memory_size();
        let bytes = bytes.unwrap_or_else(|_| values.get_array_memory_size()) as u64;
        let mean = bytes.div_ceil((values.len() as u64).max(1));
        Ok(Self { values, numbers, once, bytes, mean })
    }

    /// Bytes of the values of so many rows.
    fn all(&self, rows: usize) -> u64 {
        if self.once { self.bytes(0).unwrap_or(0).saturating_mul(rows as u64) } else { self.bytes }
    }

    /// The place of a row, if it has a value.
    fn at(&self, row: usize) -> Option<usize> {
        let at = if self.once { 0 } else { row };
        (at < self.values.len() && self.values.is_valid(at)).then_some(at)
    }

    fn is_text(&self) -> bool {
        use DataType::{LargeUtf8, Utf8, Utf8View};
        matches!(self.values.data_type(), Utf8 | LargeUtf8 | Utf8View)
    }

    fn text(&self, row: usize) -> Option<&str> {
        let at = self.at(row)?;
        match self.values.data_type() {
            DataType::Utf8 => Some(self.values.as_string::<i32>().value(at)),
            DataType::LargeUtf8 => Some(self.values.as_string::<i64>().value(at)),
            DataType::Utf8View => Some(self.values.as_string_view().value(at)),
            _ => None,
        }
    }

    fn bytes(&self, row: usize) -> Option<u64> {
        match self.text(row) {
            Some(text) => Some(text.len() as u64),
            None => self.at(row).map(|_| self.mean),
        }
    }

    fn number(&self, row: usize) -> Option<i64> {
        let at = self.at(row)?;
        let numbers = self.numbers.as_ref()?.as_primitive::<Int64Type>();
        // A number that is too large for 64 bits with a sign is NULL there.
        Some(if numbers.is_valid(at) { numbers.value(at) } else { i64::MAX })
    }

    /// Bytes of a character of the text, at most.
    fn character_bytes(&self, row: usize) -> u64 {
        let longest = self.text(row).and_then(|text| text.chars().map(char::len_utf8).max());
        longest.unwrap_or(0) as u64
    }
}
