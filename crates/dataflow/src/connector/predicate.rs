//! Predicates that a source may use: what of a filter a connector understands.
//!
//! A source that is [pruned](crate::source::Source::pruned) leaves out what cannot match. The
//! filter is evaluated on the rows that are left all the same, so a predicate may be weaker than
//! the filter, and never stronger: what it cannot decide is kept.
//!
//! ```text
//! filter of the query ─▶ Predicate ─▶ statistics of a split, of a page   may_match
//!                                  └▶ rows                               matches
//! ```
//!
//! Floats are ordered by the filter with NaN of either sign at the ends, and files have no NaN in
//! their statistics: only a range with two ends, neither of which is NaN, excludes NaN, so only
//! that is held against statistics.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar, make_comparator};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp;
use arrow::compute::{SortOptions, cast, is_not_null, is_null, prep_null_mask_filter};
use arrow::datatypes::{DataType, Float64Type, Schema};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;

/// A condition on the columns of a source. NULL is as good as false.
#[derive(Debug, Clone)]
pub enum Predicate {
    /// All of these hold.
    All(Vec<Predicate>),
    /// One of these holds.
    Any(Vec<Predicate>),
    /// The value of a column lies between two ends.
    Range(ColumnRange),
    /// The value of a column is one of these.
    In {
        /// The column.
        column: usize,
        /// The values, of the column's type: in order, each once, none of them NULL.
        values: ArrayRef,
    },
    /// The text of a column begins so.
    Prefix {
        /// The column.
        column: usize,
        /// The beginning.
        prefix: String,
    },
    /// A column is NULL.
    Null(usize),
    /// A column is not NULL.
    NotNull(usize),
}

/// The values between two ends, one of which may be open.
#[derive(Debug, Clone)]
pub struct ColumnRange {
    /// The column.
    pub column: usize,
    /// The least value.
    pub from: Option<RangeEnd>,
    /// The greatest value.
    pub to: Option<RangeEnd>,
}

/// An end of a range.
#[derive(Debug, Clone)]
pub struct RangeEnd {
    /// One value of the column's type, which is not NULL.
    pub value: ArrayRef,
    /// Whether the value itself lies within.
    pub inclusive: bool,
}

/// What is known of the values of a column in a split or a page before they are read.
#[derive(Debug, Clone, Default)]
pub struct ColumnSummary {
    /// No value is less: one value of the column's type. It need not occur.
    pub least: Option<ArrayRef>,
    /// No value is greater, likewise.
    pub greatest: Option<ArrayRef>,
    /// How many rows have NULL.
    pub nulls: Option<u64>,
    /// How many rows there are.
    pub rows: Option<u64>,
    /// Which values may occur, as far as a filter tells.
    pub members: Option<Membership>,
}

/// Says which values may occur in a column: a Bloom filter.
#[derive(Clone)]
pub struct Membership(Arc<dyn Fn(&ArrayRef) -> bool + Send + Sync>);

impl Membership {
    /// `may_have` says of one value of the column's type whether it may occur.
    pub fn new(may_have: impl Fn(&ArrayRef) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may_have))
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Membership")
    }
}

impl Predicate {
    /// The columns that it names.
    pub fn columns(&self) -> BTreeSet<usize> {
        let mut columns = BTreeSet::new();
        self.each_column(&mut |column| {
            columns.insert(column);
        });
        columns
    }

    fn each_column(&self, see: &mut dyn FnMut(usize)) {
        match self {
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().for_each(|part| part.each_column(see));
            }
            Self::Range(ColumnRange { column, .. })
            | Self::In { column, .. }
            | Self::Prefix { column, .. }
            | Self::Null(column)
            | Self::NotNull(column) => see(*column),
        }
    }

    /// The same over other columns; `None` if nothing is left that says something. A part about a
    /// column that has no other counts as true.
    pub fn over(&self, place: &dyn Fn(usize) -> Option<usize>) -> Option<Self> {
        Some(match self {
            Self::All(parts) => {
                let parts: Vec<Self> = parts.iter().filter_map(|part| part.over(place)).collect();
                return (!parts.is_empty()).then_some(Self::All(parts));
            }
            Self::Any(parts) => {
                Self::Any(parts.iter().map(|part| part.over(place)).collect::<Option<_>>()?)
            }
            Self::Range(range) => {
                Self::Range(ColumnRange { column: place(range.column)?, ..range.clone() })
            }
            Self::In { column, values } => {
                Self::In { column: place(*column)?, values: values.clone() }
            }
            Self::Prefix { column, prefix } => {
                Self::Prefix { column: place(*column)?, prefix: prefix.clone() }
            }
            Self::Null(column) => Self::Null(place(*column)?),
            Self::NotNull(column) => Self::NotNull(place(*column)?),
        })
    }

    /// Whether some row may match, by what is known of the columns. `known` is asked for a column
    /// of the predicate.
    pub fn may_match(&self, known: &dyn Fn(usize) -> ColumnSummary) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.may_match(known)),
            Self::Any(parts) => parts.iter().any(|part| part.may_match(known)),
            Self::Range(range) => {
                let of = known(range.column);
                let may_have = || range.only().is_none_or(|value| of.may_be_member(value));
                of.may_have_values() && range.may_overlap(&of) && may_have()
            }
            Self::In { column, values } => {
                let of = known(*column);
                of.may_have_values()
                    && (0..values.len()).any(|at| of.may_have(&values.slice(at, 1)))
            }
            Self::Prefix { column, prefix } => {
                let of = known(*column);
                of.may_have_values() && of.may_begin(prefix)
            }
            Self::Null(column) => known(*column).nulls != Some(0),
            Self::NotNull(column) => known(*column).may_have_values(),
        }
    }

    /// The rows that match. `columns` gives a column of the predicate.
    ///
    /// # Errors
    /// When a column is not of the type that the predicate has for it.
    pub fn matches(
        &self,
        columns: &dyn Fn(usize) -> ArrayRef,
        rows: usize,
    ) -> Result<BooleanBuffer, ArrowError> {
        Ok(match self {
            Self::All(parts) => {
                let mut all = BooleanBuffer::new_set(rows);
                for part in parts {
                    all = &all & &part.matches(columns, rows)?;
                }
                all
            }
            Self::Any(parts) => {
                let mut any = BooleanBuffer::new_unset(rows);
                for part in parts {
                    any = &any | &part.matches(columns, rows)?;
                }
                any
            }
            Self::Range(range) => range.matches(&columns(range.column))?,
            Self::In { column, values } => is_in(&columns(*column), values)?,
            Self::Prefix { column, prefix } => begins(&columns(*column), prefix)?,
            Self::Null(column) => truth(is_null(&columns(*column))?),
            Self::NotNull(column) => truth(is_not_null(&columns(*column))?),
        })
    }

    /// The predicate as SQL, over the columns of `schema`.
    pub fn describe(&self, schema: &Schema) -> String {
        let name = |column: usize| match schema.fields().get(column) {
            Some(field) => field.name().clone(),
            None => format!("column {column}"),
        };
        let several = |parts: &[Self], between: &str, wraps: fn(&Self) -> bool| {
            let texts = parts.iter().map(|part| match part.describe(schema) {
                text if wraps(part) => format!("({text})"),
                text => text,
            });
            texts.collect::<Vec<_>>().join(between)
        };
        match self {
            Self::All(parts) => several(parts, " AND ", |part| matches!(part, Self::Any(_))),
            Self::Any(parts) => several(parts, " OR ", |part| matches!(part, Self::All(_))),
            Self::Range(range) => range.describe(&name(range.column)),
            Self::In { column, values } => {
                let shown = (0..values.len().min(SHOWN_MAX)).map(|at| sql_value(values, at));
                let more = if values.len() > SHOWN_MAX { ", …" } else { "" };
                let shown = shown.collect::<Vec<_>>().join(", ");
                format!("{} IN ({shown}{more})", name(*column))
            }
            Self::Prefix { column, prefix } => format!("{} LIKE '{prefix}%'", name(*column)),
            Self::Null(column) => format!("{} IS NULL", name(*column)),
            Self::NotNull(column) => format!("{} IS NOT NULL", name(*column)),
        }
    }
}

/// Values of a list that a description shows.
const SHOWN_MAX: usize = 4;

impl ColumnRange {
    /// One value alone.
    pub fn equal(column: usize, value: ArrayRef) -> Self {
        let end = RangeEnd { value, inclusive: true };
        Self { column, from: Some(end.clone()), to: Some(end) }
    }

    /// The value, if the range is one value alone.
    pub fn only(&self) -> Option<&ArrayRef> {
        let (from, to) = (self.from.as_ref()?, self.to.as_ref()?);
        let is_one = from.inclusive && to.inclusive;
        let equal = || compare(&from.value, &to.value) == Some(Ordering::Equal);
        (is_one && equal()).then_some(&from.value)
    }

    fn may_overlap(&self, of: &ColumnSummary) -> bool {
        let ends = [&self.from, &self.to];
        let is_float = |end: &RangeEnd| end.value.data_type().is_floating();
        if ends.iter().any(|end| end.as_ref().is_some_and(is_float))
            && ends.iter().any(|end| end.as_ref().is_none_or(|end| is_nan(&end.value)))
        {
            return true;
        }
        let beyond = |end: &Option<RangeEnd>, known: &Option<ArrayRef>, side: Ordering| {
            let (Some(end), Some(known)) = (end, known) else { return false };
            match compare(known, &end.value) {
                Some(Ordering::Equal) => !end.inclusive,
                Some(order) => order == side,
                None => false,
            }
        };
        !beyond(&self.from, &of.greatest, Ordering::Less)
            && !beyond(&self.to, &of.least, Ordering::Greater)
    }

    fn matches(&self, column: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
        if let Some(value) = self.only().filter(|value| !value.data_type().is_floating()) {
            return Ok(truth(cmp::eq(column, &Scalar::new(Array::slice(value, 0, 1)))?));
        }
        let mut within = BooleanBuffer::new_set(column.len());
        if let Some(RangeEnd { value, inclusive }) = &self.from {
            let least = Scalar::new(Array::slice(value, 0, 1));
            let reached = if *inclusive { cmp::gt_eq } else { cmp::gt };
            within = &within & &truth(reached(column, &least)?);
        }
        if let Some(RangeEnd { value, inclusive }) = &self.to {
            let greatest = Scalar::new(Array::slice(value, 0, 1));
            let reached = if *inclusive { cmp::lt_eq } else { cmp::lt };
            within = &within & &truth(reached(column, &greatest)?);
        }
        Ok(within)
    }

    fn describe(&self, name: &str) -> String {
        if let Some(value) = self.only() {
            return format!("{name} = {}", sql_value(value, 0));
        }
        let end = |end: &RangeEnd, sign: &str| {
            let equal = if end.inclusive { "=" } else { "" };
            format!("{name} {sign}{equal} {}", sql_value(&end.value, 0))
        };
        let from = self.from.iter().map(|from| end(from, ">"));
        from.chain(self.to.iter().map(|to| end(to, "<"))).collect::<Vec<_>>().join(" AND ")
    }
}

impl ColumnSummary {
    /// Whether some row may have a value.
    fn may_have_values(&self) -> bool {
        self.rows.zip(self.nulls).is_none_or(|(rows, nulls)| nulls < rows)
    }

    /// Whether a value may be between the least and the greatest.
    fn may_have(&self, value: &ArrayRef) -> bool {
        ColumnRange::equal(0, value.clone()).may_overlap(self) && self.may_be_member(value)
    }

    fn may_be_member(&self, value: &ArrayRef) -> bool {
        self.members.as_ref().is_none_or(|members| (members.0)(value))
    }

    /// Whether a text may begin so.
    fn may_begin(&self, prefix: &str) -> bool {
        let of = |known: &Option<ArrayRef>| {
            let text = cast(known.as_ref()?, &DataType::Utf8).ok()?;
            text.is_valid(0).then(|| text.as_string::<i32>().value(0).to_owned())
        };
        let is_below = of(&self.greatest).is_some_and(|greatest| *greatest < *prefix);
        let is_above = of(&self.least).is_some_and(|least| {
            *least > *prefix && !least.as_bytes().starts_with(prefix.as_bytes())
        });
        !is_below && !is_above
    }
}

/// The order of two values of one type; `None` where there is none. Zeros are equal.
fn compare(a: &ArrayRef, b: &ArrayRef) -> Option<Ordering> {
    if a.data_type() != b.data_type() || a.is_null(0) || b.is_null(0) {
        return None;
    }
    if a.data_type().is_floating() {
        return as_double(a)?.partial_cmp(&as_double(b)?);
    }
    make_comparator(a, b, SortOptions::default()).ok().map(|order| order(0, 0))
}

fn as_double(value: &ArrayRef) -> Option<f64> {
    let double = cast(value, &DataType::Float64).ok()?;
    Some(double.as_primitive::<Float64Type>().value(0))
}

fn is_nan(value: &ArrayRef) -> bool {
    value.data_type().is_floating() && as_double(value).is_none_or(f64::is_nan)
}

/// The rows of which a condition is true.
fn truth(condition: BooleanArray) -> BooleanBuffer {
    match condition.null_count() {
        0 => condition.values().clone(),
        _ => prep_null_mask_filter(&condition).values().clone(),
    }
}

/// Values of a list that are compared one after another; of a longer one they are searched.
const COMPARED_MAX: usize = 4;

fn is_in(column: &ArrayRef, values: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
    if values.len() <= COMPARED_MAX {
        let mut any = BooleanBuffer::new_unset(column.len());
        for at in 0..values.len() {
            any = &any | &truth(cmp::eq(column, &Scalar::new(values.slice(at, 1)))?);
        }
        return Ok(any);
    }
    let order = make_comparator(column, values, SortOptions::default())?;
    let found = |row: usize| {
        let (mut from, mut to) = (0, values.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match order(row, middle) {
                Ordering::Equal => return column.is_valid(row),
                Ordering::Less => to = middle,
                Ordering::Greater => from = middle + 1,
            }
        }
        false
    };
    Ok(BooleanBuffer::collect_bool(column.len(), found))
}

fn begins(column: &ArrayRef, prefix: &str) -> Result<BooleanBuffer, ArrowError> {
    let texts = cast(column, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>();
    Ok(BooleanBuffer::collect_bool(texts.len(), |row| {
        texts.is_valid(row) && texts.value(row).as_bytes().starts_with(prefix.as_bytes())
    }))
}

fn sql_value(values: &ArrayRef, at: usize) -> String {
    let shown = array_value_to_string(values, at).unwrap_or_else(|_| "…".into());
    match values.data_type() {
        of if of.is_numeric() || *of == DataType::Boolean => shown,
        _ => format!("'{shown}'"),
    }
}

/// The values that a list may have for [`Predicate::In`]: in order, each once, none of them NULL;
/// `None` where they have no order that the filter has too.
pub fn in_order(values: &ArrayRef) -> Option<ArrayRef> {
    if values.data_type().is_floating() {
        return None;
    }
    let values = arrow::compute::filter(values, &is_not_null(values).ok()?).ok()?;
    let sorted = arrow::compute::sort(&values, None).ok()?;
    let order = make_comparator(&sorted, &sorted, SortOptions::default()).ok()?;
    let is_new = |at: usize| at == 0 || order(at - 1, at) != Ordering::Equal;
    let new: BooleanArray = (0..sorted.len()).map(|at| Some(is_new(at))).collect();
    arrow::compute::filter(&sorted, &new).ok()
}

#[cfg(test)]
mod tests;
