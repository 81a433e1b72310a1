//! Topics of a real broker, which `scripts/test-world.sh` starts. What the topics have is asked by
//! the client itself, and not by the connector.

mod broker;
mod faults;
mod publish;
mod raw;
mod read;
mod run;
mod tables;
#[cfg(feature = "tls")]
mod tls;
mod topics;
