//! The whole engine, three to eight nodes of it, in the simulator.

use dataflow::job::Exchange;
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::oracle::{on_time, sequential};
use tests::scenario::{Answer, Scenario};

/// Seeds of network and stream, if nobody asks for more.
const SEEDS: u64 = 100;

fn run(seed: u64) -> (Scenario, Answer) {
    let scenario = Scenario::new(seed + 10_000);
    let nodes = 3 + (seed % 6) as u32;
    let exchange = match seed / 6 % 4 {
        0 => Exchange::Shuffle,
        1 => Exchange::UpPar,
        _ => Exchange::Merge,
    };
    let cluster = Cluster::seeded(nodes, 1, seed);
    let answer = scenario.run(&cluster, exchange);
    let answer = answer.unwrap_or_else(|error| panic!("seed {seed}, {nodes} nodes: {error}"));
    (scenario, answer)
}

/// The rows are those of the sequential oracle, unless more were late because a flow was idle.
pub(crate) fn check(seed: u64, scenario: &Scenario, answer: &Answer) {
    let (counted, late) = on_time(&scenario.stream.flows, &scenario.query);
    if answer.late == late {
        let expected = sequential(&counted, &scenario.query);
        assert_eq!(answer.rows, expected, "seed {seed}: {}", scenario.query.ours());
    } else {
        assert!(scenario.stream.idle && answer.late > late, "seed {seed}: late rows");
    }
}

#[test]
fn a_hundred_seeds_of_three_to_eight_nodes_are_right() {
    let mut events = 0;
    let mut cases = cases(SEEDS);
    for seed in &mut cases {
        let (scenario, answer) = run(seed);
        check(seed, &scenario, &answer);
        events += answer.run.steps;
    }
    cases.met(events > 100_000, &format!("only {events} turns"));
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let traces = |seed: u64| {
        let (_, answer) = run(seed);
        (answer.run.trace, answer.run.elapsed_ns, answer.run.steps)
    };
    for seed in [1, 2, 3] {
        assert_eq!(traces(seed), traces(seed), "seed {seed}");
    }
    let all: Vec<_> = (1..6).map(|seed| traces(seed).0).collect();
    for (i, a) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|b| a != b), "two seeds with one trace");
    }
}

#[test]
fn a_node_that_dies_ends_the_job_with_an_error_that_names_its_worker() {
    let scenario = (0..).map(|seed| Scenario::new(seed + 20_000));
    let scenario = scenario.into_iter().find(|s| s.stream.flows.iter().flatten().count() > 800);
    let scenario = scenario.expect("some stream is long");
    let mut cluster = Cluster::seeded(3, 1, 7);
    cluster.kill = Some((2, 40));
    let failed = scenario.run(&cluster, Exchange::Merge).expect_err("node 2 died");
    assert!(failed.to_string().contains("worker 2"), "{failed}");
}

/// Connections break all the time, and the rows are those of a run in which none does.
#[test]
fn connections_that_break_lose_and_double_nothing() {
    let mut reconnected = 0;
    let mut cases = cases(SEEDS);
    for seed in &mut cases {
        let scenario = Scenario::new(seed + 40_000);
        let nodes = 2 + (seed % 3) as u32;
        let exchange = if seed % 2 == 0 { Exchange::Merge } else { Exchange::Shuffle };
        let ring = ["write", "read", "region"][(seed / 2 % 3) as usize];
        let more = format!(
            "SET millstream.slots = 8; SET millstream.slot_bytes = '4 KiB';
             SET millstream.ring_mode = '{ring}';"
        );
        let workers = 1 + (seed / 4 % 2) as u32;
        let cluster =
            Cluster { breaks: Some(20 + seed % 100), ..Cluster::seeded(nodes, workers, seed) };
        let answer = scenario.run_with(&cluster, exchange, &more);
        let answer =
            answer.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
        check(seed, &scenario, &answer);
        reconnected += answer.run.sum(|metrics| &metrics.reconnected_links);
    }
    cases.met(reconnected > 500, &format!("only {reconnected} ends of links went on"));
}
