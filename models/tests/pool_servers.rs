//! A table whose extents lie on two memory servers, explored completely, with the [`Home`] that
//! both servers run: one has the table, the other holds extents for it. Memory is a stamp for each
//! extent: the load that wrote it.
//!
//! A loader writes an extent on each server and may die at any step; each server learns of that by
//! itself, at any time. Readers pin at the table's server and read on both, and may be closed there
//! at any time. A connection between the servers may break: messages and answers on their way are
//! lost then, and each end notices at any time behind that; the next load makes another connection.
//!
//! Invariants: P1 no extent of a version that has appeared can be written, on either server; P2 a
//! read gives what the pinned version is made of, or fails because a connection has ended; P9 while
//! the connection for which its extents are held stands, the newest version has all of them; P5 in
//! the end both servers hold the newest version and nothing else, or it is known that a part is
//! lost. Each deviation in [`Flaw`] must be found.

use std::collections::{BTreeMap, VecDeque};

use models::{Model, Steps as StepsOf};
use pool::PoolError;
use pool::access::{At, LoadMode, TableLoad};
use pool::home::{Effect, Home, PeerId};
use pool::manifest::{Block, Codec, Definition, Layout, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::{ServerPlace, StatementId};

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A version appears when its holder was asked, before it has answered.
    AppearsBeforeHeld,
    /// The holder seals an extent whose key it has not revoked.
    NotRevoked,
    /// Extents of the version before are released when a version appears, whoever reads it.
    ReleasedEarly,
    /// Readers look up the newest version and take no lease.
    NoLease,
    /// The holder gets no releases.
    NeverReleased,
    /// The holder goes on holding for a server that is gone.
    HolderKeeps,
    /// The table's server does not notice that the holder is gone.
    LossUnnoticed,
    /// The holder keeps what a loader that has died has written.
    DeathUnnoticed,
}

struct Servers {
    readers: usize,
    loads: u8,
    mode: LoadMode,
    failures: u8,
    flaw: Flaw,
}

/// The server that has the table, and the one that holds extents.
const HOME: usize = 0;
const HOLDER: usize = 1;
/// Clients: readers are numbered from 0, the loader is this one on both servers …
const LOADER: u64 = 100;
/// … and the table's server is this one on the holder, and more by the number of the connection.
const SERVER: u64 = 200;
/// The stamp of an extent that nobody has written.
const UNWRITTEN: u8 = u8::MAX;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    home: Home,
    /// By extent that is not freed: its stamp.
    memory: BTreeMap<u32, u8>,
    /// Extents that the loader can write.
    writable: Vec<u32>,
    /// Whether the connection with the loader stands.
    loader: bool,
}

/// A message from the table's server to the holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Message {
    Hold(u64, Vec<(u32, u32)>, Vec<u32>),
    Release(Vec<u32>),
}

/// The connection between the servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Link {
    messages: VecDeque<Message>,
    answers: VecDeque<(u64, bool)>,
    broken: bool,
    /// Which ends have noticed.
    noticed: [bool; 2],
}

/// Extents of a version: the number of the server in pointers, which is that of the connection, and
/// the number and the stamp of each.
type Extents = Vec<(PeerId, u32, u8)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    Pinned(u64, Extents),
    Posted(u64, Extents),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Loading {
    Idle,
    Begun(u64, PeerId),
    /// An extent on each server.
    Granted(u64, PeerId, [u32; 2]),
    Written(u64, PeerId, [u32; 2]),
    /// The holder has sealed its extent, the table's server has not.
    Half(u64, PeerId, [u32; 2]),
    Sealed(u64, PeerId, [u32; 2]),
    /// It waits for the outcome.
    Committed(u64),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; 2],
    /// By number, from 1.
    links: Vec<Link>,
    /// By version: its extents.
    versions: BTreeMap<u64, Extents>,
    /// The newest version that the model knows of.
    newest: u64,
    readers: Vec<(bool, Reading)>,
    loading: Loading,
    load: u64,
    /// Whether the loader lives.
    loader: bool,
    loaded: u8,
    failures: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Pin(usize),
    Post(usize),
    Complete(usize),
    Close(usize),
    Load(Loading),
    NextLoad,
    Die,
    DeathSeen(usize),
    Delivered(PeerId),
    Answered(PeerId),
    Break(PeerId),
    BreakSeen(usize, PeerId),
}

type Steps = StepsOf<Step, State>;

fn strip(server: u16, extent: u32) -> Strip {
    let at = Pointer { extent: ExtentId { server, number: extent }, offset: 0 };
    let block = Block { at, bytes: 1, codec: Codec::Plain, nulls: 0, least: 0, greatest: 0 };
    Strip { rows: 1, blocks: vec![block] }
}

fn table(mode: LoadMode) -> TableLoad {
    let columns = vec![Layout::Fixed(1)];
    let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
    TableLoad { table: "t".into(), definition, mode, origin: None }
}

fn holder() -> ServerPlace {
    ServerPlace { name: "m1".into(), address: "m1:1".into(), identity: 2, incarnation: 2 }
}

fn server_of(peer: PeerId) -> usize {
    if peer == 0 { HOME } else { HOLDER }
}

impl State {
    /// Does what a server has decided.
    fn apply(&mut self, at: usize, effects: Vec<Effect>, flaw: Flaw) {
        for effect in effects {
            let server = &mut self.servers[at];
            match effect {
                Effect::Free(extent) => {
                    server.memory.remove(&extent);
                    server.writable.retain(|of| *of != extent);
                    server.home.freed(extent);
                }
                Effect::Hold(hold) => {
                    if flaw == Flaw::AppearsBeforeHeld {
                        let effects = self.servers[HOME].home.held(hold.load, hold.peer, Ok(()));
                        self.apply(HOME, effects, flaw);
                    }
                    self.say(hold.peer, Message::Hold(hold.load, hold.extents, hold.unused));
                }
                Effect::Release(peer, extents) => {
                    if flaw != Flaw::NeverReleased {
                        self.say(peer, Message::Release(extents));
                    }
                }
                Effect::Save(_)
                | Effect::Close(..)
                | Effect::Introduce(_)
                | Effect::SavePart(_) => {}
            }
        }
    }

    fn say(&mut self, peer: PeerId, message: Message) {
        while self.links.len() < usize::from(peer) {
            self.links.push(Link::default());
        }
        // Into a connection that has broken nothing goes.
        let link = &mut self.links[usize::from(peer) - 1];
        if !link.broken {
            link.messages.push_back(message);
        }
    }

    /// Whether what is held for a connection may be gone; that of the home itself never is.
    fn is_broken(&self, peer: PeerId) -> bool {
        let link = usize::from(peer).checked_sub(1).and_then(|at| self.links.get(at));
        link.is_some_and(|link| link.broken)
    }

    /// A version may have appeared: it is that of the load whose outcome is known.
    fn look(&mut self, flaw: Flaw) {
        let tables = self.servers[HOME].home.tables();
        let newest = tables.first().map_or(0, |table| table.version);
        if flaw == Flaw::ReleasedEarly && newest > self.newest {
            let before = self.versions.get(&self.newest).cloned().unwrap_or_default();
            for (peer, extent, _) in before.into_iter().filter(|(peer, ..)| *peer > 0) {
                self.say(peer, Message::Release(vec![extent]));
            }
        }
        self.newest = newest;
    }

    fn is_there(&self, (peer, extent, stamp): &(PeerId, u32, u8)) -> Option<bool> {
        self.servers[server_of(*peer)].memory.get(extent).map(|of| of == stamp)
    }
}

/// The loader gets an extent on each server.
fn grant(servers: &mut [Server; 2], load: u64, peer: PeerId) -> Result<Loading, PoolError> {
    let here = servers[HOME].home.grant(LOADER, load, 64)?;
    let there = servers[HOLDER].home.grant_part(LOADER, load, 64)?;
    for (server, extent) in servers.iter_mut().zip([here, there]) {
        server.memory.insert(extent, UNWRITTEN);
        server.writable.push(extent);
    }
    Ok(Loading::Granted(load, peer, [here, there]))
}

impl Servers {
    fn honest(readers: usize, loads: u8, mode: LoadMode, failures: u8) -> Self {
        Self { readers, loads, mode, failures, flaw: Flaw::None }
    }

    fn read(&self, s: &State, r: usize, out: &mut Steps) {
        let (open, reading) = &s.readers[r];
        let (client, mut next) = (r as u64, s.clone());
        match reading {
            Reading::Idle if *open => {
                let pinned = next.servers[HOME].home.pin(client, "t", At::Newest, None);
                next.readers[r].1 = match pinned {
                    Ok(pin) => {
                        let extents = s.versions[&pin.version].clone();
                        if self.flaw == Flaw::NoLease {
                            let effects = next.servers[HOME].home.unpin(0, client, pin.lease);
                            next.apply(HOME, effects, self.flaw);
                        }
                        Reading::Pinned(pin.lease, extents)
                    }
                    // A part of the table is lost, and the reader is told.
                    Err(_) if s.links.iter().any(|link| link.noticed[HOME]) => Reading::Ended,
                    Err(error) => return out.push((Step::Pin(r), Err(format!("P9: {error}")))),
                };
                out.push((Step::Pin(r), Ok(next)));
            }
            Reading::Pinned(lease, extents) => {
                next.readers[r].1 = Reading::Posted(*lease, extents.clone());
                out.push((Step::Post(r), Ok(next)));
            }
            Reading::Posted(lease, extents) => {
                let effects = next.servers[HOME].home.unpin(0, client, *lease);
                next.readers[r].1 = Reading::Ended;
                next.apply(HOME, effects, self.flaw);
                let may_fail = |peer: PeerId| !open || s.is_broken(peer);
                let wrong = extents.iter().find(|extent| match s.is_there(extent) {
                    Some(right) => !right,
                    None => !may_fail(extent.0),
                });
                out.push((
                    Step::Complete(r),
                    match wrong {
                        None => Ok(next),
                        Some(extent) => Err(format!("P2: {extent:?} is read, and is not there")),
                    },
                ));
            }
            Reading::Idle | Reading::Ended => {}
        }
    }

    /// The next step of the loader, and its state behind it.
    fn load(&self, s: &State, out: &mut Steps) {
        if !s.loader {
            return;
        }
        let (mut next, stamp) = (s.clone(), s.loaded + 1);
        let [home, holder_server] = &mut next.servers;
        let then = match s.loading {
            Loading::Idle => {
                let statement = StatementId { job: 1, statement: stamp.into() };
                let begun = home.home.begin(LOADER, "l", table(self.mode), statement, 1);
                let spread = begun.and_then(|load| {
                    home.home
                        .distribute(LOADER, load, vec![holder()])
                        .map(|numbers| (load, numbers[0]))
                });
                next.load = spread.as_ref().map_or(0, |(load, _)| *load);
                spread.map(|(load, peer)| Loading::Begun(load, peer))
            }
            Loading::Begun(load, peer) => grant(&mut next.servers, load, peer),
            Loading::Granted(load, peer, extents) => {
                for (server, extent) in next.servers.iter_mut().zip(extents) {
                    if server.writable.contains(&extent) {
                        server.memory.insert(extent, stamp);
                    }
                }
                Ok(Loading::Written(load, peer, extents))
            }
            Loading::Written(load, peer, extents) => {
                if self.flaw != Flaw::NotRevoked {
                    holder_server.writable.retain(|of| *of != extents[HOLDER]);
                }
                let sealed = holder_server.home.seal(LOADER, load, extents[HOLDER], 1);
                sealed.map(|()| Loading::Half(load, peer, extents))
            }
            Loading::Half(load, peer, extents) => {
                home.writable.retain(|of| *of != extents[HOME]);
                let sealed = home.home.seal(LOADER, load, extents[HOME], 1);
                sealed.map(|()| Loading::Sealed(load, peer, extents))
            }
            Loading::Sealed(load, peer, extents) => {
                let strips = vec![(0, strip(0, extents[HOME])), (0, strip(peer, extents[HOLDER]))];
                let (committed, effects) = home.home.commit(LOADER, load, 0, strips, true);
                let before = s.versions.get(&s.newest).filter(|_| self.mode == LoadMode::Append);
                let mut all = before.cloned().unwrap_or_default();
                all.extend([(0, extents[HOME], stamp), (peer, extents[HOLDER], stamp)]);
                // It appears when the holder holds its extent, or never.
                next.versions.insert(s.newest + 1, all);
                next.apply(HOME, effects, self.flaw);
                next.look(self.flaw);
                committed.map(|_| Loading::Committed(load))
            }
            Loading::Committed(load) => {
                let statement = StatementId { job: 1, statement: stamp.into() };
                match s.servers[HOME].home.outcome(load, statement) {
                    Ok(None) => return,
                    Ok(Some(_)) => Ok(Loading::Ended),
                    Err(error) => Err(error),
                }
            }
            Loading::Ended => return,
        };
        next.loading = then.unwrap_or_else(|_| {
            // It gives up on both servers.
            for at in [HOME, HOLDER] {
                let effects = next.servers[at].home.abort(LOADER, s.load, "");
                next.apply(at, effects, self.flaw);
            }
            Loading::Ended
        });
        out.push((Step::Load(next.loading), Ok(next)));
    }

    /// Failures, and what the servers notice of them.
    fn fail(&self, s: &State, out: &mut Steps) {
        if s.failures > 0 {
            let fewer = || State { failures: s.failures - 1, ..s.clone() };
            if s.loader {
                out.push((Step::Die, Ok(State { loader: false, ..fewer() })));
            }
            for (at, _) in s.links.iter().enumerate().filter(|(_, link)| !link.broken) {
                let mut next = fewer();
                next.links[at] = Link { broken: true, ..Link::default() };
                out.push((Step::Break(at as PeerId + 1), Ok(next)));
            }
            for r in (0..s.readers.len()).filter(|r| s.readers[*r].0) {
                let mut next = fewer();
                next.readers[r].0 = false;
                let effects = next.servers[HOME].home.closed(0, r as u64);
                next.apply(HOME, effects, self.flaw);
                out.push((Step::Close(r), Ok(next)));
            }
        }
        for at in [HOME, HOLDER] {
            if !s.loader && s.servers[at].loader {
                let mut next = s.clone();
                next.servers[at].loader = false;
                next.servers[at].writable.clear();
                if self.flaw != Flaw::DeathUnnoticed || at == HOME {
                    let effects = next.servers[at].home.closed(0, LOADER);
                    next.apply(at, effects, self.flaw);
                }
                out.push((Step::DeathSeen(at), Ok(next)));
            }
            let unseen = |(_, link): &(usize, &Link)| link.broken && !link.noticed[at];
            for (link, _) in s.links.iter().enumerate().filter(unseen) {
                let (mut next, peer) = (s.clone(), link as PeerId + 1);
                next.links[link].noticed[at] = true;
                let effects = match (at, self.flaw) {
                    (HOME, Flaw::LossUnnoticed) | (HOLDER, Flaw::HolderKeeps) => vec![],
                    (HOME, _) => next.servers[HOME].home.peer_lost(peer, 0, "it has ended"),
                    _ => next.servers[HOLDER].home.closed(0, SERVER + u64::from(peer)),
                };
                next.apply(at, effects, self.flaw);
                out.push((Step::BreakSeen(at, peer), Ok(next)));
            }
        }
    }

    /// Messages between the servers, in order.
    fn deliver(&self, s: &State, out: &mut Steps) {
        (0..s.links.len()).for_each(|link| self.deliver_one(s, link, out));
    }

    fn deliver_one(&self, s: &State, link: usize, out: &mut Steps) {
        let peer = link as PeerId + 1;
        let server = SERVER + u64::from(peer);
        if let Some(message) = s.links[link].messages.front() {
            let mut next = s.clone();
            next.links[link].messages.pop_front();
            let home = &mut next.servers[HOLDER].home;
            let effects = match message {
                Message::Hold(load, extents, unused) => {
                    let (held, effects) = home.hold(server, *load, extents, unused);
                    next.links[link].answers.push_back((*load, held.is_ok()));
                    effects
                }
                Message::Release(extents) => home.release(server, extents),
            };
            next.apply(HOLDER, effects, self.flaw);
            out.push((Step::Delivered(peer), Ok(next)));
        }
        if let Some((load, held)) = s.links[link].answers.front() {
            let mut next = s.clone();
            next.links[link].answers.pop_front();
            let held = held.then_some(()).ok_or_else(|| "it is not there".to_owned());
            let effects = next.servers[HOME].home.held(*load, peer, held);
            next.apply(HOME, effects, self.flaw);
            next.look(self.flaw);
            out.push((Step::Answered(peer), Ok(next)));
        }
    }
}

impl Model for Servers {
    type State = State;
    type Step = Step;

    /// The first version lies on both servers.
    fn initial(&self) -> Vec<State> {
        let server =
            |home| Server { home, memory: BTreeMap::new(), writable: vec![], loader: true };
        let homes = [1, 2].map(|number| Home::new(0, 1 << 20).with_incarnation(number));
        let mut state = State {
            servers: homes.map(server),
            links: vec![],
            versions: BTreeMap::new(),
            newest: 0,
            readers: vec![(true, Reading::Idle); self.readers],
            loading: Loading::Idle,
            load: 0,
            loader: true,
            loaded: 0,
            failures: 0,
        };
        let honest = Servers::honest(0, 1, LoadMode::Create, 0);
        let mut out = Vec::new();
        while state.loading != Loading::Ended {
            honest.load(&state, &mut out);
            honest.deliver(&state, &mut out);
            state = out.pop().and_then(|(_, next)| next.ok()).expect("nothing fails");
            out.clear();
        }
        assert_eq!(state.newest, 1);
        (state.loading, state.loaded, state.failures) = (Loading::Idle, 1, self.failures);
        vec![state]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        (0..s.readers.len()).for_each(|r| self.read(s, r, out));
        self.load(s, out);
        self.deliver(s, out);
        self.fail(s, out);
        if s.loader && s.loading == Loading::Ended && s.loaded < self.loads {
            let next = State { loaded: s.loaded + 1, loading: Loading::Idle, ..s.clone() };
            out.push((Step::NextLoad, Ok(next)));
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let appeared = s.versions.range(..=s.newest);
        for (peer, extent, stamp) in appeared.flat_map(|(_, extents)| extents) {
            let at = server_of(*peer);
            if s.servers[at].writable.contains(extent) {
                return Err(format!("P1: {extent} of server {at} is published and can be written"));
            }
            if s.is_there(&(*peer, *extent, *stamp)) == Some(false) {
                return Err(format!("P1: {extent} of server {at} is not what was committed"));
            }
        }
        let newest = &s.versions[&s.newest];
        let is_gone =
            |extent: &(PeerId, u32, u8)| !s.is_broken(extent.0) && s.is_there(extent) != Some(true);
        if newest.iter().any(is_gone) {
            return Err(format!("P9: version {} has not all of its extents", s.newest));
        }
        if self.is_final(s) {
            self.check_end(s, newest)?;
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        let read = s
            .readers
            .iter()
            .all(|(open, of)| *of == Reading::Ended || !open && matches!(of, Reading::Idle));
        let loaded = s.loading == Loading::Ended && (s.loaded >= self.loads) || !s.loader;
        let seen = s.loader || s.servers.iter().all(|server| !server.loader);
        let rests = |link: &Link| {
            link.messages.is_empty()
                && link.answers.is_empty()
                && (!link.broken || link.noticed == [true; 2])
        };
        read && loaded && seen && s.links.iter().all(rests)
    }
}

impl Servers {
    fn check_end(&self, s: &State, newest: &Extents) -> Result<(), String> {
        let damaged = s.servers[HOME].home.tables()[0].damaged;
        if damaged != newest.iter().any(|(peer, ..)| s.is_broken(*peer)) {
            return Err(format!("P5: the table is damaged: {damaged}, in {:?}", s.links));
        }
        for at in [HOME, HOLDER] {
            let is_held =
                |(peer, ..): &&(PeerId, u32, u8)| server_of(*peer) == at && !s.is_broken(*peer);
            let of = newest.iter().filter(is_held);
            let kept: BTreeMap<u32, u8> = of.map(|(_, number, stamp)| (*number, *stamp)).collect();
            let held = &s.servers[at].memory;
            if *held != kept {
                return Err(format!("P5: server {at} has {held:?}, and {kept:?} are of use"));
            }
            let stat = s.servers[at].home.stat();
            if stat.loads > 0 || stat.leases > 0 {
                return Err(format!("P5: server {at} has loads or leases in the end: {stat:?}"));
            }
        }
        Ok(())
    }
}

fn fails(flaw: Flaw, reason: &str) {
    finds(&Servers { flaw, ..Servers::honest(1, 2, LoadMode::Overwrite, 1) }, flaw, reason);
}

#[test]
fn a_version_on_two_servers_is_whole_or_not_there() {
    holds(&Servers::honest(2, 2, LoadMode::Overwrite, 2), 100_000);
    holds(&Servers::honest(1, 3, LoadMode::Append, 2), 10_000);
}

#[test]
fn every_deviation_between_two_servers_is_found() {
    fails(Flaw::AppearsBeforeHeld, "P9");
    fails(Flaw::NotRevoked, "P1");
    fails(Flaw::ReleasedEarly, "P2");
    fails(Flaw::NoLease, "P2");
    fails(Flaw::NeverReleased, "P5");
    fails(Flaw::HolderKeeps, "P5");
    // The load waits for an answer that nobody gives.
    fails(Flaw::LossUnnoticed, "dead end");
    fails(Flaw::DeathUnnoticed, "P5");
}
