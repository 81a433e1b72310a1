//! Versions that are saved before they appear, what has become of loads, and tables that are there
//! again when a server was restarted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Effect, Extent, Home, PeerId, counted};
use crate::error::PoolError;
use crate::manifest::{ExtentHolder, Manifest};
use crate::pointer::ExtentId;
use crate::wire::StatementId;

/// Loads whose end is remembered at most, for loaders to which the response was lost.
pub const OUTCOMES_MAX: usize = 4096;

/// The outcome of a load.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LoadOutcome {
    /// This version has appeared.
    Version(StatementId, u64),
    /// No version will appear, for this reason.
    Failed(StatementId, String),
}

/// A version that a server saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedVersion {
    /// The load that has made it.
    pub load: u64,
    /// The statement of the load.
    pub snapshot: StatementId,
    /// The version.
    pub manifest: Arc<Manifest>,
    /// Its encoding.
    pub bytes: Arc<Vec<u8>>,
    /// Whether the load goes on behind it, so that the version is not the outcome of the load.
    pub goes_on: bool,
}

/// A version whose writers have all committed, and that has not appeared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PreparedVersion {
    pub(super) snapshot: StatementId,
    pub(super) manifest: Arc<Manifest>,
    pub(super) bytes: Arc<Vec<u8>>,
    /// The extents of its load.
    pub(super) own: Vec<u32>,
    /// Extents of its load on other servers, with the bytes that are used of each.
    pub(super) elsewhere: Vec<(ExtentId, u32)>,
    /// The servers that have not said that they hold them.
    pub(super) waits: BTreeSet<PeerId>,
    /// Whether its load goes on: what becomes of that is decided later.
    pub(super) goes_on: bool,
}

impl PreparedVersion {
    /// Whether blocks of its load lie in an extent of another server.
    pub(super) fn has(&self, extent: ExtentId) -> bool {
        // They are in order, as those of a load are in a manifest.
        self.elsewhere.binary_search_by_key(&extent, |(of, _)| *of).is_ok()
    }
}

impl Home {
    /// Whether a version of a table is being saved, or other servers are asked to hold its extents.
    pub(super) fn is_saving(&self, table: &str) -> bool {
        self.saving.values().any(|version| version.manifest.table == table)
    }

    /// Whether a version of a load is being saved.
    pub(super) fn is_saving_load(&self, load: u64) -> bool {
        self.saving.contains_key(&load)
    }

    /// Whether all writers of a load have committed, and its last version has not appeared yet.
    pub fn is_ending(&self, load: u64) -> bool {
        match self.loads.get(&load) {
            Some(state) => state.has_committed(),
            None => self.is_saving_load(load),
        }
    }

    /// Lets a version appear, or asks that it be saved, or that other servers hold its extents.
    /// Those that are `unused` on these are of no version.
    pub(super) fn decide(
        &mut self,
        load: u64,
        mut version: PreparedVersion,
        unused: &[ExtentId],
    ) -> (Option<u64>, Vec<Effect>) {
        let mut effects = self.reach(version.elsewhere.iter().map(|(extent, _)| extent.server));
        let holds = self.holds(load, &version.elsewhere, unused);
        if !holds.is_empty() {
            version.waits = holds.iter().map(|hold| hold.peer).collect();
            self.saving.insert(load, version);
            effects.extend(holds.into_iter().map(Effect::from));
            return (None, effects);
        }
        if self.saves {
            self.saving.insert(load, version);
            return (None, self.save(load));
        }
        let (number, effects) = self.appear(load, version);
        (Some(number), effects)
    }

    /// All other servers hold their parts of a version: it appears, or is saved before.
    pub(super) fn is_held(&mut self, load: u64) -> Vec<Effect> {
        if self.saves { self.save(load) } else { self.end_saving(load, Ok(())) }
    }

    fn save(&self, load: u64) -> Vec<Effect> {
        let Some(version) = self.saving.get(&load) else { return vec![] };
        let PreparedVersion { snapshot, manifest, bytes, goes_on, .. } = version;
        let (manifest, bytes) = (Arc::clone(manifest), Arc::clone(bytes));
        let (snapshot, goes_on) = (*snapshot, *goes_on);
        vec![Effect::Save(Box::new(SavedVersion { load, snapshot, manifest, bytes, goes_on }))]
    }

    fn appear(&mut self, load: u64, version: PreparedVersion) -> (u64, Vec<Effect>) {
        let number = version.manifest.version;
        if !version.goes_on {
            self.remember(load, LoadOutcome::Version(version.snapshot, number));
        }
        (number, self.publish(version.manifest, version.bytes))
    }

    /// A version was saved, and appears; or it could not be, and does not. The load cannot be given
    /// up in between, whoever ends; one that goes on ends when a version of it does not appear.
    pub fn saved(&mut self, load: u64, saved: Result<(), String>) -> Vec<Effect> {
        let saved = saved.map_err(|reason| format!("the version cannot be saved: {reason}"));
        self.end_saving(load, saved)
    }

    /// A version that was being saved, or whose extents were to be held, appears or does not.
    pub(super) fn end_saving(&mut self, load: u64, saved: Result<(), String>) -> Vec<Effect> {
        let Some(version) = self.saving.remove(&load) else { return vec![] };
        match saved {
            Ok(()) => {
                let mut effects = self.appear(load, version).1;
                effects.extend(self.go_on(load).1);
                effects
            }
            Err(reason) => {
                self.bytes -= counted(version.bytes.len());
                let given_up = self.cannot_go_on(load, &reason);
                if !version.goes_on {
                    self.remember(load, LoadOutcome::Failed(version.snapshot, reason));
                }
                let own = |number: &u32| self.extents.contains_key(number);
                let own: Vec<u32> = version.own.into_iter().filter(own).collect();
                let mut effects = given_up;
                effects.extend(own.into_iter().map(|number| self.free(number)));
                let elsewhere = version.elsewhere.iter().map(|(extent, _)| *extent);
                let elsewhere: Vec<ExtentId> = elsewhere.collect();
                effects.extend(self.releases(elsewhere.iter().copied()));
                effects.extend(self.discard(load, &elsewhere));
                effects
            }
        }
    }

    pub(super) fn remember(&mut self, load: u64, outcome: LoadOutcome) {
        if self.outcomes.insert(load, outcome).is_none() {
            self.ended.push_back(load);
        }
        if self.ended.len() > OUTCOMES_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.outcomes.remove(&oldest);
        }
    }

    /// The version that a load of a statement has made; `None` while it is under way.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn outcome(&self, load: u64, snapshot: StatementId) -> Result<Option<u64>, PoolError> {
        let refused = |reason: &str| Err(PoolError::Refused { reason: reason.to_owned() });
        match self.outcomes.get(&load) {
            Some(LoadOutcome::Version(of, version)) if *of == snapshot => Ok(Some(*version)),
            Some(LoadOutcome::Failed(of, reason)) if *of == snapshot => {
                Err(PoolError::GivenUp { reason: reason.clone() })
            }
            Some(_) => refused("the load is one of another statement"),
            None if self.loads.contains_key(&load) || self.saving.contains_key(&load) => Ok(None),
            None => refused("the server does not know the load: it was restarted, or forgot it"),
        }
    }

    /// Has a version again that was saved before a restart; `bytes_of` tells the bytes of an
    /// extent's memory by its used ones. Nothing has been loaded or pinned yet.
    ///
    /// # Errors
    /// When it does not agree with this server or with another version; [`PoolError::Full`].
    pub fn restore(
        &mut self,
        version: SavedVersion,
        bytes_of: impl Fn(u32) -> u64,
    ) -> Result<(), PoolError> {
        let SavedVersion { load, snapshot, manifest, bytes, goes_on } = version;
        let extents: Vec<(ExtentId, u32)> = manifest.own_extents().collect();
        let is_strange = |number: u32| self.extents.contains_key(&number) || number == u32::MAX;
        let strange =
            extents.iter().any(|(id, _)| id.server != self.server || is_strange(id.number))
                || manifest.extents.iter().any(|(id, _)| self.has_elsewhere(*id));
        if strange
            || self.tables.contains_key(&manifest.table)
            || !self.know_again(&manifest.holders)
        {
            return Err(PoolError::Malformed { what: "version" });
        }
        let in_memory: u64 = extents.iter().map(|(_, used)| bytes_of(*used)).sum();
        let (needed, free) = (in_memory + counted(bytes.len()), self.bytes_max - self.bytes);
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        for (id, used) in extents {
            let (bytes, used) = (bytes_of(used), Some(used));
            self.extents.insert(id.number, Extent { bytes, used, load: None, versions: 0 });
            self.extents_made = self.extents_made.max(id.number + 1);
        }
        if !goes_on {
            self.remember(load, LoadOutcome::Version(snapshot, manifest.version));
        }
        self.publish(manifest, bytes);
        Ok(())
    }

    /// Numbers extents from this one on.
    pub fn skip_extents(&mut self, next: u32) {
        self.extents_made = self.extents_made.max(next);
    }

    /// The bytes of a table are lost, for this reason, which is the error of requests for it. The
    /// other servers that have parts of it, as far as that is known, keep their numbers: its files
    /// may be put back.
    pub fn set_damaged(&mut self, table: &str, reason: String, holders: &[ExtentHolder]) {
        // Where they do not agree with the other tables they are of no use.
        self.know_again(holders);
        self.damaged.insert(table.to_owned(), reason);
    }

    pub(super) fn damage_of(&self, table: &str) -> Option<PoolError> {
        let reason = self.damaged.get(table)?.clone();
        Some(PoolError::Damaged { table: table.to_owned(), reason })
    }
}
