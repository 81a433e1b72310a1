//! Segments that refer to earlier ones, explored completely, with the [`References`] that a node
//! runs.
//!
//! A node has rows that never change: some come, and some are of no use any more. It stores the
//! segment of a checkpoint, which refers to sections of earlier ones; the leader records the
//! checkpoint or gives it up. Segments are collected at any time, and the job may crash and go on
//! from its last checkpoint, also twice.
//!
//! Invariants: S1 each segment is there that a checkpoint needs which is retained; S2 the sections
//! of a checkpoint have each of its rows once, and no other. Each [`Flaw`] must be found.

use std::collections::BTreeSet;

use checkpoint::SegmentEntry;
use checkpoint::chain::{CHECKPOINTS_RETAINED, References, SectionPlace, StoredSection};
use checkpoint::segment::SectionEntry;
use models::{Model, Steps as StepsOf, explore};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A segment is collected that a checkpoint refers to, and does not name as its own.
    CollectsReferred,
    /// A section is referred to of whose rows some are of no use any more.
    RefersToParts,
}

struct Node {
    rounds: u8,
    rows: u8,
    crashes: u8,
    flaw: Flaw,
}

type Sections = Vec<StoredSection<u8>>;

/// A checkpoint: its number, its own segment, its rows, and the sections that have them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Checkpoint {
    number: u64,
    own: SegmentEntry,
    rows: BTreeSet<u8>,
    sections: Sections,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    references: References<u8>,
    generation: u8,
    /// The number of the next checkpoint, and of the next row.
    round: u8,
    row: u8,
    rows: BTreeSet<u8>,
    /// The checkpoint that is stored and not in the chain.
    stored: Option<Checkpoint>,
    /// Those that are retained.
    chain: Vec<Checkpoint>,
    files: BTreeSet<String>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Comes,
    IsOfNoUse(u8),
    Stores,
    Records,
    GivesUp,
    Collects,
    Crashes,
}

/// Bytes of a row, and of a segment beside rows.
const ROW_BYTES: u64 = 10;
const OTHER_BYTES: u64 = 5;

impl Node {
    /// The sections that are referred to.
    fn usable(&self, s: &State) -> Sections {
        match self.flaw {
            Flaw::RefersToParts => {
                // Sections are taken for whole that have one needed row.
                let all: BTreeSet<u8> = (0..s.row).collect();
                let mut sections = s.references.usable(&all);
                sections.retain(|of| of.rows.iter().any(|row| s.rows.contains(row)));
                sections
            }
            _ => s.references.usable(&s.rows),
        }
    }

    fn store(&self, s: &State) -> State {
        let mut then = s.clone();
        if let Some(last) = s.chain.last() {
            then.references.recorded(last.number);
        }
        let referred = self.usable(&then);
        let is_there = |row: &u8| referred.iter().any(|of| of.rows.contains(row));
        let new: Vec<u8> = s.rows.iter().copied().filter(|row| !is_there(row)).collect();
        let file = format!("g{}-{}", s.generation, s.round);
        let bytes = ROW_BYTES * new.len() as u64 + OTHER_BYTES;
        let own = SegmentEntry { file, bytes, crc: 0 };
        // Two rows are in a section.
        let sections = new.chunks(2).zip(0..).map(|(rows, offset)| {
            let (operator, bytes) = (String::new(), ROW_BYTES * rows.len() as u64);
            let section = SectionEntry { operator, part: 0, rows: 1, offset, bytes, crc: 0 };
            let place = SectionPlace { segment: own.clone(), section };
            StoredSection { place, rows: rows.to_vec() }
        });
        let sections: Sections = referred.into_iter().chain(sections).collect();
        let number = s.round.into();
        then.references.stored(number, sections.clone());
        then.files.insert(own.file.clone());
        then.stored = Some(Checkpoint { number, own, rows: s.rows.clone(), sections });
        then.round += 1;
        then
    }

    fn collect(&self, s: &State) -> State {
        let mut then = s.clone();
        let needed: BTreeSet<&str> = s.chain.iter().flat_map(|of| self.needed(of)).collect();
        let greatest = s.chain.last().map_or(0, |of| of.number);
        then.files.retain(|file| {
            let (generation, number) = file[1..].split_once('-').expect("names are made so");
            let number: u64 = number.parse().expect("a number");
            let is_over = generation != s.generation.to_string() || number <= greatest;
            !is_over || needed.contains(&**file)
        });
        then
    }

    /// The segments that collection takes for those of a checkpoint.
    fn needed<'a>(&self, of: &'a Checkpoint) -> BTreeSet<&'a str> {
        let mut files = BTreeSet::from([&*of.own.file]);
        if self.flaw != Flaw::CollectsReferred {
            files.extend(of.sections.iter().map(|of| &*of.place.segment.file));
        }
        files
    }
}

impl Model for Node {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        vec![State {
            references: References::default(),
            generation: 1,
            round: 1,
            row: 0,
            rows: BTreeSet::new(),
            stored: None,
            chain: Vec::new(),
            files: BTreeSet::new(),
        }]
    }

    fn steps(&self, s: &State, out: &mut StepsOf<Step, State>) {
        let mut to = |step: Step, change: &dyn Fn(&mut State)| {
            let mut then = s.clone();
            change(&mut then);
            out.push((step, Ok(then)));
        };
        if s.row < self.rows {
            to(Step::Comes, &|then| {
                then.rows.insert(then.row);
                then.row += 1;
            });
        }
        for &row in &s.rows {
            to(Step::IsOfNoUse(row), &|then| _ = then.rows.remove(&row));
        }
        if s.stored.is_some() {
            to(Step::Records, &|then| {
                then.chain.extend(then.stored.take());
                let old = then.chain.len().saturating_sub(CHECKPOINTS_RETAINED);
                then.chain.drain(..old);
            });
            to(Step::GivesUp, &|then| then.stored = None);
        } else if s.round <= self.rounds {
            to(Step::Stores, &|then| *then = self.store(then));
        }
        to(Step::Collects, &|then| *then = self.collect(then));
        if s.generation <= self.crashes {
            to(Step::Crashes, &|then| {
                then.generation += 1;
                then.stored = None;
                // The process has lost its references, and the rows have other numbers.
                then.references = References::default();
                let rows = then.chain.last().map_or(0, |of| of.rows.len() as u8);
                then.rows = (then.row..then.row + rows).collect();
                then.row += rows;
            });
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        for of in &s.chain {
            let files = of.sections.iter().map(|of| &of.place.segment.file).chain([&of.own.file]);
            if let Some(gone) = files.into_iter().find(|file| !s.files.contains(*file)) {
                return Err(format!("S1: checkpoint {} needs {gone}, which is gone", of.number));
            }
        }
        for of in s.stored.iter().chain(&s.chain) {
            let mut rows: Vec<u8> = of.sections.iter().flat_map(|of| of.rows.clone()).collect();
            rows.sort_unstable();
            if !rows.iter().eq(&of.rows) {
                return Err(format!("S2: checkpoint {} has {rows:?} of {:?}", of.number, of.rows));
            }
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        s.round > self.rounds && s.stored.is_none()
    }
}

fn node(flaw: Flaw) -> Node {
    Node { rounds: 5, rows: 3, crashes: 1, flaw }
}

#[test]
fn what_a_checkpoint_refers_to_stays() {
    let seen = explore(&node(Flaw::None), 2_000_000);
    let seen = seen.unwrap_or_else(|v| panic!("{}\n{}", v.reason, v.trace));
    println!("{seen:?}");
    assert!(seen.states > 10_000 && seen.finals > 0, "{seen:?}");
}

#[test]
fn every_deviation_of_references_is_found() {
    for (flaw, reason) in [(Flaw::CollectsReferred, "S1"), (Flaw::RefersToParts, "S2")] {
        let violation = explore(&node(flaw), 2_000_000).expect_err("a flaw must be found");
        let steps = violation.trace.lines().count() - 1;
        println!("{flaw:?}: {} in {steps} steps", violation.reason);
        assert!(violation.reason.starts_with(reason), "{}", violation.reason);
    }
}
