//! Errors of a job, and whose fault they are.

use channel::LinkError;
use checkpoint::CheckpointError;
use cluster::{Cause, ClusterError, NodeFailure};
use dataflow::error::{ConnectorError, DataflowError};
use dataflow::panics::Panicked;
use fabric::FabricError;
use plan::{Diagnostic, Planned};
use stream::StreamError;
use thiserror::Error;

use crate::fault::{self, Fault, FaultKind};

/// A failure of a session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The SQL cannot be planned. Its author is at fault; each diagnostic points at a place.
    #[error("{}", first_message(.0))]
    Sql(Vec<Diagnostic>),
    /// A stream or a job of streams cannot be built as asked. The caller is at fault.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The session cannot be built as asked. The caller is at fault.
    #[error("{message}")]
    Usage {
        /// The reason.
        message: String,
        /// The hint for the user.
        hint: String,
    },
    /// Nodes could not be started or connected, or one of them failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A node is not set up as this one is: its starter is at fault.
    #[error("node {rank} differs from node 0 in its {what}")]
    Unlike {
        /// The node.
        rank: u32,
        /// The difference.
        what: &'static str,
    },
    /// The fabric refused memory or a connection. Look at the operating system's limits.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A link between two workers could not be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A worker failed.
    #[error(transparent)]
    Dataflow(#[from] DataflowError),
    /// A panic outside the operators: our bug.
    #[error("{panicked}")]
    Panic {
        /// The place: `planning`, `worker 3`.
        doing: String,
        /// The message.
        panicked: Panicked,
    },
    /// A statement failed while it ran.
    #[error("{cause}")]
    Statement {
        /// The statement.
        statement: Box<Planned>,
        /// How it failed.
        cause: Box<Error>,
    },
    /// The job was dropped, as its caller asked; nothing of it is published.
    #[error("interrupted")]
    Interrupted,
    /// A checkpoint cannot be stored, read or recorded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The operating system gave no thread.
    #[error("cannot start worker {worker}: {source}")]
    Thread {
        /// The worker.
        worker: u32,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl Error {
    /// The failure without the statement that it is of.
    pub fn into_cause(self) -> Error {
        match self {
            Error::Statement { cause, .. } => cause.into_cause(),
            error => error,
        }
    }

    /// The same without taking it apart.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Statement { cause, .. } => cause.cause(),
            error => error,
        }
    }

    /// The statement that failed while it ran.
    pub fn statement(&self) -> Option<&Planned> {
        match self {
            Error::Statement { statement, .. } => Some(statement),
            _ => None,
        }
    }

    /// Whether only a checkpoint could not be stored, so that the job goes on without it.
    pub(crate) fn leaves_checkpoint_out(&self) -> bool {
        matches!(
            self,
            Error::Checkpoint(CheckpointError::Store(_) | CheckpointError::Invalid { .. })
        )
    }

    /// Whether a record may be in the chain or not: the answers of the store are lost.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self, Error::Checkpoint(CheckpointError::Pending { .. }))
    }

    /// Whose fault it is.
    pub fn blame(&self) -> FaultKind {
        match self.cause() {
            Error::Sql(diagnostics) if diagnostics.iter().any(|one| one.bug) => FaultKind::Bug,
            Error::Sql(_) | Error::Usage { .. } | Error::Stream(_) => FaultKind::Usage,
            Error::Panic { .. } => FaultKind::Bug,
            Error::Dataflow(error) => match error.cause() {
                DataflowError::Panicked(_) => FaultKind::Bug,
                _ => FaultKind::Failure,
            },
            error => error.reported().map_or(FaultKind::Failure, |fault| fault.blame),
        }
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        if let Some(fault) = self.reported() {
            return fault.hint;
        }
        if self.blame() == FaultKind::Bug && self.panicked().is_some() {
            return Some(format!(
                "please report it with all of this, the statement, and the version: {}{}",
                env!("CARGO_PKG_VERSION"),
                if self.panicked().is_some_and(|panicked| panicked.backtrace.is_some()) {
                    ""
                } else {
                    "; the variable RUST_BACKTRACE=1 shows how it came to that"
                }
            ));
        }
        match self.cause() {
            Error::Usage { hint, .. } => Some(hint.clone()),
            Error::Stream(error) => error.hint(),
            Error::Checkpoint(error) => hint_of_checkpoint(error),
            Error::Cluster(error) => error.hint(),
            Error::Fabric(FabricError::Memory { .. })
            | Error::Link(LinkError::Fabric(FabricError::Memory { .. })) => Some(
                "fewer workers or smaller rings (millstream.slots, millstream.slot_bytes) need \
                 less memory; shared memory is also bounded by the limits of the container"
                    .into(),
            ),
            Error::Fabric(FabricError::Device { .. }) => Some(format!(
                "`millstream fabric info` lists RDMA devices; the variable {} chooses among them",
                crate::RDMA_VARIABLE
            )),
            Error::Fabric(FabricError::Library { .. }) => {
                Some("--fabric auto or tcp needs no MPI; mpirun starts nodes in any case".into())
            }
            Error::Dataflow(error) => hint_of_worker(error.cause()),
            _ => None,
        }
    }

    /// Where it was, and with which row, as far as that is known; a line each.
    pub fn details(&self) -> Vec<String> {
        if let Some(fault) = self.reported() {
            return fault.details;
        }
        let mut details = Vec::new();
        if let Error::Dataflow(error) = self.cause()
            && let Some(at) = error.located()
        {
            let bug = self.blame() == FaultKind::Bug;
            details.extend(at.record.as_ref().map(|record| {
                if bug { format!("while it read {record}") } else { format!("at {record}") }
            }));
            let of = |text: &Option<String>| text.clone().filter(|_| !bug);
            details.extend(match (of(&at.expression), of(&at.row)) {
                (Some(expression), Some(row)) => Some(format!("in {expression}, where {row}")),
                (Some(expression), None) => Some(format!("in {expression}")),
                (None, Some(row)) => Some(format!("of the row {row}")),
                (None, None) => None,
            });
        }
        if let Some(panicked) = self.panicked() {
            let doing = match self.cause() {
                Error::Panic { doing, .. } => format!(" ({doing})"),
                _ => String::new(),
            };
            details.extend(panicked.place.iter().map(|place| format!("a panic at {place}{doing}")));
            details.extend(panicked.backtrace.clone());
        }
        details
    }

    /// The expression that failed on a row, where it is known.
    pub fn expression(&self) -> Option<String> {
        if let Some(fault) = self.reported() {
            return fault.expression;
        }
        let Error::Dataflow(error) = self.cause() else { return None };
        error.located()?.expression.clone()
    }

    /// The message of a node to the others when it ends by this failure, for
    /// [`Control::fail`](cluster::Control::fail): they give the same hint and the same blame.
    pub fn reason(&self) -> String {
        fault::encode(self, None)
    }

    /// The panic, if it is one of this process.
    fn panicked(&self) -> Option<&Panicked> {
        match self.cause() {
            Error::Panic { panicked, .. } => Some(panicked),
            Error::Dataflow(error) => match error.cause() {
                DataflowError::Panicked(panicked) => Some(panicked),
                _ => None,
            },
            _ => None,
        }
    }

    /// Another node's message about its failure.
    pub(crate) fn reported(&self) -> Option<Fault> {
        match &self.failed_node()?.cause {
            Cause::Reported(text) => Some(fault::decode(text)),
            _ => None,
        }
    }

    /// Whether a node was lost, by no fault of the job: another start may go on.
    pub fn has_lost_node(&self) -> bool {
        use DataflowError::{Link, NotReconnected};
        match self.cause() {
            Error::Cluster(ClusterError::Node(failure)) => {
                !matches!(failure.cause, Cause::Reported(_))
            }
            Error::Cluster(ClusterError::Closed) | Error::Link(_) => true,
            Error::Dataflow(error) => matches!(error.cause(), Link { .. } | NotReconnected { .. }),
            _ => false,
        }
    }

    /// The node whose failure this is, where it is another one.
    pub fn failed_node(&self) -> Option<&NodeFailure> {
        match self.cause() {
            Error::Cluster(ClusterError::Node(failure)) => Some(failure),
            _ => None,
        }
    }
}

fn hint_of_checkpoint(error: &CheckpointError) -> Option<String> {
    match error {
        CheckpointError::Version { .. } => Some("a later release of millstream reads it".into()),
        CheckpointError::Damaged { .. } | CheckpointError::Missing { .. } => Some(
            "`millstream state verify` tells which checkpoints are intact, and --from NUMBER goes \
             on from one of them"
                .into(),
        ),
        _ => None,
    }
}

fn hint_of_worker(error: &DataflowError) -> Option<String> {
    match error {
        DataflowError::Connector(
            ConnectorError::Option { hint, .. }
            | ConnectorError::Column { hint, .. }
            | ConnectorError::Io { hint, .. },
        ) => hint.clone(),
        DataflowError::State(_) | DataflowError::Sort { .. } if error.is_budget() => Some(
            "SET millstream.state_bytes gives each worker more memory for groups and rows; with \
             SET millstream.spill_dir they may go to a disk"
                .into(),
        ),
        DataflowError::State(_) if error.is_disk() => Some(
            "SET millstream.spill_dir names another folder, SET millstream.state_bytes gives each \
             worker more memory"
                .into(),
        ),
        DataflowError::Build { side, .. } => {
            Some(format!("SET millstream.spill_dir = '…', or /*+ SHUFFLE({side}) */"))
        }
        DataflowError::Table { bytes_max, .. } if *bytes_max > 1 << 30 => Some(
            "SET millstream.batch_bytes allows more; fewer columns and a WHERE on the table make \
             it smaller"
                .into(),
        ),
        DataflowError::Table { .. } => Some(
            "SET millstream.table_bytes allows more, up to 1 GiB; fewer columns and a WHERE on the \
             table make it smaller"
                .into(),
        ),
        _ => None,
    }
}

fn first_message(diagnostics: &[Diagnostic]) -> String {
    let Some(first) = diagnostics.first() else { return "the SQL cannot be planned".into() };
    let Diagnostic { line, column, message, .. } = first;
    format!("line {line}, column {column}: {message}")
}
