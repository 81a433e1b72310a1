//! Rows that count several times: in grouping sets, and in windows of HOP without a grouping;
//! against DataFusion over each row as often as it counts.

use tests::asked::{Asked, check, endless, once_in_windows};
use tests::cases::cases;
use tests::random::Random;

/// Slide and size in seconds.
fn lengths(random: &mut Random) -> (i64, i64) {
    let size = *random.one_of(&[2, 10, 60]);
    let slide = *random.one_of(&[size, size, size / 2, (size + 2) / 3, size + 1]);
    (slide, size)
}

fn window((slide, size): (i64, i64)) -> String {
    match slide == size {
        true => format!("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)"),
        false => {
            let (slide, size) =
                (format!("INTERVAL '{slide}' SECOND"), format!("INTERVAL '{size}' SECOND"));
            format!("HOP(TABLE t, DESCRIPTOR(ts), {slide}, {size})")
        }
    }
}

/// The same text over our windows and over rows that have them.
fn asked(lengths: (i64, i64), sql: &str) -> Asked {
    let ours = sql.replace("FROM t", &format!("FROM {}", window(lengths)));
    let ours = ours.replace("we", "window_end").replace("ws", "window_start");
    Asked { ours, batch: sql.to_owned() }
}

#[test]
fn grouping_sets_of_each_window() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 76_000);
        let stream = endless(&mut random);
        let lengths = lengths(&mut random);
        let sets = random.one_of(&[
            "ROLLUP(k, s)",
            "CUBE(k, s)",
            "ROLLUP(s, k), ROLLUP(s)",
            "GROUPING SETS ((k, s), (k), ())",
            "GROUPING SETS ((s), (s), (k, s), (k), (k))",
            "CUBE(k, s), ROLLUP(k)",
            "GROUPING SETS ((k, s))",
        ]);
        let told = random.one_of(&["GROUPING(k)", "GROUPING(s, k)", "GROUPING(k, s)", "max(k)"]);
        let calls = random.one_of(&[
            "count(*), sum(v)",
            "min(s), max(w), avg(v)",
            "count(s), sum(k) FILTER (WHERE v > 0)",
        ]);
        let (wanted, having) = (
            random.one_of(&["true", "v > -50", "s IS NOT NULL"]),
            random.one_of(&["true", "count(*) > 2", "GROUPING(k) = 0"]),
        );
        let sql = format!(
            "SELECT ws, we, k, s, {told}, {calls} FROM t WHERE {wanted}
             GROUP BY ws, we, {sets} HAVING {having}"
        );
        let all = once_in_windows(&stream, lengths.0, lengths.1);
        rows += check(&asked(lengths, &sql), &[("t", &stream.table)], &[("t", all)], seed);
    }
    cases.met(rows > 10_000, &format!("{rows} rows"));
}

#[test]
fn rows_in_several_windows_go_on_with_each() {
    let mut rows = 0;
    let mut cases = cases(60);
    for seed in &mut cases {
        let mut random = Random::new(seed + 77_000);
        let stream = endless(&mut random);
        let lengths = lengths(&mut random);
        let wanted = random.one_of(&[
            "true",
            "ts - ws < INTERVAL '3' SECOND",
            "v > 0 AND we > TIMESTAMP '1970-01-01 00:00:20'",
        ]);
        let sql = match random.below(4) {
            // A window gone by drops a row where it is waited for: here, in the number of rows.
            0 => format!(
                "SELECT k, v, ws, rn FROM (SELECT *, ROW_NUMBER() OVER (
                   PARTITION BY ws, we, k ORDER BY v, s, w, ts) AS rn FROM t WHERE {wanted}) AS r
                 WHERE rn <= 2"
            ),
            1 => format!(
                "SELECT l.ws, l.k, l.v, r.n
                 FROM (SELECT * FROM t WHERE {wanted}) AS l
                 LEFT JOIN (SELECT ws, we, k, max(v) AS n FROM t GROUP BY ws, we, k) AS r
                 ON l.ws = r.ws AND l.we = r.we AND l.k = r.k"
            ),
            2 => format!(
                "SELECT ws, k, max(we), min(ts), count(*) FROM t WHERE {wanted}
                          GROUP BY ws, we, k"
            ),
            _ => format!(
                "SELECT ws, count(*), sum(n) FROM (
                   SELECT ws, we, k, count(*) AS n FROM t WHERE {wanted} GROUP BY ws, we, k) AS g
                 GROUP BY ws, we"
            ),
        };
        let all = once_in_windows(&stream, lengths.0, lengths.1);
        rows += check(&asked(lengths, &sql), &[("t", &stream.table)], &[("t", all)], seed);
    }
    cases.met(rows > 10_000, &format!("{rows} rows"));
}
