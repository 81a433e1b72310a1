//! Ranges of a column's values, and the statistics of the values of a split or a page.
//!
//! Filters order floats with NaN of either sign above all numbers, and the statistics of files have
//! no NaN: only a range with two ends, neither of which is NaN, excludes NaN, so only such a range
//! is compared with statistics.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Scalar, make_comparator};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp;
use arrow::compute::{SortOptions, cast, prep_null_mask_filter};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;

use crate::calendar::text_of;

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

/// The statistics of a column in a split or a page, before its values are read.
#[derive(Debug, Clone, Default)]
pub struct ColumnSummary {
    /// A lower bound: one value of the column's type, which need not occur.
    pub least: Option<ArrayRef>,
    /// An upper bound, likewise.
    pub greatest: Option<ArrayRef>,
    /// The number of rows with NULL.
    pub nulls: Option<u64>,
    /// The number of rows.
    pub rows: Option<u64>,
    /// The values that may occur, by a filter.
    pub members: Option<Membership>,
}

/// Tests whether a value may occur in a column: a Bloom filter.
#[derive(Clone)]
pub struct Membership(Arc<dyn Fn(&ArrayRef) -> bool + Send + Sync>);

impl Membership {
    /// `may_have` tests whether one value of the column's type may occur.
    pub fn new(may_have: impl Fn(&ArrayRef) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may_have))
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Membership")
    }
}

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

    pub(super) fn may_overlap(&self, of: &ColumnSummary) -> bool {
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

    pub(super) fn matches(&self, column: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
        if let Some(value) = self.only().filter(|value| !value.data_type().is_floating()) {
            return Ok(truth(cmp::eq(column, &Scalar::new(Array::slice(value, 0, 1)))?));
        }
        let column = &state::with_one_nan(column);
        let mut within = BooleanBuffer::new_set(column.len());
        if let Some(RangeEnd { value, inclusive }) = &self.from {
            let least = Scalar::new(with_zero(&Array::slice(value, 0, 1), *inclusive));
            let reached = if *inclusive { cmp::gt_eq } else { cmp::gt };
            within = &within & &truth(reached(column, &least)?);
        }
        if let Some(RangeEnd { value, inclusive }) = &self.to {
            let greatest = Scalar::new(with_zero(&Array::slice(value, 0, 1), !*inclusive));
            let reached = if *inclusive { cmp::lt_eq } else { cmp::lt };
            within = &within & &truth(reached(column, &greatest)?);
        }
        Ok(within)
    }

    pub(super) fn describe(&self, name: &str) -> String {
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
    pub(super) fn may_have_values(&self) -> bool {
        self.rows.zip(self.nulls).is_none_or(|(rows, nulls)| nulls < rows)
    }

    /// Whether a value may be between the least and the greatest.
    pub(super) fn may_have(&self, value: &ArrayRef) -> bool {
        ColumnRange::equal(0, value.clone()).may_overlap(self) && self.may_be_member(value)
    }

    pub(super) fn may_be_member(&self, value: &ArrayRef) -> bool {
        self.members.as_ref().is_none_or(|members| (members.0)(value))
    }

    /// Whether a text may have a prefix.
    pub(super) fn may_begin(&self, prefix: &str) -> bool {
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

/// The order of two values of one type; `None` if they have none. Zeros are equal.
fn compare(a: &ArrayRef, b: &ArrayRef) -> Option<Ordering> {
    if a.data_type() != b.data_type() || a.is_null(0) || b.is_null(0) {
        return None;
    }
    if a.data_type().is_floating() {
        return as_double(a)?.partial_cmp(&as_double(b)?);
    }
    make_comparator(a, b, SortOptions::default()).ok().map(|order| order(0, 0))
}

/// An end that is zero as the zero of a sign: filters order -0.0 below 0.0, and both are equal.
fn with_zero(end: &ArrayRef, negative: bool) -> ArrayRef {
    if !end.data_type().is_floating() || as_double(end) != Some(0.0) {
        return end.clone();
    }
    let zero = Float64Array::from(vec![if negative { -0.0 } else { 0.0 }]);
    cast(&zero, end.data_type()).unwrap_or_else(|_| end.clone())
}

fn as_double(value: &ArrayRef) -> Option<f64> {
    let double = cast(value, &DataType::Float64).ok()?;
    Some(double.as_primitive::<Float64Type>().value(0))
}

fn is_nan(value: &ArrayRef) -> bool {
    value.data_type().is_floating() && as_double(value).is_none_or(f64::is_nan)
}

/// The rows for which a condition is true.
pub(super) fn truth(condition: BooleanArray) -> BooleanBuffer {
    match condition.null_count() {
        0 => condition.values().clone(),
        _ => prep_null_mask_filter(&condition).values().clone(),
    }
}

pub(super) fn sql_value(values: &ArrayRef, at: usize) -> String {
    let shown = text_of(values, at).unwrap_or_else(|_| "…".into());
    match values.data_type() {
        of if of.is_numeric() || *of == DataType::Boolean => shown,
        _ => format!("'{shown}'"),
    }
}
