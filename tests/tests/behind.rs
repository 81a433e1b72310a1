//! Operators behind a join of windows: groupings, DISTINCT, grouping sets, rankings, OVER, further
//! joins, UNION ALL and views in any order, whichever columns of the windows are selected; over
//! streams that end and that do not, against DataFusion over rows that have the bounds of their
//! windows as columns.

use arrow::record_batch::RecordBatch;
use tests::asked::{
    Asked, check, endless, in_sessions, once_in_cumulated, once_in_windows, sessions_of,
};
use tests::cases::cases;
use tests::memory::Table;
use tests::random::{Random, Stream};

/// The windows of a query; lengths in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Windows {
    Tumble { size: i64 },
    Hop { slide: i64, size: i64 },
    Cumulate { step: i64, size: i64 },
    Session { gap: i64 },
}

impl Windows {
    const ALL: [Windows; 5] = [
        Windows::Tumble { size: 1 },
        Windows::Tumble { size: 3 },
        Windows::Hop { slide: 2, size: 4 },
        Windows::Cumulate { step: 1, size: 3 },
        Windows::Session { gap: 2 },
    ];

    /// Whether windows that begin together end together.
    fn told_by_start(self) -> bool {
        matches!(self, Windows::Tumble { .. } | Windows::Hop { .. })
    }

    /// The windows of a table, in SQL.
    fn of(self, table: &str) -> String {
        let seconds = |length: i64| format!("INTERVAL '{length}' SECOND");
        let (word, keys, lengths) = match self {
            Windows::Tumble { size } => ("TUMBLE", "", vec![size]),
            Windows::Hop { slide, size } => ("HOP", "", vec![slide, size]),
            Windows::Cumulate { step, size } => ("CUMULATE", "", vec![step, size]),
            Windows::Session { gap } => ("SESSION", "PARTITION BY k", vec![gap]),
        };
        let lengths: Vec<String> = lengths.into_iter().map(seconds).collect();
        let lengths = lengths.join(", ");
        format!(
            "(SELECT k, v, window_start AS ws, window_end AS we, window_time AS wt
              FROM {word}(TABLE {table} {keys}, DESCRIPTOR(ts), {lengths}))"
        )
    }

    /// The rows of a stream that are in a window, for the batch, and what these are there.
    fn in_batch(self, stream: &Stream, table: &str) -> (RecordBatch, String) {
        let timed = |rows: &str| {
            format!("(SELECT k, v, ws, we, we - INTERVAL '1 millisecond' AS wt FROM {rows})")
        };
        match self {
            Windows::Tumble { size } => (once_in_windows(stream, size, size), timed(table)),
            Windows::Hop { slide, size } => (once_in_windows(stream, slide, size), timed(table)),
            Windows::Cumulate { step, size } => {
                (once_in_cumulated(stream, step, size), timed(table))
            }
            Windows::Session { gap } => {
                let rows = format!("(SELECT *, '' AS side FROM {table})");
                (in_sessions(stream, gap), timed(&format!("({})", sessions_of(&rows, gap))))
            }
        }
    }
}

/// The rows of a query, as far as the next query depends on them.
struct Rows {
    /// With the columns `k`, `v`, `we` and perhaps others.
    sql: String,
    /// The other columns of the windows that are selected, `ws` and `wt`.
    others: Vec<&'static str>,
    /// Those that it is made of, by name.
    views: Vec<(String, String)>,
}

impl Rows {
    /// The columns of the window.
    fn bounds(&self) -> Vec<&'static str> {
        self.others.iter().copied().chain(["we"]).collect()
    }

    /// The columns of the window, each with a comma in front.
    fn listed(&self) -> String {
        self.bounds().iter().map(|bound| format!(", {bound}")).collect()
    }

    fn has(&self, bound: &str) -> bool {
        self.others.contains(&bound)
    }
}

/// A side of a join: the rows of a stream in their windows.
fn side(name: &str) -> String {
    format!("(SELECT k, v, ws, we, wt FROM [{name}] WHERE v % 4 = 0) {name}")
}

/// A column of a join of `l` and `r` that every row has.
fn present(random: &mut Random, kind: &str, l: &str, r: &str, column: &str) -> String {
    let (always, other) = if kind == "RIGHT" { (r, l) } else { (l, r) };
    match kind {
        "LEFT" | "RIGHT" if random.chance(50) => format!("{always}.{column}"),
        "" if random.chance(80) => format!("{}.{column}", random.one_of(&[l, r])),
        _ if random.chance(50) => format!("coalesce({always}.{column}, {other}.{column})"),
        _ => format!("coalesce({other}.{column}, {always}.{column})"),
    }
}

/// A join of `l` and `r`, of which both have the bounds `others`.
fn joined(
    random: &mut Random,
    (from, l): (&str, &str),
    (to, r): (&str, &str),
    others: &[&'static str],
    told_by_start: bool,
) -> (String, Vec<&'static str>) {
    let kind = *random.one_of(&["", "", "LEFT", "RIGHT", "FULL"]);
    let equal = |column: &str| format!("{l}.{column} = {r}.{column}");
    let has_start = others.contains(&"ws");
    let by = match random.below(4) {
        0 if told_by_start && has_start => vec!["ws", "k"],
        1 => vec!["we", "k"],
        _ if has_start => vec!["k", "ws", "we"],
        _ => vec!["k", "we"],
    };
    let on: Vec<String> = by.iter().map(|column| equal(column)).collect();
    // Starts are the same only if they are equal, or follow from the ends.
    let kept = |bound: &&&str| **bound != "ws" || by.contains(&"ws") || told_by_start;
    let others: Vec<&'static str> = others.iter().filter(kept).copied().collect();
    let others: Vec<&'static str> = others.into_iter().filter(|_| random.chance(60)).collect();
    let mut columns = vec![format!("{} AS k", present(random, kind, l, r, "k"))];
    for bound in others.iter().chain(&["we"]) {
        columns.push(format!("{} AS {bound}", present(random, kind, l, r, bound)));
    }
    columns.push(format!("{}.v AS v", random.one_of(&[l, r])));
    let (columns, on) = (columns.join(", "), on.join(" AND "));
    (format!("SELECT {columns} FROM {from} {kind} JOIN {to} ON {on}"), others)
}

/// Another query of these rows, which has the same columns.
fn behind(random: &mut Random, rows: Rows, told_by_start: bool) -> Rows {
    let (bounds, sql) = (rows.listed(), &rows.sql);
    let sql = match random.below(10) {
        0 => format!("SELECT k, sum(v) AS v{bounds} FROM ({sql}) GROUP BY k{bounds}"),
        1 => format!("SELECT DISTINCT k, v{bounds} FROM ({sql})"),
        2 => {
            let by = rows.bounds().join(", ");
            format!(
                "SELECT k, v{bounds} FROM (SELECT *, row_number() OVER (PARTITION BY {by}
                   ORDER BY v, k) AS r FROM ({sql})) WHERE r <= 3"
            )
        }
        3 | 4 => {
            let from = ("j".to_owned(), side("c"));
            let (query, others) =
                joined(random, (&from.0, "j"), (&from.1, "c"), &rows.others, told_by_start);
            return Rows { sql: format!("WITH j AS ({sql}) {query}"), others, ..rows };
        }
        5 => format!(
            "SELECT k, v{bounds} FROM ({sql}) UNION ALL SELECT k, v{bounds} FROM {}",
            side("c")
        ),
        6 if rows.has("wt") => {
            format!("SELECT k, sum(v) OVER (PARTITION BY k ORDER BY wt) AS v{bounds} FROM ({sql})")
        }
        7 => format!(
            "SELECT k, sum(v) AS v{bounds} FROM ({sql})
             GROUP BY GROUPING SETS ((k{bounds}), ({}))",
            rows.bounds().join(", ")
        ),
        8 => {
            let name = format!("view_{}", rows.views.len());
            let mut views = rows.views;
            views.push((name.clone(), rows.sql));
            let sql = if random.chance(50) {
                format!("SELECT * FROM {name}")
            } else {
                let counted = "SELECT k, we, count(*) AS n";
                let other = format!("({counted} FROM {name} GROUP BY k, we) y");
                let columns = bounds.replace(", ", ", x.");
                format!(
                    "SELECT x.k, x.v + y.n AS v{columns} FROM {name} x JOIN {other}
                     ON x.k = y.k AND x.we = y.we"
                )
            };
            return Rows { sql, others: rows.others, views };
        }
        _ => format!("SELECT k, v + 1 AS v{bounds} FROM ({sql}) WHERE k <> 1"),
    };
    Rows { sql, ..rows }
}

/// A query in our dialect, and in batch of rows that are what `in_batch` says.
fn asked(random: &mut Random, windows: Windows, in_batch: &[(&str, String)]) -> Asked {
    let told_by_start = windows.told_by_start();
    let (a, b) = (side("a"), side("b"));
    let (sql, others) = joined(random, (&a, "a"), (&b, "b"), &["ws", "wt"], told_by_start);
    let mut rows = Rows { sql, others, views: vec![] };
    for _ in 0..1 + random.below(3) {
        rows = behind(random, rows, told_by_start);
    }
    let by = match random.below(4) {
        0 if rows.has("ws") => "ws, we",
        1 if rows.has("ws") && told_by_start => "ws",
        2 if rows.has("wt") => "wt",
        _ => "we",
    };
    let sql = match random.chance(70) {
        true => format!("SELECT {by}, count(*), sum(v), max(k) FROM ({}) GROUP BY {by}", rows.sql),
        // Rows that go through no operator are never late.
        false => format!("SELECT DISTINCT k, v{} FROM ({})", rows.listed(), rows.sql),
    };
    let of = |text: &str, window: &dyn Fn(&str) -> String| {
        ["a", "b", "c"]
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(&format!("[{name}]"), &window(name)))
    };
    let ours = |text: &str| of(text, &|name| windows.of(name));
    let views = rows.views.iter();
    let created =
        views.clone().map(|(name, view)| format!("CREATE VIEW {name} AS {};", ours(view)));
    let batch = |text: &str| {
        of(text, &|name| {
            let known = in_batch.iter().find(|(known, _)| *known == name);
            known.map(|(_, rows)| rows.clone()).unwrap_or_default()
        })
    };
    let named: Vec<String> =
        views.map(|(name, view)| format!("{name} AS ({})", batch(view))).collect();
    let with = if named.is_empty() { String::new() } else { format!("WITH {} ", named.join(", ")) };
    Asked {
        ours: format!("{}{}", created.collect::<String>(), ours(&sql)),
        batch: format!("{with}{}", batch(&sql)),
    }
}

#[test]
fn rows_of_joined_windows_go_on_with_their_window() {
    let mut rows = 0;
    let mut cases = cases(50);
    for seed in &mut cases {
        let mut random = Random::new(seed + 81_000);
        let mut streams = [(); 3].map(|()| endless(&mut random));
        let bounded = random.chance(30);
        streams.iter_mut().for_each(|stream| stream.table.bounded = bounded);
        let windows = *random.one_of(&Windows::ALL);
        let names = ["a", "b", "c"].into_iter();
        let of = names.clone().zip(&streams).map(|(name, of)| windows.in_batch(of, name));
        let (all, texts): (Vec<RecordBatch>, Vec<String>) = of.unzip();
        let texts: Vec<(&str, String)> = names.clone().zip(texts).collect();
        let asked = asked(&mut random, windows, &texts);
        let tables: Vec<(&str, &Table)> =
            names.clone().zip(streams.iter().map(|stream| &stream.table)).collect();
        let all: Vec<(&str, RecordBatch)> = names.zip(all).collect();
        rows += check(&asked, &tables, &all, seed);
    }
    cases.met(rows > 400, &format!("{rows} rows"));
}
