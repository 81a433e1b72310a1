//! Loads: from the first extent to the version that appears.

mod aborts;
mod growing;
mod listed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::origins::check_origin;
use super::saving::{LoadOutcome, PreparedVersion};
use super::{ClientId, Effect, Extent, Home, counted, no_table};
use crate::access::{LoadMode, TableLoad};
use crate::error::PoolError;
use crate::manifest::{EXTENTS_MAX, HOLDERS_MAX, MANIFEST_BYTES_MAX, Manifest, STRIPS_MAX, Strip};
use crate::pointer::{BLOCK_ALIGN, ExtentId};
use crate::wire::{NAME_BYTES_MAX, StatementId, TABLES_MAX};

/// Bytes of an extent at most.
pub const EXTENT_BYTES_MAX: u32 = 256 << 20;

/// Loads under way at most.
pub(super) const LOADS_MAX: usize = 4096;

/// Writers of a load at most.
const WRITERS_MAX: u32 = 65_536;

/// The part of its bytes that the server of a table keeps from extents of loads that may go to
/// other servers: the lists of their blocks lie here, wherever the blocks do.
const LISTS_PART: u64 = 32;

const OUTSIDE: &str = "a block outside of what it has sealed";

/// A load under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LoadState {
    load: TableLoad,
    snapshot: StatementId,
    writers: u32,
    /// The clients that take part, by the name that each gave.
    clients: BTreeMap<ClientId, String>,
    /// By extent that is not sealed: the client that writes it.
    written_by: BTreeMap<u32, ClientId>,
    /// The extents that were sealed.
    sealed: BTreeSet<u32>,
    /// The other servers over which the load is spread.
    servers: BTreeSet<u16>,
    /// By extent of these that a strip has named and no version has: the end of the last block.
    elsewhere: BTreeMap<ExtentId, u32>,
    /// By writer: what it has sent of a commit whose last message has not come.
    arriving: BTreeMap<u32, Arriving>,
    /// By partition.
    strips: BTreeMap<u32, Vec<Strip>>,
    /// Strips that the next version does not have any more, with their partitions.
    replaced: Vec<(u32, Strip)>,
    count: usize,
    /// Bytes by which the definition and the strips count against the budget until the manifest
    /// does.
    counted: u64,
    /// The writers that have handed in strips since a version appeared, and go on.
    submitted: BTreeSet<u32>,
    /// The writers that have committed.
    committed: BTreeSet<u32>,
    /// Whether a version has appeared while writers go on.
    grows: bool,
}

impl LoadState {
    /// Blocks may lie on these servers, too.
    pub(super) fn distribute_over(&mut self, servers: &[u16]) {
        self.servers.extend(servers);
    }
}

/// A part of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Arriving {
    strips: Vec<(u32, Strip)>,
    replaced: Vec<(u32, Strip)>,
    bytes: u64,
}

/// The state of a writer behind its strips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It goes on.
    Continues,
    /// It has ended.
    Ends,
}

impl Home {
    /// Begins a load, or takes part in one that a node of the same statement has begun.
    ///
    /// # Errors
    /// When the table is there and must not be, or is not there and must be, or is another, and
    /// when somebody else loads it.
    pub fn begin(
        &mut self,
        client: ClientId,
        name: &str,
        load: TableLoad,
        snapshot: StatementId,
        writers: u32,
    ) -> Result<u64, PoolError> {
        let refused = |reason: String| Err(PoolError::Refused { reason });
        if writers == 0 || writers > WRITERS_MAX {
            return refused(format!("a load has 1 to {WRITERS_MAX} writers"));
        }
        if load.table.is_empty() || load.table.len() > NAME_BYTES_MAX {
            return refused(format!("a table has a name of 1 to {NAME_BYTES_MAX} bytes"));
        }
        let under_way = self.loads.iter_mut().find(|(_, of)| of.load.table == load.table);
        if let Some((number, of)) = under_way {
            // A node that began before another had made the table, or after: the mode may differ.
            let same = of.load.definition == load.definition && of.writers == writers;
            if of.snapshot == snapshot && same {
                of.clients.insert(client, name.into());
                return Ok(*number);
            }
            let by = of.clients.values().next().map_or("another client", String::as_str);
            return refused(format!("{by} loads table '{}' now", load.table));
        }
        if self.loads.len() >= LOADS_MAX {
            return refused(format!("{LOADS_MAX} loads are under way, as many as there may be"));
        }
        if self.is_saving(&load.table) {
            return refused(format!("a version of table '{}' is being saved", load.table));
        }
        if let Some(damaged) = self.damage_of(&load.table) {
            return Err(damaged);
        }
        self.check_table(&load)?;
        let (needed, free) = (load.definition.bytes(), self.bytes_max - self.bytes);
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        self.numbered += 1;
        let state = LoadState {
            load,
            snapshot,
            writers,
            clients: BTreeMap::from([(client, name.to_owned())]),
            written_by: BTreeMap::new(),
            sealed: BTreeSet::new(),
            servers: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            arriving: BTreeMap::new(),
            strips: BTreeMap::new(),
            replaced: vec![],
            count: 0,
            counted: needed,
            submitted: BTreeSet::new(),
            committed: BTreeSet::new(),
            grows: false,
        };
        self.loads.insert(self.numbered, state);
        Ok(self.numbered)
    }

    /// Whether the table of a load is there, if it has to be, and is the same.
    fn check_table(&self, load: &TableLoad) -> Result<(), PoolError> {
        match (load.mode, self.tables.get(&load.table).copied()) {
            (LoadMode::Create, None) => Ok(()),
            (LoadMode::Create, Some(_)) => {
                let detail = format!("the pool has a table '{}' already", load.table);
                Err(PoolError::Mismatch { detail })
            }
            (_, None) => Err(no_table(&load.table)),
            (_, Some(version)) => {
                let of = &self.versions[&(load.table.clone(), version)].manifest;
                if let Some(lost) = self.loss_of(of).filter(|_| load.mode == LoadMode::Append) {
                    return Err(lost);
                }
                check_origin(of, load)?;
                if of.definition != load.definition {
                    let detail =
                        format!("table '{}' of the pool has other columns or buckets", load.table);
                    return Err(PoolError::Mismatch { detail });
                }
                Ok(())
            }
        }
    }

    /// Sets an extent aside for a load.
    ///
    /// # Errors
    /// [`PoolError::Full`], and when the client does not take part in the load. Extents of a load
    /// that is spread leave some room for the lists of blocks.
    pub fn grant(&mut self, client: ClientId, load: u64, bytes: u32) -> Result<u32, PoolError> {
        let state = taking_part(&mut self.loads, client, load)?;
        check_count(state.written_by.len() + state.sealed.len())?;
        if !state.servers.is_empty() {
            let lists = self.bytes_max / LISTS_PART;
            let free = (self.bytes_max - self.bytes).saturating_sub(lists);
            if u64::from(bytes) > free {
                return Err(PoolError::Full { needed: bytes.into(), free });
            }
        }
        let number = self.reserve(load, bytes)?;
        if let Some(state) = self.loads.get_mut(&load) {
            state.written_by.insert(number, client);
        }
        Ok(number)
    }

    /// Takes the bytes of an extent of a load off those that are free.
    pub(super) fn reserve(&mut self, load: u64, bytes: u32) -> Result<u32, PoolError> {
        let free = self.bytes_max - self.bytes;
        if bytes == 0 || bytes > EXTENT_BYTES_MAX {
            let reason = format!("an extent has 1 to {EXTENT_BYTES_MAX} bytes");
            return Err(PoolError::Refused { reason });
        }
        if u64::from(bytes) > free {
            return Err(PoolError::Full { needed: bytes.into(), free });
        }
        if self.extents.len() + self.freeing.len() >= self.extents_max {
            let reason = format!(
                "the server has {} extents, as many as its limits of descriptors and mappings \
                 admit: raise `ulimit -n` and vm.max_map_count",
                self.extents_max
            );
            return Err(PoolError::Refused { reason });
        }
        let number = self.extents_made;
        self.extents_made += 1;
        self.bytes += u64::from(bytes);
        let extent = Extent { bytes: bytes.into(), used: None, load: Some(load), versions: 0 };
        self.extents.insert(number, extent);
        Ok(number)
    }

    /// The client will not write an extent any more; the server has seen to that.
    ///
    /// # Errors
    /// When the client does not write it, or it is shorter.
    pub fn seal(
        &mut self,
        client: ClientId,
        load: u64,
        extent: u32,
        used: u32,
    ) -> Result<(), PoolError> {
        if self.parts.contains_key(&(load, client)) {
            return self.seal_part(client, load, extent, used);
        }
        let state = taking_part(&mut self.loads, client, load)?;
        let of = self.extents.get_mut(&extent);
        match (state.written_by.get(&extent), of) {
            (Some(by), Some(of)) if *by == client && u64::from(used) <= of.bytes => {
                of.used = Some(used);
                state.written_by.remove(&extent);
                state.sealed.insert(extent);
                Ok(())
            }
            _ => Err(misuse("an extent that it does not write, or that is shorter")),
        }
    }

    /// Whether a client may seal an extent, before the server revokes its key.
    ///
    /// # Errors
    /// When it does not write it; [`PoolError::GivenUp`] when it takes no part in the load any
    /// more.
    pub fn check_seal(&self, client: ClientId, load: u64, extent: u32) -> Result<(), PoolError> {
        if self.writes_part(client, load, extent) {
            return Ok(());
        }
        let of = self.loads.get(&load).filter(|of| of.clients.contains_key(&client));
        if of.ok_or_else(ended)?.written_by.get(&extent) == Some(&client) {
            return Ok(());
        }
        Err(misuse("an extent that it does not write"))
    }

    /// Takes strips of a writer; with the last ones of the last writer the version appears, or is
    /// saved before it does ([`Home::outcome`] tells when). Gives its number when it is there.
    ///
    /// # Errors
    /// When a strip does not fit the table, or a block does not lie in a sealed extent of this
    /// load, and when the table was dropped meanwhile; [`PoolError::Full`] when there is no room
    /// for the manifest. The load is given up then.
    pub fn commit(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: Vec<(u32, Strip)>,
        last: bool,
    ) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        match self.take_strips(client, load, writer, strips) {
            Ok(()) if last => self.settle(load, writer, Then::Ends),
            Ok(()) => (Ok(None), vec![]),
            Err(error) => self.refuse_strips(client, load, error),
        }
    }

    /// Keeps strips of a writer until the last message of its commit.
    fn take_strips(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: Vec<(u32, Strip)>,
    ) -> Result<(), PoolError> {
        let server = self.server;
        let kept = self.kept_by_lists(load);
        let state = writing(&mut self.loads, client, load, writer)?;
        let partitions = state.load.definition.partitions();
        let mut elsewhere: BTreeMap<ExtentId, u32> = BTreeMap::new();
        for (partition, strip) in &strips {
            if *partition >= partitions {
                return Err(misuse("a partition that the table has not"));
            }
            if let Some(misfit) = strip.misfit(&state.load.definition) {
                return Err(misuse(misfit));
            }
            for block in listed::new_blocks(strip, &kept) {
                let ExtentId { server: of, number } = block.at.extent;
                if of != server && state.servers.contains(&of) {
                    // The other server says whether it is sealed, and so long, before it appears.
                    let end = block.at.offset.checked_add(block.bytes);
                    let end = end.ok_or_else(|| misuse(OUTSIDE))?;
                    let known = elsewhere.entry(block.at.extent).or_default();
                    *known = end.max(*known);
                    continue;
                }
                let used = self.extents.get(&number).and_then(|extent| extent.used);
                let end = u64::from(block.at.offset) + u64::from(block.bytes);
                let lies = of == server
                    && state.sealed.contains(&number)
                    && used.is_some_and(|used| end <= u64::from(used))
                    && (block.at.offset as usize).is_multiple_of(BLOCK_ALIGN);
                if !lies {
                    return Err(misuse(OUTSIDE));
                }
            }
        }
        self.arriving(client, load, writer, &strips)?.strips.extend(strips);
        if let Some(state) = self.loads.get_mut(&load) {
            for (extent, end) in elsewhere {
                let known = state.elsewhere.entry(extent).or_default();
                *known = end.max(*known);
            }
        }
        Ok(())
    }

    /// Counts strips of a message: their number to the load, and their bytes to the budget. Gives
    /// what the writer has sent before.
    fn arriving(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: &[(u32, Strip)],
    ) -> Result<&mut Arriving, PoolError> {
        let free = self.bytes_max - self.bytes;
        let state = writing(&mut self.loads, client, load, writer)?;
        if state.count + strips.len() > STRIPS_MAX {
            let reason = format!("a load names {STRIPS_MAX} strips at most");
            return Err(PoolError::Refused { reason });
        }
        let needed = strips.iter().map(|(_, strip)| 2 * strip.encoded_bytes()).sum();
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        state.counted += needed;
        state.count += strips.len();
        let arriving = state.arriving.entry(writer).or_default();
        arriving.bytes += needed;
        Ok(arriving)
    }

    /// The last message of a commit has come: a version appears if it was the one that was missing.
    fn settle(
        &mut self,
        load: u64,
        writer: u32,
        then: Then,
    ) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        let Some(state) = self.loads.get_mut(&load) else { return (Ok(None), vec![]) };
        let Arriving { strips, replaced, .. } = state.arriving.remove(&writer).unwrap_or_default();
        for (partition, strip) in strips {
            state.strips.entry(partition).or_default().push(strip);
        }
        state.replaced.extend(replaced);
        match then {
            Then::Continues => state.submitted.insert(writer),
            Then::Ends => state.committed.insert(writer),
        };
        self.go_on(load)
    }

    /// Publishes, or saves, the version of a load whose writers have all committed.
    fn complete(&mut self, load: u64) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        let Some(mut state) = self.loads.remove(&load) else {
            return (Err(misuse("no load")), vec![]);
        };
        self.bytes -= state.counted;
        let newest = self.tables.get(&state.load.table).copied();
        if let Some(newest) = newest.filter(|_| state.grows && state.has_nothing()) {
            // The version that appeared last has all of its rows.
            self.remember(load, LoadOutcome::Version(state.snapshot, newest));
            let unused: Vec<u32> =
                state.sealed.iter().chain(state.written_by.keys()).copied().collect();
            let effects = unused.into_iter().map(|number| self.free(number)).collect();
            return (Ok(Some(newest)), effects);
        }
        let prepared = self.prepare(&mut state);
        // Nothing is kept of a load whose version does not appear.
        let kept = |number: &u32| prepared.as_ref().is_ok_and(|of| of.own.contains(number));
        let unused = state.sealed.iter().filter(|number| !kept(number));
        let unused: Vec<u32> = unused.chain(state.written_by.keys()).copied().collect();
        let mut effects: Vec<Effect> = unused.into_iter().map(|number| self.free(number)).collect();
        let kept = |extent: &ExtentId| prepared.as_ref().is_ok_and(|of| of.has(*extent));
        let unused: Vec<ExtentId> =
            state.elsewhere.keys().filter(|extent| !kept(extent)).copied().collect();
        match prepared {
            Ok(prepared) => {
                let (version, of) = self.decide(load, prepared, &unused);
                effects.extend(of);
                (Ok(version), effects)
            }
            Err(error) => {
                effects.extend(self.discard(load, &unused));
                self.remember(load, LoadOutcome::Failed(state.snapshot, error.to_string()));
                (Err(error), effects)
            }
        }
    }

    /// Makes the next version of the strips of a load, if it may appear, and counts its bytes.
    fn prepare(&mut self, state: &mut LoadState) -> Result<PreparedVersion, PoolError> {
        let is_known = self.tables.contains_key(&state.load.table);
        if state.load.mode != LoadMode::Create && !is_known {
            return Err(no_table(&state.load.table));
        }
        let manifest = self.manifest_of(state)?;
        // Nobody would answer for what lay there.
        if let Some(lost) = self.loss_of(&manifest) {
            return Err(lost);
        }
        let bounds = [
            (manifest.strips.len(), STRIPS_MAX, "strips"),
            (manifest.extents.len(), EXTENTS_MAX, "extents"),
            (manifest.holders.len(), HOLDERS_MAX, "servers"),
        ];
        if let Some((_, most, what)) = bounds.into_iter().find(|(has, most, _)| has > most) {
            let table = &manifest.table;
            let reason = format!("table '{table}' would have more {what} than it may, {most}");
            return Err(PoolError::Refused { reason });
        }
        if self.tables.len() + self.saving.len() >= TABLES_MAX && !is_known {
            let reason = format!("the pool has {TABLES_MAX} tables, as many as there may be");
            return Err(PoolError::Refused { reason });
        }
        let bytes = manifest.encode();
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            let reason = format!("its manifest has more than {MANIFEST_BYTES_MAX} bytes");
            return Err(PoolError::Refused { reason });
        }
        let (needed, free) = (counted(bytes.len()), self.bytes_max - self.bytes);
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        let used = manifest.extents.iter().filter(|(extent, _)| extent.server == self.server);
        let used = used.map(|(extent, _)| extent.number);
        let own = used.filter(|number| state.sealed.contains(number)).collect();
        let is_new = |(extent, _): &&(ExtentId, u32)| state.elsewhere.contains_key(extent);
        let elsewhere = manifest.extents.iter().filter(is_new).copied().collect();
        let (manifest, bytes) = (Arc::new(manifest), Arc::new(bytes));
        let (snapshot, goes_on, waits) = (state.snapshot, false, BTreeSet::new());
        Ok(PreparedVersion { snapshot, manifest, bytes, own, elsewhere, waits, goes_on })
    }

    /// The next version: with [`LoadMode::Append`], the strips of the newest one come first in each
    /// partition, without those that are replaced.
    fn manifest_of(&self, state: &mut LoadState) -> Result<Manifest, PoolError> {
        let table = state.load.table.clone();
        let newest = self.tables.get(&table).map(|of| &self.versions[&(table.clone(), *of)]);
        let before = newest.filter(|_| state.load.mode == LoadMode::Append);
        if let Some(lost) = before.and_then(|before| self.loss_of(&before.manifest)) {
            return Err(lost);
        }
        let mut manifest = Manifest {
            version: self.next_version(&table),
            table,
            definition: state.load.definition.clone(),
            strips: vec![],
            partitions: vec![0],
            extents: before.map(|of| of.manifest.extents.clone()).unwrap_or_default(),
            holders: vec![],
            origin: state.load.origin.clone(),
        };
        let mut replaced: BTreeMap<u32, Vec<Strip>> = BTreeMap::new();
        for (partition, strip) in std::mem::take(&mut state.replaced) {
            replaced.entry(partition).or_default().push(strip);
        }
        let some_go = !replaced.is_empty();
        let new = state.strips.values().flatten().flat_map(|strip| &strip.blocks);
        for extent in listed::new_extents(&manifest, new) {
            // Others may have been published, and freed, since their strips came.
            let bytes = if extent.server == self.server {
                let sealed = state.sealed.contains(&extent.number);
                sealed.then(|| self.extents[&extent.number].used.unwrap_or_default())
            } else {
                // One that another version has would go with this one.
                state.elsewhere.get(&extent).copied().filter(|_| !self.has_elsewhere(extent))
            };
            manifest.extents.push((extent, bytes.ok_or_else(|| misuse(OUTSIDE))?));
        }
        for partition in 0..manifest.definition.partitions() as usize {
            let first = manifest.strips.len();
            if let Some(before) = before {
                let bounds = [partition, partition + 1].map(|at| before.manifest.partitions[at]);
                let [from, to] = bounds.map(|at| at as usize);
                manifest.strips.extend_from_slice(&before.manifest.strips[from..to]);
            }
            manifest.strips.extend(state.strips.remove(&(partition as u32)).unwrap_or_default());
            for gone in replaced.remove(&(partition as u32)).unwrap_or_default() {
                // Strips that are replaced are young.
                let at = manifest.strips[first..].iter().rposition(|strip| *strip == gone);
                let at = at.ok_or_else(|| misuse("a strip to replace that the table has not"))?;
                manifest.strips.remove(first + at);
            }
            manifest.partitions.push(manifest.strips.len() as u32);
        }
        if some_go {
            let blocks = manifest.strips.iter().flat_map(|strip| &strip.blocks);
            let blocks = blocks.filter(|block| block.bytes > 0);
            let used: BTreeSet<ExtentId> = blocks.map(|block| block.at.extent).collect();
            manifest.extents.retain(|(extent, _)| used.contains(extent));
        }
        manifest.holders = self.holders_of(&manifest.extents);
        Ok(manifest)
    }
}

/// Refuses one extent more than a load may have.
pub(super) fn check_count(extents: usize) -> Result<(), PoolError> {
    if extents < EXTENTS_MAX {
        return Ok(());
    }
    Err(PoolError::Refused { reason: format!("a load has {EXTENTS_MAX} extents at most") })
}

/// The load, if the client takes part in it and the writer has not committed.
fn writing(
    loads: &mut BTreeMap<u64, LoadState>,
    client: ClientId,
    load: u64,
    writer: u32,
) -> Result<&mut LoadState, PoolError> {
    let state = taking_part(loads, client, load)?;
    if writer >= state.writers || state.committed.contains(&writer) {
        return Err(misuse("a writer that is not one, or has committed"));
    }
    Ok(state)
}

pub(super) fn taking_part(
    loads: &mut BTreeMap<u64, LoadState>,
    client: ClientId,
    load: u64,
) -> Result<&mut LoadState, PoolError> {
    let of = loads.get_mut(&load).filter(|of| of.clients.contains_key(&client));
    of.ok_or_else(ended)
}

/// The error of a request of a load that is not there, or not of this client. Its outcome tells
/// more, to who knows the statement.
fn ended() -> PoolError {
    PoolError::GivenUp { reason: "it is not under way any more".into() }
}

/// A client has named something that it may not.
pub(super) fn misuse(what: &str) -> PoolError {
    PoolError::Refused { reason: format!("the load names {what}") }
}
