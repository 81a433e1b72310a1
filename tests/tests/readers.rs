//! Workers that only read, and send to stateful workers (S16).

use std::sync::atomic::Ordering;

use dataflow::job::Exchange;
use dataflow::metrics::Metrics;
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::scenario::{Answer, Scenario};

use crate::simulation::check;

/// Seeds, if nobody asks for more.
const SEEDS: u64 = 100;

/// One to three of two to eight workers only read. The rows are those of the sequential oracle,
/// late ones are as many as where each flow is read, and workers that read keep nothing.
#[test]
fn workers_that_only_read_change_no_row() {
    let (mut fed, mut late) = (0, 0);
    let mut cases = cases(SEEDS);
    for seed in &mut cases {
        let scenario = Scenario::new(seed + 70_000);
        let (nodes, workers) = (2 + (seed % 3) as u32, 1 + (seed / 3 % 2) as u32);
        let total = nodes * workers;
        let readers = 1 + (seed / 6) as u32 % 3;
        let exchange =
            [Exchange::Merge, Exchange::Shuffle, Exchange::UpPar][(seed / 2 % 3) as usize];
        let more = format!("SET millstream.readers = {readers};");
        let answer = scenario.run_with(&Cluster::seeded(nodes, workers, seed), exchange, &more);
        let answer =
            answer.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
        check(seed, &scenario, &answer);
        let stateful = (total - readers.min(total - 1)) as usize;
        let of = |counter: fn(&Metrics) -> &std::sync::atomic::AtomicU64| {
            let value =
                |metrics: &std::sync::Arc<Metrics>| counter(metrics).load(Ordering::Relaxed);
            answer.run.metrics.iter().map(value).collect::<Vec<u64>>()
        };
        let (read, windows) = (of(|metrics| &metrics.rows_in), of(|metrics| &metrics.windows));
        let sent = of(|metrics| &metrics.groups_sent);
        assert_eq!(read[..stateful].iter().sum::<u64>(), 0, "seed {seed}: {read:?}");
        assert_eq!(windows[stateful..].iter().sum::<u64>(), 0, "seed {seed}: {windows:?}");
        assert_eq!(sent[stateful..].iter().sum::<u64>(), 0, "seed {seed}: {sent:?}");
        fed += read.iter().sum::<u64>();
        late += answer.late;
    }
    cases.met(fed > 20_000, &format!("only {fed} rows"));
    cases.met(late > 100, &format!("only {late} late rows"));
}

/// The same while connections break.
#[test]
fn what_readers_send_is_neither_lost_nor_doubled() {
    let mut reconnected = 0;
    let mut cases = cases(SEEDS / 2);
    for seed in &mut cases {
        let scenario = Scenario::new(seed + 80_000);
        let (nodes, workers) = (2 + (seed % 2) as u32, 1 + (seed / 2 % 2) as u32);
        let exchange = [Exchange::Merge, Exchange::Shuffle][(seed / 4 % 2) as usize];
        let ring = ["write", "read"][(seed / 8 % 2) as usize];
        let more = format!(
            "SET millstream.readers = {workers}; SET millstream.slots = 8;
             SET millstream.slot_bytes = '4 KiB'; SET millstream.ring_mode = '{ring}';"
        );
        let cluster =
            Cluster { breaks: Some(20 + seed % 100), ..Cluster::seeded(nodes, workers, seed) };
        let answer: Answer = scenario
            .run_with(&cluster, exchange, &more)
            .unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
        check(seed, &scenario, &answer);
        reconnected += answer.run.sum(|metrics| &metrics.reconnected_links);
    }
    cases.met(reconnected > 100, &format!("only {reconnected} ends of links went on"));
}
