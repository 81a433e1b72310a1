//! Functions and aggregates of our own, and rules for DataFusion's: arithmetic fails where a result
//! does not fit, keys have one equality, and the bytes that a call may make have a bound.

pub(crate) mod arithmetic;
pub(crate) mod batch;
pub(crate) mod batch_aggregate;
pub(crate) mod calendar;
pub(crate) mod checked;
pub(crate) mod columnar;
pub(crate) mod conform;
pub(crate) mod distance;
pub(crate) mod division;
pub(crate) mod emit_kind;
pub(crate) mod equality;
pub(crate) mod every;
pub(crate) mod exact;
pub(crate) mod failure;
pub(crate) mod flink;
pub(crate) mod flink_times;
pub(crate) mod given;
pub(crate) mod growth;
pub(crate) mod interval_times;
pub(crate) mod json;
pub(crate) mod lead;
pub(crate) mod max_by;
pub(crate) mod own;
pub(crate) mod percentile;
pub(crate) mod written;
