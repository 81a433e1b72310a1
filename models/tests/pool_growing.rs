//! A table that grows while it is read, explored completely, with the [`Home`] that a memory server
//! runs. Memory is a stamp for each extent: the writer and the last row that lies there.
//!
//! Two writers of one load hand in one row at a time, each in a partition of its own. A strip has
//! two rows at most: a row behind a short strip comes in a strip with both, which takes the place
//! of the short one. Writers may die at each step. A server that saves may fail to save a version.
//! A reader pins, reads, and lets go.
//!
//! Invariants: G1 a version has each row of a writer once, from its first on without a gap; G2 no
//! row goes while the table is there; G3 a version has a new row of each writer that has not ended;
//! P2 a read gives what the pinned version is made of; P5 in the end the server holds the newest
//! version and nothing else. Each deviation in [`Flaw`] must be found.

use std::collections::BTreeMap;

use models::{Model, Steps as StepsOf};
use pool::access::{At, LoadMode, TableLoad};
use pool::home::{Effect, Home};
use pool::manifest::{Block, Buckets, Codec, Definition, KeyFamily, Layout, Manifest, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::StatementId;

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A writer does not name the short strip that its next one takes the place of.
    NotReplaced,
    /// A writer names it behind the strip, in a message of its own.
    ReplacedLate,
    /// A writer whose answer is late sends its part again.
    SentAgain,
    /// The load is begun as one of a single writer.
    OneWriter,
    /// The reader looks up the newest version and takes no lease.
    NoLease,
    /// The server forgets a writer whose connection has ended.
    DeathUnnoticed,
}

struct Growing {
    rows: u8,
    deaths: u8,
    /// Whether the server saves, and how many versions it fails to save.
    saves: bool,
    failures: u8,
    flaw: Flaw,
}

/// Rows of a strip, as whole numbers from the least to the greatest.
type Range = (u8, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Rests,
    Granted(u32),
    Sealed(u32),
    /// It has named the strip that is replaced.
    Replaced(u32),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Writer {
    alive: bool,
    phase: Phase,
    /// Rows that it has handed in.
    rows: u8,
    /// Its short strip: the extent, and its row.
    short: Option<(u32, u8)>,
    /// A strip to name late, as [`Flaw::ReplacedLate`] does.
    late: Option<(u32, u8)>,
    again: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    Pinned(u64, Vec<(u32, u8)>),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    home: Home,
    load: u64,
    /// By extent that is not freed: its last row.
    memory: BTreeMap<u32, u8>,
    writers: [Writer; 2],
    reader: Reading,
    /// A version that is being saved.
    saving: Option<u64>,
    /// The newest version, and the rows of each writer in it.
    newest: (u64, [u8; 2]),
    deaths: u8,
    failures: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Write(usize, Phase),
    Again(usize),
    Late(usize),
    Commit(usize),
    Die(usize),
    Saved(bool),
    Pin,
    Read,
}

type Steps = StepsOf<Step, State>;

/// Clients: the reader is 0, and writers come behind this one.
const WRITERS: u64 = 100;
const STATEMENT: StatementId = StatementId { job: 1, statement: 1 };

fn strip(extent: u32, (least, greatest): Range) -> Strip {
    let at = Pointer { extent: ExtentId { server: 0, number: extent }, offset: 0 };
    let rows = u32::from(greatest - least) + 1;
    let (least, greatest) = (least.into(), greatest.into());
    let block = Block { at, bytes: rows, codec: Codec::Plain, nulls: 0, least, greatest };
    Strip { rows, blocks: vec![block] }
}

impl State {
    /// Does what the home has decided, and looks at a version that has appeared.
    fn apply(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Free(extent) => {
                    self.memory.remove(&extent);
                    self.home.freed(extent);
                }
                Effect::Save(version) => {
                    if self.saving.replace(version.load).is_some() {
                        return Err("two versions of a load are saved at a time".into());
                    }
                }
                Effect::Close(..)
                | Effect::Hold(_)
                | Effect::Release(..)
                | Effect::Introduce(_)
                | Effect::SavePart(_) => {}
            }
        }
        self.look()
    }

    fn look(&mut self) -> Result<(), String> {
        let Some(table) = self.home.tables().into_iter().next() else { return Ok(()) };
        if table.version == self.newest.0 {
            return Ok(());
        }
        let rows = self.rows_of_newest()?;
        let before = std::mem::replace(&mut self.newest, (table.version, rows));
        for (n, writer) in self.writers.iter().enumerate() {
            if rows[n] < before.1[n] {
                return Err(format!("G2: {before:?} is followed by {:?}", self.newest));
            }
            // One whose connection has ended has ended the load, too.
            if rows[n] == before.1[n] && writer.phase != Phase::Ended && writer.alive {
                return Err(format!("G3: {before:?} is followed by {:?}", self.newest));
            }
        }
        Ok(())
    }

    /// How many rows of each writer the newest version has, each of them once.
    fn rows_of_newest(&self) -> Result<[u8; 2], String> {
        let mut home = self.home.clone();
        let pin = home.pin(0, "t", At::Newest, None).map_err(|error| error.to_string())?;
        let bytes = home.pinned(0, pin.lease).ok_or("P2: no manifest")?;
        let manifest = Manifest::decode(&bytes).map_err(|error| error.to_string())?;
        let mut rows = [0; 2];
        for (n, last) in rows.iter_mut().enumerate() {
            let strips = manifest.partitions[n] as usize..manifest.partitions[n + 1] as usize;
            let mut ranges: Vec<(i64, i64)> = manifest.strips[strips]
                .iter()
                .map(|strip| (strip.blocks[0].least, strip.blocks[0].greatest))
                .collect();
            ranges.sort_unstable();
            for (least, greatest) in ranges {
                if least != i64::from(*last) + 1 {
                    return Err(format!("G1: version {} has {manifest:?}", pin.version));
                }
                *last = greatest as u8;
            }
        }
        Ok(rows)
    }

    fn extents(&self, lease: u64) -> Option<Vec<(u32, u8)>> {
        let manifest = Manifest::decode(&self.home.pinned(0, lease)?).ok()?;
        let blocks = manifest.strips.iter().map(|strip| strip.blocks[0]);
        Some(blocks.map(|block| (block.at.extent.number, block.greatest as u8)).collect())
    }
}

impl Growing {
    fn honest(rows: u8, deaths: u8) -> Self {
        Self { rows, deaths, saves: false, failures: 0, flaw: Flaw::None }
    }

    fn saving(rows: u8, deaths: u8, failures: u8) -> Self {
        Self { saves: true, failures, ..Self::honest(rows, deaths) }
    }

    fn write(&self, s: &State, n: usize, out: &mut Steps) {
        let (writer, client) = (s.writers[n], WRITERS + n as u64);
        if !writer.alive || writer.phase == Phase::Ended {
            return;
        }
        let mut next = s.clone();
        let (of, row) = (n as u32, writer.rows + 1);
        let range = writer.short.map_or((row, row), |(_, first)| (first, row));
        match writer.phase {
            Phase::Rests if writer.rows < self.rows => {
                let granted = next.home.grant(client, s.load, 64);
                next.writers[n].phase = granted.map_or(Phase::Ended, |extent| {
                    next.memory.insert(extent, row);
                    Phase::Granted(extent)
                });
            }
            Phase::Rests => return self.commit(s, n, out),
            Phase::Granted(extent) => {
                let sealed = next.home.seal(client, s.load, extent, 2);
                next.writers[n].phase = sealed.map_or(Phase::Ended, |()| Phase::Sealed(extent));
            }
            Phase::Sealed(extent) => {
                let gone = writer.short.map(|(extent, row)| (of, strip(extent, (row, row))));
                let flawed = [Flaw::NotReplaced, Flaw::ReplacedLate].contains(&self.flaw);
                let gone: Vec<_> = gone.filter(|_| !flawed).into_iter().collect();
                let (replaced, effects) = next.home.replace(client, s.load, of, gone);
                next.writers[n].phase = replaced.map_or(Phase::Ended, |()| Phase::Replaced(extent));
                if let Err(reason) = next.apply(effects) {
                    return out.push((Step::Write(n, writer.phase), Err(reason)));
                }
            }
            Phase::Replaced(extent) => {
                let strips = vec![(of, strip(extent, range))];
                let (given, effects) = next.home.hand_in(client, s.load, of, strips, true);
                let after = &mut next.writers[n];
                after.phase = if given.is_ok() { Phase::Rests } else { Phase::Ended };
                after.rows = row;
                after.late = writer.short.filter(|_| self.flaw == Flaw::ReplacedLate);
                after.short = writer.short.is_none().then_some((extent, row));
                after.again = self.flaw == Flaw::SentAgain;
                if let Err(reason) = next.apply(effects) {
                    return out.push((Step::Write(n, writer.phase), Err(reason)));
                }
            }
            Phase::Ended => return,
        }
        out.push((Step::Write(n, next.writers[n].phase), Ok(next)));
    }

    fn commit(&self, s: &State, n: usize, out: &mut Steps) {
        let mut next = s.clone();
        let client = WRITERS + n as u64;
        let (_, effects) = next.home.commit(client, s.load, n as u32, vec![], true);
        next.writers[n].phase = Phase::Ended;
        let result = next.apply(effects).map(|()| next);
        out.push((Step::Commit(n), result));
    }

    /// Steps of writers that deviate.
    fn deviate(&self, s: &State, n: usize, out: &mut Steps) {
        let (writer, client, of) = (s.writers[n], WRITERS + n as u64, n as u32);
        if !writer.alive || writer.phase != Phase::Rests {
            return;
        }
        if let Some((extent, row)) = writer.late {
            let mut next = s.clone();
            next.writers[n].late = None;
            let gone = vec![(of, strip(extent, (row, row)))];
            let (_, effects) = next.home.replace(client, s.load, of, gone);
            out.push((Step::Late(n), next.apply(effects).map(|()| next)));
        }
        if let Some((extent, row)) = writer.short.filter(|_| writer.again) {
            let mut next = s.clone();
            next.writers[n].again = false;
            let strips = vec![(of, strip(extent, (row, row)))];
            let (_, effects) = next.home.hand_in(client, s.load, of, strips, true);
            out.push((Step::Again(n), next.apply(effects).map(|()| next)));
        }
    }

    fn die(&self, s: &State, n: usize, out: &mut Steps) {
        if s.deaths == 0 || !s.writers[n].alive {
            return;
        }
        let mut next = State { deaths: s.deaths - 1, ..s.clone() };
        next.writers[n].alive = false;
        if self.flaw == Flaw::DeathUnnoticed {
            return out.push((Step::Die(n), Ok(next)));
        }
        let effects = next.home.closed(0, WRITERS + n as u64);
        out.push((Step::Die(n), next.apply(effects).map(|()| next)));
    }

    fn save(&self, s: &State, out: &mut Steps) {
        let Some(load) = s.saving else { return };
        for saved in [true, false] {
            if !saved && s.failures == 0 {
                continue;
            }
            let mut next = s.clone();
            next.saving = None;
            next.failures -= u8::from(!saved);
            let saved_now = saved.then_some(()).ok_or_else(|| "the disk is full".to_owned());
            let effects = next.home.saved(load, saved_now);
            out.push((Step::Saved(saved), next.apply(effects).map(|()| next)));
        }
    }

    fn read(&self, s: &State, out: &mut Steps) {
        let mut next = s.clone();
        match &s.reader {
            Reading::Idle => {
                let Ok(pin) = next.home.pin(0, "t", At::Newest, None) else { return };
                let Some(extents) = next.extents(pin.lease) else {
                    return out.push((Step::Pin, Err("P2: no manifest".into())));
                };
                next.reader = Reading::Pinned(pin.lease, extents);
                let result = match self.flaw {
                    Flaw::NoLease => {
                        let effects = next.home.unpin(0, 0, pin.lease);
                        next.apply(effects).map(|()| next)
                    }
                    _ => Ok(next),
                };
                out.push((Step::Pin, result));
            }
            Reading::Pinned(lease, extents) => {
                let wrong = extents.iter().find(|(extent, row)| s.memory.get(extent) != Some(row));
                let effects = next.home.unpin(0, 0, *lease);
                next.reader = Reading::Ended;
                let result = match wrong {
                    Some(wrong) => Err(format!("P2: {wrong:?} is read, and is not there")),
                    None => next.apply(effects).map(|()| next),
                };
                out.push((Step::Read, result));
            }
            Reading::Ended => {}
        }
    }

    fn has_ended(&self, s: &State) -> bool {
        let over = |writer: &Writer| !writer.alive || writer.phase == Phase::Ended;
        let is_broken = s.writers.iter().any(|writer| !writer.alive);
        // A job whose node has died ends on all nodes.
        s.writers.iter().all(over) || is_broken && s.writers.iter().any(over) && s.deaths == 0
    }
}

impl Model for Growing {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let home = Home::new(0, 1 << 20);
        let mut home = if self.saves { home.with_saving() } else { home };
        let buckets = vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }];
        let columns = vec![Layout::Fixed(1)];
        let definition = Definition { schema: vec![], columns, buckets, strip_rows: 2 };
        let (table, mode) = ("t".into(), LoadMode::Create);
        let load = TableLoad { table, definition, mode, origin: None };
        let writers = if self.flaw == Flaw::OneWriter { 1 } else { 2 };
        let mut number = 0;
        for client in [WRITERS, WRITERS + 1] {
            let begun = home.begin(client, "node", load.clone(), STATEMENT, writers);
            number = begun.expect("nobody else loads it");
        }
        let (alive, phase) = (true, Phase::Rests);
        let writer = Writer { alive, phase, rows: 0, short: None, late: None, again: false };
        vec![State {
            home,
            load: number,
            memory: BTreeMap::new(),
            writers: [writer; 2],
            reader: Reading::Idle,
            saving: None,
            newest: (0, [0; 2]),
            deaths: self.deaths,
            failures: self.failures,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        for n in 0..s.writers.len() {
            self.write(s, n, out);
            self.deviate(s, n, out);
            self.die(s, n, out);
        }
        self.save(s, out);
        self.read(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        if s.newest.0 > 0 && s.rows_of_newest()? != s.newest.1 {
            return Err(format!("G2: version {} has changed", s.newest.0));
        }
        if !self.is_final(s) || s.writers.iter().any(|of| of.alive && of.phase != Phase::Ended) {
            return Ok(());
        }
        let mut home = s.home.clone();
        let pin = home.pin(0, "t", At::Newest, None).ok();
        let seen = State { home, ..s.clone() };
        let newest = pin.and_then(|pin| seen.extents(pin.lease)).unwrap_or_default();
        let newest: BTreeMap<u32, u8> = newest.into_iter().collect();
        let stat = s.home.stat();
        if s.memory != newest || stat.loads > 0 || stat.leases > 0 {
            return Err(format!(
                "P5: {:?} is held in the end, {newest:?} of use: {stat:?}",
                s.memory
            ));
        }
        let whole = s.writers.iter().all(|of| of.alive && of.rows == self.rows);
        if whole && s.failures == self.failures && s.newest.1 != [self.rows; 2] {
            return Err(format!("G1: rows are missing in the end: {:?}", s.newest));
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        let read = s.reader == Reading::Ended || s.reader == Reading::Idle && s.newest.0 == 0;
        self.has_ended(s) && read && s.saving.is_none()
    }
}

fn fails(flaw: Flaw, reason: &str) {
    finds(&Growing { flaw, ..Growing::honest(3, 1) }, flaw, reason);
}

#[test]
fn a_table_that_grows_has_each_row_once_and_none_goes() {
    holds(&Growing::honest(3, 1), 20_000);
    holds(&Growing::saving(3, 1, 1), 70_000);
}

#[test]
fn every_deviation_of_growing_tables_is_found() {
    fails(Flaw::NotReplaced, "G1");
    fails(Flaw::ReplacedLate, "G1");
    fails(Flaw::SentAgain, "G1");
    fails(Flaw::OneWriter, "G");
    fails(Flaw::NoLease, "P2");
    fails(Flaw::DeathUnnoticed, "P5");
}
