//! What can be said of a job before it runs: what is known of its rows, what exchanges would cost,
//! and on which worker rows of one key are.

pub mod cost;
pub mod known;
pub mod placement;
