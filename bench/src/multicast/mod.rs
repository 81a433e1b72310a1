//! One to many, measured (W12, W13): what it costs that a row meets every instance.
//!
//! ```text
//!   processes of this machine            virtual time
//!   app ─▶ real ─▶ Point ──┬─ costs ──▶ model ─▶ simulated ─┐
//!                          └────────────────────────────────┴▶ page ─▶ Report
//! ```
//!
//! - [`real`](mod@real) runs the engine: as many processes and workers as asked, each worker with
//!   several instances, with every tree and without (a copy for each instance). Every instance is
//!   held to have seen every request once and in order, and matches are compared with a loop over
//!   all drivers; without that there are no figures.
//! - Beside it the whole applications run in SQL, and sweeps of how rows are collected.
//! - [`model`](mod@model) runs the same protocol in virtual time ([`channel::broadcast::sim`]), for
//!   as many machines as the paper had: with the costs that the runs had here, and with those of
//!   the paper. A page tells the two apart.
//!
//! It does not start processes: that is the command's work.

mod app;
mod applications;
mod arrivals;
mod bars;
mod measure;
pub mod model;
mod page;
pub mod real;
mod settle;
mod slices;

pub use app::Phase;
pub use applications::AppPoint;
pub use arrivals::Arrivals;
pub use measure::{Measured, run};
pub use page::report;
pub use real::{MulticastPlan, Point, RequestTimes, Way};
pub use slices::SlicePoint;
