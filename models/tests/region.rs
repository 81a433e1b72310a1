//! A region that several readers read (W3), explored in whole: the real producers, consumers and
//! loans of `channel`, reads that copy line by line at any time, credits under way, a reader that
//! leaves, and a connection that breaks.
//!
//! Kept in every state: P1 each line of a received payload is of its frame, and payloads come in
//! order, each once; P2 there is always a step until every reader that stays has everything and
//! each slot is free. Each deviation named in [`Flaw`] must be found.

use channel::protocol::{Class, Consumer, Lent, Producer};
use fabric::Publish;
use models::Model;

use crate::{finds, holds};

/// Slots of a ring: so many that credit goes out by twos.
const RING: u32 = 8;
const LINES: usize = 2;

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A slot is free when the first reader has read it.
    FreedByTheFastest,
    /// The loans of a reader that has left stay.
    LeftKept,
    /// Credit covers frames whose payloads are still to be read.
    CreditBeforeRead,
    /// The last loan is acknowledged when a batch is full.
    NoLastCredit,
    /// A frame that was accepted and not read counts as taken when a connection breaks.
    UnreadTaken,
}

struct Region {
    readers: usize,
    slots: usize,
    frames: u64,
    /// The last reader may leave, and its connection may break.
    leaves: bool,
    breaks: bool,
    flaw: Flaw,
}

/// A payload that is being read: its position, its slot, and the lines that are here.
type Reading = (u64, usize, [Option<u64>; LINES]);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Reader {
    producer: Producer,
    lent: Lent<usize>,
    consumer: Consumer,
    incarnation: u32,
    reading: Vec<Reading>,
    held: Vec<u64>,
    credits: Vec<u64>,
    received: u64,
    left: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// The frame in each slot.
    region: Vec<Option<u64>>,
    /// The slot of each frame.
    placed: Vec<usize>,
    readers: Vec<Reader>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Write(u64, usize),
    Name(usize, u64),
    Notified(usize),
    Accept(usize, u64),
    Land(usize, u64, usize),
    Receive(usize, u64),
    Release(usize, u64),
    ReturnCredit(usize, u64),
    Credit(usize, u64),
    Leave(usize),
    Break(usize),
}

type Steps = Vec<(Step, Result<State, String>)>;

impl Region {
    fn honest(readers: usize, slots: usize, frames: u64) -> Self {
        Self { readers, slots, frames, leaves: false, breaks: false, flaw: Flaw::None }
    }

    /// Whether nobody needs what is in a slot.
    fn is_free(&self, s: &State, slot: usize) -> bool {
        let Some(frame) = s.region[slot] else { return true };
        let needs = |reader: &Reader| {
            let unnamed = !reader.left && reader.producer.published() <= frame;
            unnamed || reader.lent.iter().any(|&lent| lent == slot)
        };
        match self.flaw {
            Flaw::FreedByTheFastest => !s.readers.iter().all(needs),
            _ => !s.readers.iter().any(needs),
        }
    }

    fn write(&self, s: &State, out: &mut Steps) {
        let frame = s.placed.len() as u64;
        let Some(slot) = (0..self.slots).find(|&slot| self.is_free(s, slot)) else { return };
        if frame < self.frames {
            let mut next = s.clone();
            next.region[slot] = Some(frame);
            next.placed.push(slot);
            out.push((Step::Write(frame, slot), Ok(next)));
        }
    }

    fn name(&self, s: &State, at: usize, out: &mut Steps) {
        let reader = &s.readers[at];
        if reader.producer.published() < s.placed.len() as u64
            && let Ok(position) = reader.producer.reserve(Class::Data)
        {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.producer.publish();
            of.producer.retire(position);
            of.lent.lend(position, s.placed[position as usize]);
            out.push((Step::Name(at, position), Ok(next)));
        }
        if let Some(count) = reader.producer.unannounced() {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.producer.announce();
            let taken = of.consumer.frames_notice(count);
            let result = taken.map(|()| next).map_err(|breach| format!("refused: {breach}"));
            out.push((Step::Notified(at), result));
        }
    }

    fn read(&self, s: &State, at: usize, out: &mut Steps) {
        let reader = &s.readers[at];
        if let Some(position) = reader.consumer.head() {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.consumer.accept();
            if self.flaw != Flaw::NoLastCredit {
                of.consumer.borrowed();
            }
            if self.flaw == Flaw::CreditBeforeRead {
                of.consumer.release(position);
            }
            of.reading.push((position, s.placed[position as usize], [None; LINES]));
            out.push((Step::Accept(at, position), Ok(next)));
        }
        for (i, &(position, slot, lines)) in reader.reading.iter().enumerate() {
            for line in (0..LINES).filter(|&line| lines[line].is_none()) {
                let mut next = s.clone();
                next.readers[at].reading[i].2[line] = s.region[slot];
                out.push((Step::Land(at, position, line), Ok(next)));
            }
        }
        if let Some(&(position, _, lines)) = reader.reading.first()
            && lines.iter().all(Option::is_some)
        {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.reading.remove(0);
            of.received += 1;
            if self.flaw != Flaw::CreditBeforeRead {
                of.held.push(position);
            }
            let fits = lines == [Some(position); LINES] && position == reader.received;
            let wrong = || format!("P1: frame {} is {lines:?}", reader.received);
            out.push((Step::Receive(at, position), if fits { Ok(next) } else { Err(wrong()) }));
        }
    }

    fn credit(s: &State, at: usize, out: &mut Steps) {
        let reader = &s.readers[at];
        for (i, &position) in reader.held.iter().enumerate() {
            let mut next = s.clone();
            next.readers[at].held.remove(i);
            next.readers[at].consumer.release(position);
            out.push((Step::Release(at, position), Ok(next)));
        }
        if let Some(credit) = reader.consumer.credit_due() {
            let mut next = s.clone();
            next.readers[at].consumer.returned(credit);
            next.readers[at].credits.push(credit);
            out.push((Step::ReturnCredit(at, credit), Ok(next)));
        }
        for (i, &credit) in reader.credits.iter().enumerate() {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.credits.remove(i);
            let taken = of.producer.credit_notice(credit as u16);
            of.lent.read_below(of.producer.released_below());
            let result = taken.map(|_| next).map_err(|breach| format!("refused: {breach}"));
            out.push((Step::Credit(at, credit), result));
        }
    }

    /// The last reader leaves, or goes on over another connection.
    fn end(&self, s: &State, at: usize, out: &mut Steps) {
        if self.leaves {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.left = true;
            if self.flaw != Flaw::LeftKept {
                of.lent.clear();
            }
            (of.reading, of.held, of.credits) = (vec![], vec![], vec![]);
            out.push((Step::Leave(at), Ok(next)));
        }
        if self.breaks && s.readers[at].incarnation == 1 {
            let mut next = s.clone();
            let of = &mut next.readers[at];
            of.incarnation += 1;
            if let Some(&(unread, ..)) = of.reading.first()
                && self.flaw != Flaw::UnreadTaken
            {
                of.consumer.withdraw(unread);
            }
            // Payloads that are held lie in the old ring.
            (of.reading, of.held, of.credits) = (vec![], vec![], vec![]);
            of.consumer.renew(of.incarnation);
            let (taken, published) = (of.consumer.accepted(), of.producer.published());
            let renewed = of.producer.renew(taken);
            of.lent.read_below(taken);
            while of.producer.published() < published {
                let position = of.producer.publish();
                of.producer.retire(position);
            }
            let result = renewed.map(|()| next).map_err(|breach| format!("refused: {breach}"));
            out.push((Step::Break(at), result));
        }
    }
}

impl Model for Region {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let reader = Reader {
            producer: Producer::new(RING, 1),
            lent: Lent::default(),
            consumer: Consumer::new(RING, 1, 1, Publish::Notify),
            incarnation: 1,
            reading: vec![],
            held: vec![],
            credits: vec![],
            received: 0,
            left: false,
        };
        let readers = vec![reader; self.readers];
        vec![State { region: vec![None; self.slots], placed: vec![], readers }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        self.write(s, out);
        for at in (0..self.readers).filter(|&at| !s.readers[at].left) {
            self.name(s, at, out);
            self.read(s, at, out);
            Self::credit(s, at, out);
            if at + 1 == self.readers {
                self.end(s, at, out);
            }
        }
    }

    fn check(&self, _: &State) -> Result<(), String> {
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        let done = |of: &Reader| of.left || (of.received == self.frames && of.held.is_empty());
        s.placed.len() as u64 == self.frames
            && s.readers.iter().all(done)
            && (0..self.slots).all(|slot| self.is_free(s, slot))
    }
}

#[test]
fn each_reader_has_everything_and_slots_are_free_when_the_slowest_has_read() {
    holds(&Region::honest(2, 1, 4), 400);
    holds(&Region::honest(2, 2, 5), 100_000);
    holds(&Region { leaves: true, ..Region::honest(2, 2, 3) }, 1_000);
    holds(&Region { breaks: true, ..Region::honest(2, 2, 3) }, 1_000);
}

#[test]
fn a_slot_that_the_fastest_frees_is_overwritten_under_the_slowest() {
    let flaw = Flaw::FreedByTheFastest;
    finds(&Region { flaw, ..Region::honest(2, 1, 3) }, flaw, "P1");
}

#[test]
fn loans_of_a_reader_that_left_block_the_source_for_ever() {
    let flaw = Flaw::LeftKept;
    finds(&Region { flaw, leaves: true, ..Region::honest(2, 1, 3) }, flaw, "dead end");
}

#[test]
fn credit_before_the_payload_was_read_fails() {
    let flaw = Flaw::CreditBeforeRead;
    finds(&Region { flaw, ..Region::honest(2, 1, 3) }, flaw, "P1");
}

#[test]
fn a_source_that_is_not_told_of_the_last_loan_waits_for_ever() {
    let flaw = Flaw::NoLastCredit;
    finds(&Region { flaw, ..Region::honest(2, 1, 3) }, flaw, "dead end");
}

#[test]
fn a_payload_that_was_not_read_before_a_connection_broke_is_lost_if_it_counts_as_taken() {
    let flaw = Flaw::UnreadTaken;
    finds(&Region { flaw, breaks: true, ..Region::honest(1, 1, 2) }, flaw, "");
}
