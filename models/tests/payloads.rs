//! Payloads by the network's own multicast beside the multicast tree, explored in whole: a source,
//! up to three members, datagrams that are lost, repeated and late, and asking for them again.
//! Source, relays and the payloads in flight are the ones that run; `tests/broadcast.rs` explores
//! the tree.
//!
//! Invariants: F1 a member takes the frames in order, each once and with its payload; F2 no more is
//! kept, at the source and of datagrams at a member, than its bound; F3 what a member asks for is
//! kept; F4 when all is quiet, every frame is with every member and nothing is kept: that is the
//! absence of dead ends.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use channel::broadcast::{
    BroadcastSource, BroadcastTree, ExpectedPayloads, InFlightPayloads, Numbered, Relay, Shape,
};
use models::{Model, Steps, Violation, explore};

/// A part of the protocol that is left out, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsIs,
    /// A member without a payload waits for it.
    NobodyAsks,
    /// Placeholders are taken as they come.
    TakeStubs,
    /// A payload is kept until the first member has had it.
    KeepForOne,
    /// The source emits as much as the tree takes.
    KeepAll,
    /// Members tell what they have had a quarter of the credit at a time alone.
    TellQuarters,
}

/// Whether the payload of a frame is here.
type Here = bool;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Message {
    Frame(Numbered<Here>),
    Ack { upto: u64 },
    Nack { seq: u64 },
    Repair { seq: u64 },
    PayloadAck { upto: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member {
    relay: Relay<Here>,
    expected: ExpectedPayloads,
    /// Payloads that came as datagrams and were not taken.
    here: BTreeSet<u64>,
    taken: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    source: BroadcastSource<Here>,
    flight: InFlightPayloads<()>,
    /// Members 1 and up.
    members: Vec<Member>,
    /// By sender, receiver and whether they are small, in order.
    wires: BTreeMap<(u32, u32, bool), VecDeque<Message>>,
    /// Copies of payloads on their way, by member.
    air: BTreeMap<(u32, u64), u32>,
    given_out: u64,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    GiveOut,
    Deliver { from: u32, to: u32, message: Message },
    Land { to: u32, seq: u64 },
    Lose { to: u32, seq: u64 },
    Ask { member: u32 },
}

struct Flights {
    variant: Variant,
    members: u32,
    cap: u32,
    frames: u64,
    open_max: usize,
    /// Of each payload to each member.
    copies: u32,
}

impl Flights {
    fn tree(&self) -> BroadcastTree {
        BroadcastTree::new(Shape::Capped(self.cap), self.members)
    }

    /// Takes what can be taken, passes it on, and sends what is due, as the engine does
    /// after whatever has come.
    fn go_on(&self, state: &mut State, at: u32) -> Result<(), String> {
        let Member { relay, expected, here, taken } = &mut state.members[at as usize - 1];
        while let Some((seq, payload)) = relay.upcoming() {
            if !*payload && here.remove(&seq) {
                *payload = true;
                expected.payload_arrived();
            }
            if !*payload && self.variant != Variant::TakeStubs {
                expected.awaits(seq, 0);
                break;
            }
            let with = *payload;
            let seq = relay.take().map_err(|breach| format!("F1: {at}: {breach}"))?;
            if seq != Some(*taken) || !with {
                return Err(format!("F1: {at} takes {seq:?} after {taken} frames, {with}"));
            }
            *taken += 1;
            here.retain(|seq| seq >= taken);
        }
        let idle = relay.upcoming().is_none() || expected.is_awaiting();
        let tells = expected.ack_due(idle && self.variant != Variant::TellQuarters);
        let upto = relay.next();
        if tells {
            send(state, at, 0, Message::PayloadAck { upto });
        }
        pump(state, at);
        Ok(())
    }

    fn deliver(
        &self,
        state: &mut State,
        from: u32,
        to: u32,
        message: Message,
    ) -> Result<(), String> {
        let broken = |breach| format!("F3: {from} to {to}: {breach}");
        match message {
            Message::Frame(numbered) => {
                let relay = &mut state.members[to as usize - 1].relay;
                relay.receive(from, numbered).map_err(|breach| format!("F1: {to}: {breach}"))?;
                self.go_on(state, to)?;
            }
            Message::Ack { upto } => {
                let relay = relay_of(state, to);
                relay.acknowledged(from, upto).map_err(|breach| format!("{to}: {breach}"))?;
                pump(state, to);
            }
            Message::Nack { seq } => {
                state.flight.reports_missing(from, seq).map_err(broken)?;
                while let Some((member, seq, ())) = state.flight.next_repair() {
                    state.flight.repaired();
                    send(state, 0, member, Message::Repair { seq });
                }
            }
            Message::Repair { seq } => {
                let Member { relay, expected, .. } = &mut state.members[to as usize - 1];
                if let Some((_, payload)) =
                    relay.upcoming().filter(|(next, here)| *next == seq && !**here)
                {
                    *payload = true;
                    expected.payload_arrived();
                }
                self.go_on(state, to)?;
            }
            Message::PayloadAck { upto } => {
                let for_one = self.variant == Variant::KeepForOne;
                for member in (1..=self.members).filter(|&member| for_one || member == from) {
                    state.flight.acknowledged_payloads(member, upto).map_err(broken)?;
                }
            }
        }
        Ok(())
    }
}

fn relay_of(state: &mut State, at: u32) -> &mut Relay<Here> {
    match at {
        0 => state.source.relay_mut(),
        _ => &mut state.members[at as usize - 1].relay,
    }
}

/// Sends all that a member can send along the tree, as placeholders, and says what it owes.
fn pump(state: &mut State, at: u32) {
    let relay = relay_of(state, at);
    let mut out = vec![];
    for child in relay.awaiting() {
        while let Some(next) = relay.to_send(child) {
            out.push((child, Message::Frame(Numbered { frame: false, ..next.clone() })));
            relay.sent(child);
        }
    }
    relay.settle();
    while let Some((parent, upto)) = relay.ack_due() {
        out.push((parent, Message::Ack { upto }));
    }
    for (to, message) in out {
        send(state, at, to, message);
    }
}

/// Small frames have places of their own, and may overtake others.
fn send(state: &mut State, from: u32, to: u32, message: Message) {
    let small = !matches!(message, Message::Frame(_) | Message::Repair { .. });
    state.wires.entry((from, to, small)).or_default().push_back(message);
}

impl Model for Flights {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let addresses: Vec<u32> = (0..=self.members).collect();
        let member = |number| {
            let children =
                BroadcastSource::<Here>::first_children(&self.tree(), &addresses, number);
            let relay = Relay::new(children, self.open_max);
            Member {
                relay,
                expected: ExpectedPayloads::new(self.open_max),
                here: BTreeSet::new(),
                taken: 0,
            }
        };
        vec![State {
            source: BroadcastSource::new(self.tree(), addresses.clone(), self.open_max),
            flight: InFlightPayloads::new(&addresses[1..], self.open_max),
            members: (1..=self.members).map(member).collect(),
            wires: BTreeMap::new(),
            air: BTreeMap::new(),
            given_out: 0,
        }]
    }

    fn steps(&self, state: &State, out: &mut Steps<Step, State>) {
        let has_room = state.flight.has_room() || self.variant == Variant::KeepAll;
        if state.given_out < self.frames && has_room {
            let mut next = state.clone();
            let seq = next.source.push(true);
            next.given_out = seq + 1;
            next.flight.add(seq, ());
            next.air.extend((1..=self.members).map(|member| ((member, seq), self.copies)));
            pump(&mut next, 0);
            out.push((Step::GiveOut, Ok(next)));
        }
        for (&(from, to, small), messages) in &state.wires {
            let mut next = state.clone();
            let Some(wire) = next.wires.get_mut(&(from, to, small)) else { continue };
            let Some(message) = wire.pop_front() else { continue };
            if messages.len() == 1 {
                next.wires.remove(&(from, to, small));
            }
            let done = self.deliver(&mut next, from, to, message.clone());
            out.push((Step::Deliver { from, to, message }, done.map(|()| next)));
        }
        for (&(to, seq), &copies) in &state.air {
            let mut lost = state.clone();
            match copies {
                1 => lost.air.remove(&(to, seq)),
                _ => lost.air.insert((to, seq), copies - 1),
            };
            let mut next = lost.clone();
            let member = &mut next.members[to as usize - 1];
            if seq >= member.taken
                && member.here.len() < InFlightPayloads::<()>::retained_max(self.open_max)
            {
                member.here.insert(seq);
            }
            let done = self.go_on(&mut next, to);
            out.push((Step::Land { to, seq }, done.map(|()| next)));
            out.push((Step::Lose { to, seq }, Ok(lost)));
        }
        for member in (1..=self.members).filter(|_| self.variant != Variant::NobodyAsks) {
            let mut next = state.clone();
            let asked = next.members[member as usize - 1].expected.next_request(0, 0);
            let Some(seq) = asked else { continue };
            send(&mut next, member, 0, Message::Nack { seq });
            out.push((Step::Ask { member }, Ok(next)));
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let kept = state.flight.clone().retained_mut().count();
        let here = state.members.iter().map(|member| member.here.len()).max();
        let most = kept.max(here.unwrap_or_default());
        if most > InFlightPayloads::<()>::retained_max(self.open_max) {
            Err(format!("F2: {most} payloads are kept"))
        } else {
            Ok(())
        }
    }

    fn is_final(&self, state: &State) -> bool {
        let all = state.members.iter().all(|member| member.taken == self.frames);
        all && state.flight.is_over() && state.wires.is_empty()
    }
}

const STATES_MAX: usize = 3_000_000;

fn run(model: &Flights) -> Result<usize, Violation> {
    explore(model, STATES_MAX).map(|explored| explored.states)
}

/// Members, cap of the tree, frames, frames that may be open, copies of each datagram.
const SIZES: [(u32, u32, u64, usize, u32); 7] = [
    (1, 1, 4, 1, 2),
    (1, 1, 4, 2, 1),
    (1, 1, 3, 8, 2),
    (2, 1, 2, 1, 2),
    (2, 2, 3, 1, 1),
    (2, 1, 2, 8, 1),
    (3, 2, 2, 1, 1),
];

fn model(variant: Variant, size: (u32, u32, u64, usize, u32)) -> Flights {
    let (members, cap, frames, open_max, copies) = size;
    Flights { variant, members, cap, frames, open_max, copies }
}

#[test]
fn every_member_takes_every_frame_with_its_payload_whatever_the_network_loses() {
    for size in SIZES {
        let states = run(&model(Variant::AsIs, size)).unwrap_or_else(|violation| {
            panic!("{size:?}: {}\n{}", violation.reason, violation.trace)
        });
        eprintln!("{size:?}: {states}");
        assert!(states > 100, "{size:?}: only {states} states");
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for (variant, reason) in [
        (Variant::NobodyAsks, "dead end"),
        (Variant::TakeStubs, "F1"),
        (Variant::KeepForOne, "F3"),
        (Variant::KeepAll, "F2"),
        (Variant::TellQuarters, "dead end"),
    ] {
        let found = SIZES.iter().filter_map(|&size| run(&model(variant, size)).err()).next();
        let found = found.unwrap_or_else(|| panic!("{variant:?} goes unnoticed")).reason;
        assert!(found.starts_with(reason), "{variant:?}: {found}");
    }
}
