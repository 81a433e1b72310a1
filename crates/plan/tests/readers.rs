//! Workers that only read, and send to the others (S16).

use dataflow::job::{Distribution, Exchange, Operator, OperatorKind};

use crate::plans::plan_on;

const COUNT: &str = "SELECT origin, count(*) FROM
    TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' HOUR)
    GROUP BY window_start, window_end, origin";

/// The operators by name, of the exchange behind readers its own, and the text of EXPLAIN.
fn planned(workers: u32, sql: &str) -> (Vec<&'static str>, String) {
    let stages = plan_on(workers, sql);
    let name = |operator: &Operator| match &operator.kind {
        OperatorKind::Source(_) => "source",
        OperatorKind::Keyed(keyed)
            if keyed.inputs.iter().all(|input| input.distribution == Distribution::Partner) =>
        {
            "feeds"
        }
        OperatorKind::Sink(_) => "sink",
        OperatorKind::Aggregate(of) => match of.exchange {
            Exchange::Merge => "merge",
            Exchange::Shuffle => "shuffle",
            Exchange::Forward => "forward",
            Exchange::UpPar => "uppar",
        },
        _ => "other",
    };
    let names = stages[0].job.operators.iter().map(name).collect();
    (names, stages[0].explain.text())
}

#[test]
fn readers_feed_what_merges_and_lead_what_is_shuffled() {
    let of = |workers, readers: u32, exchange: &str| {
        let set = format!("SET millstream.exchange = '{exchange}';");
        planned(workers, &format!("{set} SET millstream.readers = {readers}; {COUNT}"))
    };
    let (merged, text) = of(4, 1, "merge");
    assert_eq!(merged, ["source", "feeds", "merge", "sink"], "{text}");
    let reason = "millstream.readers = 1: 1 of 4 workers only read, and send to the others";
    assert!(text.contains(reason), "{text}");
    // Rows that travel by their keys do so from where they are read.
    for exchange in ["shuffle", "uppar"] {
        let (names, text) = of(4, 1, exchange);
        assert_eq!(names, ["source", "shuffle", "sink"], "{text}");
        assert_eq!(text.contains(reason), exchange == "uppar", "{text}");
        assert!(!text.contains("half of the workers"), "{text}");
    }
    // One worker is always stateful, and a single one does both.
    let (names, text) = of(2, 9, "merge");
    assert_eq!(names, ["source", "feeds", "merge", "sink"]);
    assert!(text.contains("millstream.readers = 9: 1 of 2 workers only read"), "{text}");
    assert_eq!(of(1, 1, "auto").0, ["source", "forward", "sink"]);
    assert_eq!(of(4, 0, "merge").0, ["source", "merge", "sink"]);
}

#[test]
fn each_statement_is_fed_where_its_rows_would_stay() {
    let set = "SET millstream.readers = 2;";
    // Rows that are shown are sent to one worker by their reader.
    let (names, _) = planned(4, &format!("{set} SELECT origin FROM flights"));
    assert_eq!(names, ["source", "sink"]);
    let (names, text) = planned(
        4,
        &format!(
            "{set} BEGIN STATEMENT SET;
             INSERT INTO hourly SELECT ts, origin, 1 FROM flights;
             INSERT INTO hourly SELECT window_start, origin, count(*) FROM
               TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' HOUR)
               GROUP BY window_start, window_end, origin;
             END;"
        ),
    );
    assert_eq!(names, ["source", "sink", "source", "feeds", "merge", "sink"], "{text}");
}
