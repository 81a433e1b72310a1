//! Layer 3: rows in motion.
//!
//! A worker runs the operators of a [`job::Job`]: it reads flows, pushes batches through fused
//! steps into a soft breaker (a window aggregate, a join, a sink) and meets the other workers at
//! exchanges. It knows Arrow, windows, watermarks and epochs; it does not know SQL, DataFusion's
//! plans or any concrete connector.
#![forbid(unsafe_code)]

mod aggregate;
pub mod bad;
mod chunks;
pub mod connector;
pub mod cost;
mod downstream;
pub mod error;
mod exchange;
mod feed;
pub mod fragment;
mod frame;
pub mod gauge;
mod handover;
pub mod job;
pub mod keyed;
pub mod known;
mod ledger;
pub mod lookup;
pub mod mend;
pub mod metrics;
mod narrow;
mod net;
mod operator;
mod origin;
pub mod origins;
mod output;
mod pace;
mod pairing;
mod place;
pub mod placement;
pub mod process;
mod reader;
mod rows;
mod scheduler;
pub mod sink;
pub mod source;
pub mod step;
pub mod time;
pub mod type_name;
mod wire;
pub mod wires;
pub mod worker;
pub mod worker_set;

pub use error::{located, panics};
pub use wire::detach;
