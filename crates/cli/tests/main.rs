//! The program as its users start it.

mod bench;
mod command;
mod launched;
mod pool;
mod swallowed;
