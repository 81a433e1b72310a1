//! The models, side by side.

mod broadcast;
mod chain;
mod epoch;
mod late_joins;
mod payloads;
mod pool;
mod pool_caches;
mod pool_growing;
mod pool_kept;
mod pool_lists;
mod pool_numbers;
mod pool_servers;
mod pull;
mod pulse;
mod region;
mod ring;
mod rounds;
mod segments;
mod session;
mod window;

use std::fmt::Debug;

use models::{Model, explore};

/// States of a model at most.
const STATES_MAX: usize = 8_000_000;

/// Explores a model that has no flaw, and at least this many states.
fn holds<M: Model>(model: &M, states_min: usize) {
    let seen = explore(model, STATES_MAX).unwrap_or_else(|v| panic!("{}\n{}", v.reason, v.trace));
    println!("{seen:?}");
    assert!(seen.states >= states_min, "only {} states", seen.states);
    assert!(seen.finals > 0);
}

/// Explores a model with a flaw, which breaks an invariant with this reason.
fn finds<M: Model>(model: &M, flaw: impl Debug, reason: &str) {
    let violation = explore(model, STATES_MAX).expect_err("a flaw must be found");
    let steps = violation.trace.lines().count() - 1;
    println!("{flaw:?}: {} in {steps} steps, {} states", violation.reason, violation.states);
    assert!(violation.reason.contains(reason), "{}\n{}", violation.reason, violation.trace);
}
