//! Whatever is wrong with what a user gives: one message that points at the place, a hint, exit
//! code 1 or 2, and nothing half-written.

mod sql;

use std::fs;
use std::net::TcpListener;

use tests::command::{Dir, root, run, run_sql, run_sql_limited};

const BIDS: &str = "ts,item,price\n2024-01-01 00:00:01,1,10.5\n2024-01-01 00:00:02,2,11\n";
const TABLE: &str = "CREATE TABLE bids (ts TIMESTAMP(3), item INT, price DOUBLE)
    WITH ('connector' = 'file', 'path' = 'bids.csv');
CREATE TABLE kept (item INT) WITH ('connector' = 'file', 'path' = 'kept.csv');\n";

/// Runs SQL with an error in it, on one process and on two.
#[track_caller]
fn refused(code: i32, sql: &str, message: &str, hint: &str) {
    for layout in [["--nodes", "1", "--workers", "1"], ["--nodes", "2", "--workers", "1"]] {
        let dir = Dir::new("refused");
        dir.write("bids.csv", BIDS);
        let to = ["--format", "csv", "--output", "rows.csv"];
        let outcome = run_sql(&dir, sql, &[&layout[..], &to].concat()).ended(code);
        outcome.one_error(message, hint);
        assert_eq!(outcome.out, "");
        assert_eq!(dir.names(), ["bids.csv", "examples", "q.sql"], "{sql}");
    }
}

#[test]
fn misspelt_sql_is_pointed_at() {
    for (sql, message, place, hint) in [
        ("INSERT INTO kept SELCT item FROM bids", "expected", "5:18", "SELECT"),
        ("INSERT INTO kept SELECT itm FROM bids", "unknown column 'itm'", "5:25", "'item'"),
        ("INSERT INTO kpt SELECT item FROM bids", "unknown table 'kpt'", "5:13", "'kept'"),
        ("INSERT INTO kept SELECT item FROM bid", "unknown table 'bid'", "5:35", "'bids'"),
        ("SELECT cuont(item) FROM bids", "unknown function 'cuont'", "5:8", "'count'"),
        ("SET millstream.exchagne = 'merge'", "", "5:5", "'millstream.exchange'"),
        ("SET millstream.exchange = 'mrege'", "", "5:27", "auto, merge, shuffle"),
        (
            "CREATE TABLE t (x INT) WITH ('connector' = 'flie', 'path' = 'x.csv')",
            "unknown connector 'flie'",
            "5:44",
            "'file'",
        ),
        (
            "CREATE TABLE t (x INT) WITH ('connector' = 'file', 'paht' = 'x.csv')",
            "connector 'file' has no option 'paht'",
            "5:52",
            "'path'",
        ),
        (
            "CREATE TABLE t (x BIGNT) WITH ('connector' = 'blackhole')",
            "unknown type 'BIGNT'",
            "5:19",
            "'BIGINT'",
        ),
    ] {
        let sql = format!("{TABLE}\n{sql}");
        refused(2, &sql, message, hint);
        let dir = Dir::new("place");
        dir.write("bids.csv", BIDS);
        let error = run_sql(&dir, &sql, &[]).ended(2).err;
        assert!(error.contains(&format!("--> q.sql:{place}\n")), "{place}:\n{error}");
        let line = sql.lines().nth(4).unwrap();
        assert!(error.contains(&format!("5 | {line}\n")) && error.contains('^'), "{error}");
    }
}

#[test]
fn a_missing_file_is_named_with_its_neighbour() {
    let sql = TABLE.replace("bids.csv", "bid.csv") + "INSERT INTO kept SELECT item FROM bids";
    refused(2, &sql, "table 'bids': bid.csv: no such file", "did you mean 'bids.csv'?");
    let dir = Dir::new("nowhere");
    let outcome = run(&dir, &["run", "no.sql"]).ended(2);
    outcome.one_error("cannot read no.sql: No such file", "relative to the current directory");
}

/// Reading a process's memory from its start is refused to everyone, root too.
#[test]
fn an_unreadable_file_is_named() {
    let sql = "CREATE TABLE t (x INT) WITH ('connector' = 'file', 'path' = '/proc/self/mem',
        'format' = 'csv');
        CREATE TABLE kept (x INT) WITH ('connector' = 'file', 'path' = 'kept.csv');
        INSERT INTO kept SELECT x FROM t";
    for nodes in ["1", "2"] {
        let dir = Dir::new("unreadable");
        let outcome = run_sql(&dir, sql, &["--nodes", nodes, "--workers", "1"]);
        assert!(matches!(outcome.code, Some(1 | 2)), "{outcome:?}");
        assert!(outcome.err.contains("/proc/self/mem:1: Input/output error"), "{}", outcome.err);
        assert_eq!(outcome.err.matches("error: ").count(), 1, "{}", outcome.err);
        assert_eq!(dir.names(), ["examples", "q.sql"]);
    }
}

#[test]
fn a_truncated_parquet_file_is_recognised() {
    let whole = fs::read(root().join("examples/data/weather.parquet")).unwrap();
    let sql = "CREATE TABLE t WITH ('connector' = 'file', 'path' = 'w.parquet');
        CREATE TABLE kept (origin STRING) WITH ('connector' = 'file', 'path' = 'kept.csv');
        INSERT INTO kept SELECT origin FROM t";
    let mut torn = whole.clone();
    // The footer is whole, a page is not.
    let middle = torn.len() / 2;
    torn[4..middle].fill(0x5a);
    for bytes in [&whole[..whole.len() / 2], &whole[..5], b"no Parquet, but text", b"", &torn] {
        let dir = Dir::new("truncated");
        dir.write("w.parquet", bytes);
        let outcome = run_sql(&dir, sql, &["--workers", "1"]);
        assert!(matches!(outcome.code, Some(1 | 2)), "{outcome:?}");
        let at = if outcome.code == Some(2) { "table 't': w.parquet" } else { "w.parquet" };
        outcome.one_error(at, "");
        assert_eq!(dir.names(), ["examples", "q.sql", "w.parquet"]);
    }
}

#[test]
fn a_schema_that_does_not_fit_is_refused() {
    let csv = "CREATE TABLE t (prize DOUBLE) WITH ('connector' = 'file', 'path' = 'bids.csv');
        SELECT * FROM t";
    refused(2, csv, "column 'prize' of table 't': bids.csv has no such column", "'price'");
    let parquet = |column: &str| {
        format!(
            "CREATE TABLE t ({column}) WITH ('connector' = 'file',
             'path' = 'examples/data/flights.parquet'); SELECT * FROM t"
        )
    };
    refused(2, &parquet("orign STRING"), "column 'orign' of table 't'", "'origin'");
    refused(2, &parquet("origin INT"), "column 'origin' of table 't'", "CAST");
}

#[test]
fn a_watermark_needs_a_time() {
    let sql = "CREATE TABLE t (item INT, WATERMARK FOR item AS item - INTERVAL '5' SECOND)
        WITH ('connector' = 'file', 'path' = 'bids.csv'); SELECT * FROM t";
    refused(2, sql, "a watermark needs a TIMESTAMP column, and 'item' is INT", "TIMESTAMP(3)");
}

#[test]
fn impossible_layouts_are_refused() {
    let dir = Dir::new("layout");
    for (args, message, hint) in [
        (&["--nodes", "0"][..], "invalid value '0' for '--nodes <N>'", "leave --nodes out"),
        (&["--workers", "0"], "invalid value '0' for '--workers <W>'", "leave --workers out"),
        (&["--nodes", "many"], "invalid value 'many' for '--nodes <N>'", "1 to 256"),
        (&["--fabric", "rdma"], "invalid value 'rdma' for '--fabric <FABRIC>'", "shm, tcp"),
    ] {
        let outcome = run_sql(&dir, "SELECT 1", args).ended(2);
        assert!(outcome.err.starts_with(&format!("error: {message}")), "{}", outcome.err);
        assert!(outcome.err.contains(hint) && outcome.out.is_empty(), "{}", outcome.err);
    }
    let sql = format!("{TABLE}SELECT item, count(*) FROM bids GROUP BY item");
    dir.write("bids.csv", BIDS);
    let forward = ["--nodes", "4", "--workers", "1", "--set", "millstream.exchange=forward"];
    let outcome = run_sql(&dir, &sql, &forward).ended(2);
    assert!(outcome.err.contains("forward"), "{}", outcome.err);
}

#[test]
fn without_an_rdma_device_verbs_says_what_is_missing() {
    let dir = Dir::new("verbs");
    let info = run(&dir, &["fabric", "info"]).ended(0);
    assert!(info.out.contains("\nverbs "), "{}", info.out);
    dir.write("bids.csv", BIDS);
    let sql = format!("{TABLE}SELECT item, count(*) FROM bids GROUP BY item");
    let layout = ["--nodes", "2", "--workers", "1", "--fabric", "verbs"];
    if info.out.contains("cannot be used here") {
        let outcome = run_sql(&dir, &sql, &layout).ended(1);
        outcome.one_error("no RDMA device can be used", "millstream fabric info");
        assert_eq!(outcome.out, "");
    } else {
        run_sql(&dir, &sql, &layout).ended(0);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = Dir::new("port");
    let sql = "CREATE TABLE kept (x BIGINT) WITH ('connector' = 'file', 'path' = 'kept.csv');
        INSERT INTO kept SELECT 1";
    let outcome = run_sql(&dir, sql, &["--nodes", "2", "--listen", &address]).ended(1);
    outcome.one_error(&format!("cannot listen on {address}: "), "--listen");
    assert_eq!(dir.names(), ["examples", "q.sql"]);
}

const MANY: &str = "CREATE TABLE numbers (n BIGINT) WITH (
    'connector' = 'generator', 'rows' = '2000000', 'fields.n.kind' = 'sequence');";

/// A limit of a file's size fails a write as a full disk does.
#[test]
fn a_full_disk_leaves_nothing_behind() {
    for format in ["csv", "json", "parquet"] {
        for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "2", "--workers", "1"]] {
            let dir = Dir::new("full");
            let path = format!("kept.{format}");
            dir.write(&path, "as it was");
            let sql = format!(
                "{MANY} CREATE TABLE kept (n BIGINT)
                    WITH ('connector' = 'file', 'path' = '{path}');
                INSERT INTO kept SELECT n FROM numbers"
            );
            let outcome = run_sql_limited(&dir, &sql, &layout, 4096).ended(1);
            outcome.one_error(&format!("{path}: File too large"), "nothing half-written");
            assert_eq!(dir.names(), ["examples", &path, "q.sql"]);
            assert_eq!(dir.read(&path), "as it was");
        }
    }
}

#[test]
fn full_devices_and_missing_directories_are_named() {
    let dir = Dir::new("device");
    let insert = |path: &str| {
        format!(
            "CREATE TABLE kept (n BIGINT) WITH ('connector' = 'file', 'path' = '{path}',
             'format' = 'csv'); INSERT INTO kept SELECT 1"
        )
    };
    let full = run_sql(&dir, &insert("/dev/full"), &[]).ended(1);
    full.one_error("/dev/full: No space left on device", "make room");
    let nowhere = run_sql(&dir, &insert("no/kept.csv"), &[]).ended(1);
    nowhere.one_error("no/kept.csv: there is no directory 'no'", "mkdir -p 'no'");
    let output = run_sql_limited(
        &dir,
        &format!("{MANY} SELECT n FROM numbers"),
        &["--format", "csv", "--output", "rows.csv"],
        4096,
    );
    let error = output.ended(1).err;
    assert!(error.starts_with("error: ") && error.contains("File too large"), "{error}");
    assert_eq!(dir.names(), ["examples", "q.sql"]);
}

/// A million rows, three of them broken: one has no number, one a field too many, one a time that
/// does not exist.
#[test]
fn three_broken_lines_in_a_million_are_counted_and_shown() {
    const ROWS: u64 = 1_000_000;
    let dir = Dir::new("million");
    let mut csv = String::with_capacity(32 << 20);
    csv.push_str("ts,k,v\n");
    let (mut count, mut sum) = (0u64, 0u64);
    for row in 0..ROWS {
        let (hour, minute, second) = (row / 3600 % 24, row / 60 % 60, row % 60);
        let time = format!("2024-01-{:02} {hour:02}:{minute:02}:{second:02}", row / 86_400 + 1);
        match row {
            123_455 => csv.push_str(&format!("{time},key,many\n")),
            500_000 => csv.push_str(&format!("{time},key,1,2\n")),
            999_990 => csv.push_str("2024-02-30 00:00:00,key,7\n"),
            _ => {
                csv.push_str(&format!("{time},{},{row}\n", row % 7));
                (count, sum) = (count + 1, sum + row);
            }
        }
    }
    dir.write("m.csv", csv);
    let sql = "CREATE TABLE m (ts TIMESTAMP(3), k STRING, v BIGINT, WATERMARK FOR ts AS ts)
            WITH ('connector' = 'file', 'path' = 'm.csv');
        CREATE VIEW days AS SELECT window_start, k, count(*) AS n, sum(v) AS s
            FROM TUMBLE(TABLE m, DESCRIPTOR(ts), INTERVAL '1' DAY)
            GROUP BY window_start, window_end, k;
        SELECT count(*), sum(n), sum(s) FROM days";
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "2", "--workers", "1"]] {
        let common = ["--format", "csv"];
        let outcome = run_sql(&dir, sql, &[&common[..], &layout].concat()).ended(0);
        let rows = outcome.out.split_once('\n').unwrap().1;
        // Twelve days of seven keys.
        assert_eq!(rows, format!("84,{count},{sum}\n"));
        let err = &outcome.err;
        assert!(err.contains("; 3 rows could not be read"), "{err}");
        // The header is line 1, so row 0 is line 2.
        for (line, reason) in [
            (123_457, "column 'v': 'many' is not a valid BIGINT"),
            (500_002, "expected 3 fields, found 4"),
            (999_992, "column 'ts': '2024-02-30 00:00:00' is not a valid TIMESTAMP(3)"),
        ] {
            let place = format!("m.csv:{line} ");
            let shown = err.lines().find(|shown| shown.contains(&place));
            assert!(shown.is_some_and(|shown| shown.contains(reason)), "{place}{reason}:\n{err}");
        }
    }
}
