//! What can go wrong while rows move.

pub mod located;
pub mod panics;

use std::borrow::Cow;

use thiserror::Error;

use self::located::Located;
use self::panics::Panicked;
use crate::secrets;

/// A failure of a source or sink.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectorError {
    /// An option of `WITH (…)` is missing, unknown or malformed. The author of the SQL is at fault.
    #[error("option '{key}': {message}")]
    Option {
        /// The option.
        key: String,
        /// What is wrong with it.
        message: String,
        /// What to write instead.
        hint: Option<String>,
    },
    /// The table's columns do not fit the data, or the connector cannot carry a type.
    #[error("column '{column}': {message}")]
    Column {
        /// The column.
        column: String,
        /// What does not fit.
        message: String,
        /// What to write instead.
        hint: Option<String>,
    },
    /// A file or device cannot be read or written.
    #[error("{place}: {message}")]
    Io {
        /// The file, with the record where known.
        place: String,
        /// What the operating system or the format's reader said.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// An expression of a sink that computes what it writes failed on a row: the query's author or
    /// the data is at fault.
    #[error("{message}")]
    Expression {
        /// The reason.
        message: String,
        /// The expression.
        expression: String,
        /// The row, as the text `a = 1, b = 0`.
        row: Option<String>,
    },
}

/// A failure of a running worker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataflowError {
    /// A source or sink failed.
    #[error(transparent)]
    Connector(ConnectorError),
    /// A connection to another worker failed: most often the other node died.
    #[error("the link to worker {worker} failed: {source}")]
    Link {
        /// The worker at the other end.
        worker: u32,
        /// What the link said.
        source: channel::LinkError,
    },
    /// A connection to another worker broke, and there was no other in time. The network, or the
    /// other node, is at fault.
    #[error(
        "the link to worker {worker} failed: {source}; no other connection could be made: {reason}"
    )]
    NotReconnected {
        /// The worker at the other end.
        worker: u32,
        /// What the link said.
        source: channel::LinkError,
        /// What stood in the way of another connection.
        reason: String,
    },
    /// A peer sent something that the plan does not allow. The peer runs another plan or version,
    /// or memory was damaged.
    #[error("worker {worker} sent a malformed frame: {detail}")]
    Frame {
        /// The worker that sent it.
        worker: u32,
        /// What was wrong.
        detail: String,
    },
    /// A worker has taken nothing of what was broadcast for as long as it may. It is stopped, or
    /// its machine is.
    #[error(
        "worker {worker} has taken no broadcast rows for {} s: it is stopped, or far too slow \
         (SET millstream.stall_timeout allows longer)",
        *after_ms as f64 / 1e3
    )]
    Stalled {
        /// The worker that takes nothing.
        worker: u32,
        /// For how long.
        after_ms: u64,
    },
    /// A job cannot be saved, or what was saved does not fit it. The message says what to do.
    #[error("{0}")]
    Recovery(String),
    /// State ran into its budget or could not be updated.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// A table that a join keeps on each worker is larger than it may be. The author of the SQL may
    /// allow more, or keep less of it.
    #[error(
        "table '{table}' is too large to be kept on each worker for a join: more than {bytes_max} \
         bytes"
    )]
    Table {
        /// The table.
        table: String,
        /// The most bytes that it may have.
        bytes_max: usize,
    },
    /// The build of a join does not fit memory, and there is no disk for it. The author of the SQL
    /// may set a directory on a disk, allow more memory, or have both sides partitioned by key.
    #[error("the build of '{side}' does not fit millstream.state_bytes ({})", human(*bytes_max))]
    Build {
        /// The name of the build side in the query.
        side: String,
        /// The most bytes that it may have.
        bytes_max: usize,
    },
    /// The rows of a sort do not fit memory.
    #[error(
        "the rows of a sort do not fit memory: state needs {bytes} bytes and may hold {bytes_max}"
    )]
    Sort {
        /// Bytes that the worker's state needs.
        bytes: usize,
        /// The most bytes that it may have.
        bytes_max: usize,
    },
    /// An expression failed on a row (division by zero, a cast): the query's author or the data is
    /// at fault.
    #[error("{0}")]
    Expression(String),
    /// An operator or a library panicked: a bug of ours or of theirs.
    #[error("{0}")]
    Panicked(Box<Panicked>),
    /// One of the others, with where it came about.
    #[error("{}", .0.cause)]
    At(Box<Located>),
}

/// Bytes with a binary unit.
fn human(bytes: usize) -> String {
    let units = [("GiB", 1usize << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

impl DataflowError {
    /// Whether more room on the disk for spilled state would have helped.
    pub fn is_disk(&self) -> bool {
        matches!(
            self.cause(),
            DataflowError::State(state::StateError::Disk { doing: "written", .. })
        )
    }

    /// Whether more memory for state would have helped.
    pub fn is_budget(&self) -> bool {
        use state::StateError::{Budget, Growth};
        let cause = self.cause();
        matches!(cause, DataflowError::State(Budget { .. } | Growth { .. }))
            || matches!(cause, DataflowError::Sort { .. })
    }
}

impl ConnectorError {
    /// The same without the secrets that options referred to ([`secrets`]).
    #[must_use]
    pub fn masked(mut self) -> Self {
        let (one, other, hint) = match &mut self {
            ConnectorError::Option { key, message, hint } => (key, message, hint),
            ConnectorError::Column { column, message, hint } => (column, message, hint),
            ConnectorError::Io { place, message, hint } => (place, message, hint),
            ConnectorError::Expression { message, expression, row } => (message, expression, row),
        };
        for text in [one, other].into_iter().chain(hint) {
            if let Cow::Owned(masked) = secrets::masked(text) {
                *text = masked;
            }
        }
        self
    }
}

impl From<ConnectorError> for DataflowError {
    fn from(error: ConnectorError) -> Self {
        match error.masked() {
            ConnectorError::Expression { message, expression, row } => {
                DataflowError::Expression(message).map(|located| {
                    located.expression = Some(expression);
                    located.row = row;
                })
            }
            other => DataflowError::Connector(other),
        }
    }
}

impl From<arrow::error::ArrowError> for DataflowError {
    fn from(error: arrow::error::ArrowError) -> Self {
        DataflowError::Expression(error.to_string())
    }
}
