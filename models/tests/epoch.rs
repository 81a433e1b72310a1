//! The epoch protocol, explored in whole: two helpers of two records each, one duplicate, and one
//! fault (a crash of anybody, or a link made again), after which frames arrive in any order. Helper
//! and leader are the ones that run.
//!
//! Invariants: E1 committed state is the sum of the epochs up to the committed clock; E2 a helper's
//! clock grows by exactly one epoch; E3 a delta is dropped only when a commit contains it; E4 a
//! window fires once, and only when every clock has passed its end. That everything commits once
//! faults stop is the absence of dead ends.
#![allow(missing_docs)]

use models::{Explored, Model, Violation, explore};
use state::epoch::{Cut, END_OF_STREAM, Helper, Leader, Rejoin, Tag, Verdict};

const HELPERS: usize = 2;
const EPOCHS: u64 = 2;

/// What of the protocol is left out, to show that it is needed.
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
    /// A window fires when one clock has passed its end.
    AnyClock,
}

/// A chunk of a delta: a set of records, as bits.
type Delta = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Durable {
    /// How often each record is in it.
    counts: [u8; 4],
    cut: Cut,
    /// How often each window was committed to the sink.
    fired: [u8; EPOCHS as usize],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    helpers: Vec<Helper<Delta>>,
    lives: [u64; HELPERS],
    /// Waits for the leader to commit before it may begin anew.
    down: [bool; HELPERS],
    /// Frames under way, per helper; in order until the link was made again.
    wire: [Vec<(Tag, Delta)>; HELPERS],
    reordered: [bool; HELPERS],
    leader: Leader,
    counts: [u8; 4],
    staged: [Delta; HELPERS],
    fired: [u8; EPOCHS as usize],
    durable: Durable,
    /// State that is written while its clock is not yet.
    half: Option<(Cut, [u8; 2])>,
    faults: u8,
    duplicates: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    Close { helper: usize },
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

/// The bit of the only record that `epoch` of `helper` has.
fn record(helper: usize, epoch: u64) -> usize {
    helper * EPOCHS as usize + epoch as usize - 1
}

fn watermark(epoch: u64) -> i64 {
    if epoch == EPOCHS { END_OF_STREAM } else { epoch as i64 }
}

impl Epochs {
    fn add(counts: &mut [u8; 4], delta: Delta) {
        for (at, count) in counts.iter_mut().enumerate() {
            *count += delta >> at & 1;
        }
    }

    fn close(&self, state: &State, out: &mut Steps) {
        for helper in 0..HELPERS {
            let own = &state.helpers[helper];
            if state.down[helper] || own.epoch() > EPOCHS || !own.may_close() {
                continue;
            }
            let mut next = state.clone();
            let epoch = own.epoch();
            let delta = 1 << record(helper, epoch);
            // One delta is in two chunks: between them anything may happen.
            let chunks = if record(helper, epoch) == 0 { vec![delta, 0] } else { vec![delta] };
            let closed = next.helpers[helper].close(watermark(epoch), chunks);
            let closed = closed.map_err(|error| error.to_string());
            out.push((Step::Close { helper }, closed.map(|_| next)));
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
                if state.duplicates == 0 {
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
                Self::add(&mut next.counts, staged | delta);
                if self.0 == Variant::DropWhenMerged && !next.down[helper] {
                    let dropped = next.helpers[helper].acknowledge(tag.epoch);
                    dropped.expect("an epoch that was merged was closed");
                }
            }
            Verdict::Refuse(refusal) => {
                use state::epoch::Refusal::{Duplicate, Gap};
                match (refusal, self.0) {
                    (Duplicate, Variant::NoDeduplication) => Self::add(&mut next.counts, delta),
                    (Gap { .. }, Variant::MaximalClock) if tag.last => {
                        // A leader that only remembers the greatest epoch: restored as if it had
                        // seen the others.
                        let mut cut = next.leader.cut();
                        cut.epochs[helper] = tag.epoch;
                        cut.clock.advance(tag.helper, tag.watermark);
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
        for window in 0..EPOCHS as usize {
            let end = window as i64 + 1;
            let clock = state.leader.clock();
            let passed = match self.0 {
                Variant::AnyClock => (0..HELPERS as u32).any(|h| clock.of(h) >= Some(end)),
                _ => clock.min() >= end,
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
                let min = state.durable.cut.clock.min();
                next.fired = [u8::from(min >= 1), u8::from(min >= 2)];
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
        next.helpers[helper] = Helper::new(helper as u32, life, after, EPOCHS as usize);
        Some(next)
    }
}

/// Sends again what is kept; what is under way may still arrive, in any order.
fn reconnect(state: &mut State, helper: usize) -> Result<(), String> {
    let committed = state.leader.acknowledged(helper as u32).unwrap_or(0);
    state.reordered[helper] = true;
    state.wire[helper].sort_unstable();
    state.helpers[helper].resend(committed).map_err(|error| error.to_string())
}

impl Model for Epochs {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let leader = Leader::new(HELPERS as u32);
        let cut = leader.cut();
        let helper = |helper| Helper::new(helper, 0, 0, EPOCHS as usize);
        vec![State {
            helpers: (0..HELPERS as u32).map(helper).collect(),
            lives: [0; HELPERS],
            down: [false; HELPERS],
            wire: [vec![], vec![]],
            reordered: [false; HELPERS],
            leader,
            counts: [0; 4],
            staged: [0; HELPERS],
            fired: [0; 2],
            durable: Durable { counts: [0; 4], cut, fired: [0; 2] },
            half: None,
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
            for epoch in 1..=EPOCHS {
                let count = state.durable.counts[record(helper, epoch)];
                if count != u8::from(epoch <= committed) && state.half.is_none() {
                    return Err(format!(
                        "E1: epoch {epoch} of {helper} is committed {count} times"
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
        for window in 0..EPOCHS as usize {
            let (fired, sunk) = (state.fired[window], state.durable.fired[window]);
            let min =
                (0..HELPERS as u32).filter_map(|helper| state.leader.clock().of(helper)).min();
            if sunk > 1 || (fired > 0 && min < Some(window as i64 + 1)) {
                return Err(format!(
                    "E4: window {window} fired at {min:?} and reached the sink {sunk} times"
                ));
            }
        }
        Ok(())
    }

    fn is_final(&self, state: &State) -> bool {
        state.durable.cut.epochs == [EPOCHS; HELPERS]
            && state.durable.fired == [1; EPOCHS as usize]
            && state.helpers.iter().all(|helper| helper.committed() == EPOCHS)
    }
}

fn run(variant: Variant) -> Result<Explored, Violation> {
    explore(&Epochs(variant), 5_000_000)
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
