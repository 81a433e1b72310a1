//! The connectors as the planner and the workers use them: through `dataflow`'s traits only.
#![forbid(unsafe_code)]

mod announced;
mod bed;
mod checkpoints;
mod corpus;
mod crafted;
mod damaged;
mod directory;
mod fixed;
mod flight;
mod formats;
mod generator;
mod hostile;
mod http;
mod object;
mod object_sink;
mod packed;
mod parquet;
mod pipe;
mod pool;
mod pool_growing;
mod pool_staged;
mod positions;
mod pruning;
mod ranges;
mod raw;
mod real_s3;
mod registry;
mod servers;
mod sink;
mod socket;
mod stdin;
mod terminal;
mod text;
mod values;
mod watch;
