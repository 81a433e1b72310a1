//! A fused scan as data: one loop reads rows and updates the groups of an aggregate, through the
//! steps between them and possibly a lookup, and makes no batches on the way.

use std::fmt;

use super::Property;

/// The operators and columns that are fused with a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fusion {
    /// The aggregate that ends the loop, by its index in the job.
    pub aggregate: usize,
    /// The lookup in front of it, if there is one.
    pub lookup: Option<FusedLookup>,
    /// The column of keys, among the columns that reach the operator behind the scan.
    pub key: usize,
    /// The column of the aggregate's argument, among the same columns.
    pub arg: Option<usize>,
    /// How the step behind the scan makes both.
    pub columns: FusedColumns,
}

/// A lookup that a fused scan goes through: for each row the table has the aggregate's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FusedLookup {
    /// Its index in the job.
    pub operator: usize,
    /// Of the columns that are kept of the table, the one that rows are joined by.
    pub own: usize,
    /// Of the same, the key of the aggregate.
    pub column: usize,
}

/// How a step computes the columns of a key and of an argument from its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FusedColumns {
    /// The column from which keys are computed.
    pub key: usize,
    /// Whether keys are a quotient of it.
    pub divided: bool,
    /// Whether some rows may not pass.
    pub filtered: bool,
}

impl FusedColumns {
    /// A key that is a column of all rows.
    pub fn column(key: usize) -> Self {
        Self { key, divided: false, filtered: false }
    }
}

/// Why a scan is not fused with what is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFused {
    /// Nobody has looked, or it is no scan.
    Unplanned,
    /// No aggregate is behind it, or behind a lookup.
    NoAggregate,
    /// So many edges lead away from it, or from the lookup behind it.
    Readers(usize),
    /// The aggregate has this number of keys.
    Keys(usize),
    /// The key, or what it is made of, is of another type.
    KeyType,
    /// The step computes the key otherwise.
    KeyExpression,
    /// The setting `millstream.key_mode` asks for another way to find groups.
    KeyMode,
    /// There is this number of aggregates.
    Aggregates(usize),
    /// The aggregate function has no loop for that.
    Function,
    /// The argument is computed.
    ArgExpression,
    /// The step is a filter, and there is an argument.
    ArgFiltered,
    /// The key is a quotient or comes from a lookup, and there is an argument.
    ArgBesideKey,
    /// The step is not a filter and a projection.
    Step,
    /// Windows are sessions.
    Sessions,
    /// Windows are over another column than the table's watermark.
    TimeWindow,
    /// Rows leave their worker before they are aggregated.
    Exchange,
    /// Groups may go to a disk.
    Spill,
    /// The lookup is not an inner join on one key alone.
    LookupJoin,
    /// The key is not a column of the lookup's table.
    LookupColumn,
}

/// For EXPLAIN: what a scan is fused with, or why it is not fused with the aggregate that reads it.
pub(super) fn fusion_property(fusion: Result<Fusion, NotFused>) -> Option<Property> {
    match fusion {
        Ok(Fusion { aggregate, lookup, columns, .. }) => {
            let filter = columns.filtered.then(|| "filter".to_owned());
            let division = columns.divided.then(|| "division".to_owned());
            let lookup = lookup.map(|lookup| format!("lookup [{}]", lookup.operator));
            let parts = [filter, division, lookup, Some(format!("aggregate [{aggregate}]"))];
            Some(("fused with", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
        }
        Err(NotFused::Unplanned | NotFused::NoAggregate) => None,
        Err(reason) => Some(("not fused", reason.to_string())),
    }
}

impl fmt::Display for NotFused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unplanned => "it is no scan",
            Self::NoAggregate => "no aggregate reads it",
            Self::Readers(count) => return write!(f, "{count} operators read the rows"),
            Self::Keys(0) => "there is no key",
            Self::Keys(count) => return write!(f, "there are {count} keys"),
            Self::KeyType => "the key is not a number or a time of 64 bits",
            Self::KeyExpression => "the key is computed otherwise than by a constant divisor",
            Self::KeyMode => "millstream.key_mode asks for another way to find groups",
            Self::Aggregates(0) => "there is no aggregate function",
            Self::Aggregates(count) => {
                return write!(f, "there are {count} aggregate functions");
            }
            Self::Function => "the aggregate function is not count(*), max, min or avg",
            Self::ArgExpression => "the argument is computed",
            Self::ArgFiltered => "the argument is behind a filter",
            Self::ArgBesideKey => "the key is computed or looked up, and there is an argument",
            Self::Step => "the step is not a filter and a projection",
            Self::Sessions => "windows are sessions",
            Self::TimeWindow => "windows are not over the watermark of the table",
            Self::Exchange => "rows are sent to other workers before they are aggregated",
            Self::Spill => "groups may go to a disk",
            Self::LookupJoin => "the lookup is not an inner join on one key alone",
            Self::LookupColumn => "the key is not a column of the table that is looked up",
        })
    }
}
