//! The models, side by side.

mod cast;
mod epoch;
mod flight;
mod pull;
mod pulse;
mod ring;
