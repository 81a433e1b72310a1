//! How rows travel between workers changes neither the rows nor whether they arrive.

use dataflow::job::Exchange;
use tests::cluster::Cluster;
use tests::scenario::{Answer, Scenario};

/// A stream of many rows that is never idle.
fn scenario() -> Scenario {
    let mut all = (0..).map(|seed| Scenario::new(seed + 30_000));
    all.find(|s| !s.stream.idle && s.stream.flows.iter().flatten().count() > 800)
        .expect("some stream is long")
}

fn run((nodes, workers): (u32, u32), exchange: Exchange, more: &str) -> Answer {
    let cluster = Cluster::seeded(nodes, workers, 5);
    let answer = scenario().run_with(&cluster, exchange, more);
    answer.unwrap_or_else(|error| panic!("{nodes}x{workers} {exchange}, {more}: {error}"))
}

#[test]
fn rings_of_either_mode_and_every_credit_give_the_same_rows() {
    // Small slots, so that credit counts.
    let small = "SET millstream.slots = 8; SET millstream.slot_bytes = '2 KiB';";
    for exchange in [Exchange::Shuffle, Exchange::Merge] {
        let plain = run((2, 2), exchange, small);
        assert!(!plain.rows.is_empty());
        let read = run((2, 2), exchange, &format!("{small} SET millstream.ring_mode = 'read';"));
        assert_eq!(read.rows, plain.rows, "{exchange}");
        assert_ne!(read.run.trace, plain.run.trace, "{exchange}: nothing is read");
        for mode in ["write", "read", "region"] {
            let traces = [1, 64].map(|slots| {
                let mode = format!("SET millstream.ring_mode = '{mode}';");
                let more = format!("{small} {mode} SET millstream.credit_slots = {slots};");
                let answer = run((2, 2), exchange, &more);
                assert_eq!(answer.rows, plain.rows, "{exchange}, {more}");
                answer.run.trace
            });
            assert_ne!(traces[0], traces[1], "{exchange}, {mode}: credit makes no difference");
        }
    }
}

#[test]
fn rows_leave_in_as_many_frames_as_the_threshold_makes_of_them() {
    let frames = |together: &str| {
        let more = format!("SET millstream.shuffle_bytes = '{together}';");
        let answer = run((2, 1), Exchange::Shuffle, &more);
        (answer.rows, answer.run.sum(|metrics| &metrics.frames_sent))
    };
    let (rows, many) = frames("1");
    let (same, few) = frames("1 MiB");
    assert_eq!(rows, same);
    assert!(many > few, "{many} frames of a row or more, {few} of a mebibyte or less");
}

#[test]
fn rows_of_a_process_are_handed_over_and_those_for_another_are_sent() {
    for exchange in [Exchange::Shuffle, Exchange::UpPar] {
        let answer = run((1, 4), exchange, "");
        assert_eq!(answer.run.sum(|metrics| &metrics.frames_sent), 0, "{exchange}");
        assert!(answer.run.sum(|metrics| &metrics.local_rows) > 0, "{exchange}");
        let both = run((2, 2), exchange, "");
        assert_eq!(both.rows, answer.rows, "{exchange}");
        assert!(both.run.sum(|metrics| &metrics.frames_sent) > 0, "{exchange}");
        assert!(both.run.sum(|metrics| &metrics.local_rows) > 0, "{exchange}");
        let apart = run((4, 1), exchange, "");
        assert_eq!(apart.rows, answer.rows, "{exchange}");
        assert_eq!(apart.run.sum(|metrics| &metrics.local_rows), 0, "{exchange}");
    }
}
