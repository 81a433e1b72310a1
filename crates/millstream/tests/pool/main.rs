//! Memory servers and their clients in one process: what is kept by a directory, what clients may
//! do, and what a client learns when an answer is lost.

mod answers;
mod kept;
mod restart;
mod rig;
mod rights;
