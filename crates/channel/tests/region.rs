//! One source and several that read its region (W3), over the hostile simulator: each payload is
//! written once, read by all, and its slot is used again when the slowest has read it.

#[path = "bed/ends.rs"]
mod ends;

use std::collections::VecDeque;
use std::sync::Arc;

use channel::{
    Class, Header, Link, LinkError, Payload, RegionFrame, RingConfig, SharedRegion, Transfer,
};
use fabric::sim::{SimNet, SimOptions};
use fabric::{Fabric, Publish};

const MODES: [Publish; 3] = [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted];
const SEEDS: u64 = 20;
const FRAMES: u64 = 60;
const SLOTS: u32 = 3;

/// A generator that needs no crate.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }
}

fn config() -> RingConfig {
    RingConfig { transfer: Transfer::Region, ..ends::small(true) }
}

/// The bytes of a frame.
fn payload_of(number: u64) -> Vec<u8> {
    let len = 1 + (number * 131) % 960;
    (0..len).map(|at| (number * 7 + at) as u8).collect()
}

/// The source's end of a link with one reader, and the reader's.
struct Pair {
    node: u32,
    incarnation: u32,
    /// Frames that the reader is still to be told of.
    queue: VecDeque<(u64, RegionFrame)>,
    source: Link,
    reader: Link,
    /// Frames that it has received, and some of their payloads.
    received: u64,
    held: Vec<(u64, Payload)>,
}

struct Bed {
    net: SimNet,
    region: Arc<SharedRegion>,
    pairs: Vec<Pair>,
    rng: Rng,
    published: u64,
}

impl Bed {
    fn new(publish: Publish, seed: u64, readers: u32, slots: u32) -> Self {
        let ordered_completions = seed.is_multiple_of(2);
        let options = SimOptions { publish, ordered_completions, ..SimOptions::seeded(seed) };
        let net = SimNet::new(SimOptions { poison: seed.is_multiple_of(3), ..options });
        let fabric: Arc<dyn Fabric> = net.fabric(0);
        let region = SharedRegion::new(&fabric, &config(), slots).expect("a region");
        let pair = |node: u32| {
            let (here, there) = ends::endpoints(&*fabric, &*net.fabric(node), false);
            let source = Link::new(&*fabric, here, config(), 1).expect("a link");
            let reader = Link::new(&*net.fabric(node), there, config(), 1).expect("a link");
            let source = source.lending(region.clone());
            let mut pair = Pair {
                node,
                incarnation: 1,
                queue: VecDeque::new(),
                source,
                reader,
                received: 0,
                held: vec![],
            };
            pair.attach();
            pair
        };
        let pairs = (1..=readers).map(pair).collect();
        net.settle();
        Self { pairs, region, net, rng: Rng(seed), published: 0 }
    }

    /// Writes the next frame into the region, if it has room, and queues it for all.
    fn write(&mut self) -> bool {
        let Some(mut writer) = self.region.reserve() else { return false };
        let payload = payload_of(self.published);
        writer.payload_mut()[..payload.len()].copy_from_slice(&payload);
        let frame = writer.seal(payload.len());
        assert_eq!(frame.as_ref(), payload);
        for pair in &mut self.pairs {
            pair.queue.push_back((self.published, frame.clone()));
        }
        self.published += 1;
        true
    }

    /// Everybody does something.
    fn turn(&mut self) -> Result<(), LinkError> {
        if self.published < FRAMES && self.rng.below(2) == 0 {
            self.write();
        }
        for pair in &mut self.pairs {
            pair.act(&mut self.rng)?;
        }
        for _ in 0..self.rng.below(5) {
            self.net.step();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.published == FRAMES
            && self.pairs.iter().all(|pair| pair.received == FRAMES && pair.held.is_empty())
    }
}

impl Pair {
    fn attach(&mut self) {
        let (of_source, of_reader) = (self.source.descriptor(), self.reader.descriptor());
        self.source.attach(&of_reader).expect("equal ends");
        self.reader.attach(&of_source).expect("equal ends");
    }

    fn act(&mut self, rng: &mut Rng) -> Result<(), LinkError> {
        if let Some((number, frame)) = self.queue.front()
            && let Some(slot) = self.source.reserve(Class::Data)
        {
            slot.lend(Header { words: [*number, 0, 0], ..Header::default() }, frame);
            self.queue.pop_front();
        }
        if rng.below(2) == 0 {
            self.source.flush();
        }
        self.source.poll()?;
        if rng.below(3) > 0 {
            self.reader.poll()?;
            while let Some(frame) = self.reader.recv()? {
                assert_eq!(frame.header.words[0], self.received, "in order, each once");
                assert_eq!(frame.payload.as_ref(), payload_of(self.received));
                self.held.push((self.received, frame.payload));
                self.received += 1;
            }
        }
        if rng.below(2) == 0 {
            let at = rng.below(self.held.len().max(1) as u64) as usize;
            if let Some((number, payload)) = self.held.get(at) {
                assert_eq!(payload.as_ref(), payload_of(*number), "it changed while it was held");
                self.held.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Both ends go on over another connection.
    fn renew(&mut self, net: &SimNet) {
        net.heal(0, self.node);
        self.incarnation += 1;
        let fabrics = [net.fabric(0), net.fabric(self.node)];
        let (here, there) = ends::endpoints(&*fabrics[0], &*fabrics[1], false);
        self.source.renew(&*fabrics[0], here, self.incarnation).expect("of the same kind");
        self.reader.renew(&*fabrics[1], there, self.incarnation).expect("of the same kind");
        self.attach();
    }
}

#[test]
fn a_payload_is_written_once_and_read_by_all() {
    for publish in MODES {
        for seed in 0..SEEDS {
            let mut bed = Bed::new(publish, seed, 1 + seed as u32 % 4, SLOTS);
            for turn in 0.. {
                assert!(turn < 200_000, "{publish:?} {seed}: no end");
                bed.turn().unwrap_or_else(|error| panic!("{publish:?} {seed}: {error}"));
                if bed.is_done() {
                    break;
                }
            }
            for pair in &bed.pairs {
                let (source, reader) = (pair.source.stats(), pair.reader.stats());
                assert_eq!((source.frames_lent, reader.reads), (FRAMES, FRAMES));
                // For each reader a line that names the payload is written, and the trailer.
                assert_eq!(source.ring_bytes_sent, FRAMES * 128);
            }
        }
    }
}

#[test]
fn connections_that_break_lose_and_double_nothing() {
    let (mut cuts, mut again) = (0, 0);
    for publish in MODES {
        for seed in 0..SEEDS {
            let mut bed = Bed::new(publish, seed, 1 + seed as u32 % 3, SLOTS);
            for turn in 0.. {
                assert!(turn < 200_000, "{publish:?} {seed}: no end");
                if bed.turn().is_err() {
                    let net = &bed.net;
                    bed.pairs.iter_mut().for_each(|pair| pair.renew(net));
                } else if bed.is_done() {
                    break;
                } else if bed.rng.below(40) == 0 {
                    let node = 1 + bed.rng.below(bed.pairs.len() as u64) as u32;
                    bed.net.cut(0, node);
                    cuts += 1;
                }
            }
            again += bed.pairs.iter().map(|pair| pair.source.stats().frames_again).sum::<u64>();
            let frames = |pair: &Pair| pair.reader.stats().frames_received;
            assert!(bed.pairs.iter().all(|pair| frames(pair) == FRAMES));
        }
    }
    println!("{cuts} cuts, {again} frames again");
    assert!(cuts > 60 && again > 60, "{cuts} cuts, {again} frames again");
}

/// Lets the readers but the first do all that they can.
fn settle_others(bed: &mut Bed) {
    for _ in 0..20 {
        for (at, pair) in bed.pairs.iter_mut().enumerate() {
            while let Some((number, frame)) = pair.queue.front()
                && let Some(slot) = pair.source.reserve(Class::Data)
            {
                slot.lend(Header { words: [*number, 0, 0], ..Header::default() }, frame);
                pair.queue.pop_front();
            }
            pair.source.flush();
            pair.source.poll().expect("an honest fabric");
            if at > 0 {
                pair.reader.poll().expect("an honest fabric");
                while let Some(frame) = pair.reader.recv().expect("an honest fabric") {
                    assert_eq!(frame.payload.as_ref(), payload_of(pair.received));
                    pair.received += 1;
                }
                pair.reader.poll().expect("an honest fabric");
            }
        }
        bed.net.settle();
    }
}

#[test]
fn the_slowest_reader_holds_the_region_until_it_reads_or_leaves() {
    for publish in MODES {
        let mut bed = Bed::new(publish, 4, 3, 2);
        assert!(bed.write() && bed.write());
        assert!(!bed.write(), "nobody has read");
        settle_others(&mut bed);
        assert_eq!((bed.pairs[1].received, bed.pairs[2].received), (2, 2));
        assert!(!bed.write(), "{publish:?}: the first reader has not read");
        assert!(!bed.pairs[0].source.is_drained() && bed.pairs[1].source.is_drained());
        let slow = bed.pairs.remove(0);
        drop(slow.queue);
        let mut source = slow.source;
        source.close();
        assert_eq!(bed.region.free(), 2, "{publish:?}: who has left is not waited for");
        bed.pairs.insert(0, Pair { queue: VecDeque::new(), source, ..slow });
        assert!(bed.pairs[0].source.poll().is_err());
    }
}

#[test]
fn a_region_that_cannot_be_is_refused() {
    let net = SimNet::new(SimOptions::seeded(1));
    let fabric: Arc<dyn Fabric> = net.fabric(0);
    for slots in [0, 65] {
        let error = SharedRegion::new(&fabric, &config(), slots).expect_err("out of bounds");
        assert!(error.to_string().contains("1 to 64 slots"), "{error}");
    }
    let config = RingConfig { slot_bytes: 8 << 20, ..config() };
    let error = SharedRegion::new(&fabric, &config, 2).expect_err("a READ is not so long");
    assert!(error.to_string().contains("slot_bytes is 8388608"), "{error}");
}

#[test]
fn only_an_end_that_is_configured_for_it_fits() {
    let net = SimNet::new(SimOptions::seeded(1));
    let (here, there) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
    let mut a = Link::new(&*net.fabric(0), here, config(), 1).expect("a link");
    let b = Link::new(&*net.fabric(1), there, ends::small(true), 1).expect("a link");
    let error = a.attach(&b.descriptor()).expect_err("it would not read");
    assert!(error.to_string().contains("only one has a region"), "{error}");
}
