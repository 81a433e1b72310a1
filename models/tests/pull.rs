//! The ring that its consumer reads (W3), explored in whole: the real producer and consumer of
//! `channel`, notices, reads and credits that go on in any order, and reads that copy line by line
//! at any time between their post and their completion.
//!
//! Kept in every state: P1 each line of an accepted frame is of that frame; P2 a slot here is not
//! read into while its payload is in use; P3 no more in flight than slots; P4 there is always a
//! step until all frames were consumed and the producer knows it. Each deviation named in [`Flaw`]
//! must be found.

use channel::protocol::{Class, Consumer, Notice, Producer, commit_word};
use models::{Model, explore};

const SLOTS: usize = 3;
const LINES: usize = 2;
const INCARNATION: u32 = 1;

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A frame is taken when its read was posted.
    TakenBeforeRead,
    /// Credit is returned for what was announced, before it was read.
    CreditBeforeRead,
    /// A frame is announced while it is being filled.
    AnnouncedBeforeFilled,
    /// The last frames are only acknowledged when a batch is full.
    NoLastCredit,
}

struct Pull {
    frames: u64,
    flaw: Flaw,
    /// Credits may arrive twice.
    duplicates: bool,
}

/// Which frame wrote a line last.
type Line = Option<u64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Read {
    position: u64,
    landed: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    producer: Producer,
    consumer: Consumer,
    /// The producer's slots, and the consumer's.
    there: [[Line; LINES]; SLOTS],
    here: [[Line; LINES]; SLOTS],
    /// Lines of the frame that is being filled.
    filling: Option<(u64, usize)>,
    notices: Vec<Notice>,
    reads: Vec<Read>,
    credits: Vec<u64>,
    held: Vec<u64>,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Publish(u64),
    Fill(u64, usize),
    Flush(Notice),
    Notified(Notice),
    Ask(u64),
    Land(u64, usize),
    Complete(u64),
    Accept(u64),
    Release(u64),
    ReturnCredit(u64),
    Credit(u64),
}

type Steps = Vec<(Step, Result<State, String>)>;

fn slot(position: u64) -> usize {
    (position % SLOTS as u64) as usize
}

impl Pull {
    fn honest(frames: u64) -> Self {
        Self { frames, flaw: Flaw::None, duplicates: false }
    }

    fn produce(&self, s: &State, out: &mut Steps) {
        if let Some((position, line)) = s.filling {
            let mut next = s.clone();
            next.there[slot(position)][line] = Some(position);
            next.filling = (line + 1 < LINES).then_some((position, line + 1));
            out.push((Step::Fill(position, line), Ok(next)));
        } else if s.producer.published() < self.frames
            && let Ok(position) = s.producer.reserve(Class::Control)
        {
            let mut next = s.clone();
            next.producer.publish();
            next.producer.retire(position);
            next.filling = Some((position, 0));
            out.push((Step::Publish(position), Ok(next)));
        }
        let filled = s.filling.is_none() || self.flaw == Flaw::AnnouncedBeforeFilled;
        if filled
            && s.notices.len() < 2
            && let Some(count) = s.producer.unannounced()
        {
            let mut next = s.clone();
            next.producer.announce();
            next.notices.push(Notice::Frames(count));
            out.push((Step::Flush(Notice::Frames(count)), Ok(next)));
        }
    }

    fn notify(&self, s: &State, out: &mut Steps) {
        for (i, &notice) in s.notices.iter().enumerate() {
            let Notice::Frames(count) = notice else { continue };
            let mut next = s.clone();
            next.notices.remove(i);
            let taken = next.consumer.frames_notice(count);
            let result = taken.map(|()| next).map_err(|breach| format!("refused: {breach}"));
            out.push((Step::Notified(notice), result));
        }
    }

    fn read(&self, s: &State, out: &mut Steps) {
        if let Some(position) = s.consumer.to_fetch() {
            let mut next = s.clone();
            next.consumer.asked();
            next.reads.push(Read { position, landed: 0 });
            if self.flaw == Flaw::TakenBeforeRead {
                next.consumer.fetched(position);
            }
            let used = s.held.iter().any(|&held| slot(held) == slot(position));
            let overwrites = || format!("P2: frame {position} is read over one in use");
            out.push((Step::Ask(position), if used { Err(overwrites()) } else { Ok(next) }));
        }
        for (i, read) in s.reads.iter().enumerate() {
            let position = read.position;
            for line in (0..LINES).filter(|line| read.landed & 1 << line == 0) {
                let mut next = s.clone();
                next.here[slot(position)][line] = s.there[slot(position)][line];
                next.reads[i].landed |= 1 << line;
                out.push((Step::Land(position, line), Ok(next)));
            }
            if read.landed == (1 << LINES) - 1 {
                let mut next = s.clone();
                next.reads.remove(i);
                if self.flaw != Flaw::TakenBeforeRead {
                    next.consumer.fetched(position);
                }
                out.push((Step::Complete(position), Ok(next)));
            }
        }
    }

    fn consume(&self, s: &State, out: &mut Steps) {
        if let Some(position) = s.consumer.head() {
            let lines = s.here[slot(position)];
            let mut next = s.clone();
            next.consumer.accept();
            next.held.push(position);
            let commit = lines[0].map_or(0, |of| commit_word(INCARNATION, of));
            let result = match s.consumer.is_there(commit) {
                Err(breach) => Err(format!("refused: {breach}")),
                Ok(_) if lines != [Some(position); LINES] => {
                    Err(format!("P1: frame {position} is {lines:?}"))
                }
                Ok(_) => Ok(next),
            };
            out.push((Step::Accept(position), result));
        }
        for (i, &position) in s.held.iter().enumerate() {
            let mut next = s.clone();
            next.held.remove(i);
            next.consumer.release_slot(slot(position) as u32);
            out.push((Step::Release(position), Ok(next)));
        }
    }

    fn credit(&self, s: &State, out: &mut Steps) {
        let due = match self.flaw {
            // A slot is free as soon as its frame was asked for.
            Flaw::CreditBeforeRead => s.reads.last().map(|read| read.position + 1),
            Flaw::NoLastCredit => {
                let over = s.consumer.credit() == self.frames;
                s.consumer.credit_due().filter(|_| !over)
            }
            _ => s.consumer.credit_due(),
        };
        let known = s.producer.published() - s.producer.in_flight();
        if let Some(credit) = due.filter(|credit| *credit > known && !s.credits.contains(credit)) {
            let mut next = s.clone();
            next.consumer.returned(credit);
            next.credits.push(credit);
            out.push((Step::ReturnCredit(credit), Ok(next)));
        }
        for (i, &credit) in s.credits.iter().enumerate() {
            for twice in [false, true] {
                if twice && !self.duplicates {
                    continue;
                }
                let mut next = s.clone();
                let taken = next.producer.credit_notice(credit as u16);
                if !twice {
                    next.credits.remove(i);
                }
                let result = taken.map(|_| next).map_err(|breach| format!("refused: {breach}"));
                out.push((Step::Credit(credit), result));
            }
        }
    }
}

impl Model for Pull {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        vec![State {
            producer: Producer::new(SLOTS as u32, 1),
            consumer: Consumer::reading(SLOTS as u32, 1, INCARNATION),
            there: [[None; LINES]; SLOTS],
            here: [[None; LINES]; SLOTS],
            filling: None,
            notices: Vec::new(),
            reads: Vec::new(),
            credits: Vec::new(),
            held: Vec::new(),
        }]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        self.produce(s, out);
        self.notify(s, out);
        self.read(s, out);
        self.consume(s, out);
        self.credit(s, out);
    }

    fn check(&self, s: &State) -> Result<(), String> {
        if s.producer.in_flight() > SLOTS as u64 {
            return Err("P3: more in flight than slots".into());
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        s.consumer.accepted() == self.frames && s.producer.in_flight() == 0
    }
}

fn holds(model: &Pull, states_min: usize) {
    let seen = explore(model, 3_000_000).unwrap_or_else(|v| panic!("{}\n{}", v.reason, v.trace));
    println!("{seen:?}");
    assert!(seen.states >= states_min, "only {} states", seen.states);
    assert!(seen.finals > 0);
}

fn fails(flaw: Flaw, reason: &str) {
    let model = Pull { flaw, ..Pull::honest(6) };
    let violation = explore(&model, 3_000_000).expect_err("a flaw must be found");
    println!("{flaw:?}: {} after {} states", violation.reason, violation.states);
    assert!(violation.reason.contains(reason), "{}\n{}", violation.reason, violation.trace);
}

#[test]
fn frames_that_are_read_are_whole_and_acknowledged_to_the_last() {
    holds(&Pull::honest(6), 10_000);
    holds(&Pull { duplicates: true, ..Pull::honest(5) }, 10_000);
}

#[test]
fn a_frame_taken_before_its_read_has_completed_fails() {
    fails(Flaw::TakenBeforeRead, "commit word");
}

#[test]
fn credit_before_the_read_fails() {
    fails(Flaw::CreditBeforeRead, "commit word");
}

#[test]
fn a_notice_before_the_frame_is_filled_fails() {
    fails(Flaw::AnnouncedBeforeFilled, "commit word");
}

#[test]
fn a_producer_that_is_not_told_of_the_last_frames_never_ends() {
    fails(Flaw::NoLastCredit, "dead end");
}
