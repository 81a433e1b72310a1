//! The tests of this crate from outside, as modules of one program.

mod alone;
mod bounds;
mod cast;
mod early;
mod frames;
mod handover;
mod lists;
mod pace;
mod room;
mod slicing;
