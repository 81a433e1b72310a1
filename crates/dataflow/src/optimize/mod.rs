//! Statistics of a job before it runs: estimates of its rows, costs of exchanges, and the worker on
//! which rows of one key are; and the pass that decides which scans are fused.

pub mod cost;
pub mod fusion;
pub mod known;
pub mod placement;
