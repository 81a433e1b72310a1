//! Payloads by the network's own multicast: the rows are those by the tree, whatever the network
//! makes of datagrams.

use fabric::PostError;

use super::*;

/// Of runs under chance.
const SEEDS: std::ops::Range<u64> = 0..60;

/// Numbers by a seed.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    /// True so many times of a thousand.
    pub(super) fn is(&mut self, of_thousand: u64) -> bool {
        of_thousand > 0 && self.below(1000) < of_thousand
    }
}

/// A member whose device has no room at times.
pub(super) struct Choking {
    pub(super) member: Box<dyn GroupMember>,
    pub(super) chance: Chance,
    pub(super) chokes: u64,
}

impl GroupMember for Choking {
    fn datagram_max(&self) -> usize {
        self.member.datagram_max()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        if self.chance.is(self.chokes) { Err(PostError::Full) } else { self.member.send(bytes) }
    }

    fn poll(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
        self.member.poll(take)
    }
}

pub(super) fn by_network(tree: Shape) -> Casting {
    Casting { multicast: MulticastChoice::Hardware, ..fixed(tree) }
}

/// What does not land is fetched.
#[test]
fn rows_by_the_networks_multicast_are_those_by_the_tree() {
    let calm = Datagrams { lost: 0, repeated: 0, ..Datagrams::default() };
    let lossy = Datagrams { lost: 400, repeated: 200, ..Datagrams::default() };
    let dead = Datagrams { lost: 1000, ..Datagrams::default() };
    let mut seed = 90;
    for (nodes, workers) in [(1, 2), (2, 1), (3, 2), (5, 1)] {
        for (tree, text_bytes) in
            [(Shape::Sequential, 5), (Shape::Capped(1), 60), (Shape::Capped(2), 3_000)]
        {
            for datagrams in [&calm, &Datagrams::default(), &lossy, &dead] {
                seed += 1;
                let (casting, datagrams) = (by_network(tree), datagrams.clone());
                let what = format!("{nodes}x{workers} {tree:?} {text_bytes} {datagrams:?}");
                let lost = datagrams.lost;
                let bed = Bed {
                    nodes,
                    workers,
                    seed,
                    casting,
                    text_bytes,
                    datagrams,
                    slot_bytes: 4_096,
                    rows: 30,
                    ..Bed::default()
                };
                let ran = bed.run().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(ran.pairs == bed.expected(), "{what}");
                let flown = ran.sum(|metrics| &metrics.broadcast_multicast);
                let landed = ran.sum(|metrics| &metrics.broadcast_multicast_received);
                let fetched = ran.sum(|metrics| &metrics.broadcast_fetched);
                assert_eq!(flown > 0, nodes > 1, "{what}");
                assert_eq!(landed + fetched, flown * u64::from(nodes - 1), "{what}");
                assert!(lost > 0 || fetched == 0, "{what}: {fetched} fetched");
                assert!(lost < 1000 || landed == 0, "{what}: {landed} landed");
            }
        }
    }
}

#[test]
fn a_network_that_loses_too_much_is_left_for_the_tree() {
    let run = |lost| {
        let casting = Casting { queue_frames: 8, ..Casting::default() };
        let datagrams = Datagrams { lost, ..Datagrams::default() };
        let bed = Bed {
            nodes: 5,
            workers: 1,
            casting,
            datagrams,
            flows: 1,
            text_bytes: 1_500,
            slot_bytes: 16_384,
            rows: 600,
            ..Bed::default()
        };
        let ran = bed.run().unwrap();
        assert!(ran.pairs == bed.expected(), "{lost}");
        let sum = |counter: fn(&Metrics) -> &AtomicU64| ran.sum(counter);
        (
            sum(|m| &m.broadcast_multicast),
            sum(|m| &m.broadcast_multicast_received),
            sum(|m| &m.broadcast_fetched),
        )
    };
    let (flown, landed, fetched) = run(0);
    assert!(flown > 50 && landed == 4 * flown && fetched == 0, "{flown}, {landed}, {fetched}");
    let (little, landed, fetched) = run(1000);
    assert!(little > 16 && little < flown / 2 && landed == 0, "{little} of {flown}");
    assert_eq!(fetched, 4 * little);
}

/// Loss, repetition, delays and sleep of every degree, with little room, whichever tree there is,
/// also one that changes: no run stands still.
#[test]
fn no_chance_makes_a_run_stand_still() {
    let (mut landed, mut fetched, mut changes) = (0, 0, 0);
    for seed in SEEDS {
        let mut chance = Chance::new(seed);
        let mut of = |values: &[u64]| values[chance.below(values.len() as u64) as usize];
        let datagrams = Datagrams {
            bytes_max: of(&[64, 200, 1024]) as usize,
            lost: of(&[0, 10, 100, 500]) as u32,
            repeated: of(&[0, 100]) as u32,
            delay_ns: 500..of(&[1_000, 50_000, 3_000_000]),
            waiting_max: of(&[2, 64]) as usize,
        };
        let trees = [
            TreeChoice::Adaptive,
            TreeChoice::Fixed(Shape::Sequential),
            TreeChoice::Fixed(Shape::Capped(1)),
        ];
        let casting = Casting {
            tree: trees[of(&[0, 1, 2]) as usize],
            multicast: MulticastChoice::Hardware,
            queue_frames: of(&[1, 3, 64]) as u32,
            ..Casting::default()
        };
        let bed = Bed {
            nodes: of(&[2, 3, 4]) as u32,
            workers: of(&[1, 2]) as u32,
            seed,
            casting,
            slots: of(&[3, 4, 8]) as u32,
            slot_bytes: of(&[512, 4_096]) as u32,
            text_bytes: of(&[5, 60, 900]) as usize,
            rows: of(&[20, 80, 500]) as i64,
            flows: of(&[1, 3]) as usize,
            ticking: of(&[0, 1]) == 1,
            dozes: of(&[0, 5, 100]),
            chokes: of(&[0, 100, 700]),
            datagrams,
            ..Bed::default()
        };
        let ran = bed.run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(ran.pairs == bed.expected(), "seed {seed}");
        landed += ran.sum(|metrics| &metrics.broadcast_multicast_received);
        fetched += ran.sum(|metrics| &metrics.broadcast_fetched);
        changes += ran.sum(|metrics| &metrics.tree_changes);
    }
    assert!(landed > 0 && fetched > 0 && changes > 0, "{landed}, {fetched}, {changes}");
}
