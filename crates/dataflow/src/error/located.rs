//! Where a failure came about: the operator, the expression, the row and its place in a file.
//!
//! Nothing of this is known while all goes well. The reader of a flow knows the place of a row at
//! fault by its number.

use arrow::record_batch::RecordBatch;

use crate::calendar::text_of;
use crate::error::DataflowError;
use crate::secrets::masked;

/// Columns of a row that are shown.
const COLUMNS_SHOWN_MAX: usize = 8;
/// Characters of a value that are shown.
const VALUE_CHARS_MAX: usize = 60;

/// A failure, and where it came about as far as that is known.
#[derive(Debug)]
pub struct Located {
    /// The failure itself.
    pub cause: DataflowError,
    /// The operator of the job.
    pub operator: Option<usize>,
    /// The expression, as the planner has it.
    pub expression: Option<String>,
    /// The row at fault, as the text `a = 1, b = 0`.
    pub row: Option<String>,
    /// Where it stands: `flights.csv:17`, or some records of which it is one.
    pub record: Option<String>,
    /// The row's number in the batch that was pushed, until `record` is known.
    pub(crate) index: Option<usize>,
}

/// The cause of the failure of a step on a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// The expression.
    pub expression: String,
    /// The names and values of the columns that it reads.
    pub reads: Vec<(String, String)>,
}

impl Blame {
    /// An expression that reads columns of a batch of one row.
    pub fn new(expression: String, row: &RecordBatch, columns: &[usize]) -> Self {
        Self { expression, reads: values(row, columns.iter().copied()) }
    }
}

impl DataflowError {
    /// The failure itself, without its place.
    pub fn cause(&self) -> &DataflowError {
        match self {
            DataflowError::At(located) => located.cause.cause(),
            error => error,
        }
    }

    /// Where it came about, as far as that is known.
    pub fn located(&self) -> Option<&Located> {
        match self {
            DataflowError::At(located) => Some(located),
            _ => None,
        }
    }

    pub(crate) fn map(self, change: impl FnOnce(&mut Located)) -> Self {
        let mut located = match self {
            DataflowError::At(located) => located,
            cause => {
                let (operator, expression, row, record, index) = (None, None, None, None, None);
                Box::new(Located { cause, operator, expression, row, record, index })
            }
        };
        change(&mut located);
        DataflowError::At(located)
    }

    /// The same of an operator, unless one was named already. A failure of the way between workers
    /// is no operator's.
    pub fn of_operator(self, at: usize) -> Self {
        use DataflowError::{Frame, Link, NotReconnected, Stalled};
        match self {
            Link { .. } | NotReconnected { .. } | Stalled { .. } | Frame { .. } => self,
            error => error.map(|located| located.operator = located.operator.or(Some(at))),
        }
    }

    /// The same, of rows that were made of those that are known by number.
    pub(crate) fn of_made_rows(self) -> Self {
        match self {
            DataflowError::At(_) => self.map(|located| located.index = None),
            error => error,
        }
    }

    /// The same with the place of the row at fault: `place` tells it by the row's number in the
    /// batch, or by nothing where that is not known.
    pub(crate) fn of_record(self, place: impl FnOnce(Option<usize>) -> Option<String>) -> Self {
        use DataflowError::{Frame, Link, NotReconnected, Stalled};
        match self {
            Link { .. } | NotReconnected { .. } | Stalled { .. } | Frame { .. } => self,
            // A source or a sink has said where.
            error if matches!(error.cause(), DataflowError::Connector(_)) => error,
            error => error.map(|located| {
                let index = located.index.take();
                if located.record.is_none() {
                    located.record = place(index).map(|place| masked(&place).into_owned());
                }
            }),
        }
    }
}

/// The names and values of some columns of a batch of one row.
pub(crate) fn values(
    row: &RecordBatch,
    columns: impl Iterator<Item = usize>,
) -> Vec<(String, String)> {
    let schema = row.schema_ref();
    let value = |at: usize| {
        let column = row.columns().get(at)?;
        let value = text_of(column, 0).ok()?;
        Some((schema.field(at).name().clone(), clipped(&value)))
    };
    columns.take(COLUMNS_SHOWN_MAX).filter_map(value).collect()
}

pub(crate) fn text(values: &[(String, String)]) -> String {
    let pairs = values.iter().map(|(name, value)| format!("{name} = {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}

/// A value on one line.
fn clipped(value: &str) -> String {
    let shown = value.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut text: String = shown.take(VALUE_CHARS_MAX).collect();
    if value.chars().nth(VALUE_CHARS_MAX).is_some() {
        text.push('…');
    }
    text
}
