//! Shared memory passes the conformance suite, connects real processes, and keeps its own promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabric::conformance::{self, Bed};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::{
    Armed, Completion, Endpoint, ErrorKind, Fabric, FabricError, Flags, LinkId, OpId, RemoteRange,
    Slab, Src,
};

mod processes;

use processes::extents;

struct ShmBed([Arc<ShmFabric>; 2]);

impl ShmBed {
    fn new() -> Self {
        Self([fabric(), fabric()])
    }

    fn pair(&mut self) -> [Box<dyn Endpoint>; 2] {
        let offer = |i: usize| {
            let link = LinkId { local: i as u32, remote: 1 - i as u32 };
            self.0[i].offer(link).expect("an offer")
        };
        let offers = [offer(0), offer(1)];
        self.connect(offers)
    }
}

impl Bed for ShmBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

fn fabric() -> Arc<ShmFabric> {
    ShmFabric::new(ShmOptions::default()).expect("shared memory")
}

#[test]
fn passes_the_conformance_suite() {
    let report = conformance::run(&mut ShmBed::new());
    assert_eq!(report.passed.len(), conformance::cases().len());
}

#[test]
fn second_process() {
    processes::second(|| fabric());
}

#[test]
fn two_processes_exchange_messages() {
    processes::exchange(&*fabric(), "second_process");
}

#[test]
fn a_killed_process_is_noticed_and_leaves_no_socket() {
    for sleeps in [false, true] {
        let address = processes::notices_death(&*fabric(), "second_process", sleeps);
        let token: String = address[8..].iter().map(|byte| format!("{byte:02x}")).collect();
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux");
        assert!(!sockets.contains(&token));
    }
}

#[test]
fn what_another_process_wrote_is_sealed_and_mapped_by_it() {
    let sealed = extents::sealed(&*fabric(), "second_process", extents::RELEASES);
    sealed.expect("the other process has given its key up");
}

#[test]
fn a_process_that_keeps_its_mapping_prevents_the_seal() {
    let sealed = extents::sealed(&*fabric(), "second_process", extents::KEEPS);
    let error = sealed.expect_err("the other process can still write");
    assert!(matches!(error, FabricError::StillWritable { writer: "another process", .. }));
}

#[test]
fn a_process_without_descriptors_is_told_how_to_get_some() {
    for reported in extents::starved("second_process") {
        assert!(reported.contains("ulimit -n"), "{reported}");
    }
}

/// More slabs than a connection can have at a time come and go.
#[test]
fn a_slab_that_is_exported_no_more_makes_room() {
    let mut bed = ShmBed::new();
    let [mut writer, mut owner] = bed.pair();
    for round in 0..500 {
        let slab = bed.0[1].slab(4096).expect("memory");
        let key = owner.export(&slab.range(0..4096).expect("all")).expect("there is room");
        let dst = RemoteRange { key, offset: 0 };
        let bytes = u64::to_le_bytes(round);
        writer.write(Src::Inline(&bytes), dst, OpId(round), Flags::SIGNAL).expect("posts");
        assert_eq!(slab.load(0, Ordering::Acquire), round);
        if round % 2 == 0 {
            writer.release(key);
        }
        owner.revoke(key);
        let mut seen = Vec::new();
        writer.poll(&mut seen);
        assert_eq!(seen, [Completion::Local { id: OpId(round) }]);
    }
}

/// A reader lets go of memory that was unpublished: at once, or when it needs other memory.
#[test]
fn memory_that_is_published_no_more_is_unmapped() {
    extents::alone("second_process", extents::LETS_GO);
}

#[test]
fn a_plain_write_wakes_who_sleeps() {
    const ROUNDS: u64 = 2000;
    let mut bed = ShmBed::new();
    let [mut a, mut b] = bed.pair();
    let [of_a, of_b] = bed.0.clone().map(|fabric| fabric.slab(4096).expect("memory"));
    let to_b = b.export(&of_b.range(0..8).expect("a word")).expect("own memory");
    let to_a = a.export(&of_a.range(0..8).expect("a word")).expect("own memory");
    let put = |end: &mut dyn Endpoint, key, value: u64| {
        let (dst, id) = (RemoteRange { key, offset: 0 }, OpId(value));
        end.write(Src::Inline(&value.to_le_bytes()), dst, id, Flags::SIGNAL).expect("posts");
        end.submit();
    };
    let serve = |end: &mut dyn Endpoint, memory: &Slab, key, first: bool| {
        for round in 1..=ROUNDS {
            if first {
                put(end, key, round);
            }
            sleep_until(end, || memory.load(0, Ordering::Acquire) == round);
            if !first {
                put(end, key, round);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&mut *b, &of_b, to_a, false));
        serve(&mut *a, &of_a, to_b, true);
    });
}

fn sleep_until(end: &mut dyn Endpoint, done: impl Fn() -> bool) {
    let mut seen = Vec::new();
    let start = Instant::now();
    loop {
        end.poll(&mut seen);
        assert!(seen.drain(..).all(|c| matches!(c, Completion::Local { .. })));
        if done() {
            return;
        }
        match end.arm() {
            Armed::Fd(fd) => fabric::wait(&[fd], Duration::from_secs(10)),
            _ => std::thread::yield_now(),
        }
        assert!(start.elapsed() < Duration::from_secs(10), "a wake-up was lost");
    }
}

#[test]
fn nothing_changes_after_revoke_or_close_returned() {
    const BYTES: usize = 64 << 10;
    for (round, close) in [false, true].repeat(20).into_iter().enumerate() {
        let mut bed = ShmBed::new();
        let [mut writer, mut owner] = bed.pair();
        let target = bed.0[1].slab(BYTES).expect("memory");
        let source = bed.0[0].slab(BYTES).expect("memory");
        let key = owner.export(&target.range(0..BYTES).expect("all")).expect("own memory");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let all = source.range(0..BYTES).expect("all");
                let mut seen = Vec::new();
                for value in 1.. {
                    for word in 0..BYTES / 8 {
                        source.store(8 * word, value, Ordering::Relaxed);
                    }
                    let dst = RemoteRange { key, offset: 0 };
                    let posted = writer.write(Src::Slab(&all), dst, OpId(value), Flags::SIGNAL);
                    writer.submit();
                    writer.poll(&mut seen);
                    let failed = seen.iter().any(|c| matches!(c, Completion::Error { .. }));
                    if posted.is_err() || failed {
                        break;
                    }
                }
                ended.store(true, Ordering::Release);
                seen
            });
            while target.load(BYTES - 8, Ordering::Acquire) < 1 + round as u64 % 5 {
                std::hint::spin_loop();
            }
            if close {
                owner.close()
            } else {
                owner.revoke(key)
            }
            let words = || (0..BYTES / 8).map(|word| target.load(8 * word, Ordering::Relaxed));
            let before: Vec<u64> = words().collect();
            while !ended.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            assert!(words().eq(before), "a write took effect after the key was taken back");
            let kind = if close { ErrorKind::Disconnected } else { ErrorKind::RemoteAccess };
            let seen = writing.join().expect("the writer ends");
            let last = seen.last().expect("an error");
            assert!(matches!(last, Completion::Error { kind: k, .. } if *k == kind), "{last:?}");
        });
    }
}

#[test]
fn what_is_not_of_this_transport_is_refused() {
    let [mut end, _peer] = ShmBed::new().pair();
    let heap = Slab::heap(64).expect("memory").range(0..64).expect("all");
    assert!(matches!(end.export(&heap), Err(FabricError::ForeignSlab)));
    let good = fabric().offer(LinkId { local: 1, remote: 0 }).expect("an offer").address();
    for bad in [&good[1..], &good[..20], b"", b"MLSTCP\x00\x01AAAAAAAAAAAAAAAA"] {
        let offer = fabric().offer(LinkId { local: 0, remote: 1 }).expect("an offer");
        assert!(matches!(offer.connect(bad), Err(FabricError::Malformed { .. })));
    }
}

#[test]
fn a_wait_in_vain_is_an_error() {
    let options = ShmOptions { connect_timeout: Duration::from_millis(20), ..Default::default() };
    let fabric = ShmFabric::new(options).expect("shared memory");
    conformance::waits_in_vain(&*fabric);
}
