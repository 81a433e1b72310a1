//! Beside the layers: the workloads of the papers (S14, A8), measured through SQL and the same
//! session, script and job that a user has.
//!
//! ```text
//! sql/*.sql ─▶ Session ─▶ Script ─▶ run, run, run ─▶ Summary
//!     │                              └ rows of results are tallied ─┐
//!     └ the same rows, read once more ─▶ sequential answer ─────────┴▶ equal, or no figures
//! ```
//!
//! - Input is made when the flows are opened and lies in memory; only what comes after is timed.
//! - No figure is printed of a run whose results are wrong: [`reference`](mod@reference) computes
//!   them once more, row by row, without the engine.
//! - What the machine can do is measured between the runs ([`memory`]) and beside them
//!   ([`limits`]), since figures of a shared or virtual machine mean little by themselves.
//!
//! - By the clock, rows come when they are due ([`paced`]), and what windows take is counted where
//!   their rows are emitted ([`latency`]): [`sustain`].
//!
//! It does not start processes: that is the command's work.
#![deny(unsafe_code)]

pub mod analytics;
mod by_hand;
pub mod checksums;
pub mod laps;
pub mod latency;
pub mod limits;
pub mod memory;
pub mod multicast;
pub mod paced;
pub mod paper;
pub mod predict;
pub mod recovery;
pub mod reference;
pub mod report;
pub mod run;
pub mod session;
pub mod shuffle;
pub mod summary;
pub mod sustain;
pub mod targets;
pub mod task;
pub mod tsc;
mod unrelated;
pub mod wire;
pub mod workload;
pub mod write;

pub use limits::HostLimits;
pub use run::{BenchError, RunPlan, run};
pub use summary::Summary;
pub use sustain::Timed;
pub use workload::{KeyDistribution, Workload};
pub use write::{Written, write};
