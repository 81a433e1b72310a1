//! Loads: from the first extent to the version that appears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::saving::{Outcome, PreparedVersion};
use super::{ClientId, Effect, Extent, Home, counted, no_table};
use crate::access::{LoadMode, TableLoad};
use crate::error::PoolError;
use crate::manifest::{EXTENTS_MAX, MANIFEST_BYTES_MAX, Manifest, STRIPS_MAX, Strip};
use crate::pointer::{BLOCK_ALIGN, ExtentId};
use crate::wire::{NAME_BYTES_MAX, StatementId, TABLES_MAX};

/// Bytes of an extent at most.
pub const EXTENT_BYTES_MAX: u32 = 256 << 20;

/// Loads under way at most.
const LOADS_MAX: usize = 4096;

/// Writers of a load at most.
const WRITERS_MAX: u32 = 65_536;

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
    /// By partition.
    strips: BTreeMap<u32, Vec<Strip>>,
    count: usize,
    /// Bytes by which the definition and the strips count against the budget until the manifest
    /// does.
    counted: u64,
    /// The writers that have committed.
    committed: BTreeSet<u32>,
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
        let newest = self.tables.get(&load.table).copied();
        match (load.mode, newest) {
            (LoadMode::Create, None) => {}
            (LoadMode::Create, Some(_)) => {
                let detail = format!("the pool has a table '{}' already", load.table);
                return Err(PoolError::Mismatch { detail });
            }
            (_, None) => return Err(no_table(&load.table)),
            (_, Some(version)) => {
                let of = &self.versions[&(load.table.clone(), version)].manifest;
                if of.definition != load.definition {
                    let detail =
                        format!("table '{}' of the pool has other columns or buckets", load.table);
                    return Err(PoolError::Mismatch { detail });
                }
            }
        }
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
            strips: BTreeMap::new(),
            count: 0,
            counted: needed,
            committed: BTreeSet::new(),
        };
        self.loads.insert(self.numbered, state);
        Ok(self.numbered)
    }

    /// Sets an extent aside for a load.
    ///
    /// # Errors
    /// [`PoolError::Full`], and when the client does not take part in the load.
    pub fn grant(&mut self, client: ClientId, load: u64, bytes: u32) -> Result<u32, PoolError> {
        let free = self.bytes_max - self.bytes;
        let state = taking_part(&mut self.loads, client, load)?;
        if bytes == 0 || bytes > EXTENT_BYTES_MAX {
            let reason = format!("an extent has 1 to {EXTENT_BYTES_MAX} bytes");
            return Err(PoolError::Refused { reason });
        }
        if state.written_by.len() + state.sealed.len() >= EXTENTS_MAX {
            let reason = format!("a load has {EXTENTS_MAX} extents at most");
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
        state.written_by.insert(number, client);
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
    pub fn may_seal(&self, client: ClientId, load: u64, extent: u32) -> bool {
        let writes = |of: &LoadState| of.written_by.get(&extent) == Some(&client);
        self.loads.get(&load).is_some_and(writes)
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
        match self.take_strips(client, load, writer, strips, last) {
            Ok(true) => self.complete(load),
            Ok(false) => (Ok(None), vec![]),
            Err(error) => (Err(error), self.abort(client, load)),
        }
    }

    /// Whether all writers have committed now.
    fn take_strips(
        &mut self,
        client: ClientId,
        load: u64,
        writer: u32,
        strips: Vec<(u32, Strip)>,
        last: bool,
    ) -> Result<bool, PoolError> {
        let (server, free) = (self.server, self.bytes_max - self.bytes);
        let state = taking_part(&mut self.loads, client, load)?;
        if writer >= state.writers || state.committed.contains(&writer) {
            return Err(misuse("a writer that is not one, or has committed"));
        }
        if state.count + strips.len() > STRIPS_MAX {
            return Err(misuse("more strips than a version may have"));
        }
        let partitions = state.load.definition.partitions();
        for (partition, strip) in &strips {
            if *partition >= partitions {
                return Err(misuse("a partition that the table has not"));
            }
            if let Some(misfit) = strip.misfit(&state.load.definition) {
                return Err(misuse(misfit));
            }
            for block in strip.blocks.iter().filter(|block| block.bytes > 0) {
                let ExtentId { server: of, number } = block.at.extent;
                let used = self.extents.get(&number).and_then(|extent| extent.used);
                let end = u64::from(block.at.offset) + u64::from(block.bytes);
                let lies = of == server
                    && state.sealed.contains(&number)
                    && used.is_some_and(|used| end <= u64::from(used))
                    && (block.at.offset as usize).is_multiple_of(BLOCK_ALIGN);
                if !lies {
                    return Err(misuse("a block outside of what it has sealed"));
                }
            }
        }
        let needed = strips.iter().map(|(_, strip)| 2 * strip.encoded_bytes()).sum();
        if needed > free {
            return Err(PoolError::Full { needed, free });
        }
        self.bytes += needed;
        state.counted += needed;
        state.count += strips.len();
        for (partition, strip) in strips {
            state.strips.entry(partition).or_default().push(strip);
        }
        if last {
            state.committed.insert(writer);
        }
        Ok(state.committed.len() == state.writers as usize)
    }

    /// Publishes, or saves, the version of a load whose writers have all committed.
    fn complete(&mut self, load: u64) -> (Result<Option<u64>, PoolError>, Vec<Effect>) {
        let Some(mut state) = self.loads.remove(&load) else {
            return (Err(misuse("no load")), vec![]);
        };
        self.bytes -= state.counted;
        let manifest = self.manifest_of(&mut state);
        let used: BTreeSet<u32> =
            manifest.extents.iter().map(|(extent, _)| extent.number).collect();
        let prepared = self.prepare(&state, manifest);
        // Of a load whose version does not appear, nothing is kept.
        let kept = |number: &u32| prepared.is_ok() && used.contains(number);
        let unused = state.sealed.iter().filter(|number| !kept(number));
        let unused: Vec<u32> = unused.chain(state.written_by.keys()).copied().collect();
        let mut effects: Vec<Effect> = unused.into_iter().map(|number| self.free(number)).collect();
        match prepared {
            Ok(prepared) => {
                let (version, of) = self.decide(load, prepared);
                effects.extend(of);
                (Ok(version), effects)
            }
            Err(error) => {
                self.remember(load, Outcome::Failed(state.snapshot, error.to_string()));
                (Err(error), effects)
            }
        }
    }

    /// Checks that a version may appear, and counts its bytes.
    fn prepare(
        &mut self,
        state: &LoadState,
        manifest: Manifest,
    ) -> Result<PreparedVersion, PoolError> {
        let is_known = self.tables.contains_key(&manifest.table);
        if state.load.mode != LoadMode::Create && !is_known {
            return Err(no_table(&manifest.table));
        }
        if manifest.strips.len() > STRIPS_MAX || manifest.extents.len() > EXTENTS_MAX {
            return Err(misuse("more strips or extents than a version may have"));
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
        let own = state.sealed.iter().copied().collect();
        let (manifest, bytes) = (Arc::new(manifest), Arc::new(bytes));
        Ok(PreparedVersion { snapshot: state.snapshot, manifest, bytes, own })
    }

    /// The next version: with [`LoadMode::Append`], the strips of the newest one come first in each
    /// partition.
    fn manifest_of(&self, state: &mut LoadState) -> Manifest {
        let table = state.load.table.clone();
        let newest = self.tables.get(&table).map(|of| &self.versions[&(table.clone(), *of)]);
        let before = newest.filter(|_| state.load.mode == LoadMode::Append);
        let mut manifest = Manifest {
            version: self.next_version(&table),
            table,
            definition: state.load.definition.clone(),
            strips: vec![],
            partitions: vec![0],
            extents: before.map(|of| of.manifest.extents.clone()).unwrap_or_default(),
        };
        let new = state.strips.values().flatten().flat_map(|strip| &strip.blocks);
        let used: BTreeSet<u32> =
            new.filter(|of| of.bytes > 0).map(|of| of.at.extent.number).collect();
        for number in used {
            let bytes = self.extents[&number].used.unwrap_or_default();
            manifest.extents.push((ExtentId { server: self.server, number }, bytes));
        }
        for partition in 0..manifest.definition.partitions() as usize {
            if let Some(before) = before {
                let bounds = [partition, partition + 1].map(|at| before.manifest.partitions[at]);
                let [from, to] = bounds.map(|at| at as usize);
                manifest.strips.extend_from_slice(&before.manifest.strips[from..to]);
            }
            manifest.strips.extend(state.strips.remove(&(partition as u32)).unwrap_or_default());
            manifest.partitions.push(manifest.strips.len() as u32);
        }
        manifest
    }

    /// A client gives a load up, for all that take part.
    pub fn abort(&mut self, client: ClientId, load: u64) -> Vec<Effect> {
        match self.loads.get(&load) {
            Some(of) if of.clients.contains_key(&client) => self.give_up(load),
            _ => vec![],
        }
    }

    pub(super) fn abort_loads_of(&mut self, client: ClientId) -> Vec<Effect> {
        let of =
            |(number, of): (&u64, &LoadState)| of.clients.contains_key(&client).then_some(*number);
        let loads: Vec<u64> = self.loads.iter().filter_map(of).collect();
        loads.into_iter().flat_map(|load| self.give_up(load)).collect()
    }

    fn give_up(&mut self, load: u64) -> Vec<Effect> {
        let Some(state) = self.loads.remove(&load) else { return vec![] };
        let reason = "it was given up, since one of its nodes has ended".to_owned();
        self.remember(load, Outcome::Failed(state.snapshot, reason));
        self.bytes -= state.counted;
        let extents = state.sealed.iter().chain(state.written_by.keys());
        extents.map(|number| self.free(*number)).collect()
    }
}

fn taking_part(
    loads: &mut BTreeMap<u64, LoadState>,
    client: ClientId,
    load: u64,
) -> Result<&mut LoadState, PoolError> {
    let of = loads.get_mut(&load).filter(|of| of.clients.contains_key(&client));
    of.ok_or_else(|| PoolError::Refused {
        reason: "the load was given up, since one of its nodes has ended".into(),
    })
}

/// A client has named something that it may not.
fn misuse(what: &str) -> PoolError {
    PoolError::Refused { reason: format!("the load names {what}") }
}
