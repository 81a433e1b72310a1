//! TCP passes the conformance suite, connects real processes, and survives hostile and slow peers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::conformance::{self, Bed, pattern};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{
    Armed, Completion, Endpoint, ErrorKind, Fabric, FabricError, Flags, LinkId, OpId, Publish,
    RemoteKey, RemoteRange, Slab, Src,
};

mod greeting;
mod processes;

use greeting::{GREETING_BYTES, greeting, place};

const TIMEOUT: Duration = Duration::from_secs(10);

struct TcpBed([Arc<TcpFabric>; 2]);

impl TcpBed {
    fn new(options: &TcpOptions) -> Self {
        Self([fabric(options), fabric(options)])
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

impl Bed for TcpBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

fn fabric(options: &TcpOptions) -> Arc<TcpFabric> {
    TcpFabric::new(options.clone()).expect("loopback")
}

#[test]
fn passes_the_conformance_suite_whatever_it_promises() {
    for (publish, checksum) in
        [(Publish::Notify, true), (Publish::InOrderPoll, true), (Publish::Notify, false)]
    {
        let options = TcpOptions { publish, checksum, ..TcpOptions::default() };
        let report = conformance::run(&mut TcpBed::new(&options));
        assert_eq!(report.passed.len(), conformance::cases().len());
    }
}

#[test]
fn passes_the_conformance_suite_with_small_socket_buffers() {
    let options = TcpOptions { socket_bytes: Some(64 << 10), ..TcpOptions::default() };
    let report = conformance::run(&mut TcpBed::new(&options));
    assert_eq!(report.passed.len(), conformance::cases().len());
}

#[test]
fn second_process() {
    processes::second(|| fabric(&TcpOptions::default()));
}

#[test]
fn two_processes_exchange_messages() {
    processes::exchange(&*fabric(&TcpOptions::default()), "second_process");
}

#[test]
fn a_killed_process_is_noticed() {
    for sleeps in [false, true] {
        processes::notices_death(&*fabric(&TcpOptions::default()), "second_process", sleeps);
    }
}

/// Writes of all sizes, from many places, over a socket that takes a little at a time.
#[test]
fn partial_writes_and_reads_lose_nothing() {
    const BYTES: usize = 1 << 20;
    let options = TcpOptions { socket_bytes: Some(64 << 10), ..TcpOptions::default() };
    let mut bed = TcpBed::new(&options);
    let [mut a, mut b] = bed.pair();
    let (source, target) = (bed.0[0].slab(BYTES), bed.0[1].slab(BYTES));
    let (source, target) = (source.expect("memory"), target.expect("memory"));
    let key = b.export(&target.range(0..BYTES).expect("all")).expect("own memory");
    for (word, bytes) in pattern(1, BYTES).chunks(8).enumerate() {
        let value = u64::from_le_bytes(bytes.try_into().expect("a word"));
        source.store(8 * word, value, Ordering::Relaxed);
    }
    let (mut at, mut len, mut imm) = (0, 1, 0);
    let (mut seen_a, mut seen_b) = (Vec::new(), Vec::new());
    let mut granted = 0;
    while at < BYTES {
        let end = (at + len).min(BYTES);
        let src = source.range(at..end).expect("in bounds");
        let dst = RemoteRange { key, offset: at as u64 };
        if granted <= imm {
            b.post_recvs(16);
            granted += 16;
        }
        match a.write_notify(Src::Slab(&src), dst, imm, OpId(imm.into()), Flags::SIGNAL) {
            Ok(()) => {
                (at, len, imm) = (end, (len * 3 + 1) % 99_991, imm + 1);
                a.submit();
            }
            Err(refused) => assert_eq!(refused, fabric::PostError::Full),
        }
        a.poll(&mut seen_a);
        b.poll(&mut seen_b);
    }
    let start = Instant::now();
    while seen_b.len() < imm as usize || seen_a.len() < imm as usize {
        a.poll(&mut seen_a);
        b.poll(&mut seen_b);
        assert!(start.elapsed() < TIMEOUT);
    }
    assert!(seen_a.iter().enumerate().all(|(i, c)| *c == Completion::Local { id: OpId(i as u64) }));
    assert!(seen_b.iter().enumerate().all(|(i, c)| *c == Completion::Notify { imm: i as u32 }));
    for word in (0..BYTES).step_by(8) {
        let (sent, got) =
            (source.load(word, Ordering::Relaxed), target.load(word, Ordering::Relaxed));
        assert_eq!(sent, got, "byte {word}");
    }
}

/// A peer that knows the protocol as far as the greeting, and then says what it likes.
struct Stranger {
    end: Box<dyn Endpoint>,
    memory: Slab,
    key: RemoteKey,
    stream: TcpStream,
}

impl Stranger {
    fn connect() -> Self {
        let options = TcpOptions { checksum: false, ..TcpOptions::default() };
        let fabric = fabric(&options);
        let offer = fabric.offer(LinkId { local: 1, remote: 0 }).expect("an offer");
        let address = offer.address();
        let token = [7; 16];
        let mut own = address.clone();
        own[8..24].copy_from_slice(&token);
        let connecting = std::thread::spawn(move || offer.connect(&own));
        let mut stream = TcpStream::connect(place(&address)).expect("it listens");
        stream.write_all(&greeting(0, 1, &address[8..24], &token)).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream.read_exact(&mut [0; GREETING_BYTES]).expect("it answers");
        stream.set_nonblocking(true).expect("a socket");
        let mut end = connecting.join().expect("no panic").expect("connects");
        let memory = fabric.slab(4096).expect("memory");
        let key = end.export(&memory.range(0..4096).expect("all")).expect("own memory");
        Self { end, memory, key, stream }
    }

    /// Polls the endpoint until it failed; returns how.
    fn outcome(&mut self) -> ErrorKind {
        let (start, mut seen) = (Instant::now(), Vec::new());
        loop {
            self.end.poll(&mut seen);
            let mut kinds = seen.iter().filter_map(|completion| match completion {
                Completion::Error { kind, .. } => Some(*kind),
                _ => None,
            });
            if let Some(kind) = kinds.next() {
                return kind;
            }
            assert!(start.elapsed() < TIMEOUT, "the endpoint did not fail");
        }
    }

    fn say(&mut self, frame: &[u8]) {
        self.stream.write_all(frame).expect("a few bytes fit");
    }
}

fn frame(op: u8, imm: u32, len: u32, key: u64, offset: u64, id: u64) -> Vec<u8> {
    let mut out = vec![op, 0, 0, 0];
    out.extend_from_slice(&imm.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for word in [key, offset, id] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    // Without a checksum.
    out.extend_from_slice(&[0; 4]);
    out
}

#[test]
fn a_frame_that_breaks_the_protocol_ends_the_connection() {
    use ErrorKind::{Disconnected, ReceiverNotReady};
    type Breach = fn(u64) -> Vec<u8>;
    let breaches: [(&str, ErrorKind, Breach); 14] = [
        ("no such operation", Disconnected, |_| frame(99, 0, 0, 0, 0, 0)),
        ("padding in use", Disconnected, |key| {
            [&[1, 9][..], &frame(1, 0, 0, key, 0, 0)[2..]].concat()
        }),
        ("an unknown key", Disconnected, |key| frame(1, 0, 8, key ^ 1, 0, 0)),
        ("beyond the export", Disconnected, |key| frame(1, 0, 8, key, 4089, 0)),
        ("an offset that wraps", Disconnected, |key| frame(1, 0, 8, key, u64::MAX - 3, 0)),
        ("a huge write", Disconnected, |key| frame(1, 0, u32::MAX, key, 0, 0)),
        ("a huge read", Disconnected, |key| frame(3, 0, u32::MAX, key, 0, 0)),
        ("a huge message", Disconnected, |_| frame(6, 0, 1 << 30, 0, 0, 0)),
        ("a notice without a receive", ReceiverNotReady, |_| frame(2, 5, 0, 0, 0, 0)),
        ("a message without a receive", ReceiverNotReady, |_| frame(6, 0, 0, 0, 0, 0)),
        ("a misaligned atomic", Disconnected, |key| {
            [frame(4, 0, 8, key, 4, 0), vec![0; 8]].concat()
        }),
        ("an atomic without operand", Disconnected, |key| frame(4, 0, 0, key, 0, 0)),
        ("an answer to no question", Disconnected, |_| frame(8, 0, 8, 0, 0, 0)),
        ("more reads than announced", Disconnected, |key| frame(3, 0, 1, key, 0, 0).repeat(5)),
    ];
    for (what, kind, breach) in breaches {
        let mut stranger = Stranger::connect();
        stranger.say(&breach(stranger.key.key));
        assert_eq!(stranger.outcome(), kind, "{what}");
        assert_eq!(stranger.end.budget().ops, 0, "{what}");
        assert!((0..4096).step_by(8).all(|at| stranger.memory.load(at, Ordering::Relaxed) == 0));
    }
}

#[test]
fn a_refusal_names_the_operation() {
    let mut stranger = Stranger::connect();
    stranger.say(&frame(1, 0, 8, 12345, 0, 4711));
    assert_eq!(stranger.outcome(), ErrorKind::Disconnected);
    let mut message = Vec::new();
    let (start, mut chunk) = (Instant::now(), [0; 64]);
    while message.len() < 44 {
        match stranger.stream.read(&mut chunk) {
            Ok(0) => panic!("ended after {} bytes", message.len()),
            Ok(n) => message.extend_from_slice(&chunk[..n]),
            Err(_) => assert!(start.elapsed() < TIMEOUT),
        }
    }
    assert_eq!(message, frame(10, 0, 0, 0, 0, 4711));
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    for seed in 0..200 {
        let mut stranger = Stranger::connect();
        let noise = pattern(seed, 400);
        // Half of the runs look like frames at first.
        let mut bytes = noise.clone();
        if seed % 2 == 0 {
            let op = (seed / 2 % 10) as u8 + 1;
            bytes = frame(op, 1, u32::from(noise[0]), stranger.key.key, noise[1].into(), seed);
            bytes.extend_from_slice(&noise);
        }
        stranger.say(&bytes);
        drop(stranger.stream.shutdown(std::net::Shutdown::Write));
        stranger.outcome();
    }
}

#[test]
fn strangers_do_not_keep_the_peer_away() {
    let fabric = fabric(&TcpOptions::default());
    let offers =
        [0, 1].map(|local| fabric.offer(LinkId { local, remote: 1 - local }).expect("an offer"));
    let address = offers[1].address();
    // Some say nothing, some say nonsense, one knows the token of the offer but is not the peer.
    let mut silent = Vec::new();
    for i in 0..40 {
        let mut stream = TcpStream::connect(place(&address)).expect("it listens");
        match i % 3 {
            0 => {}
            1 => stream.write_all(&pattern(i, GREETING_BYTES)).expect("it listens"),
            _ => stream
                .write_all(&greeting(0, 1, &address[8..24], &[i as u8; 16]))
                .expect("it listens"),
        }
        silent.push(stream);
    }
    let [a, b] = TcpBed([fabric.clone(), fabric.clone()]).connect(offers);
    assert!(a.budget().ops > 0 && b.budget().ops > 0);
}

#[test]
fn connections_of_one_fabric_find_their_offers() {
    let fabric = fabric(&TcpOptions::default());
    let pairs: Vec<_> = (0..8)
        .map(|i| {
            let link = LinkId { local: 2 * i, remote: 2 * i + 1 };
            let back = LinkId { local: link.remote, remote: link.local };
            [fabric.offer(link).expect("an offer"), fabric.offer(back).expect("an offer")]
        })
        .collect();
    std::thread::scope(|scope| {
        for offers in pairs {
            let fabrics = [fabric.clone(), fabric.clone()];
            scope.spawn(move || {
                let [mut a, mut b] = TcpBed(fabrics).connect(offers);
                b.post_recvs(1);
                let (start, mut seen) = (Instant::now(), Vec::new());
                while a.budget().notices == 0 {
                    b.poll(&mut seen);
                    a.poll(&mut seen);
                    assert!(start.elapsed() < TIMEOUT);
                }
                a.send(b"hello", OpId(1)).expect("posts");
                a.submit();
                while seen.is_empty() {
                    b.poll(&mut seen);
                    assert!(start.elapsed() < TIMEOUT);
                }
                assert_eq!(seen, [Completion::Recv { bytes: b"hello".to_vec() }]);
            });
        }
    });
}

#[test]
fn who_sleeps_with_bytes_to_send_is_woken_when_there_is_room() {
    const BYTES: usize = 32 << 20;
    let mut bed = TcpBed::new(&TcpOptions::default());
    let [mut a, mut b] = bed.pair();
    let (source, target) = (bed.0[0].slab(BYTES), bed.0[1].slab(BYTES));
    let (source, target) = (source.expect("memory"), target.expect("memory"));
    let key = b.export(&target.range(0..BYTES).expect("all")).expect("own memory");
    source.store(BYTES - 8, 42, Ordering::Relaxed);
    let all = source.range(0..BYTES).expect("all");
    let dst = RemoteRange { key, offset: 0 };
    a.write(Src::Slab(&all), dst, OpId(1), Flags::SIGNAL).expect("posts");
    a.submit();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (start, mut seen) = (Instant::now(), Vec::new());
            while target.load(BYTES - 8, Ordering::Acquire) != 42 {
                b.poll(&mut seen);
                assert!(start.elapsed() < TIMEOUT);
            }
            b.submit();
        });
        let (start, mut seen) = (Instant::now(), Vec::new());
        while a.poll(&mut seen) == 0 {
            if let Armed::Fd(fd) = a.arm() {
                fabric::wait(&[fd], TIMEOUT);
            }
            assert!(start.elapsed() < TIMEOUT, "a wake-up was lost");
        }
        assert_eq!(seen, [Completion::Local { id: OpId(1) }]);
    });
}

#[test]
fn a_wait_in_vain_or_at_a_closed_door_is_an_error() {
    let options =
        TcpOptions { connect_timeout: Duration::from_millis(20), ..TcpOptions::default() };
    let fabric = fabric(&options);
    conformance::waits_in_vain(&*fabric);
    let offer = fabric.offer(LinkId { local: 0, remote: 1 }).expect("an offer");
    let mut closed = offer.address();
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    closed[24..26].copy_from_slice(&port.to_le_bytes());
    assert!(matches!(offer.connect(&closed), Err(FabricError::Connect { .. })));
    for bad in [&closed[1..], &closed[..25], b"", &[closed.clone(), vec![0]].concat()] {
        let offer = fabric.offer(LinkId { local: 0, remote: 1 }).expect("an offer");
        assert!(matches!(offer.connect(bad), Err(FabricError::Malformed { .. })));
    }
}
