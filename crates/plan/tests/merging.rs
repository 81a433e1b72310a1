//! Rows that are kept by key and merged late: where they may be, and what EXPLAIN says of it.

use dataflow::job::{Distribution, Exchange, OperatorKind};

use crate::plans::plan_on;

/// Rows of windows and of times that are near may be kept where they are read; operators that emit
/// rows as they come take them as they are read.
#[test]
fn joins_merge_late_where_that_is_asked_for() {
    let window = "SELECT * FROM TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' HOUR)";
    let windows = format!(
        "l.origin FROM ({window}) AS l JOIN ({window}) AS r ON l.window_start = r.window_start
           AND l.window_end = r.window_end AND l.origin = r.origin"
    );
    let near = "l.origin FROM flights l JOIN flights r
                  ON l.origin = r.origin AND l.ts BETWEEN r.ts - INTERVAL '1' HOUR AND r.ts";
    let exchanges = |sql: &str| {
        let stages = plan_on(4, sql);
        let keyed = stages[0].job.operators.iter().filter_map(|one| match &one.kind {
            OperatorKind::Keyed(keyed) => Some(keyed.exchange),
            _ => None,
        });
        (keyed.collect::<Vec<_>>(), stages[0].explain.text())
    };
    for join in [&windows, near] {
        let (chosen, text) = exchanges(&format!("SELECT {join}"));
        assert_eq!(chosen, [Exchange::Shuffle], "{text}");
        let set = "SET millstream.exchange = 'merge'";
        let (chosen, text) = exchanges(&format!("{set}; SELECT {join}"));
        assert_eq!(chosen, [Exchange::Merge], "{text}");
        assert!(text.contains(&format!("merge(l.origin): {set}")), "{text}");
        assert!(text.contains("cost: merge "), "{text}");
        assert!(text.contains(" cycles a row, shuffle "), "{text}");
        let (chosen, text) = exchanges(&format!("SELECT /*+ EXCHANGE('merge') */ {join}"));
        assert_eq!(chosen, [Exchange::Merge], "{text}");
        assert!(text.contains("merge(l.origin): hint EXCHANGE('merge') at 1:12"), "{text}");
        let (chosen, text) =
            exchanges(&format!("SET millstream.exchange = 'uppar'; SELECT {join}"));
        assert_eq!(chosen, [Exchange::UpPar], "{text}");
    }
    let over = "SET millstream.exchange = 'merge';
                SELECT sum(distance) OVER (PARTITION BY origin ORDER BY ts) FROM flights";
    assert_eq!(exchanges(over).0, [Exchange::Shuffle]);
}

/// Rows near in time without a key have nothing to be led by: they are not merged, and a side is
/// broadcast as if nothing had been asked for.
#[test]
fn joins_without_a_key_are_broadcast_where_others_merge() {
    let join = "SELECT l.origin FROM flights l JOIN flights r
                  ON l.ts BETWEEN r.ts - INTERVAL '1' HOUR AND r.ts";
    for set in ["", "SET millstream.exchange = 'merge';"] {
        let stages = plan_on(4, &format!("{set} {join}"));
        let keyed = stages[0].job.operators.iter().find_map(|one| match &one.kind {
            OperatorKind::Keyed(keyed) => Some(keyed),
            _ => None,
        });
        let to: Vec<_> = keyed.unwrap().inputs.iter().map(|input| input.distribution).collect();
        assert!(to.contains(&Distribution::Broadcast), "{set} {to:?}");
    }
}
