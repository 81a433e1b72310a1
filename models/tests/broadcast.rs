//! The multicast tree, explored in whole: up to six members, frames on their way, one change of the
//! tree, which may be given up, and one crash. Source, relays and trees are the ones that run.
//!
//! Invariants: T1 a member takes the frames in order, each once; T2 no member is sent more than it
//! has credit for; T3 when all is quiet, every frame is with every member that the crash has not
//! cut off, by the old tree or the new one: that is the absence of dead ends.
#![allow(missing_docs)]

use std::collections::{BTreeMap, VecDeque};

use channel::broadcast::{BroadcastSource, BroadcastTree, Numbered, Relay, Shape};
use models::{Explored, Model, Steps, Violation, explore};

/// A part of the protocol that is left out, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsIs,
    /// The new tree is used before all have answered.
    UseUnanswered,
    /// Frames are taken as they come.
    NoOrder,
    /// A member uses an announced tree at once, whatever version a frame is of.
    NoVersion,
    /// Members do not learn their children.
    TellNobody,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Message {
    Frame(Numbered<()>),
    Ack { upto: u64 },
    TreeUpdate { version: u64, children: Vec<u32> },
    Steered { version: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    source: BroadcastSource<()>,
    /// Members 1 and up.
    relays: Vec<Relay<()>>,
    /// By sender and receiver, in order.
    wires: BTreeMap<(u32, u32), VecDeque<Message>>,
    given_out: u64,
    /// By member frames that it has taken.
    taken: Vec<u64>,
    /// By member the last version announced to it.
    announced: Vec<u64>,
    changes: usize,
    gave_up: bool,
    dead: Option<u32>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    GiveOut,
    Change,
    GiveUp,
    Deliver { from: u32, to: u32, message: Message },
    Crash { member: u32 },
}

struct Casts {
    variant: Variant,
    members: u32,
    /// The tree is changed from one to the next.
    trees: Vec<BroadcastTree>,
    frames: u64,
    open_max: usize,
    crash: bool,
}

impl Casts {
    fn new<const N: usize>(variant: Variant, members: u32, caps: [u32; N]) -> Self {
        let mut trees = vec![BroadcastTree::new(Shape::Capped(caps[0]), members)];
        for (at, cap) in caps.into_iter().enumerate().skip(1) {
            trees.push(trees[at - 1].switched(cap));
        }
        Self { variant, members, trees, frames: 2, open_max: 1, crash: false }
    }

    /// Sends all that a member can send, and says what it owes, as the engine does after each
    /// frame.
    fn pump(state: &mut State, member: u32) {
        let mut out = vec![];
        let relay = match member {
            0 => state.source.relay_mut(),
            _ => &mut state.relays[member as usize - 1],
        };
        for child in relay.awaiting() {
            while let Some(next) = relay.to_send(child).cloned() {
                relay.sent(child);
                out.push((child, Message::Frame(next)));
            }
        }
        relay.settle();
        while let Some((parent, upto)) = relay.ack_due() {
            out.push((parent, Message::Ack { upto }));
        }
        for (to, message) in out {
            send(state, member, to, message);
        }
    }

    fn deliver(
        &self,
        state: &State,
        from: u32,
        to: u32,
        message: Message,
    ) -> Result<State, String> {
        let mut next = state.clone();
        let at = to as usize;
        match message {
            Message::Frame(mut numbered) => {
                let relay = &mut next.relays[at - 1];
                if self.variant == Variant::NoVersion {
                    numbered.version = numbered.version.max(next.announced[at]);
                }
                if self.variant == Variant::NoOrder && numbered.seq != relay.next() {
                    let (seq, taken) = (numbered.seq, relay.next());
                    return Err(format!("T1: {to} takes frame {seq} after {taken} frames"));
                }
                relay
                    .receive(from, numbered)
                    .map_err(|breach| format!("T1, T2: {to}: {breach}"))?;
                while relay.take().map_err(|breach| format!("T1: {to}: {breach}"))?.is_some() {
                    next.taken[at] += 1;
                }
            }
            Message::Ack { upto } => {
                let relay = match to {
                    0 => next.source.relay_mut(),
                    _ => &mut next.relays[at - 1],
                };
                relay.acknowledged(from, upto).map_err(|breach| format!("{to}: {breach}"))?;
            }
            Message::TreeUpdate { version, children } => {
                next.announced[at] = version;
                next.relays[at - 1].prepare(version, children);
                send(&mut next, to, 0, Message::Steered { version });
            }
            Message::Steered { version } => {
                next.source.answered(from, version).map_err(|breach| breach.to_string())?;
            }
        }
        Self::pump(&mut next, to);
        Ok(next)
    }

    fn change(&self, state: &State) -> State {
        let mut next = state.clone();
        next.changes += 1;
        for update in next.source.begin(self.trees[next.changes].clone()) {
            if matches!(self.variant, Variant::UseUnanswered | Variant::TellNobody) {
                next.source.answered(update.to, update.version).expect("it was asked");
            }
            if self.variant != Variant::TellNobody {
                let message =
                    Message::TreeUpdate { version: update.version, children: update.children };
                send(&mut next, 0, update.to, message);
            }
        }
        next
    }

    /// Whether frames for `member` go through the dead one, by the old tree or the new.
    fn is_cut_off(&self, member: u32, dead: u32) -> bool {
        self.trees.iter().any(|tree| {
            let mut at = Some(member);
            while let Some(member) = at {
                if member == dead {
                    return true;
                }
                at = tree.parent(member);
            }
            false
        })
    }
}

/// Frames to the dead are lost.
fn send(state: &mut State, from: u32, to: u32, message: Message) {
    if state.dead != Some(to) && state.dead != Some(from) {
        state.wires.entry((from, to)).or_default().push_back(message);
    }
}

impl Model for Casts {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let addresses: Vec<u32> = (0..=self.members).collect();
        let children =
            |member| BroadcastSource::<()>::first_children(&self.trees[0], &addresses, member);
        let relay = |member| Relay::new(children(member), self.open_max);
        vec![State {
            source: BroadcastSource::new(self.trees[0].clone(), addresses.clone(), self.open_max),
            relays: (1..=self.members).map(relay).collect(),
            wires: BTreeMap::new(),
            given_out: 0,
            taken: vec![0; self.members as usize + 1],
            announced: vec![0; self.members as usize + 1],
            changes: 0,
            gave_up: false,
            dead: None,
        }]
    }

    fn steps(&self, state: &State, out: &mut Steps<Step, State>) {
        if state.given_out < self.frames {
            let mut next = state.clone();
            next.given_out += 1;
            next.source.push(());
            Self::pump(&mut next, 0);
            out.push((Step::GiveOut, Ok(next)));
        }
        if state.changes + 1 < self.trees.len() && !state.source.is_changing() {
            out.push((Step::Change, Ok(self.change(state))));
        }
        if state.source.is_changing() && !state.gave_up {
            let mut next = state.clone();
            next.gave_up = true;
            next.source.abandon();
            out.push((Step::GiveUp, Ok(next)));
        }
        for (&(from, to), messages) in &state.wires {
            let mut before = state.clone();
            let Some(wire) = before.wires.get_mut(&(from, to)) else { continue };
            let Some(message) = wire.pop_front() else { continue };
            if messages.len() == 1 {
                before.wires.remove(&(from, to));
            }
            let next = self.deliver(&before, from, to, message.clone());
            out.push((Step::Deliver { from, to, message }, next));
        }
        if self.crash && state.dead.is_none() {
            for member in 1..=self.members {
                let mut next = state.clone();
                next.dead = Some(member);
                next.wires.retain(|&(from, to), _| from != member && to != member);
                out.push((Step::Crash { member }, Ok(next)));
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let beyond = state.taken.iter().find(|&&taken| taken > state.given_out);
        match beyond {
            Some(taken) => Err(format!("T1: {taken} frames of {} were taken", state.given_out)),
            None => Ok(()),
        }
    }

    fn is_final(&self, state: &State) -> bool {
        let reached = |member: u32| {
            let cut = state.dead.is_some_and(|dead| self.is_cut_off(member, dead));
            cut || state.taken[member as usize] == self.frames
        };
        state.given_out == self.frames && state.wires.is_empty() && (1..=self.members).all(reached)
    }
}

const STATES_MAX: usize = 3_000_000;

fn run(model: &Casts) -> Result<Explored, Violation> {
    explore(model, STATES_MAX)
}

/// Caps between which trees of this many members change.
const CAPS: [[u32; 2]; 4] = [[1, 2], [2, 1], [3, 2], [1, 3]];

#[test]
fn every_member_takes_every_frame_once_in_order_while_the_tree_changes() {
    let mut states = 0;
    for members in 1..6 {
        for caps in CAPS {
            let model = Casts::new(Variant::AsIs, members, caps);
            let explored = run(&model).unwrap_or_else(|violation| {
                panic!("{members} members, {caps:?}: {}\n{}", violation.reason, violation.trace)
            });
            assert!(explored.finals > 0);
            states += explored.states;
        }
    }
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn more_frames_than_credit_change_nothing_of_that() {
    for (members, caps) in [(2, [2, 1]), (3, [2, 1]), (3, [1, 2])] {
        for open_max in [1, 2] {
            let model = Casts { frames: 4, open_max, ..Casts::new(Variant::AsIs, members, caps) };
            run(&model).unwrap_or_else(|violation| {
                panic!("{members} members, {caps:?}: {}\n{}", violation.reason, violation.trace)
            });
        }
    }
}

#[test]
fn a_second_change_may_overtake_the_frames_of_the_first() {
    // There and back, and on to a third tree, in which some have the children of the second.
    let trees = [
        (2, [2, 1, 2]),
        (3, [2, 1, 2]),
        (3, [1, 2, 1]),
        (4, [1, 3, 1]),
        (4, [1, 2, 3]),
        (4, [3, 2, 1]),
    ];
    for (members, caps) in trees {
        let model = Casts { frames: 3, ..Casts::new(Variant::AsIs, members, caps) };
        run(&model).unwrap_or_else(|violation| {
            panic!("{members} members, {caps:?}: {}\n{}", violation.reason, violation.trace)
        });
    }
}

#[test]
fn a_crash_cuts_off_nobody_but_those_behind_it() {
    let five = [(5, [3, 2])];
    let fewer = (2..5).flat_map(|members| CAPS.map(|caps| (members, caps)));
    for (members, caps) in fewer.chain(five) {
        let model = Casts { crash: true, ..Casts::new(Variant::AsIs, members, caps) };
        run(&model).unwrap_or_else(|violation| {
            panic!("{members} members, {caps:?}: {}\n{}", violation.reason, violation.trace)
        });
    }
}

/// Whether some tree shows that what a variant leaves out is needed.
fn is_found(variant: Variant) -> Option<String> {
    let trees = (3..6).flat_map(|members| CAPS.map(|caps| (members, caps)));
    trees
        .filter_map(|(members, caps)| run(&Casts::new(variant, members, caps)).err())
        .map(|violation| violation.reason)
        .next()
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for (variant, reasons) in [
        (Variant::UseUnanswered, ["T1", "dead end"]),
        (Variant::NoOrder, ["T1: ", "T1: "]),
        (Variant::NoVersion, ["T1", "dead end"]),
        (Variant::TellNobody, ["dead end", "T1"]),
    ] {
        let found = is_found(variant).unwrap_or_else(|| panic!("{variant:?} goes unnoticed"));
        assert!(reasons.iter().any(|reason| found.starts_with(reason)), "{variant:?}: {found}");
    }
}
