//! The ring over shared memory and over TCP: two ends in one process, a thread each. Where
//! MILLSTREAM_RDMA_DEVICES names RDMA devices (scripts/test-rdma.sh), over those instead.

#[path = "bed/ends.rs"]
mod ends;
#[path = "bed/load.rs"]
mod load;
#[path = "bed/questions.rs"]
mod questions;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use channel::{Class, Header, Link, LinkMemory, RingConfig, Transfer};
use ends::small;
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::verbs::{Connect, VerbsFabric, VerbsOptions, survey};
use fabric::{Armed, Fabric, Publish, wait};
use load::{Load, Side, links, links_within};
use questions::questions;

/// What a deadlock costs before the test says so.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Fabrics of two processes.
fn fabrics() -> Vec<[Arc<dyn Fabric>; 2]> {
    if let Ok(devices) = std::env::var("MILLSTREAM_RDMA_DEVICES") {
        return [Publish::Notify, Publish::NotifyCounted].map(|p| verbs(&devices, p)).into();
    }
    let shm = || -> Arc<dyn Fabric> { ShmFabric::new(ShmOptions::default()).expect("shm") };
    let mut all = vec![[shm(), shm()]];
    for publish in [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted] {
        let tcp = || -> Arc<dyn Fabric> {
            let options = TcpOptions { publish, ..TcpOptions::default() };
            TcpFabric::new(options).expect("tcp")
        };
        all.push([tcp(), tcp()]);
    }
    all
}

/// A fabric on the first device and one on the last.
fn verbs(devices: &str, publish: Publish) -> [Arc<dyn Fabric>; 2] {
    let names: Vec<&str> = devices.split(',').collect();
    [names[0], names[names.len() - 1]].map(|device| -> Arc<dyn Fabric> {
        let known = survey(&VerbsOptions::default()).devices.unwrap_or_default();
        let iwarp = known.iter().any(|known| known.iwarp && known.name == device);
        let connect = if iwarp { Connect::RdmaCm } else { Connect::Tcp };
        let (device, publish) = (Some(device.to_string()), Some(publish));
        let options = VerbsOptions { device, publish, connect, ..VerbsOptions::default() };
        VerbsFabric::new(options).expect("the device opens")
    })
}

fn both_ends(config: RingConfig, ends: impl Fn([Link; 2])) {
    for [a, b] in fabrics() {
        ends(links(&a, &b, true, config).into());
    }
}

/// Sleeps until the link has something to say.
fn sleep(link: &mut Link) {
    link.flush();
    if let Armed::Fd(fd) = link.arm() {
        wait(&[fd], Duration::from_millis(200));
    }
}

/// Runs one end until both are done.
fn run(mut side: Side, peer: Load, done: &AtomicUsize, sleeps: bool) -> Side {
    let start = Instant::now();
    let mut counted = false;
    while done.load(Ordering::Acquire) < 2 {
        side.act().unwrap_or_else(|error| panic!("{error}"));
        if !counted && side.is_done(&peer) {
            side.link.flush();
            done.fetch_add(1, Ordering::AcqRel);
            counted = true;
        }
        assert!(start.elapsed() < TIMEOUT, "no end: {:?}", side.link.stats());
        if sleeps && side.is_idle() { sleep(&mut side.link) } else { std::thread::yield_now() }
    }
    side
}

fn carry(config: RingConfig, frames: u64, sleeps: bool) {
    let of_a = Load { frames, control_every: 7, hold: 2 };
    let of_b = Load { frames, control_every: 3, hold: 1 };
    both_ends(config, |[a, b]| {
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(Side::new(b, of_b, 2, 2), of_a, &done, sleeps));
            let a = run(Side::new(a, of_a, 1, 1), of_b, &done, sleeps);
            let b = other.join().expect("the other end");
            assert_eq!(a.link.stats().frames_sent, b.link.stats().frames_received);
            assert_eq!(b.link.stats().frames_sent, a.link.stats().frames_received);
        });
    });
}

#[test]
fn load_both_ways_while_both_poll() {
    carry(small(true), 2_000, false);
}

#[test]
fn load_both_ways_while_both_sleep() {
    carry(small(false), 2_000, true);
}

#[test]
fn links_of_a_peer_share_slabs_and_each_keeps_to_its_part() {
    const LINKS: usize = 3;
    let load = Load { frames: 100, control_every: 5, hold: 2 };
    for transfer in [Transfer::Write, Transfer::Read, Transfer::Region] {
        let config = RingConfig { transfer, ..small(true) };
        for [a, b] in fabrics() {
            let memory = |fabric: &Arc<dyn Fabric>| {
                LinkMemory::of_peer(&**fabric, &config, LINKS).expect("memory")
            };
            let (of_a, of_b) = (memory(&a), memory(&b));
            let pairs = of_a.into_iter().zip(of_b);
            let pairs: Vec<_> =
                pairs.map(|(of_a, of_b)| links_within(&a, &b, true, [of_a, of_b])).collect();
            let [ring, staging] = pairs[0].0.slabs();
            let [last_ring, last_staging] = pairs[LINKS - 1].0.slabs();
            assert!(ring.same(last_ring) && staging.same(last_staging) && !ring.same(staging));
            std::thread::scope(|scope| {
                for (salt, (a, b)) in (0..).zip(pairs) {
                    let done = Arc::new(AtomicUsize::new(0));
                    let (salt_a, salt_b) = (2 * salt, 2 * salt + 1);
                    let also = done.clone();
                    scope.spawn(move || {
                        run(Side::new(a, load, salt_a, salt_b), load, &also, true);
                    });
                    scope.spawn(move || {
                        run(Side::new(b, load, salt_b, salt_a), load, &done, true);
                    });
                }
            });
        }
    }
}

#[test]
fn load_both_ways_that_is_read() {
    for sleeps in [false, true] {
        carry(RingConfig { transfer: Transfer::Read, ..small(true) }, 500, sleeps);
    }
}

#[test]
fn a_link_without_news_says_so_and_one_with_a_frame_does_not() {
    const ASKED: usize = 10_000;
    for [here, there] in fabrics() {
        if here.name() != "shm" {
            continue;
        }
        let (mut a, mut b) = links(&here, &there, true, small(false));
        // Both have been attached; what that left is taken.
        for _ in 0..2 {
            a.poll().expect("it stands");
            b.poll().expect("it stands");
        }
        let mut polls = 0;
        for _ in 0..ASKED {
            if b.has_news() {
                polls += 1;
                assert!(!b.poll().expect("it stands"), "nothing has come");
            }
        }
        assert!(polls <= ASKED / 1000, "{polls} polls: those that look for the end of the peer");
        a.reserve(Class::Data).expect("room").publish(Header::default(), 0);
        a.flush();
        assert!(b.has_news() && b.poll().expect("it stands"));
        // Credit is due when the payload is gone, and until it is posted.
        drop(b.recv().expect("it stands").expect("a frame"));
        assert!(b.has_news());
        drop(a);
        assert!(b.has_news(), "the end of the peer");
        b.poll().expect_err("the peer has gone");
        assert!(b.has_news(), "it says so again");
    }
}

#[test]
fn load_both_ways_that_stays_in_regions() {
    for sleeps in [false, true] {
        carry(RingConfig { transfer: Transfer::Region, ..small(true) }, 500, sleeps);
    }
}

#[test]
fn a_sleeping_end_wakes_for_each_of_a_hundred_questions() {
    for transfer in [Transfer::Write, Transfer::Read] {
        both_ends(RingConfig { transfer, ..small(false) }, questions);
    }
}
