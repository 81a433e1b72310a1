//! The models, side by side.

mod broadcast;
mod epoch;
mod payloads;
mod pull;
mod pulse;
mod ring;
mod window;
