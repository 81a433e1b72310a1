//! The program as its users start it.

mod bench;
mod checkpoints;
mod command;
mod compat;
mod kills;
mod launched;
mod memory;
mod pool;
mod recover;
mod rig;
mod spilled;
mod state;
mod stopped_streams;
mod supervised;
mod swallowed;
mod watched;
