//! The watch over connections that stand and carry nothing, explored in whole: the real
//! [`ConnectionWatch`] at the one end, what the other puts in, ends and tells, and a network that
//! swallows everything from any byte on.
//!
//! Kept in every state: W1 a connection that carries all within less than [`STILL_LOOKS`] looks is
//! never given up; W2 there is always a step until the end of the connection was taken out, or it
//! was given up: nobody waits for ever, whatever was swallowed. Each deviation named in [`Flaw`]
//! must be found.

use fabric::pulse::{ConnectionWatch, Count, Name, STILL_LOOKS};
use models::{Model, Steps, explore};

const NAME: Name = [7; 16];
/// Bytes that are put in before the end.
const BYTES: u64 = 2;
/// Notes that are on their way at most.
const MESSAGES_MAX: usize = 2;

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Nothing is announced of a connection that has ended.
    EndNotTold,
    /// The end itself does not count as a byte.
    EndNotCounted,
    /// An announcement before the first look at a connection is forgotten.
    StrangersForgotten,
    /// Bytes that wait to be read do not count as carried.
    UnreadNotSeen,
}

struct Vigil(Flaw);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Bytes that were put in, of which the end is one.
    sent: u64,
    ended: bool,
    end_told: bool,
    /// From now on the network swallows what is put in.
    swallows: bool,
    arrived: u64,
    /// The receiver has the connection; it has looked at it.
    joined: bool,
    looked: bool,
    taken: u64,
    messages: Vec<u64>,
    watch: ConnectionWatch,
    /// Looks at which the same bytes were on their way.
    looks: u32,
    given_up: bool,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Join,
    Send,
    End,
    Swallow,
    Arrive,
    Take,
    Tell(u64),
    Look { announced: usize },
}

impl Vigil {
    /// The end that sends: it ends no earlier than the other has joined.
    fn send(&self, s: &State, out: &mut Steps<Step, State>) {
        let mut step = |step, change: &dyn Fn(&mut State)| {
            let mut next = s.clone();
            change(&mut next);
            out.push((step, Ok(next)));
        };
        if !s.ended && s.sent < BYTES {
            step(Step::Send, &|next| next.sent += 1);
        }
        if !s.ended && s.joined {
            step(Step::End, &|next| (next.sent, next.ended) = (next.sent + 1, true));
        }
        let silent = s.ended && (s.end_told || self.0 == Flaw::EndNotTold);
        if !silent && s.messages.len() < MESSAGES_MAX {
            let uncounted = s.ended && self.0 == Flaw::EndNotCounted;
            let sent = s.sent - u64::from(uncounted);
            step(Step::Tell(sent), &|next| {
                next.messages.push(sent);
                next.end_told = next.ended;
            });
        }
    }

    fn carry(s: &State, out: &mut Steps<Step, State>) {
        if !s.swallows {
            out.push((Step::Swallow, Ok(State { swallows: true, ..s.clone() })));
        }
        if !s.swallows && s.arrived < s.sent {
            let next = State { arrived: s.arrived + 1, looks: 0, ..s.clone() };
            out.push((Step::Arrive, Ok(next)));
        }
    }

    /// The receiver hears the first this many notes, then looks.
    fn look(&self, s: &State, announced: usize) -> State {
        let mut next = s.clone();
        let strangers = self.0 == Flaw::StrangersForgotten && !s.looked;
        for sent in next.messages.drain(..announced).filter(|_| !strangers) {
            next.watch.announce(NAME, sent);
        }
        let unread = s.arrived > s.taken && self.0 != Flaw::UnreadNotSeen;
        let count = Count { name: NAME, sent: 0, received: s.taken, unread };
        let there = &[count][usize::from(!s.joined)..];
        next.given_up = !next.watch.look(there).is_empty();
        next.looked = s.joined;
        next
    }
}

impl Model for Vigil {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        vec![State {
            sent: 0,
            ended: false,
            end_told: false,
            swallows: false,
            arrived: 0,
            joined: false,
            looked: false,
            taken: 0,
            messages: Vec::new(),
            watch: ConnectionWatch::default(),
            looks: 0,
            given_up: false,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps<Step, State>) {
        if self.is_final(s) {
            return;
        }
        self.send(s, out);
        Self::carry(s, out);
        if !s.joined {
            out.push((Step::Join, Ok(State { joined: true, ..s.clone() })));
        } else if s.taken < s.arrived {
            out.push((Step::Take, Ok(State { taken: s.taken + 1, ..s.clone() })));
        }
        // Bytes on their way arrive before this many looks.
        let waits = !s.swallows && s.arrived < s.sent;
        if waits && s.looks + 2 > STILL_LOOKS {
            return;
        }
        for announced in 0..=s.messages.len() {
            let next = State { looks: s.looks + u32::from(waits), ..self.look(s, announced) };
            if next != *s {
                out.push((Step::Look { announced }, Ok(next)));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        if s.given_up && !s.swallows {
            Err("W1: a connection that carries all is given up".into())
        } else {
            Ok(())
        }
    }

    fn is_final(&self, s: &State) -> bool {
        s.given_up || (s.ended && s.taken == s.sent)
    }
}

#[test]
fn whatever_is_swallowed_is_noticed_and_nothing_else_is() {
    let explored = explore(&Vigil(Flaw::None), 1_000_000).unwrap_or_else(|v| panic!("{v:#?}"));
    assert!(explored.states > 1000 && explored.finals > 10, "{explored:?}");
}

#[test]
fn each_deviation_is_found() {
    for (flaw, reason) in [
        (Flaw::EndNotTold, "dead end"),
        (Flaw::EndNotCounted, "dead end"),
        (Flaw::StrangersForgotten, "dead end"),
        (Flaw::UnreadNotSeen, "W1"),
    ] {
        let violation = explore(&Vigil(flaw), 1_000_000).expect_err("it is wrong");
        assert!(violation.reason.contains(reason), "{flaw:?}: {violation:#?}");
    }
}
