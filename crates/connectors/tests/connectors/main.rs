//! The connectors as the planner and the workers use them: through `dataflow`'s traits only.
#![forbid(unsafe_code)]

mod bed;
mod corpus;
mod damaged;
mod generator;
mod packed;
mod parquet;
mod sink;
mod terminal;
mod text;
mod watch;
