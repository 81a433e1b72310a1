//! Passes over a job before it runs: costs of exchanges, the worker on which rows of one key are,
//! which scans are fused, which cells of tables
//! processes read, and which builds say which rows of a scan are needed.

pub mod cost;
pub mod fusion;
pub mod grid;
pub mod placement;
pub mod probed_builds;
