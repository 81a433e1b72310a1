//! The client of a pool: what a session reads and loads its tables by.
//!
//! ```text
//!   pin, begin, commit, … ─ call ─▶ Remote ══ control ══ memory server     any thread, and waits
//!   want, write           ─ task ─▶ Worker ══ fabric  ══ memory server     one thread, never waits
//! ```
//!
//! Where a server's memory is mapped, readers read it in place and ask nobody. The name of a table
//! decides which server has it: its versions, its leases, and the first of its blocks. The other
//! blocks are spread over all servers of the pool.

mod connections;
mod load;
mod manifests;
mod placement;
mod reader;
mod remote;
mod transfer;
mod worker;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use connectors::pool::is_index_of;
use pool::PoolError;
use pool::access::{
    At, Loading, LookOutcome, OriginLook, Pinned, PoolAccess, TableLoad, TableSummary,
};
use pool::manifest::{MANIFEST_BYTES_MAX, Manifest};
use pool::pointer::ExtentId;
use pool::wire::{
    ClientRequest, MANIFEST_PIECE_BYTES, ServerPlace, ServerResponse, Stat, StatementId,
};

use super::random;
use crate::FabricKind;
use connections::ConnectionState;
use load::LoadHandle;
use manifests::ManifestCache;
use placement::StripPlacement;
use reader::Version;
pub(super) use remote::ControlLink;
use remote::Remote;
use worker::{Place, Worker};

/// Extents whose keys are asked for at a time.
const KEYS_AT_A_TIME: usize = 4096;

/// Where the memory servers of a pool are, and how they are used.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Addresses, as `127.0.0.1:7740`.
    pub addresses: Vec<String>,
    /// The certificate of this node, where servers are on other hosts.
    pub certs: Option<PathBuf>,
    /// The file of a token for readers, which the server has left (`read_token`), in place of that
    /// of its user: this process may read then, and not load.
    pub token_file: Option<PathBuf>,
    /// How memory is read.
    pub fabric: FabricKind,
    /// A number that all processes of a job share, and no other job has; `None` where this is the
    /// only one.
    pub job: Option<u128>,
    /// Workers of the whole job.
    pub workers: u32,
}

impl PoolOptions {
    /// Of the servers at these addresses, for one worker.
    pub fn new(addresses: Vec<String>) -> Self {
        let (certs, token_file) = (None, None);
        Self { addresses, certs, token_file, fabric: FabricKind::Auto, job: None, workers: 1 }
    }
}

/// A client of a pool. It connects when it is asked something first.
#[derive(Debug)]
pub struct Client {
    options: PoolOptions,
    job: u128,
    /// Texts that were planned and jobs that were run: alike on all nodes of a job.
    statements: AtomicU32,
    connections: Mutex<ConnectionState>,
    /// The versions of tables with which the job was saved that goes on.
    saved: Mutex<HashMap<String, u64>>,
}

/// Connections with all servers, and the thread that moves bytes.
#[derive(Debug)]
struct Connected {
    options: PoolOptions,
    /// By name.
    remotes: Vec<Arc<Remote>>,
    worker: Worker,
    /// Versions that are pinned, by server, table and number.
    versions: Mutex<HashMap<(usize, String, u64), Weak<Version>>>,
    manifests: ManifestCache,
    /// The newest versions that a statement has pinned, by table and statement.
    newest: Mutex<HashMap<(String, u32), Weak<Version>>>,
}

impl Client {
    /// A client of the servers at the addresses.
    ///
    /// # Errors
    /// When the system gives no random number.
    pub fn new(options: PoolOptions) -> std::io::Result<Self> {
        let job = match options.job {
            Some(job) => job,
            None => u128::from(random()?) << 64 | u128::from(random()?),
        };
        Ok(Self {
            options,
            job,
            statements: AtomicU32::new(0),
            connections: Mutex::default(),
            saved: Mutex::default(),
        })
    }

    /// Pins these versions of tables wherever the newest is asked for.
    pub(crate) fn pin_again(&self, versions: &[(String, u64)]) {
        *locked(&self.saved) = versions.iter().cloned().collect();
    }

    /// Statements are planned, or run: they may see newer versions than those before them.
    pub(crate) fn next_statement(&self) {
        self.statements.fetch_add(1, Ordering::Relaxed);
    }

    /// The states of all servers.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn stat(&self) -> Result<Vec<Stat>, PoolError> {
        let connected = self.connected()?;
        connected.remotes.iter().map(|remote| stat(remote)).collect()
    }

    /// Has the servers check that the bytes of a version are those that were written.
    ///
    /// # Errors
    /// When they are not, or a server does not answer.
    pub fn verify(&self, manifest: &Manifest) -> Result<(), PoolError> {
        let connected = self.connected()?;
        let servers = connected.servers_of(connected.home(&manifest.table), manifest)?;
        for (extent, _) in &manifest.extents {
            let at = servers.get(&extent.server).ok_or_else(unexpected)?;
            let remote = &connected.remotes[*at];
            // One at a time: other clients may have theirs compared, too.
            remote.call(&ClientRequest::Verify { extents: vec![extent.number] })?;
        }
        Ok(())
    }

    /// Gives up a server that never comes back: tables with a part there are dropped, and their
    /// other parts are freed. Gives the tables, and how many extents of tables of that server were
    /// freed: none of either where no server knows it, or it is one of those that are named.
    ///
    /// # Errors
    /// When it is connected with another one, while a version of such a table is being saved, and
    /// when a server does not answer.
    pub fn forget(&self, server: &str) -> Result<(Vec<String>, u64), PoolError> {
        let connected = self.connected()?;
        let living = connected.remotes.iter().find(|remote| remote.name == server);
        let living = living.map(|remote| remote.identity);
        let (mut all, mut freed) = (Vec::new(), 0);
        for remote in &connected.remotes {
            let request = ClientRequest::Forget { name: server.to_owned(), living };
            match remote.call(&request)? {
                ServerResponse::Forgotten { tables, extents } => {
                    all.extend(tables);
                    freed += u64::from(extents);
                }
                _ => return Err(unexpected()),
            }
        }
        all.sort();
        Ok((all, freed))
    }

    fn snapshot(&self) -> StatementId {
        StatementId { job: self.job, statement: self.statements.load(Ordering::Relaxed) }
    }

    /// The error with the name of the table that may have been meant, if there is no such table.
    fn with_nearest(&self, error: PoolError) -> PoolError {
        let PoolError::NoTable { table, .. } = error else { return error };
        let tables = self.tables().unwrap_or_default();
        let names = tables.iter().map(|table| table.name.as_str());
        let nearest = connectors::nearest(&table, names).map(str::to_owned);
        PoolError::NoTable { table, nearest }
    }
}

impl Connected {
    fn new(options: &PoolOptions) -> Result<Self, PoolError> {
        let mut ends = Vec::new();
        for address in &options.addresses {
            ends.push(remote::connect(address, options)?);
        }
        ends.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        if let Some(two) = ends.windows(2).find(|two| two[0].0.name == two[1].0.name) {
            let [(a, _), (b, _)] = two else { return Err(unexpected()) };
            let (name, a, b) = (&a.name, &a.address, &b.address);
            let reason = if two[0].0.incarnation == two[1].0.incarnation {
                format!("{a} and {b} are one memory server, '{name}'")
            } else {
                format!("the memory servers at {a} and {b} are both called '{name}'")
            };
            return Err(PoolError::WrongServers { reason });
        }
        let mut incarnations = HashMap::new();
        for (remote, _) in &ends {
            if let Some(other) = incarnations.insert(remote.incarnation, &remote.name) {
                let name = &remote.name;
                let reason =
                    format!("memory servers '{other}' and '{name}' drew one number: restart one");
                return Err(PoolError::WrongServers { reason });
            }
        }
        drop(incarnations);
        let mut identities = HashMap::new();
        for (remote, _) in &ends {
            if let Some(other) = identities.insert(remote.identity, &remote.name) {
                let name = &remote.name;
                let reason = format!("the directory of '{name}' is a copy of that of '{other}'");
                return Err(PoolError::WrongServers { reason });
            }
        }
        drop(identities);
        let (remotes, ends): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        let remotes: Vec<Arc<Remote>> = remotes.into_iter().map(Arc::new).collect();
        let worker = Worker::start(remotes.clone(), ends).map_err(|error| PoolError::Refused {
            reason: format!("the system gives no thread: {error}"),
        })?;
        relocate(&remotes)?;
        let options = options.clone();
        let (versions, newest) = (Mutex::default(), Mutex::default());
        let manifests = ManifestCache::default();
        Ok(Self { options, remotes, worker, versions, manifests, newest })
    }

    /// The server of a table: the same on all nodes.
    fn home(&self, table: &str) -> usize {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let weight = |remote: &Arc<Remote>| hasher.hash_one((remote.name.as_str(), table));
        let heaviest = (0..self.remotes.len()).max_by_key(|at| weight(&self.remotes[*at]));
        heaviest.unwrap_or(0)
    }

    /// The servers over which a load is spread, that of the table first: the same on all nodes.
    /// Those that keep tables in directories have the tables of each other, and those in memory
    /// too: a part that is there again after a restart is of no use without the others.
    fn distribute(&self, home: usize) -> Vec<usize> {
        let keeps = self.remotes[home].keeps;
        let turns = (0..self.remotes.len()).map(|at| (home + at) % self.remotes.len());
        turns.filter(|at| self.remotes[*at].keeps == keeps).collect()
    }

    /// How the strips of a load are divided among servers: by the bytes that are free on each.
    fn placement(
        &self,
        servers: &[(usize, u16)],
        partitions: u32,
    ) -> Result<StripPlacement, PoolError> {
        if servers.len() == 1 {
            return Ok(StripPlacement::new(&[1], partitions));
        }
        let free = |(at, _): &(usize, u16)| {
            let Stat { bytes_max, bytes, .. } = stat(&self.remotes[*at])?;
            Ok(bytes_max.saturating_sub(bytes))
        };
        let free: Vec<u64> = servers.iter().map(free).collect::<Result<_, PoolError>>()?;
        Ok(StripPlacement::new(&free, partitions))
    }

    /// By the number that the extents of a version name: the server.
    ///
    /// # Errors
    /// When one is not there, or has other memory than then.
    fn servers_of(
        &self,
        home: usize,
        manifest: &Manifest,
    ) -> Result<HashMap<u16, usize>, PoolError> {
        let mut servers = HashMap::from([(0, home)]);
        for holder in &manifest.holders {
            let (server, table) = (&holder.name, &manifest.table);
            let is = |remote: &Arc<Remote>| remote.identity == holder.identity;
            if let Some(at) = self.remotes.iter().position(is) {
                servers.insert(holder.number, at);
                continue;
            }
            let other = self.remotes.iter().find(|remote| remote.name == *server);
            let reason = match other {
                None => {
                    let reason =
                        format!("table '{table}' lies on '{server}', too: name all servers");
                    return Err(PoolError::WrongServers { reason });
                }
                Some(_) if self.remotes[home].keeps => format!(
                    "it has another directory than when a part of table '{table}' was saved there: \
                     start it with that one, or give that one up (millstream pool forget {server})"
                ),
                Some(_) => format!(
                    "it was started anew; a part of table '{table}' lay there: drop it, and load \
                     it again"
                ),
            };
            return Err(PoolError::Lost { server: server.clone(), reason });
        }
        Ok(servers)
    }

    /// Where extents can be read.
    fn places(&self, at: usize, extents: &[ExtentId]) -> Result<Vec<Place>, PoolError> {
        let mut keys = Vec::new();
        for some in extents.chunks(KEYS_AT_A_TIME) {
            let extents = some.iter().map(|extent| extent.number).collect();
            match self.remotes[at].call(&ClientRequest::Keys { extents })? {
                ServerResponse::Keys(some_keys) if some_keys.len() == some.len() => {
                    keys.extend(some_keys);
                }
                _ => return Err(unexpected()),
            }
        }
        self.worker.map(at, keys)
    }

    /// The manifest of the version that a lease holds, by its table and its server.
    fn manifest(
        &self,
        key: &(usize, String, u64),
        lease: u64,
        manifest_bytes: u64,
    ) -> Result<Arc<Manifest>, PoolError> {
        if let Some(known) = self.manifests.get(key, manifest_bytes) {
            return Ok(known);
        }
        if manifest_bytes > MANIFEST_BYTES_MAX {
            return Err(PoolError::Malformed { what: "length of a manifest" });
        }
        // Memory is taken as bytes come, not as they are promised.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < manifest_bytes {
            let from = bytes.len() as u64;
            let left = usize::try_from(manifest_bytes - from).unwrap_or(usize::MAX);
            match self.remotes[key.0].call(&ClientRequest::Manifest { lease, from })? {
                ServerResponse::Manifest(piece)
                    if !piece.is_empty() && piece.len() <= left.min(MANIFEST_PIECE_BYTES) =>
                {
                    bytes.extend(piece);
                }
                _ => return Err(unexpected()),
            }
        }
        let manifest = Arc::new(Manifest::decode(&bytes)?);
        self.manifests.put(key, manifest_bytes, &manifest);
        Ok(manifest)
    }

    /// The version that a lease holds, with the places of its extents.
    fn version(
        self: &Arc<Self>,
        at: usize,
        lease: u64,
        manifest: Arc<Manifest>,
    ) -> Result<Version, PoolError> {
        let servers = self.servers_of(at, &manifest)?;
        let mut places: HashMap<ExtentId, Place> = HashMap::new();
        for (server, of) in &servers {
            let extents = manifest.extents.iter().map(|(extent, _)| *extent);
            let extents: Vec<ExtentId> = extents.filter(|of| of.server == *server).collect();
            let there = self.places(*of, &extents)?;
            places.extend(extents.into_iter().zip(there));
        }
        Ok(Version::new(Arc::clone(self), (at, lease), servers, manifest, places))
    }
}

impl Client {
    fn begin_load(&self, load: &TableLoad, writers: u32) -> Result<Arc<dyn Loading>, PoolError> {
        let connected = self.connected()?;
        let home = connected.home(&load.table);
        let snapshot = self.snapshot();
        let request = ClientRequest::Begin { load: load.clone(), snapshot, writers };
        let ServerResponse::Load(number) = connected.remotes[home].call(&request)? else {
            return Err(unexpected());
        };
        let give_up = |error: &PoolError| connected.worker.abort(home, number, &error.to_string());
        let spread = connected.distribute(home);
        let mut servers = vec![(home, 0)];
        if spread.len() > 1 {
            let others = spread[1..].iter().map(|at| connected.remotes[*at].place()).collect();
            let request = ClientRequest::Distribute { load: number, servers: others };
            let numbers = match connected.remotes[home].call(&request) {
                Ok(ServerResponse::Numbers(numbers)) if numbers.len() + 1 == spread.len() => {
                    Ok(numbers)
                }
                Ok(_) => Err(unexpected()),
                Err(error) => Err(error),
            };
            let numbers = numbers.inspect_err(give_up)?;
            servers.extend(spread[1..].iter().copied().zip(numbers));
        }
        let placement = connected.placement(&servers, load.definition.partitions());
        let placement = placement.inspect_err(give_up)?;
        Ok(Arc::new(LoadHandle::new(connected, servers, number, snapshot, placement)))
    }
}

impl PoolAccess for Client {
    fn tables(&self) -> Result<Vec<TableSummary>, PoolError> {
        let connected = self.connected()?;
        let mut all = Vec::new();
        for remote in &connected.remotes {
            match remote.call(&ClientRequest::Tables)? {
                ServerResponse::Tables(tables) => all.extend(tables),
                _ => return Err(unexpected()),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn pin(&self, table: &str, at: At) -> Result<Pinned, PoolError> {
        let connected = self.connected()?;
        let saved = locked(&self.saved).get(table).copied().filter(|_| at == At::Newest);
        let at = saved.map_or(at, At::Version);
        let statement = self.snapshot();
        let asked = (table.to_owned(), statement.statement);
        let pinned = locked(&connected.newest).get(&asked).and_then(Weak::upgrade);
        if let Some(version) = pinned.filter(|_| at == At::Newest) {
            return Ok(version.pinned());
        }
        let home = connected.home(table);
        let remote = &connected.remotes[home];
        let snapshot = self.options.job.is_some().then_some(statement);
        let request = ClientRequest::Pin { table: table.to_owned(), at, snapshot };
        let pinned = remote.call(&request).map_err(|error| match (self.with_nearest(error), saved) {
            (PoolError::NoVersion { table, version, reason }, Some(_)) => {
                let reason = format!(
                    "{reason}; the job was saved with it: run it with --pin latest to go on with \
                     the newest"
                );
                PoolError::NoVersion { table, version, reason }
            }
            (error, _) => error,
        })?;
        let ServerResponse::Pinned { version, lease, manifest_bytes } = pinned else {
            return Err(unexpected());
        };
        let key = (home, table.to_owned(), version);
        let known = locked(&connected.versions).get(&key).and_then(Weak::upgrade);
        let version = match known {
            Some(known) => {
                connected.worker.unpin(home, lease);
                known
            }
            None => {
                let manifest = connected.manifest(&key, lease, manifest_bytes);
                let made = manifest.and_then(|of| connected.version(home, lease, of));
                let made = made.inspect_err(|_| connected.worker.unpin(home, lease))?;
                let made = Arc::new(made);
                let mut versions = locked(&connected.versions);
                versions.retain(|_, version| version.strong_count() > 0);
                versions.insert(key, Arc::downgrade(&made));
                made
            }
        };
        if at == At::Newest {
            let mut newest = locked(&connected.newest);
            newest.retain(|_, version| version.strong_count() > 0);
            newest.insert(asked, Arc::downgrade(&version));
        }
        Ok(version.pinned())
    }

    fn begin(&self, load: &TableLoad) -> Result<Arc<dyn Loading>, PoolError> {
        self.begin_load(load, self.options.workers)
    }

    fn begin_alone(&self, load: &TableLoad, writers: u32) -> Result<Arc<dyn Loading>, PoolError> {
        self.begin_load(load, writers)
    }

    fn look(&self, table: &str, age_max_ns: u64) -> Result<OriginLook, PoolError> {
        let connected = self.connected()?;
        let statement = self.snapshot();
        // A job that goes on reads the version that it was saved with.
        if locked(&self.saved).contains_key(table) {
            return Ok(OriginLook::Current);
        }
        // A statement that has pinned a version reads that one.
        let asked = (table.to_owned(), statement.statement);
        if locked(&connected.newest).get(&asked).is_some_and(|of| of.strong_count() > 0) {
            return Ok(OriginLook::Current);
        }
        let remote = &connected.remotes[connected.home(table)];
        let request = ClientRequest::Look { table: table.to_owned(), statement, age_max_ns };
        match remote.call(&request)? {
            ServerResponse::Look(look) => Ok(look),
            _ => Err(unexpected()),
        }
    }

    fn end_look(&self, table: &str, outcome: LookOutcome) -> Result<(), PoolError> {
        let connected = self.connected()?;
        let remote = &connected.remotes[connected.home(table)];
        remote.call(&ClientRequest::EndLook { table: table.to_owned(), outcome }).map(drop)
    }

    fn drop_table(&self, table: &str) -> Result<(), PoolError> {
        let connected = self.connected()?;
        let remote = &connected.remotes[connected.home(table)];
        let dropped = remote.call(&ClientRequest::Drop { table: table.to_owned() });
        dropped.map_err(|error| self.with_nearest(error))?;
        // Its indexes are of no use without it, and somebody may load them just now.
        let tables = self.tables()?.into_iter().map(|table| table.name);
        for index in tables.filter(|name| is_index_of(name, table)) {
            let remote = &connected.remotes[connected.home(&index)];
            match remote.call(&ClientRequest::Drop { table: index }) {
                Ok(_) | Err(PoolError::NoTable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Tells servers that keep tables where the others are, so that they know each other again after a
/// restart.
///
/// # Errors
/// When one is gone, or refuses.
fn relocate(remotes: &[Arc<Remote>]) -> Result<(), PoolError> {
    let keeping = || remotes.iter().filter(|remote| remote.keeps);
    for remote in keeping().filter(|remote| remote.may_write) {
        let others = keeping().filter(|other| other.identity != remote.identity);
        let servers: Vec<ServerPlace> = others.map(|other| other.place()).collect();
        if !servers.is_empty() {
            remote.call(&ClientRequest::Relocate { servers })?;
        }
    }
    Ok(())
}

/// The state of a server.
fn stat(remote: &Remote) -> Result<Stat, PoolError> {
    match remote.call(&ClientRequest::Stat)? {
        ServerResponse::Stat(stat) => Ok(stat),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> PoolError {
    PoolError::Malformed { what: "answer" }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
