//! Joins that merge late, explored in whole: two helpers keep rows of two inputs by window for one
//! leader ([`HeldRows`]), end epochs by watermarks and by rows ([`Helper`]), and mark a round; the
//! leader stages and merges them ([`Leader`]), aligns the round ([`RoundAlignment`]), joins windows
//! and saves what it keeps. Either a chunk comes twice, or a link loses what is on it and is made
//! again; and all of it may crash once and go on from what was saved.
//!
//! Invariants: J1 a window joins each row of it exactly once; J2 a window is emitted once; J3 a
//! helper keeps no more rows than its bound; J4 a row that was read before the marker is saved
//! exactly once, with the leader's rows or in an emitted window, and no other row is; J5 chunks
//! are staged of one epoch. That every window is emitted is the absence of dead ends.
#![allow(missing_docs)]

use models::Model;
use state::epoch::{
    Arrives, END_OF_STREAM, HeldRows, Helper, Leader, Progress, RoundAlignment, Tag, Verdict,
};

use super::{finds, holds};

const HELPERS: usize = 2;
const WINDOWS: usize = 2;
/// Rows that a helper keeps before its epoch ends.
const HELD_MAX: usize = 2;
const KEPT_MAX: usize = 2;
const ROUND: u64 = 7;

/// The input and the window of each row of a helper, in the order in which it reads them. A window
/// ends in front of the first row of the next one.
const SCRIPTS: [&[(u32, usize)]; HELPERS] = [&[(0, 0), (1, 0), (0, 0), (1, 1)], &[(1, 0), (0, 1)]];
const ROWS: usize = 6;

/// The part of the protocol that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The watermark goes ahead of the rows that are kept.
    ProgressWithoutRows,
    /// Rows of one input alone leave with an epoch.
    OneInput,
    /// What has left is still kept.
    HeldTwice,
    /// Epochs end by watermarks alone.
    NoBound,
    /// A marker goes ahead of the rows that are kept.
    MarkerWithoutRows,
    /// The leader saves with the first marker.
    Unaligned,
    /// Frames behind a marker are merged at once.
    NextRoundMerged,
    /// Chunks that come twice are merged twice.
    NoDeduplication,
    /// An epoch is merged though one before it is missing.
    GapsMerged,
    /// A delta is forgotten when it was sent.
    DropWhenSent,
    /// An epoch is acknowledged with its first chunk.
    AcknowledgeStaged,
    /// A window is joined when one helper has passed its end.
    AnyClock,
    /// Helpers go on from where they had read.
    ReadOn,
    /// What was staged outlives a crash.
    StagedStays,
}

/// Rows of an input, as bits.
type Rows = u8;
type Chunk = (u32, Rows);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Frame {
    Delta { tag: Tag, round: u64, chunk: Chunk },
    Marker,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct HelperState {
    helper: Helper<Chunk>,
    held: HeldRows<Rows>,
    read: usize,
    watermark: i64,
    ended: bool,
    /// The epochs in front of the marker, and the rows that were read.
    marked: Option<(u64, usize)>,
    marker_sent: bool,
    wire: Vec<Frame>,
}

/// What the leader has and saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Joined {
    /// How often it has each row.
    rows: [u8; ROWS],
    emitted: [u8; WINDOWS],
    watermark: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    helpers: [HelperState; HELPERS],
    leader: Leader,
    alignment: RoundAlignment,
    staged: [Vec<Chunk>; HELPERS],
    /// Frames of the next round.
    apart: Vec<(usize, Frame)>,
    joined: Joined,
    /// What was saved, and how far each helper had read.
    saved: Option<(Joined, [usize; HELPERS])>,
    crashes: u8,
    faults: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    Read { helper: usize },
    Watermark { helper: usize },
    Mark { helper: usize },
    Send { helper: usize },
    Deliver { helper: usize, frame: Frame, twice: bool },
    Acknowledge { helper: usize },
    Emit { window: usize },
    Save,
    Lose { helper: usize },
    Crash,
}

type Steps = models::Steps<Step, State>;

struct Joins(Flaw);

/// The bit of a row, and its input and window.
fn row(helper: usize, at: usize) -> usize {
    helper * SCRIPTS[0].len() + at
}

fn rows_of(window: usize) -> impl Iterator<Item = usize> {
    let of = move |helper: usize| {
        let all = SCRIPTS[helper].iter().enumerate();
        all.filter(move |(_, of)| of.1 == window).map(move |(at, _)| row(helper, at))
    };
    (0..HELPERS).flat_map(of)
}

fn end(window: usize) -> i64 {
    window as i64 + 1
}

fn helper(id: usize, read: usize, watermark: i64, marked: bool) -> HelperState {
    HelperState {
        helper: Helper::new(id as u32, 0, 0, KEPT_MAX),
        held: HeldRows::new(1),
        read,
        watermark,
        ended: false,
        // One round is enough.
        marked: marked.then_some((0, 0)),
        marker_sent: marked,
        wire: vec![],
    }
}

/// All begins with what was saved.
fn beginning(saved: Option<(Joined, [usize; HELPERS])>) -> State {
    let joined = saved.map_or(Joined { watermark: i64::MIN, ..Joined::default() }, |of| of.0);
    let read = saved.map_or([0; HELPERS], |of| of.1);
    let marked = saved.is_some();
    let of = |at: usize| helper(at, read[at], joined.watermark, marked);
    State {
        helpers: std::array::from_fn(of),
        leader: Leader::beginning_at(HELPERS as u32, joined.watermark),
        alignment: RoundAlignment::new(ROUND + u64::from(marked), 1, [true; HELPERS]),
        staged: Default::default(),
        apart: vec![],
        joined,
        saved,
        crashes: 0,
        faults: 0,
    }
}

impl Joins {
    /// Ends the epoch of a helper with its progress.
    fn close(&self, of: &mut HelperState, with_rows: bool) -> Result<(), String> {
        let mut chunks: Vec<Chunk> = vec![];
        if with_rows {
            let before = of.held.clone();
            for ((input, _), rows) in of.held.take().into_iter().flatten() {
                let rows = rows.into_iter().fold(0, |all, rows| all | rows);
                match chunks.iter().position(|chunk| chunk.0 == input) {
                    Some(at) => chunks[at].1 |= rows,
                    None if self.0 == Flaw::OneInput && !chunks.is_empty() => {}
                    None => chunks.push((input, rows)),
                }
            }
            if self.0 == Flaw::HeldTwice {
                of.held = before;
            }
        }
        let progress =
            if of.ended { Progress::ended(END_OF_STREAM) } else { Progress::active(of.watermark) };
        of.helper.close(progress, chunks).map(|_| ()).map_err(|error| error.to_string())
    }

    fn read(&self, state: &State, at: usize) -> Result<State, String> {
        let mut next = state.clone();
        let of = &mut next.helpers[at];
        let (input, window) = SCRIPTS[at][of.read];
        of.held.push(0, input, Some(end(window)), 1 << row(at, of.read), 1);
        of.read += 1;
        if of.held.bytes() > HELD_MAX {
            return Err(format!("J3: helper {at} keeps {} rows", of.held.bytes()));
        }
        // An epoch ends when its rows are many.
        if of.held.bytes() >= HELD_MAX && self.0 != Flaw::NoBound {
            self.close(of, true)?;
        }
        Ok(next)
    }

    /// A helper reads, tells its watermark, or marks the round.
    fn helpers(&self, state: &State, out: &mut Steps) {
        for (at, of) in state.helpers.iter().enumerate() {
            if of.ended || !of.helper.may_close() {
                continue;
            }
            let script = SCRIPTS[at];
            let window = script.get(of.read).map(|of| of.1);
            let due = window.map_or(END_OF_STREAM, |window| end(window) - 1);
            let due = if window == Some(0) { i64::MIN } else { due };
            if due > of.watermark || window.is_none() {
                let mut next = state.clone();
                let of = &mut next.helpers[at];
                (of.watermark, of.ended) = (due, window.is_none());
                let closed = self.close(of, self.0 != Flaw::ProgressWithoutRows);
                out.push((Step::Watermark { helper: at }, closed.map(|()| next)));
            } else {
                out.push((Step::Read { helper: at }, self.read(state, at)));
            }
            if of.marked.is_none() {
                let mut next = state.clone();
                let of = &mut next.helpers[at];
                let closed = match self.0 {
                    Flaw::MarkerWithoutRows => Ok(()),
                    _ => self.close(of, true),
                };
                of.marked = Some((of.helper.epoch() - 1, of.read));
                out.push((Step::Mark { helper: at }, closed.map(|()| next)));
            }
        }
    }

    fn send(&self, state: &State, out: &mut Steps) {
        for (at, of) in state.helpers.iter().enumerate() {
            let chunk = of.helper.to_send().map(|(tag, &chunk)| (tag, chunk));
            let mut next = state.clone();
            let own = &mut next.helpers[at];
            let before_marker = |tag: Tag| of.marked.is_none_or(|marked| tag.epoch <= marked.0);
            match chunk {
                Some((tag, chunk)) if of.marker_sent || before_marker(tag) => {
                    let later = u64::from(!before_marker(tag));
                    // After the round there is no other one.
                    let round = match of.marked {
                        Some((0, 0)) => ROUND + 1,
                        _ => ROUND + later,
                    };
                    own.wire.push(Frame::Delta { tag, round, chunk });
                    own.helper.sent();
                    if self.0 == Flaw::DropWhenSent && tag.last {
                        own.helper.acknowledge(tag.epoch).expect("it was closed");
                    }
                }
                _ if of.marked.is_some() && !of.marker_sent => {
                    own.wire.push(Frame::Marker);
                    own.marker_sent = true;
                }
                _ => continue,
            }
            out.push((Step::Send { helper: at }, Ok(next)));
        }
    }

    fn deliver(&self, state: &State, out: &mut Steps) {
        for (at, of) in state.helpers.iter().enumerate() {
            let Some(&frame) = of.wire.first() else { continue };
            for twice in [false, true] {
                if twice && (state.faults > 0 || frame == Frame::Marker) {
                    continue;
                }
                let mut next = state.clone();
                if twice {
                    next.faults += 1;
                } else {
                    next.helpers[at].wire.remove(0);
                }
                let taken = self.take(&mut next, at, frame);
                out.push((Step::Deliver { helper: at, frame, twice }, taken.map(|()| next)));
            }
        }
    }

    fn take(&self, state: &mut State, at: usize, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Marker => {
                let marked = state.alignment.mark_peer(at as u32, ROUND, 0, 0);
                marked.map_err(|breach| breach.to_string())?;
                if state.alignment.may_pass(0) {
                    let due = state.alignment.mark_edge(0, ROUND);
                    due.map_err(|breach| breach.to_string())?;
                    state.alignment.sent();
                }
                Ok(())
            }
            Frame::Delta { tag, round, chunk } => {
                let arrives = match self.0 {
                    Flaw::NextRoundMerged => Ok(Arrives::Now),
                    _ => state.alignment.arrives(at as u32, round as u16),
                };
                match arrives {
                    Ok(Arrives::Now) => self.merge(state, at, tag, chunk),
                    Ok(Arrives::Later) => {
                        state.apart.push((at, frame));
                        Ok(())
                    }
                    // A chunk that comes again behind the marker: it was merged.
                    Err(_) => Ok(()),
                }
            }
        }
    }

    fn merge(&self, state: &mut State, at: usize, tag: Tag, chunk: Chunk) -> Result<(), String> {
        let verdict = state.leader.accept(&tag);
        let flawed = match verdict {
            Verdict::Refuse(state::epoch::TagRefusal::Duplicate) => self.0 == Flaw::NoDeduplication,
            Verdict::Refuse(state::epoch::TagRefusal::Gap { .. }) => {
                let merges = self.0 == Flaw::GapsMerged && tag.last;
                if merges {
                    state.leader.advance(at as u32, tag.progress);
                    let mut cut = state.leader.cut();
                    cut.epochs[at] = tag.epoch;
                    state.leader = Leader::restore(&cut, &[]);
                }
                merges
            }
            _ => false,
        };
        match verdict {
            Verdict::Stage => {
                state.staged[at].push(chunk);
                if self.0 == Flaw::AcknowledgeStaged {
                    let of = &mut state.helpers[at].helper;
                    of.acknowledge(tag.epoch).map_err(|error| error.to_string())?;
                }
            }
            Verdict::Complete => {
                let staged = std::mem::take(&mut state.staged[at]);
                for chunk in staged.into_iter().chain([chunk]) {
                    add(&mut state.joined, chunk)?;
                }
                let cut = state.leader.cut();
                state.leader.committed(cut);
                self.settle(state, at);
            }
            Verdict::Refuse(_) if flawed => {
                add(&mut state.joined, chunk)?;
                let cut = state.leader.cut();
                state.leader.committed(cut);
            }
            Verdict::Refuse(_) => {}
        }
        Ok(())
    }

    /// A helper that has ended marks no more rounds.
    fn settle(&self, state: &mut State, at: usize) {
        use state::epoch::Presence::Ended;
        let of = state.leader.clock().of(at as u32);
        if of.is_some_and(|of| of.presence == Ended) {
            state.alignment.end_peer(at as u32);
        }
    }

    fn acknowledge(&self, state: &State, out: &mut Steps) {
        for at in 0..HELPERS {
            let epoch = state.leader.acknowledged(at as u32).unwrap_or(0);
            if epoch > state.helpers[at].helper.committed() {
                let mut next = state.clone();
                let acknowledged = next.helpers[at].helper.acknowledge(epoch);
                let acknowledged = acknowledged.map(|_| next).map_err(|error| error.to_string());
                out.push((Step::Acknowledge { helper: at }, acknowledged));
            }
        }
    }

    fn emit(&self, state: &State, out: &mut Steps) {
        for window in 0..WINDOWS {
            let clock = state.leader.clock();
            let passed = match self.0 {
                Flaw::AnyClock => (0..HELPERS as u32)
                    .filter_map(|helper| clock.of(helper))
                    .any(|of| of.watermark >= end(window)),
                _ => clock.least() >= end(window),
            };
            if !passed || state.joined.emitted[window] > 0 {
                continue;
            }
            let mut next = state.clone();
            next.joined.emitted[window] += 1;
            let mut wrong = None;
            for row in rows_of(window) {
                let count = std::mem::take(&mut next.joined.rows[row]);
                if count != 1 {
                    wrong = Some(format!("J1: window {window} joins row {row} {count} times"));
                }
            }
            out.push((Step::Emit { window }, wrong.map_or(Ok(next), Err)));
        }
    }

    /// The round is saved when it is complete and all windows are emitted that are due.
    fn save(&self, state: &State, out: &mut Steps) {
        let marked =
            |of: &HelperState| of.marked.is_some_and(|marked| marked != (0, 0)) || of.ended;
        let early = self.0 == Flaw::Unaligned
            && !state.alignment.may_pass(0)
            && state.helpers.iter().all(marked);
        let least = state.leader.clock().least();
        let due = (0..WINDOWS).any(|of| state.joined.emitted[of] == 0 && least >= end(of));
        if !(state.alignment.is_complete() || early) || state.saved.is_some() || due {
            return;
        }
        let mut next = state.clone();
        next.joined.watermark = least;
        let position = |at: usize| {
            let of = &state.helpers[at];
            of.marked.map_or(SCRIPTS[at].len(), |marked| marked.1)
        };
        let positions = std::array::from_fn(position);
        next.saved = Some((next.joined, positions));
        let mut wrong = None;
        for helper in 0..HELPERS {
            for (at, &(_, window)) in SCRIPTS[helper].iter().enumerate() {
                let count = next.joined.rows[row(helper, at)] + next.joined.emitted[window];
                if count != u8::from(at < positions[helper]) {
                    wrong = Some(format!("J4: row {at} of {helper} is saved {count} times"));
                }
            }
        }
        if let Some(wrong) = wrong {
            out.push((Step::Save, Err(wrong)));
            return;
        }
        if state.alignment.is_complete() {
            next.alignment.begin_next();
        }
        let mut taken = Ok(());
        for (at, frame) in std::mem::take(&mut next.apart) {
            taken = taken.and_then(|()| self.take(&mut next, at, frame));
        }
        out.push((Step::Save, taken.map(|()| next)));
    }

    fn faults(&self, state: &State, out: &mut Steps) {
        for at in (0..HELPERS).filter(|_| state.faults == 0) {
            if state.helpers[at].wire.is_empty() {
                continue;
            }
            // The link loses what is on it, and is made again.
            let mut next = state.clone();
            next.faults += 1;
            let of = &mut next.helpers[at];
            if of.wire.contains(&Frame::Marker) {
                of.marker_sent = false;
            }
            of.wire.clear();
            let committed = state.leader.acknowledged(at as u32).unwrap_or(0);
            let resent = match self.0 {
                // A receiver that does not ask for what is missing.
                Flaw::GapsMerged => Ok(()),
                _ => of.helper.resend(committed).map_err(|error| error.to_string()),
            };
            out.push((Step::Lose { helper: at }, resent.map(|()| next)));
        }
        if state.crashes == 0 {
            let mut next = beginning(state.saved);
            (next.crashes, next.faults) = (1, state.faults);
            if self.0 == Flaw::ReadOn {
                for (of, before) in next.helpers.iter_mut().zip(&state.helpers) {
                    of.read = before.read;
                }
            }
            if self.0 == Flaw::StagedStays {
                next.staged = state.staged.clone();
            }
            out.push((Step::Crash, Ok(next)));
        }
    }
}

/// The leader keeps rows until their window is joined.
fn add(joined: &mut Joined, (input, rows): Chunk) -> Result<(), String> {
    for (helper, script) in SCRIPTS.iter().enumerate().take(HELPERS) {
        for (at, &(of, window)) in script.iter().enumerate() {
            let row = row(helper, at);
            if rows >> row & 1 == 0 {
                continue;
            }
            if of != input {
                return Err(format!("J1: row {row} comes by input {input}"));
            }
            if joined.emitted[window] > 0 {
                return Err(format!("J1: row {row} comes behind its window"));
            }
            joined.rows[row] += 1;
        }
    }
    Ok(())
}

impl Model for Joins {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        vec![beginning(None)]
    }

    fn steps(&self, state: &State, out: &mut Steps) {
        self.helpers(state, out);
        self.send(state, out);
        self.deliver(state, out);
        self.acknowledge(state, out);
        self.emit(state, out);
        self.save(state, out);
        if !self.is_final(state) {
            self.faults(state, out);
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(window) = state.joined.emitted.iter().position(|&times| times > 1) {
            return Err(format!("J2: window {window} is emitted twice"));
        }
        let inputs = |chunks: &Vec<Chunk>| chunks.len() < 2;
        match state.staged.iter().position(|chunks| !inputs(chunks)) {
            Some(helper) => Err(format!("J5: more than an epoch of helper {helper} is staged")),
            None => Ok(()),
        }
    }

    fn is_final(&self, state: &State) -> bool {
        let through = |of: &HelperState| {
            of.ended && of.helper.uncommitted() == 0 && of.wire.is_empty() && of.held.bytes() == 0
        };
        state.helpers.iter().all(through) && state.joined.emitted == [1; WINDOWS]
    }
}

#[test]
fn each_window_joins_each_row_once() {
    holds(&Joins(Flaw::None), 100_000);
}

#[test]
fn each_flaw_is_found() {
    for (flaw, reason) in [
        (Flaw::ProgressWithoutRows, "J1"),
        (Flaw::OneInput, "J1"),
        (Flaw::HeldTwice, "J"),
        (Flaw::NoBound, "J3"),
        (Flaw::MarkerWithoutRows, "J4"),
        (Flaw::Unaligned, "J4"),
        (Flaw::NextRoundMerged, "J4"),
        (Flaw::NoDeduplication, "J"),
        (Flaw::GapsMerged, "J"),
        (Flaw::DropWhenSent, ""),
        (Flaw::AcknowledgeStaged, ""),
        (Flaw::AnyClock, "J1"),
        (Flaw::ReadOn, ""),
        (Flaw::StagedStays, "J"),
    ] {
        finds(&Joins(flaw), flaw, reason);
    }
}
