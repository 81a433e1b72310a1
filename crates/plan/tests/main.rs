//! Statements to jobs, from outside.

mod errors;
mod plans;
mod support;
