//! Predicates that a source may use: the part of a filter that connectors understand.
//!
//! A source that is [pruned](crate::source::Source::pruned) leaves out rows that cannot match. The
//! filter is evaluated on the rows that are left all the same, so a predicate may be weaker than
//! the filter, and never stronger: rows that it cannot decide are kept.
//!
//! ```text
//! filter of the query ─▶ ColumnPredicate ─▶ statistics of a split, of a page   may_match
//!                                       └─▶ rows                               matches
//! ```

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar, make_comparator};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp;
use arrow::compute::{SortOptions, cast, is_not_null, is_null};
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;

use super::join_filter::JoinFilter;
pub use super::range::{ColumnRange, ColumnSummary, Membership, RangeEnd};
use super::range::{sql_value, truth};

/// A condition on the columns of a source. NULL counts as false.
#[derive(Debug, Clone)]
pub enum ColumnPredicate {
    /// All of these hold.
    All(Vec<ColumnPredicate>),
    /// One of these holds.
    Any(Vec<ColumnPredicate>),
    /// The value of a column lies between two ends.
    Range(ColumnRange),
    /// The value of a column is one of these.
    In {
        /// The column.
        column: usize,
        /// The values, of the column's type: in order, each once, none of them NULL.
        values: ArrayRef,
    },
    /// The text of a column has a prefix.
    Prefix {
        /// The column.
        column: usize,
        /// The prefix.
        prefix: String,
    },
    /// The value of a column is a key of a build.
    Member {
        /// The column.
        column: usize,
        /// The keys.
        filter: Arc<JoinFilter>,
    },
    /// A column is NULL.
    Null(usize),
    /// A column is not NULL.
    NotNull(usize),
}

impl ColumnPredicate {
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
            | Self::Member { column, .. }
            | Self::Null(column)
            | Self::NotNull(column) => see(*column),
        }
    }

    /// The same over other columns, which `place` gives; `None` if it would be true for all rows. A
    /// part over a column without a place counts as true.
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
            Self::Member { column, filter } => {
                Self::Member { column: place(*column)?, filter: filter.clone() }
            }
            Self::Null(column) => Self::Null(place(*column)?),
            Self::NotNull(column) => Self::NotNull(place(*column)?),
        })
    }

    /// Whether some row may match, by the statistics of the columns. `known` gives those of a
    /// column of the predicate.
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
            Self::Member { column, filter } => filter.may_match(&known(*column)),
            Self::Null(column) => known(*column).nulls != Some(0),
            Self::NotNull(column) => known(*column).may_have_values(),
        }
    }

    /// The rows that match. `columns` gives a column of the predicate, or a dictionary of its type:
    /// then each value of the dictionary is looked at once, and not that of each row.
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
            Self::Range(range) => {
                by_values(&columns(range.column), |column| range.matches(column))?
            }
            Self::In { column, values } => {
                by_values(&columns(*column), |column| is_in(column, values))?
            }
            Self::Prefix { column, prefix } => {
                by_values(&columns(*column), |column| begins(column, prefix))?
            }
            // It counts rows, and not values.
            Self::Member { column, filter } => filter.matches(&plain(&columns(*column))?)?,
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
            Self::Member { column, .. } => format!("{} in a build", name(*column)),
            Self::Null(column) => format!("{} IS NULL", name(*column)),
            Self::NotNull(column) => format!("{} IS NOT NULL", name(*column)),
        }
    }
}

/// Values of a list that a description shows.
const SHOWN_MAX: usize = 4;

/// The longest list whose values are compared one by one; a longer one is searched.
const COMPARED_MAX: usize = 4;

/// The rows of a column that a test finds, which finds no NULL; of a dictionary that has no more
/// values than there are rows, the test sees the values.
fn by_values(
    column: &ArrayRef,
    test: impl FnOnce(&ArrayRef) -> Result<BooleanBuffer, ArrowError>,
) -> Result<BooleanBuffer, ArrowError> {
    let Some(dictionary) = column.as_any_dictionary_opt() else { return test(column) };
    let values = dictionary.values();
    if values.len() > column.len() {
        return test(&plain(column)?);
    }
    let found: Vec<bool> = test(values)?.iter().collect();
    if !found.contains(&true) {
        return Ok(BooleanBuffer::new_unset(column.len()));
    }
    let keys = dictionary.normalized_keys();
    let matches = BooleanBuffer::collect_bool(keys.len(), |row| found[keys[row]]);
    Ok(match column.nulls() {
        Some(nulls) => &matches & nulls.inner(),
        None => matches,
    })
}

/// The values of the rows of a dictionary; another column is given back.
fn plain(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values),
        _ => Ok(Arc::clone(column)),
    }
}

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

/// The values of a list for [`ColumnPredicate::In`]: in order, each once, none of them NULL; `None`
/// if their order is not the order of the filter.
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

/// The filters of the builds in which the rows of one scan are looked up; each is added when its
/// build is complete.
#[derive(Debug, Default)]
pub struct JoinFilters(Mutex<Vec<ColumnPredicate>>);

impl JoinFilters {
    /// Adds the filter of a build in which `column` of the scan is looked up. No operator needs a
    /// row without a partner there.
    pub fn add(&self, column: usize, filter: Arc<JoinFilter>) {
        let mut filters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        filters.push(ColumnPredicate::Member { column, filter });
    }

    /// The rows that are needed, by the builds that are complete; `None` while all rows are needed.
    pub fn predicate(&self) -> Option<ColumnPredicate> {
        let filters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pays = |of: &&ColumnPredicate| match of {
            ColumnPredicate::Member { filter, .. } => !filter.is_in_vain(),
            _ => true,
        };
        let filters: Vec<ColumnPredicate> = filters.iter().filter(pays).cloned().collect();
        (!filters.is_empty()).then_some(ColumnPredicate::All(filters))
    }
}

#[cfg(test)]
mod tests;
