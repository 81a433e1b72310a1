//! `millstream sql`: before a terminal, and without one.

use std::fs;
use std::process::{Command, Stdio};

use tests::command::{Dir, Outcome, program, run, run_piped};
use tests::terminal::{ENTER, INTERRUPT, TAB, Terminal, UP};

const BIDS: &str = "ts,item,price\n2024-01-01 00:00:01,1,10.5\n2024-01-01 00:00:02,2,11\n";
const TABLE: &str = "CREATE TABLE bids (ts TIMESTAMP(3), item INT, price DOUBLE)
    WITH ('connector' = 'file', 'path' = 'bids.csv');";

fn dir(name: &str) -> Dir {
    let dir = Dir::new(name);
    dir.write("bids.csv", BIDS);
    dir.write("tables.sql", TABLE);
    dir
}

/// A shell that has said hello.
fn started(dir: &Dir, args: &str, columns: u16) -> Terminal {
    let mut shell = Terminal::start(dir, args, columns);
    shell.shows("Ctrl-D leaves.");
    shell.shows("millstream> ");
    shell
}

#[test]
fn statements_go_over_lines_and_tables_are_kept() {
    let dir = dir("shell");
    let mut shell = started(&dir, "sql", 100);
    shell.press(&format!("SELECT 1 +{ENTER}"));
    shell.press(&format!("  1 AS two;{ENTER}"));
    shell.shows("two │");
    shell.shows(" 2 │");
    shell.shows("millstream> ");
    shell.press(&format!(".read tables.sql{ENTER}.tables{ENTER}"));
    shell.shows("bids  file");
    shell.press(&format!(".schema bids{ENTER}"));
    shell.shows("  price  DOUBLE");
    shell.press(&format!("SET millstream.exchange = 'shuffle';{ENTER}"));
    shell.press(&format!(".set millstream.exchange{ENTER}"));
    shell.shows("millstream.exchange  shuffle  (default auto)");
    shell.leave();
}

#[test]
fn an_error_points_at_the_word_and_the_shell_goes_on() {
    let dir = dir("typo");
    let mut shell = started(&dir, "sql", 100);
    shell.press(&format!(".read tables.sql{ENTER}"));
    shell.press(&format!("SELECT itm FROM bids;{ENTER}"));
    shell.shows("error: unknown column 'itm'");
    shell.shows("1 | SELECT itm FROM bids;");
    shell.shows("|        ^^^");
    shell.shows("hint: did you mean 'item'?");
    shell.press(&format!(".tabels{ENTER}"));
    shell.shows("unknown command '.tabels'");
    shell.press(&format!("SELECT item FROM bids WHERE price > 10.9;{ENTER}"));
    shell.shows(" 2 │");
    // Ctrl-C drops what is typed.
    shell.shows("millstream> ");
    shell.press("SELECT nonsense");
    shell.shows("nonsense");
    shell.press(INTERRUPT);
    shell.shows("millstream> ");
    shell.press(&format!("SELECT 'after', 41 + 1;{ENTER}"));
    shell.shows("42 │");
    shell.press(&format!("exit{ENTER}"));
    assert_eq!(shell.ends().0, Some(0));
}

#[test]
fn tab_completes_and_the_history_outlives_the_shell() {
    let dir = dir("history");
    let mut shell = started(&dir, "sql", 100);
    shell.press(&format!(".read tables.sql{ENTER}.tables{ENTER}"));
    shell.shows("bids  file");
    shell.shows("millstream> ");
    shell.press(&format!("SELECT max(pric{TAB}) AS most FROM bi{TAB}"));
    shell.shows("FROM bids");
    shell.press(&format!(";{ENTER}"));
    let shown = shell.shows("1 row ");
    assert!(shown.contains("most") && shown.contains(" 11.0 "), "{shown}");
    shell.leave();
    let history = dir.path().join("state/millstream/history");
    let kept = fs::read_to_string(&history).unwrap();
    assert!(kept.contains(".read tables.sql") && kept.contains("FROM bids;"), "{kept}");
    let mode = fs::metadata(&history).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);

    let mut shell = started(&dir, "sql", 100);
    shell.press(&format!(".read tables.sql{ENTER}.tables{ENTER}"));
    shell.shows("bids  file");
    shell.shows("millstream> ");
    shell.press(&format!("{UP}{UP}{UP}"));
    shell.shows("AS most FROM bids;");
    shell.press(ENTER);
    shell.shows("1 row ");
    shell.leave();
}

const NUMBERS: &str = "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator',
    'rows' = '1000000000000', 'fields.n.kind' = 'sequence');
CREATE TABLE few (n BIGINT) WITH ('connector' = 'generator',
    'rows' = '300000', 'fields.n.kind' = 'sequence');
CREATE TABLE endless (n BIGINT) WITH ('connector' = 'generator', 'rate' = '10000',
    'fields.n.kind' = 'sequence');";

#[test]
fn ctrl_c_stops_the_query_and_not_the_shell() {
    for args in ["sql", "sql --nodes 2 --workers 1"] {
        let dir = dir("interrupt");
        dir.write("numbers.sql", NUMBERS);
        let mut shell = started(&dir, args, 100);
        shell.press(&format!(".read numbers.sql{ENTER}"));
        shell.press(&format!("SELECT sum(n) FROM numbers;{ENTER}"));
        shell.shows(" in (");
        shell.press(INTERRUPT);
        shell.shows("interrupted");
        // What runs when all input has been read is stopped too.
        shell.shows("millstream> ");
        shell.press(&format!(
            "SELECT sum(a.n * b.n % 7) FROM few AS a JOIN few AS b ON a.n <> b.n;{ENTER}"
        ));
        shell.shows(" in (");
        shell.press(INTERRUPT);
        shell.shows("interrupted");
        // A query that has no end is ended, and its rows are kept.
        shell.shows("millstream> ");
        shell.press(&format!("SELECT n FROM endless;{ENTER}"));
        shell.shows("this query has no end");
        shell.shows(" in (");
        shell.press(INTERRUPT);
        shell.shows(" shown)");
        shell.shows("ended early, as asked");
        shell.shows("millstream> ");
        shell.press(&format!("SELECT 'still', 41 + 1;{ENTER}"));
        shell.shows("42 │");
        shell.leave();
        assert_eq!(dir.names(), ["bids.csv", "examples", "numbers.sql", "state", "tables.sql"]);
    }
}

#[test]
fn a_table_is_cut_where_the_terminal_ends() {
    let dir = dir("narrow");
    let mut shell = started(&dir, "sql", 40);
    shell.press(&format!("SELECT 'a{}z' AS wide, 1 AS behind;{ENTER}", "-".repeat(30)));
    let shown = shell.shows("cut at the edge of the terminal");
    let widest = |text: &str| {
        let table = text.lines().filter(|line| line.starts_with(['│', '┌', '├', '└']));
        table.map(|line| line.trim_end().chars().count()).max()
    };
    assert_eq!(widest(&shown), Some(40), "{shown}");
    shell.press(&format!(".mode csv{ENTER}SELECT '{}z' AS wide, 7;{ENTER}", "-".repeat(60)));
    shell.shows("z,7");
    shell.leave();
}

/// Each `-c` and `-f` in its order, in one session.
#[test]
fn commands_and_files_share_a_session() {
    let dir = dir("session");
    let csv = ["--format", "csv"];
    let outcome =
        run(&dir, &[&["sql", "-c", TABLE, "-c", "SELECT item FROM bids"][..], &csv].concat());
    assert_eq!(outcome.ended(0).out, "item\n1\n2\n");
    dir.write("t.sql", TABLE);
    let pieces = ["-c", "SELECT 1 AS one", "-f", "t.sql", "-c", "SELECT max(item) AS m FROM bids"];
    let outcome = run(&dir, &[&["sql"][..], &pieces, &csv].concat());
    assert_eq!(outcome.ended(0).out, "one\n1\n\nm\n2\n", "in the order of the command line");
    dir.write("q.sql", ".timer on\nSELECT max(price) AS m\nFROM bids;\n.quit\nSELECT 1;");
    let args = ["sql", "-f", "tables.sql", "-f", "q.sql", "--format", "csv"];
    let outcome = run(&dir, &args).ended(0);
    assert_eq!(outcome.out, "m\n11.0\n");
    assert!(
        outcome.err.starts_with("took ") && outcome.err.lines().count() == 1,
        "{}",
        outcome.err
    );
}

#[test]
fn sql_without_an_option_is_refused_with_what_to_write() {
    let dir = dir("unmarked");
    dir.write("q.sql", "SELECT 1;");
    for (argument, hint) in [("SELECT 1", "sql -c '"), ("q.sql", "sql -f q.sql")] {
        let outcome = run(&dir, &["sql", argument]).ended(2);
        assert!(outcome.out.is_empty() && outcome.err.contains(hint), "{}", outcome.err);
    }
}

#[test]
fn standard_input_that_is_no_terminal_is_a_script() {
    let dir = dir("stdin");
    let sql = format!("{TABLE}\n.mode json\nSELECT item FROM bids;\nSELECT 'no semicolon' AS s");
    let outcome = run_piped(&dir, &["sql"], sql.as_bytes()).ended(0);
    assert_eq!(outcome.out, "{\"item\":1}\n{\"item\":2}\n{\"s\":\"no semicolon\"}\n");
    assert_eq!(outcome.err, "");
}

#[test]
fn a_cast_has_the_name_of_its_column() {
    let dir = dir("names");
    let from = "FROM (SELECT item, CAST(item AS DECIMAL(5, 2)) AS d, CAST(ts AS TIMESTAMP(6)) AS t,
        CAST(ts AS TIMESTAMP_LTZ(3)) AS z FROM bids LIMIT 1) AS q";
    for (list, names) in [
        ("CAST(d AS INT), item", "d,item"),
        ("CAST(d AS INT), TRY_CAST(d AS BIGINT)", "d,d_1"),
        ("CAST(t AS TIMESTAMP(0)), TRY_CAST(z AS STRING)", "t,z"),
    ] {
        let sql = format!("{TABLE} SELECT {list} {from}");
        let outcome = run_piped(&dir, &["sql"], sql.as_bytes()).ended(0);
        assert_eq!(outcome.out.lines().next(), Some(names), "{list}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = dir("pipe");
    dir.write("q.sql", format!("{NUMBERS} SELECT n FROM numbers; SELECT 1;"));
    let program = program();
    let line = "\"$0\" sql -f q.sql --format csv | head -n 3; test -z \"$(cat err)\"";
    let line = line.replace("csv |", "csv 2> err |");
    let ended =
        Command::new("sh").args(["-c", &line]).arg(program).current_dir(dir.path()).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{}", dir.read("err"));
    assert_eq!(ended.stdout, b"n\n0\n1\n");
}

#[test]
fn a_script_ends_at_its_first_error_which_knows_its_line() {
    let dir = dir("errors");
    dir.write(
        "q.sql",
        format!("{TABLE}\nSELECT 1 AS one;\n  SELECT itm,\n    prize FROM bids; SELECT 2;"),
    );
    let outcome = run(&dir, &["sql", "-f", "q.sql", "--format", "csv"]).ended(2);
    assert_eq!(outcome.out, "one\n1\n");
    let err = &outcome.err;
    assert!(err.contains("error: unknown column 'itm'\n --> q.sql:4:10\n"), "{err}");
    assert!(err.contains("4 |   SELECT itm,\n  |          ^^^\n"), "{err}");
    assert!(err.contains("error: unknown column 'prize'\n --> q.sql:5:5\n"), "{err}");
    assert_eq!(err.matches("error: ").count(), 2, "{err}");
    for (args, message, hint) in [
        (&["-c", ".mode xml"][..], "'xml' does not fit .mode", "table|csv|json"),
        (&["-c", ".output rows.xyz"], "the format of the rows", "x.parquet"),
        (&["-f", "no.sql"], "cannot read no.sql", "relative to"),
        (&["-c", ".set no.such 1"], "unknown setting 'no.such'", ""),
        (&["--format", "parquet"], "parquet is no text", "--output rows.parquet"),
    ] {
        run(&dir, &[&["sql"], args].concat()).ended(2).one_error(message, hint);
    }
    // Where a table is used the error of an option is found, and it stands where it is declared.
    let declared = "CREATE TABLE t (n INT) WITH ('connector' = 'file',\n 'path' = 'no.csv');";
    let script = format!("SELECT 1 AS é; {declared} SELECT 2; SELECT * FROM t;");
    let outcome = run(&dir, &["sql", "-c", &script]).ended(2);
    let err = &outcome.err;
    assert!(
        err.contains("\n --> <command>:2:11\n") && err.contains("|           ^^^^^^^^"),
        "{err}"
    );
    // In another text the places of the first one mean nothing.
    let outcome = run(&dir, &["sql", "-c", declared, "-c", "\n\n\nSELECT * FROM t"]).ended(2);
    assert!(outcome.err.contains("\n --> <command>:4:15\n"), "{}", outcome.err);
    dir.write("loop.sql", ".read loop.sql");
    let outcome = run(&dir, &["sql", "-f", "loop.sql"]).ended(2);
    outcome.one_error("loop.sql is read by 16 files", "read themselves");
}

/// The rows of a file as the engine reads them back.
fn read_back(dir: &Dir, path: &str) -> String {
    let sql = format!(
        "CREATE TABLE t WITH ('connector' = 'file', 'path' = '{path}'); SELECT item, price FROM t"
    );
    run(dir, &["sql", "-c", &sql, "--format", "csv"]).ended(0).out
}

#[test]
fn the_extension_of_a_file_tells_its_format() {
    for extension in ["csv", "json", "parquet", "arrow"] {
        let dir = dir("extension");
        let path = format!("rows.{extension}");
        let select = "SELECT item, price FROM bids;";
        dir.write("q.sql", format!("{TABLE}{select}"));
        let outcome = run(&dir, &["run", "q.sql", "--output", &path]).ended(0);
        assert_eq!(outcome.out, "");
        assert_eq!(read_back(&dir, &path), "item,price\n1,10.5\n2,11.0\n", "{extension}");
        let first = fs::read(dir.path().join(&path)).unwrap();
        fs::remove_file(dir.path().join(&path)).unwrap();
        let outcome = run(&dir, &["sql", "-f", "q.sql", "--output", &path]).ended(0);
        assert_eq!(outcome.err, format!("2 rows written to {path}\n"));
        assert_eq!(fs::read(dir.path().join(&path)).unwrap(), first, "{extension}");
        let script = format!(".output dot.{extension}\n{TABLE}{select} SELECT 1 AS shown;");
        let outcome = run_piped(&dir, &["sql", "--format", "csv"], script.as_bytes()).ended(0);
        assert_eq!(outcome.out, "shown\n1\n");
        assert_eq!(fs::read(dir.path().join(format!("dot.{extension}"))).unwrap(), first);
        let dot = format!("dot.{extension}");
        let mut names = ["bids.csv", "examples", "q.sql", "tables.sql", &path, &dot];
        names.sort_unstable();
        assert_eq!(dir.names(), names);
    }
}

#[test]
fn a_file_is_what_it_was_unless_all_is_well() {
    let dir = dir("kept");
    dir.write("rows.csv", "as it was");
    for (sql, code) in [("SELECT 1; SELECT 2", 2), ("SELECT 1 / (item - 1) FROM bids", 1)] {
        dir.write("q.sql", format!("{TABLE}{sql}"));
        let outcome = run(&dir, &["run", "q.sql", "--output", "rows.csv"]).ended(code);
        assert!(outcome.err.starts_with("error: "), "{}", outcome.err);
        assert_eq!(dir.read("rows.csv"), "as it was");
        assert_eq!(dir.names(), ["bids.csv", "examples", "q.sql", "rows.csv", "tables.sql"]);
    }
    // A table is text, of any number of queries.
    dir.write("q.sql", "SELECT 1 AS a; SELECT 2 AS b;");
    let args = ["run", "q.sql", "--output", "rows.txt", "--format", "table"];
    run(&dir, &args).ended(0);
    assert_eq!(dir.read("rows.txt").matches("1 row").count(), 2);
}

#[test]
fn a_chart_is_drawn_of_rows() {
    let dir = dir("chart");
    let sql = "SELECT * FROM (VALUES ('EWR', 40), ('JFK', 10), ('LGA', NULL)) AS t (origin, n)";
    let Outcome { out, .. } = run(&dir, &["sql", "-c", sql, "--chart"]).ended(0);
    let bars: Vec<&str> = out.lines().collect();
    assert_eq!(bars.len(), 3, "{out}");
    assert!(bars[0].starts_with("EWR │███") && bars[0].ends_with("█ 40"), "{out}");
    assert!(bars[1].ends_with(" 10") && bars[2] == "LGA │NULL", "{out}");
    let length = |line: &str| line.chars().filter(|c| *c == '█').count();
    assert_eq!(length(bars[0]) / 4, length(bars[1]));
    dir.write("q.sql", "SELECT x, x * x AS y FROM (VALUES (1), (2), (3)) AS t (x)");
    let ascii = Command::new(program())
        .args(["run", "q.sql", "--chart", "--quiet", "--nodes", "2", "--workers", "1"])
        .current_dir(dir.path())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8(ascii.stdout).unwrap();
    assert!(out.is_ascii() && out.contains("3 rows over x"), "{out}");
    assert!(out.starts_with("* y\n"), "{out}");
}
