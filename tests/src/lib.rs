//! What the tests of the whole engine share: tables in memory, a cluster in the simulator, random
//! streams and queries, two independent answers to them, and the command before a terminal.
#![forbid(unsafe_code)]

pub mod asked;
pub mod book;
pub mod cases;
pub mod cluster;
pub mod command;
pub mod memory;
pub mod oracle;
pub mod random;
mod reconnect;
pub mod relational;
pub mod remainder;
pub mod rounds;
pub mod rows;
pub mod scenario;
pub mod terminal;
pub mod windowed;
