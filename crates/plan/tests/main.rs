//! Statements to jobs, from outside.

mod errors;
mod fused;
mod merging;
mod orders;
mod places;
mod plans;
mod scans;
mod support;
