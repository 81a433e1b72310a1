//! The slot ring, explored in whole: the real producer and consumer of `channel`, a network that
//! places each write line by line in each of three orders, and notices and credits that arrive in
//! any order.
//!
//! Kept in every state: R1 each line that is read is of the accepted frame; R2 frames are accepted
//! in order, each once; R3 no frame is posted into a slot that is in use; R4 no more in flight than
//! slots; R5 nothing of an earlier incarnation is accepted; R6 there is always a step until all
//! frames were consumed; R7 a frame that is posted again is still in its staging slot. No honest
//! run makes the consumer refuse anything. Each deviation named in [`Flaw`] must be found.

use channel::protocol::{Class, Consumer, Notice, Producer, commit_word};
use fabric::Publish;
use models::{Explored, Model, Violation, explore};

const SLOTS: usize = 3;
const LINES: usize = 4;

/// In which order the lines of writes land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The lowest line of the first write.
    Ascending,
    /// Any line of the first write.
    WithinFirst,
    /// Any line of any write.
    Anywhere,
}

/// A deviation from the protocol, or a promise of the fabric that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The consumer takes any commit word but zero.
    FlagWithoutSequence,
    /// The slot is released when reading begins.
    CreditBeforeUse,
    /// Credit counts released slots instead of the contiguous position.
    CreditIsACount,
    /// Credits are increments.
    CreditIsAnIncrement,
    /// Credits are written to a word that the producer polls.
    CreditIsAWord,
    /// The next incarnation has the same number.
    SameIncarnation,
    /// Memory stays exported over the reconnect, so that old writes land in it.
    NotRevoked,
    /// A notice overtakes the writes before it (G4 is off).
    NoticeOvertakes,
    /// The consumer says what it has taken, and then closes the old connection.
    TakenBeforeClose,
    /// The producer goes on with the frames that it has no credit for, and not with those that were
    /// not taken.
    ResumesAtCredit,
    /// The producer goes on behind the frames whose writes have completed.
    ResumesBehindWrites,
}

struct Ring {
    publish: Publish,
    order: Order,
    frames: u64,
    flaw: Flaw,
    /// Credits may arrive twice.
    duplicates: bool,
    /// Frame notices under way at once.
    notices_max: usize,
    /// The link may be remade once, over memory that was not cleared.
    reconnect: bool,
    /// So often the link may go on over a new connection and memory.
    renewals: u32,
}

/// A line's content: which frame of which incarnation wrote it last.
type Line = Option<(u32, u64)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Write {
    incarnation: u32,
    position: u64,
    landed: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    incarnation: u32,
    producer: Producer,
    consumer: Consumer,
    memory: [[Line; LINES]; SLOTS],
    writes: Vec<Write>,
    notices: Vec<Notice>,
    credits: Vec<u64>,
    /// The producer's credit word; only with [`Flaw::CreditIsAWord`].
    word: u64,
    /// The frame that is read, and its next line.
    reading: Option<(u64, usize)>,
    /// Frames read and not released.
    held: Vec<u64>,
    /// Frames that were ever published: those from the producer's position to here are posted
    /// again, from the staging slots.
    again: u64,
    /// What the consumer has said that it has taken, between its end of a renewal and the other.
    taken: Option<u64>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Post(u64),
    Flush(Notice),
    Land(u64, usize),
    Notified(Notice),
    Accept(u64),
    Read(u64, usize),
    Release(u64),
    ReturnCredit(u64),
    Credit(u64),
    CreditTwice(u64),
    Look(u64),
    Reconnect,
    Close(u64),
    Resume(u64),
}

type Steps = Vec<(Step, Result<State, String>)>;

impl Ring {
    fn honest(publish: Publish, order: Order, frames: u64) -> Self {
        Self {
            publish,
            order,
            frames,
            flaw: Flaw::None,
            duplicates: false,
            notices_max: 1,
            reconnect: false,
            renewals: 0,
        }
    }

    fn ends(&self, incarnation: u32) -> (Producer, Consumer) {
        let number = if self.flaw == Flaw::SameIncarnation { 1 } else { incarnation };
        let slots = SLOTS as u32;
        (Producer::new(slots, 1), Consumer::new(slots, 1, number, self.publish))
    }

    fn commit(&self, line: Line) -> u64 {
        match line {
            None => 0,
            Some((_, position)) if self.flaw == Flaw::SameIncarnation => commit_word(1, position),
            Some((incarnation, position)) => commit_word(incarnation, position),
        }
    }

    fn produce(&self, s: &State, out: &mut Steps) {
        if s.producer.published() < self.frames
            && let Ok(position) = s.producer.reserve(Class::Control)
        {
            let mut next = s.clone();
            next.producer.publish();
            next.producer.retire(position);
            // Over a connection that the peer has closed nothing gets there.
            if s.taken.is_none() {
                next.writes.push(Write { incarnation: s.incarnation, position, landed: 0 });
                if self.publish == Publish::NotifyCounted {
                    next.notices.push(Notice::Frame(position as u16));
                }
            }
            let overwrites = position >= s.consumer.credit() + SLOTS as u64;
            let outcome = match s.again.saturating_sub(position) {
                _ if overwrites => Err(format!("R3: frame {position} overwrites")),
                ahead if ahead > SLOTS as u64 => Err(format!("R7: {position} is staged no more")),
                _ => Ok(next),
            };
            out.push((Step::Post(position), outcome));
        }
        if self.publish == Publish::Notify
            && s.notices.len() < self.notices_max
            && let Some(count) = s.producer.unannounced()
        {
            let mut next = s.clone();
            next.producer.announce();
            next.notices.extend(s.taken.is_none().then_some(Notice::Frames(count)));
            out.push((Step::Flush(Notice::Frames(count)), Ok(next)));
        }
    }

    fn land(&self, s: &State, out: &mut Steps) {
        let writes = match self.order {
            Order::Ascending | Order::WithinFirst => &s.writes[..s.writes.len().min(1)],
            Order::Anywhere => &s.writes[..],
        };
        for (i, write) in writes.iter().enumerate() {
            for line in (0..LINES).filter(|line| write.landed & 1 << line == 0) {
                let mut next = s.clone();
                let slot = (write.position % SLOTS as u64) as usize;
                next.memory[slot][line] = Some((write.incarnation, write.position));
                next.writes[i].landed |= 1 << line;
                if next.writes[i].landed == (1 << LINES) - 1 {
                    next.writes.remove(i);
                }
                out.push((Step::Land(write.position, line), Ok(next)));
                if self.order == Order::Ascending {
                    break;
                }
            }
        }
    }

    /// Whether the writes that a notice vouches for have landed (G4).
    fn may_arrive(&self, s: &State, notice: Notice) -> bool {
        let pending = |covers: &dyn Fn(u64) -> bool| {
            s.writes.iter().any(|w| w.incarnation == s.incarnation && covers(w.position))
        };
        self.flaw == Flaw::NoticeOvertakes
            || match notice {
                Notice::Frames(count) => !pending(&|position| position < u64::from(count)),
                Notice::Frame(count) => !pending(&|position| position == u64::from(count)),
                Notice::Credit(_) | Notice::Sleep(_) => true,
            }
    }

    fn notify(&self, s: &State, out: &mut Steps) {
        for (i, &notice) in s.notices.iter().enumerate() {
            if !self.may_arrive(s, notice) {
                continue;
            }
            let mut next = s.clone();
            next.notices.remove(i);
            let taken = match notice {
                Notice::Frames(count) => next.consumer.frames_notice(count),
                Notice::Frame(count) => next.consumer.frame_notice(count),
                Notice::Credit(_) | Notice::Sleep(_) => Ok(()),
            };
            let result = taken.map(|()| next).map_err(|breach| format!("refused: {breach}"));
            out.push((Step::Notified(notice), result));
        }
    }

    fn consume(&self, s: &State, out: &mut Steps) {
        if let Some((position, line)) = s.reading {
            let found = s.memory[(position % SLOTS as u64) as usize][line];
            let mut next = s.clone();
            next.reading = Some((position, line + 1));
            if line + 1 == LINES {
                next.reading = None;
                if self.flaw != Flaw::CreditBeforeUse {
                    next.held.push(position);
                }
            }
            let right = found == Some((s.incarnation, position));
            let torn = || format!("R1/R5: line {line} of frame {position} holds {found:?}");
            out.push((Step::Read(position, line), if right { Ok(next) } else { Err(torn()) }));
            return;
        }
        let Some(position) = s.consumer.head() else { return };
        let commit = self.commit(s.memory[(position % SLOTS as u64) as usize][LINES - 1]);
        let there = match self.flaw {
            Flaw::FlagWithoutSequence => Ok(commit != 0),
            _ => s.consumer.is_there(commit),
        };
        match there {
            Ok(false) => {}
            Ok(true) => {
                let mut next = s.clone();
                next.consumer.accept();
                next.reading = Some((position, 0));
                if self.flaw == Flaw::CreditBeforeUse {
                    next.consumer.release(position);
                }
                out.push((Step::Accept(position), Ok(next)));
            }
            Err(breach) => out.push((Step::Accept(position), Err(format!("refused: {breach}")))),
        }
    }

    fn release(&self, s: &State, out: &mut Steps) {
        for (i, &position) in s.held.iter().enumerate() {
            let mut next = s.clone();
            next.held.remove(i);
            next.consumer.release_slot((position % SLOTS as u64) as u32);
            out.push((Step::Release(position), Ok(next)));
        }
        let due = match self.flaw {
            Flaw::CreditIsACount => {
                let count = s.consumer.accepted() - s.consumer.held();
                (s.credits.is_empty() && count > s.producer.published() - s.producer.in_flight())
                    .then_some(count)
            }
            _ => s.consumer.credit_due(),
        };
        if let Some(credit) = due {
            let mut next = s.clone();
            next.consumer.returned(credit);
            next.credits.push(credit);
            out.push((Step::ReturnCredit(credit), Ok(next)));
        }
    }

    fn credit(&self, s: &State, out: &mut Steps) {
        let known = s.producer.published() - s.producer.in_flight();
        for (i, &credit) in s.credits.iter().enumerate() {
            let mut once = s.clone();
            once.credits.remove(i);
            if self.flaw == Flaw::CreditIsAWord {
                once.word = credit;
                out.push((Step::Credit(credit), Ok(once)));
                continue;
            }
            let taken = match self.flaw {
                Flaw::CreditIsAnIncrement => once.producer.credit(known + 1),
                _ => once.producer.credit_notice(credit as u16),
            };
            let refused = |breach| format!("refused: {breach}");
            if self.duplicates {
                let mut twice = once.clone();
                twice.credits = s.credits.clone();
                out.push((Step::CreditTwice(credit), taken.map(|_| twice).map_err(refused)));
            }
            out.push((Step::Credit(credit), taken.map(|_| once).map_err(refused)));
        }
        if s.word > known {
            let mut next = s.clone();
            let taken = next.producer.credit(s.word);
            out.push((Step::Look(s.word), taken.map(|_| next).map_err(|b| b.to_string())));
        }
    }

    /// Both ends are made anew over the same memory. Writes under way are gone once the consumer
    /// has revoked its export.
    fn remake(&self, s: &State, out: &mut Steps) {
        if !self.reconnect || s.incarnation != 1 || s.producer.published() == 0 {
            return;
        }
        let mut next = s.clone();
        next.incarnation = 2;
        (next.producer, next.consumer) = self.ends(2);
        if self.flaw != Flaw::NotRevoked {
            next.writes.clear();
        }
        next.notices.clear();
        next.credits.clear();
        next.reading = None;
        next.held.clear();
        out.push((Step::Reconnect, Ok(next)));
    }
}

impl Ring {
    /// The link goes on over a new connection. The consumer's end first: the old one is closed,
    /// what was taken by then is said, and the ring is new; what was taken is read from the old
    /// one. The producer goes on later, and until then posts into nothing.
    fn renew(&self, s: &State, out: &mut Steps) {
        if let Some(taken) = s.taken {
            let mut next = s.clone();
            let known = s.producer.published() - s.producer.in_flight();
            next.taken = None;
            next.again = s.again.max(s.producer.published());
            next.credits.clear();
            let renewed = match self.flaw {
                Flaw::ResumesAtCredit => next.producer.renew(known),
                Flaw::ResumesBehindWrites => next.producer.renew(s.producer.published()),
                _ => next.producer.renew(taken),
            };
            let refused = |breach| format!("refused: {breach}");
            out.push((Step::Resume(taken), renewed.map(|()| next).map_err(refused)));
        } else if s.incarnation <= self.renewals && s.producer.published() > 0 {
            let mut next = s.clone();
            let taken = s.consumer.accepted();
            if self.flaw == Flaw::TakenBeforeClose {
                // One more comes in between.
                let Some(position) = s.consumer.head() else { return };
                let slot = (position % SLOTS as u64) as usize;
                if s.consumer.is_there(self.commit(s.memory[slot][LINES - 1])) != Ok(true) {
                    return;
                }
                next.consumer.accept();
            }
            next.incarnation += 1;
            next.consumer.renew(next.incarnation);
            next.memory = [[None; LINES]; SLOTS];
            next.writes.clear();
            next.notices.clear();
            next.reading = None;
            next.held.clear();
            next.taken = Some(taken);
            out.push((Step::Close(taken), Ok(next)));
        }
    }
}

impl Model for Ring {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let (producer, consumer) = self.ends(1);
        vec![State {
            incarnation: 1,
            producer,
            consumer,
            memory: [[None; LINES]; SLOTS],
            writes: Vec::new(),
            notices: Vec::new(),
            credits: Vec::new(),
            word: 0,
            reading: None,
            held: Vec::new(),
            again: 0,
            taken: None,
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        self.produce(s, out);
        self.land(s, out);
        self.notify(s, out);
        self.consume(s, out);
        self.release(s, out);
        self.credit(s, out);
        self.remake(s, out);
        self.renew(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        if s.producer.in_flight() > SLOTS as u64 {
            return Err("R4: more in flight than slots".into());
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        s.consumer.accepted() == self.frames
            && s.reading.is_none()
            && s.held.is_empty()
            && s.taken.is_none()
    }
}

fn holds(model: &Ring, states_min: usize) -> Explored {
    let seen = explore(model, 3_000_000).unwrap_or_else(|v| panic!("{}\n{}", v.reason, v.trace));
    println!("{:?} {:?}: {seen:?}", model.publish, model.order);
    assert!(seen.states >= states_min, "only {} states", seen.states);
    assert!(seen.finals > 0);
    seen
}

fn fails(model: &Ring, reason: &str) -> Violation {
    let violation = explore(model, 3_000_000).expect_err("a flaw must be found");
    println!("{:?}: {} after {} states", model.flaw, violation.reason, violation.states);
    assert!(violation.reason.contains(reason), "{}\n{}", violation.reason, violation.trace);
    violation
}

#[test]
fn polling_holds_where_writes_land_in_order() {
    holds(&Ring::honest(Publish::InOrderPoll, Order::Ascending, 8), 1_000);
}

#[test]
fn notices_hold_in_every_order() {
    holds(&Ring::honest(Publish::Notify, Order::Ascending, 8), 1_000);
    holds(&Ring::honest(Publish::Notify, Order::WithinFirst, 8), 1_000);
    holds(&Ring::honest(Publish::Notify, Order::Anywhere, 8), 180_000);
}

#[test]
fn counted_notices_hold_in_every_order() {
    holds(&Ring::honest(Publish::NotifyCounted, Order::Ascending, 8), 1_000);
    holds(&Ring::honest(Publish::NotifyCounted, Order::WithinFirst, 8), 1_000);
    holds(&Ring::honest(Publish::NotifyCounted, Order::Anywhere, 8), 180_000);
}

#[test]
fn several_notices_under_way_hold() {
    let model = Ring { notices_max: 3, ..Ring::honest(Publish::Notify, Order::Anywhere, 4) };
    holds(&model, 10_000);
}

#[test]
fn credits_may_arrive_twice_and_late() {
    for publish in [Publish::Notify, Publish::NotifyCounted] {
        holds(&Ring { duplicates: true, ..Ring::honest(publish, Order::WithinFirst, 6) }, 10_000);
    }
    let polling = Ring::honest(Publish::InOrderPoll, Order::Ascending, 8);
    holds(&Ring { duplicates: true, ..polling }, 10_000);
}

#[test]
fn a_new_incarnation_holds_over_memory_that_was_not_cleared() {
    for publish in [Publish::Notify, Publish::NotifyCounted] {
        let model = Ring { reconnect: true, ..Ring::honest(publish, Order::WithinFirst, 4) };
        holds(&model, 10_000);
    }
}

#[test]
fn a_link_that_goes_on_loses_nothing_and_doubles_nothing() {
    for (publish, order) in [
        (Publish::InOrderPoll, Order::Ascending),
        (Publish::Notify, Order::WithinFirst),
        (Publish::NotifyCounted, Order::WithinFirst),
    ] {
        holds(&Ring { renewals: 1, ..Ring::honest(publish, order, 5) }, 10_000);
        holds(&Ring { renewals: 2, ..Ring::honest(publish, order, 4) }, 10_000);
    }
}

#[test]
fn a_link_that_goes_on_elsewhere_than_at_what_was_taken_fails() {
    let polling = || Ring::honest(Publish::InOrderPoll, Order::Ascending, 5);
    for (flaw, reason) in [
        (Flaw::TakenBeforeClose, "commit word"),
        (Flaw::ResumesAtCredit, "commit word"),
        (Flaw::ResumesBehindWrites, "R3"),
    ] {
        fails(&Ring { flaw, renewals: 1, ..polling() }, reason);
    }
}

#[test]
fn polling_fails_where_lines_land_in_any_order() {
    for order in [Order::WithinFirst, Order::Anywhere] {
        fails(&Ring::honest(Publish::InOrderPoll, order, 8), "R1");
    }
}

#[test]
fn a_flag_without_a_sequence_fails() {
    let flaw = Flaw::FlagWithoutSequence;
    fails(&Ring { flaw, ..Ring::honest(Publish::InOrderPoll, Order::Ascending, 8) }, "R1");
}

#[test]
fn credit_before_use_fails_in_every_order() {
    for order in [Order::Ascending, Order::WithinFirst, Order::Anywhere] {
        let flaw = Flaw::CreditBeforeUse;
        fails(&Ring { flaw, ..Ring::honest(Publish::Notify, order, 8) }, "R1");
    }
}

#[test]
fn credit_that_counts_slots_fails() {
    let flaw = Flaw::CreditIsACount;
    fails(&Ring { flaw, ..Ring::honest(Publish::Notify, Order::Ascending, 8) }, "R3");
}

#[test]
fn incremental_credits_fail_when_they_arrive_twice() {
    let flaw = Flaw::CreditIsAnIncrement;
    let model = Ring { flaw, ..Ring::honest(Publish::InOrderPoll, Order::Ascending, 8) };
    holds(&model, 1_000);
    fails(&Ring { duplicates: true, ..model }, "credit for position 2");
}

#[test]
fn a_credit_word_loses_credit_when_writes_to_it_cross() {
    let flaw = Flaw::CreditIsAWord;
    fails(&Ring { flaw, ..Ring::honest(Publish::InOrderPoll, Order::Ascending, 8) }, "dead end");
}

#[test]
fn an_incarnation_that_is_not_checked_fails() {
    let flaw = Flaw::SameIncarnation;
    let model = Ring::honest(Publish::InOrderPoll, Order::Ascending, 4);
    fails(&Ring { flaw, reconnect: true, ..model }, "R1/R5");
    fails(
        &Ring { reconnect: true, ..Ring::honest(Publish::InOrderPoll, Order::Ascending, 4) },
        "refused",
    );
}

#[test]
fn old_writes_that_still_land_fail() {
    let flaw = Flaw::NotRevoked;
    let model = Ring::honest(Publish::Notify, Order::Anywhere, 2);
    fails(&Ring { flaw, reconnect: true, ..model }, "commit word 0x0000000100000001");
}

#[test]
fn a_notice_that_overtakes_its_writes_is_refused() {
    for publish in [Publish::Notify, Publish::NotifyCounted] {
        let flaw = Flaw::NoticeOvertakes;
        fails(&Ring { flaw, ..Ring::honest(publish, Order::Anywhere, 8) }, "refused");
    }
}
