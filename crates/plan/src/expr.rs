//! Functions and aggregates beside DataFusion's, and what its own must keep to: arithmetic that
//! fails where a result does not fit, one equality of keys, bounds of what a call may make.

pub(crate) mod calendar;
pub(crate) mod checked;
pub(crate) mod conform;
pub(crate) mod emit_kind;
pub(crate) mod equality;
pub(crate) mod every;
pub(crate) mod failure;
pub(crate) mod flink;
pub(crate) mod growth;
pub(crate) mod lead;
pub(crate) mod max_by;
pub(crate) mod own;
pub(crate) mod percentile;
pub(crate) mod sum;
