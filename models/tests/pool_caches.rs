//! A table of a pool that is a cache of a file, explored completely, with the [`Home`] that a
//! memory server runs. The file is a number that grows; a version has the number that it is a copy
//! of.
//!
//! Clients 0 and 1 are nodes of one statement, client 2 is one of another. Each asks whether it has
//! to look, looks if it has to, loads the file if it is another, and pins the newest version. The
//! file changes at each step, loads fail, clients die, and time passes in steps of the age that a
//! look may have.
//!
//! Invariants: C1 one client at a time looks, and no load is begun beside another; C2 a client that
//! reads without looking reads a copy of the file as it was one age ago, or of a later one, unless
//! somebody looks, the file could not be loaded, or its statement has pinned a version; C3 nobody
//! waits while nobody looks; C4 the nodes of a statement pin the same version; C5 a state of the
//! file is loaded once; C6 nobody looks whose statement has pinned a version. Each deviation in
//! [`Flaw`] must be found.

use models::{Model, Steps as StepsOf};
use pool::access::{At, LoadMode, LookOutcome, OriginLook, TableLoad};
use pool::home::{Home, LookRequest, RETRY_NS};
use pool::manifest::{CachedOrigin, Definition, Layout, Manifest};
use pool::wire::StatementId;

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The server forgets the look of a client that has ended.
    DeathUnnoticed,
    /// A client says that it has looked before its load is there.
    SaidEarly,
    /// A client looks though it need not.
    Unasked,
    /// A client that does not load what has changed says that the version is a copy.
    NotLoaded,
    /// The nodes do not name their statement when they pin.
    NoStatement,
}

/// The age that a look may have, in ns: more than a failed load is left alone.
const AGE_NS: u64 = 2 * RETRY_NS;

const CLIENTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// It has to look.
    Looking,
    /// It has seen the file, and loads it.
    Loading {
        load: u64,
        mark: u8,
    },
    /// The version is there.
    Loaded,
    /// It reads what is there.
    Reading,
    /// It has pinned a version.
    Ended(u64),
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    home: Home,
    clients: [Phase; CLIENTS],
    now: u8,
    /// The file, and as it was one age ago.
    file: u8,
    before: u8,
    /// States of the file that were loaded.
    loaded: Vec<u8>,
    /// Whether a load has failed, or a loader has died.
    has_failed: bool,
    changes: u8,
    deaths: u8,
    failures: u8,
    ages: u8,
}

/// An event.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "a trace shows them")]
enum Step {
    Ask(usize, Option<OriginLook>),
    Compare(usize),
    Commit(usize),
    Say(usize),
    Fail(usize),
    Pin(usize),
    Die(usize),
    Change,
    Age,
}

type Steps = StepsOf<Step, State>;

struct Caches {
    changes: u8,
    deaths: u8,
    failures: u8,
    ages: u8,
    flaw: Flaw,
}

fn asking(client: usize) -> LookRequest {
    LookRequest { client: client as u64, statement: statement(client), may_load: true }
}

fn statement(client: usize) -> StatementId {
    StatementId { job: 1, statement: (client / 2) as u32 }
}

fn load_of(mode: LoadMode, mark: u8) -> TableLoad {
    let columns = vec![Layout::Fixed(1)];
    let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
    let origin = Some(CachedOrigin { name: "file".into(), mark: mark.into() });
    TableLoad { table: "t".into(), definition, mode, origin }
}

impl State {
    fn now_ns(&self) -> u64 {
        u64::from(self.now) * AGE_NS
    }

    fn is_looking(&self, client: usize) -> bool {
        matches!(self.clients[client], Phase::Looking | Phase::Loading { .. } | Phase::Loaded)
    }

    /// The mark of a version.
    fn mark(&self, at: At) -> Option<u8> {
        let mut home = self.home.clone();
        let pin = home.pin(99, "t", at, None).ok()?;
        let manifest = Manifest::decode(&home.pinned(99, pin.lease)?).ok()?;
        manifest.origin.map(|origin| origin.mark as u8)
    }

    fn look(&self, client: usize) -> Option<OriginLook> {
        let mut home = self.home.clone();
        home.look(self.now_ns(), asking(client), "t", AGE_NS).ok()
    }

    /// Whether a node of a client's statement has pinned a version.
    fn has_pinned(&self, client: usize) -> bool {
        let of = |other: &usize| statement(*other) == statement(client);
        (0..CLIENTS).filter(of).any(|other| matches!(self.clients[other], Phase::Ended(_)))
    }

    fn says(&mut self, client: usize, outcome: LookOutcome) {
        self.home.end_look(self.now_ns(), client as u64, "t", outcome);
    }
}

impl Caches {
    fn ask(&self, s: &State, client: usize, out: &mut Steps) {
        let mut next = s.clone();
        next.home.renew(s.now_ns(), client as u64);
        let answer = next.home.look(s.now_ns(), asking(client), "t", AGE_NS).ok();
        let has_pinned = s.has_pinned(client) && self.flaw != Flaw::NoStatement;
        if has_pinned && answer != Some(OriginLook::Current) {
            let why = format!("C6: {answer:?} is the answer, and its statement has a version");
            return out.push((Step::Ask(client, answer), Err(why)));
        }
        let answer = if self.flaw == Flaw::Unasked { Some(OriginLook::Due) } else { answer };
        match answer {
            Some(OriginLook::Due) => next.clients[client] = Phase::Looking,
            Some(OriginLook::Current) => {
                next.clients[client] = Phase::Reading;
                let others = (0..CLIENTS).any(|other| s.is_looking(other));
                let mark = s.mark(At::Newest);
                if !others && !has_pinned && !s.has_failed && mark < Some(s.before) {
                    let why = format!("C2: {mark:?} is read, and the file was {}", s.before);
                    return out.push((Step::Ask(client, answer), Err(why)));
                }
            }
            Some(OriginLook::Resting) => next.clients[client] = Phase::Reading,
            // It asks again.
            Some(OriginLook::Wait) | None => return,
        }
        out.push((Step::Ask(client, answer), Ok(next)));
    }

    /// Sees the file, and begins to load it if it is another than that of the newest version.
    fn compare(&self, s: &State, client: usize, out: &mut Steps) {
        let newest = s.mark(At::Newest);
        let mut next = s.clone();
        if newest == Some(s.file) || (self.flaw == Flaw::NotLoaded && newest.is_some()) {
            next.says(client, LookOutcome::Copy);
            next.clients[client] = Phase::Reading;
            return out.push((Step::Compare(client), Ok(next)));
        }
        let mode = if newest.is_some() { LoadMode::Overwrite } else { LoadMode::Create };
        let load = load_of(mode, s.file);
        let begun = next.home.begin(client as u64, "node", load, statement(client), 1);
        let result = match begun {
            Ok(load) if s.loaded.contains(&s.file) && !s.has_failed => {
                Err(format!("C5: load {load} is of {} again", s.file))
            }
            Ok(load) => {
                next.clients[client] = Phase::Loading { load, mark: s.file };
                if self.flaw == Flaw::SaidEarly {
                    next.says(client, LookOutcome::Copy);
                }
                Ok(next)
            }
            Err(error) => Err(format!("C1: {error}")),
        };
        out.push((Step::Compare(client), result));
    }

    fn commit(&self, s: &State, client: usize, out: &mut Steps) {
        let Phase::Loading { load, mark } = s.clients[client] else { return };
        let mut next = s.clone();
        next.home.renew(s.now_ns(), client as u64);
        let (version, _) = next.home.commit(client as u64, load, 0, vec![], true);
        let result = match version {
            Ok(Some(_)) => {
                next.clients[client] = Phase::Loaded;
                next.loaded.push(mark);
                Ok(next)
            }
            other => Err(format!("C1: a load ends with {other:?}")),
        };
        out.push((Step::Commit(client), result));
        if s.failures > 0 {
            let mut next = s.clone();
            next.home.abort(client as u64, load, "");
            next.says(client, LookOutcome::Failed);
            next.clients[client] =
                if next.mark(At::Newest).is_some() { Phase::Reading } else { Phase::Dead };
            (next.failures, next.has_failed) = (s.failures - 1, true);
            out.push((Step::Fail(client), Ok(next)));
        }
    }

    fn pin(&self, s: &State, client: usize, out: &mut Steps) {
        let mut next = s.clone();
        let named = (self.flaw != Flaw::NoStatement).then(|| statement(client));
        let result = match next.home.pin(client as u64, "t", At::Newest, named) {
            Ok(pin) => {
                next.clients[client] = Phase::Ended(pin.version);
                let versions = [0, 1].map(|node| match next.clients[node] {
                    Phase::Ended(version) => Some(version),
                    _ => None,
                });
                match versions {
                    [Some(a), Some(b)] if a != b => Err(format!("C4: {a} and {b} are pinned")),
                    _ => Ok(next),
                }
            }
            Err(error) => Err(format!("C2: nothing is there to be read: {error}")),
        };
        out.push((Step::Pin(client), result));
    }

    fn die(&self, s: &State, client: usize, out: &mut Steps) {
        if s.deaths == 0 || matches!(s.clients[client], Phase::Dead | Phase::Ended(_)) {
            return;
        }
        let mut next = s.clone();
        next.deaths -= 1;
        next.has_failed |= s.is_looking(client);
        next.clients[client] = Phase::Dead;
        if self.flaw == Flaw::DeathUnnoticed {
            // Its loads end all the same.
            if let Phase::Loading { load, .. } = s.clients[client] {
                next.home.abort(client as u64, load, "");
            }
        } else {
            next.home.closed(s.now_ns(), client as u64);
        }
        out.push((Step::Die(client), Ok(next)));
    }
}

impl Model for Caches {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let Self { changes, deaths, failures, ages, .. } = *self;
        let (home, clients) = (Home::new(0, 1 << 20), [Phase::Idle; CLIENTS]);
        // Time begins when no load has failed for long.
        let (now, file, before, loaded, has_failed) = (1, 1, 0, vec![], false);
        vec![State {
            home,
            clients,
            now,
            file,
            before,
            loaded,
            has_failed,
            changes,
            deaths,
            failures,
            ages,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        for client in 0..CLIENTS {
            match s.clients[client] {
                Phase::Idle => self.ask(s, client, out),
                Phase::Looking => self.compare(s, client, out),
                Phase::Loading { .. } => self.commit(s, client, out),
                Phase::Loaded => {
                    let mut next = s.clone();
                    next.says(client, LookOutcome::Copy);
                    next.clients[client] = Phase::Reading;
                    out.push((Step::Say(client), Ok(next)));
                }
                Phase::Reading => self.pin(s, client, out),
                Phase::Ended(_) | Phase::Dead => {}
            }
            self.die(s, client, out);
        }
        if s.changes > 0 {
            out.push((
                Step::Change,
                Ok(State { file: s.file + 1, changes: s.changes - 1, ..s.clone() }),
            ));
        }
        if s.ages > 0 {
            let (now, before, ages) = (s.now + 1, s.file, s.ages - 1);
            out.push((Step::Age, Ok(State { now, before, ages, ..s.clone() })));
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let looking = (0..CLIENTS).filter(|client| s.is_looking(*client)).count();
        if looking > 1 {
            return Err(format!("C1: {looking} clients look"));
        }
        let waits = |client: &usize| {
            s.clients[*client] == Phase::Idle && s.look(*client) == Some(OriginLook::Wait)
        };
        match (0..CLIENTS).find(waits) {
            Some(client) if looking == 0 => Err(format!("C3: client {client} waits for nobody")),
            _ => Ok(()),
        }
    }

    fn is_final(&self, s: &State) -> bool {
        s.clients.iter().all(|of| matches!(of, Phase::Ended(_) | Phase::Dead))
    }
}

fn honest() -> Caches {
    Caches { changes: 1, deaths: 1, failures: 1, ages: 1, flaw: Flaw::None }
}

fn fails(flaw: Flaw, reason: &str) {
    finds(&Caches { flaw, ..honest() }, flaw, reason);
}

#[test]
fn one_client_looks_for_all_and_nobody_waits_for_one_that_is_gone() {
    holds(&honest(), 20_000);
}

#[test]
fn every_deviation_of_caches_is_found() {
    fails(Flaw::DeathUnnoticed, "C3");
    fails(Flaw::SaidEarly, "C");
    fails(Flaw::Unasked, "C1");
    fails(Flaw::NotLoaded, "C2");
    fails(Flaw::NoStatement, "C4");
}
