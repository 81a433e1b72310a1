use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use channel::{RingConfig, Transfer};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{Caps, Fabric, FabricError, LinkId, Offer, RemoteKey, Slab, SlabRange};

use super::published::{Published, ReadSetup};
use super::run::{LinkSetup, Wait, ping, stream};
use super::sends::sends;
use super::{Effort, Transport, measure, raw};

const SPAN: Duration = Duration::from_millis(2);

#[test]
fn a_stream_counts_what_it_costs() {
    let fabric = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    for wait in [Wait::Spin, Wait::Block] {
        let run =
            stream(&*fabric, &LinkSetup { wait, ..LinkSetup::of(1000) }, SPAN).expect("a stream");
        assert!(run.messages > 0 && run.bytes == run.messages * 1000);
        // A write for each frame and one for the end, and what was padded and said beside.
        assert_eq!(run.stats[0].writes, run.messages + 1);
        assert_eq!(run.stats[0].ring_bytes_sent, run.messages * 1088 + 64);
        assert_eq!(run.stats[1].frames_received, run.messages + 1);
        assert!(run.requests() >= 1.0 && run.completions() > 0.0);
    }
}

#[test]
fn gathered_messages_share_frames() {
    let fabric = TcpFabric::new(TcpOptions::default()).expect("loopback");
    let setup = LinkSetup { gather_bytes: 4096, ..LinkSetup::of(64) };
    let run = stream(&*fabric, &setup, SPAN).expect("a stream");
    assert_eq!(run.messages, (run.stats[0].writes - 1) * 64);
}

#[test]
fn times_are_of_one_way() {
    let fabric = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    let times = ping(&*fabric, &LinkSetup::of(64), 100).expect("a ping");
    assert!(times.p50() > 0.0 && times.p50() <= times.p99());
    assert!(raw::ping_pong(100).p50() > 0.0);
}

#[test]
fn both_ends_come_to_an_end_where_one_reads() {
    let shm = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    let tcp = TcpFabric::new(TcpOptions::default()).expect("loopback");
    let fabrics: [&dyn Fabric; 2] = [&*shm, &*tcp];
    for fabric in fabrics {
        for wait in [Wait::Spin, Wait::Block] {
            let setup = LinkSetup { wait, ..LinkSetup::of(1000) };
            let setup =
                LinkSetup { ring: RingConfig { transfer: Transfer::Read, ..setup.ring }, ..setup };
            let run = stream(fabric, &setup, SPAN).expect("a stream");
            assert_eq!((run.stats[0].writes, run.stats[0].in_flight), (0, 0));
            assert!(run.stats[1].reads > run.messages);
            assert!(ping(fabric, &setup, 50).expect("a ping").p50() > 0.0);
        }
    }
}

#[test]
fn published_memory_is_read_by_copies_and_in_place() {
    let shm: Arc<dyn Fabric> = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    let tcp: Arc<dyn Fabric> = TcpFabric::new(TcpOptions::default()).expect("loopback");
    for (fabric, maps) in [(shm, true), (tcp, false)] {
        let mut published = Published::new(&fabric).expect("memory");
        for window in [Some(1), Some(10), None] {
            let setup = ReadSetup { block_bytes: 1 << 20, window };
            let run = published.read(setup, SPAN).expect("the connection stands");
            assert_eq!(run.is_some(), maps || window.is_some());
            assert!(run.is_none_or(|run| run.rate() > 0.0 && run.blocks.is_multiple_of(64)));
        }
    }
}

#[test]
fn messages_are_sent_in_order_and_whole() {
    let shm: Arc<dyn Fabric> = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    let tcp: Arc<dyn Fabric> = TcpFabric::new(TcpOptions::default()).expect("loopback");
    for fabric in [shm, tcp] {
        let most = fabric.caps().max_send;
        for bytes in [8, 64, most] {
            for span in [Duration::ZERO, SPAN] {
                let run = sends(&*fabric, bytes, span).expect("the connection stands");
                assert!(run.messages > 0 && run.bytes == run.messages * bytes as u64, "{run:?}");
                assert!(run.rate() > 0.0 && run.message_rate() > 0.0, "{run:?}");
            }
        }
        assert!(sends(&*fabric, most + 1, SPAN).is_err(), "it is too large");
    }
}

#[test]
fn a_report_has_each_transport_or_the_reason_why_not() {
    let shm = Transport {
        name: "shm".into(),
        open: Box::new(|publish| {
            let publish = publish.unwrap_or(ShmOptions::default().publish);
            Ok(ShmFabric::new(ShmOptions { publish, ..ShmOptions::default() })?)
        }),
    };
    let gone = Transport {
        name: "verbs".into(),
        open: Box::new(|_| Err(FabricError::Device { detail: "no device".into() })),
    };
    let report = measure(&[shm, gone], Effort { span: SPAN, runs: 1, peers_max: 2 });
    let text = report.to_string();
    for part in [
        "verbs: NOT MEASURED",
        "no device",
        "Transport shm",
        "C: a notice a write",
        "Messages written, read or sent; 1024 bytes",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.contains("Rows scattered to peers") && !text.contains("memcpy: NOT"), "{text}");
    assert_eq!(report.bars().count(), 3);
}

/// Shared memory that makes so many connections and no more.
struct Tired {
    shm: Arc<ShmFabric>,
    left: AtomicUsize,
}

impl Fabric for Tired {
    fn name(&self) -> &'static str {
        "tired"
    }

    fn caps(&self) -> Caps {
        self.shm.caps()
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        self.shm.slab(bytes)
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        let left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => self.shm.offer(link),
            Err(_) => Err(FabricError::Device { detail: "no more connections".into() }),
        }
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.shm.publish(range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.shm.unpublish(key);
    }
}

#[test]
fn a_part_that_fails_is_named_and_the_report_is_kept() {
    // As many as the streams and pings by size need, whose tables are there then.
    for (connections, there) in [(0, false), (2 * (8 + 2 * 6) + 4, true)] {
        let tired = Transport {
            name: "tired".into(),
            open: Box::new(move |_| {
                let shm = ShmFabric::new(ShmOptions::default())?;
                Ok(Arc::new(Tired { shm, left: AtomicUsize::new(connections) }))
            }),
        };
        let report = measure(&[tired], Effort { span: SPAN, runs: 1, peers_max: 2 });
        let text = report.to_string();
        assert!(text.contains("credits: NOT MEASURED: tired:"), "{text}");
        assert!(text.contains("no more connections"), "{text}");
        let sizes = text.contains("Streams by size of a message, a frame each");
        assert_eq!(sizes, there, "{text}");
    }
}
