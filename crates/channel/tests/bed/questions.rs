//! Two ends that ask and answer, and sleep in between.

use std::time::{Duration, Instant};

use channel::{Class, Header, Link};
use fabric::{Armed, wait};

/// What a lost wake-up costs before the test says so.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks a hundred questions, a thread for each end.
pub fn questions([mut a, mut b]: [Link; 2]) {
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            for _ in 0..100 {
                let question = await_kind(&mut b);
                answer(&mut b, question + 1);
            }
            // Where the other end reads, it needs this one until it has.
            while b.stats().in_flight > 0 {
                b.poll().expect("an open link");
                std::thread::yield_now();
            }
            b
        });
        for question in 0..100 {
            answer(&mut a, question);
            assert_eq!(await_kind(&mut a), question + 1);
        }
        while !other.is_finished() {
            a.poll().expect("an open link");
            std::thread::yield_now();
        }
        drop(other.join().expect("the other end"));
    });
}

fn answer(link: &mut Link, kind: u8) {
    while link.reserve(Class::Control).is_none() {
        link.poll().expect("an open link");
    }
    let slot = link.reserve(Class::Control).expect("there is one");
    slot.publish(Header { kind, ..Header::default() }, 0);
    link.flush();
}

fn await_kind(link: &mut Link) -> u8 {
    let start = Instant::now();
    loop {
        link.poll().expect("an open link");
        if let Some(frame) = link.recv().expect("an open link") {
            return frame.header.kind;
        }
        assert!(start.elapsed() < TIMEOUT, "nobody wakes us: {:?}", link.stats());
        if let Armed::Fd(fd) = link.arm() {
            wait(&[fd], TIMEOUT);
        }
    }
}
