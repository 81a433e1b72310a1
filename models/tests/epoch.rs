//! The epoch protocol, explored in whole: two helpers of two records each; either one duplicate, or
//! one helper that falls idle and comes back; and one fault (a crash of anybody, or a link made
//! again), after which frames arrive in any order. Helper, leader and vector clock are the ones
//! that run.
//!
//! Invariants: E1 committed state is the sum of the epochs up to the committed clock; E2 a helper's
//! clock grows by exactly one epoch; E3 a delta is dropped only when a commit contains it; E4 a
//! window triggers once, and no record of it is merged afterwards; E6 a record is late only after
//! an idle time or a crash, and only if its window has passed. That everything commits once faults
//! stop is the absence of dead ends.
#![allow(missing_docs)]

use models::{Explored, Model, Violation, explore};
use state::epoch::{Cut, END_OF_STREAM, Helper, Leader, Progress, Rejoin, Tag, Verdict};

const HELPERS: usize = 2;
/// Records of a helper, one in each window.
const RECORDS: usize = 2;
const KEPT_MAX: usize = 2;
/// The helper that may fall idle; the other one's delta has two chunks.
const IDLER: usize = 1;

/// A part of the protocol that is left out, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsIs,
    /// The paper's step 5: a delta is dropped when it was sent.
    DropWhenSent,
    /// A delta is dropped when the leader has merged it, before it has committed.
    DropWhenMerged,
    /// Every chunk is merged.
    NoDeduplication,
    /// A later epoch is taken even if one before it is missing.
    MaximalClock,
    /// State is written first, the clock in a second write.
    TwoWrites,
    /// The sink is committed before the state.
    SinkFirst,
    /// Chunks are merged as they come, and a commit may fall between two of one epoch.
    NoStaging,
    /// A new life begins after what is merged, not after what is committed.
    RejoinAfterMerged,
    /// A window triggers when one clock has passed its end.
    AnyClock,
    /// A helper that was idle judges its records by what it knew before.
    ReturnUnasked,
    /// It asks how far windows have triggered, but does not say before that it is back.
    AskOnly,
    /// It is answered when its epoch is merged, before that is committed.
    AnswerWhenMerged,
}

/// A chunk of a delta: a set of records, as bits.
type Delta = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Durable {
    /// How often each record is in it.
    counts: [u8; 4],
    cut: Cut,
    /// How often each window was committed to the sink.
    fired: [u8; RECORDS],
}

/// Whether a helper reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mood {
    Reads,
    Idle,
    /// Waits for the answer to this epoch, with which it came back.
    Asks(u64),
}

/// The content of a closed epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Closed {
    delta: Delta,
    /// Records that were read when it ended: where the source is put back to.
    read: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    helpers: Vec<Helper<Delta>>,
    moods: [Mood; HELPERS],
    /// Records that were read, late ones too.
    read: [usize; HELPERS],
    /// How far windows have triggered, as each helper was told.
    reached: [i64; HELPERS],
    /// By helper the epochs that it has closed.
    closed: [Vec<Closed>; HELPERS],
    lives: [u64; HELPERS],
    /// Waits for the leader to commit before it may begin anew.
    down: [bool; HELPERS],
    /// Frames under way, per helper; in order until the link was made again.
    wire: [Vec<(Tag, Delta)>; HELPERS],
    reordered: [bool; HELPERS],
    leader: Leader,
    counts: [u8; 4],
    staged: [Delta; HELPERS],
    fired: [u8; RECORDS],
    durable: Durable,
    /// State that is written while its clock is not yet.
    half: Option<(Cut, [u8; RECORDS])>,
    idles: u8,
    faults: u8,
    duplicates: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    Read { helper: usize },
    FallIdle { helper: usize },
    Return { helper: usize },
    Send { helper: usize },
    Deliver { helper: usize, tag: Tag },
    DeliverAndKeep { helper: usize, tag: Tag },
    Commit,
    SecondWrite,
    Fire { window: usize },
    Acknowledge { helper: usize },
    Reconnect { helper: usize },
    CrashHelper { helper: usize },
    Rejoin { helper: usize },
    CrashLeader,
}

type Steps = Vec<(Step, Result<State, String>)>;

struct Epochs(Variant);

/// The bit of the record of `helper` that belongs to `window`.
fn record(helper: usize, window: usize) -> usize {
    helper * RECORDS + window
}

/// Where a window ends.
fn end(window: usize) -> i64 {
    window as i64 + 1
}

/// The watermark after this many records.
fn watermark(read: usize) -> i64 {
    if read == 0 { i64::MIN } else { end(read - 1) }
}

impl Epochs {
    fn add(counts: &mut [u8; 4], delta: Delta) {
        for (at, count) in counts.iter_mut().enumerate() {
            *count += delta >> at & 1;
        }
    }

    /// A helper reads a record, falls idle or comes back, and closes an epoch with that.
    fn close(&self, state: &State, out: &mut Steps) {
        for helper in 0..HELPERS {
            let (own, read) = (&state.helpers[helper], state.read[helper]);
            if state.down[helper] || read == RECORDS || !own.may_close() {
                continue;
            }
            let announced = watermark(read).max(state.reached[helper]);
            match state.moods[helper] {
                Mood::Reads => {
                    out.push((Step::Read { helper }, self.read(state, helper)));
                    if helper == IDLER && state.idles + state.duplicates == 0 {
                        let mut next = state.clone();
                        next.idles = 1;
                        next.moods[helper] = Mood::Idle;
                        let closed = close(&mut next, helper, 0, Progress::idle(announced));
                        out.push((Step::FallIdle { helper }, closed.map(|()| next)));
                    }
                }
                Mood::Idle => {
                    let mut next = state.clone();
                    let closed = match self.0 {
                        Variant::ReturnUnasked | Variant::AskOnly => {
                            if self.0 == Variant::AskOnly {
                                next.reached[helper] = state.leader.clock().least();
                            }
                            next.moods[helper] = Mood::Reads;
                            Ok(())
                        }
                        _ => {
                            next.moods[helper] = Mood::Asks(own.epoch());
                            close(&mut next, helper, 0, Progress::active(announced))
                        }
                    };
                    out.push((Step::Return { helper }, closed.map(|()| next)));
                }
                Mood::Asks(_) => {}
            }
        }
    }

    /// Reads the next record and closes its epoch.
    fn read(&self, state: &State, helper: usize) -> Result<State, String> {
        let mut next = state.clone();
        let window = state.read[helper];
        let late = end(window) <= state.reached[helper];
        let passed = end(window) <= state.leader.clock().least();
        if late && (!passed || (state.idles == 0 && state.faults == 0)) {
            return Err(format!("E6: the record of {helper} in window {window} is called late"));
        }
        next.read[helper] += 1;
        let delta = if late { 0 } else { 1 << record(helper, window) };
        let progress = match next.read[helper] {
            RECORDS => Progress::ended(END_OF_STREAM),
            read => Progress::active(watermark(read).max(state.reached[helper])),
        };
        close(&mut next, helper, delta, progress).map(|()| next)
    }

    /// Merges into windows that have not triggered.
    fn merge(state: &mut State, delta: Delta) -> Result<(), String> {
        Self::add(&mut state.counts, delta);
        let records = (0..HELPERS * RECORDS).filter(|at| delta >> at & 1 == 1);
        match records.map(|at| at % RECORDS).find(|&window| state.fired[window] > 0) {
            Some(window) => Err(format!("E4: window {window} has fired, and a record is merged")),
            None => Ok(()),
        }
    }

    fn send(&self, state: &State, out: &mut Steps) {
        for helper in 0..HELPERS {
            let Some((tag, &delta)) = state.helpers[helper].to_send() else { continue };
            let mut next = state.clone();
            if !next.wire[helper].contains(&(tag, delta)) {
                next.wire[helper].push((tag, delta));
            }
            next.helpers[helper].sent();
            if state.reordered[helper] {
                next.wire[helper].sort_unstable();
            }
            if self.0 == Variant::DropWhenSent && tag.last {
                let dropped = next.helpers[helper].acknowledge(tag.epoch);
                dropped.expect("an epoch that was sent was closed");
            }
            out.push((Step::Send { helper }, Ok(next)));
        }
    }

    fn deliver(&self, state: &State, out: &mut Steps) {
        for helper in 0..HELPERS {
            let frames = &state.wire[helper];
            let choices = if state.reordered[helper] { frames.len() } else { frames.len().min(1) };
            for (at, &(tag, delta)) in frames.iter().enumerate().take(choices) {
                let Some(kept) = self.accept(state, tag, delta) else { continue };
                if let Ok(mut next) = kept.clone() {
                    next.wire[helper].remove(at);
                    out.push((Step::Deliver { helper, tag }, Ok(next)));
                } else {
                    out.push((Step::Deliver { helper, tag }, kept.clone()));
                }
                if state.idles + state.duplicates == 0 {
                    let kept = kept.map(|mut next| {
                        next.duplicates = 1;
                        next
                    });
                    out.push((Step::DeliverAndKeep { helper, tag }, kept));
                }
            }
        }
    }

    /// The leader's side of a delivery; `None` if the helper will have to send it again.
    fn accept(&self, state: &State, tag: Tag, delta: Delta) -> Option<Result<State, String>> {
        let mut next = state.clone();
        let helper = tag.helper as usize;
        let before = state.leader.cut().epochs[helper];
        let verdict = next.leader.accept(&tag);
        match verdict {
            Verdict::Stage if self.0 == Variant::NoStaging => Self::add(&mut next.counts, delta),
            Verdict::Stage => next.staged[helper] |= delta,
            Verdict::Complete => {
                let staged = std::mem::take(&mut next.staged[helper]);
                if let Err(fired) = Self::merge(&mut next, staged | delta) {
                    return Some(Err(fired));
                }
                if self.0 == Variant::DropWhenMerged && !next.down[helper] {
                    let dropped = next.helpers[helper].acknowledge(tag.epoch);
                    dropped.expect("an epoch that was merged was closed");
                }
                if self.0 == Variant::AnswerWhenMerged && !next.down[helper] {
                    answer(&mut next, helper, tag.epoch);
                }
            }
            Verdict::Refuse(refusal) => {
                use state::epoch::TagRefusal::{Duplicate, Gap};
                match (refusal, self.0) {
                    (Duplicate, Variant::NoDeduplication) => Self::add(&mut next.counts, delta),
                    (Gap { .. }, Variant::MaximalClock) if tag.last => {
                        // A leader that only remembers the greatest epoch: restored as if it had
                        // seen the others.
                        let mut cut = next.leader.cut();
                        cut.epochs[helper] = tag.epoch;
                        cut.clock.advance(tag.helper, tag.progress);
                        let committed = next.durable.cut.clone();
                        next.leader = Leader::restore(&cut, &next.lives);
                        next.leader.committed(committed);
                        next.staged[helper] = 0;
                        Self::add(&mut next.counts, delta);
                        return Some(Ok(next));
                    }
                    (Gap { .. }, _) => return None,
                    _ => {}
                }
            }
        }
        let after = next.leader.cut().epochs[helper];
        if after > before + 1 {
            return Some(Err(format!("E2: the clock of {helper} went from {before} to {after}")));
        }
        Some(Ok(next))
    }

    fn fire(&self, state: &State, out: &mut Steps) {
        for window in 0..RECORDS {
            let clock = state.leader.clock();
            let passed = match self.0 {
                Variant::AnyClock => (0..HELPERS as u32)
                    .filter_map(|helper| clock.of(helper))
                    .any(|message| message.watermark >= end(window)),
                _ => clock.least() >= end(window),
            };
            if !passed || state.fired[window] > 0 {
                continue;
            }
            let mut next = state.clone();
            next.fired[window] = 1;
            if self.0 == Variant::SinkFirst {
                next.durable.fired[window] += 1;
            }
            out.push((Step::Fire { window }, Ok(next)));
        }
    }

    fn commit(&self, state: &State, out: &mut Steps) {
        if let Some((cut, fired)) = &state.half {
            let mut next = state.clone();
            next.half = None;
            next.durable.cut = cut.clone();
            next.durable.fired = *fired;
            next.leader.committed(cut.clone());
            out.push((Step::SecondWrite, Ok(next)));
            return;
        }
        let cut = state.leader.cut();
        if cut == state.durable.cut && state.fired == state.durable.fired {
            return;
        }
        let mut next = state.clone();
        next.durable.counts = state.counts;
        if self.0 == Variant::TwoWrites {
            next.half = Some((cut, state.fired));
        } else {
            if self.0 != Variant::SinkFirst {
                next.durable.fired = state.fired;
            }
            next.durable.cut = cut.clone();
            next.leader.committed(cut);
        }
        out.push((Step::Commit, Ok(next)));
    }

    fn acknowledge(&self, state: &State, out: &mut Steps) {
        for helper in (0..HELPERS).filter(|&helper| !state.down[helper]) {
            let epoch = state.leader.acknowledged(helper as u32).unwrap_or(0);
            if epoch <= state.helpers[helper].committed() {
                continue;
            }
            let mut next = state.clone();
            let acknowledged = next.helpers[helper].acknowledge(epoch);
            answer(&mut next, helper, epoch);
            let acknowledged = acknowledged.map(|_| next).map_err(|error| error.to_string());
            out.push((Step::Acknowledge { helper }, acknowledged));
        }
    }

    fn faults(&self, state: &State, out: &mut Steps) {
        for helper in 0..HELPERS {
            if state.down[helper] {
                out.extend(
                    self.rejoin(state, helper).map(|next| (Step::Rejoin { helper }, Ok(next))),
                );
            } else if state.faults == 0 {
                let mut next = state.clone();
                next.faults = 1;
                let resent = reconnect(&mut next, helper).map(|()| next);
                out.push((Step::Reconnect { helper }, resent));
            }
            if state.faults == 0 {
                let mut next = state.clone();
                next.faults = 1;
                next.down[helper] = true;
                next.lives[helper] += 1;
                next.helpers[helper] = Helper::new(helper as u32, next.lives[helper], 0, 1);
                out.push((Step::CrashHelper { helper }, Ok(next)));
            }
        }
        if state.faults == 0 {
            let mut next = state.clone();
            next.faults = 1;
            next.half = None;
            next.leader = Leader::restore(&state.durable.cut, &state.lives);
            next.counts = state.durable.counts;
            next.fired = state.durable.fired;
            if self.0 == Variant::SinkFirst {
                // The sink is ahead of the state, which does not know it.
                let least = state.durable.cut.clock.least();
                next.fired = std::array::from_fn(|window| u8::from(least >= end(window)));
            }
            next.staged = [0; HELPERS];
            let mut live = (0..HELPERS).filter(|&helper| !state.down[helper]);
            let resent = live.try_for_each(|helper| reconnect(&mut next, helper));
            out.push((Step::CrashLeader, resent.map(|()| next)));
        }
    }

    fn rejoin(&self, state: &State, helper: usize) -> Option<State> {
        let mut next = state.clone();
        let life = state.lives[helper];
        let after = match next.leader.rejoin(helper as u32, life) {
            Rejoin::After(epoch) => epoch,
            _ if self.0 == Variant::RejoinAfterMerged => next.leader.cut().epochs[helper],
            _ => return None,
        };
        next.staged[helper] = 0;
        next.down[helper] = false;
        next.helpers[helper] = Helper::new(helper as u32, life, after, KEPT_MAX);
        next.closed[helper].truncate(after as usize);
        next.read[helper] = next.closed[helper].last().map_or(0, |closed| closed.read);
        next.moods[helper] = Mood::Idle;
        next.reached[helper] = i64::MIN;
        Some(next)
    }
}

fn close(state: &mut State, helper: usize, delta: Delta, progress: Progress) -> Result<(), String> {
    // One delta is in two chunks: between them anything may happen.
    let chunks = if delta == 1 { vec![delta, 0] } else { vec![delta] };
    state.closed[helper].push(Closed { delta, read: state.read[helper] });
    let closed = state.helpers[helper].close(progress, chunks);
    closed.map(|_| ()).map_err(|error| error.to_string())
}

/// The leader's answer that all epochs of a helper up to `epoch` are safe carries how far windows
/// have triggered.
fn answer(state: &mut State, helper: usize, epoch: u64) {
    if matches!(state.moods[helper], Mood::Asks(asked) if asked <= epoch) {
        state.moods[helper] = Mood::Reads;
        state.reached[helper] = state.leader.clock().least();
    }
}

/// Sends again what is kept, the committed epoch being an answer as well; what is under way may
/// still arrive, in any order.
fn reconnect(state: &mut State, helper: usize) -> Result<(), String> {
    let committed = state.leader.acknowledged(helper as u32).unwrap_or(0);
    state.reordered[helper] = true;
    state.wire[helper].sort_unstable();
    answer(state, helper, committed);
    state.helpers[helper].resend(committed).map_err(|error| error.to_string())
}

impl Model for Epochs {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let leader = Leader::new(HELPERS as u32);
        let cut = leader.cut();
        let helper = |helper| Helper::new(helper, 0, 0, KEPT_MAX);
        vec![State {
            helpers: (0..HELPERS as u32).map(helper).collect(),
            moods: [Mood::Reads; HELPERS],
            read: [0; HELPERS],
            reached: [i64::MIN; HELPERS],
            closed: [vec![], vec![]],
            lives: [0; HELPERS],
            down: [false; HELPERS],
            wire: [vec![], vec![]],
            reordered: [false; HELPERS],
            leader,
            counts: [0; 4],
            staged: [0; HELPERS],
            fired: [0; RECORDS],
            durable: Durable { counts: [0; 4], cut, fired: [0; RECORDS] },
            half: None,
            idles: 0,
            faults: 0,
            duplicates: 0,
        }]
    }

    fn steps(&self, state: &State, out: &mut Steps) {
        self.close(state, out);
        self.send(state, out);
        self.deliver(state, out);
        self.fire(state, out);
        self.commit(state, out);
        self.acknowledge(state, out);
        if !self.is_final(state) {
            self.faults(state, out);
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for helper in 0..HELPERS {
            let committed = state.durable.cut.epochs[helper];
            let closed = state.closed[helper].iter().take(committed as usize);
            let expected = closed.fold(0, |records, closed| records | closed.delta);
            for at in (0..RECORDS).map(|window| record(helper, window)) {
                let count = state.durable.counts[at];
                if count != expected >> at & 1 && state.half.is_none() {
                    return Err(format!(
                        "E1: record {at} is committed {count} times with epoch {committed}"
                    ));
                }
            }
            let dropped = state.helpers[helper].committed();
            if dropped > committed && !state.down[helper] {
                return Err(format!(
                    "E3: {helper} has dropped epoch {dropped}, {committed} is safe"
                ));
            }
        }
        match state.durable.fired.iter().position(|&sunk| sunk > 1) {
            Some(window) => Err(format!("E4: window {window} reached the sink more than once")),
            None => Ok(()),
        }
    }

    fn is_final(&self, state: &State) -> bool {
        let committed = |helper: usize| {
            let closed = state.closed[helper].len() as u64;
            state.read[helper] == RECORDS
                && state.durable.cut.epochs[helper] == closed
                && state.helpers[helper].committed() == closed
        };
        (0..HELPERS).all(committed) && state.durable.fired == [1; RECORDS]
    }
}

fn run(variant: Variant) -> Result<Explored, Violation> {
    explore(&Epochs(variant), 8_000_000)
}

#[test]
fn every_epoch_is_committed_exactly_once() {
    let explored = run(Variant::AsIs).unwrap_or_else(|v| panic!("{}\n{}", v.reason, v.trace));
    println!("{explored:?}");
    assert!(explored.states >= 20_000 && explored.finals > 0, "{explored:?}");
}

/// The variant must break, and for the reason that is expected.
fn breaks(variant: Variant, expected: &str) {
    let violation = run(variant).expect_err("the variant must fail");
    assert!(violation.reason.contains(expected), "{}\n{}", violation.reason, violation.trace);
}

#[test]
fn dropping_when_sent_loses_an_epoch() {
    breaks(Variant::DropWhenSent, "E3");
}

#[test]
fn dropping_when_merged_loses_an_epoch() {
    breaks(Variant::DropWhenMerged, "E3");
}

#[test]
fn duplicates_count_twice_if_they_are_merged() {
    breaks(Variant::NoDeduplication, "E1");
}

#[test]
fn a_maximal_clock_skips_an_epoch() {
    breaks(Variant::MaximalClock, "E1");
}

#[test]
fn state_and_clock_in_two_writes_part() {
    breaks(Variant::TwoWrites, "E1");
}

#[test]
fn a_sink_that_commits_first_fires_twice() {
    breaks(Variant::SinkFirst, "E4");
}

#[test]
fn merging_chunks_as_they_come_commits_half_an_epoch() {
    breaks(Variant::NoStaging, "E1");
}

#[test]
fn a_new_life_after_merged_epochs_loses_them() {
    breaks(Variant::RejoinAfterMerged, "E3");
}

#[test]
fn a_window_that_waits_for_one_clock_fires_early() {
    breaks(Variant::AnyClock, "E4");
}

#[test]
fn who_comes_back_from_idle_without_asking_fires_a_window_twice() {
    breaks(Variant::ReturnUnasked, "E4");
}

#[test]
fn who_asks_without_saying_that_it_is_back_loses_a_record() {
    breaks(Variant::AskOnly, "E6");
}

#[test]
fn an_answer_before_the_commit_is_lost_with_the_leader() {
    breaks(Variant::AnswerWhenMerged, "E6");
}
