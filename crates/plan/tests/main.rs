//! Statements to jobs, from outside.

mod errors;
mod fused;
mod key_filters;
mod merging;
mod metadata;
mod orders;
mod places;
mod plans;
mod readers;
mod rings;
mod scans;
mod support;
