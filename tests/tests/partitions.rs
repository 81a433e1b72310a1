//! `OVER` in any order, over tables that end, on clusters of several sizes and by every exchange,
//! against DataFusion over all rows at once.

use tests::asked::{check, same};
use tests::cases::cases;
use tests::random::{Random, batch, stream};

/// Orders over all columns, so that only equal rows are peers.
const ORDERS: [&str; 3] = [
    "v DESC NULLS LAST, k NULLS FIRST, s, w, ts",
    "w, ts DESC, k, s NULLS FIRST, v",
    "ts, k NULLS FIRST, s NULLS FIRST, v NULLS FIRST, w NULLS FIRST",
];

fn frame(random: &mut Random) -> String {
    let (from, to) = (random.below(4), random.below(4));
    let from = match random.below(3) {
        0 => "UNBOUNDED PRECEDING".into(),
        1 => format!("{from} PRECEDING"),
        _ => "CURRENT ROW".to_owned(),
    };
    let to = match random.below(3) {
        0 => "UNBOUNDED FOLLOWING".into(),
        1 => format!("{to} FOLLOWING"),
        _ => "CURRENT ROW".to_owned(),
    };
    format!("ROWS BETWEEN {from} AND {to}")
}

/// A function over rows in the order and partitions `main`, or over `others` without an order: rows
/// that are equal in all columns have an arbitrary order, which may differ between two windows.
fn function(random: &mut Random, main: &str, others: &str, order: &str) -> String {
    let values = ["count(*)", "sum(v)", "min(w)", "max(s)", "count(DISTINCT k)", "sum(w - v)"];
    let framed = ["first_value(v)", "last_value(w)", "nth_value(v, 2)", "count(v)", "max(v)"];
    let ranks = ["row_number()", "rank()", "ntile(3)", "lag(v)", "lead(w, 2, -1)", "dense_rank()"];
    match random.below(3) {
        0 => format!("{} OVER ({others})", random.one_of(&values)),
        1 => {
            let frame = frame(random);
            format!("{} OVER ({main} ORDER BY {order} {frame})", random.one_of(&framed))
        }
        _ => format!("{} OVER ({main} ORDER BY {order})", random.one_of(&ranks)),
    }
}

#[test]
fn partitions_are_whole_wherever_their_rows_were_read() {
    let mut rows = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 91_000);
        let mut stream = stream(&mut random);
        stream.table.bounded = true;
        let partitions = ["", "PARTITION BY k", "PARTITION BY s", "PARTITION BY k % 3, s"];
        let main = random.one_of(&partitions);
        let order = *random.one_of(&ORDERS);
        let calls = (0..1 + random.below(4)).map(|call| {
            let others = if random.chance(60) { main } else { random.one_of(&partitions) };
            format!("{} AS f{call}", function(&mut random, main, others, order))
        });
        let calls = calls.collect::<Vec<_>>().join(", ");
        let inner = random.one_of(&["", "WHERE k > 0", "WHERE v IS NOT NULL", "WHERE k < -9"]);
        let query = match random.below(3) {
            0 => format!(
                "SELECT k, count(*), max(f0) FROM (SELECT k, {calls} FROM t {inner}) GROUP BY k"
            ),
            _ => format!("SELECT k, s, v, w, {calls} FROM t {inner}"),
        };
        let all: Vec<_> = stream.flows.iter().flatten().cloned().collect();
        rows += check(&same(query), &[("t", &stream.table)], &[("t", batch(&all))], seed);
    }
    cases.met(rows > 4_000, &format!("{rows} rows"));
}
