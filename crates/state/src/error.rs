//! Errors of state, and whose fault they are.

use std::borrow::Cow;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// An error of windowed state. After any of them the slice that returned it must be dropped: a
/// batch may have been applied in part, and exactly-once is restored from the last commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The caller passed columns that do not fit the specification. Our own bug, or a peer's delta
    /// of another query.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// Which count or length.
        what: &'static str,
        /// The specification.
        expected: usize,
        /// The argument.
        got: usize,
    },
    /// A column has another type than the specification. Our own bug, or a peer's delta of another
    /// query.
    #[error("{what}: expected a column of type {expected}, got {got}")]
    Type {
        /// Which column.
        what: &'static str,
        /// The specification.
        expected: DataType,
        /// The argument.
        got: DataType,
    },
    /// Rows cannot be grouped by a value of this type. The user's query; the planner should have
    /// refused it.
    #[error("cannot group by a value of type {0}")]
    Key(DataType),
    /// State has reached its budget. Close the epoch or fire a window, raise the budget, or add
    /// nodes.
    #[error("state needs {bytes} bytes and may hold {budget}")]
    Budget {
        /// Bytes held, and those of a table that would have to grow.
        bytes: usize,
        /// Bytes allowed.
        budget: usize,
    },
    /// An index would have to grow by more than it may. [`crate::Slices`] makes
    /// [`StateError::Budget`] of it.
    #[error("an index would have to grow by {bytes} bytes")]
    Growth {
        /// By how much.
        bytes: usize,
    },
    /// One slice has more groups, or more bytes of one key column, than its index can address.
    #[error("a slice has more than {max} {what}")]
    Full {
        /// The resource that ran out.
        what: &'static str,
        /// How many there can be.
        max: u64,
    },
    /// Rows came for a slice whose groups were drained in part. Our own bug, or a peer that
    /// sends rows of a window after it said that it has none any more.
    #[error("rows for a slice that is being drained")]
    BeingDrained,
    /// A sum is greater or less than all numbers of its type. The user's query: it can ask for the
    /// sum of wider numbers.
    #[error("{}", Self::sum_too_large(&shown(.0)))]
    Sum(DataType),
    /// Groups or rows that do not fit memory could not be written to the disk, or not read back: it
    /// is full or fails. The operator of the machine.
    #[error("state that does not fit memory cannot be {doing}: {file}: {source}")]
    Disk {
        /// Which it was: `written` or `read`.
        doing: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Groups or rows came back from the disk other than they were written. The disk or the memory
    /// of the machine fails, or somebody has changed the file.
    #[error("state that was written to disk is damaged: {file}, at byte {at}")]
    Damaged {
        /// The file.
        file: String,
        /// Where what is damaged begins.
        at: u64,
    },
    /// A computation of Arrow failed.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// An aggregate that comes from outside this crate failed.
    #[error("{0}")]
    Aggregate(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StateError {
    /// That a sum does not fit a type, as SQL calls it.
    pub fn sum_too_large(of: &str) -> String {
        let to = if of.starts_with("DECIMAL") { "DOUBLE" } else { "DECIMAL(38, 0) or DOUBLE" };
        format!("a sum does not fit {of}: sum what is CAST to {to}")
    }
}

/// The SQL name of a sum's type.
fn shown(of: &DataType) -> Cow<'static, str> {
    match of {
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt64 => "BIGINT UNSIGNED".into(),
        DataType::Decimal128(digits, scale) => format!("DECIMAL({digits}, {scale})").into(),
        _ => "its type".into(),
    }
}

/// An error if `got` differs from `expected`.
pub(crate) fn same(what: &'static str, expected: usize, got: usize) -> Result<(), StateError> {
    if expected == got { Ok(()) } else { Err(StateError::Shape { what, expected, got }) }
}
