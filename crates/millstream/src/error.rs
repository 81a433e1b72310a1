//! What can go wrong with a job, and whose fault it is.

use channel::LinkError;
use cluster::{ClusterError, NodeFailure};
use dataflow::error::{ConnectorError, DataflowError};
use fabric::FabricError;
use plan::Diagnostic;
use stream::StreamError;
use thiserror::Error;

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
        /// What is wrong.
        message: String,
        /// What to do instead.
        hint: String,
    },
    /// Nodes could not be started or connected, or one of them failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A node is not set up as this one is. Whoever started them is at fault.
    #[error("node {rank} differs from node 0 in its {what}")]
    Unlike {
        /// The node.
        rank: u32,
        /// What differs.
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
    /// A worker panicked: our bug.
    #[error("worker {worker} panicked: {message}")]
    Panic {
        /// The worker.
        worker: u32,
        /// What it said.
        message: String,
    },
    /// The job was dropped, as its caller asked; nothing of it is published.
    #[error("interrupted")]
    Interrupted,
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
    /// What the user may do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Usage { hint, .. } => Some(hint.clone()),
            Error::Stream(error) => error.hint(),
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
            Error::Dataflow(DataflowError::Connector(
                ConnectorError::Option { hint, .. }
                | ConnectorError::Column { hint, .. }
                | ConnectorError::Io { hint, .. },
            )) => hint.clone(),
            Error::Dataflow(error @ DataflowError::State(_)) if error.is_budget() => {
                Some(
                    "SET millstream.state_bytes gives each worker more memory for groups and rows; \
                     with SET millstream.spill_dir they may go to a disk"
                        .into(),
                )
            }
            Error::Dataflow(error) if error.is_disk() => Some(
                "SET millstream.spill_dir names another folder, SET millstream.state_bytes gives \
                 each worker more memory"
                    .into(),
            ),
            Error::Dataflow(DataflowError::Table { .. }) => Some(
                "SET millstream.table_bytes allows more, up to 1 GiB; fewer columns and a WHERE on \
                 the table make it smaller"
                    .into(),
            ),
            Error::Panic { .. } => Some("this is a bug in millstream: please report it".into()),
            _ => None,
        }
    }

    /// The node whose failure this is, where it is another one.
    pub fn failed_node(&self) -> Option<&NodeFailure> {
        match self {
            Error::Cluster(ClusterError::Node(failure)) => Some(failure),
            _ => None,
        }
    }
}

fn first_message(diagnostics: &[Diagnostic]) -> String {
    let Some(first) = diagnostics.first() else { return "the SQL cannot be planned".into() };
    let Diagnostic { line, column, message, .. } = first;
    format!("line {line}, column {column}: {message}")
}
