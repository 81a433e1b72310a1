//! The versions of tables, the clients that use them, and the memory that is freed: the part of a
//! memory server that decides, without memory, sockets or a clock.
//!
//! ```text
//!   begin ─▶ grant, grant, … ─▶ seal, seal, … ─▶ commit of every writer ─▶ the version is there
//!   pin ─▶ (read) ─▶ unpin      a version that is not the newest goes with its last pin
//! ```
//!
//! Invariants (I1, I4):
//! * A version appears when each of its blocks lies in a sealed extent of its load: nobody writes
//!   it any more.
//! * A version that is pinned stays, though the table was loaded anew or dropped meanwhile.
//! * A version with extents on other servers appears when each of these holds them for this one;
//!   they are released when no kept version has them.
//! * An extent is freed once, when no kept version has it and no load may write it; its number is
//!   never used again. Its bytes count until the server has taken its memory back.
//! * Of a server that saves, a version appears when it was saved, and before that the part of each
//!   other server was. What was decided is told to whoever asks again, for as long as it is among
//!   the last [`OUTCOMES_MAX`].
//! * All nodes of a statement that pin the newest version get the same one.
//! * One client at a time looks at the origin of a table that is a cache.
//! * A client that is silent for [`LEASE_NS`] is closed before anything of it is freed.

mod distribution;
mod introductions;
mod loads;
mod origins;
mod owners;
mod parts;
mod pins;
mod saving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::access::TableSummary;
use crate::error::PoolError;
use crate::manifest::Manifest;
use crate::pointer::ExtentId;
use crate::wire::{Stat, StatementId, TABLES_MAX};

use distribution::OtherServer;
pub use distribution::{HoldRequest, PEERS_MAX, PeerId};
pub use introductions::Introduction;
pub use loads::EXTENT_BYTES_MAX;
use loads::LoadState;
use origins::OriginState;
pub use origins::{LookRequest, RETRY_NS};
use owners::{HeldFor, PartOwner};
pub use owners::{HeldPart, OWNERS_MAX, PART_EXTENTS_MAX};
use parts::Part;
pub use pins::Pin;
use pins::{Lease, Memo};
use saving::PreparedVersion;
pub use saving::{LoadOutcome, OUTCOMES_MAX, SavedVersion};

/// A client that says nothing for this long has no leases any more, in ns.
pub const LEASE_NS: u64 = 10_000_000_000;

/// Leases of a client at most.
pub const LEASES_MAX: usize = 4096;

/// The number of a client on its server.
pub type ClientId = u64;

/// An action of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nobody may write the extent, nobody is served reads of it, and its memory is given back;
    /// then tells [`Home::freed`].
    Free(u32),
    /// Saves a version, and then tells [`Home::saved`].
    Save(Box<SavedVersion>),
    /// Asks another server to hold extents, and then tells [`Home::held`]; the requests to one
    /// server are made in order.
    Hold(Box<HoldRequest>),
    /// Has another server release extents, once all that was to be saved before is on the disk.
    Release(PeerId, Vec<u32>),
    /// Connects with another server, in place of a connection that there may be, and claims extents
    /// there, once all that was to be saved before is on the disk; then tells
    /// [`Home::introduced`], and [`Home::peer_lost`] when the connection has ended.
    Introduce(Box<Introduction>),
    /// Saves what is held for another server, in place of what was saved before, and then answers
    /// the client that waits for it.
    SavePart(Box<HeldPart>),
    /// Ends the connections of a client, and then tells [`Home::closed`].
    Close(ClientId, &'static str),
}

/// An extent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Extent {
    bytes: u64,
    /// Sealed: the bytes that are used. Not yet: nothing.
    used: Option<u32>,
    /// The load that writes it, until its version appears.
    load: Option<u64>,
    /// Kept versions whose blocks lie here, and other servers that hold it.
    versions: u32,
}

/// A version that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Version {
    manifest: Arc<Manifest>,
    bytes: Arc<Vec<u8>>,
    /// Leases, and statements whose nodes may still ask for it.
    pins: u32,
    leases: u32,
    /// Whether it is the newest of a table that was not dropped.
    newest: bool,
}

/// The tables of a memory server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Home {
    server: u16,
    bytes_max: u64,
    extents_max: usize,
    lease_ns: u64,
    /// Whether versions are saved before they appear.
    saves: bool,
    /// See [`ServerPlace::identity`](crate::wire::ServerPlace::identity).
    identity: u64,
    /// Bytes of extents, manifests and definitions.
    bytes: u64,
    /// By name: the newest version.
    tables: BTreeMap<String, u64>,
    /// The last version of tables that were dropped: who makes one of the same name goes on
    /// counting, so that a number means one version.
    dropped: BTreeMap<String, u64>,
    /// By table and number.
    versions: BTreeMap<(String, u64), Version>,
    extents: BTreeMap<u32, Extent>,
    extents_made: u32,
    /// Extents whose memory has not come back, with their bytes.
    freeing: BTreeMap<u32, u64>,
    loads: BTreeMap<u64, LoadState>,
    /// By load of a table that another server has, and client: its extents on this server.
    parts: BTreeMap<(u64, ClientId), Part>,
    /// By the server that has their tables: the extents that are held for it.
    held_for: BTreeMap<HeldFor, BTreeSet<u32>>,
    /// By identity: the servers for which extents are saved, or that have introduced themselves.
    owners: BTreeMap<u64, PartOwner>,
    /// The other servers that have extents of tables, that of the number 1 first; none where a
    /// server that was restarted does not use the number.
    others: Vec<Option<OtherServer>>,
    /// The number of the last connection with another server to which this one has introduced
    /// itself.
    links: u64,
    /// By extent of another server: the kept versions whose blocks lie there.
    elsewhere: BTreeMap<ExtentId, u32>,
    /// Versions of loads that are over, which are being saved.
    saving: BTreeMap<u64, PreparedVersion>,
    /// By load: what has become of it.
    outcomes: BTreeMap<u64, LoadOutcome>,
    /// The loads of these, in the order in which they ended.
    ended: VecDeque<u64>,
    /// Tables whose bytes were lost, by name, with the reason.
    damaged: BTreeMap<String, String>,
    leases: BTreeMap<u64, Lease>,
    /// By client: how many leases it has.
    held: BTreeMap<ClientId, usize>,
    memos: BTreeMap<(StatementId, String), Memo>,
    /// By table that is a cache: the looks at its origin.
    origins: BTreeMap<String, OriginState>,
    /// Loads and leases that were numbered.
    numbered: u64,
    /// By client, when it last sent a message.
    clients: BTreeMap<ClientId, u64>,
    /// Clients whose end was asked for.
    closing: BTreeSet<ClientId>,
}

impl Home {
    /// Without tables, of a server that may hold this many bytes.
    pub fn new(server: u16, bytes_max: u64) -> Self {
        Self {
            server,
            bytes_max,
            extents_max: usize::MAX,
            lease_ns: LEASE_NS,
            saves: false,
            identity: 0,
            bytes: 0,
            tables: BTreeMap::new(),
            dropped: BTreeMap::new(),
            versions: BTreeMap::new(),
            extents: BTreeMap::new(),
            extents_made: 0,
            freeing: BTreeMap::new(),
            loads: BTreeMap::new(),
            parts: BTreeMap::new(),
            held_for: BTreeMap::new(),
            owners: BTreeMap::new(),
            others: Vec::new(),
            links: 0,
            elsewhere: BTreeMap::new(),
            saving: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            ended: VecDeque::new(),
            damaged: BTreeMap::new(),
            leases: BTreeMap::new(),
            held: BTreeMap::new(),
            memos: BTreeMap::new(),
            origins: BTreeMap::new(),
            numbered: 0,
            clients: BTreeMap::new(),
            closing: BTreeSet::new(),
        }
    }

    /// With another time than [`LEASE_NS`].
    #[must_use]
    pub fn with_lease_ns(self, lease_ns: u64) -> Self {
        Self { lease_ns, ..self }
    }

    /// With this many extents at most, for a system that gives no more.
    #[must_use]
    pub fn with_extents_max(self, extents_max: usize) -> Self {
        Self { extents_max, ..self }
    }

    /// Of a server that saves versions before they appear.
    #[must_use]
    pub fn with_saving(self) -> Self {
        Self { saves: true, ..self }
    }

    /// With this identity, by which other servers know it, of a directory that has had so many
    /// starts.
    #[must_use]
    pub fn with_identity(self, identity: u64, starts: u32) -> Self {
        Self { identity, links: u64::from(starts) << 32, ..self }
    }

    /// Numbers loads and leases from `incarnation << 32` on, so that those of a server that was
    /// restarted are not taken for those before.
    #[must_use]
    pub fn with_incarnation(self, incarnation: u32) -> Self {
        Self { numbered: u64::from(incarnation) << 32, ..self }
    }

    /// A client has sent a message: its leases last from now on.
    pub fn renew(&mut self, now_ns: u64, client: ClientId) {
        self.clients.insert(client, now_ns);
    }

    /// Lets time pass: clients that are silent are closed, and versions are freed that only a
    /// statement's nodes could have asked for.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Effect> {
        let mut effects = self.forget_memos(now_ns);
        for (client, last) in &self.clients {
            if now_ns.saturating_sub(*last) >= self.lease_ns && self.closing.insert(*client) {
                effects.push(Effect::Close(*client, "it was silent for longer than a lease lasts"));
            }
        }
        effects
    }

    /// The connections of a client have ended, and nothing that it posted has an effect any more:
    /// its leases end, its loads are given up, and what is held for it is released.
    pub fn closed(&mut self, now_ns: u64, client: ClientId) -> Vec<Effect> {
        self.clients.remove(&client);
        self.closing.remove(&client);
        let mut effects = self.abort_loads_of(client);
        effects.extend(self.end_parts_of(client));
        self.end_looks_of(client);
        let of = |(number, lease): (&u64, &Lease)| (lease.client == client).then_some(*number);
        let leases: Vec<u64> = self.leases.iter().filter_map(of).collect();
        for lease in leases {
            effects.extend(self.end_lease(now_ns, lease));
        }
        effects
    }

    /// The tables, by name.
    pub fn tables(&self) -> Vec<TableSummary> {
        let summary = |(name, version): (&String, &u64)| {
            let versions = self.versions_of(name);
            let (mut extents, mut leases, mut bytes) = (BTreeMap::new(), 0, 0);
            for version in versions {
                extents.extend(version.manifest.extents.iter().copied());
                leases += version.leases;
                bytes += counted(version.bytes.len());
            }
            // Of other servers' extents their used bytes are known.
            let in_memory = |(extent, used): (&ExtentId, &u32)| {
                let here = extent.server == self.server;
                if here { self.extents[&extent.number].bytes } else { u64::from(*used) }
            };
            bytes += extents.iter().map(in_memory).sum::<u64>();
            let newest = &self.versions[&(name.clone(), *version)].manifest;
            let (name, rows) = (name.clone(), newest.rows());
            let damaged = self.loss_of(newest).is_some();
            TableSummary { name, version: *version, rows, bytes, leases, damaged }
        };
        let damaged = |name: &String| TableSummary {
            name: name.clone(),
            version: 0,
            rows: 0,
            bytes: 0,
            leases: 0,
            damaged: true,
        };
        self.tables.iter().map(summary).chain(self.damaged.keys().map(damaged)).collect()
    }

    /// Counts, without the server's name and its reads.
    pub fn stat(&self) -> Stat {
        Stat {
            bytes_max: self.bytes_max,
            bytes: self.bytes,
            extents: self.extents.len() as u32,
            tables: self.tables.len() as u32,
            versions: self.versions.len() as u32,
            damaged: self.damaged.len() as u32,
            leases: self.leases.len() as u32,
            loads: (self.loads.len() + self.saving.len()) as u32,
            clients: self.clients.len() as u32,
            ..Stat::default()
        }
    }

    /// Drops a table: nobody pins it any more. Versions that are pinned stay as long as they are.
    ///
    /// # Errors
    /// [`PoolError::NoTable`], and while a version of it is being saved.
    pub fn drop_table(&mut self, table: &str) -> Result<Vec<Effect>, PoolError> {
        if self.damaged.remove(table).is_some() {
            return Ok(self.claim_again());
        }
        if self.is_saving(table) {
            let reason = format!("a version of table '{table}' is being saved");
            return Err(PoolError::Refused { reason });
        }
        let version = self.tables.remove(table).ok_or_else(|| no_table(table))?;
        if self.dropped.len() >= TABLES_MAX {
            self.dropped.pop_first();
        }
        self.dropped.insert(table.into(), version);
        Ok(self.outdate(table, version))
    }

    /// The memory of an extent that was to be freed has come back.
    pub fn freed(&mut self, extent: u32) {
        self.bytes -= self.freeing.remove(&extent).unwrap_or_default();
    }

    /// Whether memory is on its way back.
    pub fn is_freeing(&self) -> bool {
        !self.freeing.is_empty()
    }

    /// The bytes of an extent that are sealed and published, for its keys.
    pub fn published(&self, extent: u32) -> Option<u32> {
        let extent = self.extents.get(&extent)?;
        (extent.versions > 0).then_some(extent.used).flatten()
    }

    fn versions_of(&self, table: &str) -> impl Iterator<Item = &Version> {
        let range = (table.to_owned(), 0)..=(table.to_owned(), u64::MAX);
        self.versions.range(range).map(|(_, version)| version)
    }

    /// The number of the next version of a table.
    fn next_version(&self, table: &str) -> u64 {
        let before = self.tables.get(table).or_else(|| self.dropped.get(table));
        before.map_or(1, |before| before + 1)
    }

    /// Makes a version the newest one of its table. Its bytes are counted already.
    fn publish(&mut self, manifest: Arc<Manifest>, bytes: Arc<Vec<u8>>) -> Vec<Effect> {
        for (extent, _) in &manifest.extents {
            if extent.server != self.server {
                *self.elsewhere.entry(*extent).or_default() += 1;
                continue;
            }
            let extent = self.extents.get_mut(&extent.number).expect("a load checked it");
            (extent.versions, extent.load) = (extent.versions + 1, None);
        }
        let (table, number) = (manifest.table.clone(), manifest.version);
        let version = Version { manifest, bytes, pins: 0, leases: 0, newest: true };
        self.versions.insert((table.clone(), number), version);
        self.dropped.remove(&table);
        let before = self.tables.insert(table.clone(), number);
        before.map_or_else(Vec::new, |before| self.outdate(&table, before))
    }

    /// A version is not the newest any more.
    fn outdate(&mut self, table: &str, number: u64) -> Vec<Effect> {
        if let Some(version) = self.versions.get_mut(&(table.to_owned(), number)) {
            version.newest = false;
        }
        self.forget_unused(table, number)
    }

    /// Lets a version go if nobody can ask for it.
    fn forget_unused(&mut self, table: &str, number: u64) -> Vec<Effect> {
        let at = (table.to_owned(), number);
        let unused = |version: &Version| !version.newest && version.pins == 0;
        if !self.versions.get(&at).is_some_and(unused) {
            return vec![];
        }
        let Some(version) = self.versions.remove(&at) else { return vec![] };
        self.bytes -= counted(version.bytes.len());
        let mut effects = vec![];
        let here = self.server;
        let there = version.manifest.extents.iter().filter(|(of, _)| of.server != here);
        effects.extend(self.release_elsewhere(there.map(|(extent, _)| *extent)));
        for (extent, _) in &version.manifest.extents {
            if extent.server != self.server {
                continue;
            }
            let Some(of) = self.extents.get_mut(&extent.number) else { continue };
            of.versions -= 1;
            if of.versions == 0 {
                effects.push(self.free(extent.number));
            }
        }
        effects
    }

    fn free(&mut self, number: u32) -> Effect {
        if let Some(extent) = self.extents.remove(&number) {
            self.freeing.insert(number, extent.bytes);
        }
        Effect::Free(number)
    }
}

/// The bytes by which a manifest of this many bytes counts against the budget: the server has it
/// encoded and decoded.
fn counted(encoded: usize) -> u64 {
    2 * encoded as u64
}

fn no_table(table: &str) -> PoolError {
    PoolError::NoTable { table: table.into(), nearest: None }
}
