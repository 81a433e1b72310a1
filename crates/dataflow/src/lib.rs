//! Layer 3: rows in motion.
//!
//! A worker runs the operators of a [`job::JobGraph`]: it reads flows, pushes batches through fused
//! steps into a soft breaker (a window aggregate, a join, a sink) and meets the other workers at
//! exchanges. It knows Arrow, windows, watermarks and epochs; it does not know SQL, DataFusion's
//! plans or any concrete connector.
#![forbid(unsafe_code)]

pub mod calendar;
pub mod checkpoint;
pub mod connector;
pub mod error;
mod exchange;
mod graph;
pub mod hostile;
pub mod job;
mod operators;
mod optimize;
mod pairing;
mod rows;
mod runtime;
pub mod secrets;
pub mod worker;

pub use connector::{
    backlog, bad, costs, gauge, join_filter, origins, peers, position, predicate, scan, sink,
    source,
};
pub use error::{located, panics};
pub use job::{fragment, hash_join, lookup, step, wires, worker_set};
pub use optimize::{cost, fusion, grid, placement, probe_chains, probed_builds, row_cost};
pub use rows::wire::{detach, pieces};
pub use rows::{size, time, type_name};
pub use runtime::{frame, metrics, process, reconnect};
pub use state::Partitioner;

/// Operators that keep rows by key until time has passed them, as data: each makes the state of a
/// worker.
pub mod keyed {
    pub use crate::job::{InputBatches, JoinKind, SpillSpec};
    pub use crate::operators::interval_join::{IntervalJoin, TimedSide};
    pub use crate::operators::over::{
        FrameUnit, Over, OverCall, OverFrame, first_value, last_value, nth_value, times,
    };
    pub use crate::operators::ranking::Ranking;
    pub use crate::operators::reroute::{Reroute, To, to_partner};
    pub use crate::operators::sessions::RowSessions;
    pub use crate::operators::temporal_join::TemporalJoin;
    pub use crate::operators::window_join::{JoinSide, WindowJoin};
}
