//! A table that lies on two memory servers with directories, explored completely, with the [`Home`]
//! that both servers run, and their files: one has the table, the other a part of each version.
//!
//! A loader makes versions, one after the other, and drops the table in the end. Each server saves
//! in the background, task by task. Servers die at each step and are started anew; what the one
//! that has the table has sent may still arrive when it is dead. Connections between the servers
//! break; the next client that comes tells the servers where the other one is. A reader pins a
//! version and reads it on both servers. While the one that has the table is dead a file of it may
//! be lost, so that the table is damaged, and may be put back later.
//!
//! Invariants: K1 a version whose record is on the disk has all of its extents on the disks of
//! both, but for the file that was lost, whatever has died; K2 what was reported to the loader
//! stays: the table is at least of that version, or dropped; K3 in the end both servers have the
//! newest version and nothing else, in memory and in files; P2 a read gives what the pinned version
//! is made of, or fails because a server has died. Each deviation in [`Flaw`] must be found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use models::{Model, Steps as StepsOf};
use pool::access::{At, LoadMode, TableLoad, TableSummary};
use pool::home::{Effect, HeldPart, HoldRequest, Home, Introduction, PeerId, SavedVersion};
use pool::manifest::{Block, Codec, Definition, Layout, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::{ServerPlace, StatementId};

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The holder answers when it holds extents, and saves that afterwards.
    AnswersUnsaved,
    /// The record of a version is saved before the holder has answered.
    SavedBeforeHeld,
    /// Extents are released when the table is dropped, and its record goes afterwards.
    ReleasedEarly,
    /// Extents are claimed while the record of a table that was dropped is on the disk.
    ClaimedEarly,
    /// The extents of a version that is being saved are not claimed.
    SavingUnclaimed,
    /// Nothing is claimed: the holder does not learn what is of no use.
    Unclaimed,
    /// The holder goes on hearing a connection in whose place there is another one.
    HearsBoth,
    /// The files of extents go before the record that names them.
    FilesFirst,
    /// A server with a damaged table says that it has claimed all.
    ClaimsAllDamaged,
    /// Nothing is claimed when a damaged table is dropped.
    ClaimsNotAgain,
    /// Extents that wait to be held are not claimed, on a connection where that was asked for.
    ClaimsHeldAlone,
}

struct SavedTable {
    loads: u8,
    failures: u8,
    reads: bool,
    /// Whether a file may be lost.
    harms: bool,
    /// Whether another table is damaged from the start, which is dropped at some time.
    beside_damaged: bool,
    flaw: Flaw,
}

/// The server that has the table, and the one that has a part of it.
const HOME: usize = 0;
const HOLDER: usize = 1;
const NAMES: [&str; 2] = ["m0", "m1"];
/// Clients: the reader, the loader on both servers, and the connections between the servers.
const READER: u64 = 1;
const LOADER: u64 = 2;
const SERVER: u64 = 100;

/// A task of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    Extent(u32, u8),
    Version(Box<Saved>),
    Part(HeldPart),
    Drop,
    DropOther,
    Free(u32),
    Claim(Introduction),
    Hold(u64, PeerId, Vec<(u32, u32)>, Vec<u32>),
    Release(PeerId, Vec<u32>),
}

/// A saved version, for hashing: its load and the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Saved {
    load: u64,
    snapshot: StatementId,
    manifest: pool::manifest::Manifest,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Disk {
    files: BTreeMap<u32, u8>,
    version: Option<Saved>,
    part: Option<HeldPart>,
    /// Whether there is a record of another table, which cannot be read.
    other_damaged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Server {
    /// None while it is dead.
    home: Option<Home>,
    incarnation: u32,
    memory: BTreeMap<u32, u8>,
    tasks: VecDeque<Task>,
    disk: Disk,
    /// Whether an extent of the saved version was not there at the start.
    damaged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Message {
    Claim(Introduction),
    Hold(u64, Vec<(u32, u32)>, Vec<u32>),
    Release(Vec<u32>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Answer {
    Claimed(Vec<u32>),
    Held(u64, bool),
}

/// A connection between the servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Link {
    /// The client that it is on the holder.
    client: u64,
    /// The number that the home gave it.
    number: u64,
    peer: PeerId,
    messages: VecDeque<Message>,
    answers: VecDeque<Answer>,
    /// The load whose extents the holder is saving: later messages wait.
    waits: Option<u64>,
    /// Which ends are there.
    ends: [bool; 2],
}

/// Extents of a version: the server, the number and the stamp of each.
type Extents = Vec<(usize, u32, u8)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    /// With the incarnations of both servers.
    Pinned(u64, Extents, [u32; 2]),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Loading {
    Idle,
    /// With the incarnations of both servers, and the extents on each.
    Written(u64, PeerId, [u32; 2], [u32; 2]),
    Committed(u64, u32),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; 2],
    links: Vec<Link>,
    connections: u64,
    /// The number of the last connection.
    numbered: u64,
    /// By version that may appear: its extents.
    versions: BTreeMap<u64, Extents>,
    /// The version that the loader was reported of.
    reported: u64,
    dropped: bool,
    reading: Reading,
    loading: Loading,
    loaded: u8,
    failures: u8,
    /// Whether no file was lost yet.
    harms: bool,
    /// The file of the server that has the table that was lost.
    lost: Option<(u32, u8)>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Pin,
    Read,
    Load(Loading),
    Drop,
    DropOther,
    Stored(usize),
    Delivered(u64),
    Answered(u64),
    Relocated,
    Dies(usize),
    Starts(usize),
    Loses(u32),
    PutsBack(u32),
    Breaks(u64),
    BreakSeen(usize, u64),
}

type Steps = StepsOf<Step, State>;

fn strip(server: u16, extent: u32) -> (u32, Strip) {
    let at = Pointer { extent: ExtentId { server, number: extent }, offset: 0 };
    let block = Block { at, bytes: 1, codec: Codec::Plain, nulls: 0, least: 0, greatest: 0 };
    (0, Strip { rows: 1, blocks: vec![block] })
}

fn table(mode: LoadMode) -> TableLoad {
    let columns = vec![Layout::Fixed(1)];
    let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
    TableLoad { table: "t".into(), definition, mode, origin: None }
}

fn place(incarnation: u32) -> ServerPlace {
    let (name, address) = (NAMES[HOLDER].into(), "m1:1".into());
    ServerPlace { name, address, identity: HOLDER as u64 + 1, incarnation }
}

/// The summary of the table at a server that is alive.
fn summary(server: &Server) -> Option<TableSummary> {
    server.home.as_ref()?.tables().into_iter().find(|table| table.name == "t")
}

/// The newest version of the table, if the server is alive and has one.
fn newest(server: &Server) -> u64 {
    summary(server).map_or(0, |table| table.version)
}

impl Server {
    fn new(at: usize) -> Self {
        let (disk, memory) = (Disk::default(), BTreeMap::new());
        let (home, tasks) = (None, VecDeque::new());
        let mut server = Self { home, incarnation: 0, memory, tasks, disk, damaged: false };
        server.start(at).expect("an empty directory");
        server
    }

    /// Starts with what the disk has.
    fn start(&mut self, at: usize) -> Result<(), String> {
        self.incarnation += 1;
        let home = Home::new(0, 1 << 20).with_saving();
        let home =
            home.with_identity(at as u64 + 1, self.incarnation).with_incarnation(self.incarnation);
        let home = self.home.insert(home);
        let mut used = BTreeSet::new();
        // Numbers of files that are there are not used again.
        let named = self.disk.part.iter().flat_map(|part| part.extents.iter().map(|of| of.0));
        let own = self.disk.version.iter().flat_map(|of| of.manifest.own_extents());
        let own: Vec<u32> = own.map(|(extent, _)| extent.number).collect();
        let named = self.disk.files.keys().copied().chain(named).chain(own.iter().copied());
        let named: Vec<u32> = named.collect();
        self.damaged = own.iter().any(|number| !self.disk.files.contains_key(number));
        if let Some(of) = self.disk.version.clone().filter(|_| self.damaged) {
            home.set_damaged("t", "a file is lost".into(), &of.manifest.holders);
        } else if let Some(of) = self.disk.version.clone() {
            used.extend(own);
            let (load, snapshot) = (of.load, of.snapshot);
            let (bytes, manifest) = (of.manifest.encode().into(), of.manifest.into());
            let version = SavedVersion { load, snapshot, manifest, bytes, goes_on: false };
            home.restore(version, |_| 64).map_err(|error| format!("K1: {error}"))?;
        }
        if let Some(part) = self.disk.part.clone() {
            used.extend(part.extents.iter().map(|(number, _)| *number));
            home.restore_part(part, |_| 64).map_err(|error| format!("K1: {error}"))?;
        }
        home.skip_extents(named.iter().map(|number| number + 1).max().unwrap_or(0));
        let in_use = self.disk.files.iter().filter(|(number, _)| used.contains(number));
        self.memory = in_use.map(|(number, stamp)| (*number, *stamp)).collect();
        if self.disk.other_damaged {
            home.set_damaged("d", "its record is lost".into(), &[]);
        } else if !self.damaged {
            self.disk.files = self.memory.clone();
        }
        Ok(())
    }

    /// Removes the files that no table has, if no table is damaged any more.
    fn sweep(&mut self) {
        if !self.damaged && !self.disk.other_damaged {
            let going: BTreeSet<u32> = self
                .tasks
                .iter()
                .filter_map(|task| match task {
                    Task::Free(number) => Some(*number),
                    _ => None,
                })
                .collect();
            let is_used = |number: &u32| self.memory.contains_key(number) || going.contains(number);
            self.disk.files.retain(|number, _| is_used(number));
        }
    }

    /// The server in memory.
    fn alive(&mut self) -> &mut Home {
        self.home.as_mut().expect("it is not dead")
    }
}

impl State {
    fn is_alive(&self, at: usize) -> bool {
        self.servers[at].home.is_some()
    }

    /// Whether the table is damaged, and was not dropped since the server was started.
    fn is_damaged(&self) -> bool {
        summary(&self.servers[HOME]).is_some_and(|table| table.damaged)
    }

    /// Does what a server has decided.
    fn apply(&mut self, at: usize, effects: Vec<Effect>, flaw: Flaw) {
        let mut behind = vec![];
        for effect in effects {
            let server = &mut self.servers[at];
            match effect {
                Effect::Free(extent) => {
                    server.memory.remove(&extent);
                    server.alive().freed(extent);
                    if flaw == Flaw::FilesFirst {
                        server.tasks.push_front(Task::Free(extent));
                    } else {
                        server.tasks.push_back(Task::Free(extent));
                    }
                }
                Effect::Save(version) => {
                    let (load, snapshot) = (version.load, version.snapshot);
                    let manifest = (*version.manifest).clone();
                    server.tasks.push_back(Task::Version(Box::new(Saved {
                        load,
                        snapshot,
                        manifest,
                    })));
                }
                Effect::SavePart(part) => {
                    let answered = part.client.filter(|_| flaw == Flaw::AnswersUnsaved);
                    server.tasks.push_back(Task::Part(*part));
                    behind.extend(answered);
                }
                Effect::Introduce(of) if flaw == Flaw::ClaimedEarly => self.say(Task::Claim(*of)),
                Effect::Introduce(mut of)
                    if flaw == Flaw::ClaimsHeldAlone && of.link <= self.numbered =>
                {
                    let held = self.versions.get(&newest(server)).cloned().unwrap_or_default();
                    of.extents
                        .retain(|number| held.iter().any(|of| (of.0, of.1) == (HOLDER, *number)));
                    server.tasks.push_back(Task::Claim(*of));
                }
                Effect::Introduce(of) => server.tasks.push_back(Task::Claim(*of)),
                Effect::Hold(of) => {
                    let HoldRequest { peer, load, extents, unused, .. } = *of;
                    server.tasks.push_back(Task::Hold(load, peer, extents, unused));
                    if flaw == Flaw::SavedBeforeHeld {
                        let effects = server.alive().held(load, peer, Ok(()));
                        self.apply(at, effects, flaw);
                    }
                }
                Effect::Release(peer, extents) if flaw == Flaw::ReleasedEarly => {
                    self.say(Task::Release(peer, extents));
                }
                Effect::Release(peer, extents) => {
                    server.tasks.push_back(Task::Release(peer, extents));
                }
                Effect::Close(..) => {}
            }
        }
        behind.into_iter().for_each(|client| self.part_saved(client));
    }

    /// The server that has the table says something to the other one.
    fn say(&mut self, task: Task) {
        let newest = |links: &[Link], peer| {
            links.iter().rposition(|link| link.peer == peer && link.ends[HOME])
        };
        let (peer, message) = match task {
            Task::Claim(of) if of.link <= self.numbered => {
                // On the connection of that number, if it stands.
                if !self.links.iter().any(|link| link.number == of.link && link.ends[HOME]) {
                    return;
                }
                (of.peer, Message::Claim(of))
            }
            Task::Claim(of) => {
                // A connection that there was gets nothing more.
                if let Some(before) = newest(&self.links, of.peer) {
                    self.links[before].ends[HOME] = false;
                    self.links[before].answers.clear();
                }
                self.connections += 1;
                self.numbered = of.link;
                let (client, ends) = (SERVER + self.connections, [true, self.is_alive(HOLDER)]);
                let (number, peer) = (of.link, of.peer);
                let (messages, answers) = (VecDeque::new(), VecDeque::new());
                let waits = None;
                self.links.push(Link { client, number, peer, messages, answers, waits, ends });
                self.tidy();
                (peer, Message::Claim(of))
            }
            Task::Hold(load, peer, extents, unused) => (peer, Message::Hold(load, extents, unused)),
            Task::Release(peer, extents) => (peer, Message::Release(extents)),
            _ => return,
        };
        if let Some(at) = newest(&self.links, peer)
            && self.links[at].ends[HOLDER]
        {
            self.links[at].messages.push_back(message);
        }
    }

    /// The holder has saved what a connection waits for.
    fn part_saved(&mut self, client: u64) {
        if let Some(link) = self.links.iter_mut().find(|link| link.client == client)
            && let Some(load) = link.waits.take()
            && link.ends[HOME]
        {
            link.answers.push_back(Answer::Held(load, true));
        }
    }

    /// Connections of which both ends are gone are forgotten.
    fn tidy(&mut self) {
        self.links.retain(|link| link.ends != [false; 2]);
    }

    fn is_there(&self, (at, extent, stamp): &(usize, u32, u8)) -> bool {
        self.servers[*at].memory.get(extent) == Some(stamp)
    }
}

impl SavedTable {
    fn honest(loads: u8, failures: u8, reads: bool) -> Self {
        Self { loads, failures, reads, harms: false, beside_damaged: false, flaw: Flaw::None }
    }

    fn read(&self, s: &State, out: &mut Steps) {
        let mut next = s.clone();
        match &s.reading {
            Reading::Idle if self.reads && s.is_alive(HOME) && s.is_alive(HOLDER) => {
                let pinned = next.servers[HOME].alive().pin(READER, "t", At::Newest, None);
                next.reading = match pinned {
                    Ok(pin) => {
                        let incarnations = [0, 1].map(|at| s.servers[at].incarnation);
                        let extents = s.versions[&pin.version].clone();
                        Reading::Pinned(pin.lease, extents, incarnations)
                    }
                    Err(_) if s.dropped => Reading::Ended,
                    Err(error) => return out.push((Step::Pin, Err(format!("P2: {error}")))),
                };
                out.push((Step::Pin, Ok(next)));
            }
            Reading::Pinned(lease, extents, incarnations) => {
                let lives =
                    |at: usize| s.is_alive(at) && s.servers[at].incarnation == incarnations[at];
                next.reading = Reading::Ended;
                if lives(HOME) {
                    let effects = next.servers[HOME].alive().unpin(0, READER, *lease);
                    next.apply(HOME, effects, self.flaw);
                }
                // Without its lease the reader gives no row.
                let wrong = extents.iter().find(|of| lives(HOME) && lives(of.0) && !s.is_there(of));
                out.push((
                    Step::Read,
                    match wrong {
                        None => Ok(next),
                        Some(extent) => Err(format!("P2: {extent:?} is read, and is not there")),
                    },
                ));
            }
            Reading::Idle | Reading::Ended => {}
        }
    }

    /// Begins a load, and writes and seals an extent on each server.
    fn write(next: &mut State, mode: LoadMode, stamp: u8) -> Result<Loading, pool::PoolError> {
        let incarnations = [0, 1].map(|at| next.servers[at].incarnation);
        let statement = StatementId { job: 1, statement: stamp.into() };
        let [home, holder] = &mut next.servers;
        let load = home.alive().begin(LOADER, "l", table(mode), statement, 1)?;
        let peer = home.alive().distribute(LOADER, load, vec![place(holder.incarnation)])?[0];
        let here = home.alive().grant(LOADER, load, 64)?;
        let there = holder.alive().grant_part(LOADER, load, 64)?;
        for (server, extent) in [home, holder].into_iter().zip([here, there]) {
            server.memory.insert(extent, stamp);
            server.alive().seal(LOADER, load, extent, 1)?;
            server.tasks.push_back(Task::Extent(extent, stamp));
        }
        Ok(Loading::Written(load, peer, incarnations, [here, there]))
    }

    fn load(&self, s: &State, out: &mut Steps) {
        let (mut next, stamp) = (s.clone(), s.loaded + 1);
        let lives =
            |at: usize, incarnation| s.is_alive(at) && s.servers[at].incarnation == incarnation;
        match s.loading {
            Loading::Idle if s.is_alive(HOME) && s.is_alive(HOLDER) => {
                let is_there = summary(&s.servers[HOME]).is_some();
                let mode = if is_there { LoadMode::Overwrite } else { LoadMode::Create };
                next.loading = Self::write(&mut next, mode, stamp).unwrap_or(Loading::Ended);
            }
            Loading::Written(load, peer, incarnations, extents) => {
                if (0..2).all(|at| lives(at, incarnations[at])) {
                    let home = next.servers[HOME].alive();
                    let newest = newest(&s.servers[HOME]);
                    let strips = vec![strip(0, extents[HOME]), strip(peer, extents[HOLDER])];
                    let (committed, effects) = home.commit(LOADER, load, 0, strips, true);
                    next.loading = match committed {
                        Ok(_) => Loading::Committed(load, incarnations[HOME]),
                        Err(_) => Loading::Ended,
                    };
                    let extents = [HOME, HOLDER].map(|at| (at, extents[at], stamp));
                    next.versions.insert(newest + 1, extents.into());
                    next.apply(HOME, effects, self.flaw);
                } else {
                    // It ends with the first server that it misses.
                    for at in (0..2).filter(|at| lives(*at, incarnations[*at])) {
                        let effects = next.servers[at].alive().closed(0, LOADER);
                        next.apply(at, effects, self.flaw);
                    }
                    next.loading = Loading::Ended;
                }
            }
            Loading::Committed(load, incarnation) => {
                let statement = StatementId { job: 1, statement: stamp.into() };
                if !lives(HOME, incarnation) {
                    next.loading = Loading::Ended;
                } else {
                    match next.servers[HOME].alive().outcome(load, statement) {
                        Ok(None) => return,
                        Ok(Some(version)) => next.reported = version,
                        Err(_) => {}
                    }
                    next.loading = Loading::Ended;
                }
                if s.is_alive(HOLDER) {
                    let effects = next.servers[HOLDER].alive().closed(0, LOADER);
                    next.apply(HOLDER, effects, self.flaw);
                }
            }
            Loading::Ended if s.loaded + 1 < self.loads => {
                (next.loaded, next.loading) = (s.loaded + 1, Loading::Idle);
            }
            Loading::Ended if s.is_alive(HOME) && (!s.dropped || s.is_damaged()) => {
                if s.reading == Reading::Idle && self.reads && s.reported > 0 {
                    return;
                }
                let server = &mut next.servers[HOME];
                next.dropped = true;
                let is_silent = server.damaged && self.flaw == Flaw::ClaimsNotAgain;
                if let Ok(effects) = server.alive().drop_table("t") {
                    server.tasks.push_back(Task::Drop);
                    let effects = if is_silent { vec![] } else { effects };
                    next.apply(HOME, effects, self.flaw);
                } else if summary(server).is_some() {
                    // A version is being saved.
                    return;
                }
                return out.push((Step::Drop, Ok(next)));
            }
            Loading::Idle | Loading::Ended => return,
        }
        out.push((Step::Load(next.loading), Ok(next)));
    }

    /// The other table, which is damaged, is dropped.
    fn drop_other(&self, s: &State, out: &mut Steps) {
        let mut next = s.clone();
        let server = &mut next.servers[HOME];
        if let Some(home) = &mut server.home
            && let Ok(effects) = home.drop_table("d")
        {
            server.tasks.push_back(Task::DropOther);
            next.apply(HOME, effects, self.flaw);
            out.push((Step::DropOther, Ok(next)));
        }
    }

    /// The next task of a store.
    fn store(&self, s: &State, at: usize, out: &mut Steps) {
        let mut next = s.clone();
        let server = &mut next.servers[at];
        let Some(task) = server.tasks.pop_front() else { return };
        match task {
            Task::Extent(number, stamp) => drop(server.disk.files.insert(number, stamp)),
            Task::Version(version) => {
                let load = version.load;
                server.disk.version = Some(*version);
                let effects = server.alive().saved(load, Ok(()));
                next.apply(at, effects, self.flaw);
            }
            Task::Part(part) => {
                let client = part.client.filter(|_| self.flaw != Flaw::AnswersUnsaved);
                let saved = HeldPart { client: None, ..part };
                server.disk.part = Some(saved).filter(|part| !part.extents.is_empty());
                if let Some(client) = client {
                    next.part_saved(client);
                }
            }
            Task::Drop => {
                server.disk.version = None;
                if std::mem::take(&mut server.damaged) {
                    server.sweep();
                }
            }
            Task::DropOther => {
                server.disk.other_damaged = false;
                server.sweep();
            }
            Task::Free(number) => drop(server.disk.files.remove(&number)),
            task => next.say(task),
        }
        out.push((Step::Stored(at), Ok(next)));
    }

    /// What the holder does with a message, and what it answers.
    fn answer(
        &self,
        s: &State,
        next: &mut State,
        at: usize,
        message: &Message,
    ) -> (Vec<Effect>, Option<Answer>) {
        let client = s.links[at].client;
        let last = s.links.last().map_or(client, |link| link.client);
        let speaks = if self.flaw == Flaw::HearsBoth { last } else { client };
        let home = next.servers[HOLDER].alive();
        match message {
            Message::Claim(of) => {
                let owner = (of.identity, NAMES[HOME].to_owned());
                let mut extents = of.extents.clone();
                if self.flaw == Flaw::SavingUnclaimed {
                    let of = s.versions.get(&newest(&s.servers[HOME])).cloned().unwrap_or_default();
                    extents.retain(|number| of.iter().any(|e| e.0 == HOLDER && e.1 == *number));
                }
                let all = of.all || self.flaw == Flaw::ClaimsAllDamaged;
                let last = all && self.flaw != Flaw::Unclaimed;
                let (missing, effects) = home.claim(client, owner, of.link, &extents, last);
                (effects, missing.ok().map(Answer::Claimed))
            }
            Message::Hold(load, extents, unused) => {
                let (held, effects) = home.hold(speaks, *load, extents, unused);
                let is_saved = |of: &Effect| matches!(of, Effect::SavePart(_));
                if held.is_ok() && effects.iter().any(is_saved) {
                    next.links[at].waits = Some(*load);
                    (effects, None)
                } else {
                    (effects, Some(Answer::Held(*load, held.is_ok())))
                }
            }
            Message::Release(extents) => (home.release(speaks, extents), None),
        }
    }

    /// Messages between the servers, in order.
    fn deliver(&self, s: &State, at: usize, out: &mut Steps) {
        let link = &s.links[at];
        let client = link.client;
        if let Some(message) = link.messages.front()
            && link.waits.is_none()
            && link.ends[HOLDER]
        {
            let mut next = s.clone();
            next.links[at].messages.pop_front();
            let (mut effects, answer) = self.answer(s, &mut next, at, message);
            if let Some(answer) = answer.filter(|_| link.ends[HOME]) {
                next.links[at].answers.push_back(answer);
            }
            for effect in &mut effects {
                if let Effect::SavePart(part) = effect
                    && part.client.is_some()
                {
                    part.client = Some(client);
                }
            }
            next.apply(HOLDER, effects, self.flaw);
            out.push((Step::Delivered(client), Ok(next)));
        }
        if let Some(answer) = link.answers.front()
            && link.ends[HOME]
        {
            let mut next = s.clone();
            next.links[at].answers.pop_front();
            let home = next.servers[HOME].alive();
            let effects = match answer.clone() {
                Answer::Claimed(missing) => {
                    let reason = format!("K1: {missing:?} are not held");
                    home.introduced(link.peer, link.number, "m1:1", missing);
                    // Extents of a load that has failed may be missing.
                    if next.is_damaged() && !next.servers[HOME].damaged {
                        return out.push((Step::Answered(client), Err(reason)));
                    }
                    vec![]
                }
                Answer::Held(load, held) => {
                    let held = held.then_some(()).ok_or_else(|| "it is not there".to_owned());
                    home.held(load, link.peer, held)
                }
            };
            next.apply(HOME, effects, self.flaw);
            out.push((Step::Answered(client), Ok(next)));
        }
    }

    /// What dies, and what is noticed of that.
    fn fail(&self, s: &State, out: &mut Steps) {
        for at in [HOME, HOLDER] {
            let mut next = s.clone();
            if !s.is_alive(at) {
                let started = next.servers[at].start(at);
                out.push((Step::Starts(at), started.map(|()| next)));
                if at == HOME {
                    Self::harm(s, out);
                }
            } else if s.failures > 0 {
                next.failures -= 1;
                let server = &mut next.servers[at];
                (server.home, server.memory) = (None, BTreeMap::new());
                server.tasks.clear();
                for link in &mut next.links {
                    link.ends[at] = false;
                    if at == HOLDER {
                        (link.messages, link.waits) = (VecDeque::new(), None);
                    }
                    link.answers.clear();
                }
                next.tidy();
                out.push((Step::Dies(at), Ok(next)));
            }
        }
        for (at, link) in s.links.iter().enumerate() {
            if link.ends == [true; 2] && s.failures > 0 {
                // What was on its way to the holder may still arrive.
                let mut next = s.clone();
                next.failures -= 1;
                next.links[at].ends[HOME] = false;
                next.links[at].answers.clear();
                let home = next.servers[HOME].alive();
                let effects = home.peer_lost(link.peer, link.number, "it broke");
                next.apply(HOME, effects, self.flaw);
                out.push((Step::Breaks(link.client), Ok(next)));
            }
            for end in [HOME, HOLDER] {
                if !link.ends[end] || link.ends[1 - end] {
                    continue;
                }
                let mut next = s.clone();
                next.links[at].ends[end] = false;
                let server = next.servers[end].alive();
                let effects = match end {
                    HOME => server.peer_lost(link.peer, link.number, "it is gone"),
                    _ => server.closed(0, link.client),
                };
                next.apply(end, effects, self.flaw);
                next.tidy();
                out.push((Step::BreakSeen(end, link.client), Ok(next)));
            }
        }
    }

    /// A file is lost while the server that has the table is dead, or put back.
    fn harm(s: &State, out: &mut Steps) {
        let disk = &s.servers[HOME].disk;
        let Some(version) = &disk.version else { return };
        if let Some((number, stamp)) = s.lost {
            let mut next = s.clone();
            next.lost = None;
            next.servers[HOME].disk.files.insert(number, stamp);
            out.push((Step::PutsBack(number), Ok(next)));
        }
        for (extent, _) in version.manifest.own_extents().filter(|_| s.harms) {
            let mut next = s.clone();
            let stamp = next.servers[HOME].disk.files.remove(&extent.number);
            (next.lost, next.harms) = (stamp.map(|stamp| (extent.number, stamp)), false);
            out.push((Step::Loses(extent.number), Ok(next)));
        }
    }

    /// A client that comes tells where the holder is.
    fn relocate(&self, s: &State, out: &mut Steps) {
        if !s.is_alive(HOME) || !s.is_alive(HOLDER) {
            return;
        }
        let mut next = s.clone();
        let holder = place(s.servers[HOLDER].incarnation);
        let effects = next.servers[HOME].alive().relocate(vec![holder]).unwrap_or_default();
        if !effects.is_empty() {
            next.apply(HOME, effects, self.flaw);
            out.push((Step::Relocated, Ok(next)));
        }
    }

    fn check_end(s: &State) -> Result<(), String> {
        let extents = s.versions.get(&newest(&s.servers[HOME])).cloned().unwrap_or_default();
        for (at, server) in s.servers.iter().enumerate() {
            let of = extents.iter().filter(|of| of.0 == at);
            let kept: BTreeMap<u32, u8> = of.map(|(_, number, stamp)| (*number, *stamp)).collect();
            if server.memory != kept || server.disk.files != kept {
                let (memory, files) = (&server.memory, &server.disk.files);
                let name = NAMES[at];
                return Err(format!("K3: {name} has {memory:?}, {files:?}; of use are {kept:?}"));
            }
            let stat = server.home.as_ref().map(Home::stat).unwrap_or_default();
            if stat.loads > 0 || stat.leases > 0 || stat.extents as usize != kept.len() {
                return Err(format!("K3: {} has {stat:?}", NAMES[at]));
            }
        }
        Ok(())
    }
}

impl Model for SavedTable {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let mut servers = [HOME, HOLDER].map(Server::new);
        if self.beside_damaged {
            servers[HOME].disk.other_damaged = true;
            servers[HOME].alive().set_damaged("d", "its record is lost".into(), &[]);
        }
        vec![State {
            servers,
            links: vec![],
            connections: 0,
            numbered: 0,
            versions: BTreeMap::new(),
            reported: 0,
            dropped: false,
            reading: Reading::Idle,
            loading: Loading::Idle,
            loaded: 0,
            failures: self.failures,
            harms: self.harms,
            lost: None,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        if s.reported > 0 {
            self.read(s, out);
        }
        self.load(s, out);
        self.drop_other(s, out);
        [HOME, HOLDER].into_iter().for_each(|at| self.store(s, at, out));
        (0..s.links.len()).for_each(|at| self.deliver(s, at, out));
        self.relocate(s, out);
        self.fail(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let [home, holder] = &s.servers;
        if let Some(saved) = &home.disk.version {
            let part = holder.disk.part.as_ref();
            for of in &s.versions[&saved.manifest.version] {
                let (at, number, stamp) = of;
                let is_named =
                    *at == HOME || part.is_some_and(|part| part.extents.contains(&(*number, 1)));
                if *at == HOME && s.lost == Some((*number, *stamp)) {
                    continue;
                }
                if s.servers[*at].disk.files.get(number) != Some(stamp) || !is_named {
                    return Err(format!("K1: {of:?} of a saved version is not on the disk"));
                }
                let is_damaged = *at == HOME && home.damaged;
                if s.is_alive(*at) && !s.is_there(of) && !s.dropped && !is_damaged {
                    return Err(format!("K1: {of:?} of a saved version is not in memory"));
                }
            }
        }
        let version = home.disk.version.as_ref().map_or(0, |of| of.manifest.version);
        if version < s.reported && !s.dropped {
            return Err(format!(
                "K2: version {} was reported, and {version} is on the disk",
                s.reported
            ));
        }
        if self.is_final(s) { Self::check_end(s) } else { Ok(()) }
    }

    fn is_final(&self, s: &State) -> bool {
        let read = !matches!(s.reading, Reading::Pinned(..));
        let dropped = s.dropped && !s.is_damaged() && !s.servers[HOME].disk.other_damaged;
        let loaded = s.loading == Loading::Ended && s.loaded + 1 >= self.loads && dropped;
        let alive = s.is_alive(HOME) && s.is_alive(HOLDER);
        let rests = |link: &Link| {
            link.messages.is_empty() && link.answers.is_empty() && link.ends == [true; 2]
        };
        let rest = s.links.len() == 1 && s.links.iter().all(rests);
        read && loaded && alive && rest && s.servers.iter().all(|server| server.tasks.is_empty())
    }
}

fn fails(flaw: Flaw, reason: &str) {
    finds(&SavedTable { flaw, ..SavedTable::honest(2, 1, false) }, flaw, reason);
}

#[test]
fn a_saved_table_on_two_servers_outlives_both() {
    holds(&SavedTable::honest(1, 2, false), 100_000);
    holds(&SavedTable::honest(2, 1, false), 10_000);
    holds(&SavedTable::honest(2, 1, true), 36_000);
}

#[test]
fn a_damaged_table_keeps_its_part_elsewhere_until_it_is_dropped() {
    let harmed =
        |loads, failures| SavedTable { harms: true, ..SavedTable::honest(loads, failures, false) };
    holds(&harmed(1, 2), 100_000);
    holds(&harmed(2, 1), 20_000);
    let flaws = [(Flaw::ClaimsAllDamaged, "K1"), (Flaw::ClaimsNotAgain, "K3")];
    for (flaw, reason) in flaws {
        finds(&SavedTable { flaw, ..harmed(1, 2) }, flaw, reason);
    }
}

#[test]
fn a_damaged_table_is_dropped_while_another_one_is_loaded() {
    let beside = |loads, failures| SavedTable {
        beside_damaged: true,
        ..SavedTable::honest(loads, failures, false)
    };
    holds(&beside(1, 1), 10_000);
    holds(&beside(2, 1), 100_000);
    let flaw = Flaw::ClaimsHeldAlone;
    finds(&SavedTable { flaw, ..beside(1, 0) }, flaw, "K1");
}

#[test]
fn every_deviation_of_servers_that_save_is_found() {
    fails(Flaw::AnswersUnsaved, "K1");
    fails(Flaw::SavedBeforeHeld, "K1");
    fails(Flaw::ReleasedEarly, "K1");
    fails(Flaw::ClaimedEarly, "K1");
    fails(Flaw::SavingUnclaimed, "K1");
    fails(Flaw::Unclaimed, "K3");
    fails(Flaw::HearsBoth, "K3");
    fails(Flaw::FilesFirst, "K1");
}
