//! The numbers by which the tables of one server name others, over restarts, with the [`Home`] that
//! runs. A number is in every pointer of a version, so that it means one server for as long as a
//! record names it.
//!
//! Tables are loaded over one other server or two, in any order, and dropped. The server dies and
//! is started anew; while it is dead a file of a table may be lost, so that the table is damaged,
//! and be put back before a later start. Other servers are places alone: they hold what is asked.
//!
//! Invariants: N1 a table whose files are all there is there again at each start; N2 of two records
//! on the disk no number names two servers, and no server has two numbers. The deviation in
//! [`Numbers::forgets`] must be found.

use std::collections::BTreeMap;

use models::{Model, Steps as StepsOf};
use pool::PoolError;
use pool::access::{LoadMode, TableLoad};
use pool::home::{Effect, Home, SavedVersion};
use pool::manifest::{Block, Codec, Definition, Layout, Manifest, Strip};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::{ServerPlace, StatementId};

use crate::{finds, holds};

const TABLES: [&str; 3] = ["a", "b", "c"];
/// The identities of other servers, in the orders in which loads name them.
const ORDERS: [&[u64]; 4] = [&[7], &[8], &[7, 8], &[8, 7]];
const LOADER: u64 = 1;

struct Numbers {
    loads: u8,
    deaths: u8,
    /// Whether the servers that have parts of a damaged table are forgotten.
    forgets: bool,
}

/// A record on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Record {
    load: u64,
    manifest: Manifest,
    /// Whether an extent of it is not on the disk.
    lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// None while it is dead.
    home: Option<Home>,
    starts: u32,
    disk: BTreeMap<&'static str, Record>,
    loads: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Loads(&'static str, &'static [u64]),
    Drops(&'static str),
    Dies,
    Loses(&'static str),
    PutsBack(&'static str),
    Starts,
}

type Steps = StepsOf<Step, State>;

fn place(identity: u64) -> ServerPlace {
    let (name, address) = (format!("m{identity}"), "m:1".into());
    ServerPlace { name, address, identity, incarnation: 1 }
}

fn strip(server: u16, number: u32) -> (u32, Strip) {
    let at = Pointer { extent: ExtentId { server, number }, offset: 0 };
    let block = Block { at, bytes: 1, codec: Codec::Plain, nulls: 0, least: 0, greatest: 0 };
    (0, Strip { rows: 1, blocks: vec![block] })
}

/// Loads a table over some servers, and saves it.
fn load(s: &mut State, table: &'static str, over: &[u64]) -> Result<(), PoolError> {
    let Some(home) = &mut s.home else { return Ok(()) };
    let columns = vec![Layout::Fixed(1)];
    let definition = Definition { schema: vec![], columns, buckets: vec![], strip_rows: 1 };
    let (mode, origin) = (LoadMode::Create, None);
    let of = TableLoad { table: table.into(), definition, mode, origin };
    let snapshot = StatementId { job: 1, statement: s.loads.into() };
    let load = home.begin(LOADER, "l", of, snapshot, 1)?;
    let places = over.iter().map(|identity| place(*identity)).collect();
    let numbers = home.distribute(LOADER, load, places)?;
    let own = home.grant(LOADER, load, 64)?;
    home.seal(LOADER, load, own, 1)?;
    let there = numbers.iter().map(|number| strip(*number, s.loads.into()));
    let strips = [strip(0, own)].into_iter().chain(there).collect();
    home.commit(LOADER, load, 0, strips, true).0?;
    let effects = numbers.iter().flat_map(|number| home.held(load, *number, Ok(())));
    let saved = effects.into_iter().find_map(|effect| match effect {
        Effect::Save(version) => Some(version),
        _ => None,
    });
    let manifest = (*saved.ok_or(PoolError::Malformed { what: "load" })?.manifest).clone();
    home.saved(load, Ok(()));
    s.disk.insert(table, Record { load, manifest, lost: false });
    s.loads += 1;
    Ok(())
}

impl Numbers {
    /// Starts the server with what the disk has.
    fn start(&self, s: &mut State) -> Result<(), String> {
        s.starts += 1;
        let home = Home::new(0, 1 << 20).with_saving().with_identity(1, s.starts);
        let mut home = home.with_incarnation(s.starts);
        for (table, Record { load, manifest, .. }) in s.disk.iter().filter(|(_, of)| !of.lost) {
            let snapshot = StatementId { job: 1, statement: 0 };
            let (bytes, manifest) = (manifest.encode().into(), manifest.clone().into());
            let version = SavedVersion { load: *load, snapshot, manifest, bytes, goes_on: false };
            home.restore(version, |_| 64).map_err(|error| format!("N1: '{table}': {error}"))?;
        }
        for (table, Record { manifest, .. }) in s.disk.iter().filter(|(_, of)| of.lost) {
            let holders = if self.forgets { &[][..] } else { &manifest.holders };
            home.set_damaged(table, "a file is lost".into(), holders);
        }
        let own = s.disk.values().flat_map(|record| record.manifest.own_extents());
        home.skip_extents(own.map(|(extent, _)| extent.number + 1).max().unwrap_or(0));
        s.home = Some(home);
        Ok(())
    }

    fn work(&self, s: &State, out: &mut Steps) {
        for table in TABLES {
            let mut next = s.clone();
            let dropped = next.home.as_mut().and_then(|home| home.drop_table(table).ok());
            if dropped.is_some() {
                next.disk.remove(table);
                out.push((Step::Drops(table), Ok(next)));
                continue;
            }
            for over in ORDERS.into_iter().filter(|_| s.loads < self.loads) {
                let mut next = s.clone();
                let loaded = load(&mut next, table, over).map_err(|error| error.to_string());
                out.push((Step::Loads(table, over), loaded.map(|()| next)));
            }
        }
        if s.starts <= u32::from(self.deaths) {
            out.push((Step::Dies, Ok(State { home: None, ..s.clone() })));
        }
    }

    fn rest(&self, s: &State, out: &mut Steps) {
        for (table, record) in &s.disk {
            let mut next = s.clone();
            next.disk.insert(table, Record { lost: !record.lost, ..record.clone() });
            let step = if record.lost { Step::PutsBack(table) } else { Step::Loses(table) };
            out.push((step, Ok(next)));
        }
        let mut next = s.clone();
        let started = self.start(&mut next);
        out.push((Step::Starts, started.map(|()| next)));
    }
}

impl Model for Numbers {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let mut state = State { home: None, starts: 0, disk: BTreeMap::new(), loads: 0 };
        self.start(&mut state).expect("an empty directory");
        vec![state]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        if s.home.is_some() {
            self.work(s, out);
        } else {
            self.rest(s, out);
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let (mut numbers, mut identities) = (BTreeMap::new(), BTreeMap::new());
        for holder in s.disk.values().flat_map(|record| &record.manifest.holders) {
            let (number, identity) = (holder.number, holder.identity);
            if *numbers.entry(identity).or_insert(number) != number
                || *identities.entry(number).or_insert(identity) != identity
            {
                return Err(format!("N2: {holder:?} beside {identities:?}"));
            }
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        s.home.is_some() && s.loads == self.loads && s.starts > u32::from(self.deaths)
    }
}

#[test]
fn a_number_names_one_server_for_as_long_as_a_record_does() {
    holds(&Numbers { loads: 3, deaths: 2, forgets: false }, 100_000);
}

#[test]
fn numbers_of_a_damaged_table_that_are_forgotten_are_found() {
    finds(&Numbers { loads: 2, deaths: 1, forgets: true }, "forgets", "N2");
}
