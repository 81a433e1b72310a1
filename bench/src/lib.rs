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
//! It does not start processes: that is the command's work.
#![deny(unsafe_code)]

pub mod limits;
pub mod links;
pub mod memory;
pub mod reference;
pub mod run;
pub mod summary;
pub mod tally;
pub mod tsc;
pub mod workload;

pub use limits::Limits;
pub use run::{BenchError, Plan, run};
pub use summary::Summary;
pub use workload::{Distribution, Workload};
