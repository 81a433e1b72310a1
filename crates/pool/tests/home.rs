//! Random clients of a [`Home`], of which some name what is not theirs, against an account of what
//! they hold: the budget agrees with it after each step, nothing is freed twice or while it is
//! read, and in the end nothing is left.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use pool::access::{At, LoadMode, TableLoad};
use pool::home::{Effect, Home, LEASE_NS, SavedVersion};
use pool::manifest::{Block, Buckets, Codec, Definition, KeyFamily, Layout, Manifest, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::StatementId;

const SEEDS: u64 = 1000;
const STEPS: usize = 400;
const BUDGET: u64 = 20_000;
const CLIENTS: u64 = 4;
const TABLES: [&str; 3] = ["a", "b", "c"];

/// Numbers that look like chance: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len() as u64) as usize])
    }
}

/// The account that the test keeps by itself.
struct Account {
    home: Home,
    now_ns: u64,
    random: Random,
    /// Bytes of each extent that was granted and not freed.
    extents: BTreeMap<u32, u32>,
    freed: BTreeSet<u32>,
    /// By load: what was sealed for it, with the bytes used.
    loads: BTreeMap<u64, Vec<(u32, u32)>>,
    /// By extent that is not sealed: its load, and the client that writes it.
    written: BTreeMap<u32, (u64, u64)>,
    /// By lease: its client, and the version that it reads.
    leases: BTreeMap<u64, (u64, Manifest)>,
    /// The rows of each version.
    versions: BTreeMap<(String, u64), u64>,
    /// Extents whose memory has not come back.
    freeing: Vec<u32>,
    /// By load: versions that are being saved.
    saving: BTreeMap<u64, SavedVersion>,
    /// Loads of which a writer has handed something in.
    submitted: BTreeSet<u64>,
}

impl Account {
    fn new(seed: u64) -> Self {
        let home = Home::new(3, BUDGET);
        Self {
            home: if seed.is_multiple_of(2) { home } else { home.with_saving() },
            now_ns: 0,
            random: Random(seed),
            extents: BTreeMap::new(),
            freed: BTreeSet::new(),
            loads: BTreeMap::new(),
            written: BTreeMap::new(),
            leases: BTreeMap::new(),
            versions: BTreeMap::new(),
            freeing: vec![],
            saving: BTreeMap::new(),
            submitted: BTreeSet::new(),
        }
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Free(extent) => {
                    assert!(self.extents.remove(&extent).is_some(), "{extent} is not there");
                    assert!(self.freed.insert(extent), "{extent} is freed twice");
                    self.written.remove(&extent);
                    self.freeing.push(extent);
                    for (client, manifest) in self.leases.values() {
                        let is_read = |(of, _): &(ExtentId, u32)| of.number == extent;
                        let reads = manifest.extents.iter().any(is_read);
                        assert!(!reads, "{extent} is freed, and client {client} reads it");
                    }
                }
                Effect::Save(version) => {
                    assert!(self.saving.insert(version.load, *version).is_none());
                }
                Effect::Close(client, _) => self.close(client),
                Effect::Hold(_)
                | Effect::Release(..)
                | Effect::Introduce(_)
                | Effect::SavePart(_) => panic!("there is one server"),
            }
        }
    }

    /// The server has saved a version, or could not.
    fn save(&mut self) {
        let loads: Vec<u64> = self.saving.keys().copied().collect();
        let Some(load) = self.random.of(&loads) else { return };
        let Some(version) = self.saving.remove(&load) else { return };
        // A load that goes on may have been given up while a version of it is saved.
        let before = self.home.outcome(load, version.snapshot);
        assert!(!matches!(before, Ok(Some(_))), "it is decided: {before:?}");
        let saved = self.random.below(4) > 0;
        let effects = self.home.saved(load, if saved { Ok(()) } else { Err("full".into()) });
        self.apply(effects);
        let number = version.manifest.version;
        let outcome = self.home.outcome(load, version.snapshot);
        match (before, saved) {
            (Err(before), _) => assert_eq!(outcome, Err(before)),
            (Ok(_), false) => assert!(outcome.is_err(), "{outcome:?}"),
            (Ok(_), true) => match outcome {
                Ok(Some(version)) => assert_eq!(version, number),
                Ok(None) | Err(_) => assert!(self.submitted.contains(&load), "{outcome:?}"),
            },
        }
        let other = self.home.outcome(load, StatementId { job: 2, statement: 0 });
        assert!(!matches!(other, Ok(Some(_))), "it is told to another statement: {other:?}");
    }

    fn close(&mut self, client: u64) {
        self.leases.retain(|_, (of, _)| *of != client);
        let effects = self.home.closed(self.now_ns, client);
        self.apply(effects);
    }

    fn step(&mut self) {
        let client = self.random.below(CLIENTS);
        if self.random.below(3) == 0 {
            self.freeing.drain(..).for_each(|extent| self.home.freed(extent));
        }
        if self.random.below(3) == 0 {
            self.save();
        }
        self.home.renew(self.now_ns, client);
        match self.random.below(20) {
            0..=2 => self.begin(client),
            3..=6 => self.grant(client),
            7..=10 => self.seal(client),
            11..=13 => self.commit(client),
            14..=15 => self.pin(client),
            16 => self.unpin(client),
            17 if self.random.below(4) == 0 => {
                let load = self.a_load();
                let effects = self.home.abort(client, load, "");
                self.apply(effects);
            }
            18 if self.random.below(2) == 0 => {
                let table = TABLES[self.random.below(3) as usize];
                if let Ok(effects) = self.home.drop_table(table) {
                    self.apply(effects);
                }
            }
            19 if self.random.below(3) == 0 => self.close(client),
            _ => {
                self.now_ns += self.random.below(LEASE_NS / 4);
                let effects = self.home.tick(self.now_ns);
                self.apply(effects);
            }
        }
    }

    fn begin(&mut self, client: u64) {
        let modes = [LoadMode::Create, LoadMode::Append, LoadMode::Append, LoadMode::Overwrite];
        let load = TableLoad {
            table: TABLES[self.random.below(3) as usize].into(),
            definition: definition(),
            mode: modes[self.random.below(4) as usize],
            origin: None,
        };
        let snapshot = StatementId { job: 1, statement: self.random.below(2) as u32 };
        let writers = 1 + snapshot.statement;
        if let Ok(load) = self.home.begin(client, "somebody", load, snapshot, writers) {
            self.loads.entry(load).or_default();
        }
    }

    fn a_load(&mut self) -> u64 {
        let loads: Vec<u64> = self.loads.keys().copied().collect();
        let lately = &loads[loads.len().saturating_sub(4)..];
        self.random.of(lately).unwrap_or(7)
    }

    fn grant(&mut self, client: u64) {
        let (load, bytes) = (self.a_load(), 64 * (1 + self.random.below(20)) as u32);
        if let Ok(extent) = self.home.grant(client, load, bytes) {
            assert!(!self.freed.contains(&extent), "the number {extent} is used again");
            assert!(self.extents.insert(extent, bytes).is_none());
            self.written.insert(extent, (load, client));
        }
    }

    fn seal(&mut self, client: u64) {
        let written: Vec<u32> = self.written.keys().copied().collect();
        let Some(extent) = self.random.of(&written) else { return };
        let (load, of) = self.written[&extent];
        let used = self.random.below(u64::from(self.extents[&extent]) + 8) as u32;
        let fits = client == of && used <= self.extents[&extent];
        assert_eq!(self.home.check_seal(client, load, extent).is_ok(), client == of);
        let sealed = self.home.seal(client, load, extent, used);
        assert_eq!(sealed.is_ok(), fits, "{sealed:?}");
        if fits {
            self.written.remove(&extent);
            self.loads.entry(load).or_default().push((extent, used));
        }
    }

    /// Commits strips which lie somewhere in what was sealed for this load, or seldom for another.
    fn commit(&mut self, client: u64) {
        let load = self.a_load();
        let from = if self.random.below(16) == 0 { self.a_load() } else { load };
        let sealed = self.loads.get(&from).cloned().unwrap_or_default();
        let mut strips = vec![];
        for _ in 0..self.random.below(4) {
            let Some((extent, used)) = self.random.of(&sealed) else { continue };
            let rows = 1 + self.random.below(64) as u32;
            let offset = 64 * self.random.below(u64::from(used) / 64 + 1) as u32;
            if offset + rows <= used || self.random.below(16) == 0 {
                strips.push((self.random.below(2) as u32, strip(extent, offset, rows)));
            }
        }
        let inside = strips.iter().all(|(_, strip)| {
            let Pointer { extent, offset } = strip.blocks[0].at;
            let own = self.loads.get(&load).into_iter().flatten();
            own.clone().any(|(of, used)| *of == extent.number && offset + strip.rows <= *used)
        });
        let writer = self.random.below(2) as u32;
        let last = self.random.below(3) > 0;
        let (version, effects) = if self.random.below(2) == 0 {
            self.home.commit(client, load, writer, strips, last)
        } else {
            self.submitted.insert(load);
            self.replace(client, load, writer);
            self.home.hand_in(client, load, writer, strips, last)
        };
        assert!(inside || version.is_err(), "blocks outside are taken");
        self.apply(effects);
        if let Ok(Some(version)) = version {
            let tables = self.home.tables();
            let known = |of: &&pool::access::TableSummary| of.version == version;
            let newest = tables.iter().filter(known);
            assert!(newest.count() > 0, "version {version} is nobody's");
        }
    }

    /// Names a strip of a version that somebody reads to be replaced, now and then.
    fn replace(&mut self, client: u64, load: u64, writer: u32) {
        let read: Vec<u64> = self.leases.keys().copied().collect();
        let Some(lease) = self.random.of(&read).filter(|_| self.random.below(4) == 0) else {
            return;
        };
        let manifest = &self.leases[&lease].1;
        if manifest.strips.is_empty() {
            return;
        }
        let at = self.random.below(manifest.strips.len() as u64) as u32;
        let partition = u32::from(manifest.partitions[1] <= at);
        let strips = vec![(partition, manifest.strips[at as usize].clone())];
        let (_, effects) = self.home.replace(client, load, writer, strips);
        self.apply(effects);
    }

    fn pin(&mut self, client: u64) {
        let table = TABLES[self.random.below(3) as usize];
        let at = match self.random.below(4) {
            0 => At::Version(self.random.below(6)),
            _ => At::Newest,
        };
        let snapshot = StatementId { job: 1, statement: self.random.below(3) as u32 };
        let snapshot = (self.random.below(2) == 0).then_some(snapshot);
        let Ok(pin) = self.home.pin(client, table, at, snapshot) else { return };
        let manifest = Manifest::decode(&pin.manifest).expect("a reader can read it");
        assert_eq!((&*manifest.table, manifest.version), (table, pin.version));
        let rows = self.versions.entry((table.into(), pin.version)).or_insert(manifest.rows());
        assert_eq!(*rows, manifest.rows(), "a version means the same rows for ever");
        for (extent, used) in &manifest.extents {
            assert!(self.extents.contains_key(&extent.number), "{extent} was freed");
            assert_eq!(self.home.published(extent.number), Some(*used));
        }
        assert!(self.home.pinned(client, pin.lease).is_some());
        assert!(self.home.pinned(client + 1, pin.lease).is_none(), "of another client");
        self.leases.insert(pin.lease, (client, manifest));
    }

    fn unpin(&mut self, client: u64) {
        let leases: Vec<u64> = self.leases.keys().copied().collect();
        let Some(lease) = self.random.of(&leases) else { return };
        if self.leases[&lease].0 == client {
            self.leases.remove(&lease);
        }
        let effects = self.home.unpin(self.now_ns, client, lease);
        self.apply(effects);
    }

    fn check(&self) {
        let stat = self.home.stat();
        assert_eq!(self.home.is_freeing(), !self.freeing.is_empty());
        let held: u64 = self.extents.values().map(|bytes| u64::from(*bytes)).sum();
        assert!(held <= stat.bytes && stat.bytes <= BUDGET, "{held} of {stat:?}");
        assert_eq!(stat.extents as usize, self.extents.len());
        assert_eq!(stat.leases as usize, self.leases.len());
    }

    /// All clients end, time passes, and all tables are dropped.
    fn end(mut self) {
        (0..CLIENTS).for_each(|client| self.close(client));
        while !self.saving.is_empty() {
            self.save();
        }
        self.freeing.drain(..).for_each(|extent| self.home.freed(extent));
        self.now_ns += 100 * LEASE_NS;
        let effects = self.home.tick(self.now_ns);
        self.apply(effects);
        self.freeing.drain(..).for_each(|extent| self.home.freed(extent));
        let kept: u64 = self.home.tables().iter().map(|table| table.bytes).sum();
        assert_eq!(self.home.stat().bytes, kept, "something else is kept");
        for table in self.home.tables() {
            let effects = self.home.drop_table(&table.name).expect("it is there");
            self.apply(effects);
        }
        self.freeing.drain(..).for_each(|extent| self.home.freed(extent));
        let stat = self.home.stat();
        assert_eq!((stat.bytes, stat.loads, self.extents.len()), (0, 0, 0));
    }
}

fn definition() -> Definition {
    Definition {
        schema: vec![],
        columns: vec![Layout::Fixed(1)],
        buckets: vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }],
        strip_rows: 64,
    }
}

fn strip(extent: u32, offset: u32, rows: u32) -> Strip {
    let at = Pointer { extent: ExtentId { server: 3, number: extent }, offset };
    let block = Block { at, bytes: rows, codec: Codec::Plain, nulls: 0, least: 0, greatest: 9 };
    Strip { rows, blocks: vec![block] }
}

/// Names the seed of a run that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it was seed {}", self.0);
        }
    }
}

#[test]
fn an_account_beside_it_agrees_with_a_home() {
    let (mut versions, mut freed) = (0, 0);
    for seed in 0..SEEDS {
        let named = Seed(seed);
        let mut account = Account::new(seed);
        for _ in 0..STEPS {
            account.step();
            account.check();
        }
        versions += account.versions.len();
        freed += account.freed.len();
        account.end();
        drop(named);
    }
    assert!(versions > 700 && freed > 6000, "{versions} versions, {freed} extents were freed");
}
