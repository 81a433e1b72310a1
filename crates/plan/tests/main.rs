//! Statements to jobs, from outside.

mod errors;
mod fused;
mod orders;
mod places;
mod plans;
mod scans;
mod support;
