//! Layer 5: sessions, for programs that run SQL, and one composed node.
//!
//! A [`Session`] plans SQL for a number of nodes and workers; a [`Script`] is what became of a
//! text, and runs. The command line is made of nothing else.
//!
//! ```
//! use millstream::Session;
//!
//! let mut session = Session::builder().workers(2).build()?;
//! let rows = session.collect(
//!     "CREATE TABLE bids (
//!        ts TIMESTAMP(3), auction BIGINT, price BIGINT,
//!        WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
//!      ) WITH (
//!        'connector' = 'generator', 'rows' = '100000', 'interval' = '1ms',
//!        'fields.auction.max' = '9'
//!      );
//!      SELECT window_start, auction, max(price) AS highest
//!      FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
//!      GROUP BY window_start, window_end, auction",
//! )?;
//! // Ten windows of ten seconds, ten auctions.
//! assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 100);
//! # Ok::<(), millstream::Error>(())
//! ```
//!
//! Nodes live as threads of this process, or as processes of this machine: the program that starts
//! the processes (see [`cluster::launch_local`]) gives each its [`cluster::Control`] by way of
//! [`RunOptions`].
//!
//! Invariants: every worker of every node has opened its sources and sinks before a row is read; a
//! failure of one worker ends all, and the error that comes out is the cause and not a consequence.
//! This is the only place that knows which transport carries rows. It does not know terminals.
#![forbid(unsafe_code)]

mod causes;
mod checkpoints;
mod collect;
mod connections;
mod costs;
pub mod embedded;
mod error;
mod fabric_kind;
mod fault;
mod groups;
mod links;
mod memory;
mod memory_tables;
mod metrics;
mod node;
mod packed;
mod pairs;
mod pinning;
pub mod pool;
mod progress;
mod pulse;
mod reconnect;
mod recovery;
mod report;
mod script;
mod session;
mod spill;
pub mod state_store;
mod streams;
mod threads;
mod usage;

pub use checkpoint;
pub use cluster;
pub use cluster::NODES_MAX;
pub use connectors::AtomicFile;
pub use dataflow::bad::BadRow;
pub use dataflow::error::ConnectorError;
pub use dataflow::metrics::{
    Counters, Metric, MetricKind, MetricUnit, OperatorCounters, Snapshot, WorkerCounters,
    finite_watermark,
};
pub use dataflow::{connector, detach, secrets, sink, source};
pub use plan::{
    BatchAggregate, BatchFunction, BatchGroups, CalledFunction, Diagnostic, ExplainFormat,
    FunctionUsage, FunctionVolatility, NamedRelation, Place, Planned, Ran, SettingSpec, Vocabulary,
    counters_from_json, counters_to_json, settings,
};
pub use stream;

pub use dataflow::panics::{self, Panicked};

pub use checkpoints::{
    CheckpointProgress, CheckpointWait, LastCheckpoint, PendingCheckpoint, RestoredCheckpoint,
};
pub use collect::Collected;
pub use error::Error;
pub use fault::FaultKind;

pub use fabric_kind::{FabricKind, RDMA_VARIABLE, finish_fabrics, rdma_groups, rdma_survey};
pub use links::WORKERS_MAX;
pub use memory::{JobMemoryNeed, Memory};
pub use metrics::{JOB_METRICS, JobMetric};
pub use progress::Observer;
pub use recovery::{CheckpointOptions, PlanDecisions};
pub use report::{JobProgress, Report, SinkWait};
pub use script::{Job, RunOptions, Script};
pub use session::{RowFormat, RowTarget, Session, SessionBuilder};
