//! Bytes that change on their way over TCP, are missing, or come twice, are noticed before anything
//! is made of them; and bytes that do not come at all are noticed by who looks from the outside.
//!
//! Between the two ends stands a proxy that does one thing wrong, at a byte that the test names.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use fabric::conformance::pattern;
use fabric::pulse::{ConnectionWatch, Pulse, STILL_LOOKS};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{
    Armed, Completion, Endpoint, ErrorKind, Fabric, Flags, LinkId, OpId, RemoteKey, RemoteRange,
    Slab, Src,
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The greetings of both ends; the proxy leaves them alone.
const GREETING_BYTES: usize = 60;
/// In front of each body.
const HEADER_BYTES: usize = 44;
/// A body that is read straight to where it belongs, and others that are not.
const BODIES: [usize; 4] = [24 << 10, 40, 3000, 8];
const MEMORY_BYTES: usize = 64 << 10;

/// The fault that the proxy injects.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// A bit is turned.
    Bit(u8),
    /// This number of bytes is dropped.
    Drop(usize),
    /// This number of bytes comes twice.
    Twice(usize),
    /// From here on nothing is handed on, not even the end.
    Hold,
    None,
}

/// Where it does so: in what the one says that connects, or in what the other answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Caller,
    Called,
}

/// Two ends with the proxy between them.
struct Bed {
    fabrics: [Arc<TcpFabric>; 2],
    ends: [Box<dyn Endpoint>; 2],
    source: Slab,
    target: Slab,
    key: RemoteKey,
}

impl Bed {
    fn new(checksum: bool, side: Side, at: usize, fault: Fault) -> Self {
        let options = TcpOptions { checksum, ..TcpOptions::default() };
        let fabrics = [(); 2].map(|()| TcpFabric::new(options.clone()).expect("loopback"));
        let offer = |i: usize| {
            let link = LinkId { local: i as u32, remote: 1 - i as u32 };
            fabrics[i].offer(link).expect("an offer")
        };
        let [caller, called] = [offer(0), offer(1)];
        let (own, mut address) = (caller.address(), called.address());
        let port = u16::from_le_bytes([address[24], address[25]]);
        let through = proxy(([127, 0, 0, 1], port).into(), side, at, fault);
        address[24..26].copy_from_slice(&through.port().to_le_bytes());
        let waiting = thread::spawn(move || called.connect(&own).expect("connects"));
        let first = caller.connect(&address).expect("connects");
        let mut ends = [first, waiting.join().expect("no panic")];
        let slab = |i: usize| fabrics[i].slab(MEMORY_BYTES).expect("memory");
        let (source, target) = (slab(0), slab(1));
        for (word, bytes) in pattern(3, MEMORY_BYTES).chunks(8).enumerate() {
            let value = u64::from_le_bytes(bytes.try_into().expect("a word"));
            source.store(8 * word, value, Ordering::Relaxed);
        }
        let key = ends[1].export(&target.range(0..MEMORY_BYTES).expect("all")).expect("own");
        ends[1].post_recvs(64);
        ends[1].submit();
        Self { fabrics, ends, source, target, key }
    }

    /// Writes, notifies, reads back, and sends, until all is done or an end has failed: what each
    /// end saw. Both ends poll all the time.
    fn run(&mut self) -> [Vec<Completion>; 2] {
        let mut seen = [Vec::new(), Vec::new()];
        let (start, mut step, mut offset) = (Instant::now(), 0, 0);
        let back = self.source.range(MEMORY_BYTES - 4096..MEMORY_BYTES).expect("in bounds");
        loop {
            for (end, seen) in self.ends.iter_mut().zip(&mut seen) {
                end.poll(seen);
            }
            let failed = |c: &Completion| matches!(c, Completion::Error { .. });
            let locals = seen[0].iter().filter(|c| matches!(c, Completion::Local { .. })).count();
            if seen.iter().flatten().any(failed) || locals == BODIES.len() + 2 {
                return seen;
            }
            assert!(start.elapsed() < TIMEOUT, "neither done nor failed");
            let (id, end) = (OpId(step as u64), &mut self.ends[0]);
            if end.budget().notices == 0 {
                continue;
            }
            match step {
                0..4 => {
                    let src = self.source.range(offset..offset + BODIES[step]).expect("inside");
                    let dst = RemoteRange { key: self.key, offset: offset as u64 };
                    let imm = step as u32;
                    end.write_notify(Src::Slab(&src), dst, imm, id, Flags::SIGNAL).expect("room");
                    offset += BODIES[step];
                }
                4 => {
                    let src = RemoteRange { key: self.key, offset: 0 };
                    let flags = Flags::SIGNAL | Flags::FENCE;
                    end.read(&back, src, id, flags).expect("room");
                }
                5 => end.send(b"the end", id).expect("room"),
                _ => continue,
            }
            end.submit();
            step += 1;
        }
    }

    /// The connections of a side that are in use.
    fn pulses(&self, i: usize) -> Vec<Arc<Pulse>> {
        self.fabrics[i].pulses().expect("tcp has them").used()
    }

    /// Whether the first `count` bodies are in place.
    fn holds(&self, bodies: usize) -> bool {
        let bytes: usize = BODIES[..bodies].iter().sum();
        let word = |slab: &Slab, at| slab.load(at, Ordering::Relaxed);
        (0..bytes).step_by(8).all(|at| word(&self.source, at) == word(&self.target, at))
    }
}

/// Stands between two ends; returns where.
fn proxy(to: SocketAddr, side: Side, at: usize, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let place = listener.local_addr().expect("a port");
    thread::spawn(move || {
        let (caller, _) = listener.accept().expect("a caller");
        let called = TcpStream::connect(to).expect("somebody called");
        for stream in [&caller, &called] {
            stream.set_nodelay(true).expect("a socket");
        }
        let both = || (caller.try_clone().expect("one"), called.try_clone().expect("one"));
        let ((a, b), (c, d)) = (both(), both());
        let of = |mine| if side == mine { fault } else { Fault::None };
        let (there, back) = (of(Side::Caller), of(Side::Called));
        thread::spawn(move || pump(a, b, at, there));
        thread::spawn(move || pump(d, c, at, back));
    });
    place
}

/// Hands on what comes, and does the one thing wrong at this byte behind the greeting.
fn pump(mut from: TcpStream, mut to: TcpStream, at: usize, fault: Fault) {
    let (at, mut passed, mut chunk) = (GREETING_BYTES + at, 0, vec![0; 64 << 10]);
    let mut done = fault == Fault::None;
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        let mut bytes = chunk[..n].to_vec();
        if let Some(here) = at.checked_sub(passed).filter(|here| !done && *here < n) {
            done = true;
            match fault {
                Fault::Bit(bit) => bytes[here] ^= 1 << bit,
                Fault::Drop(count) => drop(bytes.drain(here..n.min(here + count))),
                Fault::Twice(count) => {
                    let again = bytes[here..n.min(here + count)].to_vec();
                    bytes.splice(here..here, again);
                }
                Fault::Hold => {
                    bytes.truncate(here);
                    let _ = to.write_all(&bytes);
                    // All is taken and acknowledged.
                    while let Ok(1..) = from.read(&mut chunk) {}
                    return;
                }
                Fault::None => {}
            }
        }
        passed += n;
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    if fault == Fault::Hold {
        return;
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

fn notices(seen: &[Completion]) -> usize {
    seen.iter().filter(|c| matches!(c, Completion::Notify { .. })).count()
}

fn kind(seen: &[Completion]) -> Option<ErrorKind> {
    seen.iter().find_map(|completion| match completion {
        Completion::Error { kind, .. } if *kind != ErrorKind::Flushed => Some(*kind),
        _ => None,
    })
}

/// Bytes that the called side says behind its greeting, when nothing goes wrong.
fn answers() -> usize {
    let mut bed = Bed::new(true, Side::Caller, 0, Fault::None);
    let seen = bed.run();
    assert_eq!([kind(&seen[0]), kind(&seen[1])], [None, None]);
    assert_eq!(notices(&seen[1]), BODIES.len());
    assert!(bed.holds(BODIES.len()));
    let count = |i: usize| bed.pulses(i)[0].count();
    // The bytes that one end has sent are those that the other receives, up to those still under
    // way.
    assert!(count(0).sent >= count(1).received && count(1).received > 24 << 10);
    assert_eq!(count(0).name, count(1).name);
    count(0).received as usize
}

#[test]
fn each_fault_is_noticed_before_anything_is_made_of_it() {
    // What is read and sent behind the bodies makes whatever is missing or too much show.
    let last = BODIES.iter().map(|bytes| HEADER_BYTES + bytes).sum();
    let places = (0..200).chain((200..last).step_by(997)).chain(last - 100..last);
    for at in places {
        let fault = match at % 4 {
            0 => Fault::Drop(1 + at % 40),
            1 => Fault::Twice(1 + at % 40),
            bit => Fault::Bit((at / 4 % 8) as u8 ^ bit as u8),
        };
        let mut bed = Bed::new(true, Side::Caller, at, fault);
        let seen = bed.run();
        assert_eq!(kind(&seen[1]), Some(ErrorKind::Damaged), "byte {at}: {fault:?}");
        assert!(bed.holds(notices(&seen[1])), "byte {at}: {fault:?}");
    }
}

#[test]
fn each_fault_of_the_answers_is_noticed() {
    // The answers to reads and messages, and what was taken; what comes last has nothing behind it.
    let back = answers();
    for at in (0..back - 50).step_by(7) {
        let mut bed = Bed::new(true, Side::Called, at, Fault::Bit((at % 8) as u8));
        let seen = bed.run();
        // How often a side says what it has taken is not the same in each run.
        if kind(&seen[0]).is_some() {
            assert_eq!(kind(&seen[0]), Some(ErrorKind::Damaged), "byte {at}");
        } else {
            assert!(at > 3000, "byte {at} is not noticed");
        }
    }
}

#[test]
fn without_checksums_a_turned_bit_of_a_body_arrives() {
    let mut bed = Bed::new(false, Side::Caller, 5000, Fault::Bit(3));
    let seen = bed.run();
    assert_eq!([kind(&seen[0]), kind(&seen[1])], [None, None]);
    assert!(!bed.holds(BODIES.len()), "the test turns no bit");
}

#[test]
fn a_connection_that_carries_nothing_is_found_and_given_up() {
    for (side, at) in [(Side::Caller, 700), (Side::Called, 0), (Side::Called, 70)] {
        let mut bed = Bed::new(true, side, at, Fault::Hold);
        let dst = RemoteRange { key: bed.key, offset: 0 };
        let src = bed.source.range(0..4096).expect("in bounds");
        let mut seen = [Vec::new(), Vec::new()];
        for id in 0..3 {
            let posted = bed.ends[0].write(Src::Slab(&src), dst, OpId(id), Flags::SIGNAL);
            posted.expect("room");
        }
        let mut watches = [ConnectionWatch::default(), ConnectionWatch::default()];
        let receiver = usize::from(side == Side::Caller);
        let mut given_up = false;
        for look in 0..3 * STILL_LOOKS {
            if given_up {
                break;
            }
            settle(&mut bed, &mut seen, receiver);
            let pulses = [0, 1].map(|i| bed.pulses(i));
            for (i, watch) in watches.iter_mut().enumerate() {
                let counts: Vec<_> = pulses[i].iter().map(|pulse| pulse.count()).collect();
                for (name, missing) in watch.look(&counts) {
                    assert!(i == receiver && look >= STILL_LOOKS && missing > 0);
                    pulses[i].iter().filter(|p| p.count().name == name).for_each(|p| p.give_up());
                    given_up = true;
                }
                for count in pulses[1 - i].iter().map(|pulse| pulse.count()) {
                    watch.announce(count.name, count.sent);
                }
            }
        }
        assert!(given_up, "{side:?} from byte {at} on");
        // This wakes a sleeping thread, which may first find bytes that came before the fault.
        let start = Instant::now();
        while kind(&seen[receiver]).is_none() {
            assert!(start.elapsed() < TIMEOUT, "{side:?} at {at}: nothing is noticed");
            if let Armed::Fd(fd) = bed.ends[receiver].arm() {
                fabric::wait(&[fd], TIMEOUT);
            }
            bed.ends[receiver].poll(&mut seen[receiver]);
        }
        assert_eq!(kind(&seen[receiver]), Some(ErrorKind::Disconnected), "{side:?} at {at}");
    }
}

/// An end that has ended puts nothing in any more and cannot be asked; what it sent last may be
/// lost, and be what the other waits for.
#[test]
fn an_end_that_is_swallowed_is_found_by_what_is_told_of_it() {
    for reported in [true, false] {
        let bytes = 3 * (HEADER_BYTES + 4096);
        let mut bed = Bed::new(true, Side::Caller, bytes, Fault::Hold);
        let dst = RemoteRange { key: bed.key, offset: 0 };
        let src = bed.source.range(0..4096).expect("in bounds");
        for id in 0..3 {
            let posted = bed.ends[0].write(Src::Slab(&src), dst, OpId(id), Flags::SIGNAL);
            posted.expect("room");
        }
        settle(&mut bed, &mut [Vec::new(), Vec::new()], 0);
        let Bed { fabrics, ends: [first, second], .. } = bed;
        let pulses = fabrics.each_ref().map(|fabric| fabric.pulses().expect("tcp has them"));
        let counts = || pulses[1].used().iter().map(|pulse| pulse.count()).collect::<Vec<_>>();
        let mut watch = ConnectionWatch::default();
        assert_eq!(watch.look(&counts()), []);
        drop(first);
        let ended = pulses[0].take_ended();
        assert_eq!(ended.iter().map(|end| end.sent).collect::<Vec<_>>(), [bytes as u64 + 1]);
        for end in ended.iter().filter(|_| reported) {
            watch.announce(end.name, end.sent);
        }
        let overdue = (0..3 * STILL_LOOKS).find_map(|_| watch.look(&counts()).pop());
        assert_eq!(overdue, reported.then_some((ended[0].name, 1)), "told: {reported}");
        drop(second);
    }
}

/// Polls both ends until all has come that comes: what goes to the other than the `receiver`.
fn settle(bed: &mut Bed, seen: &mut [Vec<Completion>; 2], receiver: usize) {
    let start = Instant::now();
    loop {
        for (end, seen) in bed.ends.iter_mut().zip(seen.iter_mut()) {
            end.poll(seen);
        }
        let count = |i: usize| bed.pulses(i)[0].count();
        if count(receiver).sent == count(1 - receiver).received {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "the proxy holds back too much");
    }
}
