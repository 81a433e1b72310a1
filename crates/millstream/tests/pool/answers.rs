//! Answers of a server: one that was lost, long blocks, long messages.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use millstream::FabricKind;
use millstream::pool::{Client, MemoryServer, PoolAccess, PoolError, PoolOptions};
use pool::access::LoadMode;
use pool::manifest::Layout;
use pool::wire::{ClientRequest, ServerResponse, VERIFY_EXTENTS_MAX};

use crate::rig::{
    Dir, FABRICS, Raw, awaited, blocks, client, load, options, seal, serve, strips, sums,
    table_load, token_file, write, written,
};

/// The place at which a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The last part of a load does not arrive.
    Commit,
    /// It arrives, and its answer does not.
    Answer,
    /// Nothing is cut: the server promises this number of bytes of a manifest.
    Promise(u64),
    /// Nothing is cut: the server works on the removal of a table for this number of seconds.
    Works(u64),
}

/// Stands between clients and a server. Its first connection is cut; others are not.
struct Between {
    address: SocketAddr,
    token: std::path::PathBuf,
    /// How many pieces of manifests were asked for.
    manifests: Arc<AtomicUsize>,
}

impl Between {
    fn new(server: SocketAddr, cut: Cut) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let of_server = token_file(server);
        let token = of_server.with_file_name(format!("service-{address}.token"));
        std::fs::copy(of_server, &token).unwrap();
        let manifests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&manifests);
        std::thread::spawn(move || {
            let mut cut = Some(cut);
            while let Ok((client, _)) = listener.accept() {
                let cut = cut.take();
                let server = TcpStream::connect(server).unwrap();
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || pass(client, server, cut, &counted));
            }
        });
        Self { address, token, manifests }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.token);
    }
}

/// Passes messages until one side ends, or it is the time to cut.
fn pass(mut client: TcpStream, server: TcpStream, cut: Option<Cut>, manifests: &AtomicUsize) {
    let silent = Arc::new(AtomicBool::new(false));
    let (mut answers, mut received) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let is_silent = Arc::clone(&silent);
    let dropping = Arc::new(AtomicBool::new(false));
    let drops = Arc::clone(&dropping);
    let back = std::thread::spawn(move || {
        while let Some(body) = message(&mut answers) {
            if is_silent.load(Ordering::SeqCst) {
                // The answer to the commit is there, and goes nowhere.
                let _ = received.shutdown(Shutdown::Both);
            }
            let answer = match (ServerResponse::decode(&body).unwrap(), cut) {
                (ServerResponse::Pinned { version, lease, .. }, Some(Cut::Promise(bytes))) => {
                    ServerResponse::Pinned { version, lease, manifest_bytes: bytes }
                }
                (ServerResponse::Done, Some(Cut::Works(seconds)))
                    if drops.load(Ordering::SeqCst) =>
                {
                    for _ in 0..seconds {
                        let _ = received.write_all(&ServerResponse::Working.encode());
                        std::thread::sleep(Duration::from_secs(1));
                    }
                    ServerResponse::Done
                }
                (answer, _) => answer,
            };
            let _ = received.write_all(&answer.encode());
        }
        let _ = received.shutdown(Shutdown::Both);
    });
    let mut server = server;
    while let Some(body) = message(&mut client) {
        let request = ClientRequest::decode(&body).unwrap();
        if matches!(request, ClientRequest::Commit { last: true, .. }) {
            match cut {
                Some(Cut::Commit) => break,
                Some(Cut::Answer) => silent.store(true, Ordering::SeqCst),
                Some(Cut::Promise(_) | Cut::Works(_)) | None => {}
            }
        }
        if matches!(request, ClientRequest::Manifest { .. }) {
            manifests.fetch_add(1, Ordering::SeqCst);
        }
        dropping.store(matches!(request, ClientRequest::Drop { .. }), Ordering::SeqCst);
        server.write_all(&request.encode()).unwrap();
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    back.join().unwrap();
}

/// The body of the next message; `None` when the connection has ended.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut header = [0; 8];
    from.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
    from.read_exact(&mut body).ok()?;
    Some(body)
}

#[test]
fn a_client_takes_no_more_of_a_manifest_than_was_promised_or_may_be() {
    let server = serve(None);
    let loader = client(server.address(), FabricKind::Tcp);
    load(&loader, "t", LoadMode::Create, 0..1000).unwrap();
    for (promise, what) in
        [(u64::MAX, "length of a manifest"), ((1 << 30) + 1, "length of a manifest"), (7, "answer")]
    {
        let between = Between::new(server.address(), Cut::Promise(promise));
        let refused = sums(&client(between.address, FabricKind::Tcp), "t").unwrap_err();
        assert_eq!(refused, PoolError::Malformed { what }, "{promise} bytes");
    }
    assert_eq!(sums(&loader, "t").unwrap(), (1, 1000, 499_500));
}

#[test]
fn a_version_that_is_pinned_again_is_not_sent_again() {
    let server = serve(None);
    let loader = client(server.address(), FabricKind::Tcp);
    load(&loader, "t", LoadMode::Create, 0..1000).unwrap();
    let between = Between::new(server.address(), Cut::Works(0));
    let reader = client(between.address, FabricKind::Tcp);
    let asked = || between.manifests.load(Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(sums(&reader, "t").unwrap(), (1, 1000, 499_500));
        awaited("it has let go", || loader.stat().unwrap()[0].leases == 0);
    }
    assert_eq!(asked(), 1);
    load(&loader, "t", LoadMode::Overwrite, 0..10).unwrap();
    assert_eq!(sums(&reader, "t").unwrap(), (2, 10, 45));
    // A table that is made again has no version that another one had.
    millstream::pool::PoolAccess::drop_table(&loader, "t").unwrap();
    load(&loader, "t", LoadMode::Create, 0..20).unwrap();
    let (version, rows, sum) = sums(&reader, "t").unwrap();
    assert_eq!((rows, sum), (20, 190), "version {version}");
    assert_eq!(asked(), 3);
}

#[test]
fn a_loader_learns_the_truth_when_the_answer_to_its_commit_is_lost() {
    for kept in [false, true] {
        for cut in [Cut::Answer, Cut::Commit] {
            let dir = Dir::new();
            let server = serve(kept.then_some(&*dir.0));
            let between = Between::new(server.address(), cut);
            let loader = client(between.address, FabricKind::Tcp);
            let committed = load(&loader, "t", LoadMode::Create, 0..1000);
            let reader = client(server.address(), FabricKind::Tcp);
            match cut {
                Cut::Answer => {
                    committed.unwrap();
                    assert_eq!(sums(&reader, "t").unwrap(), (1, 1000, 499_500));
                }
                Cut::Commit => {
                    let lost = committed.unwrap_err();
                    assert!(matches!(lost, PoolError::Lost { .. }), "{lost}");
                    let none = sums(&reader, "t").unwrap_err();
                    assert!(matches!(none, PoolError::NoTable { .. }), "{none}");
                    let is_free = || reader.stat().unwrap()[0].bytes == 0;
                    awaited("what it had loaded is free", is_free);
                }
                Cut::Promise(_) | Cut::Works(_) => {}
            }
        }
    }
}

#[test]
fn a_client_waits_for_as_long_as_the_server_says_that_it_works() {
    let server = serve(None);
    // Longer than a server may be silent.
    let between = Between::new(server.address(), Cut::Works(5));
    let writer = client(between.address, FabricKind::Tcp);
    load(&writer, "t", LoadMode::Create, 0..1000).unwrap();
    millstream::pool::PoolAccess::drop_table(&writer, "t").unwrap();
    assert!(matches!(sums(&writer, "t").unwrap_err(), PoolError::NoTable { .. }));
}

#[test]
fn a_block_is_read_whole_however_long_it_is() {
    let server = serve(None);
    let writer = client(server.address(), FabricKind::Tcp);
    let text = |seed: u64, bytes: usize| {
        let value = |at: usize| (at as u64).wrapping_mul(seed | 1).to_le_bytes()[2];
        let offsets = [0u32, bytes as u32].map(u32::to_le_bytes).concat();
        offsets.into_iter().chain((0..bytes).map(value)).collect::<Vec<u8>>()
    };
    // A byte less and more than one READ, and several.
    let lengths = [3, (4 << 20) - 9, (4 << 20) - 8, (4 << 20) - 7, (13 << 20) + 5];
    let rows: Vec<_> = lengths.iter().map(|length| (1, text(77, *length))).collect();
    let load = written(&writer, "t", LoadMode::Create, Layout::Bytes, rows.clone()).unwrap();
    load.commit().unwrap();
    for fabric in FABRICS {
        let reader = client(server.address(), fabric);
        let (_, read) = blocks(&reader, "t").unwrap();
        assert!(read.iter().eq(rows.iter().map(|(_, bytes)| bytes)), "{fabric}");
    }
    let stat = writer.stat().unwrap().remove(0);
    let bytes: usize = rows.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(stat.read_bytes >= bytes as u64, "{stat:?}");
    assert!(stat.reads >= 9, "each has its parts: {stat:?}");
}

/// Long messages of which only the beginning comes.
fn half_messages(server: &MemoryServer, count: usize) -> Vec<Raw> {
    let half = |_| {
        let mut raw = Raw::greeted(server.address());
        raw.0.write_all(&(8_u32 << 20).to_le_bytes()).unwrap();
        raw.0.write_all(&[7; 100_000]).unwrap();
        raw
    };
    (0..count).map(half).collect()
}

#[test]
fn those_who_send_half_of_long_messages_disturb_nobody() {
    let mut options = options(None);
    options.lease = Duration::from_secs(2);
    let server = MemoryServer::start(options).unwrap();
    let halves = half_messages(&server, 40);
    let other = client(server.address(), FabricKind::Tcp);
    load(&other, "t", LoadMode::Create, 0..10_000).unwrap();
    assert_eq!(sums(&other, "t").unwrap(), (1, 10_000, 49_995_000));
    // A long message has its turn when theirs is over.
    let mut raw = Raw::greeted(server.address());
    let keys = ClientRequest::Keys { extents: vec![0; 60_000] };
    let refused = raw.ask(&keys);
    assert!(matches!(refused, ServerResponse::Failed(PoolError::Refused { .. })), "{refused:?}");
    for mut half in halves {
        while half.hear().is_some() {}
    }
    awaited("they have ended", || other.stat().unwrap()[0].clients <= 2);
}

#[test]
fn a_stranger_that_announces_a_long_message_is_sent_away() {
    let server = serve(None);
    let mut stranger = Raw(TcpStream::connect(server.address()).unwrap());
    stranger.0.write_all(&(8_u32 << 20).to_le_bytes()).unwrap();
    assert_eq!(stranger.hear(), None);
    awaited("nobody is left", || server.stats().get().clients == 0);
}

#[test]
fn extents_are_compared_a_few_at_a_time_beside_other_requests() {
    let server = serve(None);
    let loader = client(server.address(), FabricKind::Tcp);
    load(&loader, "t", LoadMode::Create, 0..100_000).unwrap();
    let mut raw = Raw::greeted(server.address());
    let compared = raw.ask(&ClientRequest::Verify { extents: vec![0] });
    assert_eq!(compared, ServerResponse::Done);
    for refused in [vec![0, 999], vec![0; VERIFY_EXTENTS_MAX]] {
        let refused = raw.ask(&ClientRequest::Verify { extents: refused });
        let is = matches!(refused, ServerResponse::Failed(PoolError::Refused { .. }));
        assert!(is, "{refused:?}");
    }
    let many = ClientRequest::Verify { extents: vec![0; VERIFY_EXTENTS_MAX + 1] };
    raw.0.write_all(&many.encode()).unwrap();
    assert_eq!(raw.hear(), None, "it is no message");
    // Memory that was compared comes back like other memory.
    millstream::pool::PoolAccess::drop_table(&loader, "t").unwrap();
    awaited("all is free", || loader.stat().unwrap()[0].bytes == 0);
}

#[test]
fn a_load_that_needs_what_another_gives_back_waits_for_it() {
    let mut options = options(None);
    options.bytes = 4 << 20;
    let server = MemoryServer::start(options).unwrap();
    let loader = client(server.address(), FabricKind::Tcp);
    for _ in 0..20 {
        // More than half of the server: it fits when the one before has come back.
        let values = || strips(0..300_000);
        let writer = written(&loader, "t", LoadMode::Create, Layout::Fixed(8), values()).unwrap();
        drop(writer);
        // The next one is of the same statement, and would take part in this one.
        awaited("the load is over", || loader.stat().unwrap()[0].loads == 0);
    }
    awaited("all is free", || loader.stat().unwrap()[0].bytes == 0);
    let full = load(&loader, "t", LoadMode::Create, 0..1_000_000).unwrap_err();
    assert!(matches!(full, PoolError::Full { .. }), "{full}");
}

#[test]
fn a_node_of_a_load_hears_why_another_one_has_given_it_up() {
    let server = serve(None);
    let at = server.address();
    for (fabric, step) in FABRICS.into_iter().flat_map(|fabric| (0..3).map(move |of| (fabric, of)))
    {
        let job = Some(u128::from(at.port()) << 64 | step);
        let node = || {
            let options = PoolOptions { fabric, job, ..PoolOptions::new(vec![at.to_string()]) };
            Client::new(options).unwrap()
        };
        let (one, other) = (node(), node());
        let table = table_load(&format!("t{step}"), LoadMode::Create, Layout::Fixed(8));
        let failing = one.begin_alone(&table, 2).unwrap();
        let writer = other.begin_alone(&table, 2).unwrap().writer(1, Waker::noop().clone());
        let mut writer = writer.unwrap();
        // The other one has written nothing, or all, or has sealed it.
        if step > 0 {
            write(&mut *writer, strips(0..4000)).unwrap();
        }
        if step > 1 {
            seal(&mut *writer).unwrap();
        }
        failing.failed("line 3\nhas no number");
        failing.failed("a consequence");
        drop(failing);
        awaited("the load has ended", || other.stat().unwrap()[0].loads == 0);
        let rest = if step == 0 { strips(0..4000) } else { vec![] };
        let sealed = write(&mut *writer, rest).and_then(|()| seal(&mut *writer));
        let error = sealed.and_then(|()| writer.commit()).unwrap_err();
        assert!(matches!(error, PoolError::GivenUp { .. }), "{error:?}");
        assert!(error.to_string().contains("failed: line 3 has no number"), "{error}");
        awaited("nothing is left", || other.stat().unwrap()[0].bytes == 0);
    }
}
