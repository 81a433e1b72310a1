//! Operators behind a join of windows of endless streams: groupings, DISTINCT, rankings, further
//! joins and UNION ALL in any order, whichever columns of the windows are selected; against
//! DataFusion over rows that have the bounds of their windows as columns.

use arrow::record_batch::RecordBatch;
use tests::asked::{Asked, check, endless, once_in_windows};
use tests::cases::cases;
use tests::memory::Table;
use tests::random::Random;

/// Slide and size in seconds.
type Lengths = (i64, i64);

/// The rows of a query, as far as the next query depends on them.
struct Rows {
    /// With the columns `k`, `v`, `we` and perhaps `ws`.
    sql: String,
    has_start: bool,
}

/// A side of a join: the rows of a stream in their windows.
fn side(name: &str) -> String {
    format!("(SELECT k, v, ws, we FROM [{name}] WHERE v % 4 = 0) {name}")
}

fn on(random: &mut Random, left: &str, right: &str) -> String {
    let equal = |column: &str| format!("{left}.{column} = {right}.{column}");
    match random.chance(70) {
        true => format!("{} AND {} AND {}", equal("k"), equal("ws"), equal("we")),
        false => format!("{} AND {}", equal("we"), equal("k")),
    }
}

/// A join of two streams.
fn joined(random: &mut Random) -> Rows {
    let kind = *random.one_of(&["", "", "LEFT", "RIGHT", "FULL"]);
    let on = on(random, "a", "b");
    let has_start = random.chance(50) && on.contains("ws");
    let of = |column: &str| match kind {
        "RIGHT" => format!("b.{column}"),
        "FULL" => format!("coalesce(a.{column}, b.{column})"),
        _ => format!("a.{column}"),
    };
    let start = if has_start { format!("{} AS ws, ", of("ws")) } else { String::new() };
    let value = random.one_of(&["a.v", "b.v"]);
    let (k, we, a, b) = (of("k"), of("we"), side("a"), side("b"));
    let sql = format!(
        "SELECT {k} AS k, {start}{we} AS we, {value} AS v FROM {a} {kind} JOIN {b} ON {on}"
    );
    Rows { sql, has_start }
}

/// Another query of these rows, which has the same columns.
fn behind(random: &mut Random, Rows { sql, has_start }: Rows) -> Rows {
    let start = if has_start { "ws, " } else { "" };
    let sql = match random.below(6) {
        0 => format!("SELECT k, {start}we, sum(v) AS v FROM ({sql}) GROUP BY k, {start}we"),
        1 => format!("SELECT DISTINCT k, {start}we, v FROM ({sql})"),
        2 => format!(
            "SELECT k, {start}we, v FROM (SELECT *, row_number() OVER (PARTITION BY {start}we
               ORDER BY v, k) AS r FROM ({sql})) WHERE r <= 3"
        ),
        3 => {
            let c = side("c");
            let starts = if has_start { "j.ws = c.ws AND " } else { "" };
            let kind = random.one_of(&["", "LEFT"]);
            let start = if has_start { "j.ws, " } else { "" };
            format!(
                "WITH j AS ({sql}) SELECT j.k, {start}j.we, c.v AS v FROM j {kind} JOIN {c}
                 ON j.k = c.k AND {starts}j.we = c.we"
            )
        }
        4 => format!(
            "SELECT k, {start}we, v FROM ({sql}) UNION ALL
             SELECT k, {start}we, v FROM {}",
            side("c")
        ),
        _ => format!("SELECT k, {start}we, v + 1 AS v FROM ({sql}) WHERE k <> 1"),
    };
    Rows { sql, has_start }
}

fn asked(random: &mut Random, (slide, size): Lengths) -> Asked {
    let mut rows = joined(random);
    for _ in 0..1 + random.below(3) {
        rows = behind(random, rows);
    }
    let Rows { sql, has_start } = rows;
    let by = if has_start && random.chance(50) { "ws, we" } else { "we" };
    let sql = format!("SELECT {by}, count(*), sum(v), max(k) FROM ({sql}) GROUP BY {by}");
    let of = |text: &str, window: &dyn Fn(&str) -> String| {
        ["a", "b", "c"]
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(&format!("[{name}]"), &window(name)))
    };
    let ours = of(&sql, &|name| {
        let lengths = format!("INTERVAL '{slide}' SECOND, INTERVAL '{size}' SECOND");
        let window = match slide == size {
            true => format!("TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)"),
            false => format!("HOP(TABLE {name}, DESCRIPTOR(ts), {lengths})"),
        };
        format!("(SELECT k, v, window_start AS ws, window_end AS we FROM {window})")
    });
    Asked { ours, batch: of(&sql, &|name| name.to_owned()) }
}

#[test]
fn rows_of_joined_windows_go_on_with_their_window() {
    let mut rows = 0;
    let mut cases = cases(50);
    for seed in &mut cases {
        let mut random = Random::new(seed + 81_000);
        let streams = [(); 3].map(|()| endless(&mut random));
        let (slide, size) = *random.one_of(&[(1, 1), (3, 3), (2, 4)]);
        let asked = asked(&mut random, (slide, size));
        let names = ["a", "b", "c"].into_iter();
        let tables: Vec<(&str, &Table)> =
            names.clone().zip(streams.iter().map(|stream| &stream.table)).collect();
        let all = streams.iter().map(|stream| once_in_windows(stream, slide, size));
        let all: Vec<(&str, RecordBatch)> = names.zip(all).collect();
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 400, &format!("{rows} rows"));
}
