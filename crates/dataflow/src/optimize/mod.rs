//! Statistics of a job before it runs: estimates of its rows, costs of exchanges, and the worker on
//! which rows of one key are.

pub mod cost;
pub mod known;
pub mod placement;
