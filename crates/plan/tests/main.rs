//! Statements to jobs, from outside.

mod errors;
mod fused;
mod places;
mod plans;
mod scans;
mod support;
