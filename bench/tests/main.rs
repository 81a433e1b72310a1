//! The benchmarks run, in small.

mod multicast;
mod recovery;
mod workloads;
