//! Layer 6: Millstream as a module of Python.
//!
//! The engine runs in the interpreter's process, on threads of its own. This crate is the border:
//! values and errors become those of the other side. What is there for a user, with its
//! documentation, is in `python/millstream`.
//!
//! What it keeps:
//! - every call that may wait gives up the interpreter's lock while it does, and asks every
//!   [`wait::STEP`] whether Ctrl-C was pressed;
//! - rows go in and out by Arrow's C interface ([`c_data`]), without being copied;
//! - a panic becomes an exception ([`errors`]).
//!
//! The interface of C is the one place of this crate with `unsafe` code: [`c_data`] and
//! [`capsules`].
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod c_data;
#[allow(unsafe_code)]
mod capsules;
mod errors;
mod function;
mod job;
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
    use crate::function::PyArray;
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
