//! Links that serve one statement of a session after another, explored in whole: the real
//! [`KeptLinks`] and [`StatementNumber`] at two nodes, and the real producer and consumer of the
//! ring between them. In each statement the first node sends frames that the second one waits for,
//! and one that nobody waits for, which may come late. A connection may break at any time, also
//! between two statements, and is renewed while both nodes run. A node may fail; a statement may be
//! cancelled, of which a node that has ended before knows nothing.
//!
//! Kept in every state: S1 frames are received in the statement that sent them, in order, each
//! once; S2 the two ends of a link are of the same set when a statement begins; S3 no honest run
//! makes an end refuse a frame; S4 there is always a step until all statements have ended: slots
//! come back whatever was dropped. Each deviation named in [`Flaw`] must be found.

use channel::protocol::{
    Class, Consumer, KeptLinks, NextStatement, Producer, StatementNumber, commit_word,
};
use fabric::Publish;
use models::{Model, Steps};

use crate::{finds, holds};

const SLOTS: usize = 3;
/// Frames of a statement that are waited for.
const NEEDED: u8 = 2;
/// All frames of a statement.
const FRAMES: u8 = 3;

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Frames of former statements are received.
    NoNumbers,
    /// A frame that is posted again gets the number of the current statement.
    NumberedAnew,
    /// The slot of a frame that is dropped is not released.
    DropsKeepSlots,
    /// Frames that were accepted and not received stay where they are between two statements.
    UnreceivedStay,
    /// Each node decides by what it has itself.
    OwnDecision,
    /// A node says that its links are whole although one is between two connections.
    SaysWhole,
    /// Frames are sent before the other node has begun the statement.
    NoBarrier,
}

struct Session {
    statements: u32,
    breaks: u8,
    failures: u8,
    cancels: u8,
    flaw: Flaw,
}

/// What a frame is: its statement, and its number within.
type Content = (StatementNumber, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Between two statements.
    Rests,
    /// Has announced what it has kept.
    Announced(KeptLinks),
    Runs,
}

/// What both nodes have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    phase: Phase,
    statement: StatementNumber,
    /// The statement for which its links were made; zero for none.
    set: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; 2],
    producer: Producer,
    staging: [Option<Content>; SLOTS],
    again: u64,
    posted: u8,
    consumer: Consumer,
    memory: [Option<(u64, Content)>; SLOTS],
    inbox: Vec<Content>,
    received: u8,
    incarnation: u32,
    /// On their way, in order: the set, the commit word, the frame.
    writes: Vec<(u32, u64, u64, Content)>,
    credits: Vec<u64>,
    broken: bool,
    /// What the consumer has announced that it has taken, between its end of a renewal and the
    /// other.
    taken: Option<u64>,
    /// The current statement has failed, or was cancelled.
    failed: bool,
    cancelled: bool,
    /// How many frames the first node has sent when it ended.
    sent: Option<u8>,
    breaks: u8,
    failures: u8,
    cancels: u8,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Say(usize, KeptLinks),
    Begin(usize, NextStatement),
    Post(Content),
    Land(Content),
    Accept(Content),
    Receive(Content),
    ReturnCredit(u64),
    Credit(u64),
    End(usize, bool),
    Break,
    Close(u64),
    Resume(u64),
    Fail,
    Abort(usize),
    Cancel,
}

type Out = Steps<Step, State>;

impl Session {
    fn honest(statements: u32) -> Self {
        Self { statements, breaks: 0, failures: 0, cancels: 0, flaw: Flaw::None }
    }

    /// A node says what it has kept, and begins when the other has announced so too.
    fn agree(&self, s: &State, at: usize, out: &mut Out) {
        let node = &s.nodes[at];
        match node.phase {
            Phase::Rests if node.statement.number() < self.statements => {
                let mut next = s.clone();
                if at == 1 && self.flaw != Flaw::UnreceivedStay {
                    next.drop_unreceived();
                }
                // The first node learns of a renewal when it goes on.
                let attached = at == 0 || s.taken.is_none() || self.flaw == Flaw::SaysWhole;
                let posts_again = at == 0 && s.producer.published() < s.again;
                let whole = node.set > 0 && attached && !posts_again;
                let announced = KeptLinks { last: node.statement, whole };
                next.nodes[at].phase = Phase::Announced(announced);
                out.push((Step::Say(at, announced), Ok(next)));
            }
            Phase::Announced(own) => {
                let other = &s.nodes[1 - at];
                let theirs = match other.phase {
                    Phase::Announced(theirs) => theirs,
                    // It has begun by what it announced before.
                    Phase::Runs if other.statement > node.statement => {
                        KeptLinks { last: node.statement, whole: other.set <= own.last.number() }
                    }
                    // It has begun and ended.
                    _ => return,
                };
                let all =
                    if self.flaw == Flaw::OwnDecision { vec![own] } else { vec![own, theirs] };
                let agreed = KeptLinks::agree(&all);
                let next = self.begin(s, at, agreed);
                out.push((Step::Begin(at, agreed), next));
            }
            _ => {}
        }
    }

    fn begin(&self, s: &State, at: usize, agreed: NextStatement) -> Result<State, String> {
        let mut next = s.clone();
        let node = &mut next.nodes[at];
        (node.phase, node.statement) = (Phase::Runs, agreed.statement);
        if !agreed.reuses {
            node.set = agreed.statement.number();
        }
        let (set, slots) = (node.set, SLOTS as u32);
        let first = next.nodes[1 - at].statement < agreed.statement;
        if first {
            (next.failed, next.cancelled, next.sent) = (false, false, None);
            if agreed.reuses && s.taken.is_some() {
                return Err("S2: a link between two connections, which nobody renews".into());
            }
        } else if next.nodes[1 - at].set != set {
            return Err(format!("S2: links of {set} and of {}", next.nodes[1 - at].set));
        }
        if !agreed.reuses && first {
            // What was on its way between the ends before is lost with their connection.
            (next.writes, next.credits) = (vec![], vec![]);
            (next.broken, next.taken, next.incarnation) = (false, None, 1);
        }
        match (at, agreed.reuses) {
            (0, true) => next.posted = 0,
            (0, false) => {
                next.producer = Producer::new(slots, 1);
                (next.staging, next.again, next.posted) = ([None; SLOTS], 0, 0);
            }
            (_, true) => next.received = 0,
            (_, false) => {
                next.consumer = Consumer::new(slots, 1, 1, Publish::InOrderPoll);
                next.memory = [None; SLOTS];
                (next.inbox, next.received) = (vec![], 0);
            }
        }
        Ok(next)
    }

    fn both_run(s: &State) -> bool {
        let same = s.nodes[0].statement == s.nodes[1].statement;
        same && s.nodes.iter().all(|node| node.phase == Phase::Runs)
    }

    /// The first node posts frames: those that go out again first.
    fn post(&self, s: &State, out: &mut Out) {
        let [sender, receiver] = &s.nodes;
        let begun = receiver.statement >= sender.statement || self.flaw == Flaw::NoBarrier;
        if sender.phase != Phase::Runs || !begun || s.failed {
            return;
        }
        let Ok(position) = s.producer.reserve(Class::Control) else { return };
        let slot = (position % SLOTS as u64) as usize;
        let mut next = s.clone();
        let content = match s.staging[slot].filter(|_| position < s.again) {
            Some((_, number)) if self.flaw == Flaw::NumberedAnew => (sender.statement, number),
            Some(content) => content,
            None if s.posted == FRAMES || (s.cancelled && s.posted == 0) => return,
            None => {
                next.posted += 1;
                (sender.statement, s.posted)
            }
        };
        next.producer.publish();
        next.producer.retire(position);
        next.staging[slot] = Some(content);
        if !s.broken && s.taken.is_none() {
            let word = commit_word(s.incarnation, position);
            next.writes.push((sender.set, position, word, content));
        }
        out.push((Step::Post(content), Ok(next)));
    }

    /// The network carries frames and credits in order.
    fn carry(&self, s: &State, out: &mut Out) {
        if let Some(&(set, position, word, content)) = s.writes.first() {
            let mut next = s.clone();
            next.writes.remove(0);
            if set == s.nodes[1].set {
                next.memory[(position % SLOTS as u64) as usize] = Some((word, content));
            }
            out.push((Step::Land(content), Ok(next)));
        }
        if let Some(&credit) = s.credits.first() {
            let mut next = s.clone();
            next.credits.remove(0);
            let taken = next.producer.credit(credit);
            let refused = |breach| format!("S3: {breach}");
            out.push((Step::Credit(credit), taken.map(|_| next).map_err(refused)));
        }
    }

    /// The second node polls while it runs.
    fn take(&self, s: &State, out: &mut Out) {
        if s.nodes[1].phase != Phase::Runs || s.failed {
            return;
        }
        if let Some(taken) = self.accept(s) {
            out.push(taken);
        }
        if let Some(&content) = s.inbox.first() {
            let mut next = s.clone();
            next.inbox.remove(0);
            next.consumer.release(s.consumer.accepted() - s.inbox.len() as u64);
            next.received += 1;
            let right = content == (s.nodes[1].statement, s.received);
            let wrong = || format!("S1: {content:?} as number {} of {:?}", s.received, s.nodes[1]);
            out.push((Step::Receive(content), if right { Ok(next) } else { Err(wrong()) }));
        }
        if let Some(credit) = s.consumer.credit_due() {
            let mut next = s.clone();
            next.consumer.returned(credit);
            if !s.broken && s.taken.is_none() {
                next.credits.push(credit);
            }
            out.push((Step::ReturnCredit(credit), Ok(next)));
        }
    }

    /// The second node accepts the frame at the head, if it is there.
    fn accept(&self, s: &State) -> Option<(Step, Result<State, String>)> {
        let position = s.consumer.head()?;
        let (word, content) = s.memory[(position % SLOTS as u64) as usize].unwrap_or_default();
        let refused = |breach| format!("S3: {breach}");
        match s.consumer.is_there(word) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(breach) => return Some((Step::Accept(content), Err(refused(breach)))),
        }
        let current = match self.flaw {
            Flaw::NoNumbers => Ok(true),
            _ => s.nodes[1].statement.has(content.0.number()),
        };
        let mut next = s.clone();
        next.consumer.accept();
        match current {
            Ok(true) => next.inbox.push(content),
            Ok(false) if self.flaw == Flaw::DropsKeepSlots => {}
            Ok(false) => next.consumer.release(position),
            Err(breach) => return Some((Step::Accept(content), Err(refused(breach)))),
        }
        Some((Step::Accept(content), Ok(next)))
    }

    /// A node ends when it has sent or received all that is waited for, and keeps its links unless
    /// it knows that the statement was cancelled, or that the connection is gone.
    fn end(&self, s: &State, at: usize, out: &mut Out) {
        let node = &s.nodes[at];
        if node.phase != Phase::Runs || s.failed {
            return;
        }
        let ended = if at == 0 {
            let landed =
                !s.writes.iter().any(|(_, _, _, (of, n))| *of == node.statement && *n < NEEDED);
            let posts_again = s.producer.published() < s.again || s.broken || s.taken.is_some();
            let waits = posts_again && s.nodes[1].phase == Phase::Runs;
            let enough = s.posted >= NEEDED || s.cancelled;
            enough && landed && !waits && s.nodes[1].statement == node.statement
        } else {
            let enough = s.received >= NEEDED || s.sent == Some(s.received);
            enough && s.nodes[0].statement == node.statement
        };
        if !ended {
            return;
        }
        for knows in [true, false] {
            let (of_cancel, of_break) = (s.cancelled, s.broken || s.taken.is_some());
            if knows && !of_cancel && !of_break {
                continue;
            }
            let mut next = s.clone();
            next.nodes[at].phase = Phase::Rests;
            if knows {
                next.nodes[at].set = 0;
            }
            if at == 0 {
                next.sent = Some(s.posted);
            }
            out.push((Step::End(at, knows), Ok(next)));
        }
    }

    /// The connection breaks, and goes on while both nodes run.
    fn renew(&self, s: &State, out: &mut Out) {
        let stands = !s.broken && s.taken.is_none();
        if stands && s.breaks < self.breaks && s.nodes[0].set > 0 {
            let breaks = s.breaks + 1;
            let (writes, credits) = (vec![], vec![]);
            let next = State { broken: true, breaks, writes, credits, ..s.clone() };
            out.push((Step::Break, Ok(next)));
        }
        if !Self::both_run(s) || s.failed {
            return;
        }
        if let Some(taken) = s.taken {
            let mut next = s.clone();
            next.taken = None;
            next.again = s.again.max(s.producer.published());
            let renewed = next.producer.renew(taken);
            let refused = |breach| format!("S3: {breach}");
            out.push((Step::Resume(taken), renewed.map(|()| next).map_err(refused)));
        } else if s.broken {
            let mut next = s.clone();
            // What has landed is taken.
            while let Some((step, accepted)) = self.accept(&next) {
                match accepted {
                    Ok(accepted) => next = accepted,
                    Err(reason) => return out.push((step, Err(reason))),
                }
            }
            let taken = next.consumer.accepted();
            next.incarnation += 1;
            next.consumer.renew(next.incarnation);
            next.memory = [None; SLOTS];
            // Their slots are in the ring before.
            (next.broken, next.taken) = (false, Some(taken));
            let waiting = std::mem::take(&mut next.inbox);
            for content in waiting {
                next.received += 1;
                if content != (s.nodes[1].statement, next.received - 1) {
                    let reason = format!("S1: {content:?} of {:?}", s.nodes[1]);
                    return out.push((Step::Receive(content), Err(reason)));
                }
            }
            out.push((Step::Close(taken), Ok(next)));
        }
    }

    /// A node fails, and each lets go; or somebody cancels.
    fn disturb(&self, s: &State, out: &mut Out) {
        if Self::both_run(s) && !s.failed {
            if s.failures < self.failures {
                let failures = s.failures + 1;
                out.push((Step::Fail, Ok(State { failed: true, failures, ..s.clone() })));
            }
            if s.cancels < self.cancels && !s.cancelled {
                let cancels = s.cancels + 1;
                out.push((Step::Cancel, Ok(State { cancelled: true, cancels, ..s.clone() })));
            }
        }
        for at in 0..2 {
            if s.failed && s.nodes[at].phase == Phase::Runs {
                let mut next = s.clone();
                next.nodes[at].phase = Phase::Rests;
                next.nodes[at].set = 0;
                out.push((Step::Abort(at), Ok(next)));
            }
        }
    }
}

impl State {
    /// Drops what was accepted and nobody has received.
    fn drop_unreceived(&mut self) {
        let first = self.consumer.accepted() - self.inbox.len() as u64;
        self.inbox.clear();
        (first..self.consumer.accepted()).for_each(|position| self.consumer.release(position));
    }
}

impl Model for Session {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let node = Node { phase: Phase::Rests, statement: StatementNumber::default(), set: 0 };
        let slots = SLOTS as u32;
        vec![State {
            nodes: [node.clone(), node],
            producer: Producer::new(slots, 1),
            staging: [None; SLOTS],
            again: 0,
            posted: 0,
            consumer: Consumer::new(slots, 1, 1, Publish::InOrderPoll),
            memory: [None; SLOTS],
            inbox: Vec::new(),
            received: 0,
            incarnation: 1,
            writes: Vec::new(),
            credits: Vec::new(),
            broken: false,
            taken: None,
            failed: false,
            cancelled: false,
            sent: None,
            breaks: 0,
            failures: 0,
            cancels: 0,
        }]
    }

    fn steps(&self, s: &State, out: &mut Out) {
        for at in 0..2 {
            self.agree(s, at, out);
            self.end(s, at, out);
        }
        self.post(s, out);
        self.carry(s, out);
        self.take(s, out);
        self.renew(s, out);
        self.disturb(s, out);
    }

    fn check(&self, _: &State) -> Result<(), String> {
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        s.nodes
            .iter()
            .all(|node| node.phase == Phase::Rests && node.statement.number() == self.statements)
    }
}

#[test]
fn frames_are_received_in_their_statement_and_links_go_on() {
    holds(&Session::honest(4), 1_000);
}

#[test]
fn whatever_breaks_fails_or_is_cancelled_the_next_statement_runs() {
    holds(&Session { breaks: 1, failures: 1, cancels: 1, ..Session::honest(3) }, 100_000);
    holds(&Session { breaks: 2, ..Session::honest(3) }, 100_000);
}

#[test]
fn each_deviation_is_found() {
    let all = || Session { breaks: 1, failures: 1, cancels: 1, ..Session::honest(3) };
    let flaw = Flaw::DropsKeepSlots;
    finds(&Session { flaw, ..Session::honest(4) }, flaw, "dead end");
    for (flaw, reason) in [
        (Flaw::NoNumbers, "S1"),
        (Flaw::NumberedAnew, "S1"),
        (Flaw::UnreceivedStay, "S1"),
        (Flaw::OwnDecision, "S2"),
        (Flaw::SaysWhole, "S2"),
        (Flaw::NoBarrier, "dead end"),
    ] {
        finds(&Session { flaw, ..all() }, flaw, reason);
    }
}
