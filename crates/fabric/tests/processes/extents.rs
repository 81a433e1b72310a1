//! A second process that fills memory of the first one, which seals and publishes it; and one that
//! may have few descriptors.

use fabric::conformance::pattern;
use fabric::{FabricError, MappedRange, PostError};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Roles of the second process: it gives its key up, it does not, it may have few descriptors …
pub const RELEASES: &str = "fill and release";
pub const KEEPS: &str = "fill and keep";
pub const STARVES: &str = "starve";
/// It is both sides, and looks at the mappings of its process.
pub const LETS_GO: &str = "let go";

const LEN: usize = 3 << 20;
/// Descriptors of a process that starves.
const FEW: u64 = 40;

/// The second process: writes, gives its key up or does not, and reads what was published.
pub fn fill(
    end: &mut dyn Endpoint,
    fabric: &dyn Fabric,
    releases: bool,
    ask: &mut dyn FnMut(&[u8]) -> Vec<u8>,
) {
    let key = RemoteKey::decode(&ask(b"ready")).expect("a key");
    let memory = fabric.slab(LEN).expect("memory");
    let all = memory.range(0..LEN).expect("all of it");
    all.place(0, &pattern(9, LEN));
    let at = RemoteRange { key, offset: 0 };
    end.write(Src::Slab(&all), at, OpId(1), Flags::NONE).expect("posts");
    let word = memory.range(0..8).expect("a word");
    end.read(&word, at, OpId(2), Flags::FENCE | Flags::SIGNAL).expect("posts");
    end.submit();
    until(end, |seen| seen.contains(&Completion::Local { id: OpId(2) }));
    if releases {
        end.release(key);
    }
    let key = RemoteKey::decode(&ask(b"filled")).expect("a key");
    let range = map(end, key);
    assert!(range[..] == pattern(9, LEN), "what was published is not what was written");
    let src = RemoteRange { key, offset: LEN as u64 - 64 };
    end.read(&memory.range(0..64).expect("a part"), src, OpId(3), Flags::SIGNAL).expect("posts");
    end.submit();
    until(end, |seen| seen.contains(&Completion::Local { id: OpId(3) }));
    let mut last = [0; 64];
    all.snapshot(&mut last);
    assert_eq!(last, range[LEN - 64..]);
    ask(b"read");
    // The key is taken back by now, and the mapping is not.
    assert!(range[..] == pattern(9, LEN));
    end.read(&memory.range(0..64).expect("a part"), src, OpId(4), Flags::SIGNAL).expect("posts");
    end.submit();
    let refused = Completion::Error { id: Some(OpId(4)), kind: ErrorKind::RemoteAccess };
    until(end, |seen| seen.contains(&refused));
    ask(b"refused");
}

fn until(end: &mut dyn Endpoint, done: impl Fn(&[Completion]) -> bool) {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while !done(&seen) {
        if end.poll(&mut seen) == 0
            && let Armed::Fd(fd) = end.arm()
        {
            fabric::wait(&[fd], TIMEOUT);
        }
        assert!(start.elapsed() < TIMEOUT, "it did not come: {seen:?}");
    }
}

/// The mapping of the peer's memory, slept for.
fn map(end: &mut dyn Endpoint, key: RemoteKey) -> MappedRange {
    let start = Instant::now();
    loop {
        match end.mapped(key) {
            Ok(range) => return range.expect("shared memory is mapped"),
            Err(error) => assert_eq!(error, PostError::Full),
        }
        if let Armed::Fd(fd) = end.arm() {
            fabric::wait(&[fd], TIMEOUT);
        }
        end.poll(&mut Vec::new());
        assert!(start.elapsed() < TIMEOUT, "the descriptor did not come");
    }
}

/// The first process: a second one fills memory of it. Returns how sealing it ended.
pub fn sealed(fabric: &dyn Fabric, test: &str, role: &str) -> Result<(), FabricError> {
    let mut second = Second::start(test, role);
    let mut side = Side::connect(fabric, 0, |line| second.ask(line));
    assert_eq!(second.next(), b"ready");
    let slab = fabric.slab(LEN).expect("memory");
    let key = side.end.export(&slab.range(0..LEN).expect("all of it")).expect("own memory");
    second.tell(&key.encode());
    assert_eq!(second.next(), b"filled");
    side.end.revoke(key);
    let slab = fabric.seal(slab)?;
    let key = fabric.publish(&slab.range(0..LEN).expect("all of it")).expect("publishes");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The owner's worker, which answers and otherwise sleeps.
        let end = &mut side.end;
        let worker = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if end.poll(&mut Vec::new()) == 0
                    && let Armed::Fd(fd) = end.arm()
                {
                    fabric::wait(&[fd], Duration::from_millis(20));
                }
            }
        });
        second.tell(&key.encode());
        assert_eq!(second.next(), b"read");
        fabric.unpublish(key);
        second.tell(b"");
        assert_eq!(second.next(), b"refused");
        second.tell(b"");
        over.store(true, Ordering::Release);
        worker.join().expect("the worker ends");
    });
    assert!(second.child.wait().expect("the second process ends").success());
    Ok(())
}

/// The second process: makes slabs until the system refuses, and reports both errors.
pub fn starve(fabric: &dyn Fabric, mut ask: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
    let few = Rlimit { current: Some(FEW), maximum: Some(FEW) };
    setrlimit(Resource::Nofile, few).expect("a limit can be lowered");
    let early = fabric.check_limits(FEW).expect_err("the limit is too small");
    let mut slabs = Vec::new();
    let late = loop {
        match fabric.slab(4096) {
            Ok(slab) => slabs.push(slab),
            Err(error) => break error,
        }
        assert!((slabs.len() as u64) < FEW, "more slabs than descriptors");
    };
    ask(early.to_string().as_bytes());
    ask(late.to_string().as_bytes());
}

/// The first process: the errors of a process with few descriptors, before and when it had none.
pub fn starved(test: &str) -> [String; 2] {
    let mut second = Second::start(test, STARVES);
    [(); 2].map(|()| {
        let reported = String::from_utf8(second.next()).expect("text");
        second.tell(b"");
        reported
    })
}

/// The second process: maps what it publishes itself, again and again.
pub fn let_go(fabric: &dyn Fabric) {
    let offers = [0, 1].map(|local| fabric.offer(LinkId { local, remote: 1 - local }));
    let [reader, owner] = offers.map(|offer| offer.expect("an offer"));
    let (of_reader, of_owner) = (reader.address(), owner.address());
    let (mut reader, mut owner) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || reader.connect(&of_owner).expect("connects"));
        let owner = owner.connect(&of_reader).expect("connects");
        (reader.join().expect("connects"), owner)
    });
    let mut most = 0;
    for round in 0..50 {
        let slab = fabric.seal(fabric.slab(4096).expect("memory")).expect("own memory");
        let all = slab.range(0..4096).expect("all of it");
        let key = fabric.publish(&all).expect("publishes");
        let range = loop {
            match reader.mapped(key) {
                Err(PostError::Full) => {}
                range => break range.expect("is published").expect("is mapped"),
            }
            owner.poll(&mut Vec::new());
            reader.poll(&mut Vec::new());
        };
        assert_eq!(range[..], [0; 4096]);
        fabric.unpublish(key);
        if round % 2 == 0 {
            reader.release(key);
        }
        let (_, mappings) = steps::held();
        most = if round < 2 { mappings } else { most };
        assert!(mappings <= most, "{mappings} mappings in round {round}, {most} before");
    }
}

/// Starts a second process that needs nobody, and awaits that it ends well.
pub fn alone(test: &str, role: &str) {
    let mut second = Second::start(test, role);
    assert!(second.child.wait().expect("the second process ends").success());
}
