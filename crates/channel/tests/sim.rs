//! The ring over the simulated fabric, hostile by default, in each publish mode; and what happens
//! where the fabric breaks a promise that the ring relies on.

#[path = "bed/ends.rs"]
mod ends;
#[path = "bed/load.rs"]
mod load;

use std::sync::Arc;

use channel::{Class, Header, Link, LinkError, RingConfig, Transfer, Tuning};
use ends::small;
use fabric::shared::{Network, SharedFabric};
use fabric::sim::{Guarantees, SimNet, SimOptions};
use fabric::{Fabric, Publish};
use load::{Load, Rng, Side, links};

const MODES: [Publish; 3] = [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted];
const SEEDS: u64 = 20;

fn options(publish: Publish, seed: u64) -> SimOptions {
    SimOptions { publish, ordered_completions: seed.is_multiple_of(2), ..SimOptions::seeded(seed) }
}

fn pair(net: &SimNet, config: RingConfig) -> (Link, Link) {
    let [a, b]: [Arc<dyn Fabric>; 2] = [net.fabric(0), net.fabric(1)];
    let ends = links(&a, &b, false, config);
    // Each end learns of the other's receives.
    net.settle();
    ends
}

/// Runs both ends to their end.
fn run(
    net: &SimNet,
    config: RingConfig,
    loads: [Load; 2],
    seed: u64,
) -> Result<(Side, Side), String> {
    let (a, b) = pair(net, config);
    let mut a = Side::new(a, loads[0], seed, 1);
    let mut b = Side::new(b, loads[1], seed, 2);
    for turn in 0..200_000 {
        a.act()?;
        b.act()?;
        for _ in 0..turn % 5 {
            net.step();
        }
        if a.is_done(&loads[1]) && b.is_done(&loads[0]) {
            return Ok((a, b));
        }
    }
    Err(format!("no end at {} ns: {:#?} {:#?}", net.now_ns(), a.link.stats(), b.link.stats()))
}

fn one_way(frames: u64) -> [Load; 2] {
    let idle = Load { frames: 0, control_every: 0, hold: 2 };
    [Load { frames, ..idle }, idle]
}

fn both_ways(frames: u64) -> [Load; 2] {
    [Load { frames, control_every: 7, hold: 3 }, Load { frames, control_every: 3, hold: 1 }]
}

#[test]
fn frames_arrive_whole_once_and_in_order() {
    for publish in MODES {
        for seed in 0..SEEDS {
            let net = SimNet::new(options(publish, seed));
            let (a, b) = run(&net, small(false), one_way(100), seed)
                .unwrap_or_else(|e| panic!("{publish:?} {seed}: {e}"));
            let (a, b) = (a.link.stats(), b.link.stats());
            assert_eq!((a.frames_sent, a.writes, b.frames_received), (100, 100, 100));
            assert_eq!(a.payload_bytes_sent, b.payload_bytes_received);
            assert!(b.credit_notices_sent > 0 && b.held == 0);
            assert!(a.ring_bytes_sent >= a.payload_bytes_sent + 100 * 64);
        }
    }
}

#[test]
fn load_both_ways_neither_blocks_nor_mixes() {
    for publish in MODES {
        for seed in 0..SEEDS {
            let net = SimNet::new(SimOptions { poison: seed % 3 == 0, ..options(publish, seed) });
            run(&net, small(seed % 2 == 0), both_ways(100), seed)
                .unwrap_or_else(|e| panic!("{publish:?} {seed}: {e}"));
        }
    }
}

fn reading(payload_crc: bool) -> RingConfig {
    RingConfig { transfer: Transfer::Read, ..small(payload_crc) }
}

#[test]
fn frames_that_are_read_arrive_whole_once_and_in_order() {
    for publish in MODES {
        for seed in 0..SEEDS {
            let net = SimNet::new(SimOptions { poison: seed % 3 == 0, ..options(publish, seed) });
            let (a, b) = run(&net, reading(seed % 2 == 0), both_ways(100), seed)
                .unwrap_or_else(|e| panic!("{publish:?} {seed}: {e}"));
            for (of, to) in [(&a, &b), (&b, &a)] {
                let (of, to) = (of.link.stats(), to.link.stats());
                assert_eq!((of.frames_sent, of.writes), (to.frames_received, 0));
                assert_eq!(of.payload_bytes_sent, to.payload_bytes_received);
                assert!(to.reads >= to.frames_received && to.reads <= 2 * to.frames_received);
                assert!(to.ring_bytes_read >= of.payload_bytes_sent + 64 * of.frames_sent);
                assert_eq!(to.held, 0);
            }
        }
    }
}

fn lending(payload_crc: bool) -> RingConfig {
    RingConfig { transfer: Transfer::Region, ..small(payload_crc) }
}

#[test]
fn payloads_that_stay_in_a_region_arrive_whole_once_and_in_order() {
    for publish in MODES {
        for seed in 0..SEEDS {
            let net = SimNet::new(SimOptions { poison: seed % 3 == 0, ..options(publish, seed) });
            let (a, b) = run(&net, lending(seed % 2 == 0), both_ways(100), seed)
                .unwrap_or_else(|e| panic!("{publish:?} {seed}: {e}"));
            for (of, to) in [(&a, &b), (&b, &a)] {
                let (of, to) = (of.link.stats(), to.link.stats());
                assert_eq!(of.frames_sent, to.frames_received);
                assert_eq!(of.payload_bytes_sent, to.payload_bytes_received);
                assert_eq!((of.frames_lent, to.held), (to.reads, 0));
                assert!(of.frames_lent > 40 && of.frames_lent < of.frames_sent);
            }
        }
    }
}

#[test]
fn lending_works_at_the_bounds_and_in_a_small_queue() {
    for config in [
        RingConfig { slots: 2, control_slots: 1, ..lending(true) },
        RingConfig { slots: 64, control_slots: 2, ..lending(true) },
        RingConfig { slots: 3, slot_bytes: 128, control_slots: 1, ..lending(true) },
    ] {
        for publish in MODES {
            for seed in 0..8 {
                let loads = both_ways(150).map(|load| Load { hold: load.hold.min(1), ..load });
                let net = SimNet::new(SimOptions { max_ops: 4, ..options(publish, seed) });
                run(&net, config, loads, seed)
                    .unwrap_or_else(|e| panic!("{config:?} {publish:?} {seed}: {e}"));
            }
        }
    }
}

#[test]
fn reading_works_at_the_bounds_and_in_a_small_queue() {
    for config in [
        RingConfig { slots: 2, control_slots: 1, ..reading(true) },
        RingConfig { slots: 64, control_slots: 2, ..reading(true) },
        RingConfig { slots: 3, slot_bytes: 128, control_slots: 1, ..reading(true) },
    ] {
        for seed in 0..8 {
            let loads = both_ways(150).map(|load| Load { hold: load.hold.min(1), ..load });
            let net = SimNet::new(SimOptions { max_ops: 4, ..options(Publish::Notify, seed) });
            run(&net, config, loads, seed).unwrap_or_else(|e| panic!("{config:?} {seed}: {e}"));
        }
    }
}

/// Frames lie in the memory of who announces them: there is no write that a notice could overtake.
#[test]
fn reading_needs_no_notice_that_makes_writes_visible() {
    let noticed = (0..SEEDS).filter(|&seed| {
        let mut options = options(Publish::Notify, seed);
        options.keep.notify_releases = false;
        options.keep.in_order_poll = false;
        run(&SimNet::new(options), reading(true), both_ways(60), seed).is_err()
    });
    assert_eq!(noticed.count(), 0);
}

#[test]
fn who_was_read_is_drained_once_the_reader_says_so() {
    let net = SimNet::new(options(Publish::Notify, 4));
    let (mut a, mut b) = pair(&net, reading(false));
    assert!(send(&mut a, Class::Data, 3) && send(&mut a, Class::Control, 1));
    a.flush();
    net.settle();
    a.poll().expect("an honest fabric");
    assert!(!a.is_drained(), "nobody has read yet");
    settle(&net, &mut [&mut a, &mut b]);
    assert!(!a.is_drained(), "it is in use");
    let kinds: Vec<u8> =
        std::iter::from_fn(|| b.recv().expect("honest")).map(|f| f.header.kind).collect();
    assert_eq!(kinds, [3, 1]);
    settle(&net, &mut [&mut a, &mut b]);
    assert!(a.is_drained());
}

#[test]
fn who_writes_and_who_reads_do_not_fit() {
    let net = SimNet::new(options(Publish::Notify, 7));
    let (here, there) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
    let mut a = Link::new(&*net.fabric(0), here, small(false), 1).expect("a link");
    let b = Link::new(&*net.fabric(1), there, reading(false), 1).expect("a link");
    let error = a.attach(&b.descriptor()).expect_err("one of them has to move frames");
    assert!(error.to_string().contains("one end writes"), "{error}");
}

#[test]
fn dimensions_at_their_bounds_work() {
    let base = small(true);
    for config in [
        RingConfig { slots: 2, control_slots: 1, ..base },
        RingConfig { slots: 8, control_slots: 7, ..base },
        RingConfig { slots: 64, control_slots: 2, ..base },
        RingConfig { slots: 3, slot_bytes: 128, control_slots: 1, ..base },
    ] {
        for publish in MODES {
            for seed in 0..4 {
                let loads = both_ways(150).map(|load| Load { hold: load.hold.min(1), ..load });
                run(&SimNet::new(options(publish, seed)), config, loads, seed)
                    .unwrap_or_else(|e| panic!("{config:?} {publish:?} {seed}: {e}"));
            }
        }
    }
}

#[test]
fn a_small_queue_is_never_overrun() {
    for publish in MODES {
        for seed in 0..8 {
            let net = SimNet::new(SimOptions { max_ops: 4, ..options(publish, seed) });
            run(&net, small(false), both_ways(100), seed)
                .unwrap_or_else(|e| panic!("{publish:?} {seed}: {e}"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for publish in MODES {
        let trace = |seed| {
            let net = SimNet::new(options(publish, seed));
            run(&net, small(true), both_ways(50), seed).map(|_| net.trace_hash())
        };
        assert_eq!(trace(3), trace(3));
        assert_ne!(trace(3), trace(4));
    }
}

/// Lets everything that is under way arrive.
fn settle(net: &SimNet, ends: &mut [&mut Link]) {
    for _ in 0..4 {
        for end in ends.iter_mut() {
            end.flush();
            end.poll().expect("an honest fabric");
        }
        net.settle();
    }
    for end in ends.iter_mut() {
        end.poll().expect("an honest fabric");
    }
}

fn send(link: &mut Link, class: Class, kind: u8) -> bool {
    let Some(slot) = link.reserve(class) else { return false };
    slot.publish(Header { kind, ..Header::default() }, 0);
    true
}

#[test]
fn control_finds_a_slot_while_data_is_stalled() {
    for publish in MODES {
        let net = SimNet::new(options(publish, 1));
        let config = RingConfig { slots: 6, control_slots: 2, ..small(false) };
        let (mut a, mut b) = pair(&net, config);
        while send(&mut a, Class::Data, 0) {}
        settle(&net, &mut [&mut a, &mut b]);
        assert!(!send(&mut a, Class::Data, 0), "nothing was released");
        assert!(send(&mut a, Class::Control, 1) && send(&mut a, Class::Control, 1));
        assert!(!send(&mut a, Class::Control, 1), "two are reserved");
        settle(&net, &mut [&mut a, &mut b]);
        assert_eq!(b.stats().held, 6, "a held ring shows in the figures");
        let kinds: Vec<u8> =
            std::iter::from_fn(|| b.recv().expect("honest")).map(|f| f.header.kind).collect();
        assert_eq!(kinds, [0, 0, 0, 0, 1, 1]);
        settle(&net, &mut [&mut a, &mut b]);
        assert_eq!((b.stats().held, a.stats().in_flight), (0, 0));
        assert!(send(&mut a, Class::Data, 0));
    }
}

#[test]
fn credit_follows_the_last_drop_and_not_the_arrival() {
    for publish in MODES {
        let net = SimNet::new(options(publish, 2));
        let (mut a, mut b) = pair(&net, small(false));
        while send(&mut a, Class::Control, 0) {}
        settle(&net, &mut [&mut a, &mut b]);
        let mut frames: Vec<_> = std::iter::from_fn(|| b.recv().expect("honest")).collect();
        assert_eq!(frames.len(), 4);
        let oldest = frames.remove(0);
        let others = std::thread::spawn(move || drop(frames));
        others.join().expect("dropped on another thread");
        settle(&net, &mut [&mut a, &mut b]);
        assert_eq!((b.stats().held, a.stats().in_flight), (1, 4), "the oldest is still in use");
        drop(oldest);
        settle(&net, &mut [&mut a, &mut b]);
        assert_eq!((b.stats().held, a.stats().in_flight), (0, 0));
    }
}

#[test]
fn a_frame_that_is_not_published_is_not_sent() {
    let net = SimNet::new(options(Publish::Notify, 3));
    let (mut a, mut b) = pair(&net, small(false));
    a.reserve(Class::Data).expect("a fresh ring").payload_mut().fill(0xff);
    settle(&net, &mut [&mut a, &mut b]);
    assert!(b.recv().expect("honest").is_none());
    assert!(send(&mut a, Class::Data, 9));
    settle(&net, &mut [&mut a, &mut b]);
    assert_eq!(b.recv().expect("honest").expect("a frame").header.kind, 9);
    assert_eq!(net.stats().failures, 0);
}

#[test]
fn a_control_frame_tells_when_all_before_it_is_out() {
    for publish in MODES {
        let net = SimNet::new(options(publish, 4));
        let (mut a, mut b) = pair(&net, RingConfig { slots: 16, ..small(false) });
        (0..3).for_each(|_| assert!(send(&mut a, Class::Data, 0)));
        assert!(send(&mut a, Class::Control, 1));
        assert!(!a.is_drained());
        settle(&net, &mut [&mut a, &mut b]);
        assert!(a.is_drained(), "{publish:?}");
    }
}

#[test]
fn payloads_outlive_their_link() {
    let net = SimNet::new(options(Publish::Notify, 4));
    let (mut a, mut b) = pair(&net, small(false));
    let mut slot = a.reserve(Class::Data).expect("a fresh ring");
    slot.payload_mut()[..5].copy_from_slice(b"hello");
    slot.publish(Header::default(), 5);
    settle(&net, &mut [&mut a, &mut b]);
    let frame = b.recv().expect("honest").expect("a frame");
    drop((a, b));
    net.settle();
    assert_eq!(frame.payload.as_ref(), b"hello");
}

#[test]
fn one_notice_a_flush_and_none_where_slots_are_polled() {
    for (publish, notices) in MODES.into_iter().zip([0, 1, 3]) {
        let net = SimNet::new(options(publish, 5));
        let (mut a, _b) = pair(&net, small(false));
        (0..3).for_each(|_| assert!(send(&mut a, Class::Data, 0)));
        a.flush();
        a.flush();
        assert_eq!((a.stats().writes, a.stats().notices_sent), (3, notices), "{publish:?}");
    }
}

#[test]
fn a_sleeping_consumer_is_told_once() {
    let net = SimNet::new(options(Publish::InOrderPoll, 6));
    let (mut a, mut b) = pair(&net, small(false));
    b.arm();
    b.arm();
    assert_eq!(b.stats().sleep_notices_sent, 1, "the peer knows already");
    settle(&net, &mut [&mut a]);
    for _ in 0..2 {
        assert!(send(&mut a, Class::Data, 0));
        a.flush();
    }
    assert_eq!(a.stats().notices_sent, 1);
    // A frame that crosses the next announcement of sleep is announced as soon as that arrives.
    settle(&net, &mut [&mut b]);
    while b.recv().expect("honest").is_some() {}
    b.arm();
    assert!(send(&mut a, Class::Data, 0));
    a.flush();
    assert_eq!(a.stats().notices_sent, 1);
    net.settle();
    a.poll().expect("honest");
    assert_eq!(a.stats().notices_sent, 2);
}

#[test]
fn another_incarnation_is_refused() {
    let net = SimNet::new(options(Publish::Notify, 7));
    let (here, there) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
    let mut a = Link::new(&*net.fabric(0), here, small(false), 1).expect("a link");
    let b = Link::new(&*net.fabric(1), there, small(false), 2).expect("a link");
    match a.attach(&b.descriptor()) {
        Err(LinkError::Incarnation { ours: 1, theirs: 2 }) => {}
        other => panic!("{other:?}"),
    }
    assert!(a.reserve(Class::Control).is_none(), "not attached");
}

#[test]
fn a_cut_link_gives_what_arrived_and_then_its_error() {
    for publish in MODES {
        let net = SimNet::new(options(publish, 8));
        let (mut a, mut b) = pair(&net, small(false));
        assert!(send(&mut a, Class::Data, 1));
        settle(&net, &mut [&mut a, &mut b]);
        net.cut(0, 1);
        net.settle();
        b.poll().expect_err("the link is cut");
        assert_eq!(b.recv().expect("it had arrived").expect("a frame").header.kind, 1);
        assert!(matches!(b.recv(), Err(LinkError::Disconnected { .. })));
        assert!(b.reserve(Class::Control).is_none());
        a.close();
        assert!(a.poll().is_err());
    }
}

/// Whether the link of an end still stands.
fn stands(side: &mut Side) -> Result<bool, String> {
    match side.act() {
        Err(error) if error.starts_with("the connection ended") => Ok(false),
        other => other.map(|()| true),
    }
}

/// Runs both ends to their end over connections that break; gives how many did.
fn run_over_cuts(
    net: &SimNet,
    config: RingConfig,
    [a, b]: &mut [Side; 2],
    rng: &mut Rng,
) -> Result<u32, String> {
    let (mut cuts, mut timeout) = (0, 0);
    for _ in 0..200_000 {
        let both = [stands(a)?, stands(b)?];
        for _ in 0..rng.below(5) {
            net.step();
        }
        if a.is_done(&b.load) && b.is_done(&a.load) {
            return Ok(cuts);
        }
        if both == [true; 2] {
            // Soon enough to break what was just made, at times.
            if rng.below(60) == 0 {
                net.cut(0, 1);
                cuts += 1;
                timeout = rng.below(8);
            }
            continue;
        }
        // One end may notice before the other, and goes on meanwhile.
        if timeout > 0 {
            timeout -= 1;
            continue;
        }
        net.heal(0, 1);
        let (here, there) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
        a.link.renew(&*net.fabric(0), here, 7 + cuts).map_err(|e| e.to_string())?;
        for _ in 0..rng.below(3) {
            stands(a)?;
            stands(b)?;
            net.step();
        }
        b.link.renew(&*net.fabric(1), there, 7 + cuts).map_err(|e| e.to_string())?;
        let (of_a, of_b) = (a.link.descriptor(), b.link.descriptor());
        a.link.attach(&of_b).map_err(|e| e.to_string())?;
        for _ in 0..rng.below(3) {
            stands(a)?;
            stands(b)?;
            net.step();
        }
        b.link.attach(&of_a).map_err(|e| e.to_string())?;
        assert_eq!(config.slots, a.link.config().slots);
    }
    Err(format!("no end at {} ns: {:#?} {:#?}", net.now_ns(), a.link.stats(), b.link.stats()))
}

#[test]
fn a_link_goes_on_over_another_connection_without_loss() {
    for publish in MODES {
        for config in [small(true), reading(true), lending(true), lending(false)] {
            let (mut cuts, mut again, mut sent) = (0, 0, 0);
            for seed in 0..SEEDS {
                let net = SimNet::new(SimOptions { poison: true, ..options(publish, seed) });
                let (a, b) = pair(&net, config);
                let loads = both_ways(150);
                let mut sides = [Side::new(a, loads[0], seed, 1), Side::new(b, loads[1], seed, 2)];
                cuts += run_over_cuts(&net, config, &mut sides, &mut Rng(seed))
                    .unwrap_or_else(|e| panic!("{publish:?} {:?} {seed}: {e}", config.transfer));
                for (of, to) in [(0, 1), (1, 0)] {
                    let (of, to) = (sides[of].link.stats(), sides[to].link.stats());
                    assert_eq!(of.frames_sent, to.frames_received);
                    again += of.frames_again;
                    sent += of.frames_sent;
                }
            }
            println!("{publish:?} {:?}: {cuts} cuts, {again} of {sent} again", config.transfer);
            assert!(cuts > 20 && again > 20, "{cuts} cuts, {again} frames again");
        }
    }
}

/// Runs with a promise broken; counts the seeds in which the link noticed it.
fn noticed(publish: Publish, payload_crc: bool, options: impl Fn(&mut SimOptions)) -> usize {
    (0..SEEDS)
        .filter(|&seed| {
            let mut broken = SimOptions::seeded(seed);
            broken.publish = publish;
            broken.check_sources = false;
            options(&mut broken);
            let net = SimNet::new(broken);
            run(&net, small(payload_crc), both_ways(60), seed).is_err()
        })
        .count()
}

fn without(knob: impl Fn(&mut Guarantees)) -> impl Fn(&mut SimOptions) {
    move |options| knob(&mut options.keep)
}

#[test]
fn polling_needs_the_last_word_to_land_last() {
    let broken = without(|keep| keep.in_order_poll = false);
    assert_eq!(noticed(Publish::InOrderPoll, true, broken), SEEDS as usize);
}

#[test]
fn notices_need_to_make_earlier_writes_visible() {
    for publish in [Publish::Notify, Publish::NotifyCounted] {
        let broken = without(|keep| keep.notify_releases = false);
        assert_eq!(noticed(publish, true, broken), SEEDS as usize, "{publish:?}");
    }
}

#[test]
fn staging_waits_for_its_completion_although_credit_is_there() {
    for publish in MODES {
        let mut late = options(publish, 9);
        late.completion_ns = 500_000..1_000_000;
        assert!(late.check_sources, "the simulator panics when a source changes too early");
        let net = SimNet::new(late);
        let (a, _b) = run(&net, small(false), one_way(100), 9).expect("only slow");
        assert!(a.link.stats().staging_stalls > 0, "{publish:?}");
    }
}

#[test]
fn selective_signalling_needs_ordered_completions() {
    let config = RingConfig { slots: 16, control_slots: 1, ..small(true) };
    let caught = (0..SEEDS).filter(|&seed| {
        let mut options = SimOptions::seeded(seed);
        options.keep.ordered_completions = false;
        // The simulator watches each source from its post to its completion.
        let run = || run(&SimNet::new(options.clone()), config, both_ways(60), seed).is_err();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(true)
    });
    assert!(caught.count() > 0);
}

#[test]
fn commit_words_need_to_land_whole() {
    let broken = without(|keep| {
        keep.whole_words = false;
        keep.in_order_poll = false;
    });
    assert!(noticed(Publish::InOrderPoll, false, broken) > 0);
}

/// Three links of two processes on one connection, moved by whoever polls or by a network of each
/// process: every frame arrives on its own link.
#[test]
fn links_that_share_a_connection_do_not_mix() {
    for (publish, driven) in MODES.iter().flat_map(|mode| [(*mode, false), (*mode, true)]) {
        for seed in 0..SEEDS {
            let net = SimNet::new(options(publish, seed));
            let networks = [0, 1].map(|_| driven.then(|| Network::driven().expect("a descriptor")));
            let [a, b] = [0, 1].map(|node: u32| -> Arc<dyn Fabric> {
                let network = networks[node as usize].clone();
                SharedFabric::new(net.fabric(node), Arc::new(|worker| worker), network)
            });
            let loads = both_ways(40);
            let configs = [small(false), small(true), lending(true)];
            let mut sides: Vec<Side> = (0..3)
                .flat_map(|i| {
                    let (here, there) = links(&a, &b, false, configs[i as usize]);
                    let [salt, other] = [2 * i + 1, 2 * i + 2];
                    [Side::new(here, loads[0], seed, salt), Side::new(there, loads[1], seed, other)]
                })
                .collect();
            let done = |sides: &[Side]| {
                sides.iter().enumerate().all(|(i, side)| side.is_done(&loads[1 - i % 2]))
            };
            let mut turn = 0;
            while !done(&sides) {
                assert!(turn < 200_000, "{publish:?} {driven} {seed}: no end");
                for side in &mut sides {
                    side.act().unwrap_or_else(|e| panic!("{publish:?} {driven} {seed}: {e}"));
                }
                for _ in 0..turn % 5 {
                    net.step();
                }
                networks.iter().flatten().for_each(|network| network.turn(None));
                turn += 1;
            }
        }
    }
}

/// Credit that nothing carries goes out after as many slots as were asked for, and data never runs
/// dry before.
#[test]
fn credit_goes_out_after_as_many_slots_as_were_asked_for() {
    let config = RingConfig { slots: 16, control_slots: 2, ..small(false) };
    let mut counts = Vec::new();
    for (asked, expected) in [(1, 1), (0, 4), (7, 7), (14, 14), (99, 14)] {
        let net = SimNet::new(options(Publish::Notify, 2));
        let (a, b) = pair(&net, config);
        let b = b.tuned(Tuning { credit_slots: asked, ..Tuning::default() });
        let loads = one_way(140);
        let mut a = Side::new(a, loads[0], 3, 1);
        let mut b = Side::new(b, Load { hold: 0, ..loads[1] }, 3, 2);
        for turn in 0.. {
            assert!(turn < 200_000, "credit after {asked} slots: no end");
            a.act().expect("a");
            b.act().expect("b");
            net.step();
            if a.is_done(&b.load) && b.is_done(&a.load) {
                break;
            }
        }
        // A notice covers at least the batch, and more where several slots were free at once.
        let notices = b.link.stats().credit_notices_sent;
        assert!((1..=140 / expected).contains(&notices), "after {asked} slots: {notices} notices");
        counts.push(notices);
    }
    assert!(counts.is_sorted_by(|more, less| more >= less), "{counts:?}");
    assert!(counts[0] > counts[2] && counts[2] > counts[3], "{counts:?}");
    assert_eq!(counts[3], counts[4], "never so seldom that data runs dry");
}
