//! A link that serves one statement after another over the simulated fabric: frames that nobody has
//! received, that come late, or again over another connection are never those of another
//! statement, and cost no slot.

#[path = "bed/ends.rs"]
mod ends;
#[path = "bed/load.rs"]
#[allow(dead_code, reason = "statements send frames of their own")]
mod load;

use std::sync::Arc;

use channel::protocol::{KeptLinks, StatementNumber};
use channel::{Class, Header, Link, LinkError, RingConfig, SharedRegion, Transfer};
use ends::small;
use fabric::sim::{SimNet, SimOptions};
use fabric::{Fabric, Publish};
use load::{Rng, links};

const MODES: [Publish; 3] = [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted];
const SEEDS: u64 = 40;
const STATEMENTS: u32 = 8;

/// One end in one statement: what it still sends, and has received in order.
struct End {
    link: Link,
    sent: u64,
    received: u64,
}

impl End {
    fn new(link: Link) -> Self {
        Self { link, sent: 0, received: 0 }
    }

    fn begin(&mut self, statement: u32) {
        self.link.begin(StatementNumber::new(statement)).expect("a link that stands");
        (self.sent, self.received) = (0, 0);
    }

    /// Sends up to `frames`, if there is room, and receives some.
    ///
    /// # Errors
    /// When the connection has ended.
    fn act(&mut self, statement: u32, frames: u64, rng: &mut Rng) -> Result<(), LinkError> {
        let lends = self.sent < frames && rng.below(2) == 0;
        let region = self.link.region().filter(|_| lends);
        let lent = region.and_then(SharedRegion::reserve);
        if self.sent < frames
            && let Some(slot) = self.link.reserve(Class::Control)
        {
            let words = [u64::from(statement), self.sent, 0];
            let (header, len) = (Header { words, ..Header::default() }, rng.below(900) as usize);
            match lent {
                Some(writer) => slot.lend(header, &writer.seal(len + 1)),
                None => slot.publish(header, len),
            }
            self.sent += 1;
        }
        if rng.below(2) == 0 {
            self.link.flush();
        }
        self.link.poll()?;
        if rng.below(3) > 0
            && let Some(frame) = self.link.recv()?
        {
            let [of, number, _] = frame.header.words;
            assert_eq!((of, number), (statement.into(), self.received), "of another statement");
            self.received += 1;
        }
        Ok(())
    }
}

/// The ends go on over another connection.
fn renew(net: &SimNet, [a, b]: &mut [End; 2], incarnation: u32) {
    net.heal(0, 1);
    let (here, there) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
    a.link.renew(&*net.fabric(0), here, incarnation).expect("an end of the same kind");
    b.link.renew(&*net.fabric(1), there, incarnation).expect("an end of the same kind");
    let (of_a, of_b) = (a.link.descriptor(), b.link.descriptor());
    a.link.attach(&of_b).expect("equal ends");
    b.link.attach(&of_a).expect("equal ends");
}

/// Statements in which each end waits for fewer frames than the other sends, over connections that
/// break; gives the frames that were dropped, and those that were posted again.
fn session(publish: Publish, config: RingConfig, seed: u64) -> (u64, u64) {
    let ordered_completions = seed.is_multiple_of(2);
    let net = SimNet::new(SimOptions { publish, ordered_completions, ..SimOptions::seeded(seed) });
    let (a, b) = joined(&net, config);
    net.settle();
    let (mut ends, mut rng, mut incarnation) = ([End::new(a), End::new(b)], Rng(seed), 7);
    let mut delivered = 0;
    for statement in 1..=STATEMENTS {
        ends.iter_mut().for_each(|end| end.begin(statement));
        let sent = [rng.below(12), rng.below(12)];
        // Up to so many of the last ones come late; the ring has room for them.
        let needed = [sent[1] - rng.below(4).min(sent[1]), sent[0] - rng.below(4).min(sent[0])];
        let ended = |ends: &[End; 2]| {
            (0..2).all(|at| ends[at].received >= needed[at] && ends[at].sent == sent[at])
        };
        let mut cut = false;
        for turn in 0.. {
            assert!(turn < 200_000, "{publish:?} {seed} {statement}: no end");
            let stand = (0..2).all(|at| ends[at].act(statement, sent[at], &mut rng).is_ok());
            for _ in 0..rng.below(4) {
                net.step();
            }
            if !stand {
                incarnation += 1;
                renew(&net, &mut ends, incarnation);
                cut = false;
            } else if ended(&ends) {
                break;
            } else if !cut && rng.below(40) == 0 {
                net.cut(0, 1);
                cut = true;
            }
        }
        delivered += ends[0].received + ends[1].received;
        // Between two statements nobody polls, and a connection may break.
        for end in &mut ends {
            end.link.rests();
        }
        if rng.below(6) == 0 {
            net.cut(0, 1);
        }
    }
    for turn in 0.. {
        assert!(turn < 200_000, "{publish:?} {seed}: not at rest");
        let stand = ends.iter_mut().all(|end| {
            end.link.flush();
            end.link.poll().is_ok() && end.link.recv().is_ok()
        });
        net.step();
        if !stand {
            incarnation += 1;
            renew(&net, &mut ends, incarnation);
        } else if ends.iter_mut().all(|end| end.link.rests() && end.link.stats().in_flight == 0) {
            break;
        }
    }
    let stats = ends.map(|end| end.link.stats());
    let sum = |of: fn(&channel::LinkStats) -> u64| stats.iter().map(of).sum::<u64>();
    assert_eq!(sum(|of| of.frames_sent), sum(|of| of.frames_received), "each was taken once");
    let dropped = sum(|of| of.frames_dropped);
    assert!(sum(|of| of.frames_received) >= delivered + dropped);
    (dropped, sum(|of| of.frames_again))
}

fn joined(net: &SimNet, config: RingConfig) -> (Link, Link) {
    let [a, b]: [Arc<dyn Fabric>; 2] = [net.fabric(0), net.fabric(1)];
    links(&a, &b, false, config)
}

#[test]
fn frames_of_a_former_statement_are_dropped_however_they_come() {
    for publish in MODES {
        for transfer in [Transfer::Write, Transfer::Read, Transfer::Region] {
            let config = RingConfig { transfer, ..small(true) };
            let each = (0..SEEDS).map(|seed| session(publish, config, seed));
            let (dropped, again) = each.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
            println!("{publish:?} {transfer:?}: {dropped} dropped, {again} again");
            assert!(dropped > 100 && again > 100, "{publish:?}: {dropped} dropped, {again} again");
        }
    }
}

#[test]
fn a_payload_that_lives_keeps_a_link_from_the_next_statement() {
    let net = SimNet::new(SimOptions::seeded(3));
    let (mut a, mut b) = joined(&net, small(false));
    let unattached = KeptLinks::default();
    assert!(!unattached.whole && a.rests() && b.rests());
    net.settle();
    a.reserve(Class::Data).expect("a fresh ring").publish(Header::default(), 8);
    a.flush();
    net.settle();
    b.poll().expect("an honest fabric");
    let frame = b.recv().expect("an honest fabric").expect("a frame");
    assert!(a.rests() && !b.rests());
    drop(frame);
    assert!(b.rests());
    net.cut(0, 1);
    net.settle();
    a.poll().expect_err("the connection is cut");
    assert!(!a.rests(), "it has failed");
    assert!(b.rests(), "nobody has looked");
}

#[test]
fn a_frame_of_a_statement_that_has_not_begun_is_refused() {
    for publish in MODES {
        let net = SimNet::new(SimOptions { publish, ..SimOptions::seeded(4) });
        let (mut a, mut b) = joined(&net, small(false));
        net.settle();
        a.begin(StatementNumber::new(2)).expect("a link that stands");
        b.begin(StatementNumber::new(1)).expect("a link that stands");
        a.reserve(Class::Data).expect("a fresh ring").publish(Header::default(), 8);
        a.flush();
        net.settle();
        match b.poll() {
            Err(LinkError::Protocol { detail }) => {
                assert!(detail.contains("statement 2 in statement 1"), "{detail}");
            }
            other => panic!("{publish:?}: {other:?}"),
        }
        b.begin(StatementNumber::new(2)).expect_err("it is of no more use");
    }
}
