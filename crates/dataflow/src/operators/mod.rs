//! The operators, as they run on one worker: each has a folder or file of its own.
//!
//! All that have inputs are an [`OperatorTask`](self::operator::OperatorTask), made in [`build`].
//!
//! Their state is saved, and loaded on any number of workers: [`restoring`].
//!
//! A [`source`](self::source) reads; an [`aggregate`] groups; what keeps rows by key until time has
//! passed them (joins, rankings, sessions, frames of `OVER`) is a state that [`keyed`] runs; a
//! [`lookup`] joins with a table that every process has, and a [`hash_join`] joins inputs that end;
//! a [`sort`] sorts rows, a [`limit`] emits the first that come; a [`local_plan`] runs a plan of
//! another library over the rows of a worker; a [`sink`](self::sink) writes. An operator meets
//! those of other workers by an [exchange](crate::exchange), and gives its rows to a
//! [`Downstream`](self::downstream::Downstream): it knows no other operator.

pub(crate) mod aggregate;
pub(crate) mod build;
pub(crate) mod downstream;
pub(crate) mod hash_join;
pub(crate) mod interval_join;
pub(crate) mod keyed;
pub(crate) mod limit;
pub(crate) mod local_plan;
pub(crate) mod lookup;
pub(crate) mod operator;
pub(crate) mod over;
pub(crate) mod probe_chain;
pub(crate) mod probe_stage;
pub(crate) mod ranking;
pub(crate) mod reroute;
pub(crate) mod restoring;
pub(crate) mod sessions;
pub(crate) mod sink;
pub(crate) mod sort;
pub(crate) mod source;
pub(crate) mod temporal_join;
pub(crate) mod window_join;
