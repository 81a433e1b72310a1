//! Layer 6: Millstream as a module of Python.
//!
//! The engine runs in the interpreter's process, on threads of its own. This crate is the border:
//! values and errors become those of the other side. The classes for users, with their
//! documentation, are in `python/millstream`.
//!
//! Rules that every module keeps:
//! - every call that may wait gives up the interpreter's lock while it does, and asks every
//!   [`wait::STEP`] whether Ctrl-C was pressed;
//! - rows go in and out by Arrow's C interface ([`capsules`]), without being copied;
//! - a panic becomes an exception ([`errors`]).
//!
//! The interface of C is the one place of this crate with `unsafe` code: [`capsules`].
#![deny(unsafe_code)]

mod aggregate;
mod call_gate;
#[allow(unsafe_code)]
mod capsules;
mod checkpoints;
mod errors;
mod failed_rows;
mod fitted;
mod foreign;
mod function;
mod job;
mod ranks;
mod relation;
mod rows;
mod session;
mod source;
mod state;
mod values;
mod wait;

/// The module behind `millstream`.
#[pyo3::pymodule]
mod _millstream {
    #[pymodule_export]
    use crate::failed_rows::PyFailedRows;
    #[pymodule_export]
    use crate::function::{PyArray, count_failed_rows, function_counts};
    #[pymodule_export]
    use crate::job::PyJob;
    #[pymodule_export]
    use crate::relation::{PyBatches, PyRelation};
    #[pymodule_export]
    use crate::rows::PyRows;
    #[pymodule_export]
    use crate::session::{PyFunctionCounts, PySession};
    #[pymodule_export]
    use crate::source::PySource;
    #[allow(non_upper_case_globals)]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
