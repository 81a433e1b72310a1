//! Passes over a job before it runs: costs of exchanges, the worker on which rows of one key are,
//! which scans are fused, which cells of tables processes read, which builds say which rows of a
//! scan are needed, and which joins run as one pass.

pub mod cost;
pub mod fusion;
pub mod grid;
pub mod placement;
pub mod probe_chains;
pub mod probed_builds;
pub mod row_cost;
