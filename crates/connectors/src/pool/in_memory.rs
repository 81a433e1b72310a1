//! A pool in the memory of this process, for tests: it keeps versions, and can be slow or damaged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use pool::PoolError;
use pool::access::{
    At, BlockBytes, BlockRange, BlockReader, Blocks, EncodedStrip, LoadMode, Loading, LookOutcome,
    OriginLook, Pinned, PoolAccess, StripWriter, TableLoad, TableSummary,
};
use pool::manifest::{Block, Definition, Manifest, Strip};
use pool::pointer::{BLOCK_ALIGN, ExtentId, Pointer};

use crate::options::nearest;

/// The bytes of an extent, which never change.
type Extent = Arc<Vec<u8>>;

/// A pool in the memory of this process.
#[derive(Debug)]
pub struct InMemoryPool {
    state: Arc<Mutex<State>>,
    /// How many writers a load has.
    writers: Arc<AtomicU32>,
    /// Whether readers and writers wait to be woken before each step.
    is_slow: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    tables: BTreeMap<String, Vec<Arc<Manifest>>>,
    extents: BTreeMap<u32, Extent>,
    loads: BTreeMap<String, Arc<Mutex<Part>>>,
    /// Strips that loads may write from now on.
    strips_left: Option<u64>,
}

/// The strips that the writers of a load have written.
#[derive(Debug)]
struct Part {
    load: TableLoad,
    strips: Vec<(u32, Strip)>,
    extents: Vec<(ExtentId, u32)>,
    /// Strips that the next version does not have any more.
    replaced: Vec<(u32, Strip)>,
    /// Writers that have handed in their part since a version appeared, and that have committed.
    submitted: BTreeSet<u32>,
    committed: BTreeSet<u32>,
    has_failed: bool,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InMemoryPool {
    /// An empty pool, whose loads have `writers` writers.
    pub fn new(writers: u32) -> Arc<Self> {
        let (state, is_slow) = (Arc::default(), Arc::default());
        Arc::new(Self { state, writers: Arc::new(writers.into()), is_slow })
    }

    /// Says how many writers a load has from now on.
    pub fn set_writers(&self, writers: u32) {
        self.writers.store(writers, Ordering::Relaxed);
    }

    /// Whether readers and writers wait to be woken before each step.
    pub fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }

    /// Loads fail when they have written this many strips more.
    pub fn fail_after(&self, strips: Option<u64>) {
        locked(&self.state).strips_left = strips;
    }

    /// Changes the newest version of a table, and the bytes of all extents.
    pub fn damage(&self, table: &str, damage: impl Fn(&mut Manifest, &mut Vec<u8>)) {
        let mut state = locked(&self.state);
        let State { tables, extents, .. } = &mut *state;
        let newest = tables.get_mut(table).and_then(|versions| versions.last_mut());
        let Some(newest) = newest else { return };
        let mut manifest = (**newest).clone();
        for extent in extents.values_mut() {
            let mut bytes = (**extent).clone();
            damage(&mut manifest, &mut bytes);
            *extent = Arc::new(bytes);
        }
        *newest = Arc::new(manifest);
    }

    /// The newest version of a table.
    pub fn newest(&self, table: &str) -> Option<Arc<Manifest>> {
        locked(&self.state).tables.get(table)?.last().cloned()
    }
}

impl PoolAccess for InMemoryPool {
    fn tables(&self) -> Result<Vec<TableSummary>, PoolError> {
        let state = locked(&self.state);
        let newest = state.tables.values().filter_map(|versions| versions.last());
        let summary = |manifest: &Arc<Manifest>| TableSummary {
            name: manifest.table.clone(),
            version: manifest.version,
            rows: manifest.rows(),
            bytes: manifest.extents.iter().map(|(_, bytes)| u64::from(*bytes)).sum(),
            leases: 0,
            damaged: false,
        };
        Ok(newest.map(summary).collect())
    }

    fn pin(&self, table: &str, at: At) -> Result<Pinned, PoolError> {
        let state = locked(&self.state);
        let Some(versions) = state.tables.get(table) else {
            let names = state.tables.keys().map(String::as_str);
            let nearest = nearest(table, names).map(str::to_owned);
            return Err(PoolError::NoTable { table: table.to_owned(), nearest });
        };
        let found = match at {
            At::Newest => versions.last(),
            At::Version(version) => versions.iter().find(|one| one.version == version),
        };
        let manifest = found.cloned().ok_or_else(|| PoolError::NoVersion {
            table: table.to_owned(),
            version: if let At::Version(version) = at { version } else { 0 },
            reason: format!("the newest is {}", versions.len()),
        })?;
        let blocks =
            InMemoryBlocks { extents: state.extents.clone(), is_slow: Arc::clone(&self.is_slow) };
        Ok(Pinned { manifest, blocks: Arc::new(blocks) })
    }

    fn begin(&self, load: &TableLoad) -> Result<Arc<dyn Loading>, PoolError> {
        self.begin_load(load, self.writers.load(Ordering::Relaxed))
    }

    fn begin_alone(&self, load: &TableLoad, writers: u32) -> Result<Arc<dyn Loading>, PoolError> {
        self.begin_load(load, writers)
    }

    /// Nobody else is there: each that asks looks.
    fn look(&self, _: &str, _: u64) -> Result<OriginLook, PoolError> {
        Ok(OriginLook::Due)
    }

    fn end_look(&self, _: &str, _: LookOutcome) -> Result<(), PoolError> {
        Ok(())
    }

    fn drop_table(&self, table: &str) -> Result<(), PoolError> {
        match locked(&self.state).tables.remove(table) {
            Some(_) => Ok(()),
            None => Err(PoolError::NoTable { table: table.to_owned(), nearest: None }),
        }
    }
}

impl InMemoryPool {
    fn begin_load(&self, load: &TableLoad, writers: u32) -> Result<Arc<dyn Loading>, PoolError> {
        let mut state = locked(&self.state);
        let is_there = state.tables.contains_key(&load.table);
        if let Some(part) = state.loads.get(&load.table).filter(|part| !locked(part).has_failed) {
            let part = Arc::clone(part);
            return Ok(Arc::new(self.loading(part, writers)));
        }
        match (load.mode, is_there) {
            (LoadMode::Create, true) => {
                let detail = format!("the pool has a table '{}' already", load.table);
                return Err(PoolError::Mismatch { detail });
            }
            (LoadMode::Append | LoadMode::Overwrite, false) => {
                return Err(PoolError::NoTable { table: load.table.clone(), nearest: None });
            }
            _ => {}
        }
        let part = Arc::new(Mutex::new(Part {
            load: load.clone(),
            strips: vec![],
            extents: vec![],
            replaced: vec![],
            submitted: BTreeSet::new(),
            committed: BTreeSet::new(),
            has_failed: false,
        }));
        state.loads.insert(load.table.clone(), Arc::clone(&part));
        Ok(Arc::new(self.loading(part, writers)))
    }

    fn loading(&self, part: Arc<Mutex<Part>>, writers: u32) -> InMemoryLoad {
        InMemoryLoad {
            state: Arc::clone(&self.state),
            part,
            writers,
            is_slow: Arc::clone(&self.is_slow),
        }
    }
}

/// The blocks of a pinned version.
#[derive(Debug)]
struct InMemoryBlocks {
    extents: BTreeMap<u32, Extent>,
    is_slow: Arc<AtomicBool>,
}

/// A piece of an extent.
struct Piece(Extent, BlockRange);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        let from = self.1.at.offset as usize;
        self.0.get(from..from + self.1.bytes as usize).unwrap_or_default()
    }
}

impl Blocks for InMemoryBlocks {
    fn open(&self, window: usize, waker: Waker) -> Result<Box<dyn BlockReader>, PoolError> {
        let (extents, wanted) = (self.extents.clone(), VecDeque::new());
        let slow = Slow::new(&self.is_slow, waker);
        Ok(Box::new(InMemoryReader { extents, wanted, window: window.max(1), slow }))
    }

    /// An extent is never another one.
    fn incarnation(&self) -> Option<u32> {
        Some(1)
    }

    fn describe(&self) -> String {
        "in this process".into()
    }
}

/// Every other step of something slow has to wait, and the waker is called at once.
struct Slow {
    is_slow: Arc<AtomicBool>,
    has_waited: bool,
    waker: Waker,
}

impl Slow {
    fn new(is_slow: &Arc<AtomicBool>, waker: Waker) -> Self {
        Self { is_slow: Arc::clone(is_slow), has_waited: false, waker }
    }

    fn waits(&mut self) -> bool {
        self.has_waited = self.is_slow.load(Ordering::Relaxed) && !self.has_waited;
        if self.has_waited {
            self.waker.wake_by_ref();
        }
        self.has_waited
    }
}

struct InMemoryReader {
    extents: BTreeMap<u32, Extent>,
    wanted: VecDeque<BlockRange>,
    window: usize,
    slow: Slow,
}

impl BlockReader for InMemoryReader {
    fn want(&mut self, block: BlockRange) {
        self.wanted.push_back(block);
    }

    fn wanted(&self) -> usize {
        self.wanted.len()
    }

    fn next(&mut self) -> Result<Option<BlockBytes>, PoolError> {
        if self.slow.waits() || self.window == 0 {
            return Ok(None);
        }
        let Some(block) = self.wanted.pop_front() else { return Ok(None) };
        match self.extents.get(&block.at.extent.number) {
            Some(extent) => Ok(Some(Arc::new(Piece(Arc::clone(extent), block)))),
            None => Err(PoolError::Lost {
                server: "this process".into(),
                reason: format!("it has no {}", block.at.extent),
            }),
        }
    }
}

#[derive(Debug)]
struct InMemoryLoad {
    state: Arc<Mutex<State>>,
    part: Arc<Mutex<Part>>,
    writers: u32,
    is_slow: Arc<AtomicBool>,
}

impl Loading for InMemoryLoad {
    fn writer(&self, worker: u32, waker: Waker) -> Result<Box<dyn StripWriter>, PoolError> {
        Ok(Box::new(InMemoryWriter {
            state: Arc::clone(&self.state),
            part: Arc::clone(&self.part),
            writers: self.writers,
            worker,
            strips: vec![],
            extents: vec![],
            replaced: vec![],
            slow: Slow::new(&self.is_slow, waker),
            has_committed: false,
        }))
    }
}

struct InMemoryWriter {
    state: Arc<Mutex<State>>,
    part: Arc<Mutex<Part>>,
    writers: u32,
    worker: u32,
    strips: Vec<(u32, Strip)>,
    extents: Vec<(ExtentId, u32)>,
    replaced: Vec<(u32, Strip)>,
    slow: Slow,
    has_committed: bool,
}

impl InMemoryWriter {
    fn check(&self) -> Result<(), PoolError> {
        if locked(&self.part).has_failed {
            return Err(PoolError::Refused { reason: "the load was given up".into() });
        }
        Ok(())
    }
}

impl StripWriter for InMemoryWriter {
    fn has_room(&mut self) -> Result<bool, PoolError> {
        self.check()?;
        Ok(!self.slow.waits())
    }

    fn write(&mut self, partition: u32, strip: EncodedStrip) -> Result<(), PoolError> {
        self.check()?;
        let mut state = locked(&self.state);
        if let Some(left) = &mut state.strips_left {
            *left = left.checked_sub(1).ok_or(PoolError::Full { needed: 1, free: 0 })?;
        }
        let number = state.extents.len() as u32;
        let extent = ExtentId { server: 0, number };
        let mut bytes = vec![];
        let blocks = strip.blocks.iter().map(|block| {
            let at = Pointer { extent, offset: bytes.len() as u32 };
            bytes.extend(&block.bytes);
            bytes.resize(bytes.len().next_multiple_of(BLOCK_ALIGN), 0);
            Block {
                at,
                bytes: block.bytes.len() as u32,
                codec: block.codec,
                nulls: block.nulls,
                least: block.least,
                greatest: block.greatest,
            }
        });
        let written = Strip { rows: strip.rows, blocks: blocks.collect() };
        self.strips.push((partition, written));
        self.extents.push((extent, bytes.len() as u32));
        state.extents.insert(number, Arc::new(bytes));
        Ok(())
    }

    fn is_sealed(&mut self) -> Result<bool, PoolError> {
        self.check()?;
        Ok(!self.slow.waits())
    }

    fn take_placed(&mut self) -> Result<Option<Vec<(u32, Strip)>>, PoolError> {
        self.check()?;
        Ok((!self.slow.waits()).then(|| std::mem::take(&mut self.strips)))
    }

    fn name(&mut self, heads: Vec<(u32, Strip)>) {
        self.strips.extend(heads);
    }

    fn replace(&mut self, strips: Vec<(u32, Strip)>) {
        self.replaced.extend(strips);
    }

    fn hand_in(mut self: Box<Self>) -> Result<Vec<(u32, Strip)>, PoolError> {
        let strips = self.strips.clone();
        self.settle(false)?;
        Ok(strips)
    }

    fn commit(mut self: Box<Self>) -> Result<(), PoolError> {
        self.settle(true)
    }
}

impl InMemoryWriter {
    /// Its strips are of the next version, which appears if they are the last that it needs.
    fn settle(&mut self, is_end: bool) -> Result<(), PoolError> {
        self.check()?;
        self.has_committed = true;
        let mut state = locked(&self.state);
        let mut part = locked(&self.part);
        part.strips.append(&mut self.strips);
        part.extents.append(&mut self.extents);
        part.replaced.append(&mut self.replaced);
        let to = if is_end { &mut part.committed } else { &mut part.submitted };
        to.insert(self.worker);
        let is_missing =
            |worker| !part.submitted.contains(&worker) && !part.committed.contains(&worker);
        if (0..self.writers).any(is_missing) {
            return Ok(());
        }
        if part.committed.len() == self.writers as usize {
            state.loads.remove(&part.load.table);
        }
        let versions = state.tables.entry(part.load.table.clone()).or_default();
        let newest = versions.last().map(|newest| &**newest);
        versions.push(Arc::new(published(&part, newest)));
        part.submitted.clear();
        part.load.mode = LoadMode::Append;
        (part.strips, part.extents, part.replaced) = (vec![], vec![], vec![]);
        Ok(())
    }
}

/// The version that follows `newest`.
fn published(part: &Part, newest: Option<&Manifest>) -> Manifest {
    let TableLoad { table, definition, mode, origin } = &part.load;
    let before = newest.filter(|_| *mode == LoadMode::Append);
    let definition: Definition =
        before.map_or_else(|| definition.clone(), |newest| newest.definition.clone());
    let (mut strips, mut partitions): (Vec<Strip>, _) = (vec![], vec![0]);
    for partition in 0..definition.partitions() {
        if let Some(newest) = before {
            let [from, to] = [partition, partition + 1].map(|at| newest.partitions[at as usize]);
            strips.extend(newest.strips[from as usize..to as usize].iter().cloned());
        }
        let first = *partitions.last().unwrap_or(&0) as usize;
        let own = part.strips.iter().filter(|(of, _)| *of == partition);
        strips.extend(own.map(|(_, strip)| strip.clone()));
        for (_, gone) in part.replaced.iter().filter(|(of, _)| *of == partition) {
            let at = strips[first..].iter().position(|strip| strip == gone);
            strips.remove(first + at.expect("a strip that is replaced is there"));
        }
        partitions.push(strips.len() as u32);
    }
    let old = before.map_or(&[][..], |newest| &newest.extents);
    Manifest {
        table: table.clone(),
        version: newest.map_or(1, |newest| newest.version + 1),
        definition,
        strips,
        partitions,
        extents: [old, &part.extents].concat(),
        holders: vec![],
        origin: origin.clone(),
    }
}

impl Drop for InMemoryWriter {
    fn drop(&mut self) {
        if !self.has_committed {
            locked(&self.part).has_failed = true;
        }
    }
}
