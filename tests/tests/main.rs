//! The suites of the whole engine, as modules of one program: each program would link DataFusion.

mod bad_input;
mod behind;
mod broadcast;
mod e2e;
mod early;
mod errors;
mod failures;
mod frames;
mod joins;
mod lengths;
mod nexmark;
mod properties;
mod reconnection;
mod relational;
mod remote;
mod shell;
mod simulation;
mod slt;
mod spill;
mod stream_jobs;
mod streams;
mod telemetry;
mod unfolded;
mod whale;
mod windows;
mod wires;
