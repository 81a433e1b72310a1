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
//! * An extent is freed once, when no kept version has it and no load may write it; its number is
//!   never used again.
//! * All nodes of a statement that pin the newest version get the same one.
//! * A client that is silent for [`LEASE_NS`] is closed before anything of it is freed.

mod loads;
mod pins;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::TableSummary;
use crate::error::PoolError;
use crate::manifest::Manifest;
use crate::wire::{Stat, StatementId, TABLES_MAX};

pub use loads::EXTENT_BYTES_MAX;
use loads::LoadState;
pub use pins::Pin;
use pins::{Lease, Memo};

/// A client that says nothing for this long has no leases any more, in ns.
pub const LEASE_NS: u64 = 10_000_000_000;

/// Leases of a client at most.
pub const LEASES_MAX: usize = 65_536;

/// The number of a client on its server.
pub type ClientId = u64;

/// An action of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nobody may write the extent, nobody is served reads of it, and its memory is given back.
    Free(u32),
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
    /// Kept versions whose blocks lie here.
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
    lease_ns: u64,
    /// Bytes of extents and manifests.
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
    loads: BTreeMap<u64, LoadState>,
    leases: BTreeMap<u64, Lease>,
    memos: BTreeMap<(StatementId, String), Memo>,
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
            lease_ns: LEASE_NS,
            bytes: 0,
            tables: BTreeMap::new(),
            dropped: BTreeMap::new(),
            versions: BTreeMap::new(),
            extents: BTreeMap::new(),
            extents_made: 0,
            loads: BTreeMap::new(),
            leases: BTreeMap::new(),
            memos: BTreeMap::new(),
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
    /// its leases end, and its loads are given up.
    pub fn closed(&mut self, now_ns: u64, client: ClientId) -> Vec<Effect> {
        self.clients.remove(&client);
        self.closing.remove(&client);
        let mut effects = self.abort_loads_of(client);
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
            let (mut extents, mut leases, mut bytes) = (BTreeSet::new(), 0, 0);
            for version in versions {
                extents.extend(version.manifest.extents.iter().map(|(extent, _)| extent.number));
                leases += version.leases;
                bytes += version.bytes.len() as u64;
            }
            bytes += extents.iter().map(|number| self.extents[number].bytes).sum::<u64>();
            let newest = &self.versions[&(name.clone(), *version)];
            let (name, rows) = (name.clone(), newest.manifest.rows());
            TableSummary { name, version: *version, rows, bytes, leases }
        };
        self.tables.iter().map(summary).collect()
    }

    /// Counts, without the server's name and its reads.
    pub fn stat(&self) -> Stat {
        Stat {
            bytes_max: self.bytes_max,
            bytes: self.bytes,
            extents: self.extents.len() as u32,
            tables: self.tables.len() as u32,
            leases: self.leases.len() as u32,
            loads: self.loads.len() as u32,
            clients: self.clients.len() as u32,
            ..Stat::default()
        }
    }

    /// Drops a table: nobody pins it any more. Versions that are pinned stay as long as they are.
    ///
    /// # Errors
    /// [`PoolError::NoTable`].
    pub fn drop_table(&mut self, table: &str) -> Result<Vec<Effect>, PoolError> {
        let version = self.tables.remove(table).ok_or_else(|| no_table(table))?;
        if self.dropped.len() >= TABLES_MAX {
            self.dropped.pop_first();
        }
        self.dropped.insert(table.into(), version);
        Ok(self.outdate(table, version))
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

    /// Makes a version the newest one of its table.
    fn publish(&mut self, manifest: Manifest) -> Result<Vec<Effect>, PoolError> {
        let table = manifest.table.clone();
        if self.tables.len() >= TABLES_MAX && !self.tables.contains_key(&table) {
            let reason = format!("the pool has {TABLES_MAX} tables, as many as there may be");
            return Err(PoolError::Refused { reason });
        }
        let bytes = Arc::new(manifest.encode());
        let free = self.bytes_max - self.bytes;
        if bytes.len() as u64 > free {
            return Err(PoolError::Full { needed: bytes.len() as u64, free });
        }
        self.bytes += bytes.len() as u64;
        for (extent, _) in &manifest.extents {
            let extent = self.extents.get_mut(&extent.number).expect("a load checked it");
            (extent.versions, extent.load) = (extent.versions + 1, None);
        }
        let number = manifest.version;
        let manifest = Arc::new(manifest);
        let version = Version { manifest, bytes, pins: 0, leases: 0, newest: true };
        self.versions.insert((table.clone(), number), version);
        self.dropped.remove(&table);
        let before = self.tables.insert(table.clone(), number);
        Ok(before.map_or_else(Vec::new, |before| self.outdate(&table, before)))
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
        self.bytes -= version.bytes.len() as u64;
        let mut effects = vec![];
        for (extent, _) in &version.manifest.extents {
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
            self.bytes -= extent.bytes;
        }
        Effect::Free(number)
    }
}

fn no_table(table: &str) -> PoolError {
    PoolError::NoTable { table: table.into(), nearest: None }
}
