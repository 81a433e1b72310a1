use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use fabric::Fabric;
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};

use super::{Carrier, Gather, ShuffleCounts, ShufflePlan, Sweep, run};

/// The plan on threads.
fn all(
    carrier: &Carrier,
    nodes: usize,
    (rows, row_words): (u64, usize),
    threshold_bytes: usize,
) -> ShuffleCounts {
    let totals = on_each(nodes, |rank, gather| {
        let size = ShufflePlan { rank, nodes, rows, row_words, threshold_bytes };
        run(carrier, &size, size.right(), gather).expect("a right result").1
    });
    assert!(totals.iter().all(|total| total == &totals[0]), "all are told the same");
    totals[0]
}

/// Workers as threads that exchange what they say through a board.
fn on_each<T: Send>(nodes: usize, work: impl Fn(usize, &Gather<'_>) -> T + Sync) -> Vec<T> {
    let exchange = Mutex::new(vec![Vec::new(); nodes]);
    let barrier = Barrier::new(nodes);
    thread::scope(|scope| {
        let (exchange, barrier, work) = (&exchange, &barrier, &work);
        let workers: Vec<_> = (0..nodes)
            .map(|rank| {
                scope.spawn(move || {
                    let gather = |_: &str, bytes: Vec<u8>| {
                        exchange.lock().expect("no panic")[rank] = bytes;
                        barrier.wait();
                        let all = exchange.lock().expect("no panic").clone();
                        barrier.wait();
                        Ok(all)
                    };
                    work(rank, &gather)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    })
}

fn carriers() -> [Carrier; 3] {
    let shm: Arc<dyn Fabric> = ShmFabric::new(ShmOptions::default()).expect("shared memory");
    let tcp: Arc<dyn Fabric> = TcpFabric::new(TcpOptions::default()).expect("loopback");
    [Carrier::Rings(shm), Carrier::Rings(tcp), Carrier::Sockets]
}

#[test]
fn all_rows_arrive() {
    for carrier in carriers() {
        for (nodes, rows, words, threshold) in [
            (2, 20_000, 1, 8),
            (3, 30_000, 1, 100_000),
            (4, 10, 1, 64),
            (2, 3_000, 8, 16 << 10),
            (3, 2_000, 32, 16 << 10),
            // A row that is longer than a chunk should be.
            (2, 100, 32, 64),
            (2, 1, 3, 64),
        ] {
            let total = all(&carrier, nodes, (rows, words), threshold);
            assert_eq!(total.rows, rows * nodes as u64);
            // Each worker keeps its share; what it sends is in chunks of at most the threshold.
            let sent = (rows * 2 * (nodes as u64 - 1) / 2).saturating_sub(1);
            let of_chunk = (threshold / 8 / words).max(1) as u64;
            assert!(total.chunks >= sent / of_chunk, "{total:?}");
        }
    }
}

#[test]
fn the_right_sum_is_the_one_by_formula() {
    let size = ShufflePlan { rank: 0, nodes: 3, rows: 1000, row_words: 1, threshold_bytes: 8 };
    let even: u64 = (0..1500).map(|half| 3 * half).sum();
    // Of an odd 2h + 1, one half is lost.
    let odd: u64 = (0..1500).map(|half| 3 * half + 1).sum();
    assert_eq!(size.right(), (3000, even + odd));
    // Beside n stand n + 1 and n + 2.
    let size = ShufflePlan { row_words: 3, ..size };
    assert_eq!(size.right(), (3000, even + odd + 2 * (0..3000).sum::<u64>() + 3 * 3000));
}

#[test]
fn a_report_compares_the_first_with_the_others() {
    let [shm, _, sockets] = carriers();
    let sections = on_each(2, |rank, gather| {
        let carriers = vec![("rings".into(), shm.clone()), ("sockets".into(), sockets.clone())];
        let sweep = Sweep { carriers, rank, nodes: 2, rows: 5000, runs: 1 };
        sweep.run(gather).expect("figures")
    });
    let text = sections[0].to_string();
    assert!(text.contains("rings, chunks of 16 KiB, against sockets, each"), "{text}");
    assert_eq!(sections[0].tables[0].rows.len(), 9);
    // Two carriers and the paper's, of rows of two widths; asked of four processes and of eight.
    assert_eq!(sections[0].tables[1].rows.len(), 6, "{text}");
    assert!(sections[0].tables[1].rows.iter().flatten().all(|cell| cell != "–"), "{text}");
    assert_eq!(sections[0].bars.len(), 1, "{text}");
    assert!(text.contains("rings are"), "{text}");
}
