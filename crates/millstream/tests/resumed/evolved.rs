//! Texts that were edited between two starts. The expected rows are counted by hand, from the
//! numbers that the source had given before the checkpoint.

use std::collections::BTreeMap;

use dataflow::source::Position;
use millstream::checkpoint::ObjectName;
use millstream::checkpoint::chain;

use crate::rig::{Dir, Run, Until};

/// Rows of the stream, ten milliseconds apart. They come in three seconds: a job is stopped long
/// before, also on a busy machine.
const ROWS: i64 = 60_000;
/// The time of the first one, in milliseconds since 1970.
const START: i64 = 1_704_067_200_000;

/// A stream of numbers from 0 on in one split; `auction` is their last digit.
fn made(name: &str, start: &str) -> String {
    format!(
        "CREATE TABLE {name} (
           ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '{ROWS}', 'interval' = '10ms', 'flows' = '1',
           'rate' = '20000', 'start' = '{start}', 'fields.n.kind' = 'sequence');
         CREATE VIEW {name}_bids AS SELECT ts, n % 10 AS auction, n AS price FROM {name};"
    )
}

fn sink(dir: &Dir, table: &str, columns: &str) -> String {
    let path = dir.path(table);
    format!(
        "CREATE TABLE {table} ({columns}) WITH (
           'connector' = 'file', 'path' = '{path}/', 'format' = 'csv');"
    )
}

/// A grouping in windows of `seconds`.
fn grouped(from: &str, seconds: i64, key: &str, aggregates: &str) -> String {
    format!(
        "SELECT CAST(window_start AS BIGINT), {key}, {aggregates}
         FROM TUMBLE(TABLE {from}, DESCRIPTOR(ts), INTERVAL '{seconds}' SECOND)
         GROUP BY window_start, window_end, {key}"
    )
}

const COLUMNS: &str = "ws BIGINT, auction BIGINT, n BIGINT, s BIGINT";
const AGGREGATES: &str = "count(*), sum(price)";

/// A script with one `INSERT` into a directory.
fn script(dir: &Dir, table: &str, columns: &str, query: &str) -> String {
    let (made, sink) = (made("made", "2024-01-01 00:00:00"), sink(dir, table, columns));
    format!("SET 'millstream.checkpoint' = '50 ms'; {made} {sink} INSERT INTO {table} {query};")
}

/// How many rows each source has given before the last checkpoint, by the name of its table.
fn given(run: &Run<'_>) -> BTreeMap<String, i64> {
    let options = run.options();
    let name = ObjectName::job(&options.job).unwrap();
    let view = chain::look(&*options.store, &name).unwrap();
    let base = view.checkpoint.unwrap();
    let manifest = chain::read_checkpoint(&*options.store, &name, &base).unwrap();
    let given = manifest.sources.iter().map(|source| {
        let operator = manifest.operators.iter().find(|of| of.id == source.id).unwrap();
        let [split] = &source.splits[..] else { panic!("{source:?}") };
        let position = Position::from_bytes(&split.position).unwrap();
        let [_, block, rows, block_rows] = position.numbers("generator", 1, &split.name).unwrap();
        (operator.text.clone(), (block * block_rows + rows).cast_signed())
    });
    given.collect()
}

/// Counts and sums of the numbers of a table by window and key, as rows.
fn sums(
    seconds: i64,
    key: impl Fn(i64) -> i64,
    start: i64,
    numbers: impl Iterator<Item = i64>,
) -> Vec<String> {
    let mut sums = BTreeMap::<(i64, i64), (i64, i64)>::new();
    for n in numbers {
        let window = (start + n * 10) / (seconds * 1000) * (seconds * 1000);
        let sum = sums.entry((window, key(n))).or_default();
        *sum = (sum.0 + 1, sum.1 + n);
    }
    let mut rows: Vec<String> =
        sums.iter().map(|((ws, key), (count, sum))| format!("{ws},{key},{count},{sum}")).collect();
    rows.sort();
    rows
}

/// The rows of a second directory or of the first one that were not there before.
fn added(dir: &Dir, table: &str, before: &[String]) -> Vec<String> {
    let mut rows = dir.rows(table);
    for row in before {
        let at = rows.iter().position(|of| of == row).expect("a row is gone");
        rows.remove(at);
    }
    rows
}

/// The number from which on windows of ten seconds are not in the output yet.
fn open_from(rows: &[String]) -> i64 {
    let window = |row: &String| row.split(',').next().unwrap().parse::<i64>().unwrap();
    rows.iter().map(window).max().map_or(0, |last| (last - START) / 10 + 1000)
}

/// Stops a job behind a checkpoint, and gives back what its source had given and its rows.
fn stopped(run: &Run<'_>, sql: &str, table: &str) -> (i64, Vec<String>) {
    Run { until: Until::Stop, ..*run }.sql(sql).unwrap();
    let given = given(run);
    assert_eq!(given.len(), 1, "{given:?}");
    let rows = run.dir.rows(table);
    let full = sums(10, |n| n % 10, START, 0..open_from(&rows));
    assert_eq!(rows, full, "windows that have ended");
    (given["Source made (generator)"], rows)
}

/// An edit is refused with these words, and then taken with `--evolve`.
fn refused_and_evolved(run: &Run<'_>, sql: &str, words: &[&str]) {
    let refused = run.sql(sql).unwrap_err().to_string();
    for word in words {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert!(
        refused.lines().filter(|line| line.contains("gone")).all(|line| line.ends_with("bytes)"))
    );
    let lines = Run { evolve: true, ..*run }.sql(sql).unwrap();
    for word in words {
        assert!(lines.iter().any(|line| line.contains(word)), "{word}: {lines:?}");
    }
}

#[test]
fn a_grouping_of_another_window_key_or_aggregate_begins_empty() {
    let seven = |n: i64| n % 7;
    let ten = |n: i64| n % 10;
    type Edit = (&'static str, i64, &'static str, &'static str, fn(i64) -> i64);
    let edits: [Edit; 4] = [
        ("window", 20, "auction", AGGREGATES, ten),
        ("key", 10, "price % 7", AGGREGATES, seven),
        ("added", 10, "auction", "count(*), sum(price), max(price)", ten),
        ("removed", 10, "auction", "count(*)", ten),
    ];
    for (name, seconds, key, aggregates, key_of) in edits {
        let dir = Dir::new(name);
        let run = Run::of(&dir);
        let first = grouped("made_bids", 10, "auction", AGGREGATES);
        let (given, before) = stopped(&run, &script(&dir, "written", COLUMNS, &first), "written");
        // The rows of the edited text go into a directory of the same columns.
        let shown = match name {
            "added" => format!(
                "SELECT ws, auction, n, s FROM ({}) AS g (ws, auction, n, s, hi) WHERE hi >= 0",
                grouped("made_bids", seconds, key, aggregates)
            ),
            "removed" => format!(
                "SELECT ws, auction, n, 0 FROM ({}) AS g (ws, auction, n)",
                grouped("made_bids", seconds, key, aggregates)
            ),
            _ => grouped("made_bids", seconds, key, aggregates),
        };
        let words = ["gone", "new", "WindowAggregate", "bytes)"];
        refused_and_evolved(&run, &script(&dir, "written", COLUMNS, &shown), &words);
        let mut expected = sums(seconds, key_of, START, given..ROWS);
        if name == "removed" {
            for row in &mut expected {
                *row = format!("{},0", row.rsplit_once(',').unwrap().0);
            }
            expected.sort();
        }
        assert!(added(&dir, "written", &before) == expected, "{name}");
    }
}

#[test]
fn a_filter_that_is_added_keeps_the_state() {
    let dir = Dir::new("filter");
    let run = Run::of(&dir);
    let query = grouped("made_bids", 10, "auction", AGGREGATES);
    let (given, before) = stopped(&run, &script(&dir, "written", COLUMNS, &query), "written");
    let filtered = format!(
        "CREATE VIEW even AS SELECT * FROM made_bids WHERE price % 2 = 0; INSERT INTO written {}",
        grouped("even", 10, "auction", AGGREGATES)
    );
    let sql = script(&dir, "written", COLUMNS, &query);
    let sql = sql.replace(&format!("INSERT INTO written {query}"), &filtered);
    run.sql(&sql).unwrap();
    let numbers = (open_from(&before)..ROWS).filter(|n| *n < given || n % 2 == 0);
    assert!(added(&dir, "written", &before) == sums(10, |n| n % 10, START, numbers));
}

#[test]
fn a_sink_of_another_name_gets_the_windows_that_were_open() {
    let dir = Dir::new("renamed");
    let run = Run::of(&dir);
    let query = grouped("made_bids", 10, "auction", AGGREGATES);
    let (_, before) = stopped(&run, &script(&dir, "written", COLUMNS, &query), "written");
    let renamed = script(&dir, "renamed", COLUMNS, &query);
    refused_and_evolved(&run, &renamed, &["Sink written", "Sink renamed"]);
    assert_eq!(dir.rows("written"), before);
    let expected = sums(10, |n| n % 10, START, open_from(&before)..ROWS);
    assert!(dir.rows("renamed") == expected);
}

#[test]
fn a_source_that_is_added_is_read_from_its_beginning() {
    let dir = Dir::new("source");
    let run = Run::of(&dir);
    let query = grouped("made_bids", 10, "auction", AGGREGATES);
    let (given, before) = stopped(&run, &script(&dir, "written", COLUMNS, &query), "written");
    // Its rows are of a later hour than all of the first one.
    let more = made("more", "2024-01-01 01:00:00");
    let both = format!(
        "{more} CREATE VIEW both AS
           SELECT * FROM made_bids UNION ALL SELECT * FROM more_bids; INSERT INTO written {}",
        grouped("both", 10, "auction", AGGREGATES)
    );
    let sql = script(&dir, "written", COLUMNS, &query);
    let sql = sql.replace(&format!("INSERT INTO written {query}"), &both);
    // The grouping reads columns of the union, whatever they are computed from, and begins empty.
    refused_and_evolved(&run, &sql, &["gone  WindowAggregate", "new   Source more"]);
    let mut expected = sums(10, |n| n % 10, START, given..ROWS);
    expected.extend(sums(10, |n| n % 10, START + 3_600_000, 0..ROWS));
    expected.sort();
    assert!(added(&dir, "written", &before) == expected);
}

/// A statement set of inserts of one grouping behind different filters.
fn set(dir: &Dir, inserts: &[(&str, i64)]) -> String {
    let mut sql =
        format!("SET 'millstream.checkpoint' = '50 ms'; {}", made("made", "2024-01-01 00:00:00"));
    for (table, rest) in inserts {
        sql += &sink(dir, table, COLUMNS);
        sql +=
            &format!("CREATE VIEW of_{table} AS SELECT * FROM made_bids WHERE price % 3 = {rest};");
    }
    sql += "BEGIN STATEMENT SET;";
    for (table, _) in inserts {
        let query = grouped(&format!("of_{table}"), 10, "auction", AGGREGATES);
        sql += &format!("INSERT INTO {table} {query};");
    }
    sql + "END;"
}

#[test]
fn inserts_of_a_set_may_change_places_and_others_be_added() {
    let dir = Dir::new("set");
    let run = Run::of(&dir);
    Run { until: Until::Stop, ..run }.sql(&set(&dir, &[("a", 0), ("b", 1)])).unwrap();
    let words = ["new", "Sink c"];
    refused_and_evolved(&run, &set(&dir, &[("c", 2), ("b", 1), ("a", 0)]), &words);
    for (table, rest) in [("a", 0), ("b", 1), ("c", 2)] {
        let numbers = (0..ROWS).filter(|n| n % 3 == rest);
        assert!(dir.rows(table) == sums(10, |n| n % 10, START, numbers), "{table}");
    }
}
