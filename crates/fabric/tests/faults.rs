//! Steps of a handshake and of a transfer × transports × what befalls the peer there: each gives
//! one clear message within the configured time, gives back what it held, and never hangs.
//!
//! The peers of the first table are processes that are killed or stopped; those of the second one
//! forge what they say. What a transport that wakes nobody does of a peer that is alive and silent
//! is nothing: to notice that is the control plane's work, whose heartbeats end the job
//! (`cluster/tests/processes.rs`). Verbs on a real device: `tests/verbs.rs`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{Fabric, FabricError, LinkId};
use processes::steps::{Fault, STEPS, held, row};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};

#[allow(dead_code, reason = "shared with the tests of single transports")]
mod processes;

/// How long a handshake may take.
const CONNECT: Duration = Duration::from_millis(300);
/// Beyond this nothing is said within the configured time: a wide margin for a busy machine.
const HANGS: Duration = Duration::from_secs(20);

fn shm() -> Arc<dyn Fabric> {
    let options = ShmOptions { connect_timeout: CONNECT, ..ShmOptions::default() };
    ShmFabric::new(options).expect("shared memory")
}

fn tcp() -> Arc<dyn Fabric> {
    let options = TcpOptions { connect_timeout: CONNECT, ..TcpOptions::default() };
    TcpFabric::new(options).expect("loopback")
}

#[test]
fn second_process_of_shm() {
    processes::second(|| ShmFabric::new(ShmOptions::default()).expect("shared memory"));
}

#[test]
fn second_process_of_tcp() {
    processes::second(|| TcpFabric::new(TcpOptions::default()).expect("loopback"));
}

/// The first process's error about a peer that comes to this step and no further.
fn expected(step: &str, fault: Fault, dials: bool) -> &'static [&'static str] {
    match (step, fault) {
        // Nobody listens any more, or nobody comes.
        ("offer", Fault::Killed) if dials => &["worker 0 with worker 1", "refused"],
        ("offer", _) => &["cannot connect worker", "timed out"],
        (_, Fault::Killed) => &["Disconnected"],
        (_, Fault::Stopped) => &["silence"],
    }
}

/// How long an end waits for a copy of its peer's.
const COPY_MAX: Duration = Duration::from_secs(2);

fn process_table(fabric: fn() -> Arc<dyn Fabric>, second: &str) {
    let mut rows = 0;
    for step in STEPS {
        for fault in [Fault::Killed, Fault::Stopped] {
            for local in [0, 1] {
                let what = format!("{step}, {fault:?}, worker {local}");
                let before = held();
                let fabric = fabric();
                let start = Instant::now();
                let reported = row(&*fabric, second, step, fault, local);
                for part in expected(step, fault, local == 0) {
                    assert!(reported.contains(part), "{what}: {reported:?} lacks {part:?}");
                }
                assert!(start.elapsed() < HANGS, "{what}: {:?}", start.elapsed());
                drop(fabric);
                let after = held();
                // A peer that was stopped in the middle of a copy keeps the memory that it was
                // writing to, and the descriptor of that.
                let waited = fault == Fault::Stopped && start.elapsed() > COPY_MAX;
                let retained = usize::from(waited && after.1 > before.1);
                let expected = (before.0 + retained, before.1 + retained);
                assert_eq!(after, expected, "{what}: descriptors, mappings");
                rows += 1;
            }
        }
    }
    assert_eq!(rows, 4 * STEPS.len());
}

#[test]
fn faults_of_processes() {
    // One after the other: descriptors are counted.
    process_table(shm, "second_process_of_shm");
    process_table(tcp, "second_process_of_tcp");
    forged_table();
}

/// A peer that knows the token of an offer, and then says something else than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forgery {
    /// It goes at once.
    Leaves,
    /// It says nothing.
    Silent,
    /// It stops in the middle of a greeting.
    Half,
    /// It stops there and goes.
    HalfAndLeaves,
    Noise,
    /// The name and version at the front of its greeting are others.
    OtherVersion,
    /// Its greeting is to another offer than this: another job's.
    OtherJob,
    /// It is another worker than it should be.
    OtherWorker,
}

const FORGERIES: [Forgery; 8] = [
    Forgery::Leaves,
    Forgery::Silent,
    Forgery::Half,
    Forgery::HalfAndLeaves,
    Forgery::Noise,
    Forgery::OtherVersion,
    Forgery::OtherJob,
    Forgery::OtherWorker,
];

const OURS: [u8; 16] = [7; 16];

impl Forgery {
    /// The bytes that it sends instead of this greeting; whether it stays.
    fn of(self, mut greeting: Vec<u8>) -> (Vec<u8>, bool) {
        match self {
            Forgery::Leaves => return (Vec::new(), false),
            Forgery::Silent => return (Vec::new(), true),
            Forgery::Half => greeting.truncate(30),
            Forgery::HalfAndLeaves => {
                greeting.truncate(30);
                return (greeting, false);
            }
            Forgery::Noise => greeting.iter_mut().for_each(|byte| *byte ^= 0x5a),
            Forgery::OtherVersion => greeting[7] = 9,
            Forgery::OtherJob => greeting[20] ^= 1,
            Forgery::OtherWorker => greeting[8] ^= 4,
        }
        (greeting, true)
    }

    /// What the other side is told. Who dialled sees what is wrong; who awaits its peer takes a
    /// forger for a stranger, and goes on waiting for the peer.
    fn reported(self, dials: bool, stream: bool) -> &'static str {
        match self {
            _ if !dials => "timed out",
            Forgery::Leaves => "the peer left",
            Forgery::HalfAndLeaves if stream => "the peer left",
            // The content of a local socket is lost if its other end had something to read.
            Forgery::HalfAndLeaves => "the peer",
            Forgery::Half if stream => "timed out",
            Forgery::Silent => "timed out",
            Forgery::OtherVersion => "another version of the protocol",
            _ => "the greeting is not the peer's",
        }
    }
}

/// Workers, token of the greeted, token of the greeter, and for TCP the operations outstanding and
/// that checksums are wanted.
fn greeting(magic: &[u8; 8], local: u32, to: &[u8], tcp: bool) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&local.to_le_bytes());
    out.extend_from_slice(&(1 - local).to_le_bytes());
    out.extend_from_slice(to);
    out.extend_from_slice(&OURS);
    if tcp {
        out.extend_from_slice(&4_u32.to_le_bytes());
        out.extend_from_slice(&1_u32.to_le_bytes());
    }
    out
}

fn forged_table() {
    for forgery in FORGERIES {
        for dials in [true, false] {
            for (name, forge) in
                [("tcp", forged_tcp as fn(_, _) -> FabricError), ("shm", forged_shm)]
            {
                let what = format!("{name}, {forgery:?}, dials: {dials}");
                let (before, start) = (held(), Instant::now());
                let error = forge(forgery, dials);
                let FabricError::Connect { .. } = &error else { panic!("{what}: {error}") };
                let reported = error.to_string();
                let right = forgery.reported(dials, name == "tcp");
                assert!(reported.contains("cannot connect worker"), "{what}: {reported}");
                assert!(reported.contains(right), "{what}: {reported:?} lacks {right:?}");
                assert!(start.elapsed() < HANGS, "{what}: {:?}", start.elapsed());
                assert_eq!(held(), before, "{what}: descriptors, mappings");
            }
        }
    }
}

/// The first process is worker 0, which dials, or worker 1, which is dialled.
fn offer(fabric: &dyn Fabric, dials: bool) -> (Box<dyn fabric::Offer>, u32) {
    let local = u32::from(!dials);
    (fabric.offer(LinkId { local, remote: 1 - local }).expect("an offer"), 1 - local)
}

fn forged_tcp(forgery: Forgery, dials: bool) -> FabricError {
    let fabric = tcp();
    let (offer, theirs) = offer(&*fabric, dials);
    let address = offer.address();
    let to = address[8..24].to_vec();
    let port = u16::from_le_bytes([address[24], address[25]]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut own = address;
    own[8..24].copy_from_slice(&OURS);
    if dials {
        let port = listener.local_addr().expect("bound").port();
        own[24..26].copy_from_slice(&port.to_le_bytes());
    }
    let whole = greeting(b"MLSTCP\x00\x02", theirs, &to, true);
    let len = whole.len();
    let (mut message, stays) = forgery.of(whole);
    if message.len() == len {
        // What is wrong with it is not that it was damaged on its way.
        message.extend_from_slice(&crc32c::crc32c(&message).to_le_bytes());
    }
    let forger = thread::spawn(move || {
        let mut stream = if dials {
            listener.accept().expect("it dials").0
        } else {
            TcpStream::connect(("127.0.0.1", port)).expect("it listens")
        };
        stream.write_all(&message).expect("a few bytes fit");
        // Until the other side has given up.
        let mut rest = Vec::new();
        if stays {
            let _ = stream.read_to_end(&mut rest);
        }
    });
    let error = offer.connect(&own).map(drop).expect_err("nobody is there");
    drop(fabric);
    forger.join().expect("no panic");
    error
}

fn unix() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn name(token: &[u8]) -> SocketAddrUnix {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("millstream-{digits}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name")
}

fn forged_shm(forgery: Forgery, dials: bool) -> FabricError {
    let fabric = shm();
    let (offer, theirs) = offer(&*fabric, dials);
    let to = offer.address()[8..].to_vec();
    let listener = unix();
    bind(&listener, &name(&OURS)).expect("the name is free");
    listen(&listener, 1).expect("a listener");
    let own = [&b"MLSSHM\x00\x02"[..], &OURS].concat();
    let (message, stays) = forgery.of(greeting(b"MLSSHM\x00\x02", theirs, &to, false));
    let forger = thread::spawn(move || {
        let stream = if dials {
            accept_with(&listener, SocketFlags::CLOEXEC).expect("it dials")
        } else {
            let stream = unix();
            connect(&stream, &name(&to)).expect("it listens");
            stream
        };
        if !message.is_empty() {
            send(&stream, &message, SendFlags::NOSIGNAL).expect("a message fits");
        }
        let mut buffer = [0; 64];
        while stays && matches!(recv(&stream, &mut buffer, RecvFlags::empty()), Ok((1.., _))) {}
    });
    let error = offer.connect(&own).map(drop).expect_err("nobody is there");
    forger.join().expect("no panic");
    drop(fabric);
    error
}
