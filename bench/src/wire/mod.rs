//! Throughput and cost of the wires, and their distance from the machine without
//! them (`millstream bench wire`).
//!
//! ```text
//! Transport ─▶ two ends on two processors ─▶ Stream, Times ─┐
//! raw: ring, cache line, sockets, iperf3 ─── in turns ───────┴▶ Report with bars
//! ```
//!
//! Both ends are threads of one process, bound to two processors, that know each other only through
//! the fabric. Each figure is the median of several short runs; what is compared with a limit is
//! measured in turns with it.

mod bars;
mod open;
pub mod published;
pub mod raw;
pub mod run;
mod scatter;
pub mod sends;
mod sweep;
mod times;

use std::sync::Arc;
use std::time::Duration;

use channel::LinkError;
use fabric::{Fabric, FabricError, Publish};
use thiserror::Error;

use crate::report::FigureReport;
pub use open::open;
pub use times::{RoundTimes, cpu_s};

/// How a transport is opened; with a publish mode where another one is wanted than it takes by
/// itself.
pub type Open = Box<dyn Fn(Option<Publish>) -> Result<Arc<dyn Fabric>, FabricError>>;

/// A transport that is measured.
pub struct Transport {
    /// Its name, as a user chooses it.
    pub name: String,
    /// How it is opened.
    pub open: Open,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How long each stream or ping is measured.
    pub span: Duration,
    /// How often each thing is measured.
    pub runs: usize,
    /// Workers that rows are scattered to, at most.
    pub peers_max: u32,
}

/// Why there are no figures.
#[derive(Debug, Error)]
pub(crate) enum WireError {
    /// A link could not be made, or broke.
    #[error("{transport}: {source}")]
    Link {
        /// The transport.
        transport: String,
        /// What happened.
        source: LinkError,
    },
    /// The system gives no socket or memory to measure its limits with.
    #[error("the limits of the machine cannot be measured: {0}")]
    Raw(String),
}

/// Measures all transports. One that cannot be opened is named with the reason, and so is a part
/// that fails; the others are measured.
pub fn measure(transports: &[Transport], effort: Effort) -> FigureReport {
    sweep::measure(transports, effort)
}

#[cfg(test)]
mod tests;
