//! Readers and loaders of one table of a memory server, explored completely, with the
//! [`Home`] that the server runs. Memory is a stamp for each extent: the load that wrote it.
//!
//! Readers pin the newest version, post a read, and let go when it has completed. The nodes of a
//! load write an extent each. Any of them may die, or fall silent for good, at any step; the server
//! learns of a death by a connection that ends, and of silence by time alone.
//!
//! Invariants: P1 no extent of a published version can be written; P2 a read gives what the pinned
//! version is made of, or fails because its connection was closed; P4 an extent that is freed is
//! out of reach of every endpoint; P5 in the end the server holds the newest version and nothing
//! else; P7 readers of one statement get one version. Each deviation in [`Flaw`] must be found.

use std::collections::{BTreeMap, BTreeSet};

use models::{Model, Steps as StepsOf};
use pool::PoolError;
use pool::access::{At, LoadMode, TableLoad};
use pool::home::{Effect, Home, LEASE_NS};
use pool::manifest::{Block, Codec, Definition, Layout, Manifest, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::StatementId;

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Readers look up the newest version and take no lease.
    NoLease,
    /// A reader lets go when it has posted its read.
    EndedAtPost,
    /// The server frees what a client held, and leaves its connections open.
    FreedBeforeClose,
    /// The server seals an extent whose key it has not revoked.
    NotRevoked,
    /// The nodes of a statement pin without naming it.
    NoSnapshot,
    /// The server forgets a client whose connection has ended.
    DeathUnnoticed,
}

struct Pool {
    readers: u8,
    /// Nodes of a load, and loads one after the other.
    nodes: u8,
    loads: u8,
    /// Clients that may die or fall silent.
    failures: u8,
    flaw: Flaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Health {
    Well,
    /// It says and does nothing any more, and its connections stand.
    Silent,
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    /// The version, the lease, and the extents with the stamps that they must have.
    Pinned(u64, u64, Vec<(u32, u8)>),
    Posted(u64, u64, Vec<(u32, u8)>),
    Done(u64, u64),
    Ended(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Loading {
    Idle,
    Begun(u64),
    Granted(u64, u32),
    Written(u64, u32),
    Sealed(u64, u32),
    /// It has committed this extent, and the load goes on without it.
    Committed(u64, u32),
    /// It was given up.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    home: Home,
    now_ns: u64,
    /// By extent that is not freed: its stamp.
    memory: BTreeMap<u32, u8>,
    /// By extent: the client whose endpoint can write it.
    writable: BTreeMap<u32, u64>,
    /// By version: the stamps of its extents.
    stamps: BTreeMap<u64, Vec<(u32, u8)>>,
    readers: Vec<(Health, Reading)>,
    nodes: Vec<(Health, Loading)>,
    /// Loads that are over.
    loaded: u8,
    failures: u8,
    /// Clients whose endpoints are open.
    open: BTreeSet<u64>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Pin(u64),
    Post(u64),
    Complete(u64),
    Unpin(u64),
    Begin(u64),
    Grant(u64),
    Write(u64),
    Seal(u64),
    Commit(u64),
    Abort(u64),
    Silence(u64),
    Die(u64),
    Time(u64),
    NextLoad,
}

type Steps = StepsOf<Step, State>;

/// The stamp of an extent that nobody has written.
const UNWRITTEN: u8 = u8::MAX;

/// The clients of the nodes of a load come behind those of the readers.
const NODES: u64 = 100;

const STATEMENT: StatementId = StatementId { job: 1, statement: 1 };

fn definition() -> Definition {
    let columns = vec![Layout::Fixed(1)];
    Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 }
}

fn strip(extent: u32) -> Strip {
    let at = Pointer { extent: ExtentId { server: 0, number: extent }, offset: 0 };
    let block = Block { at, bytes: 1, codec: Codec::Plain, nulls: 0, least: 0, greatest: 0 };
    Strip { rows: 1, blocks: vec![block] }
}

impl State {
    /// Does what the home asks for.
    fn apply(&mut self, effects: Vec<Effect>, flaw: Flaw) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Free(extent) => {
                    let writer = self.writable.get(&extent).copied();
                    if flaw == Flaw::FreedBeforeClose {
                        // Its memory goes, and whoever has the key can still use it.
                        if writer.is_some_and(|client| self.open.contains(&client)) {
                            return Err(format!("P4: {extent} is freed and can be written"));
                        }
                    }
                    self.writable.remove(&extent);
                    self.memory.remove(&extent);
                    self.home.freed(extent);
                }
                Effect::Save(version) => return Err(format!("nobody saves {version:?}")),
                Effect::Close(client, _) => self.close(client, flaw)?,
                Effect::Hold(_)
                | Effect::Release(..)
                | Effect::Introduce(_)
                | Effect::SavePart(_) => {
                    return Err("there is one server".into());
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, client: u64, flaw: Flaw) -> Result<(), String> {
        if flaw == Flaw::DeathUnnoticed {
            self.open.remove(&client);
            return Ok(());
        }
        if flaw != Flaw::FreedBeforeClose {
            self.open.remove(&client);
        }
        let effects = self.home.closed(self.now_ns, client);
        self.apply(effects, flaw)
    }

    fn manifest(&self, client: u64, lease: u64) -> Option<Manifest> {
        Manifest::decode(&self.home.pinned(client, lease)?).ok()
    }
}

impl State {
    /// Node `n` commits its extent; `before` is the state in which it does.
    fn commit(
        &mut self,
        before: &State,
        n: usize,
        stamp: u8,
        flaw: Flaw,
    ) -> Result<Result<(), PoolError>, String> {
        let Loading::Sealed(load, extent) = before.nodes[n].1 else { return Ok(Ok(())) };
        let (client, strips) = (NODES + n as u64, vec![(0, strip(extent))]);
        let (committed, effects) = self.home.commit(client, load, n as u32, strips, true);
        if let Ok(Some(version)) = &committed {
            let own = |(_, loading): &(Health, Loading)| match loading {
                Loading::Sealed(_, own) | Loading::Committed(_, own) => Some((*own, stamp)),
                _ => None,
            };
            let mut stamps: Vec<(u32, u8)> = before.nodes.iter().filter_map(own).collect();
            stamps.sort_unstable();
            self.stamps.insert(*version, stamps);
        }
        self.apply(effects, flaw)?;
        Ok(committed.map(drop))
    }
}

impl Pool {
    fn honest(readers: u8, nodes: u8, loads: u8, failures: u8) -> Self {
        Self { readers, nodes, loads, failures, flaw: Flaw::None }
    }

    fn read(&self, s: &State, r: usize, out: &mut Steps) {
        let client = r as u64;
        let (Health::Well, reading) = &s.readers[r] else { return };
        let mut next = s.clone();
        next.home.renew(s.now_ns, client);
        let is_open = s.open.contains(&client);
        match reading.clone() {
            Reading::Idle => {
                // A statement holds its version for a while, whatever its nodes do.
                let nameless = [Flaw::NoSnapshot, Flaw::NoLease, Flaw::EndedAtPost];
                let snapshot = (!nameless.contains(&self.flaw)).then_some(STATEMENT);
                let pinned = next.home.pin(client, "t", At::Newest, snapshot);
                let result = pinned.map_err(|error| error.to_string()).and_then(|pin| {
                    let manifest = next.manifest(client, pin.lease).ok_or("P2: no manifest")?;
                    let stamps = &next.stamps[&manifest.version];
                    let extents: Vec<u32> =
                        manifest.extents.iter().map(|(extent, _)| extent.number).collect();
                    if extents != stamps.iter().map(|(extent, _)| *extent).collect::<Vec<_>>() {
                        return Err("P2: the manifest is another".into());
                    }
                    let stamps = stamps.clone();
                    next.readers[r].1 = Reading::Pinned(pin.version, pin.lease, stamps);
                    if self.flaw == Flaw::NoLease {
                        let effects = next.home.unpin(s.now_ns, client, pin.lease);
                        next.apply(effects, self.flaw)?;
                    }
                    Ok(next)
                });
                out.push((Step::Pin(client), result));
            }
            Reading::Pinned(version, lease, stamps) => {
                next.readers[r].1 = Reading::Posted(version, lease, stamps);
                let result = match self.flaw {
                    Flaw::EndedAtPost => {
                        let effects = next.home.unpin(s.now_ns, client, lease);
                        next.apply(effects, self.flaw).map(|()| next)
                    }
                    _ => Ok(next),
                };
                out.push((Step::Post(client), result));
            }
            Reading::Posted(version, lease, stamps) => {
                let is_there = |(extent, stamp): &(u32, u8)| s.memory.get(extent) == Some(stamp);
                let result = if !is_open {
                    // It fails, and its rows are nobody's.
                    next.readers[r].1 = Reading::Ended(version);
                    Ok(next)
                } else if stamps.iter().all(is_there) {
                    next.readers[r].1 = Reading::Done(version, lease);
                    Ok(next)
                } else {
                    Err(format!("P2: version {version} is read, and {:?} is there", s.memory))
                };
                out.push((Step::Complete(client), result));
            }
            Reading::Done(version, lease) => {
                let effects = next.home.unpin(s.now_ns, client, lease);
                next.readers[r].1 = Reading::Ended(version);
                out.push((Step::Unpin(client), next.apply(effects, self.flaw).map(|()| next)));
            }
            Reading::Ended(_) => {}
        }
    }

    fn load(&self, s: &State, n: usize, out: &mut Steps) {
        let client = NODES + n as u64;
        let (Health::Well, loading) = &s.nodes[n] else { return };
        let mut next = s.clone();
        let stamp = s.loaded + 1;
        if s.open.contains(&client) {
            next.home.renew(s.now_ns, client);
        } else {
            return;
        }
        let (step, then) = match loading.clone() {
            Loading::Idle => {
                let load = TableLoad {
                    table: "t".into(),
                    definition: definition(),
                    mode: LoadMode::Overwrite,
                    origin: None,
                };
                let snapshot = StatementId { job: 2, statement: stamp.into() };
                let begun = next.home.begin(client, "node", load, snapshot, self.nodes.into());
                (Step::Begin(client), begun.map(Loading::Begun))
            }
            Loading::Begun(load) => {
                let granted = next.home.grant(client, load, 64);
                if let Ok(extent) = granted {
                    next.memory.insert(extent, UNWRITTEN);
                    next.writable.insert(extent, client);
                }
                (Step::Grant(client), granted.map(|extent| Loading::Granted(load, extent)))
            }
            // Nobody is served a write of an extent that was freed.
            Loading::Granted(_, extent) if !s.writable.contains_key(&extent) => {
                (Step::Write(client), Ok(Loading::Ended))
            }
            Loading::Granted(load, extent) => {
                next.memory.insert(extent, stamp);
                (Step::Write(client), Ok(Loading::Written(load, extent)))
            }
            Loading::Written(load, extent) => {
                if next.home.check_seal(client, load, extent).is_err() {
                    (Step::Seal(client), Err(PoolError::Malformed { what: "seal" }))
                } else {
                    if self.flaw != Flaw::NotRevoked {
                        next.writable.remove(&extent);
                    }
                    let sealed = next.home.seal(client, load, extent, 1);
                    (Step::Seal(client), sealed.map(|()| Loading::Sealed(load, extent)))
                }
            }
            Loading::Sealed(load, extent) => {
                let committed = next.commit(s, n, stamp, self.flaw);
                let Ok(committed) = committed.map_err(|reason| {
                    out.push((Step::Commit(client), Err(reason)));
                }) else {
                    return;
                };
                (Step::Commit(client), committed.map(|_| Loading::Committed(load, extent)))
            }
            // A job whose node has ended ends on all of its nodes.
            Loading::Committed(load, _) if self.is_broken(s) => {
                let effects = next.home.abort(client, load, "");
                if let Err(reason) = next.apply(effects, self.flaw) {
                    out.push((Step::Abort(client), Err(reason)));
                    return;
                }
                (Step::Abort(client), Ok(Loading::Ended))
            }
            Loading::Committed(..) | Loading::Ended => return,
        };
        // A load that was given up is over for this node.
        next.nodes[n].1 = then.unwrap_or(Loading::Ended);
        out.push((step, Ok(next)));
    }

    fn fail(&self, s: &State, out: &mut Steps) {
        if s.failures == 0 {
            return;
        }
        let clients =
            (0..s.readers.len() as u64).chain((0..s.nodes.len() as u64).map(|n| NODES + n));
        for client in clients {
            for health in [Health::Silent, Health::Gone] {
                let mut next = s.clone();
                next.failures -= 1;
                let of = match client.checked_sub(NODES) {
                    Some(node) => &mut next.nodes[node as usize].0,
                    None => &mut next.readers[client as usize].0,
                };
                if *of != Health::Well {
                    continue;
                }
                *of = health;
                match health {
                    Health::Silent => out.push((Step::Silence(client), Ok(next))),
                    _ => {
                        let closed = next.close(client, self.flaw);
                        out.push((Step::Die(client), closed.map(|()| next)));
                    }
                }
            }
        }
    }

    /// Half the time passes after which silence is a death; all who are well have said something.
    fn time(&self, s: &State, out: &mut Steps) {
        let mut next = s.clone();
        let silent =
            |client: u64, health: &Health| *health == Health::Silent && s.open.contains(&client);
        let mut readers = s.readers.iter().enumerate();
        let mut nodes = s.nodes.iter().enumerate();
        let waits = readers.any(|(r, (of, _))| silent(r as u64, of))
            || nodes.any(|(n, (of, _))| silent(NODES + n as u64, of));
        // When all have ended, time goes on until nothing more happens.
        let rests = self.all_ended(s) && s.now_ns < 20 * LEASE_NS;
        if !waits && !rests {
            return;
        }
        next.now_ns += if rests { 7 * LEASE_NS } else { LEASE_NS / 2 };
        for (r, (health, _)) in s.readers.iter().enumerate() {
            if *health == Health::Well && s.open.contains(&(r as u64)) {
                next.home.renew(next.now_ns, r as u64);
            }
        }
        for (n, (health, _)) in s.nodes.iter().enumerate() {
            let client = NODES + n as u64;
            if *health == Health::Well && s.open.contains(&client) {
                next.home.renew(next.now_ns, client);
            }
        }
        let effects = next.home.tick(next.now_ns);
        let result = next.apply(effects, self.flaw).map(|()| next);
        out.push((Step::Time(s.now_ns), result));
    }

    /// The nodes begin the next load when all of them have ended the last.
    fn next_load(&self, s: &State, out: &mut Steps) {
        let ended = |(n, (_, of)): (usize, &(Health, Loading))| {
            !s.open.contains(&(NODES + n as u64)) || self.has_loaded(s, of)
        };
        if s.loaded + 1 < self.loads && s.nodes.iter().enumerate().all(ended) {
            let mut next = s.clone();
            next.loaded += 1;
            for (health, of) in &mut next.nodes {
                if *health == Health::Well {
                    *of = Loading::Idle;
                }
            }
            out.push((Step::NextLoad, Ok(next)));
        }
    }

    /// Whether a node of the job has ended before its time.
    fn is_broken(&self, s: &State) -> bool {
        s.nodes.iter().any(|(health, _)| *health != Health::Well)
    }

    fn has_loaded(&self, s: &State, of: &Loading) -> bool {
        matches!(of, Loading::Ended) || matches!(of, Loading::Committed(..)) && !self.is_broken(s)
    }

    fn all_ended(&self, s: &State) -> bool {
        let read = |(health, of): &(Health, Reading)| {
            *health != Health::Well || matches!(of, Reading::Ended(_))
        };
        let loaded =
            |(health, of): &(Health, Loading)| *health != Health::Well || self.has_loaded(s, of);
        s.loaded + 1 >= self.loads && s.readers.iter().all(read) && s.nodes.iter().all(loaded)
    }
}

impl Model for Pool {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let mut home = Home::new(0, 1 << 20);
        let load = TableLoad {
            table: "t".into(),
            definition: definition(),
            mode: LoadMode::Create,
            origin: None,
        };
        let snapshot = StatementId { job: 2, statement: 0 };
        let load = home.begin(NODES, "node", load, snapshot, 1).expect("the pool is empty");
        let extent = home.grant(NODES, load, 64).expect("there is room");
        home.seal(NODES, load, extent, 1).expect("it was granted");
        let (version, _) = home.commit(NODES, load, 0, vec![(0, strip(extent))], true);
        assert_eq!(version, Ok(Some(1)));
        let nodes = (0..u64::from(self.nodes)).map(|n| NODES + n);
        let open: BTreeSet<u64> = (0..u64::from(self.readers)).chain(nodes).collect();
        open.iter().for_each(|client| home.renew(0, *client));
        vec![State {
            home,
            now_ns: 0,
            memory: BTreeMap::from([(extent, 0)]),
            writable: BTreeMap::new(),
            stamps: BTreeMap::from([(1, vec![(extent, 0)])]),
            readers: vec![(Health::Well, Reading::Idle); self.readers.into()],
            nodes: vec![(Health::Well, Loading::Idle); self.nodes.into()],
            loaded: 0,
            failures: self.failures,
            open,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        (0..s.readers.len()).for_each(|r| self.read(s, r, out));
        (0..s.nodes.len()).for_each(|n| self.load(s, n, out));
        self.fail(s, out);
        self.time(s, out);
        self.next_load(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        for stamps in s.stamps.values() {
            for (extent, stamp) in stamps {
                if s.writable.contains_key(extent) {
                    return Err(format!("P1: {extent} is published and can be written"));
                }
                if s.memory.get(extent).is_some_and(|of| of != stamp) {
                    return Err(format!("P1: {extent} is not what was committed"));
                }
            }
        }
        let versions = s.readers.iter().filter_map(|(_, reading)| match reading {
            Reading::Idle => None,
            Reading::Pinned(version, ..)
            | Reading::Posted(version, ..)
            | Reading::Done(version, _)
            | Reading::Ended(version) => Some(*version),
        });
        let versions: BTreeSet<u64> = versions.collect();
        if versions.len() > 1 {
            return Err(format!("P7: readers of one statement have versions {versions:?}"));
        }
        if self.is_final(s) {
            let newest = s.home.tables()[0].version;
            let kept: BTreeSet<u32> = s.stamps[&newest].iter().map(|(extent, _)| *extent).collect();
            let held: BTreeSet<u32> = s.memory.keys().copied().collect();
            if held != kept || s.home.stat().loads > 0 || s.home.stat().leases > 0 {
                return Err(format!("P5: {held:?} are held in the end, and {kept:?} are of use"));
            }
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        self.all_ended(s) && s.now_ns >= 20 * LEASE_NS
    }
}

fn fails(model: &Pool, reason: &str) {
    finds(model, model.flaw, reason);
}

#[test]
fn readers_get_the_version_that_they_pinned_and_nothing_is_kept_for_the_dead() {
    holds(&Pool::honest(2, 1, 2, 2), 100_000);
    holds(&Pool::honest(1, 2, 2, 1), 10_000);
}

#[test]
fn every_deviation_of_readers_and_loads_is_found() {
    let flawed = |flaw| Pool { flaw, ..Pool::honest(2, 1, 2, 1) };
    let alone = |flaw| Pool { flaw, ..Pool::honest(1, 1, 2, 1) };
    fails(&alone(Flaw::NoLease), "P2");
    fails(&alone(Flaw::EndedAtPost), "P2");
    fails(&flawed(Flaw::FreedBeforeClose), "P");
    fails(&flawed(Flaw::NotRevoked), "P1");
    fails(&flawed(Flaw::NoSnapshot), "P7");
    fails(&flawed(Flaw::DeathUnnoticed), "P");
}
