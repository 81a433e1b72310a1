//! The models, side by side.

mod broadcast;
mod chain;
mod epoch;
mod payloads;
mod pool;
mod pool_growing;
mod pool_servers;
mod pull;
mod pulse;
mod ring;
mod rounds;
mod segments;
mod window;
