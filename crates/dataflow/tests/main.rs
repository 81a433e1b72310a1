//! The tests of this crate from outside, as modules of one program.

mod alignment;
mod alone;
mod bounds;
mod cast;
mod early;
mod flows;
mod frames;
mod lists;
mod local_exchange;
mod local_plan;
mod room;
mod settling;
mod slicing;
mod stopped_table;
