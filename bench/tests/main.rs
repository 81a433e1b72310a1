//! The benchmarks run, in small.

mod multicast;
mod workloads;
