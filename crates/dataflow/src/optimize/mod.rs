//! Passes over a job before it runs: costs of exchanges, the worker on which rows of one key are,
//! and which scans are fused.

pub mod cost;
pub mod fusion;
pub mod placement;
