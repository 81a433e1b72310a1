//! A table that grows in lists of remote pointers, read beside that, explored completely, with the
//! [`Home`] that a memory server runs and the [`ListWalk`] of its readers. Memory is what lies in
//! each extent: a strip, and nodes.
//!
//! Two writers of one load hand in one row at a time, each to a list of its own. A strip has two
//! rows at most and a node one strip: a row behind a short strip comes in a strip with both, and
//! the open node is written anew; a row behind a full strip comes in a new node that names the one
//! before. Heads name the extents of all nodes and strips behind them. Writers may die at each
//! step, and a server that saves may fail to. A reader pins a version and reads one node at a time.
//!
//! Invariants: G1 following the lists of a version gives each row of a writer once, from its first
//! on without a gap; G2 no row goes while the table is there; P2 a pointer of a pinned version
//! leads to the node or strip that was written for it; P5 in the end the server holds the newest
//! version and nothing else. Each deviation in [`Flaw`] must be found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use models::{Model, Steps as StepsOf};
use pool::access::{At, BlockRange, LoadMode, TableLoad};
use pool::home::{Effect, Home};
use pool::list::{LINKS_MAX, ListNode, ListWalk, head};
use pool::manifest::{Block, Buckets, Codec, Definition, KeyFamily, Layout, Manifest, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::StatementId;

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A head names the extents of its own part alone.
    KeepsForgotten,
    /// A new node names the open node of the part before, and not the full one.
    StalePointer,
    /// A writer does not name the head that its next one takes the place of.
    HeadStays,
    /// A writer hands in the head before once more: the rows of the part are in no list.
    OldHead,
    /// The reader looks up the newest version and takes no lease.
    NoLease,
    /// The server forgets a writer whose connection has ended.
    DeathUnnoticed,
}

struct Listed {
    rows: [u8; 2],
    deaths: u8,
    /// Whether the server saves, and how many versions it fails to save.
    saves: bool,
    failures: u8,
    flaw: Flaw,
}

/// The bytes of an extent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Content {
    /// The rows of its strip, from the least to the greatest.
    rows: (u8, u8),
    /// By offset.
    nodes: BTreeMap<u32, Arc<ListNode>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Rests,
    Granted(u32),
    Sealed(u32),
    /// It has named the head that is replaced.
    Replaced(u32),
    Ended,
}

/// The list of a writer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Own {
    /// Full nodes: how many, their rows, the last ones, and the extents of them and their strips.
    full: u32,
    full_rows: u8,
    links: Vec<BlockRange>,
    kept: BTreeSet<u32>,
    /// The strip of the open node, and where that lies.
    open: Option<(Strip, BlockRange)>,
    head: Option<Strip>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    alive: bool,
    phase: Phase,
    /// Rows that it has handed in.
    rows: u8,
    list: Own,
    /// The list behind the part that is under way.
    next: Option<Own>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    Follows(u64, Arc<Manifest>, ListWalk),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    home: Home,
    load: u64,
    /// By extent that is not freed.
    memory: BTreeMap<u32, Content>,
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
/// Bytes from one node to the next in an extent, and those of an extent.
const NODE_BYTES: u32 = 256;
const EXTENT_BYTES: u32 = 4 * NODE_BYTES;

fn pointer(extent: u32, offset: u32) -> Pointer {
    Pointer { extent: ExtentId { server: 0, number: extent }, offset }
}

fn strip(extent: u32, (least, greatest): (u8, u8)) -> Strip {
    let rows = u32::from(greatest - least) + 1;
    let (at, least, greatest) = (pointer(extent, 0), least.into(), greatest.into());
    let block = Block { at, bytes: rows, codec: Codec::Plain, nulls: 0, least, greatest };
    Strip { rows, blocks: vec![block] }
}

fn rows_of(strip: &Strip) -> (u8, u8) {
    (strip.blocks[0].least as u8, strip.blocks[0].greatest as u8)
}

impl Own {
    /// Writes a row into an extent: what lies there then, and the list behind it.
    fn with(&self, partition: u32, row: u8, extent: u32, flaw: Flaw) -> (Content, Self) {
        let (mut own, mut nodes) = (self.clone(), BTreeMap::new());
        let before = own.open.take();
        let mut rows = (row, row);
        if let Some((full, place)) = before.clone() {
            if full.rows == 1 {
                rows.0 = rows_of(&full).0;
            } else {
                // The open node is full: it is named by the next one.
                own.full_rows += full.rows as u8;
                own.full += 1;
                own.links.insert(0, place);
                own.links.truncate(LINKS_MAX);
                own.kept.extend([full.blocks[0].at, place.at].map(|at| at.extent.number));
            }
        }
        let new = strip(extent, rows);
        let links = match (flaw, &self.open) {
            (Flaw::StalePointer, Some((_, place))) if !own.links.is_empty() => {
                [&[*place][..], &own.links[1..]].concat()
            }
            _ => own.links.clone(),
        };
        let all = u64::from(own.full_rows) + u64::from(new.rows);
        let (depth, strips) = (own.full + 1, vec![new.clone()]);
        let node = ListNode { partition, depth, rows: all, links, strips };
        let bytes = node.encode().len() as u32;
        assert!(bytes <= NODE_BYTES);
        let place = BlockRange { at: pointer(extent, NODE_BYTES), bytes };
        nodes.insert(NODE_BYTES, Arc::new(node));
        own.open = Some((new, place));
        let mut keeps = own.kept.clone();
        keeps.insert(extent);
        if flaw == Flaw::KeepsForgotten {
            keeps.retain(|kept| *kept == extent);
        }
        let keeps = keeps.iter().map(|of| (ExtentId { server: 0, number: *of }, EXTENT_BYTES));
        own.head = Some(head(all as u32, place, &keeps.collect::<Vec<_>>()));
        (Content { rows, nodes }, own)
    }
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
        let Some(table) = self.home.tables().into_iter().next() else { return Ok(()) };
        if table.version == self.newest.0 {
            return Ok(());
        }
        let rows = self.rows_of_newest()?;
        let before = std::mem::replace(&mut self.newest, (table.version, rows));
        for (n, writer) in self.writers.iter().enumerate() {
            let has_more = rows[n] > before.1[n] || writer.phase == Phase::Ended || !writer.alive;
            if rows[n] < before.1[n] || !has_more {
                return Err(format!("G2: {before:?} is followed by {:?}", self.newest));
            }
        }
        Ok(())
    }

    /// The newest version, as a reader gets it.
    fn newest(&self) -> Result<Manifest, String> {
        let mut home = self.home.clone();
        let pin = home.pin(0, "t", At::Newest, None).map_err(|error| error.to_string())?;
        let bytes = home.pinned(0, pin.lease).ok_or("P2: no manifest")?;
        Manifest::decode(&bytes).map_err(|error| error.to_string())
    }

    /// Reads the first node that is wanted; `false` when there is none.
    fn read_node(&self, walk: &mut ListWalk) -> Result<bool, String> {
        let Some(place) = walk.wanted(0) else { return Ok(false) };
        let content = self.memory.get(&place.at.extent.number);
        let node = content.and_then(|content| content.nodes.get(&place.at.offset));
        let node = node.filter(|node| node.encode().len() == place.bytes as usize);
        let node = node.ok_or_else(|| format!("P2: there is no node at {place:?}"))?;
        let taken = walk.take(Arc::clone(node));
        taken.map_err(|error| format!("P2: {error}: {node:?}"))?;
        Ok(true)
    }

    /// How many rows of each writer a version has whose nodes were read.
    fn rows_of(&self, walk: ListWalk, heads: &Manifest) -> Result<[u8; 2], String> {
        let directory = walk.directory(heads).map_err(|error| format!("P2: {error}"))?;
        let mut rows = [0; 2];
        for (n, last) in rows.iter_mut().enumerate() {
            let [from, to] = [n, n + 1].map(|at| directory.partitions[at] as usize);
            for strip in &directory.strips[from..to] {
                let (least, greatest) = rows_of(strip);
                let content = self.memory.get(&strip.blocks[0].at.extent.number);
                if content.map(|content| content.rows) != Some((least, greatest)) {
                    return Err(format!("P2: {strip:?} is not there"));
                }
                if least != *last + 1 {
                    return Err(format!("G1: version {} has {directory:?}", heads.version));
                }
                *last = greatest;
            }
        }
        Ok(rows)
    }

    fn rows_of_newest(&self) -> Result<[u8; 2], String> {
        let heads = self.newest()?;
        let mut walk = ListWalk::of(&heads).map_err(|error| error.to_string())?;
        while self.read_node(&mut walk)? {}
        self.rows_of(walk, &heads)
    }
}

impl Listed {
    fn honest(rows: [u8; 2], deaths: u8) -> Self {
        Self { rows, deaths, saves: false, failures: 0, flaw: Flaw::None }
    }

    fn saving(rows: [u8; 2], deaths: u8, failures: u8) -> Self {
        Self { saves: true, failures, ..Self::honest(rows, deaths) }
    }

    fn write(&self, s: &State, n: usize, out: &mut Steps) {
        let (writer, client, of) = (&s.writers[n], WRITERS + n as u64, n as u32);
        if !writer.alive || writer.phase == Phase::Ended {
            return;
        }
        let mut next = s.clone();
        let after = &mut next.writers[n];
        let effects = match writer.phase {
            Phase::Rests if writer.rows < self.rows[n] => {
                match next.home.grant(client, s.load, EXTENT_BYTES) {
                    Ok(extent) => {
                        let (content, own) =
                            writer.list.with(of, writer.rows + 1, extent, self.flaw);
                        next.memory.insert(extent, content);
                        (after.phase, after.next) = (Phase::Granted(extent), Some(own));
                    }
                    Err(_) => after.phase = Phase::Ended,
                }
                vec![]
            }
            Phase::Rests => return self.commit(s, n, out),
            Phase::Granted(extent) => {
                let sealed = next.home.seal(client, s.load, extent, EXTENT_BYTES);
                after.phase = sealed.map_or(Phase::Ended, |()| Phase::Sealed(extent));
                vec![]
            }
            Phase::Sealed(extent) => {
                let gone = writer.list.head.clone().filter(|_| self.flaw != Flaw::HeadStays);
                let gone = gone.map(|head| (of, head)).into_iter().collect();
                let (replaced, effects) = next.home.replace(client, s.load, of, gone);
                after.phase = replaced.map_or(Phase::Ended, |()| Phase::Replaced(extent));
                effects
            }
            Phase::Replaced(_) => {
                let own = after.next.take().unwrap_or_default();
                let old = writer.list.head.clone().filter(|_| self.flaw == Flaw::OldHead);
                let head = old.or_else(|| own.head.clone()).map(|head| (of, head));
                let heads = head.into_iter().collect();
                let (given, effects) = next.home.hand_in(client, s.load, of, heads, true);
                after.phase = if given.is_ok() { Phase::Rests } else { Phase::Ended };
                (after.rows, after.list) = (writer.rows + 1, own);
                effects
            }
            Phase::Ended => return,
        };
        let result = next.apply(effects).map(|()| next);
        out.push((Step::Write(n, writer.phase), result));
    }

    fn commit(&self, s: &State, n: usize, out: &mut Steps) {
        let mut next = s.clone();
        let client = WRITERS + n as u64;
        let (_, effects) = next.home.commit(client, s.load, n as u32, vec![], true);
        next.writers[n].phase = Phase::Ended;
        let result = next.apply(effects).map(|()| next);
        out.push((Step::Commit(n), result));
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
                let bytes = next.home.pinned(0, pin.lease).unwrap_or_default();
                let heads = Manifest::decode(&bytes);
                let walk = heads.and_then(|heads| Ok((ListWalk::of(&heads)?, heads)));
                let Ok((walk, heads)) = walk else {
                    return out.push((Step::Pin, Err("P2: no manifest".into())));
                };
                next.reader = Reading::Follows(pin.lease, Arc::new(heads), walk);
                let effects = match self.flaw {
                    Flaw::NoLease => next.home.unpin(0, 0, pin.lease),
                    _ => vec![],
                };
                out.push((Step::Pin, next.apply(effects).map(|()| next)));
            }
            Reading::Follows(lease, heads, walk) => {
                let mut walk = walk.clone();
                let result = match s.read_node(&mut walk) {
                    Ok(true) => {
                        next.reader = Reading::Follows(*lease, Arc::clone(heads), walk);
                        Ok(next)
                    }
                    Ok(false) => s.rows_of(walk, heads).and_then(|_| {
                        let effects = next.home.unpin(0, 0, *lease);
                        next.reader = Reading::Ended;
                        next.apply(effects).map(|()| next)
                    }),
                    Err(wrong) => Err(wrong),
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

impl Model for Listed {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let home = Home::new(0, 1 << 20);
        let mut home = if self.saves { home.with_saving() } else { home };
        let buckets = vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }];
        let columns = vec![Layout::Fixed(1)];
        let definition = Definition { schema: vec![], columns, buckets, strip_rows: 2 }.listed();
        let (table, mode) = ("t".into(), LoadMode::Create);
        let load = TableLoad { table, definition, mode, origin: None };
        let mut number = 0;
        for client in [WRITERS, WRITERS + 1] {
            let begun = home.begin(client, "node", load.clone(), STATEMENT, 2);
            number = begun.expect("nobody else loads it");
        }
        let (alive, phase, list) = (true, Phase::Rests, Own::default());
        let writer = Writer { alive, phase, rows: 0, list, next: None };
        vec![State {
            home,
            load: number,
            memory: BTreeMap::new(),
            writers: [writer.clone(), writer],
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
            self.die(s, n, out);
        }
        self.save(s, out);
        self.read(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        if !self.is_final(s) || s.writers.iter().any(|of| of.alive && of.phase != Phase::Ended) {
            return Ok(());
        }
        let newest = if s.newest.0 > 0 { s.newest()?.extents } else { vec![] };
        let newest: BTreeSet<u32> = newest.into_iter().map(|(extent, _)| extent.number).collect();
        let held: BTreeSet<u32> = s.memory.keys().copied().collect();
        let stat = s.home.stat();
        if held != newest || stat.loads > 0 || stat.leases > 0 {
            return Err(format!("P5: {held:?} is held in the end, {newest:?} of use: {stat:?}"));
        }
        let whole = s.writers.iter().all(|of| of.alive);
        let is_all = s.writers.iter().zip(self.rows).all(|(of, rows)| of.rows == rows);
        if whole && is_all && s.failures == self.failures && s.newest.1 != self.rows {
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
    finds(&Listed { flaw, ..Listed::honest([4, 2], 1) }, flaw, reason);
}

#[test]
fn lists_lead_to_each_row_once_while_a_table_grows() {
    holds(&Listed::honest([4, 3], 1), 100_000);
    holds(&Listed::saving([3, 2], 1, 1), 30_000);
}

#[test]
fn every_deviation_of_lists_is_found() {
    fails(Flaw::KeepsForgotten, "P2");
    fails(Flaw::StalePointer, "P2");
    fails(Flaw::HeadStays, "G1");
    fails(Flaw::OldHead, "G2");
    fails(Flaw::NoLease, "P2");
    fails(Flaw::DeathUnnoticed, "P5");
}
