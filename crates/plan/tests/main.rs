//! Statements to jobs, from outside.

mod errors;
mod places;
mod plans;
mod support;
