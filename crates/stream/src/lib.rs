//! Layer 4: jobs without SQL (A3, A4, A5).
//!
//! A [`Stream`] is rows on their way. Functions of batches or of rows make other streams of it
//! ([`Stream::filter`], [`Stream::map`], [`Stream::split`], [`Stream::union`]); [`Stream::key_by`]
//! brings rows of equal keys together, for aggregates in windows of event time
//! ([`KeyedStream::window`]), the first rows of windows ([`KeyedStream::top`]), joins of windows
//! ([`KeyedStream::join`]), of rows near each other ([`KeyedStream::join_near`]) and with versions
//! ([`KeyedStream::join_latest`]), and operators of one's own ([`process`]). [`Stream::into_sink`]
//! ends it, and [`job`] makes the graph of operators that every worker runs. The crate `millstream`
//! runs it, and mixes it with SQL.
//!
//! ```
//! use std::time::Duration;
//! use stream::{Agg, Stream, StreamError, Window};
//!
//! /// The mean of the last minute by sensor, every ten seconds.
//! fn means(readings: Stream) -> Result<Stream, StreamError> {
//!     readings
//!         .filter_rows(|row| Ok(row.get::<f64>("value")?.is_some_and(f64::is_finite)))
//!         .key_by(&["sensor"])?
//!         .window(&Window::hop(Duration::from_secs(60), Duration::from_secs(10)))?
//!         .aggregate(&[Agg::avg("value", "mean"), Agg::count("n")])
//! }
//! ```
//!
//! Invariants: a stream is a value, so a graph has no cycle; an error is reported where
//! it is built, and before anything runs; an operator that is used by several is run once. It does
//! not know SQL, connectors, or how workers are joined.
#![forbid(unsafe_code)]

mod aggregate;
mod error;
mod keyed;
mod lookup;
mod meet;
mod node;
mod row;
mod step;
mod stream;
mod top;
mod window;

pub use dataflow::checkpoint::SavedRows;
pub use dataflow::error::DataflowError;
pub use dataflow::fragment::Fragment;
pub use dataflow::job::{
    Description, Exchange, KeyedOperator, KeyedState, MultiPartitioner, RowOwner, RowPartitioner,
    SavedPart, SavedParts,
};
pub use dataflow::keyed::JoinKind;
pub use dataflow::worker_set::WorkerSet;
pub use state::{Accumulator, Aggregate};

pub use aggregate::Agg;
pub use error::StreamError;
pub use keyed::{KeyedStream, WindowedStream, process};
pub use meet::{Shift, TimeRange};
pub use node::{Setup, fragment, job};
pub use row::{Cell, Row, Value};
pub use step::Expanded;
pub use stream::{Branches, Columns, EventTime, Output, Stream};
pub use top::Order;
pub use window::Window;
