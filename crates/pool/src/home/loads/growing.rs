//! Loads that do not end: their versions appear one after the other.
//!
//! ```text
//!   writer 0   strips ─ hand in ┐               strips ─ hand in ─┐
//!   writer 1   strips ─── hand in ▶ version 4    (none) ── hand in ▶ version 5 … commit
//! ```
//!
//! A version appears when each writer has handed something in since the one before, or has ended.
//! Two parts that a writer hands in meanwhile are in the same version. A short strip that a writer
//! has handed in may be replaced by a later one with the same rows and more, so that a table grows
//! with its rows and not with its versions.

use std::collections::BTreeSet;

use super::{LoadState, Then};
use crate::access::LoadMode;
use crate::error::PoolError;
use crate::home::saving::PreparedVersion;
use crate::home::{ClientId, Effect, Home};
use crate::manifest::Strip;
use crate::pointer::ExtentId;

impl LoadState {
    /// Whether a version appears now: each writer has handed in its part, or has ended.
    pub(super) fn is_due(&self) -> bool {
        let has = |writer| self.submitted.contains(&writer) || self.committed.contains(&writer);
        !self.submitted.is_empty() && (0..self.writers).all(has)
    }

    /// Whether all writers have committed.
    pub(in crate::home) fn has_committed(&self) -> bool {
        self.committed.len() == self.writers as usize
    }

    /// Whether the next version would be the one that is there.
    pub(super) fn has_nothing(&self) -> bool {
        self.strips.is_empty() && self.replaced.is_empty()
    }
}

impl Home {
    /// Strips of the newest version, or that were handed in for the next one, which a writer's next
    /// ones take the place of. They go when those appear.
    ///
    /// # Errors
    /// When there are too many, or the client does not take part; [`PoolError::Full`] when there is
    /// no room for them until then. The load is given up then.
    pub fn replace(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: Vec<(u32, Strip)>,
    ) -> (Result<(), PoolError>, Vec<Effect>) {
        match self.arriving(client, load, writer, &strips) {
            Ok(arriving) => {
                arriving.replaced.extend(strips);
                (Ok(()), vec![])
            }
            Err(error) => self.refuse_strips(client, load, error),
        }
    }

    /// Takes strips of a writer that goes on. With the last ones of the last writer a version
    /// appears, if it has other rows than the one before; gives its number then.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit), and when a strip is to be replaced that is not there. The
    /// load is given up then.
    pub fn hand_in(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: Vec<(u32, Strip)>,
        last: bool,
    ) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        match self.take_strips(client, load, writer, strips) {
            Ok(()) if last => self.settle(load, writer, Then::Continues),
            Ok(()) => (Ok(None), vec![]),
            Err(error) => self.refuse_strips(client, load, error),
        }
    }

    /// Lets the next version of a load appear, if it is time and the one before is saved.
    pub(in crate::home) fn go_on(
        &mut self,
        load: u64,
    ) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        match self.loads.get(&load) {
            Some(_) if self.is_saving_load(load) => (Ok(None), vec![]),
            Some(state) if state.has_committed() => self.complete(load),
            Some(state) if state.is_due() => self.publish_part(load),
            _ => (Ok(None), vec![]),
        }
    }

    /// A version of a load that goes on could not be saved.
    pub(in crate::home) fn cannot_go_on(&mut self, load: u64, reason: &str) -> Vec<Effect> {
        self.give_up(load, reason.to_owned())
    }

    /// Publishes, or saves, what has been handed in; the load goes on.
    fn publish_part(&mut self, load: u64) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        let Some(mut state) = self.loads.remove(&load) else { return (Ok(None), vec![]) };
        state.submitted.clear();
        // A table that is made is there from the first time on, whether it has rows or not.
        if state.load.mode == LoadMode::Append && state.has_nothing() {
            state.grows = true;
            self.loads.insert(load, state);
            return (Ok(None), vec![]);
        }
        // The strips of the version behind this one, as far as they have come, stay.
        let arriving = state.arriving.values();
        let counts = arriving.map(|of| (of.bytes, of.strips.len() + of.replaced.len()));
        let (bytes, count) = counts.fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        let counted = state.load.definition.bytes() + bytes;
        self.bytes -= state.counted - counted;
        (state.counted, state.count) = (counted, count);
        let blocks = state.replaced.iter().flat_map(|(_, strip)| &strip.blocks);
        let blocks = blocks.filter(|block| block.bytes > 0);
        let replaced: BTreeSet<ExtentId> = blocks.map(|block| block.at.extent).collect();
        let prepared = match self.prepare(&mut state) {
            Ok(prepared) => PreparedVersion { goes_on: true, ..prepared },
            Err(error) => {
                self.loads.insert(load, state);
                let effects = self.give_up(load, error.to_string());
                return (Err(error), effects);
            }
        };
        state.sealed.retain(|number| !prepared.own.contains(number));
        // A strip that was replaced before it has appeared is of no version.
        state.elsewhere.retain(|extent, _| !prepared.has(*extent));
        let (here, there): (Vec<ExtentId>, Vec<ExtentId>) =
            replaced.into_iter().partition(|gone| gone.server == self.server);
        let here = here.into_iter().map(|gone| gone.number);
        let gone: Vec<u32> = here.filter(|gone| state.sealed.remove(gone)).collect();
        let there = there.into_iter().filter(|gone| state.elsewhere.remove(gone).is_some());
        let there: Vec<ExtentId> = there.collect();
        (state.grows, state.load.mode) = (true, LoadMode::Append);
        self.loads.insert(load, state);
        let (version, mut effects) = self.decide(load, prepared, &there);
        effects.extend(gone.into_iter().map(|gone| self.free(gone)));
        (Ok(version), effects)
    }
}
