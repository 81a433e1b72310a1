//! Loads that are given up: by a client, with its end, or since the server cannot go on.
//!
//! The reason is remembered as the outcome of the load, and told to those who know its statement:
//! the other nodes, which may hear of the end of the load before they hear of what has failed.

use super::LoadState;
use crate::error::PoolError;
use crate::home::saving::LoadOutcome;
use crate::home::{ClientId, Effect, Home};
use crate::pointer::ExtentId;

impl Home {
    /// A client gives a load up, for all that take part; they are told the reason, if it is not
    /// empty.
    pub fn abort(&mut self, client: ClientId, load: u64, reason: &str) -> Vec<Effect> {
        match self.loads.get(&load).and_then(|of| of.clients.get(&client)) {
            Some(name) if reason.is_empty() => {
                let reason = format!("{name} has given it up");
                self.give_up(load, reason)
            }
            Some(name) => {
                let reason = format!("{name} failed: {reason}");
                self.give_up(load, reason)
            }
            None => self.end_part(client, load),
        }
    }

    /// Strips of a client cannot be taken: its load ends.
    pub(super) fn refuse_strips<T>(
        &mut self,
        client: ClientId,
        load: u64,
        error: PoolError,
    ) -> (Result<T, PoolError>, Vec<Effect>) {
        let effects = self.abort(client, load, &error.to_string());
        (Err(error), effects)
    }

    pub(in crate::home) fn abort_loads_of(&mut self, client: ClientId) -> Vec<Effect> {
        let of = |(number, of): (&u64, &LoadState)| {
            let name = of.clients.get(&client)?;
            Some((*number, format!("{name} has ended, or its connection has")))
        };
        let loads: Vec<(u64, String)> = self.loads.iter().filter_map(of).collect();
        loads.into_iter().flat_map(|(load, reason)| self.give_up(load, reason)).collect()
    }

    pub(super) fn give_up(&mut self, load: u64, reason: String) -> Vec<Effect> {
        let Some(state) = self.loads.remove(&load) else { return vec![] };
        self.remember(load, LoadOutcome::Failed(state.snapshot, reason));
        self.bytes -= state.counted;
        let extents = state.sealed.iter().chain(state.written_by.keys());
        let mut effects: Vec<Effect> = extents.map(|number| self.free(*number)).collect();
        // A node that has committed does not give up what it has sealed there.
        let elsewhere: Vec<ExtentId> = state.elsewhere.into_keys().collect();
        effects.extend(self.discard(load, &elsewhere));
        effects
    }
}
