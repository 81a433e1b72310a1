//! How long the results of a call may be, by its arguments.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Date32Type, Float64Type, Int64Type, IntervalMonthDayNanoType, TimeUnit,
};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use regex::Regex;

/// Bytes of a value in a list, beside its own.
const ELEMENT_BYTES: u64 = 8;

/// Bytes of a number as text, at most, for each of its own.
const DIGITS_OF_BYTE: u64 = 8;

/// Bytes that a letter of a pattern of times becomes, at most.
const FORMATTED_BYTES: u64 = 18;

const DAY_NS: i128 = 86_400_000_000_000;

/// How long the result of a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Growth {
    /// All arguments together; with a separator behind each, if there is one.
    Sum { separated: bool },
    /// No longer than the arguments of a row.
    Part,
    /// The first argument repeated this number of times, at most.
    Scaled { by: u64 },
    /// The first argument, whose letters may become longer ones.
    Cased,
    /// The first argument so often as the second says, as a text or as a list.
    Times { list: bool },
    /// As many characters as the second argument says.
    Padded,
    /// The list, made as long as the second argument says with the third.
    Resized,
    /// The first argument with the third for each second.
    Replaced,
    /// The first argument with characters of the third for its own.
    Translated,
    /// The first argument with the third for each match of the second.
    PatternReplaced,
    /// The first argument for each group of the pattern.
    Groups,
    /// The list with the third argument for each of its elements.
    ElementsReplaced,
    /// So many bytes for each element of the list.
    Elements { bytes: u64 },
    /// The elements of a list as text, with the second argument between them and the third for
    /// those that are NULL.
    Shown,
    /// Elements of each list beside each other, as many as the longest has.
    Zipped,
    /// The parts of the first argument between each second one, as a list.
    Split,
    /// A time in the form of the second argument.
    Formatted,
    /// From the first argument, or 0, to the second by the third.
    Range,
}

impl Growth {
    /// Bytes of the results for a batch, at most, as far as one sees without a look at its rows.
    pub(super) fn of_batch(self, args: &[Argument], rows: usize) -> u64 {
        let all = |at: usize| args.get(at).map_or(0, |arg| arg.all(rows));
        match self {
            Self::Sum { separated: false } => {
                let places = (args.len() as u64 * ELEMENT_BYTES).saturating_mul(rows as u64);
                (0..args.len()).map(all).fold(places, u64::saturating_add)
            }
            // A value given for each row exists already.
            Self::Part => {
                let once = (0..args.len()).filter(|at| args[*at].once);
                once.map(all).fold(0, u64::saturating_add)
            }
            Self::Scaled { by } => all(0).saturating_mul(by),
            Self::Cased => all(0).saturating_mul(3),
            Self::Translated => all(0).saturating_mul(4),
            _ => (0..rows).map(|row| self.of_row(args, row)).fold(0, u64::saturating_add),
        }
    }

    /// Bytes of the result for a row, at most; none where it is NULL or an error.
    pub(super) fn of_row(self, args: &[Argument], row: usize) -> u64 {
        self.bytes(args, row).unwrap_or(0)
    }

    fn bytes(self, args: &[Argument], row: usize) -> Option<u64> {
        let bytes = |at: usize| args.get(at).and_then(|arg| arg.bytes(row));
        let number = |at: usize| args.get(at).and_then(|arg| arg.number(row));
        let count = |at: usize| number(at).map(|number| u64::try_from(number).unwrap_or(0));
        let elements = |at: usize| args.get(at).map_or(0, |arg| arg.elements(row));
        let all = || (0..args.len()).filter_map(bytes).fold(0, u64::saturating_add);
        match self {
            Self::Sum { separated } => {
                // An element has a place of its own.
                let separator = if separated { bytes(0)? } else { ELEMENT_BYTES };
                Some(all().saturating_add(separator.saturating_mul(args.len() as u64)))
            }
            Self::Part => Some(all()),
            Self::Scaled { by } => Some(bytes(0)?.saturating_mul(by)),
            Self::Cased => {
                let ascii = args.first()?.text(row)?.is_ascii();
                Some(bytes(0)?.saturating_mul(if ascii { 1 } else { 3 }))
            }
            Self::Times { list: false } => Some(count(1)?.saturating_mul(bytes(0)?)),
            // NULL is repeated too.
            Self::Times { list: true } => {
                let one = bytes(0).unwrap_or(0).saturating_add(ELEMENT_BYTES);
                Some(count(1)?.saturating_mul(one))
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
                Some(replaced(args.first()?.text(row)?, args[1].text(row)?, bytes(2)?))
            }
            Self::Translated => {
                let longest = args.get(2)?.character_bytes(row).max(1);
                Some(bytes(0)?.saturating_mul(longest))
            }
            Self::PatternReplaced => pattern_replaced(args, row),
            Self::Groups => {
                let groups = args.get(1)?.text(row)?.matches('(').count() as u64 + 1;
                Some(groups.saturating_mul(bytes(0)?.saturating_add(ELEMENT_BYTES)))
            }
            Self::ElementsReplaced => {
                let most = if args.len() > 3 { count(3)? } else { u64::MAX };
                let with = bytes(2).unwrap_or(0).saturating_mul(elements(0).min(most));
                Some(bytes(0)?.saturating_add(with))
            }
            Self::Elements { bytes } => Some(elements(0).saturating_mul(bytes)),
            Self::Shown => {
                let between = bytes(1)?.saturating_add(bytes(2).unwrap_or(0));
                let shown = args.first()?.shown(row)?;
                Some(shown.saturating_add(elements(0).saturating_mul(between)))
            }
            Self::Zipped => {
                let longest = (0..args.len()).map(elements).max()?;
                let padded = longest.saturating_mul(args.len() as u64);
                Some(all().saturating_add(padded.saturating_mul(ELEMENT_BYTES)))
            }
            Self::Split => Some(split(args.first()?.text(row)?, args.get(1)?.text(row))),
            Self::Formatted => Some(bytes(1)?.saturating_mul(FORMATTED_BYTES)),
            Self::Range => range(args, row),
        }
    }
}

/// Bytes of a text with a number of bytes for each `from`.
fn replaced(text: &str, from: &str, with: u64) -> u64 {
    let length = text.len() as u64;
    let most = length / (from.len() as u64).max(1) + 1;
    let most = length.saturating_add(most.saturating_mul(with));
    // Looked at only where it may matter.
    let few = most <= super::CALL_BYTES_MAX / 8192;
    let found = || text.matches(from).count() as u64;
    if few { most } else { length.saturating_add(found().saturating_mul(with)) }
}

/// Bytes of a list of the parts of a text, or of its characters.
fn split(text: &str, at: Option<&str>) -> u64 {
    let length = text.len() as u64;
    let of = |parts: u64| length.saturating_add(parts.saturating_add(1) * ELEMENT_BYTES);
    let most = of(length);
    if most <= super::CALL_BYTES_MAX / 8192 {
        return most;
    }
    of(at.map_or_else(|| text.chars().count(), |at| text.matches(at).count()) as u64)
}

/// Bytes of a text in which matches of a pattern are replaced.
fn pattern_replaced(args: &[Argument], row: usize) -> Option<u64> {
    let (text, pattern) = (args.first()?.text(row)?, args.get(1)?.text(row)?);
    let with = args.get(2)?.text(row)?;
    let flags = args.get(3).map_or(Some("g"), |flags| flags.text(row))?;
    let length = text.len() as u64;
    // The match of a group is no longer than the text, each time that it is named.
    let groups = with.matches(['\\', '$']).count() as u64;
    let groups = length.saturating_mul(groups.saturating_add(1));
    let of = |matches: u64| groups.saturating_add(matches.saturating_mul(with.len() as u64));
    if !flags.contains('g') {
        return Some(of(1));
    }
    let most = of(length.saturating_add(1));
    if most <= super::CALL_BYTES_MAX / 8192 {
        return Some(most);
    }
    let flags: String = flags.chars().filter(|flag| *flag != 'g').collect();
    let pattern = if flags.is_empty() { pattern.into() } else { format!("(?{flags}){pattern}") };
    // A pattern that is none is an error of the call.
    let compiled = Regex::new(&pattern).ok()?;
    Some(of(compiled.find_iter(text).count() as u64))
}

/// Bytes of the numbers, days or instants from one to another.
fn range(args: &[Argument], row: usize) -> Option<u64> {
    let value = |at: usize| args.get(at).and_then(|arg| arg.place(row));
    let from = if args.len() == 1 { 0 } else { value(0)? };
    let to = value(if args.len() == 1 { 0 } else { 1 })?;
    let step = if args.len() < 3 { 1 } else { value(2)? };
    if (step > 0 && to < from) || (step < 0 && to > from) {
        return Some(0);
    }
    let values = from.abs_diff(to) / step.unsigned_abs().max(1);
    Some(u64::try_from(values).ok()?.saturating_add(1).saturating_mul(ELEMENT_BYTES))
}

/// An argument of a call: a column, or one value for all rows.
pub(super) struct Argument {
    values: ArrayRef,
    /// The same as numbers, if they are.
    numbers: Option<ArrayRef>,
    once: bool,
}

impl Argument {
    pub(super) fn new(value: &ColumnarValue) -> Result<Self> {
        let (values, once) = match value {
            ColumnarValue::Array(array) => (array.clone(), false),
            ColumnarValue::Scalar(scalar) => (scalar.to_array()?, true),
        };
        let given = values.data_type();
        let to = match given {
            DataType::Timestamp(..) => Some(DataType::Timestamp(TimeUnit::Nanosecond, None)),
            _ => given.is_integer().then_some(DataType::Int64),
        };
        let options = CastOptions { safe: true, ..CastOptions::default() };
        let cast = |to| cast_with_options(&values, &to, &options);
        let numbers = match given {
            DataType::Int64 => Some(values.clone()),
            _ => to.map(cast).transpose()?,
        };
        Ok(Self { values, numbers, once })
    }

    /// Bytes of the values of `rows` rows.
    fn all(&self, rows: usize) -> u64 {
        let bytes = bytes_of(self.values.as_ref(), 0, self.values.len());
        if self.once { bytes.saturating_mul(rows as u64) } else { bytes }
    }

    /// The place of a row, if it has a value.
    fn at(&self, row: usize) -> Option<usize> {
        let at = if self.once { 0 } else { row };
        (at < self.values.len() && self.values.is_valid(at)).then_some(at)
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
        self.at(row).map(|at| bytes_of(self.values.as_ref(), at, at + 1))
    }

    /// Bytes of the value as text, at most.
    fn shown(&self, row: usize) -> Option<u64> {
        self.at(row).map(|at| shown_of(self.values.as_ref(), at, at + 1))
    }

    fn number(&self, row: usize) -> Option<i64> {
        let at = self.at(row)?;
        let numbers = self.numbers.as_ref()?.as_primitive_opt::<Int64Type>()?;
        // A number that is too large for 64 bits with a sign is NULL there.
        Some(if numbers.is_valid(at) { numbers.value(at) } else { i64::MAX })
    }

    /// A number; of days, instants and intervals their nanoseconds.
    fn place(&self, row: usize) -> Option<i128> {
        let at = self.at(row)?;
        match self.values.data_type() {
            DataType::Date32 => {
                Some(i128::from(self.values.as_primitive::<Date32Type>().value(at)) * DAY_NS)
            }
            DataType::Interval(_) => {
                let steps = self.values.as_primitive_opt::<IntervalMonthDayNanoType>()?;
                let step = steps.value(at);
                // No month is shorter.
                let days = i128::from(step.months) * 28 + i128::from(step.days);
                Some(days * DAY_NS + i128::from(step.nanoseconds))
            }
            DataType::Timestamp(..) => {
                let instants = self.numbers.as_ref()?;
                let instants = instants.as_primitive::<arrow::datatypes::TimestampNanosecondType>();
                instants.is_valid(at).then(|| i128::from(instants.value(at)))
            }
            _ => self.number(row).map(i128::from),
        }
    }

    /// Elements of the list, and of lists in it.
    fn elements(&self, row: usize) -> u64 {
        self.at(row).map_or(0, |at| elements_of(self.values.as_ref(), at, at + 1))
    }

    /// Bytes of a character of the text, at most.
    fn character_bytes(&self, row: usize) -> u64 {
        let longest = self.text(row).and_then(|text| text.chars().map(char::len_utf8).max());
        longest.unwrap_or(0) as u64
    }
}

/// Bytes of the values of some rows as text, at most.
fn shown_of(values: &dyn Array, from: usize, to: usize) -> u64 {
    match values.data_type() {
        of if of.is_string() => bytes_of(values, from, to),
        DataType::Float64 => {
            // Very large and very small numbers are written with all their zeros.
            let usual = |value: &f64| (1e-9..1e17).contains(&value.abs()) || *value == 0.0;
            let values = &values.as_primitive::<Float64Type>().values()[from..to];
            values.iter().map(|value| if usual(value) { 32 } else { 344 }).sum()
        }
        of if of.is_floating() => 64 * (to - from) as u64,
        _ => match inner(values, from, to) {
            Some((within, from, to)) => shown_of(within.as_ref(), from, to),
            None => bytes_of(values, from, to).saturating_mul(DIGITS_OF_BYTE),
        },
    }
}

/// Bytes of the values of some rows.
pub(crate) fn bytes_of(values: &dyn Array, from: usize, to: usize) -> u64 {
    fn between<O: OffsetSizeTrait>(offsets: &[O], from: usize, to: usize) -> u64 {
        (offsets[to].as_usize() - offsets[from].as_usize()) as u64
    }
    let rows = (to - from) as u64;
    match values.data_type() {
        DataType::Null => 0,
        DataType::Utf8 => between(values.as_string::<i32>().value_offsets(), from, to),
        DataType::LargeUtf8 => between(values.as_string::<i64>().value_offsets(), from, to),
        DataType::Binary => between(values.as_binary::<i32>().value_offsets(), from, to),
        DataType::LargeBinary => between(values.as_binary::<i64>().value_offsets(), from, to),
        DataType::Utf8View => {
            let views = &values.as_string_view().views()[from..to];
            views.iter().map(|view| u64::from(*view as u32)).sum()
        }
        DataType::BinaryView => {
            let views = &values.as_binary_view().views()[from..to];
            views.iter().map(|view| u64::from(*view as u32)).sum()
        }
        DataType::Struct(_) => {
            let columns = values.as_struct().columns().iter();
            columns.map(|column| bytes_of(column.as_ref(), from, to)).sum()
        }
        of => match (inner(values, from, to), of.primitive_width()) {
            (Some((within, from, to)), _) => {
                let elements = ((to - from) as u64).saturating_mul(ELEMENT_BYTES);
                bytes_of(within.as_ref(), from, to).max(elements)
            }
            (None, Some(width)) => rows.saturating_mul(width as u64),
            (None, None) => rows.saturating_mul(ELEMENT_BYTES),
        },
    }
}

/// Elements of some rows of lists, down to those that are no lists.
fn elements_of(values: &dyn Array, from: usize, to: usize) -> u64 {
    match inner(values, from, to) {
        Some((within, from, to)) => elements_of(within.as_ref(), from, to).max((to - from) as u64),
        None => (to - from) as u64,
    }
}

/// The elements of some rows of lists or maps, and their offsets.
fn inner(values: &dyn Array, from: usize, to: usize) -> Option<(ArrayRef, usize, usize)> {
    fn at<O: OffsetSizeTrait>(offsets: &[O], row: usize) -> usize {
        offsets[row].as_usize()
    }
    Some(match values.data_type() {
        DataType::List(_) => {
            let list = values.as_list::<i32>();
            let offsets = list.value_offsets();
            (list.values().clone(), at(offsets, from), at(offsets, to))
        }
        DataType::LargeList(_) => {
            let list = values.as_list::<i64>();
            let offsets = list.value_offsets();
            (list.values().clone(), at(offsets, from), at(offsets, to))
        }
        DataType::FixedSizeList(_, size) => {
            let (list, size) = (values.as_fixed_size_list(), usize::try_from(*size).ok()?);
            (list.values().clone(), from * size, to * size)
        }
        DataType::Map(..) => {
            let map = values.as_map();
            let offsets = map.value_offsets();
            (std::sync::Arc::new(map.entries().clone()), at(offsets, from), at(offsets, to))
        }
        _ => return None,
    })
}
