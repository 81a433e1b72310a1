//! Tables of a real server, which `scripts/test-world.sh` starts. What the tables have is asked by
//! psql, and not by the connector.

mod changes;
mod follow;
mod rows;
mod run;
mod server;
mod sink;
mod versions;
