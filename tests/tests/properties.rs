//! P1 and P2 (S12): whatever the stream, the query, the number of workers and the exchange, the
//! rows are those of a sequential oracle and of DataFusion in batch.

use std::sync::atomic::{AtomicU64, Ordering};

use dataflow::job::Exchange;
use dataflow::metrics::OperatorMetrics;
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::oracle::{by_datafusion, on_time, sequential};
use tests::random::{Aggregate, Key, Query, Random};
use tests::scenario::Scenario;

/// Random streams with random queries, if nobody asks for more.
const CASES: u64 = 320;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 5] = [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3)];

#[test]
fn every_exchange_gives_the_rows_of_the_oracle_and_of_datafusion() {
    let (mut late_cases, mut idle_cases, mut rows, mut combined) = (0, 0, 0, 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let scenario = Scenario::new(seed);
        let (counted, late) = on_time(&scenario.stream.flows, &scenario.query);
        let expected = sequential(&counted, &scenario.query);
        let batch = by_datafusion(&counted, &scenario.query);
        assert_eq!(batch, expected, "seed {seed}: the two oracles, {}", scenario.query.batch());
        late_cases += u64::from(late > 0);
        idle_cases += u64::from(scenario.stream.idle);
        rows += expected.len();

        let (nodes, workers) = SIZES[seed as usize % SIZES.len()];
        for (size, exchange) in [
            ((1, 1), Exchange::Merge),
            ((nodes, workers), Exchange::Merge),
            ((nodes, workers), Exchange::Shuffle),
            ((nodes, workers), Exchange::UpPar),
        ] {
            combined += check(&scenario, size, exchange, &expected, late).combined;
        }
    }
    let met = late_cases > CASES / 10 && idle_cases > CASES / 10 && rows > 10_000;
    let met = met && combined > rows as u64 / 100;
    cases.met(
        met,
        &format!("{late_cases} late, {idle_cases} idle, {rows} rows, {combined} combined"),
    );
}

/// One loop looks whether times are in order, filters, computes keys or looks them up, and folds,
/// until something is not as it should be.
#[test]
fn rows_that_one_loop_reads_and_folds_give_the_rows_of_the_oracle() {
    let (mut fused, mut looked, mut rows) = (0, 0, 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let mut scenario = Scenario::new(seed);
        let mut random = Random::new(!seed);
        let Query { keys, aggregates, filter, .. } = &mut scenario.query;
        *keys = vec![*random.one_of(&[Key::K, Key::KDiv3, Key::OfB])];
        *aggregates = vec![Aggregate::Count];
        if !scenario.stream.idle && random.chance(30) {
            *aggregates = vec![*random.one_of(&[Aggregate::MinTs, Aggregate::MaxV])];
            *filter = None;
        }
        let (counted, late) = on_time(&scenario.stream.flows, &scenario.query);
        let expected = sequential(&counted, &scenario.query);
        for size in [(1, 1), (2, 1)] {
            let taken = check(&scenario, size, Exchange::Merge, &expected, late).fused;
            let by_table = scenario.query.keys == [Key::OfB];
            fused += taken;
            looked += if by_table { taken } else { 0 };
            if by_table {
                check(&scenario, size, Exchange::Shuffle, &expected, late);
            }
        }
        rows += 2 * scenario.stream.flows.iter().map(|flow| flow.len() as u64).sum::<u64>();
    }
    let met = fused > rows / 20 && fused < rows && looked > rows / 100;
    cases.met(met, &format!("{fused} of {rows} rows, {looked} by a table"));
}

/// How many rows of a grouping did not go the way of all others.
struct Shortened {
    /// Folded as they were read.
    fused: u64,
    /// Of frequent keys, folded in front of a shuffle.
    combined: u64,
}

fn check(
    scenario: &Scenario,
    (nodes, workers): (u32, u32),
    exchange: Exchange,
    expected: &[String],
    late: u64,
) -> Shortened {
    let seed = scenario.seed;
    let at = format!("seed {seed}, {nodes}x{workers}, {exchange}: {}", scenario.query.ours());
    let cluster = Cluster::seeded(nodes, workers, seed);
    let answer = scenario.run(&cluster, exchange).unwrap_or_else(|error| panic!("{at}: {error}"));
    let sum = |of: fn(&OperatorMetrics) -> &AtomicU64| {
        let operators = answer.run.metrics.iter().flat_map(|metrics| metrics.operators());
        operators.map(|operator| of(operator).load(Ordering::Relaxed)).sum()
    };
    let shortened =
        Shortened { fused: sum(|one| &one.rows_fused), combined: sum(|one| &one.rows_combined) };
    if answer.late != late {
        // Who was idle may find that time went on without it: then more rows are late, but none is
        // lost.
        assert!(scenario.stream.idle && answer.late > late, "{at}: {} late", answer.late);
        let count = |row: &String| row.rsplit('|').next().and_then(|n| n.parse::<u64>().ok());
        let total = |rows: &[String]| rows.iter().filter_map(count).sum::<u64>();
        assert_eq!(
            total(&answer.rows) + answer.late,
            total(expected) + late,
            "{at}: rows are lost"
        );
        return shortened;
    }
    assert_eq!(answer.rows, expected, "{at}");
    shortened
}
